"""Locking for real: uv resolves from an index on loopback."""

from __future__ import annotations

import datetime
import hashlib
from pathlib import Path

import pytest

from tests import backend, projects, wheels
from tests.conftest import Envbuild
from tests.servers import Fault, SimpleIndex

INSTANT = "2026-11-30T00:00:00Z"


def lock_text(folder: Path, name: str = "toy") -> str:
    return (folder / "locks" / f"pylock.{name}.toml").read_text()


@pytest.fixture
def toys(index: SimpleIndex) -> SimpleIndex:
    """An index with a few packages of a few versions."""
    tag = f"cp{projects.MINOR.replace('.', '')}"
    for version in ("1.0", "1.1"):
        wheels.make_wheel(index.folder, "alpha", version, requires=["beta>=1"])
        wheels.make_wheel(index.folder, "beta", version)
    wheels.make_wheel(
        index.folder, "gamma", "1.0", python_tag=tag, abi_tag=tag,
        platform_tag="manylinux_2_17_x86_64.manylinux2014_x86_64",
    )  # fmt: skip
    wheels.make_wheel(
        index.folder, "gamma", "1.0", python_tag=tag, abi_tag=tag,
        platform_tag="manylinux_2_34_x86_64",
    )  # fmt: skip
    wheels.make_wheel(index.folder, "gamma", "1.0")
    return index


def test_locks_one_file_a_package_and_no_host(
    toys: SimpleIndex, tmp_path: Path, envbuild: Envbuild
) -> None:
    folder = tmp_path / "project"
    projects.project(folder, {"toy": projects.environment("alpha", "gamma")}, {})
    done = envbuild("lock", "--exclude-newer", INSTANT, cwd=folder)
    assert (done.code, done.err) == (0, "")
    assert "toy" in done.out
    assert "new" in done.out
    text = lock_text(folder)
    assert text.count("[[packages]]") == 3
    assert "manylinux_2_17" in text
    assert "manylinux_2_34" not in text
    assert "gamma-1.0-py3" not in text
    assert "127.0.0.1" not in text
    assert "http" not in text
    digest = hashlib.sha256((toys.folder / "alpha-1.1-py3-none-any.whl").read_bytes()).hexdigest()
    assert digest in text
    assert f'exclude-newer = "{INSTANT}"' in text


def test_four_times_and_three_spellings_give_one_lock(
    toys: SimpleIndex, tmp_path: Path, envbuild: Envbuild
) -> None:
    folder = tmp_path / "project"
    projects.project(folder, {"toy": projects.environment("alpha", "gamma")}, {})
    texts = set()
    for url in (toys.url, toys.url.rstrip("/"), toys.url.replace("127.0.0.1", "localhost")):
        env = {"UV_DEFAULT_INDEX": url}
        assert envbuild("lock", "--exclude-newer", INSTANT, cwd=folder, env=env).code == 0
        texts.add(lock_text(folder))
    done = envbuild("lock", cwd=folder, env={"UV_CACHE_DIR": str(tmp_path / "other-cache")})
    assert "unchanged" in done.out
    texts.add(lock_text(folder))
    assert len(texts) == 1


def test_settings_that_are_not_the_index_have_no_influence(
    toys: SimpleIndex, tmp_path: Path, envbuild: Envbuild
) -> None:
    folder = tmp_path / "project"
    projects.project(folder, {"toy": projects.environment("alpha", "gamma")}, {})
    assert envbuild("lock", "--exclude-newer", INSTANT, cwd=folder).code == 0
    plain = lock_text(folder)
    config = tmp_path / "home" / ".config" / "uv"
    config.mkdir(parents=True)
    (config / "uv.toml").write_text('[pip]\nresolution = "lowest"\nno-binary = ["alpha"]\n')
    (folder / "pyproject.toml").write_text('[tool.uv.pip]\nresolution = "lowest"\n')
    env = {
        "UV_TORCH_BACKEND": "cpu",
        "UV_FROZEN": "1",
        "UV_RESOLUTION": "lowest",
        "UV_PRERELEASE": "allow",
        "UV_EXCLUDE_NEWER": "2020-01-01T00:00:00Z",
        "UV_NO_BINARY": "1",
        "PIP_INDEX_URL": "http://127.0.0.1:9/simple",
        "PIP_NO_BINARY": ":all:",
    }
    done = envbuild("lock", "--exclude-newer", INSTANT, cwd=folder, env=env)
    assert (done.code, done.err) == (0, "")
    assert lock_text(folder) == plain


