from __future__ import annotations

import json
from pathlib import Path

from tests import projects, wheels
from tests.conftest import Envbuild
from tests.servers import SimpleIndex


def test_status_through_the_life_of_an_environment(
    index: SimpleIndex, tmp_path: Path, envbuild: Envbuild
) -> None:
    wheels.make_wheel(index.folder, "alpha", "1.0")
    folder = tmp_path / "project"
    project = projects.project(
        folder, {"toy": projects.environment("alpha")}, {"local": projects.LOCAL}
    )

    def state() -> dict[str, object]:
        done = envbuild("status", "--json", cwd=folder)
        assert done.code == 0, done.err
        report = json.loads(done.out)
        assert report["schema"] == "envbuild.status/1"
        (one,) = report["environments"]
        assert isinstance(one, dict)
        return one

    assert (state()["locked"], state()["built"]) == ("no", False)
    assert envbuild("lock", cwd=folder).code == 0
    assert (state()["locked"], state()["built"], state()["matches"]) == ("yes", False, "")
    assert envbuild("create", cwd=folder).code == 0
    built = state()
    assert (built["locked"], built["built"], built["matches"]) == ("yes", True, "yes")
    assert str(built["python"]).endswith("(fallback)")
    assert str(built["checked"]).endswith("Z")

    project.environment_file("toy").write_text(projects.environment("alpha", "six"))
    assert state()["locked"] == "stale: requirement added: six since the lock was made"
    project.lock_file("toy").unlink()
    assert (state()["locked"], state()["matches"]) == ("no", "no lock to compare with")


def test_the_table_fits_a_hundred_columns(tmp_path: Path, envbuild: Envbuild) -> None:
    name = "a-very-long-name-" + "of-an-environment-" * 5 + "x"
    projects.project(tmp_path, {name: projects.environment("alpha")}, {"local": projects.LOCAL})
    done = envbuild("status", cwd=tmp_path)
    assert max(map(len, done.out.splitlines())) <= 100
    assert "\x1b" not in done.out
    # folded, not cut
    letters = "".join(line.split(" ")[0] for line in done.out.splitlines()[2:])
    assert name in letters
