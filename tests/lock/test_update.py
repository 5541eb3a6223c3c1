"""Locking for real: uv resolves from an index on loopback."""

from __future__ import annotations

import datetime
import hashlib
import subprocess
import sys
from pathlib import Path

import pytest

from envbuild import uvtool
from envbuild.lock import lockfile
from tests import backend, projects, wheels
from tests.conftest import Envbuild
from tests.servers import Fault, SimpleIndex

INSTANT = "2026-11-30T00:00:00Z"
OLD = "2025-01-01T00:00:00Z"


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
            '[build.other]\nkind = "cuda"\narchitectures = ["90"]\n',
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


def compiled(more: str = "", *, kind: str = "cuda") -> str:
    """Write an environment that pins alpha 1.0 and builds an sdist with any alpha."""
    cuda = 'architectures = ["90"]\n' if kind == "cuda" else ""
    extra = (
        '[static-metadata.old-one]\nversion = "1.0"\nrequires-dist = []\n'
        f'[build.old-one]\nkind = "{kind}"\nrequires = ["alpha", "toybackend"]\n{cuda}{more}'
    )
    return projects.environment("alpha==1.0", "old-one", extra=extra)


@pytest.mark.parametrize(("kind", "version"), [("cuda", "1.0"), ("pure", "1.1")])
def test_what_builds_a_cuda_extension_fits_the_environment(
    toys: SimpleIndex, tmp_path: Path, envbuild: Envbuild, kind: str, version: str
) -> None:
    backend.wheel(toys.folder)
    backend.sdist(toys.folder, "old-one", "1.0")
    folder = tmp_path / "project"
    projects.project(folder, {"toy": compiled(kind=kind)}, {})
    assert envbuild("lock", cwd=folder).code == 0
    lock = lockfile.read(folder / "locks" / "pylock.toy.toml", "toy")
    ((name, requires),) = lock.build_wheels.items()
    assert name == ("cuda: " if kind == "cuda" else "") + "alpha & toybackend"
    assert {one.file for one in requires} >= {f"alpha-{version}-py3-none-any.whl"}


def test_a_recipe_makes_no_lock_stale_but_for_what_it_requires(
    toys: SimpleIndex, tmp_path: Path, envbuild: Envbuild
) -> None:
    backend.wheel(toys.folder)
    backend.sdist(toys.folder, "old-one", "1.0")
    folder = tmp_path / "project"
    projects.project(folder, {"toy": compiled()}, {})
    assert envbuild("lock", cwd=folder).code == 0
    file = folder / "envs" / "toy.toml"
    file.write_text(compiled('nvcc-flags = ["-O2"]\nmatch-runtime = ["alpha"]\n'))
    assert envbuild("lock", "--check", cwd=folder).code == 0
    file.write_text(compiled('match-runtime = ["alpa"]\n'))
    done = envbuild("lock", "--check", cwd=folder)
    assert done.code == 1
    assert done.out + done.err == (
        "envs/toy.toml: error D003: build.old-one.match-runtime[0]: the lock holds no package "
        "alpa\n"
        "  mend: correct the name, or add alpa to requirements\n"
        "error: drift in 1 of 1 environments\n"
    )
    done = envbuild("lock", cwd=folder)
    assert (done.code, done.err) == (
        2,
        "error: envs/toy.toml: build.old-one.match-runtime[0]: the lock holds no package alpa\n"
        "  expected: did you mean alpha?\n"
        "  mend: correct the name, or add alpa to requirements\n",
    )


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


@pytest.mark.parametrize("name", ["ruamel.yaml", "Ruamel_Yaml"])
def test_a_package_to_upgrade_may_be_spelled_as_people_do(
    toys: SimpleIndex, tmp_path: Path, envbuild: Envbuild, name: str
) -> None:
    wheels.make_wheel(toys.folder, "ruamel.yaml", "1.0")
    folder = tmp_path / "project"
    projects.project(folder, {"toy": projects.environment("ruamel.yaml")}, {})
    assert envbuild("lock", "--exclude-newer", OLD, cwd=folder).code == 0
    assert envbuild("lock", "--upgrade", name, cwd=folder).code == 0
    assert '\nruamel-yaml = "' in lock_text(folder)
    assert envbuild("lock", "--check", cwd=folder).code == 0


@pytest.mark.parametrize("name", ["", "a b", "alpha==1", "x-"])
def test_what_is_no_name_of_a_package_is_refused(
    tmp_path: Path, envbuild: Envbuild, name: str
) -> None:
    folder = tmp_path / "project"
    projects.project(folder, {"toy": projects.environment("alpha")}, {})
    done = envbuild("lock", f"--upgrade={name}", cwd=folder)
    assert (done.code, done.err) == (
        2,
        "error: --upgrade: not the name of a package or an environment\n"
        "  expected: a name alone; bounds on its version belong into envs/NAME.toml\n"
        f"  found: {name!r}\n",
    )


