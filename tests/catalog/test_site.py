from __future__ import annotations

from pathlib import Path

import pytest

from envbuild.catalog import facts
from envbuild.catalog.project import Project
from envbuild.errors import InputError
from envbuild.findings import Ignored
from tests import projects

SITE = """\
summary = "a cluster"
root = "/proj/users/{user}"
prefix = "envs/{env}"
temporary = ["/proj/users/{user}/caches", "/scratch"]

[environments]
toy = "toy-eval"
"""


def project(tmp_path: Path, **sites: str) -> Project:
    toy = projects.environment("six")
    return projects.project(tmp_path, {"toy": toy, "other": toy}, sites)


def test_paths_are_those_of_the_user(tmp_path: Path) -> None:
    layout = project(tmp_path, far=SITE).layout("far", user="ada")
    assert layout.root == Path("/proj/users/ada")
    assert layout.prefix("toy") == Path("/proj/users/ada/envs/toy-eval")
    assert layout.bookkeeping == Path("/proj/users/ada/.envbuild")
    assert not layout.rehearsal


def test_a_rehearsal_moves_what_lies_below_the_root(tmp_path: Path) -> None:
    layout = project(tmp_path, far=SITE).layout("far", user="ada", root=Path("/tmp/try"))
    assert layout.rehearsal
    assert layout.prefix("toy") == Path("/tmp/try/envs/toy-eval")
    moved, outside = (layout.path(text) for text in layout.site.temporary)
    assert (moved, outside) == (Path("/tmp/try/caches"), Path("/scratch"))


def test_a_root_may_be_written_with_dots(tmp_path: Path) -> None:
    site = projects.LOCAL.replace(".envs", "../x/./y")
    made = project(tmp_path / "project", local=site + 'wheelhouse = "../w"\n')
    layout = made.layout("local")
    assert layout.root == layout.registered_root == tmp_path / "x" / "y"
    assert layout.prefix("toy") == tmp_path / "x" / "y" / "toy"
    rehearsal = made.layout("local", root=tmp_path / "a" / ".." / "b")
    assert rehearsal.root == tmp_path / "b"
    # what lies outside of the root stays where it is, however it is written
    assert rehearsal.path("../w") == tmp_path / "x" / "w"
    assert not made.layout("local", root=tmp_path / "x" / "z" / ".." / "y").rehearsal