def test_requirements_added_and_removed_are_reported(
    toys: SimpleIndex, tmp_path: Path, envbuild: Envbuild
) -> None:
    folder = tmp_path / "project"
    project = projects.project(folder, {"toy": projects.environment("alpha==1.0")}, {})
    assert envbuild("lock", cwd=folder).code == 0
    project.environment_file("toy").write_text(projects.environment("alpha==1.1", "gamma"))
    done = envbuild("lock", "toy", cwd=folder)
    assert done.code == 0
    assert "toy: + gamma 1.0" in done.out.splitlines()
    assert "toy: ~ alpha 1.0 -> 1.1" in done.out.splitlines()


def test_without_upgrade_the_recorded_instant_stands(
    toys: SimpleIndex, tmp_path: Path, envbuild: Envbuild
) -> None:
    folder = tmp_path / "project"
    projects.project(folder, {"toy": projects.environment("alpha")}, {})
    toys.uploaded = {
        "alpha-1.1-py3-none-any.whl": "2025-06-01T00:00:00Z",
        "beta-1.1-py3-none-any.whl": "2025-06-01T00:00:00Z",
    }
    cache = {"UV_CACHE_DIR": str(tmp_path / "cold")}
    old = "2025-01-01T00:00:00Z"
    assert envbuild("lock", "--exclude-newer", old, cwd=folder, env=cache).code == 0
    assert "alpha-1.0-" in lock_text(folder)
    assert envbuild("lock", cwd=folder, env=cache).code == 0
    assert "alpha-1.0-" in lock_text(folder)

    assert envbuild("lock", "--upgrade", "beta", cwd=folder, env=cache).code == 0
    text = lock_text(folder)
    assert "alpha-1.0-" in text
    assert "beta-1.1-" in text
    today = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d")
    assert f'[tool.envbuild.exclude-newer-package]\nbeta = "{today}T00:00:00Z"' in text
    assert envbuild("lock", "--check", "--resolve", cwd=folder, env=cache).code == 0

    assert envbuild("lock", "--upgrade", cwd=folder, env=cache).code == 0
    text = lock_text(folder)
    assert "alpha-1.1-" in text
    assert "exclude-newer-package" not in text


def test_upgrade_followed_by_an_environment_upgrades_that(
    toys: SimpleIndex, tmp_path: Path, envbuild: Envbuild
) -> None:
    folder = tmp_path / "project"
    toy = projects.environment("alpha")
    projects.project(folder, {"toy": toy, "other": toy}, {})
    assert envbuild("lock", "--upgrade", "toy", cwd=folder).code == 0
    assert sorted(path.name for path in (folder / "locks").iterdir()) == [
        "interpreters.toml",
        "pylock.toy.toml",
    ]


def test_a_derived_environment_keeps_the_base_to_the_hash(
    toys: SimpleIndex, tmp_path: Path, envbuild: Envbuild
) -> None:
    folder = tmp_path / "project"
    more = 'summary = "more"\nbase = "toy"\nrequirements = ["gamma"]\n'
    project = projects.project(folder, {"toy": projects.environment("alpha<1.1"), "more": more}, {})
    assert envbuild("lock", cwd=folder).code == 0
    # a better wheel of a package of the base appears: the base's own file is kept
    tag = f"cp{projects.MINOR.replace('.', '')}"
    wheels.make_wheel(toys.folder, "alpha", "1.0", python_tag=tag, requires=["beta>=1"])
    fresh = {"UV_CACHE_DIR": str(tmp_path / "fresh")}
    assert envbuild("lock", "more", cwd=folder, env=fresh).code == 0
    text = lock_text(folder, "more")
    assert "alpha-1.0-py3-none-any.whl" in text
    assert "gamma-1.0" in text
    assert envbuild("lock", "--check", cwd=folder).code == 0

    project.environment_file("toy").write_text(projects.environment("alpha==1.1"))
    done = envbuild("lock", "toy", cwd=folder, env=fresh)
    assert done.err == "more stands on one of these: run `envbuild lock more` too\n"
    done = envbuild("lock", "--check", cwd=folder)
    assert done.code == 1
    assert (
        "locks/pylock.more.toml: error D004: alpha 1.1 of the base toy differs: alpha 1.1 -> 1.0"
        in done.out
    )
    assert "envs/more.toml: error D003: the lock of the base toy changed since the lock was made"\
        in done.out  # fmt: skip


