"""Drift, level by level: each in the words of the person who caused it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from envbuild.catalog.project import Project
from envbuild.lock import debian, drift
from tests import projects, wheels
from tests.conftest import Envbuild
from tests.debian import Archive
from tests.servers import Fault, SimpleIndex


@pytest.fixture
def locked(index: SimpleIndex, tmp_path: Path, envbuild: Envbuild) -> Project:
    """A project with one locked environment."""
    for version in ("1.0", "1.1"):
        wheels.make_wheel(index.folder, "alpha", version)
        wheels.make_wheel(index.folder, "beta", version)
    folder = tmp_path / "project"
    project = projects.project(
        folder, {"toy": projects.environment("alpha==1.0", "beta")}, {"local": projects.LOCAL}
    )
    done = envbuild("lock", "--exclude-newer", "2026-11-30T00:00:00Z", cwd=folder)
    assert done.code == 0, done.err
    return project


def messages(project: Project) -> list[str]:
    return [finding.message for finding in drift.check(project, project.environment_names)[1]]


def test_no_drift(locked: Project, envbuild: Envbuild) -> None:
    done = envbuild("lock", "--check", cwd=locked.folder, env={"UV_DEFAULT_INDEX": "http://x:1/"})
    assert (done.code, done.out, done.err) == (0, "1 locks: no drift (declared)\n", "")


def test_neither_order_nor_spelling_nor_line_ends_are_drift(locked: Project) -> None:
    path = locked.environment_file("toy")
    text = projects.environment("Beta", "alpha == 1.0").replace("a toy", "another summary")
    path.write_bytes(text.replace("\n", "\r\n").encode())
    lock = locked.lock_file("toy")
    lock.write_bytes(lock.read_bytes().replace(b"\n", b"\r\n"))
    assert messages(locked) == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            projects.environment("alpha==1.0", "beta", "six"),
            ["requirement added: six since the lock was made"],
        ),
        (projects.environment("beta"), ["requirement removed: alpha==1.0 since the lock was made"]),
        (
            projects.environment("alpha==1.1", "beta"),
            ["requirement changed: alpha==1.0 -> alpha==1.1 since the lock was made"],
        ),
        (
            projects.environment(
                "alpha==1.0", "beta", extra='overrides = ["six"]\nexcludes = ["gamma"]'
            ),
            [
                "override added: six since the lock was made",
                "exclude added: gamma since the lock was made",
            ],
        ),
        (
            projects.environment(
                "alpha==1.0", "beta", interval=f">={projects.MINOR}.1,<{projects.NEXT}"
            ),
            [
                f"Python changed from >={projects.MINOR},<{projects.NEXT} to "
                f">={projects.MINOR}.1,<{projects.NEXT} since the lock was made"
            ],
        ),
        (
            projects.environment("alpha==1.0", "beta").replace("2_28", "2_34"),
            [
                "platform changed from x86_64-manylinux_2_28 to x86_64-manylinux_2_34 "
                "since the lock was made"
            ],
        ),
        (
            projects.environment(
                "alpha==1.0",
                "beta",
                extra="[static-metadata.old]\nrequires-dist = []\n"
                '[build.old]\nkind = "cuda"\narchitectures = ["90"]\n'
                '[[editable]]\npath = "."\nrequires = ["setuptools"]\n',
            ),
            [
                "build requirements added: setuptools since the lock was made",
                "static metadata of old added since the lock was made",
                "build of old added since the lock was made",
            ],
        ),
    ],
)
def test_what_was_declared_anew_is_told_in_words(
    locked: Project, text: str, message: list[str]
) -> None:
    locked.environment_file("toy").write_text(text)
    _, findings = drift.check(locked, ["toy"])
    assert [finding.message for finding in findings] == message
    assert {(finding.code, finding.severity, finding.where) for finding in findings} == {
        ("D003", "error", "envs/toy.toml")
    }
    assert {finding.mend for finding in findings} == {"run `envbuild lock toy`"}


def test_a_lock_edited_by_hand(locked: Project) -> None:
    path = locked.lock_file("toy")
    path.write_text(path.read_text().replace('version = "1.1"\n', 'version = "1.1"\n\n', 1))
    assert messages(locked) == ["not in canonical form: edited by hand"]


def test_a_lock_with_another_hash_is_refused(locked: Project) -> None:
    path = locked.lock_file("toy")
    path.write_text(path.read_text().replace('sha256 = "', 'sha256 = "zz', 1))
    assert messages(locked) == ["packages[0].wheels[0].hashes.sha256: not a SHA-256"]


def test_a_missing_lock_and_an_orphan(locked: Project) -> None:
    locked.lock_file("toy").rename(locked.lock_file("gone"))
    _, findings = drift.check(locked, ["toy"])
    assert [(finding.code, finding.message) for finding in findings] == [
        ("D001", "toy has no lock"),
        ("D007", "a lock without an environment"),
    ]


def test_another_python_needs_a_pin(locked: Project) -> None:
    text = projects.environment("alpha==1.0", "beta", python=f"{projects.MINOR}.1")
    locked.environment_file("toy").write_text(text)
    assert messages(locked) == [f"Python {projects.MINOR}.1 of toy has no pin"]


def test_another_resolver_is_a_warning(locked: Project, envbuild: Envbuild) -> None:
    path = locked.lock_file("toy")
    path.write_text(path.read_text().replace('resolver = "uv ', 'resolver = "uv 0.0-'))
    done = envbuild("lock", "--check", cwd=locked.folder)
    assert done.code == 0
    assert (
        "locks/pylock.toy.toml: warning D006: made by another resolver than the one that "
        "envbuild pins\n"
    ) in done.out


def test_the_report_for_people_and_machines(locked: Project, envbuild: Envbuild) -> None:
    locked.environment_file("toy").write_text(projects.environment("alpha==1.0"))
    done = envbuild("lock", "--check", cwd=locked.folder)
    assert done.code == 1
    assert done.out == (
        "envs/toy.toml: error D003: requirement removed: beta since the lock was made\n"
        "  mend: run `envbuild lock toy`\n"
    )
    assert done.err == "error: drift in 1 of 1 environments\n"
    report = json.loads(envbuild("lock", "--check", "--json", cwd=locked.folder).out)
    assert report["schema"] == "envbuild.lock-check/1"
    assert report["drift"] is True
    assert report["findings"] == [
        {
            "code": "D003",
            "severity": "error",
            "where": "envs/toy.toml",
            "message": "requirement removed: beta since the lock was made",
            "mend": "run `envbuild lock toy`",
        }
    ]


def test_resolving_again_gives_the_same_bytes(locked: Project, envbuild: Envbuild) -> None:
    cold = {"UV_CACHE_DIR": str(locked.folder / "cold")}
    done = envbuild("lock", "--check", "--resolve", cwd=locked.folder, env=cold)
    assert (done.code, done.out) == (0, "1 locks: no drift (declared, resolve)\n")


def test_resolving_again_finds_what_the_index_changed(
    locked: Project, index: SimpleIndex, envbuild: Envbuild
) -> None:
    wheels.make_wheel(index.folder, "beta", "1.2", requires=["gamma"])
    wheels.make_wheel(index.folder, "gamma", "1")
    cold = {"UV_CACHE_DIR": str(locked.folder / "cold")}
    done = envbuild("lock", "--check", "--resolve", cwd=locked.folder, env=cold)
    assert done.code == 1
    assert done.out == (
        "locks/pylock.toy.toml: error D008: resolved anew: beta 1.1 -> 1.2\n"
        "  mend: run `envbuild lock toy`\n"
        "locks/pylock.toy.toml: error D008: resolved anew: gamma 1 is needed too\n"
        "  mend: run `envbuild lock toy`\n"
    )


def test_resolving_again_finds_an_index_that_lost_everything(
    locked: Project, index: SimpleIndex, envbuild: Envbuild
) -> None:
    for path in index.folder.iterdir():
        path.unlink()
    cold = {"UV_CACHE_DIR": str(locked.folder / "cold")}
    done = envbuild("lock", "--check", "--resolve", cwd=locked.folder, env=cold)
    assert done.code == 1
    assert "error D008: resolving toy failed with exit code 1" in done.out


def test_the_index_still_offers_every_file(
    locked: Project, index: SimpleIndex, envbuild: Envbuild
) -> None:
    done = envbuild("lock", "--check", "--index", cwd=locked.folder)
    assert (done.code, done.out) == (0, "1 locks: no drift (declared, index)\n")

    index.yanked["alpha-1.0-py3-none-any.whl"] = "broken metadata"
    path = index.folder / "beta-1.1-py3-none-any.whl"
    path.unlink()
    done = envbuild("lock", "--check", "--index", cwd=locked.folder)
    assert done.code == 1
    assert done.out.splitlines()[:2] == [
        "locks/pylock.toy.toml: error D009: alpha-1.0-py3-none-any.whl was yanked: broken metadata",
        "  mend: run `envbuild lock --upgrade alpha toy`",
    ]
    assert "beta-1.1-py3-none-any.whl: no index offers the file" in done.out


def test_the_index_offers_other_bytes(
    locked: Project, index: SimpleIndex, envbuild: Envbuild
) -> None:
    wheels.make_wheel(index.folder, "beta", "1.1", files={"beta.py": "print('other')\n"})
    done = envbuild("lock", "--check", "--index", cwd=locked.folder)
    assert done.code == 1
    assert "error D009: beta-1.1-py3-none-any.whl: the index offers another file" in done.out
    assert "expected: SHA-256 " in done.out
    assert "found: SHA-256 " in done.out


@pytest.mark.parametrize("level", ["--resolve", "--index"])
@pytest.mark.parametrize("fault", ["down", 401, 403, 500, "no page"])
def test_an_index_that_fails_says_nothing_of_the_locks(
    locked: Project, index: SimpleIndex, envbuild: Envbuild, level: str, fault: str | int
) -> None:
    env = {"UV_CACHE_DIR": str(locked.folder / "cold"), "UV_HTTP_RETRIES": "0"}
    if fault == "down":
        env["UV_DEFAULT_INDEX"] = "http://127.0.0.1:9/simple/"
    elif isinstance(fault, int):
        index.plant(index.page_path("beta"), Fault(status=fault, retry_after=0), times=99)
    else:
        page = Fault(body=b"hello", headers={"Content-Type": "text/plain"})
        index.plant(index.page_path("beta"), page, times=99)
    done = envbuild("lock", "--check", level, cwd=locked.folder, env=env)
    assert (done.code, done.out) == (4, "")
    assert done.err.startswith("error: ")
    assert "drift" not in done.err
    assert str(fault) in done.err or not isinstance(fault, int)


def test_an_index_that_has_lost_its_times_says_nothing_of_the_locks(
    locked: Project, index: SimpleIndex, envbuild: Envbuild
) -> None:
    index.uploaded = False
    cold = {"UV_CACHE_DIR": str(locked.folder / "cold")}
    done = envbuild("lock", "--check", "--resolve", cwd=locked.folder, env=cold)
    assert (done.code, done.out) == (4, "")
    assert "mend: the index gives no upload times (PEP 700)" in done.err


def test_a_project_that_is_gone_from_the_index_is_drift(
    locked: Project, index: SimpleIndex, envbuild: Envbuild
) -> None:
    (index.folder / "beta-1.1-py3-none-any.whl").unlink()
    (index.folder / "beta-1.0-py3-none-any.whl").unlink()
    done = envbuild("lock", "--check", "--index", cwd=locked.folder)
    assert done.code == 1
    assert done.out.startswith(
        "locks/pylock.toy.toml: error D009: beta-1.1-py3-none-any.whl: no index has the project\n"
    )
    assert done.out.endswith("  mend: configure the index or mirror that the lock was made with\n")


def test_environments_are_counted_and_not_places(locked: Project, envbuild: Envbuild) -> None:
    locked.environment_file("toy").write_text(
        projects.environment("alpha==1.0", python=f"{projects.MINOR}.1")
    )
    derived = 'summary = "more"\nbase = "toy"\nrequirements = ["beta"]\n'
    locked.environment_file("more").write_text(derived)
    done = envbuild("lock", "--check", "toy", cwd=locked.folder)
    assert done.err == "error: drift in 1 of 1 environments\n"
    assert done.out.splitlines()[0] == (
        f"envs/toy.toml: error D005: Python {projects.MINOR}.1 of toy has no pin"
    )
    locked.lock_file("gone").write_text("")
    done = envbuild("lock", "--check", cwd=locked.folder)
    assert done.err == ("error: drift in 2 of 2 environments, and 1 lock without an environment\n")


def test_an_orphan_alone(locked: Project, envbuild: Envbuild) -> None:
    locked.lock_file("gone").write_text("")
    done = envbuild("lock", "--check", cwd=locked.folder)
    assert (done.code, done.err) == (1, "error: drift: 1 lock without an environment\n")


def test_a_base_that_cannot_be_read_is_said_once(
    locked: Project, index: SimpleIndex, envbuild: Envbuild
) -> None:
    derived = 'summary = "more"\nbase = "toy"\nrequirements = ["beta"]\n'
    locked.environment_file("more").write_text(derived)
    assert envbuild("lock", "more", cwd=locked.folder).code == 0
    locked.lock_file("toy").write_text("<<<<<<<")
    what = "not TOML: Invalid statement (at line 1, column 1)"
    restore = (
        "  mend: restore it from version control, or resolve anew: `envbuild lock --upgrade toy` "
        "as of today, `envbuild lock --exclude-newer INSTANT toy` as of then\n"
    )
    of_base = (
        "locks/pylock.more.toml: error D004: the lock of the base toy cannot be kept: "
        f"{what}\n{restore}"
    )
    done = envbuild("lock", "--check", cwd=locked.folder)
    assert done.out == f"{of_base}locks/pylock.toy.toml: error D002: {what}\n{restore}"
    assert done.err == "error: drift in 2 of 2 environments\n"
    done = envbuild("lock", "--check", "more", cwd=locked.folder)
    assert (done.out, done.err) == (of_base, "error: drift in 1 of 1 environments\n")


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Archive:
    """An archive of Debian that has all that images need, and a package more."""
    archive = Archive(tmp_path / "mirror")
    for name in (*debian.BASE, *debian.PYTHON, "libgl1"):
        archive.add(name)
    archive.publish()
    monkeypatch.setenv("ENVBUILD_DEBIAN_KEYRING", "")
    monkeypatch.setenv("ENVBUILD_DEBIAN_MIRROR", archive.url)
    return archive


def declare_packages(project: Project, *names: str) -> None:
    extra = f"[image]\npackages = {json.dumps(names)}\n"
    project.environment_file("toy").write_text(
        projects.environment("alpha==1.0", "beta", extra=extra)
    )


def test_debian_packages_that_nothing_pins(
    locked: Project, archive: Archive, envbuild: Envbuild
) -> None:
    # no pins and no packages is no drift, which the tests above show
    declare_packages(locked, "libgl1")
    done = envbuild("lock", "--check", cwd=locked.folder)
    assert (done.code, done.out) == (
        1,
        "envs/toy.toml: error D010: the Debian package libgl1, which an image needs, is not "
        "pinned\n  expected: it in locks/image-base.toml\n  mend: run `envbuild lock --base`\n",
    )
    assert done.err == "error: drift in 1 of 1 environments\n"
    assert envbuild("lock", "--base", cwd=locked.folder).code == 0
    assert messages(locked) == []
    declare_packages(locked, "tzdata")
    assert messages(locked) == []

    path = debian.pins_file(locked)
    pins = debian.read(path)
    path.write_bytes(debian.serialize(one for one in pins.values() if one.name != "tzdata"))
    done = envbuild("lock", "--check", cwd=locked.folder)
    assert done.out.startswith(
        "locks/image-base.toml: error D010: the Debian package tzdata, which an image needs, is "
        "not pinned\n"
    )
    assert done.err == "error: drift: the pins of Debian packages\n"


def test_debian_pins_that_cannot_be_read(
    locked: Project, archive: Archive, envbuild: Envbuild
) -> None:
    path = debian.pins_file(locked)
    assert envbuild("lock", "--base", cwd=locked.folder).code == 0
    data = path.read_bytes()
    path.write_bytes(data.replace(b"\n", b"\r\n"))
    assert messages(locked) == []
    path.write_bytes(data + b"# mine\n")
    assert messages(locked) == ["not in canonical form: edited by hand"]
    path.write_bytes(b"<<<<<<<")
    locked.lock_file("gone").write_text("")
    done = envbuild("lock", "--check", "--index", cwd=locked.folder)
    assert done.out.startswith(
        "locks/image-base.toml: error D002: not TOML: Invalid statement (at line 1, column 1)\n"
        "  mend: restore it from version control, or remove it and run `envbuild lock --base`\n"
    )
    assert done.err == (
        "error: drift: the pins of Debian packages and 1 lock without an environment\n"
    )


def test_a_pinned_debian_package_has_gone_from_the_mirror(
    locked: Project, archive: Archive, envbuild: Envbuild
) -> None:
    assert envbuild("lock", "--base", cwd=locked.folder).code == 0
    done = envbuild("lock", "--check", "--index", cwd=locked.folder)
    assert (done.code, done.out) == (0, "1 locks: no drift (declared, index)\n")
    assert done.err.startswith("warning: the mirror's signature was not verified: ")

    archive.forget()
    for name in (*debian.BASE, *debian.PYTHON):
        if name != "netbase":
            archive.add(name, "1.1" if name == "zlib1g" else "1.0")
    archive.publish()
    done = envbuild("lock", "--check", "--index", cwd=locked.folder)
    assert (done.code, done.out) == (
        0,
        "locks/image-base.toml: warning D011: netbase 1.0 has gone from the mirror\n"
        "  mend: run `envbuild lock --base`, or keep netbase_1.0_all.deb in the wheelhouse\n"
        "locks/image-base.toml: warning D011: zlib1g 1.0 has gone from the mirror\n  found: 1.1\n"
        "  mend: run `envbuild lock --base`, or keep zlib1g_1.0_all.deb in the wheelhouse\n",
    )


def test_a_machine_without_an_archive_of_debian_is_told(
    locked: Project, archive: Archive, envbuild: Envbuild, tmp_path: Path
) -> None:
    assert envbuild("lock", "--base", cwd=locked.folder).code == 0
    path = {"ENVBUILD_DEBIAN_MIRROR": "", "PATH": str(tmp_path)}
    done = envbuild("lock", "--check", "--index", cwd=locked.folder, env=path)
    assert (done.code, done.out) == (
        0,
        "locks/image-base.toml: warning D011: no archive of Debian's bookworm is configured: none "
        "was asked for the pins\n  mend: set ENVBUILD_DEBIAN_MIRROR, as docs/drift.md says\n",
    )