def test_a_package_that_no_lock_holds_is_not_upgraded(
    toys: SimpleIndex, tmp_path: Path, envbuild: Envbuild
) -> None:
    folder = tmp_path / "project"
    toy, other = projects.environment("alpha"), projects.environment("gamma")
    projects.project(folder, {"toy": toy, "other": other}, {})
    assert envbuild("lock", "--exclude-newer", OLD, cwd=folder).code == 0
    before = {path: path.read_bytes() for path in (folder / "locks").iterdir()}
    done = envbuild("lock", "--upgrade", "alpah", cwd=folder)
    assert (done.code, done.err) == (
        2,
        "error: --upgrade: no lock holds a package named alpah\n"
        "  expected: did you mean alpha?\n"
        "  mend: name a package, or an environment to upgrade all of it\n",
    )
    assert {path: path.read_bytes() for path in (folder / "locks").iterdir()} == before
    # only the lock that holds the package records its instant
    assert envbuild("lock", "--upgrade", "alpha", cwd=folder).code == 0
    assert "exclude-newer-package" in lock_text(folder)
    assert "exclude-newer-package" not in lock_text(folder, "other")


@pytest.mark.parametrize(
    ("damage", "what"),
    [
        (("schema = 1", "<<<<<<< ours\nschema = 1"), "not TOML: "),
        (("schema = 1\n", ""), "tool.envbuild.schema: missing: not a lock of envbuild\n"),
        (("size = ", "size = -"), "packages[0].wheels[0].size: not a size\n"),
    ],
)
def test_a_damaged_lock_is_not_resolved_anew_unseen(
    toys: SimpleIndex,
    tmp_path: Path,
    envbuild: Envbuild,
    damage: tuple[str, str],
    what: str,
) -> None:
    folder = tmp_path / "project"
    projects.project(folder, {"toy": projects.environment("alpha")}, {})
    assert envbuild("lock", "--exclude-newer", OLD, cwd=folder).code == 0
    path = folder / "locks" / "pylock.toy.toml"
    good = path.read_text()
    path.write_text(good.replace(*damage, 1))
    mend = (
        "  mend: restore it from version control, or resolve anew: `envbuild lock --upgrade toy` "
        "as of today, `envbuild lock --exclude-newer INSTANT toy` as of then\n"
    )
    for arguments in ([], ["toy"], ["--upgrade", "alpha"]):
        done = envbuild("lock", *arguments, cwd=folder)
        assert done.code == 2
        assert done.err.startswith(f"error: {path}: {what}")
        assert done.err.endswith(mend)
        assert path.read_text() != good
    done = envbuild("lock", "--check", cwd=folder)
    assert done.out.startswith(f"locks/pylock.toy.toml: error D002: {what}")
    assert done.out.endswith(mend)
    assert envbuild("lock", "--exclude-newer", OLD, cwd=folder).code == 0
    assert path.read_text() == good
    path.write_text(good.replace(*damage, 1))
    assert envbuild("lock", "--upgrade", cwd=folder).code == 0
    assert envbuild("lock", "--check", cwd=folder).code == 0


@pytest.mark.parametrize("arguments", [[], ["--upgrade"], ["--exclude-newer", INSTANT]])
@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "schema = 1",
            "schema = 2",
            "tool.envbuild.schema: not a version that this envbuild reads\n"
            "  expected: 1\n  found: 2\n",
        ),
        (
            'lock-version = "1.0"',
            'lock-version = "1.1"',
            "lock-version: not a version that this envbuild reads\n  expected: 1.0\n  found: 1.1\n",
        ),
    ],
)
def test_a_lock_of_another_format_is_never_written_over(
    toys: SimpleIndex,
    tmp_path: Path,
    envbuild: Envbuild,
    arguments: list[str],
    old: str,
    new: str,
    message: str,
) -> None:
    folder = tmp_path / "project"
    projects.project(folder, {"toy": projects.environment("alpha")}, {})
    assert envbuild("lock", cwd=folder).code == 0
    path = folder / "locks" / "pylock.toy.toml"
    path.write_text(path.read_text().replace(old, new))
    newer = path.read_text()
    done = envbuild("lock", *arguments, "toy", cwd=folder)
    mend = "  mend: use the envbuild that wrote it; this one does not write over it\n"
    assert (done.code, done.err) == (2, f"error: {path}: {message}{mend}")
    assert path.read_text() == newer


