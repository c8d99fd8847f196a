"""The other ways to save memory in TensorFlow, on the same networks: blocks that recompute."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from lms3d import models
from lms3d.experiments.harness import methods
from lms3d.models import fused, isensee2017
from lms3d.models.layers import ChannelDropout


class LayerBlock(keras.layers.Layer):
    """Some layers as one. Its call has no keyword arguments: Keras 3.15 cannot recompute a call that has some."""

    def __init__(self, layers: keras.Model, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.layers = layers

    def call(self, inputs: Any) -> Any:
        return self.layers(inputs)


class RecomputedBlock(LayerBlock):
    """A block under `tf.recompute_grad`: its inputs are kept, all else is computed again for the gradient."""

    def call(self, inputs: Any) -> Any:
        return tf.recompute_grad(self.layers)(inputs)


def build(method: str, name: str, input_shape: tuple[int, ...], **options: Any) -> keras.Model:
    """The network; for the two that recompute by block, isensee2017 with each block (convolution, norm, LeakyReLU) wrapped.
    options: of `models.build`.

    Dropout stands between the blocks. It must: recomputed, it would drop other channels than before.
    """
    if method == methods.XLA:  # it knows TensorFlow's own operations
        with fused.plain():
            return models.build(name, input_shape=input_shape, **options)
    kinds = {methods.KERAS_REMAT: (LayerBlock, "full"), methods.RECOMPUTE_GRAD: (RecomputedBlock, None)}
    if method not in kinds:
        return models.build(name, input_shape=input_shape, **options)
    if name != "isensee2017":
        raise ValueError(f"{method} is written for isensee2017, not for {name}")
    stock = {makes: getattr(isensee2017, makes) for makes in ("_block", "_joined_block")}
    try:
        for makes, block in stock.items():
            setattr(isensee2017, makes, _wrapped(block, *kinds[method]))
        return models.build(name, input_shape=input_shape, **options)
    finally:
        for makes, block in stock.items():
            setattr(isensee2017, makes, block)


def _wrapped(stock: Callable[..., Any], kind: type[LayerBlock], remat: str | None) -> Callable[..., Any]:
    """A function of `lms3d.models.isensee2017` that builds a block, which makes one layer of `kind` out of its layers."""

    def block(x: Any, *args: Any, dropout: float | None = None, addend: Any = None, **kwargs: Any) -> Any:
        inputs = keras.tree.map_structure(lambda t: keras.Input(batch_shape=t.shape, dtype=t.dtype), x)
        layers = keras.Model(inputs, stock(inputs, *args, **kwargs))
        with keras.RematScope(remat):  # around the block alone: its layers would each keep their inputs
            whole = kind(layers)
        y = whole(x)
        if dropout is not None:
            y = ChannelDropout(dropout)(y)
        return y if addend is None else keras.layers.Add()([addend, y])

    return block
