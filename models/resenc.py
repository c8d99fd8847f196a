"""The residual encoder U-Net of nnU-Net (Isensee et al., "nnU-Net Revisited", MICCAI 2024, arXiv:2404.09556).

    level 0   in -> Block -> Residual x 1 ---------------------------> join -> Block -> head -> probabilities
    level 1          \\-2-> Residual x 3 -----------------> join -> Block --up--/
    level 2               \\-2-> Residual x 4 --> join -> Block --up--/
    ...                         \\-2-> Residual x 6 ... --up--/

Block(x) = leaky(norm(conv(x))). Residual(x) = leaky(norm(conv(Block(x))) + skip). A level's first convolution has its stride; there
skip is x, averaged by that stride and brought to the level's channels by norm(conv 1x1x1) if it has others, and elsewhere x itself.
Up: transposed convolution. The joined tensor is never materialised (`layers.JoinedConv3D`). Strides and kernels may differ by axis.

nnU-Net's presets M, L and XL are one network, "M" below, with patches that fill 9, 24 and 40 GB. Here the volume is the patch, so L
and XL put more memory into channels instead: 1.5 and 2 times as many, which is our choice, not nnU-Net's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras

from lms3d.models import levels
from lms3d.models.layers import Conv3D, InstanceNormalization, JoinedConv3D, NearestUpSampling3D
from lms3d.models.levels import HEADS
from lms3d.models.registry import VOLUMES, Shapes, register
from lms3d.models.topology import Triple, features

SLOPE, EPSILON = 0.01, 1e-5
BLOCKS = (1, 3, 4, 6, 6, 6, 6, 6, 6, 6)
"""The residual blocks of each level of the presets M, L and XL."""

PRESETS = {"S": (16, 160), "M": (32, 320), "L": (48, 480), "XL": (64, 640)}
"""Preset -> the channels of level 0, and the largest number. S has at most two blocks per level."""


def sized(levels: int, preset: str = "M") -> dict[str, tuple[int, ...]]:
    """The options `filters` and `blocks` of a preset, for a network of so many levels."""
    blocks = tuple(min(number, 2) for number in BLOCKS) if preset == "S" else BLOCKS
    return {"filters": features(levels, *PRESETS[preset]), "blocks": blocks[:levels]}


def _options_of(shapes: Shapes) -> dict[str, Any]:
    found = levels.options_of(shapes, r"(encoder\d)_0_b_conv/kernel")
    count = [sum(path.startswith(f"encoder{i}_") and path.endswith("_b_conv/kernel") for path in shapes) for i in
             range(len(found["filters"]))]  # fmt: skip
    return {**found, "blocks": count}


@register("resenc", takes=VOLUMES, sized=sized, options_of=_options_of)
def build(
    input_shape: tuple[int | None, ...],
    outputs: int = 3,
    *,
    filters: tuple[int, ...] = (32, 64, 128, 256, 320),
    blocks: tuple[int, ...] | None = None,
    strides: Sequence[Triple] | None = None,
    kernels: Sequence[Triple] | None = None,
    separate_heads: bool = False,
    activation: str = "sigmoid",
) -> keras.Model:
    """The network: (B, D, H, W, C) images -> (B, D, H, W, outputs) probabilities in float32.

    filters, blocks, strides, kernels: one entry per level; see `sized` and `lms3d.models.topology`. Axes must be divisible by what
    the strides multiply to. separate_heads: behind the channels of the finest head come the next deeper heads', up-sampled
    to full resolution, so that each can have a loss of its own: (B, D, H, W, outputs * heads), with HEADS of them if there are so
    many levels above the lowest. activation: one of `lms3d.models.levels.ACTIVATIONS`.
    """
    blocks = BLOCKS[: len(filters)] if blocks is None else blocks
    shape = levels.topology(len(filters), strides, kernels)
    inputs = keras.Input(input_shape, name="image")
    x, skips = _block(inputs, filters[0], "stem", shape.kernels[0]), []
    for level, (count, number) in enumerate(zip(filters, blocks, strict=True)):
        for i in range(number):
            stride = shape.strides[level] if i == 0 else (1, 1, 1)
            x = _residual(x, count, f"encoder{level}_{i}", shape.kernels[level], stride)
        skips.append(x)
    heads: list[keras.KerasTensor] = []
    for level in reversed(range(len(filters) - 1)):
        x = _decode(x, skips[level], filters[level], level, shape.strides[level + 1], shape.kernels[level])
        if level == 0 or (separate_heads and level < HEADS):
            heads.insert(0, keras.layers.Conv3D(outputs, 1, name=f"head{level}_conv")(x))
    raised = [_raised(head, level, shape.strides) for level, head in enumerate(heads)]
    return keras.Model(inputs, levels.probabilities(raised, activation), name="resenc")


def _block(
    x: keras.KerasTensor, filters: int, name: str, kernel: Triple, stride: Triple = (1, 1, 1)
) -> keras.KerasTensor:
    """Convolution, instance normalisation and LeakyReLU: (B, D, H, W, *) -> (B, D/d, H/h, W/w, filters)."""
    x = Conv3D(filters, kernel, strides=stride, padding="same", name=f"{name}_conv")(x)
    return _normalise(x, name, slope=SLOPE)


def _normalise(x: keras.KerasTensor, name: str, *, slope: float = 1.0, **more: Any) -> keras.KerasTensor:
    return InstanceNormalization(EPSILON, negative_slope=slope, name=f"{name}_norm")(x, **more)


def _residual(x: keras.KerasTensor, filters: int, name: str, kernel: Triple, stride: Triple) -> keras.KerasTensor:
    skip = x
    if stride != (1, 1, 1):
        skip = keras.layers.AveragePooling3D(stride, name=f"{name}_pool")(skip)
    if x.shape[-1] != filters:
        skip = keras.layers.Conv3D(filters, 1, use_bias=False, name=f"{name}_skip_conv")(skip)
        skip = _normalise(skip, f"{name}_skip")
    x = _block(x, filters, f"{name}_a", kernel, stride)
    x = Conv3D(filters, kernel, padding="same", name=f"{name}_b_conv")(x)
    x = _normalise(x, f"{name}_b", addend=skip)
    return keras.layers.LeakyReLU(negative_slope=SLOPE, name=f"{name}_relu")(x)


def _decode(
    x: keras.KerasTensor, skip: keras.KerasTensor, filters: int, level: int, stride: Triple, kernel: Triple
) -> keras.KerasTensor:
    """One level of the decoder: x of the level below, brought up by the stride that leads there, beside the skip."""
    name = f"decoder{level}"
    x = keras.layers.Conv3DTranspose(filters, stride, strides=stride, name=f"{name}_up")(x)
    x = JoinedConv3D(filters, (False, False), adds_bias=False, kernel_size=kernel, name=f"{name}_conv")([x, skip])
    return _normalise(x, name, slope=SLOPE)


def _raised(head: keras.KerasTensor, level: int, strides: Sequence[Triple]) -> keras.KerasTensor:
    """The output of one head, up-sampled to full resolution."""
    for step in range(level):
        head = NearestUpSampling3D(strides[level - step], name=f"head{level}_up{step}")(head)
    return head
