from __future__ import annotations

from pathlib import Path

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from envbuild.catalog import environment
from envbuild.catalog.environment import Environment
from envbuild.lock.specification import canonical, requirement_set, specify

TOY = Environment(
    summary="a toy",
    requires_python=">=3.11.2, <3.12",
    python="3.11.17",
    platform="x86_64-manylinux_2_28",
    requirements=("Torch == 2.7.1", "numpy>=2,<3", "Some.Package[b,a] ; python_version<'3.12'"),
    build={
        "FVcore": environment.Build("pure", ("wheel", "setuptools<72")),
        "flash-attn": environment.Build("cuda"),
    },
    editable=(environment.Editable(".", requires=("setuptools<72", "wheel")),),
)


def test_one_form_for_all_spellings() -> None:
    specification = specify(TOY)
    assert specification.requirements == (
        "numpy<3,>=2",
        'some-package[a,b]; python_version < "3.12"',
        "torch==2.7.1",
    )
    assert specification.requires_python == ">=3.11.2,<3.12"
    assert specification.builds == {
        "flash-attn": "cuda",
        "fvcore": "pure: setuptools<72 & wheel",
    }
    assert specification.build_requires == ("setuptools<72 & wheel",)


def test_what_cannot_change_the_lock_is_left_out() -> None:
    other = msgspec.structs.replace(
        TOY,
        summary="another",
        python="3.11.16",
        checks=environment.Checks(imports=("torch",)),
        image=environment.Image(user=1),
    )
    assert specify(other) == specify(TOY)


def test_what_can_change_it_changes_the_digest() -> None:
    digest = specify(TOY).sha256
    others = [
        msgspec.structs.replace(TOY, requirements=(*TOY.requirements, "six")),
        msgspec.structs.replace(TOY, overrides=("six",)),
        msgspec.structs.replace(TOY, excludes=("six",)),
        msgspec.structs.replace(TOY, platform="x86_64-manylinux_2_34"),
        msgspec.structs.replace(TOY, requires_python=">=3.11.3,<3.12"),
        msgspec.structs.replace(TOY, build={}),
        msgspec.structs.replace(
            TOY, static_metadata={"six": environment.StaticMetadata(requires_dist=())}
        ),
    ]
    digests = {specify(other).sha256 for other in others} | {specify(TOY, base_sha256="a").sha256}
    assert len(digests) == len(others) + 1
    assert digest not in digests


@given(st.permutations(TOY.requirements))
def test_order_does_not_matter(requirements: list[str]) -> None:
    assert canonical(requirements) == canonical(TOY.requirements)
    assert requirement_set(requirements) == " & ".join(canonical(TOY.requirements))


def test_an_environment_file_and_its_crlf_twin(tmp_path: Path) -> None:
    text = (
        'summary = "a toy"\nrequires-python = ">=3.11,<3.12"\npython = "3.11.17"\n'
        'platform = "x86_64-manylinux_2_28"\nrequirements = [\n    "six",\n]\n'
    )
    digests = set()
    for name, data in (("lf", text), ("crlf", text.replace("\n", "\r\n"))):
        path = tmp_path / f"{name}.toml"
        path.write_bytes(data.encode())
        digests.add(specify(environment.load(path)).sha256)
    assert len(digests) == 1
