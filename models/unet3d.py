"""A plain 3D U-Net (Cicek et al., MICCAI 2016, arXiv:1606.06650), with instance normalisation instead of batch normalisation.

Each level: twice Conv3D 3x3x3 -> norm -> ReLU. Down: max pooling by 2. Up: nearest neighbour by 2, concatenated with the skip; the
next convolution materialises neither (`layers.JoinedConv3D`). At the end: one 1x1x1 convolution. Batch statistics mean nothing at
batch 1, hence the other norm.
"""

from __future__ import annotations

import keras

from lms3d.models.layers import ChannelDropout, Conv3D, InstanceNormalization, JoinedConv3D
from lms3d.models.registry import VOLUMES, register


@register("unet3d", takes=VOLUMES)
def build(
    input_shape: tuple[int | None, ...],
    outputs: int = 3,
    *,
    filters: tuple[int, ...] = (16, 32, 64, 128, 256),
    normalise: bool = True,
    dropout: float = 0.0,
) -> keras.Model:
    """The network: (B, D, H, W, C) images -> (B, D, H, W, outputs) probabilities in float32.

    `filters` has one entry per level; axes must be divisible by 2 ** (levels - 1). `dropout` acts at the lowest level.
    """
    inputs = keras.Input(input_shape, name="image")
    x, skips = inputs, []
    for level, count in enumerate(filters[:-1]):
        x = _level([x], count, f"encoder{level}", normalise)
        skips.append(x)
        x = keras.layers.MaxPooling3D(2, name=f"encoder{level}_pool")(x)
    x = _level([x], filters[-1], "bottom", normalise)
    if dropout:
        x = ChannelDropout(dropout, name="bottom_dropout")(x)
    for level in reversed(range(len(filters) - 1)):
        x = _level([skips[level], x], filters[level], f"decoder{level}", normalise)
    logits = keras.layers.Conv3D(outputs, 1, name="head_conv")(x)
    probabilities = keras.layers.Activation("sigmoid", dtype="float32", name="probabilities")(logits)
    return keras.Model(inputs, probabilities, name="unet3d")


def _level(inputs: list[keras.KerasTensor], filters: int, name: str, normalise: bool) -> keras.KerasTensor:
    """Two convolutions at one resolution: (B, D, H, W, filters). inputs: x, or a skip and an x to be up-sampled."""
    for part in ("a", "b"):
        conv = f"{name}_{part}_conv"
        if len(inputs) > 1:
            x = JoinedConv3D(filters, (False, True), adds_bias=not normalise, name=conv)(inputs)
        else:
            kind = Conv3D if normalise else keras.layers.Conv3D
            x = kind(filters, 3, padding="same", name=conv)(inputs[0])
        if normalise:
            x = InstanceNormalization(negative_slope=0.0, name=f"{name}_{part}_norm")(x)
        else:
            x = keras.layers.ReLU(name=f"{name}_{part}_relu")(x)
        inputs = [x]
    return x
