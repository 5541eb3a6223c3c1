from __future__ import annotations

import sys
from pathlib import Path

import pytest

from envbuild import process
from envbuild.errors import StepError


def python(code: str) -> list[str]:
    return [sys.executable, "-I", "-c", code]


def test_output_is_kept() -> None:
    done = process.run(python("import sys; print(1); print(2, file=sys.stderr)"), doing="counting")
    assert (done.stdout, done.stderr) == ("1\n", "2\n")
    assert done.seconds > 0


def test_a_failure_shows_command_and_output() -> None:
    command = python("import sys; print('out'); sys.exit('bad')")
    with pytest.raises(StepError) as caught:
        process.run(command, doing="counting", mend="count again")
    lines = str(caught.value).splitlines()
    assert lines[:3] == ["counting failed with exit code 1", "  mend: count again", ""]
    assert lines[3].startswith(f"  | $ {sys.executable} -I -c ")
    assert lines[4:] == ["  | out", "  | ", "  | bad"]


def test_long_output_is_shortened() -> None:
    with pytest.raises(StepError) as caught:
        process.run(python("import sys; print(*range(1000), sep='\\n'); sys.exit(3)"), doing="it")
    lines = (caught.value.detail or "").splitlines()
    assert lines[1:6] == ["0", "1", "2", "3", "4"]
    assert lines[6] == "... 965 lines left out; `envbuild --verbose` shows them ..."
    assert lines[7:] == [str(number) for number in range(970, 1000)]


def test_killed_by_a_signal() -> None:
    code = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    with pytest.raises(StepError, match="counting was killed by signal 9"):
        process.run(python(code), doing="counting")


def test_out_of_time() -> None:
    with pytest.raises(StepError, match=r"waiting did not end in 0\.2 s"):
        process.run(python("import time; time.sleep(60)"), doing="waiting", timeout=0.2)


def test_a_program_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(StepError) as caught:
        process.run([tmp_path / "no"], doing="starting")
    assert caught.value.what == (
        f"starting: {tmp_path}/no cannot be started: No such file or directory"
    )


def test_passwords_in_urls_are_shown_nowhere() -> None:
    url = "https://user:s3cret@mirror.example/simple"
    with pytest.raises(StepError) as caught:
        process.run([*python(f"import sys; sys.exit('{url}')"), url], doing="asking")
    assert "s3cret" not in str(caught.value)
    assert str(caught.value).count("https://***@mirror.example/simple") == 3


@pytest.mark.parametrize(
    "secret",
    ["me:s3cret", "s3cret", "me:s3'cret", "me:s3@cret", "me:@s3cret@", "me:s3/cret", "me:s3?c#ret",
     'me:s3"cret', 'me:s3 c"r/et', "me:1s3cret/2", ":s3cret", ":s3/cret", "me:s3%2Fcret"],
)  # fmt: skip
@pytest.mark.parametrize(
    "line",
    [
        "index-url http://{}@mirror.example/simple",
        '2 | url = "http://{}@mirror.example:8080/simple"',
        "('http://{}@mirror.example/simple', 'it is refused')",
        "http://{0}@mirror.example/simple http://{0}@mirror.example/two",
    ],
)
def test_a_password_may_hold_anything(secret: str, line: str) -> None:
    shown = process.redact(f"before http://other:80/x\n{line.format(secret)}\nafter")
    assert shown == f"before http://other:80/x\n{line.replace('{0}', '{}')}\nafter".replace(
        "{}@", "***@"
    )


@pytest.mark.parametrize(
    "text",
    [
        "no answer from http://mirror.example:8080/simple/a@1 to me@example",
        "http://mirror.example:8080",
        "http://mirror.example: refused; ask me@mirror.example",
        "http://mirror.example/a@b",
        '"http://mirror.example", "a@b"',
        "http://[::1]:8080/a@b",
        "pylock.toml: a@1",
    ],
)
def test_what_holds_no_password_is_shown(text: str) -> None:
    assert process.redact(text) == text


@pytest.mark.parametrize(
    "name", ["UV_DEFAULT_INDEX", "UV_EXTRA_INDEX_URL", "UV_PYTHON_INSTALL_MIRROR"]
)
@pytest.mark.parametrize("secret", ["s3/cret", "me:12/3", 's3 "cret', "me:12%2F3"])
def test_what_looks_like_no_password_is_known_by_its_variable(
    monkeypatch: pytest.MonkeyPatch, name: str, secret: str
) -> None:
    monkeypatch.setenv(name, f"http://{secret}@mirror.example/simple")
    for spelling in (secret, secret.replace("%2F", "/")):
        said = f"cannot read http://{spelling}@mirror.example/simple/six/"
        assert process.redact(said) == "cannot read http://***@mirror.example/simple/six/"


def test_a_command_is_shown_without_a_password_that_needs_quotes() -> None:
    with pytest.raises(StepError) as caught:
        process.run([*python("raise SystemExit(1)"), "http://me:s3'cr et@host/"], doing="asking")
    assert (caught.value.detail or "").splitlines()[0].endswith(" 'http://***@host/'")


def test_only_what_is_listed_gets_through(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SECRET_TOKEN", "PYTHONPATH", "UV_TORCH_BACKEND", "PIP_INDEX_URL", "TMPDIR"):
        monkeypatch.setenv(name, "x")
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy:3128")
    seen = process.environment({"MORE": "1"})
    assert {"PATH", "TMPDIR", "MORE", "LC_ALL"} <= set(seen)
    assert not {"SECRET_TOKEN", "PYTHONPATH", "UV_TORCH_BACKEND", "PIP_INDEX_URL"} & set(seen)
    assert "HTTPS_PROXY" not in seen
    assert process.environment(network=True)["HTTPS_PROXY"] == "http://proxy:3128"
