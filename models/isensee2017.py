"""The 3D U-Net of Isensee et al. (BraTS 2017 proceedings, p. 100), as in the LMS case study.

    level 0   in -a-> [b] + -----------------------------> join -> Block -> Block 1x1x1 -> head -> + -> sigmoid
    level 1        \\-a-> [b] + ------------------> join -> Block -> Block 1x1x1 -/ head -> + --up--/
    ...                 \\-a-> [b] + ... -up-> Block -/     (level i below -up-> Block -> join)     /
                                                                       head of level 2 -------up--/

Block(f, k, s) = Conv3D(f, k, stride s, same, bias) -> instance normalisation -> LeakyReLU.
Encoder level: a = Block (stride 2 below level 0); out = a + Block(dropout(Block(a))). Strides and kernels may differ by axis.
The convolutions that read up-sampled and joined tensors never materialise them (`layers.JoinedConv3D`).
The sizes match the reference code: 8,269,561 parameters with 4 inputs and 3 outputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras

from lms3d.models import levels
from lms3d.models.layers import ChannelDropout, Conv3D, InstanceNormalization, JoinedConv3D, NearestUpSampling3D
from lms3d.models.levels import HEADS
from lms3d.models.registry import VOLUMES, register
from lms3d.models.topology import Triple

LEAKY_SLOPE = 0.3  # of the reference code; the paper says 0.01


@register("isensee2017", takes=VOLUMES, options_of=levels.options_of)
def build(
    input_shape: tuple[int | None, ...],
    outputs: int = 3,
    *,
    filters: tuple[int, ...] = (16, 32, 64, 128, 256),
    strides: Sequence[Triple] | None = None,
    kernels: Sequence[Triple] | None = None,
    dropout: float = 0.3,
    separate_heads: bool = False,
    activation: str = "sigmoid",
) -> keras.Model:
    """The network: (B, D, H, W, C) images -> (B, D, H, W, outputs) probabilities in float32.

    filters, strides, kernels: one entry per level; see `lms3d.models.topology`. Axes must be divisible by what the strides
    multiply to.
    separate_heads: after the channels of the sum come each deeper head's alone, up-sampled to full resolution, so that each
    head can have a loss of its own: (B, D, H, W, outputs * heads), with HEADS of them if there are so many levels above the lowest.
    activation: one of `lms3d.models.levels.ACTIVATIONS`.
    """
    shape = levels.topology(len(filters), strides, kernels)
    inputs = keras.Input(input_shape, name="image")
    x, skips = inputs, []
    for level, count in enumerate(filters):
        x = _encode(x, count, level, dropout, shape.strides[level], shape.kernels[level])
        skips.append(x)
    heads: list[keras.KerasTensor] = []
    for level in reversed(range(len(filters) - 1)):
        x = _decode(x, skips[level], filters[level], level, shape.strides[level + 1], shape.kernels[level])
        if level < HEADS:
            heads.insert(0, keras.layers.Conv3D(outputs, 1, name=f"head{level}_conv")(x))
    logits = heads[-1]
    for level in reversed(range(len(heads) - 1)):
        raised = _raised(logits, f"head{level}_up", shape.strides[level + 1])
        logits = keras.layers.Add(name=f"head{level}_add")([raised, heads[level]])
    alone = [_raised_alone(head, level, shape.strides) for level, head in enumerate(heads) if level]
    probabilities = levels.probabilities([logits, *alone] if separate_heads else [logits], activation)
    return keras.Model(inputs, probabilities, name="isensee2017")


def _raised(x: keras.KerasTensor, name: str, factors: Triple) -> keras.KerasTensor:
    """x with as many voxels as the level above."""
    return NearestUpSampling3D(factors, name=name)(x)


def _raised_alone(head: keras.KerasTensor, level: int, strides: Sequence[Triple]) -> keras.KerasTensor:
    """The output of one head, up-sampled to full resolution."""
    for step in range(level):
        head = _raised(head, f"head{level}_alone_up{step}", strides[level - step])
    return head


def _block(
    x: keras.KerasTensor, filters: int, name: str, *, kernel: Any = 3, stride: Any = 1, **more: Any
) -> keras.KerasTensor:
    """A block of convolution, instance normalisation and LeakyReLU: (B, D, H, W, *) -> (B, D/s, H/s, W/s, filters). more: the
    options of `_normalise`."""
    x = Conv3D(filters, kernel, strides=stride, padding="same", name=f"{name}_conv")(x)
    return _normalise(x, name, **more)


def _joined_block(
    inputs: list[keras.KerasTensor], filters: int, name: str, raised: tuple[bool, ...], kernel: Triple, stride: Triple
) -> keras.KerasTensor:
    """The same block on all inputs side by side. Inputs that are `raised` are of the level below, and are up-sampled by the
    stride that leads there."""
    joined = JoinedConv3D(filters, raised, adds_bias=False, kernel_size=kernel, factors=stride, name=f"{name}_conv")
    return _normalise(joined(inputs), name)


def _normalise(
    x: keras.KerasTensor,
    name: str,
    *,
    dropout: float | None = None,
    addend: keras.KerasTensor | None = None,
) -> keras.KerasTensor:
    """Instance normalisation, LeakyReLU, dropout and the addition of another tensor, as one layer."""
    multipliers = None
    if dropout is not None:
        level = name.removesuffix("_b")
        multipliers = ChannelDropout(dropout, applied=False, name=f"{level}_dropout")(x)
    norm = InstanceNormalization(negative_slope=LEAKY_SLOPE, name=f"{name}_norm")
    return norm(x, multipliers=multipliers, addend=addend)


def _encode(
    x: keras.KerasTensor, filters: int, level: int, dropout: float, stride: Triple, kernel: Triple
) -> keras.KerasTensor:
    name = f"encoder{level}"
    entry = _block(x, filters, f"{name}_a", kernel=kernel, stride=stride)
    x = _block(entry, filters, f"{name}_b", kernel=kernel, dropout=dropout)
    return _block(x, filters, f"{name}_c", kernel=kernel, addend=entry)


def _decode(
    x: keras.KerasTensor, skip: keras.KerasTensor, filters: int, level: int, stride: Triple, kernel: Triple
) -> keras.KerasTensor:
    name = f"decoder{level}"
    x = _joined_block([x], filters, f"{name}_a", (True,), kernel, stride)
    x = _joined_block([skip, x], filters, f"{name}_b", (False, False), kernel, stride)
    x = _block(x, filters, f"{name}_c", kernel=1)
    # Keras's files number the layers of a kind by their distance to the output. This layer keeps the numbers that old files have.
    return keras.layers.Identity(name=f"{name}_out")(x)