def test_a_pure_sdist_is_built_once_and_its_wheel_pinned(
    toys: SimpleIndex, tmp_path: Path, envbuild: Envbuild
) -> None:
    backend.wheel(toys.folder)
    backend.sdist(toys.folder, "old-one", "1.0")
    extra = (
        '[static-metadata.old-one]\nversion = "1.0"\nrequires-dist = []\n'
        '[build.old-one]\nkind = "pure"\nrequires = ["toybackend"]\n'
    )
    texts = set()
    for attempt in ("first", "second"):
        folder = tmp_path / attempt
        projects.project(folder, {"toy": projects.environment("old-one", extra=extra)}, {})
        done = envbuild("lock", cwd=folder)
        assert (done.code, done.err) == (0, "")
        texts.add(lock_text(folder))
        assert (folder / "wheelhouse" / "old_one-1.0-py3-none-any.whl").exists()
    # the backend's own wheels differ in every run: the lock's do not
    assert len(texts) == 1
    text = texts.pop()
    assert "[tool.envbuild.built.old-one]" in text
    assert 'requires = "toybackend"' in text
    # a second time nothing is built: the lock already says what comes out
    backend_page = toys.asked(toys.file_path("toybackend-1-py3-none-any.whl"))
    assert envbuild("lock", cwd=tmp_path / "first").code == 0
    assert toys.asked(toys.file_path("toybackend-1-py3-none-any.whl")) == backend_page


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (
            "",
            "error: envs/toy.toml: old-one 1.0 has no wheel that fits\n"
            "  expected: a table [build.old-one] that says how it is built\n"
            "  found: old_one-1.0.tar.gz\n"
            '  mend: add it, with kind = "pure" for a package without compiled code\n',
        ),
        (
            '[build.old-one]\nkind = "pure"\nrequires = ["toybackend"]\n'
            '[build.other]\nkind = "cuda"\n',
            "error: envs/toy.toml: build.other: the lock holds no sdist of that name\n"
            "  mend: remove the table [build.other]\n",
        ),
    ],
)
def test_sdists_and_declared_builds_are_held_to_each_other(
    toys: SimpleIndex, tmp_path: Path, envbuild: Envbuild, extra: str, message: str
) -> None:
    backend.wheel(toys.folder)
    backend.sdist(toys.folder, "old-one", "1.0")
    metadata = '[static-metadata.old-one]\nversion = "1.0"\nrequires-dist = []\n'
    folder = tmp_path / "project"
    toy = projects.environment("old-one", extra=metadata + extra)
    projects.project(folder, {"toy": toy}, {})
    done = envbuild("lock", cwd=folder)
    assert (done.code, done.err) == (2, message)
    assert not (folder / "locks" / "pylock.toy.toml").exists()


def test_the_index_may_need_a_password_which_nobody_sees(
    tmp_path: Path, envbuild: Envbuild
) -> None:
    served = tmp_path / "index"
    wheels.make_wheel(served, "alpha", "1.0")
    folder = tmp_path / "project"
    projects.project(folder, {"toy": projects.environment("alpha")}, {"local": projects.LOCAL})
    with SimpleIndex(served, auth=("ada", "s3cret")) as index:
        env = {"UV_DEFAULT_INDEX": index.url_with_credentials}
        done = envbuild("--verbose", "lock", cwd=folder, env=env)
        assert done.code == 0, done.err
        fetched = envbuild("--verbose", "fetch", "--no-interpreters", cwd=folder, env=env)
        assert fetched.code == 0, fetched.err
        index.plant(index.page_path("alpha"), Fault(status=404), times=9)
        failed = envbuild("--verbose", "lock", cwd=folder, env={**env, "UV_CACHE_DIR": "none"})
        assert failed.code == 4
    for text in (done.out, done.err, fetched.out, fetched.err, failed.out, failed.err):
        assert "s3cret" not in text
    for path in folder.rglob("*"):
        if path.is_file() and "none" not in path.parts:
            assert b"s3cret" not in path.read_bytes()


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (Fault(status=404), "was not found in the package registry"),
        (Fault(status=500), "500"),
    ],
)
def test_an_index_that_fails(
    toys: SimpleIndex, tmp_path: Path, envbuild: Envbuild, fault: Fault, words: str
) -> None:
    toys.plant(toys.page_path("alpha"), fault, times=99)
    folder = tmp_path / "project"
    projects.project(folder, {"toy": projects.environment("alpha")}, {})
    done = envbuild("lock", cwd=folder, env={"UV_HTTP_RETRIES": "0"})
    assert done.code == 4
    assert done.err.startswith("error: resolving toy failed with exit code ")
    assert words in done.err
    assert not (folder / "locks" / "pylock.toy.toml").exists()


