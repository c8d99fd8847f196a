"""Voxels and pixels are the same on every x86-64 machine: the code uses only allowed names, and computes as other machines
would."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from lms3d.data.phantoms import exact
from tests.data.phantoms import digests

ROOT = Path(__file__).parents[3]
DIGESTS = Path(__file__).with_name("digests.json")
EXACT = ROOT / "data" / "phantoms" / "exact.py"
_ABDOMENS = ROOT / "data" / "phantoms" / "abdomens.py"  # promises no bytes: nothing measured refers to them
GENERATORS = sorted({*(ROOT / "data" / "phantoms").glob("*.py")} - {EXACT, _ABDOMENS})

# Operations with one result: moving, comparing, rounding, integers, and one IEEE operation per element.
NUMPY = {
    "abs", "any", "arange", "array", "asarray", "ascontiguousarray", "clip", "copysign", "count_nonzero", "diag",
    "dstack", "empty", "empty_like", "eye", "flatnonzero", "float32", "float64", "floor", "full_like", "iinfo",
    "int16", "int64", "isin", "maximum", "meshgrid", "minimum", "moveaxis", "multiply", "ndarray", "nonzero", "ones",
    "partition", "pi", "quantile", "random", "rint", "round", "sqrt", "square", "stack", "take", "uint8", "uint64",
    "unravel_index", "where", "zeros", "zeros_like",
}  # fmt: skip
NAMES = {
    "np": NUMPY,
    "ndimage": ["correlate1d", "distance_transform_edt", "map_coordinates"],
    "math": ["ceil", "pi", "prod", "sqrt"],
    "rng": ["bit_generator", "choice", "geometric", "integers", "random", "uniform"],
}
METHODS = {"argpartition", "argsort", "cumsum", "dot", "mean", "prod", "std", "sum", "var"}
FUNCTIONS = {"pow", "sum"}
STANDARD = {"__future__", "collections", "dataclasses", "functools", "math", "pathlib", "typing"}
MODULES = {*STANDARD, "data", "lms3d", "nibabel", "nilearn", "numpy", "scipy"}


def offences(code: str) -> list[str]:
    """The names in `code` whose results may differ on another machine; see the rules in `lms3d.data.phantoms.exact`."""
    found = []
    for node in ast.walk(ast.parse(code)):
        match node:
            case ast.BinOp(op=ast.Pow(), left=ast.Constant(), right=ast.Constant()):
                pass  # the compiler's, not the machine's
            case ast.BinOp(op=ast.MatMult() | ast.Pow()) | ast.AugAssign(op=ast.MatMult() | ast.Pow()):
                found.append(ast.unparse(node))
            case ast.Attribute(value=ast.Name(id=name), attr=attribute) if name in NAMES:
                found += [] if attribute in NAMES[name] else [f"{name}.{attribute}"]
            case ast.Attribute(attr=attribute) if attribute in METHODS:
                found.append(f".{attribute}")
            case ast.Call(func=ast.Name(id=name)) if name in FUNCTIONS:
                found.append(name)
            case ast.Import(names=[ast.alias(name=name)]) | ast.ImportFrom(module=str(name)):
                found += [] if name.split(".")[0] in MODULES else [name]
    return found


@pytest.mark.parametrize("path", GENERATORS, ids=lambda path: path.name)
def test_generators_use_nothing_that_differs_between_machines(path):
    assert offences(path.read_text()) == []


def test_exact_itself_sums_nothing_but_integers():
    assert offences(EXACT.read_text()) == [".sum"]


@pytest.mark.parametrize(
    "code", ["a @ b", "a **= 2", "x ** 0.5", "np.exp(x)", "np.tensordot(a, b)", "np.linalg.norm(a)"]
)
def test_a_function_that_differs_is_seen(code):
    assert len(offences(code)) == 1


@pytest.mark.parametrize(
    "code", ["field.std()", "sum(x)", "rng.normal()", "math.exp(1)", "ndimage.zoom(x)", "import torch"]
)
def test_a_sum_a_random_number_or_a_library_that_differs_is_seen(code):
    assert len(offences(code)) == 1


# Nothing may differ by any of these, so few processes, each unlike the others in all of them, imitate many machines.
_FOUND = np.show_config(mode="dicts")["SIMD Extensions"]["found"]  # beyond what this NumPy needs, on this processor
_AVX512 = " ".join(name for name in _FOUND if name.startswith(("X86_V4", "AVX512")))
_OLD_C_LIBRARY = "glibc.cpu.hwcaps=-AVX2,-FMA,-FMA4,-AVX512F,-AVX2_Usable,-FMA_Usable"
_WIDEST = (
    "SkylakeX" if _AVX512 else "Nehalem"
)  # kernels that this processor lacks instructions for would end the process
MACHINES = {
    f"{_WIDEST}, 4 threads": {"OPENBLAS_CORETYPE": _WIDEST, "threads": "4"},
    "Haswell, 2 threads, NumPy without AVX-512": {
        "OPENBLAS_CORETYPE": "Haswell", "threads": "2", "NPY_DISABLE_CPU_FEATURES": _AVX512,
    },
    "Prescott, 1 thread, NumPy and C library without AVX2 and FMA": {
        "OPENBLAS_CORETYPE": "Prescott", "threads": "1", "NPY_DISABLE_CPU_FEATURES": " ".join(_FOUND),
        "GLIBC_TUNABLES": _OLD_C_LIBRARY,
    },
}  # fmt: skip


def environment(threads: str = "", **settings: str) -> dict[str, str]:
    names = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "ITK_GLOBAL_DEFAULT_NUMBER_OF_THREADS")
    return {**os.environ, "PYTHONPATH": str(ROOT), **settings, **(dict.fromkeys(names, threads) if threads else {})}


def test_small_phantoms_and_radiographs_have_their_committed_digests():
    assert digests.all_digests() == json.loads(DIGESTS.read_text())


@pytest.mark.parametrize("machine", MACHINES)
def test_other_machines_give_the_committed_digests(machine):
    command = [sys.executable, "-m", "tests.data.phantoms.digests"]
    done = subprocess.run(
        command, env=environment(**MACHINES[machine]), cwd=ROOT, capture_output=True, text=True, timeout=300, check=True
    )
    assert json.loads(done.stdout) == json.loads(DIGESTS.read_text())


def test_functions_are_near_to_those_of_their_names():
    x = np.linspace(-6, 3, 500)
    np.testing.assert_allclose(exact.exp(x), np.exp(x), rtol=36 / 2048)
    np.testing.assert_allclose(exact.sine(5 * x), np.sin(5 * x), atol=1e-7)
    np.testing.assert_allclose(exact.cosine(5 * x), np.cos(5 * x), atol=1e-7)
    y = np.cos(7 * x)
    np.testing.assert_allclose(exact.direction(y, x), np.arctan2(y, x) / (2 * np.pi), atol=1e-3)
    np.testing.assert_allclose([exact.cube_root(v) for v in (0.1, 1.0, 1e6)], np.cbrt([0.1, 1.0, 1e6]))
    assert exact.exp(np.float32([-1e6, -80])).tolist() == [exact.exp(np.float32([-80]))[0]] * 2
    assert exact.total(np.full(1_000_000, 0.1, np.float32)) == pytest.approx(1e5, rel=1e-5)


def test_random_numbers_are_normal():
    numbers = exact.normals(np.random.default_rng(0), (200_000,)).astype(float)
    assert (numbers.mean(), numbers.std()) == pytest.approx((0, 1), abs=0.01)
    assert np.mean(np.abs(numbers) < 1) == pytest.approx(0.683, abs=0.01)
    assert np.mean(np.abs(numbers) > 3) == pytest.approx(0.0027, abs=0.0015)


@pytest.mark.parametrize("scale", [1.5, 3.0, 17.0, 80.0])
def test_smooth_fields_are_of_mean_zero_and_deviation_one(scale):
    field = exact.smooth_field(np.random.default_rng(0), (60, 50, 70), scale)
    assert (field.dtype, field.shape) == (np.float32, (60, 50, 70))
    assert (field.mean(), field.std()) == pytest.approx((0, 1), abs=0.03)
    step = np.abs(np.diff(field, axis=0)).mean()
    assert 0.3 < step * scale < 2.5


def test_smallest_takes_the_first_among_equals():
    values = np.array([3.0, 1, 2, 1, 2, 2, 0])
    assert exact.smallest(values, 4).tolist() == [1, 2, 3, 6]
    assert [exact.smallest(values, count).size for count in (-1, 0, 7, 9)] == [0, 0, 7, 7]