def test_a_root_given_with_a_tilde(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        project(tmp_path, far=SITE).layout("far", user="ada", root=Path("~/x"))
    assert str(caught.value) == (
        "--root: begins with ~, which only a shell knows\n  expected: a path\n"
        "  found: '~/x'\n  mend: write the path out"
    )


APART = (
    "  expected: a folder of its own for each environment\n  found: {found}\n"
    "  mend: put {{env}} into prefix, and give [environments] folders of different names"
)


@pytest.mark.parametrize(
    ("prefix", "more", "what", "found"),
    [
        ("venv", "", "of other is that of toy", "/r/venv and /r/venv"),
        ("{env}", 'environments = {toy = "x", other = "x"}', "of other is that of toy",
         "/r/x and /r/x"),
        ("{env}", 'environments = {toy = ".envbuild"}', "of toy is the root's .envbuild",
         "/r/.envbuild and /r/.envbuild"),
        ("/r/{env}/..x/../x", "", None, ""),
        ("", 'environments = {toy = "x"}', "of toy is the root", "/r and /r"),
        ("/", 'environments = {toy = "x"}', "of toy holds the root", "/ and /r"),
        ("{env}", 'wheelhouse = "toy/wheels"', "of toy holds the wheelhouse",
         "/r/toy and /r/toy/wheels"),
        ("w/{env}", 'wheelhouse = "w"', "of other lies in the wheelhouse", "/r/w/other and /r/w"),
        ("{env}", 'uv-cache = "toy"', "of toy is the uv cache", "/r/toy and /r/toy"),
        ("{env}", 'interpreters = "other"', "of other is the interpreters",
         "/r/other and /r/other"),
    ],
)  # fmt: skip
def test_every_prefix_has_a_place_of_its_own(
    tmp_path: Path, prefix: str, more: str, what: str | None, found: str
) -> None:
    site = f'summary = "x"\nroot = "/r"\nprefix = "{prefix}"\n{more}\n'
    with pytest.raises(InputError) as caught:
        project(tmp_path, far=site).layout("far", user="ada")
    if what is None:
        assert caught.value.what == "prefix: goes up by .."
        return
    assert str(caught.value) == (
        f"sites/far.toml: prefix: the prefix {what}\n" + APART.format(found=found)
    )


def test_a_prefix_may_not_hold_the_project_files(tmp_path: Path) -> None:
    site = 'summary = "x"\nroot = "."\n[environments]\ntoy = "envs"\n'
    with pytest.raises(InputError, match="the prefix of toy is the project's envs"):
        project(tmp_path, local=site).layout("local")


def test_one_environment_needs_no_placeholder(tmp_path: Path) -> None:
    site = 'summary = "x"\nroot = "/r"\nprefix = "venv"\nenvironments = {toy = "x"}\n'
    assert project(tmp_path, far=site).layout("far").prefix("toy") == Path("/r/venv")


def test_the_user_comes_from_the_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENVBUILD_USER", "grace")
    assert project(tmp_path, far=SITE).layout("far").user == "grace"


@pytest.mark.parametrize("user", ["..", "a/b", "", "a b", "-x"])
def test_a_user_must_be_a_folder_name(tmp_path: Path, user: str) -> None:
    layout = project(tmp_path, far=SITE)
    if not user:
        assert layout.layout("far", user=user).user  # falls back to the login name
        return
    with pytest.raises(InputError) as caught:
        layout.layout("far", user=user)
    assert str(caught.value) == (
        "user: not a name that a folder can have\n"
        "  expected: letters, digits, '.', '_' and '-'\n"
        f"  found: {user!r}\n  mend: give it with --user or ENVBUILD_USER"
    )


def test_a_site_without_environments_builds_all(tmp_path: Path) -> None:
    layout = project(tmp_path, local=projects.LOCAL).layout("local")
    assert layout.folders == {"other": "other", "toy": "toy"}
    assert layout.prefix("toy") == tmp_path / ".envs" / "toy"


def test_a_site_does_not_build_what_it_does_not_name(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        project(tmp_path, far=SITE).layout("far", user="ada").prefix("other")
    assert str(caught.value) == (
        "site far does not build other\n  expected: one of toy\n"
        "  mend: add other to [environments] of the site's file"
    )


def test_extends_takes_over_what_is_not_said(tmp_path: Path) -> None:
    mine = 'summary = "mine"\nextends = "far"\nlink-mode = "hardlink"\n'
    layout = project(tmp_path, far=SITE, mine=mine).layout("mine", user="ada")
    assert layout.site.link_mode == "hardlink"
    assert layout.prefix("toy") == Path("/proj/users/ada/envs/toy-eval")


def test_a_site_may_be_a_file_anywhere(tmp_path: Path) -> None:
    file = tmp_path / "elsewhere.toml"
    file.write_text('summary = "mine"\nextends = "far"\n')
    assert project(tmp_path, far=SITE).layout(str(file), user="ada").name == "elsewhere"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("temporary", "temproary", "temproary: unknown key\n  expected: did you mean temporary?"),
        (
            "/scratch",
            "/scratch/{host}",
            "temporary[1]: unknown placeholder {host}\n  expected: {user}",
        ),
        (
            "envs/{env}",
            "../{env}",
            "prefix: goes up by ..\n  expected: a path below the root, or an absolute one\n"
            "  found: '../{env}'\n  mend: write the path out",
        ),
        (
            '"/scratch"',
            '"~/scratch"',
            "temporary[1]: begins with ~, which only a shell knows\n"
            "  expected: a path; {user} stands for the user's name\n"
            "  found: '~/scratch'\n  mend: write the path out",
        ),
        (
            "/scratch",
            r"/a\u0000",
            "temporary[1]: holds a NUL character\n  mend: remove it",
        ),
        ("toy =", "toi =", "environments.toi: no such environment\n  expected: one of other, toy"),
        ("toy-eval", "../toy", "environments.toy: not a folder name\n  found: '../toy'"),
        (
            "summary",
            'extends = "nowhere"\nsummary',
            "extends: no such site\n  expected: one of far\n  found: 'nowhere'",
        ),
        ("summary", 'extends = "far"\nsummary', "extends: goes round in a circle: far"),
        (
            "summary",
            'file-mode = "644"\nsummary',
            "file-mode: not a mode\n  expected: four octal digits\n  found: '644'",
        ),
        (
            "summary",
            'glibc = "RHEL 8"\nsummary',
            "glibc: not a version\n  expected: 2.N\n  found: 'RHEL 8'",
        ),
        (
            "summary",
            'glibcxx = "GLIBCXX_3.4.25"\nsummary',
            "glibcxx: not a version\n  expected: 3.4.N\n  found: 'GLIBCXX_3.4.25'",
        ),
        (
            "summary",
            'cxxabi = "1.3."\nsummary',
            "cxxabi: not a version\n  expected: 1.3.N\n  found: '1.3.'",
        ),
        (
            "summary",
            'system-libraries = ["libGL.so.1", "/usr/lib64/libEGL.so.1"]\nsummary',
            "system-libraries[1]: not a library's name\n  expected: a soname, such as libGL.so.1\n"
            "  found: '/usr/lib64/libEGL.so.1'",
        ),
        (
            "summary",
            'system-paths = ["/usr", "/opt/{env}"]\nsummary',
            "system-paths[1]: unknown placeholder {env}\n  expected: {user}",
        ),
        (
            "[environments]",
            '[[ignore]]\ncode = "E"\nreason = "all"\n[environments]',
            "ignore[0].code: not a rule's code\n"
            "  expected: a letter and three digits, such as E002\n  found: 'E'",
        ),
        (
            "[environments]",
            '[[ignore]]\ncode = "E002"\nreason = " "\n[environments]',
            "ignore[0].reason: says nothing\n  expected: why the findings may stand\n  found: ' '",
        ),
        (
            "[environments]",
            '[[ignore]]\ncode = "E002"\n[environments]',
            "ignore[0].reason: missing key",
        ),
        (
            "[environments]",
            '[[ignore]]\ncode = "E002"\nreason = "x"\npath = "y"\n[environments]',
            "ignore[0].path: unknown key\n  expected: one of code, reason, where",
        ),
        (
            "summary",
            'cuda-home = "cuda"\nsummary',
            "cuda-home: not an absolute path\n"
            "  expected: a folder of the system, without '..', ':' or placeholders\n"
            "  found: 'cuda'",
        ),
        (
            "summary",
            'module-path = ["/opt/modules:/x"]\nsummary',
            "module-path[0]: not an absolute path\n"
            "  expected: a folder of the system, without '..', ':' or placeholders\n"
            "  found: '/opt/modules:/x'",
        ),
        (
            "summary",
            'modules = ["cuda/13"]\ncuda-home = "/usr/local/cuda"\nsummary',
            "cuda-home: the site's modules bring CUDA\n"
            "  expected: modules or cuda-home, not both\n"
            "  found: /usr/local/cuda, and modules cuda/13\n"
            "  mend: remove one of the two",
        ),
        (
            "summary",
            'rebuild = "never"\nsummary',
            "rebuild: not a value that it can have\n"
            "  expected: always or when-changed\n  found: 'never'",
        ),
        (
            "[environments]",
            '[[facts]]\nkeys = ["rooot"]\nsource = "me"\n[environments]',
            "facts[0].keys: rooot is no setting of a site",
        ),
    ],
)
def test_says_what_is_wrong(tmp_path: Path, old: str, new: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        project(tmp_path, far=SITE.replace(old, new, 1)).layout("far", user="ada")
    where = str(caught.value).replace(f"{tmp_path}/", "")
    assert where == f"sites/far.toml: {message}"


def test_what_the_nodes_have_and_what_is_ignored(tmp_path: Path) -> None:
    more = """
glibcxx = "3.4.25"
cxxabi = "1.3"
system-libraries = ["libGL.so.1"]

[[ignore]]
code = "E002"
reason = "the vendor's RUNPATH"
where = "*/nvshmem/*"
"""
    far = SITE.split("\n[", maxsplit=1)[0] + more
    layout = project(tmp_path, far=far, near=SITE).layout("far", user="ada")
    site = layout.site
    assert (site.glibcxx, site.cxxabi) == ("3.4.25", "1.3")
    assert site.system_libraries == ("libGL.so.1",)
    assert site.system_paths == ("/usr", "/bin", "/lib", "/lib64", "/opt")
    assert site.ignore == (Ignored("E002", "the vendor's RUNPATH", "*/nvshmem/*"),)
    shown = {setting.key: setting.value for setting in facts.settings(layout)}
    assert shown["ignore"] == ("code = E002\nreason = the vendor's RUNPATH\nwhere = */nvshmem/*")


def test_an_unknown_site_names_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        project(tmp_path, berzelius=SITE).site("berzelious")
    assert str(caught.value) == (
        "no site named berzelious\n  expected: did you mean berzelius?\n"
        f"  mend: sites are the files of {tmp_path}/sites"
    )


def test_facts_carry_source_and_day(tmp_path: Path) -> None:
    stated = '[[facts]]\nkeys = ["root"]\nsource = "the manual"\nstated = 2026-11-01\n'
    seen = '[[facts]]\nkeys = ["temporary"]\nsource = "df"\nverified = 2026-11-02\n'
    layout = project(tmp_path, far=SITE + stated + seen).layout("far", user="ada")
    settings = {setting.key: setting for setting in facts.settings(layout)}
    assert settings["root"] == facts.Setting(
        "root", "/proj/users/ada", "the manual (2026-11-01)", None
    )
    assert settings["temporary"].verified == "2026-11-02"
    assert settings["prefix"].source == "no source given"
    assert settings["link-mode"].source == "envbuild's default"
    assert "personal" not in settings
