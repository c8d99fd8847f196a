"""A tensor of more elements than a GPU's kernels can index, with a toy limit on a processor: 64^3 voxels with 4 channels are to
2^20 elements what 512^3 with 16 channels are to 2^31."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from lms3d.engine import tuning
from lms3d.engine.passes import slicing
from lms3d.engine.slabs import choice, elements
from lms3d.engine.slabs.values import Node, Spec
from lms3d.errors import DoesNotFit
from lms3d.keras_step import settings
from lms3d.keras_step.attachment import trace_step
from lms3d.keras_step.callback import LMS
from lms3d.keras_step.estimate import estimate
from tests.lms3d.keras_step.test_slabs import Losses

SIDE, TOY = 64, 2**20 - 1
SHAPES = ((1, SIDE, SIDE, SIDE, 1), (1, SIDE, SIDE, SIDE, 1))
SPEC = tuple(tf.TensorSpec(shape) for shape in SHAPES)
BATCH = [np.random.default_rng(1).normal(size=shape).astype(np.float32) for shape in SHAPES]


@pytest.fixture(autouse=True)
def toy(monkeypatch):
    monkeypatch.setattr(settings, "most_elements_of", lambda device: TOY)


def network(*, global_branch: bool = False) -> keras.Model:
    """global_branch: a cumulative sum over the finest level, which has no rule and reads a joined tensor."""
    keras.utils.set_random_seed(5)
    inputs = keras.Input(SHAPES[0][1:])
    y = keras.layers.LeakyReLU()(keras.layers.Conv3D(4, 3, padding="same")(inputs))
    if global_branch:
        y = y + keras.ops.cumsum(y, axis=1)
    model = keras.Model(inputs, keras.layers.Conv3D(1, 1)(y))
    model.compile(optimizer=keras.optimizers.SGD(0.05), loss="mse", jit_compile=False)
    model.optimizer.build(model.trainable_variables)
    return model


def fit(lms: LMS, **options: Any) -> list[float]:
    losses = Losses()
    network(**options).fit(*BATCH, batch_size=1, epochs=2, verbose=0, callbacks=[losses, lms])
    return losses.seen


def largest(lms: LMS) -> int:
    """Elements of the largest tensor that a kernel of the rewritten step reads or makes."""
    (step,) = lms._runner.steps.values()
    return elements.largest(slicing.nodes_of(step.prepared.function)).elements


def test_a_step_that_would_fit_is_sliced_until_each_tensor_can_be_indexed(monkeypatch):
    sliced = LMS(memory_limit="8GiB")
    losses = fit(sliced)
    assert sliced.slabs
    assert largest(sliced) <= TOY
    monkeypatch.setattr(settings, "most_elements_of", lambda device: None)
    whole = LMS(memory_limit="8GiB")
    np.testing.assert_allclose(fit(whole), losses, rtol=1e-5)
    assert (whole.slabs, largest(whole)) == ({}, TOY + 1)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"slabs": "off"}, 'slabs are off (slabs="off")'),
        ({"enabled": False}, 'slabs are off (slabs="off")'),
        ({"planner": "tflms"}, "slabs auto"),
    ],
)
def test_where_nothing_is_sliced_one_line_names_the_tensor(options, told):
    with pytest.raises(DoesNotFit) as caught:
        fit(LMS(memory_limit="8GiB", **options))
    line = str(caught.value)
    assert "(1, 64, 64, 64, 4) has 1,048,576 elements, and kernels of this device index at most 1,048,575" in line
    assert told in line
    assert "\n" not in line


def test_what_cannot_be_sliced_is_named_too():
    with pytest.raises(DoesNotFit, match=r"has 1,048,576 elements.*lower the resolution"):
        fit(LMS(memory_limit="8GiB"), global_branch=True)


def test_slabs_that_are_given_may_be_too_few(monkeypatch):
    monkeypatch.setattr(settings, "most_elements_of", lambda device: TOY // 4)
    with pytest.raises(DoesNotFit, match="the slabs are as given, or as the run began: 2/1"):
        fit(LMS(memory_limit="8GiB", slabs={0: 2}))
    fit(LMS(memory_limit="8GiB", slabs={0: 8}))


def test_a_plan_has_the_slabs_of_the_training():
    assert estimate(network(), SPEC, memory_limit="8GiB").slabs
    assert not estimate(network(), SPEC, memory_limit="8GiB", planner="off").slabs  # nothing is run: only asked


def test_a_gpu_has_the_limit_and_a_processor_has_none(monkeypatch):
    monkeypatch.undo()
    assert settings.most_elements_of("GPU:0") == tuning.MOST_ELEMENTS == 2**31 - 1
    assert settings.most_elements_of("CPU:0") is None


def test_rungs_begin_where_all_can_be_indexed():
    nodes = slicing.nodes_of(trace_step(network(), "train", SPEC))
    levels = choice.WorkingSet(nodes)
    assert levels.most_elements({}) == TOY + 1
    first, *_ = choice.rungs(nodes, 1 << 40, 0, mapped=False, most_elements=TOY // 8)
    assert levels.most_elements(dict(first)) <= TOY // 8
    assert next(iter(choice.rungs(nodes, 1 << 40, 0, mapped=False))) == ()


def test_kernels_that_join_and_cut_slabs_count_in_64_bits():
    large, small = Spec("large", (8, 8), "float32"), Spec("small", (4, 8), "float32")
    cut = Node(name="cut", type="Slice", inputs=(large,), outputs=(small,))
    assert elements.largest([cut]) is None
    assert elements.largest([cut, replace(cut, type="Relu")]) == large