def test_a_derived_environment_follows_its_base(
    toys: SimpleIndex, tmp_path: Path, envbuild: Envbuild
) -> None:
    folder = tmp_path / "project"
    more = 'summary = "more"\nbase = "toy"\nrequirements = ["gamma"]\n'
    projects.project(folder, {"toy": projects.environment("alpha"), "more": more}, {})
    later = dict.fromkeys(
        ("alpha-1.1-py3-none-any.whl", "beta-1.1-py3-none-any.whl"), "2025-06-01T00:00:00Z"
    )
    toys.uploaded = later
    cache = {"UV_CACHE_DIR": str(tmp_path / "cold")}
    assert envbuild("lock", "--exclude-newer", OLD, cwd=folder, env=cache).code == 0

    for arguments, version, instant in (
        (["--upgrade", "beta"], "beta-1.1", OLD),
        (["--upgrade"], "alpha-1.1", f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d}T00:00:00Z"),
    ):
        assert envbuild("lock", *arguments, "toy", cwd=folder, env=cache).code == 0
        done = envbuild("lock", "more", cwd=folder, env=cache)
        assert (done.code, done.err) == (0, "")
        assert version in lock_text(folder, "more")
        assert f'exclude-newer = "{instant}"' in lock_text(folder, "more")
        done = envbuild("lock", "--check", "--resolve", cwd=folder, env=cache)
        assert (done.code, done.err) == (0, "")
        before = lock_text(folder, "more")
        assert envbuild("lock", "more", cwd=folder, env=cache).code == 0
        assert lock_text(folder, "more") == before

    done = envbuild("lock", "--exclude-newer", OLD, "more", cwd=folder, env=cache)
    assert (done.code, done.err) == (
        2,
        "error: locks/pylock.toy.toml: --exclude-newer: more cannot be older than the base that it "
        f"stands on\n  expected: {instant} or later\n  found: {OLD}\n"
        "  mend: lock toy as of that instant too\n",
    )


def test_a_base_that_only_has_a_later_instant_changes_nothing(
    toys: SimpleIndex, tmp_path: Path, envbuild: Envbuild
) -> None:
    folder = tmp_path / "project"
    more = 'summary = "more"\nbase = "toy"\nrequirements = ["gamma"]\n'
    projects.project(folder, {"toy": projects.environment("alpha"), "more": more}, {})
    assert envbuild("lock", "--exclude-newer", OLD, cwd=folder).code == 0
    before = lock_text(folder, "more")
    assert envbuild("lock", "--upgrade", "toy", cwd=folder).code == 0
    assert envbuild("lock", "--check", "--resolve", cwd=folder).code == 0
    assert envbuild("lock", "more", cwd=folder).code == 0
    assert lock_text(folder, "more") == before


EVIL = """\
import pathlib

pathlib.Path({marker!r}).write_text("ran")

def build_wheel(folder, config_settings=None, metadata_directory=None):
    raise SystemExit

def prepare_metadata_for_build_wheel(folder, config_settings=None):
    info = pathlib.Path(folder, "evil-1.0.dist-info")
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\\nName: evil\\nVersion: 1.0\\n")
    return info.name
"""
IN_TREE = """\
[build-system]
requires = []
build-backend = "evil"
backend-path = ["."]

[project]
name = "evil"
version = "1.0"
dynamic = ["dependencies"]
"""


@pytest.mark.parametrize("how", ["in-tree backend", "setup.py", "required backend", "built before"])
def test_no_code_of_an_sdist_runs_while_locking(
    toys: SimpleIndex, tmp_path: Path, envbuild: Envbuild, how: str
) -> None:
    marker = tmp_path / "ran"
    source = EVIL.format(marker=str(marker))
    if how == "required backend":
        wheels.make_wheel(toys.folder, "backend", "1", files={"backend.py": source})
        pyproject = '[build-system]\nrequires = ["backend"]\nbuild-backend = "backend"\n'
        wheels.make_sdist(toys.folder, "evil", "1.0", files={}, pyproject=pyproject)
    elif how == "setup.py":
        wheels.make_sdist(toys.folder, "evil", "1.0", files={}, setup=source, pyproject=None)
    else:
        files = {"evil.py": source}
        wheels.make_sdist(toys.folder, "evil", "1.0", files=files, pyproject=IN_TREE)
    if how == "built before":
        # as the user's own uv does, whose cache then knows the answer
        command = [str(uvtool.executable()), "pip", "compile", "-", "--python", sys.executable]
        subprocess.run(command, input=b"evil", check=True, capture_output=True)
        assert marker.exists()
        marker.unlink()
    folder = tmp_path / "project"
    projects.project(folder, {"toy": projects.environment("evil")}, {})
    done = envbuild("lock", cwd=folder)
    assert not marker.exists()
    assert (done.code, done.err) == (
        2,
        "error: envs/toy.toml: evil 1.0 has only an sdist, whose requirements are not static\n"
        "  expected: a table [static-metadata.evil] with its version and requires-dist, as no code "
        "of an sdist is run while locking\n"
        "  mend: add it, and [build.evil] that says how it is built; or ask for a version that has "
        "a wheel\n",
    )


