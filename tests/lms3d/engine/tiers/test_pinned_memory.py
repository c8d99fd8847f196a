"""Swaps from a GPU need pinned host memory, of which TensorFlow has a limit of its own: said before the first step."""

from types import SimpleNamespace

import keras
import numpy as np
import pytest
import tensorflow as tf

from lms3d import LMS
from lms3d.device import memory
from lms3d.engine.engine import Engine
from lms3d.engine.plan import Plan, SwapOut
from lms3d.engine.request import Settings
from lms3d.errors import DoesNotFit

GIB = 1 << 30
VARIABLE = "TF_GPU_HOST_MEM_LIMIT_IN_MB"


def check(gib: float, device: str = "GPU:0", tier: str = "host") -> None:
    plan = Plan(swap_outs=(SwapOut(tensor="a:0", bytes=int(gib * GIB)),))
    Engine(Settings(limit_bytes=GIB, tier=tier), compute_device=device)._check_host_memory(plan)


@pytest.mark.parametrize(("variable", "gib", "named"), [
    ("", 65, "at most 64.0 GiB"), ("none", 65, "at most 64.0 GiB"), ("1024", 1.5, "at most 1.00 GiB"),
])  # fmt: skip
def test_what_does_not_fit_is_refused(monkeypatch, variable, gib, named):
    monkeypatch.setenv(VARIABLE, variable)
    with pytest.raises(DoesNotFit) as caught:
        check(gib)
    assert named in str(caught.value)
    advised = str(caught.value).rpartition("=")[2].split()[0]
    monkeypatch.setenv(VARIABLE, advised)
    check(gib)


def test_what_other_plans_hold_counts(monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    engine = Engine(Settings(limit_bytes=GIB, tier="host"), compute_device="GPU:0")
    plan = Plan(swap_outs=(SwapOut(tensor="a:0", bytes=40 * GIB),))
    engine._check_host_memory(plan)
    engine._tier = SimpleNamespace(held_bytes=30 * GIB)
    with pytest.raises(
        DoesNotFit, match=r"swaps 40\.0 GiB to host memory beside the 30\.0 GiB of other plans.*_IN_MB=71680 "
    ):
        engine._check_host_memory(plan)


def test_what_the_native_operations_fail_with_is_one_line():
    engine = Engine(Settings(limit_bytes=GIB, tier="host"), compute_device="GPU:0")
    told = "Graph execution error:\n\nlms3d: CUDA's cuMemcpyDtoHAsync failed while copying 4 bytes\n\t [[{{node lms/swap_out/a}}]]"
    failure = engine.swap_failure(tf.errors.InternalError(None, None, told))
    assert str(failure) == "swapping failed: CUDA's cuMemcpyDtoHAsync failed while copying 4 bytes"
    assert engine.swap_failure(tf.errors.InternalError(None, None, "another failure")) is None


def test_where_nothing_is_pinned_nothing_is_refused(monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    check(63.9)
    check(65, device="CPU:0")
    check(65, tier="disk")


def test_fit_with_a_gpu_refuses_before_the_first_step(monkeypatch):
    """A GPU that is not there, and a limit of TensorFlow's that this small step exceeds."""
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr(memory, "compute_device", lambda: "GPU:0")
    monkeypatch.setattr(memory, "PINNED_BYTES", 1000)
    monkeypatch.setattr("lms3d.engine.tensorflow.speeds.device_name", lambda device: "a GPU")
    monkeypatch.setattr("lms3d.engine.tensorflow.speeds.machine", lambda *_, **__: SimpleNamespace(mapped=False))
    layers = [keras.layers.Dense(64, activation="relu") for _ in range(6)]
    model = keras.Sequential([keras.Input((64,)), *layers])
    model.compile(optimizer="sgd", loss="mse", jit_compile=False)
    manual = {"swapout_threshold": 1, "swapin_ahead": 1, "swapin_groupby": 0, "sync_mode": 0}
    with pytest.raises(DoesNotFit, match=r"to host memory, but TensorFlow pins at most 0\.98 KiB"):
        model.fit(np.ones((4, 64)), np.ones((4, 64)), verbose=0, callbacks=[LMS(memory_limit="1GiB", **manual)])
