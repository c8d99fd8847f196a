"""The 3D U-Net of Isensee et al. (BraTS 2017 proceedings, p. 100), as in the LMS case study.

    level 0   in -a-> [b] + -----------------------------> join -> Block -> Block 1x1x1 -> head -> + -> sigmoid
    level 1        \\-a-> [b] + ------------------> join -> Block -> Block 1x1x1 -/ head -> + --up--/
    ...                 \\-a-> [b] + ... -up-> Block -/     (level i below -up-> Block -> join)     /
                                                                       head of level 2 -------up--/

Block(f, k, s) = Conv3D(f, k, stride s, same, bias) -> instance normalisation -> LeakyReLU.
Encoder level: a = Block (stride 2 below level 0); out = a + Block(dropout(Block(a))).
The convolutions that read up-sampled and joined tensors never materialise them (`layers.JoinedConv3D`).
The sizes are those of the reference code: 8,269,561 parameters with 4 inputs and 3 outputs.
"""

from __future__ import annotations

from typing import Any

import keras

from lms3d.models.layers import ChannelDropout, Conv3D, InstanceNormalization, JoinedConv3D, NearestUpSampling3D
from lms3d.models.registry import VOLUMES, register

LEAKY_SLOPE = 0.3  # of the reference code; the paper says 0.01
HEADS = 3  # deep supervision: the outputs of this many top levels are summed


@register("isensee2017", takes=VOLUMES)
def build(
    input_shape: tuple[int | None, ...],
    outputs: int = 3,
    *,
    filters: tuple[int, ...] = (16, 32, 64, 128, 256),
    dropout: float = 0.3,
    separate_heads: bool = False,
) -> keras.Model:
    """The network: (B, D, H, W, C) images -> (B, D, H, W, outputs) probabilities in float32; axes divisible by 16.

    separate_heads: after the channels of the sum come those of each deeper head alone, up-sampled to full resolution, so that each
    head can have a loss of its own: (B, D, H, W, outputs * HEADS).
    """
    inputs = keras.Input(input_shape, name="image")
    x, skips = inputs, []
    for level, count in enumerate(filters):
        x = _encode(x, count, level, dropout)
        skips.append(x)
    heads = []
    for level in reversed(range(len(filters) - 1)):
        x = _decode(x, skips[level], filters[level], level)
        if level < HEADS:
            heads.append(keras.layers.Conv3D(outputs, 1, name=f"head{level}_conv")(x))
    logits = heads[0]
    for level, head in zip(reversed(range(len(heads) - 1)), heads[1:], strict=True):
        raised = NearestUpSampling3D(name=f"head{level}_up")(logits)
        logits = keras.layers.Add(name=f"head{level}_add")([raised, head])
    if separate_heads:
        raised_alone = [_raised(head, level) for level, head in zip(range(1, len(heads)), heads[-2::-1], strict=True)]
        logits = keras.layers.Concatenate(name="heads")([logits, *raised_alone])
    # float32 under every policy: probabilities near 0 and 1 in half precision would spoil the loss
    probabilities = keras.layers.Activation("sigmoid", dtype="float32", name="probabilities")(logits)
    return keras.Model(inputs, probabilities, name="isensee2017")


def _raised(head: keras.KerasTensor, level: int) -> keras.KerasTensor:
    """The output of one head, up-sampled to full resolution."""
    for step in range(level):
        head = NearestUpSampling3D(name=f"head{level}_alone_up{step}")(head)
    return head


def _block(
    x: keras.KerasTensor, filters: int, name: str, *, kernel: int = 3, stride: int = 1, **more: Any
) -> keras.KerasTensor:
    """A block of convolution, instance normalisation and LeakyReLU: (B, D, H, W, *) -> (B, D/s, H/s, W/s, filters). more: the
    options of `_normalise`."""
    x = Conv3D(filters, kernel, strides=stride, padding="same", name=f"{name}_conv")(x)
    return _normalise(x, name, **more)


def _joined_block(
    inputs: list[keras.KerasTensor], filters: int, name: str, raised: tuple[bool, ...]
) -> keras.KerasTensor:
    """The same block on all inputs side by side. Those that are `raised` have half the resolution, and are up-sampled."""
    return _normalise(JoinedConv3D(filters, raised, adds_bias=False, name=f"{name}_conv")(inputs), name)


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


def _encode(x: keras.KerasTensor, filters: int, level: int, dropout: float) -> keras.KerasTensor:
    name = f"encoder{level}"
    entry = _block(x, filters, f"{name}_a", stride=1 if level == 0 else 2)
    x = _block(entry, filters, f"{name}_b", dropout=dropout)
    return _block(x, filters, f"{name}_c", addend=entry)


def _decode(x: keras.KerasTensor, skip: keras.KerasTensor, filters: int, level: int) -> keras.KerasTensor:
    name = f"decoder{level}"
    x = _joined_block([x], filters, f"{name}_a", raised=(True,))
    x = _joined_block([skip, x], filters, f"{name}_b", raised=(False, False))
    x = _block(x, filters, f"{name}_c", kernel=1)
    # Keras's files number the layers of a kind by their distance to the output. This layer keeps the numbers that old files have.
    return keras.layers.Identity(name=f"{name}_out")(x)
