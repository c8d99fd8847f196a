"""The kernels of normalisation on a GPU: right when a processor plays one (`fake_gpu.cc`), and CUDA's own compiler takes them."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

import pytest
import tensorflow as tf

from lms3d.engine.native import kernels
from lms3d.engine.native.library import SOURCES, find_compiler, library
from lms3d.errors import InputError
from tests.thorough import also

HERE = Path(__file__).parent
KERNELS = SOURCES / "normalise_kernels.inc"
FLAGS = ("-std=c++20", "-O1", "-g", "-fPIC", "-pthread", "-Wall", "-Wextra", "-Wno-unused-parameter", "-Werror")


def source() -> str:
    """CUDA's text, without the quotes that make it a C++ string."""
    first, *lines, last = KERNELS.read_text().splitlines()
    assert (first, last) == ('R"CUDA(', ')CUDA"')
    return "\n".join(lines) + "\n"


SANITIZED = ("-fsanitize=address,undefined", "-fno-sanitize-recover")


@pytest.fixture(scope="module", params=[SANITIZED, *also(())], ids=" ".join)
def built(request, tmp_path_factory) -> tuple[Path, Path]:
    """The test and the GPU that it runs on. What goes wrong in a plain build goes wrong under sanitizers."""
    try:
        compiler = find_compiler()
    except InputError as error:
        pytest.skip(str(error))
    folder = tmp_path_factory.mktemp("gpu")
    (folder / "normalise_kernels.cu").write_text(source())
    fake, test = folder / "libfakegpu.so", folder / "gpu_test"
    common = [compiler, *FLAGS, *request.param, f"-I{SOURCES}", f"-I{folder}"]
    run(*common, "-shared", HERE / "fake_gpu.cc", "-o", fake)
    sources = [HERE / "gpu_test.cc", SOURCES / "normalise_launch.cc", SOURCES / "gpu_kernels.cc"]
    run(*common, *sources, "-o", test, "-ldl")
    return test, fake


def run(*command: object) -> None:
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("case", ["numbers", "failing", "newer"])
def test_on_a_fake_gpu(built, case):
    test, fake = built
    run(test, fake, case)


@pytest.mark.parametrize("architecture", ["sm_70", "sm_90", "compute_80"])
def test_cuda_compiles_the_kernels(architecture):
    found = kernels.run_time_compiler()
    if found is None:
        pytest.skip("no NVRTC: pip install nvidia-cuda-nvrtc-cu12")
    compiler, program = ctypes.CDLL(found), ctypes.c_void_p()
    text = source().encode()
    assert compiler.nvrtcCreateProgram(ctypes.byref(program), text, b"normalise.cu", 0, None, None) == 0
    options = (ctypes.c_char_p * 2)(f"--gpu-architecture={architecture}".encode(), b"--std=c++17")
    failed = compiler.nvrtcCompileProgram(program, 2, options)
    size = ctypes.c_size_t()
    compiler.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value + 1)
    compiler.nvrtcGetProgramLog(program, log)
    assert not failed, log.value.decode()
    asked = compiler.nvrtcGetPTXSize if architecture.startswith("compute") else compiler.nvrtcGetCUBINSize
    assert asked(program, ctypes.byref(size)) == 0
    assert size.value > 1000


def test_they_are_tried_before_they_are_used():
    """Here the processor takes the part of the GPU, also if a network is built while a function is traced."""
    made = library().operations
    assert kernels.compare(made, "CPU:0") == ""

    @tf.function
    def traced() -> None:
        with tf.init_scope():
            assert kernels.compare(made, "CPU:0") == ""

    traced()
    if not tf.config.get_visible_devices("GPU"):
        assert "GPU:0" in kernels._wrong(library())  # results computed elsewhere prove nothing
