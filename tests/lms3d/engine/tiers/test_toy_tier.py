"""A new tier is a class of two methods and a name: it trains through `LMS` with equal bits."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import lms3d
from lms3d.engine.engine import Engine
from lms3d.engine.plan import Plan, SwapOut
from lms3d.engine.request import Settings
from lms3d.engine.tensorflow import speeds, surgery
from lms3d.engine.tiers import TIERS, choose_tier, tier_choices
from lms3d.engine.tiers.base import Tier
from lms3d.errors import InputError
from tests.lms3d.engine.traced import same_bits

MANUAL = {"swapout_threshold": 1, "swapin_ahead": 1, "swapin_groupby": 0, "sync_mode": 0}


@pytest.fixture
def toy():
    """Swapped tensors are numpy arrays, by the name of their swap-out."""

    @TIERS.register("toy")
    class ToyTier(Tier):
        name = "toy"
        kept: dict[str, np.ndarray] = {}  # noqa: RUF012 - of all toy tiers, so that the test can look

        def swap_out(self, tensor, name):
            def keep(array):
                self.kept[name] = array.copy()
                return np.int64(0)

            surgery.needs(tensor.graph, self)
            with surgery.insertion(tensor.graph, "CPU:0"):
                handle = tf.numpy_function(keep, [tensor], tf.int64, name=name)
            surgery.keep(handle.op)
            return handle.op

        def swap_in(self, handle, like, name, triggers, *, mapped=False):
            with surgery.insertion(handle.graph, "CPU:0", triggers):
                back = tf.numpy_function(lambda _: self.kept[handle.op.name], [handle], like.dtype, name=name)
            back.set_shape(like.shape)
            surgery.keep(back.op)
            return back

    yield ToyTier
    TIERS.remove("toy")


def trained(**options) -> list[np.ndarray]:
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((16,)), *(keras.layers.Dense(16, activation="relu") for _ in range(6))])
    model.compile(optimizer="sgd", loss="mse", jit_compile=False)
    data = np.random.default_rng(0).normal(size=(2, 8, 16)).astype(np.float32)
    model.fit(*data, batch_size=4, epochs=2, verbose=0, callbacks=[lms3d.LMS(**MANUAL, **options)])
    return model.get_weights()


def test_it_trains_with_equal_bits(toy):
    assert "toy" in tier_choices()
    same_bits(trained(tier="toy"), trained(enabled=False))
    assert toy.kept


def test_without_a_registration_there_is_none():
    with pytest.raises(InputError, match="'toy': expected one of auto, host, disk"):
        choose_tier("toy", "CPU:0")


def test_it_is_planned_with_default_speeds_and_pins_nothing(toy, tmp_path, monkeypatch):
    monkeypatch.setattr(speeds, "cache_directory", lambda: tmp_path)
    found = speeds.machine("CPU:0", "toy", None)
    assert (found.swap_out_bytes_per_second, found.swap_in_bytes_per_second, found.mapped) == (1e9, 2e9, False)
    plan = Plan(swap_outs=(SwapOut(tensor="a:0", bytes=1 << 40),))
    Engine(Settings(limit_bytes=1 << 30, tier="toy"), compute_device="GPU:0")._check_host_memory(plan)


def test_the_note_of_a_report_asks_the_tier(toy):
    """Only a tier that measures its transfers can say what a step waited for."""
    assert [TIERS[name].may_fail for name in ("host", "disk", "toy")] == [False, True, False]
