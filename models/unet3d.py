"""A plain 3D U-Net (Cicek et al., MICCAI 2016, arXiv:1606.06650), with instance normalisation instead of batch normalisation.

Each level: twice Conv3D 3x3x3 -> norm -> ReLU. Down: max pooling by 2. Up: nearest neighbour by 2, concatenated with the skip; the
next convolution materialises neither (`layers.JoinedConv3D`). At the end: one 1x1x1 convolution. Batch statistics mean nothing at
batch 1, hence the other norm. Strides and kernels may differ by axis.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras

from lms3d.models import levels
from lms3d.models.layers import ChannelDropout, Conv3D, InstanceNormalization, JoinedConv3D
from lms3d.models.registry import VOLUMES, Shapes, register
from lms3d.models.topology import Triple


def _options_of(shapes: Shapes) -> dict[str, Any]:
    return {**levels.options_of(shapes), "normalise": any(path.endswith("_norm/gamma") for path in shapes)}


@register("unet3d", takes=VOLUMES, options_of=_options_of)
def build(
    input_shape: tuple[int | None, ...],
    outputs: int = 3,
    *,
    filters: tuple[int, ...] = (16, 32, 64, 128, 256),
    strides: Sequence[Triple] | None = None,
    kernels: Sequence[Triple] | None = None,
    normalise: bool = True,
    dropout: float = 0.0,
    activation: str = "sigmoid",
) -> keras.Model:
    """The network: (B, D, H, W, C) images -> (B, D, H, W, outputs) probabilities in float32.

    filters, strides, kernels: one entry per level; see `lms3d.models.topology`. Axes must be divisible by what the strides multiply to.
    `dropout` acts at the lowest level. activation: one of `lms3d.models.levels.ACTIVATIONS`.
    """
    shape = levels.topology(len(filters), strides, kernels)
    inputs = keras.Input(input_shape, name="image")
    x, skips = inputs, []
    for level, count in enumerate(filters[:-1]):
        x = _level([x], count, f"encoder{level}", normalise, shape.kernels[level])
        skips.append(x)
        x = keras.layers.MaxPooling3D(shape.strides[level + 1], name=f"encoder{level}_pool")(x)
    x = _level([x], filters[-1], "bottom", normalise, shape.kernels[-1])
    if dropout:
        x = ChannelDropout(dropout, name="bottom_dropout")(x)
    for level in reversed(range(len(filters) - 1)):
        below = shape.strides[level + 1]
        x = _level([skips[level], x], filters[level], f"decoder{level}", normalise, shape.kernels[level], below)
    logits = keras.layers.Conv3D(outputs, 1, name="head_conv")(x)
    return keras.Model(inputs, levels.probabilities([logits], activation), name="unet3d")


def _level(
    inputs: list[keras.KerasTensor],
    filters: int,
    name: str,
    normalise: bool,
    kernel: Triple,
    factors: Triple = (1, 1, 1),
) -> keras.KerasTensor:
    """Two convolutions at one resolution: (B, D, H, W, filters). inputs: x, or a skip and an x to be up-sampled by the factors."""
    for part in ("a", "b"):
        conv = f"{name}_{part}_conv"
        if len(inputs) > 1:
            joined = JoinedConv3D(filters, (False, True), not normalise, kernel_size=kernel, factors=factors, name=conv)
            x = joined(inputs)
        else:
            kind = Conv3D if normalise else keras.layers.Conv3D
            x = kind(filters, kernel, padding="same", name=conv)(inputs[0])
        if normalise:
            x = InstanceNormalization(negative_slope=0.0, name=f"{name}_{part}_norm")(x)
        else:
            x = keras.layers.ReLU(name=f"{name}_{part}_relu")(x)
        inputs = [x]
    return x
