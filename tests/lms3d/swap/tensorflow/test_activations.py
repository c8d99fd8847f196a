"""Activations are computed again for the gradients of kernels: the same numbers, half of the memory."""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf

from lms3d.swap.liveness import peak_bytes
from lms3d.swap.tensorflow import activations, surgery
from lms3d.swap.tensorflow.capture import capture
from models.layers import Conv3D, InstanceNormalization

SIDE, CHANNELS = 16, 8


def network(*, pooled: bool = False, more: int = 0) -> keras.Model:
    """Two blocks, the second with an addend, some more, perhaps a pooling, and a convolution."""
    inputs = keras.Input((SIDE, SIDE, SIDE, 2), batch_size=1)
    first = InstanceNormalization(negative_slope=0.3)(Conv3D(CHANNELS, 3, padding="same")(inputs))
    x = InstanceNormalization(negative_slope=0.3)(Conv3D(CHANNELS, 3, padding="same")(first), addend=first)
    for _ in range(more):
        x = InstanceNormalization(negative_slope=0.3)(Conv3D(CHANNELS, 3, padding="same")(x))
    x = keras.layers.MaxPooling3D(2)(x) if pooled else x
    return keras.Model(inputs, keras.layers.Conv3D(1, 3, padding="same")(x))


def traced(model: keras.Model) -> tf.types.experimental.ConcreteFunction:
    def step(x: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.square(model(x, training=True)))
        return [loss, *tape.gradient(loss, model.trainable_variables)]

    function = surgery.trace(step, tf.TensorSpec((1, SIDE, SIDE, SIDE, 2)))
    surgery.pass_identities(function.graph)
    return function


def test_the_same_numbers_in_less_memory():
    model = network(more=4)
    kept, again = traced(model), traced(model)
    assert activations.compute_again(again.graph) == 6
    before, after = (peak_bytes(capture(f)) for f in (kept, again))
    tensor = SIDE**3 * CHANNELS * 4
    assert before - after >= 3 * tensor
    x = tf.random.stateless_normal((1, SIDE, SIDE, SIDE, 2), (0, 1))
    for a, b in zip(*(surgery.make_function(f)(x) for f in (kept, again)), strict=True):
        np.testing.assert_array_equal(a, b)


def test_each_is_made_just_before_it_is_read_and_its_addend_with_it():
    graph = traced(network()).graph
    activations.compute_again(graph)
    order = [op.name for op in surgery.in_traced_order(graph)]
    assert sorted(order) == sorted(op.name for op in graph.get_operations())
    copies = [op for op in graph.get_operations() if op.name.partition("/again")[1]]
    assert len(copies) == 3  # one for the second convolution, two for the third
    for copy in copies:
        (reader,) = copy.outputs[0].consumers()
        assert 0 < order.index(reader.name) - order.index(copy.name) <= 2
        waits = {op.name for op in copy.control_inputs}
        gradients = [r for r in (reader, *reader.outputs[0].consumers()) if "BackpropFilter" in r.type]
        assert waits <= {t.op.name for t in gradients[0].inputs}  # it waits for the gradient that comes along
        assert waits


def test_what_a_pooling_keeps_is_not_made_again():
    graph = traced(network(pooled=True)).graph
    assert activations.compute_again(graph) == 1  # the first block's alone
