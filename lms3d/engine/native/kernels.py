"""The operations of networks (`lms3d.models.fused`): the library's on a processor; on a GPU, kernels that pass a trial.

GPU-1  CUDA's run-time compiler comes with TensorFlow's CUDA libraries. It makes the kernels for the GPU at hand, once in a process.
GPU-2  Before the first use they are run on small volumes, beside the processor's. If they fail or give other numbers,
       networks use TensorFlow's own operations, and a log line says why.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import logging
from pathlib import Path
from typing import Any

import numpy as np

from lms3d.engine.native.lanes import CUDA_DRIVER
from lms3d.engine.native.library import Library, library, missing

log = logging.getLogger("lms3d")

_COMPILERS = ("libnvrtc.so.12", "libnvrtc.so.13", "libnvrtc.so")
_SHAPES = ((1, 6, 9, 10, 16), (2, 5, 4, 7, 3))
_ERRORS = {"float32": 1e-4, "bfloat16": 2e-2, "float16": 4e-3}


def operations(device: str) -> Any | None:
    """The operations for a "CPU" or "GPU", under the entry point `models.operations`; None if none work."""
    if why := missing():
        log.info("lms: networks use TensorFlow's own normalisation, which is slower: %s", why)
        return None
    return None if device == "GPU" and why_not() else library().operations


def run_time_compiler() -> str | None:
    """CUDA's run-time compiler (NVRTC): that of TensorFlow's wheels, or the system's. None if there is none."""
    spec = importlib.util.find_spec("nvidia")
    folders = [Path(place) / "cuda_nvrtc" / "lib" for place in (spec and spec.submodule_search_locations) or ()]
    wheels = [str(path) for folder in folders for path in sorted(folder.glob("libnvrtc.so.[0-9]*"))]
    for name in (*wheels, *_COMPILERS):
        try:
            ctypes.CDLL(name)
        except OSError:
            continue
        return name
    return None


@functools.cache
def why_not() -> str:
    """The reason why networks do without the kernels on this machine's first GPU; empty if they work (GPU-2)."""
    compiler = run_time_compiler()
    if compiler is None:
        return "CUDA's run-time compiler (libnvrtc) is missing: pip install nvidia-cuda-nvrtc-cu12"
    made = library()
    failure = made.calls.lms3d_use_gpu_kernels(CUDA_DRIVER.encode(), compiler.encode()).decode()
    why = failure or _wrong(made)
    if why:
        log.warning("lms: networks use TensorFlow's own normalisation on this GPU: %s", why)
    return why


def _wrong(made: Library) -> str:
    """The reason why the GPU's operations are not used; empty if they work."""
    import tensorflow as tf

    try:
        with tf.init_scope():  # networks may be built in a function that is being traced
            return compare(made.operations, "GPU:0")
    except Exception as failed:  # in any case TensorFlow's own operations are left
        return (str(failed).splitlines() or [type(failed).__name__])[0]


def compare(operations: Any, device: str) -> str:
    """The operation that a device computes otherwise than the processor; empty if there is none."""
    for shape in _SHAPES:
        for dtype, error in _ERRORS.items():
            here, there = (_results(operations, shape, dtype, one) for one in ("CPU:0", device))
            for name, expected in here.items():
                scale = max(1.0, float(np.abs(expected).max()))
                if not np.abs(there[name] - expected).max() <= error * scale:
                    return f"its kernels give another {name} in {dtype}"
    return ""


def _results(operations: Any, shape: tuple[int, ...], dtype: str, device: str) -> dict[str, np.ndarray]:
    """The results of all operations on one device."""
    import tensorflow as tf

    draw, channels = np.random.default_rng(0), shape[-1]
    with tf.device(device):
        x, dy, addend = (tf.constant(draw.normal(1.0, 2.0, shape), dtype) for _ in range(3))
        gamma, beta = (tf.constant(draw.uniform(0.5, 2.0, channels), tf.float32) for _ in range(2))
        multipliers = tf.constant(draw.choice([0.0, 1.25], (shape[0], channels)), tf.float32)
        mean, rsigma = operations.lms_merge(*operations.lms_moments(x), epsilon=[1e-3])
        of = (mean, rsigma, gamma, beta, multipliers)
        sums = operations.lms_activate_sums(dy, x, *of, slope=0.3)
        found = {
            "mean": mean,
            "rsigma": rsigma,
            "activation": operations.lms_activate(x, *of, [], slope=0.3),
            "sum": operations.lms_activate(x, *of, [addend], slope=0.3),
            "gradient": operations.lms_activate_grad(dy, x, *of, *sums, slope=0.3),
        }
        found |= zip(
            ("gradient of gamma", "gradient of beta"),
            operations.lms_parameter_grad(*sums, rsigma, multipliers),
            strict=True,
        )
        if elsewhere := [name for name, value in found.items() if not value.device.endswith(device)]:
            raise RuntimeError(f"{elsewhere[0]} was not computed on {device}")
        return {name: tf.cast(value, tf.float64).numpy() for name, value in found.items()}