def test_an_index_that_is_down(tmp_path: Path, envbuild: Envbuild) -> None:
    folder = tmp_path / "project"
    projects.project(folder, {"toy": projects.environment("alpha")}, {})
    env = {"UV_DEFAULT_INDEX": "http://127.0.0.1:9/simple"}
    done = envbuild("lock", cwd=folder, env=env)
    assert done.code == 4
    assert "error: resolving toy failed with exit code 2" in done.err
    assert "127.0.0.1" in done.err


def test_a_mirror_without_upload_times_is_named(tmp_path: Path, envbuild: Envbuild) -> None:
    served = tmp_path / "index"
    wheels.make_wheel(served, "alpha", "1.0")
    folder = tmp_path / "project"
    projects.project(folder, {"toy": projects.environment("alpha")}, {})
    with SimpleIndex(served, uploaded=False) as index:
        done = envbuild("lock", cwd=folder, env={"UV_DEFAULT_INDEX": index.url})
    assert done.code == 4
    assert (
        "mend: the index gives no upload times (PEP 700), without which nothing can be resolved "
        "as of an instant: configure one that does"
    ) in done.err


def test_an_index_without_sizes(tmp_path: Path, envbuild: Envbuild) -> None:
    served = tmp_path / "index"
    wheels.make_wheel(served, "alpha", "1.0")
    folder = tmp_path / "project"
    projects.project(folder, {"toy": projects.environment("alpha")}, {})
    with SimpleIndex(served, sizes=False) as index:
        done = envbuild("lock", cwd=folder, env={"UV_DEFAULT_INDEX": index.url})
    assert (done.code, done.err) == (
        2,
        "error: envs/toy.toml: the index gives no size for alpha-1.0-py3-none-any.whl\n"
        "  mend: configure an index that gives sizes and hashes (PEP 691, PEP 700)\n",
    )


def test_an_index_without_hashes_gives_the_same_lock(tmp_path: Path, envbuild: Envbuild) -> None:
    served = tmp_path / "index"
    wheels.make_wheel(served, "alpha", "1.0")
    texts = set()
    for hashes in (True, False):
        folder = tmp_path / f"project-{hashes}"
        projects.project(folder, {"toy": projects.environment("alpha")}, {})
        with SimpleIndex(served, hashes=hashes) as index:
            env = {"UV_DEFAULT_INDEX": index.url, "UV_CACHE_DIR": str(tmp_path / f"{hashes}")}
            assert envbuild("lock", cwd=folder, env=env).code == 0
        texts.add(lock_text(folder))
    assert len(texts) == 1


def test_no_wheel_fits(toys: SimpleIndex, tmp_path: Path, envbuild: Envbuild) -> None:
    wheels.make_wheel(toys.folder, "delta", "1", python_tag="cp27", abi_tag="cp27")
    folder = tmp_path / "project"
    projects.project(folder, {"toy": projects.environment("delta")}, {})
    done = envbuild("lock", cwd=folder)
    assert done.code == 4
    assert "No solution found" in done.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--exclude-newer", "2026-11-30"],
            "error: --exclude-newer: not an instant\n"
            "  expected: UTC, such as 2026-11-30T00:00:00Z\n  found: 2026-11-30\n",
        ),
        (["--resolve"], "Usage: envbuild lock [OPTIONS] [ENV]...\n"),
        (["--check", "--upgrade"], "Usage: envbuild lock [OPTIONS] [ENV]...\n"),
        (["--upgrade", "--exclude-newer", INSTANT], "Usage: envbuild lock [OPTIONS] [ENV]...\n"),
    ],
)
def test_bad_usage(tmp_path: Path, envbuild: Envbuild, arguments: list[str], message: str) -> None:
    projects.project(tmp_path / "project", {"toy": projects.environment("alpha")}, {})
    done = envbuild("lock", *arguments, cwd=tmp_path / "project")
    assert done.code == 2
    assert done.err.startswith(message)
