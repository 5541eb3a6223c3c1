"""A CUDA extension of a few kernels, as an sdist, and the toolkit that compiles it, as a wheel."""

from __future__ import annotations

import sysconfig
from pathlib import Path

import msgspec

from tests import wheels

NAME = "toy-kernels"
TOOLKIT = "toy-cuda"
ROOT = Path(sysconfig.get_path("purelib")) / "nvidia" / "cu13"

_PYPROJECT = """\
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
"""

# What a careless package does, so that equal bytes prove that envbuild makes them equal: absolute
# paths in, the time in the zip. TOY_FAULT plants what the rules must find.
_BACKEND = """\
import base64, hashlib, os, pathlib, subprocess, sysconfig, time, zipfile

GENCODE = {"sm_80": ["arch=compute_80,code=sm_80"], "ptx": ["arch=compute_90,code=compute_90"]}
FAULT = os.environ.get("TOY_FAULT", "")
FOLDER = pathlib.Path.cwd()
OUT = FOLDER / "build" / "temp"


def compile(source):
    made = OUT / (source.name + ".o")
    if made.exists():
        return made
    include = ["-I" + sysconfig.get_path("include")]
    if source.suffix == ".cu":
        codes = ["arch=compute_90,code=sm_90", *GENCODE.get(FAULT, ())]
        command = ["nvcc", "-Xcompiler", "-fPIC", *(f"-gencode={code}" for code in codes)]
    else:
        command = [os.environ["CC"], "-fPIC", *include]
    if FAULT == "path" and source.suffix == ".c":
        command += [f'-DLEAK="{FOLDER}/here"']
    if FAULT == "glibc" and source.suffix == ".c":
        command += ["-DNEW"]
    subprocess.run([*command, "-g", "-c", str(source), "-o", str(made)], check=True)
    return made


def held():
    \"\"\"Wait, once, where a test looks for a build to kill.\"\"\"
    mark = FOLDER / "held"
    if os.environ.get("TOY_HOLD") and not mark.exists():
        mark.touch()
        time.sleep(300)


def build_wheel(folder, config_settings=None, metadata_directory=None):
    assert not any("SECRET" in text for text in os.environ.values())
    OUT.mkdir(parents=True, exist_ok=True)
    objects = []
    for source in sorted([*FOLDER.glob("*.cu"), *FOLDER.glob("*.c")]):
        objects.append(compile(source))
        held()
    library = FOLDER / "build" / "toy_kernels.abi3.so"
    link = ["g++", "-shared", *map(str, objects), "-o", str(library)]
    link += ["-L" + os.environ["CUDA_HOME"] + "/lib64", "-lcudart_static", "-lrt", "-ldl"]
    if FAULT == "rpath":
        link += ["-Wl,-rpath," + os.environ["CUDA_HOME"] + "/lib64"]
    if FAULT == "glibc":
        stub = FOLDER / "build" / "stub"
        stub.mkdir(exist_ok=True)
        (stub / "stub.c").write_text("int toy_new(void) { return 1; }")
        (stub / "map").write_text("GLIBC_2.99 { global: toy_new; };")
        subprocess.run(
            ["/usr/bin/gcc", "-shared", "-fPIC", "-Wl,-soname,libm.so.6", "stub/stub.c",
             "-Wl,--version-script=stub/map", "-o", "stub/libstub.so"],
            check=True, cwd=FOLDER / "build",
        )
        link += [str(stub / "libstub.so")]
    subprocess.run(link, check=True)
    info = "toy_kernels-1.0.dist-info"
    files = {
        "toy_kernels.abi3.so": library.read_bytes(),
        f"{info}/METADATA": b"Metadata-Version: 2.1\\nName: toy-kernels\\nVersion: 1.0\\n",
        f"{info}/WHEEL": b"Wheel-Version: 1.0\\nRoot-Is-Purelib: false\\n"
        b"Tag: cp311-abi3-linux_x86_64\\n",
    }
    rows = []
    for name, data in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        rows.append(f"{name},sha256={digest},{len(data)}")
    files[f"{info}/RECORD"] = "\\n".join([*rows, f"{info}/RECORD,,"]).encode() + b"\\n"
    file = "toy_kernels-1.0-cp311-abi3-linux_x86_64.whl"
    with zipfile.ZipFile(pathlib.Path(folder, file), "w") as target:
        for name, data in files.items():
            target.writestr(zipfile.ZipInfo(name, time.localtime()[:6]), data)
    return file
"""

_KERNEL = """\
#include <cstdio>
namespace {{ __global__ void scale(float *x, float by) {{ x[threadIdx.x] *= by; }} }}
static int drawn() {{ static int calls; return ++calls; }}
extern "C" int toy_{name}(float *x) {{
    scale<<<1, 32>>>(x, {name}.0f + drawn());
    if (cudaGetLastError() != cudaSuccess) std::puts(__FILE__);
    return 0;
}}
"""

_MODULE = """\
#define Py_LIMITED_API 0x030b0000
#include <Python.h>
int toy_1(float *), toy_2(float *);
#ifdef LEAK
const char *toy_leak = LEAK;
#endif
#ifdef NEW
int toy_new(void);
#else
static int toy_new(void) { return 0; }
#endif
static PyObject *run(PyObject *self, PyObject *none) {
    return PyLong_FromLong(toy_1(0) + toy_2(0) + toy_new());
}
static PyMethodDef methods[] = {{"run", run, METH_NOARGS, 0}, {0}};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "toy_kernels", 0, -1, methods};
PyMODINIT_FUNC PyInit_toy_kernels(void) { return PyModule_Create(&module); }
"""


def sdist(folder: Path) -> Path:
    """Write the extension's sdist."""
    files = {f"kernel{name}.cu": _KERNEL.format(name=name) for name in (1, 2)}
    files |= {"module.c": _MODULE, "backend.py": _BACKEND}
    return wheels.make_sdist(folder, NAME, "1.0", files=files, pyproject=_PYPROJECT)


def toolkit(folder: Path) -> Path:
    """Write a wheel of the CUDA toolkit that the tests have."""
    paths = [path for path in ROOT.rglob("*") if path.is_file()]
    names = {str(path.relative_to(ROOT.parent.parent)): path for path in paths}
    modes = {name: path.stat().st_mode & 0o777 for name, path in names.items()}
    files = {name: path.read_bytes() for name, path in names.items()}
    return wheels.make_wheel(folder, TOOLKIT, "13.0", files=files, modes=modes, plant=_stored)


def _stored(members: list[wheels.Member]) -> list[wheels.Member]:
    """Leave out compression, which takes longer than all else."""
    return [msgspec.structs.replace(member, deflate=False) for member in members]
