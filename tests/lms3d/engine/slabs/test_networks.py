"""Whole networks, three steps with Adam in float64: losses and all variables are as in the whole step.

And the parts left alone, and the order of the slabs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import HealthCheck, given, settings

from lms3d import models
from lms3d.engine.passes import slicing
from lms3d.engine.tensorflow import functions, reading
from lms3d.engine.tensorflow.capture import traced_order
from tests.lms3d.engine.slabs.networks import batch_for, compiled, in_float64, run, same, stacks, u_net
from tests.lms3d.engine.small_models import densenet
from tests.thorough import also, examples

_FREE: Any = {"deadline": None, "suppress_health_check": list(HealthCheck)}


@pytest.fixture(autouse=True)
def float64() -> Iterator[None]:
    before = keras.config.floatx(), keras.config.dtype_policy()
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")
    keras.utils.set_random_seed(0)
    yield
    keras.config.set_floatx(before[0])
    keras.config.set_dtype_policy(before[1])


def isensee2017() -> keras.Model:
    return in_float64(models.isensee2017.build((16, 16, 16, 2), filters=(3, 4, 5, 6)))


def unet3d() -> keras.Model:
    return in_float64(models.unet3d.build((12, 12, 12, 2), filters=(3, 4, 5)))


_MORE = [pytest.param(slabs, marks=pytest.mark.slow) for slabs in ({0: 4}, {1: 2, 2: 2})]


@pytest.mark.parametrize("slabs", [{0: 3, 1: 2}, *_MORE], ids=str)
def test_isensee2017(slabs):
    model = compiled(isensee2017(), loss="binary_crossentropy")
    batch = batch_for(model)
    whole, cut = run(model, batch, {}), run(model, batch, slabs)
    assert not cut.joined
    same(whole, cut)


def test_unet3d(monkeypatch):
    # TensorFlow has no float64 kernel for pooling volumes.
    monkeypatch.setattr(
        keras.layers, "MaxPooling3D", lambda *a, **k: keras.layers.Conv3D(3, 2, strides=2, name=k.get("name"))
    )
    model = compiled(unet3d(), loss=keras.losses.Dice())
    batch = batch_for(model, 2)
    whole, cut = run(model, batch, {}), run(model, batch, {0: 4, 1: 3})
    assert not cut.joined
    same(whole, cut)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["isensee2017", "resenc"])
def test_networks_for_flat_voxels(name, monkeypatch):
    monkeypatch.setattr(  # TensorFlow has no float64 kernel for pooling volumes
        keras.layers, "AveragePooling3D", lambda size, name: keras.layers.Conv3D(3, size, strides=size, name=name)
    )
    blocks = {"blocks": (1, 1, 1)} if name == "resenc" else {}
    network = models.build(
        name, input_shape=(16, 16, 8, 2), outputs=3, spacing_mm=(1, 1, 2.5), filters=(3, 4, 5), activation="softmax",
        separate_heads=True, **blocks,
    )  # fmt: skip
    model = compiled(in_float64(network), loss="binary_crossentropy")
    batch = batch_for(model)
    whole, cut = run(model, batch, {}), run(model, batch, {0: 3, 1: 2})
    assert not cut.joined
    same(whole, cut)


def test_a_2d_u_net_by_rows():
    model = compiled(u_net(), loss="categorical_crossentropy")
    batch = batch_for(model, 2)
    whole, cut = run(model, batch, {}), run(model, batch, {0: 4, 1: 2, 2: 2})
    assert not cut.joined
    same(whole, cut)


def test_a_loss_that_transposes_its_classes_to_where_they_are():
    """As TensorFlow's does for an axis that is named, and Keras 3.16 names it. Its gradient's order is inverted in the graph."""

    def loss(true: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
        return tf.nn.softmax_cross_entropy_with_logits(true, logits, axis=3)

    model = compiled(u_net(), loss=loss)
    batch = batch_for(model, 2)
    whole, cut = run(model, batch, {}), run(model, batch, {0: 4, 1: 2, 2: 2})
    assert not cut.joined
    same(whole, cut)


def test_accumulated_and_clipped_gradients():
    optimizer = keras.optimizers.Adam(1e-2, gradient_accumulation_steps=2, global_clipnorm=0.1)
    model = compiled(u_net(filters=(2, 3)), optimizer=optimizer, loss=keras.losses.Tversky())
    batch = batch_for(model)
    same(run(model, batch, {}), run(model, batch, {0: 3, 1: 2}))


@pytest.mark.slow
@pytest.mark.parametrize("blocks", ["of two layers", *also("of DenseNet121")])
def test_a_densenet(blocks):
    shape = (64, 64, 3)
    if blocks == "of two layers":
        model = compiled(densenet(shape, 5))
    else:
        model = compiled(keras.applications.DenseNet121(weights=None, input_shape=shape, classes=5))
    batch = batch_for(model)
    whole, cut = run(model, batch, {}), run(model, batch, {0: 4, 1: 4, 2: 2})
    assert not cut.joined
    # 121 normalisations over few pixels, and Adam, make more of a rounding than other networks do.
    same(whole, cut, 1e-8)


@given(stacks())
@settings(max_examples=examples(3), **_FREE)
def test_a_stack_made_by_chance(stack):
    model = compiled(stack.build())
    batch = batch_for(model, 2)
    whole, cut = run(model, batch, {}), run(model, batch, {0: 3, 1: 2, 2: 2})
    assert not cut.joined
    same(whole, cut)


@pytest.mark.parametrize("kind", ["test", "predict"])
def test_other_steps(kind):
    """Their results are joined."""
    model = compiled(u_net(), loss="categorical_crossentropy", metrics=["accuracy"])
    batch = batch_for(model, 2)
    given = batch if kind == "test" else batch[0]
    whole, cut = (run(model, given, slabs, kind=kind, steps=1) for slabs in ({}, {0: 4, 1: 2}))
    assert len(cut.step.sliced) > 20
    same(whole, cut)


def test_a_plain_function():
    kernel = tf.constant(np.random.default_rng(0).normal(size=(3, 3, 2, 4)))

    def body(x: tf.Tensor) -> Any:
        y = tf.nn.relu(tf.nn.conv2d(x, kernel, 1, "SAME"))
        return {"all": y, "mean": tf.reduce_mean(y), "same": x}

    spec, x = tf.TensorSpec((2, 9, 6, 2), tf.float64), np.random.default_rng(1).normal(size=(2, 9, 6, 2))
    whole, cut = functions.trace(body, spec), functions.trace(body, spec)
    assert slicing.slice_function(cut, {0: 3}).changed
    results = [functions.make_function(f)(tf.constant(x)) for f in (whole, cut)]
    tf.nest.map_structure(lambda a, b: np.testing.assert_allclose(b, a, atol=1e-12), *results)


@pytest.mark.parametrize("slabs", [{}, {0: 1, 1: 1}, {7: 3}], ids=str)
def test_nothing_is_touched_where_nothing_is_sliced(slabs):
    function = _traced(u_net(filters=(2, 3)))
    before = function.graph.as_graph_def().SerializeToString(deterministic=True)
    assert not slicing.slice_function(function, slabs).changed
    assert function.graph.as_graph_def().SerializeToString(deterministic=True) == before
    assert reading.slices_of(function.graph) == ({}, {})


@given(stacks())
@settings(max_examples=3, **_FREE)
def test_in_the_order_of_the_program_each_op_comes_after_what_it_reads(stack):
    graph = (function := _traced(stack.build())).graph
    assert slicing.slice_function(function, {0: 3, 1: 2}).changed
    order, running = reading.slices_of(graph)[0], {op.name for op in traced_order(graph)}
    ops = sorted(
        (op for op in graph.get_operations() if op.name in running),
        key=lambda op: (order.get(op.name, (0, 0.0, 0)), not op.name.startswith(slicing.SCOPE)),
    )
    place = {op.name: i for i, op in enumerate(ops)}
    for op in ops:
        for before in (t.op for t in op.inputs):
            assert before.name not in place or place[before.name] < place[op.name], (op.name, before.name)


def _traced(model: keras.Model) -> Any:
    from lms3d.keras_step.attachment import trace_step

    model = compiled(model)
    return trace_step(model, "train", tf.nest.map_structure(tf.type_spec_from_value, batch_for(model)))