def test_static_metadata_of_another_version_is_said(
    toys: SimpleIndex, tmp_path: Path, envbuild: Envbuild
) -> None:
    wheels.make_sdist(toys.folder, "evil", "1.0", files={}, pyproject=IN_TREE)
    extra = '[static-metadata.evil]\nversion = "0.9"\nrequires-dist = []\n'
    folder = tmp_path / "project"
    projects.project(folder, {"toy": projects.environment("evil", extra=extra)}, {})
    done = envbuild("lock", cwd=folder)
    assert done.code == 2
    assert "  found: [static-metadata.evil] is of version 0.9\n" in done.err


def test_a_build_requirement_without_a_wheel(
    toys: SimpleIndex, tmp_path: Path, envbuild: Envbuild
) -> None:
    marker = tmp_path / "ran"
    files = {"evil.py": EVIL.format(marker=str(marker))}
    wheels.make_sdist(toys.folder, "evil", "1.0", files=files, pyproject=IN_TREE)
    backend.sdist(toys.folder, "old-one", "1.0")
    extra = '[build.old-one]\nkind = "pure"\nrequires = ["evil"]\n'
    folder = tmp_path / "project"
    projects.project(folder, {"toy": projects.environment("old-one", extra=extra)}, {})
    done = envbuild("lock", cwd=folder)
    assert not marker.exists()
    assert (done.code, done.err) == (
        2,
        "error: envs/toy.toml: build requirement evil 1.0 has no wheel that fits\n"
        "  mend: ask for a version of evil that has one\n",
    )


def test_an_environment_without_packages_is_refused(
    toys: SimpleIndex, tmp_path: Path, envbuild: Envbuild
) -> None:
    folder = tmp_path / "project"
    toy = projects.environment("alpha; sys_platform == 'win32'")
    projects.project(folder, {"toy": toy}, {})
    done = envbuild("lock", cwd=folder)
    assert (done.code, done.err) == (
        2,
        "error: envs/toy.toml: requirements: toy resolves to no package\n"
        "  expected: at least one whose marker holds for the platform and requires-python\n"
        '  found: alpha; sys_platform == "win32"\n'
        "  mend: correct the markers or the excludes\n",
    )


def test_a_python_that_is_in_no_list(toys: SimpleIndex, tmp_path: Path, envbuild: Envbuild) -> None:
    folder = tmp_path / "project"
    toy = projects.environment("alpha", python=f"{projects.MINOR}.99")
    projects.project(folder, {"toy": toy}, {})
    done = envbuild("lock", cwd=folder)
    assert (done.code, done.err) == (
        2,
        f"error: envs/toy.toml: python: Python {projects.MINOR}.99 is not in pbs-installer's list\n"
        "  expected: a version of python-build-standalone\n"
        "  mend: choose another version, or update pbs-installer\n",
    )


def test_an_environment_that_cannot_be_read_leaves_the_others_alone(
    toys: SimpleIndex, tmp_path: Path, envbuild: Envbuild
) -> None:
    folder = tmp_path / "project"
    toy = projects.environment("alpha")
    project = projects.project(folder, {"toy": toy, "toy.bak": toy}, {})
    for arguments, code in ((["toy"], 0), ([], 2)):
        done = envbuild("lock", *arguments, cwd=folder)
        assert done.code == code
        assert project.lock_file("toy").exists()
        assert projects.PINNED in project.interpreters_file.read_text()
        assert ("toy.bak.toml: file name: not a name that a lock can have" in done.err) == bool(
            code
        )


def test_the_index_is_that_of_the_project_and_not_of_the_folder(
    toys: SimpleIndex, tmp_path: Path, envbuild: Envbuild, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("UV_DEFAULT_INDEX")
    folder, elsewhere = tmp_path / "project", tmp_path / "elsewhere"
    projects.project(folder, {"toy": projects.environment("alpha")}, {})
    elsewhere.mkdir()
    index = '[[index]]\ndefault = true\nurl = "{}"\n'
    (folder / "uv.toml").write_text(index.format(toys.url))
    (elsewhere / "uv.toml").write_text(index.format("http://127.0.0.1:9/simple"))
    done = envbuild("--project", str(folder), "lock", cwd=elsewhere)
    assert (done.code, done.err) == (0, "")
