"""The callback is told of one model or function after another, and never mixes them up."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from lms3d.engine import tuning
from lms3d.engine.engine import Engine
from lms3d.engine.step_model.pool import CPU_POOL, GPU_POOL, LIMITED_GPU_POOL, NO_POOL
from lms3d.keras_step import estimate, on_device, settings
from lms3d.keras_step.callback import LMS

DATA = (np.ones((4, 8), np.float32), np.zeros((4, 2), np.float32))
SWAP = {"tier": "disk", "swapout_threshold": 1, "swapin_ahead": 1, "swapin_groupby": 0, "sync_mode": 0}


@pytest.fixture(autouse=True)
def nothing_left_over() -> None:
    """Not here: what else lies on the device is one of the questions."""


def compiled(learning_rate: float) -> keras.Model:
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(2)])
    model.compile(keras.optimizers.SGD(learning_rate), "mse")
    return model


def changes(model: keras.Model, lms: LMS) -> bool:
    before = model.get_weights()
    model.fit(*DATA, verbose=0, callbacks=[lms])
    return not all(np.array_equal(a, b) for a, b in zip(before, model.get_weights(), strict=True))


def test_a_model_that_is_compiled_again_is_traced_again():
    lms, model = LMS(), compiled(0.1)
    assert changes(model, lms)
    model.compile(keras.optimizers.SGD(0.0), "mse")
    assert not changes(model, lms)


def test_another_model():
    lms = LMS()
    assert changes(compiled(0.1), lms)
    assert changes(compiled(0.1), lms)


def far(x: tf.Tensor) -> tf.Tensor:
    a = y = tf.tanh(x)
    for _ in range(4):
        y = tf.sin(y)
    return tf.reduce_sum(y * a)


def far_function() -> tf.types.experimental.ConcreteFunction:
    return tf.function(far, autograph=False).get_concrete_function(tf.TensorSpec((4, 8)))


def test_rewriting_a_function_twice_gives_a_rewritten_one(tmp_path):
    lms, function, x = LMS(swap_dir=tmp_path, **SWAP), far_function(), tf.ones((4, 8))
    first, second = lms.rewrite(function), lms.rewrite(function)
    assert lms.rewrite(first) is first
    second(x)
    engine = lms._get_runner().engine
    assert engine.take_counters()["swapped_out_bytes"] > 0
    lms.close()


def test_the_report_on_a_function_that_was_rewritten_before_names_the_tier():
    lms = LMS(**{**SWAP, "tier": "host"})
    lms.rewrite(lms.rewrite(far_function()))
    assert (lms.report.tier, lms.report.rewritten, lms.report.planner) == ("host", False, "off")
    lms.close()


def test_a_tape_outside_is_refused_where_a_file_would_hide_part_of_the_gradient(tmp_path):
    x = tf.Variable(tf.ones((4, 8)))
    with tf.GradientTape() as tape:
        y = far(x)
    expected = tape.gradient(y, x)
    on_disk, in_memory = LMS(swap_dir=tmp_path, **SWAP), LMS(**{**SWAP, "tier": "host"})
    with tf.GradientTape(), pytest.raises(ValueError, match="inside the function"):
        on_disk.rewrite(far_function())(x.read_value())
    with tf.GradientTape() as tape:
        y = in_memory.rewrite(far_function())(x.read_value())
    np.testing.assert_array_equal(tape.gradient(y, x), expected)
    on_disk.close()
    in_memory.close()


@pytest.mark.parametrize(
    ("pool", "batches"), [(NO_POOL, 1 + tuning.BATCHES_AHEAD), (CPU_POOL, 0), (LIMITED_GPU_POOL, 1)]
)
def test_training_counts_the_batches_ahead_as_the_prediction_does(monkeypatch, pool, batches):
    """Else `lms3d.plan` names a smallest limit that training refuses. Batches outside of a CPU's pool count nowhere, and batches
    that wait beside a GPU not yet."""
    seen = []

    def note(self, function, step, found, **others):
        seen.append(found.batches)
        raise StopIteration

    monkeypatch.setattr(Engine, "request", note)
    monkeypatch.setattr(on_device.cpu_pool, "counts", lambda tensor: pool != CPU_POOL)
    monkeypatch.setattr(settings, "pool_of", lambda device, limited: pool)
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(2)])
    model.compile("sgd", "mse")
    batch = (np.zeros((4, 8), "f4"), np.zeros((4, 2), "f4"))
    with pytest.raises(StopIteration):
        estimate.estimate(model, tuple(tf.TensorSpec(part.shape) for part in batch), memory_limit="1GiB")
    with pytest.raises(StopIteration):
        LMS(memory_limit="1GiB")._get_runner().run(model, "train", batch)
    assert seen == 2 * [(128, 32) * batches]


@pytest.mark.parametrize(
    ("was_set", "asked", "pool"),
    [
        (True, {}, LIMITED_GPU_POOL),
        (False, {}, GPU_POOL),  # TensorFlow's own rule, whatever LMS(memory_limit=...) says
        (False, {"hypothetical": True}, LIMITED_GPU_POOL),  # as limit_memory would set it
        (False, {"hypothetical": True, "hard": False}, GPU_POOL),
    ],
)
def test_a_gpu_wastes_little_of_its_memory_only_if_that_was_set(monkeypatch, was_set, asked, pool):
    monkeypatch.setattr(settings.memory, "splits_closely", lambda: was_set)
    monkeypatch.setenv("TF_CPU_ALLOCATOR_USE_BFC", "1")  # of a processor's pool: says nothing about a GPU
    monkeypatch.setenv("TF_CPU_BFC_MEM_LIMIT_IN_MB", "4096")
    found = settings.resolve("1GiB", "host", "hybrid", settings.Parameters(), device="GPU:0", **asked)
    assert found.pool is pool
