"""Networks for volumes, each smaller than in its paper: the same blocks, fewer channels."""

from __future__ import annotations

from collections.abc import Callable

import keras
import tensorflow as tf
from keras import layers

from tests.stress.zoo.subject import Subject, segmenter

Tensor = keras.KerasTensor


def _conv(x: Tensor, width: int, size: int = 3, stride: int = 1) -> Tensor:
    return layers.Conv3D(width, size, stride, padding="same")(x)


def _up(x: Tensor, width: int) -> Tensor:
    return layers.Conv3DTranspose(width, 2, 2)(x)


# -- convolutions --------------------------------------------------------------------------------------------------------


def v_net() -> Subject:
    """Milletari et al., "V-Net", 3DV 2016: windows of 5, PReLU, residuals, strided convolutions."""

    def stage(x: Tensor, width: int, number: int) -> Tensor:
        y = x
        for _ in range(number):
            y = layers.PReLU(shared_axes=[1, 2, 3])(_conv(y, width, 5))
        return layers.Add()([x, y])

    given = layers.Input((32, 32, 32, 2))
    x, skips = _conv(given, 8, 1), []
    for width, number in ((8, 1), (16, 2), (32, 2)):
        x = stage(x if x.shape[-1] == width else layers.Conv3D(width, 2, 2)(x), width, number)
        skips.append(x)
    for width, skip in zip((16, 8), skips[-2::-1], strict=True):
        x = stage(_conv(layers.Concatenate()([_up(x, width), skip]), width, 1), width, 1)
    return segmenter(given, layers.Conv3D(3, 1, activation="softmax")(x))


def seg_res_net() -> Subject:
    """Myronenko, BrainLes 2018: normalisation and activation before each convolution, trilinear growth as repetition."""

    def block(x: Tensor, width: int) -> Tensor:
        y = x
        for _ in range(2):
            y = _conv(layers.ReLU()(layers.GroupNormalization(4)(y)), width)
        return layers.Add()([x, y])

    given = layers.Input((32, 32, 32, 4))
    x, skips = _conv(given, 8), []
    for width in (8, 16, 32):
        x = block(x if x.shape[-1] == width else _conv(x, width, 3, 2), width)
        skips.append(x)
    for width, skip in zip((16, 8), skips[-2::-1], strict=True):
        x = block(layers.Add()([layers.UpSampling3D()(_conv(x, width, 1)), skip]), width)
    return segmenter(given, layers.Conv3D(3, 1, activation="sigmoid")(x))


def attention_u_net() -> Subject:
    """Oktay et al., "Attention U-Net", MIDL 2018: a gate on each skip connection."""

    def block(x: Tensor, width: int) -> Tensor:
        for _ in range(2):
            x = layers.ReLU()(layers.BatchNormalization()(_conv(x, width)))
        return x

    def gated(skip: Tensor, below: Tensor, width: int) -> Tensor:
        asked = layers.ReLU()(layers.Add()([layers.Conv3D(width, 2, 2)(skip), _conv(below, width, 1)]))
        return layers.Multiply()([skip, layers.UpSampling3D()(layers.Conv3D(1, 1, activation="sigmoid")(asked))])

    given = layers.Input((32, 32, 32, 1))
    x, skips = block(given, 8), []
    for width in (16, 32):
        skips.append(x)
        x = block(layers.MaxPooling3D()(x), width)
    for width, skip in zip((16, 8), skips[::-1], strict=True):
        x = block(layers.Concatenate()([gated(skip, x, width), _up(x, width)]), width)
    return segmenter(given, layers.Conv3D(2, 1, activation="softmax")(x))


def med_next() -> Subject:
    """Roy et al., "MedNeXt", MICCAI 2023: a window per group of channels, then a wide layer and back."""

    def block(x: Tensor, stride: int = 1, width: int | None = None) -> Tensor:
        parts = [layers.Conv3D(p.shape[-1], 5, stride, padding="same")(p) for p in _split(x, 4)]
        y = layers.GroupNormalization(-1)(layers.Concatenate()(parts))
        y = layers.Activation("gelu")(_conv(y, 2 * y.shape[-1], 1))
        y = _conv(y, width or x.shape[-1], 1)
        return layers.Add()([x, y]) if stride == 1 else y

    given = layers.Input((32, 32, 32, 2))
    x, skips = _conv(given, 8, 1), []
    for width in (16, 32):
        x = block(x)
        skips.append(x)
        x = block(x, 2, width)
    for width, skip in zip((16, 8), skips[::-1], strict=True):
        x = block(layers.Add()([_up(x, width), skip]))
    return segmenter(given, layers.Conv3D(3, 1)(x))


def _split(x: Tensor, number: int) -> list[Tensor]:
    return list(keras.ops.split(x, number, axis=-1))


def mixed_bfloat16() -> Subject:
    """A 3D U-Net (Cicek et al., MICCAI 2016) under the policy mixed_bfloat16."""
    return _under("mixed_bfloat16", _u_net)


def _under(policy: str, make: Callable[[], Subject]) -> Subject:
    keras.mixed_precision.set_dtype_policy(policy)
    try:
        return make()
    finally:
        keras.mixed_precision.set_dtype_policy("float32")


def _u_net() -> Subject:
    def block(x: Tensor, width: int) -> Tensor:
        for _ in range(2):
            x = layers.LeakyReLU(0.01)(layers.GroupNormalization(-1)(_conv(x, width)))
        return x

    given = layers.Input((32, 32, 32, 4))
    x, skips = block(given, 16), []
    for width in (32, 64):
        skips.append(x)
        x = block(layers.MaxPooling3D()(x), width)
    for width, skip in zip((32, 16), skips[::-1], strict=True):
        x = block(layers.Concatenate()([_up(x, width), skip]), width)
    return segmenter(given, layers.Conv3D(3, 1, activation="sigmoid", dtype="float32")(x), optimizer="adam")


# -- attention -----------------------------------------------------------------------------------------------------------


def unetr() -> Subject:
    """Hatamizadeh et al., "UNETR", WACV 2022: a transformer over patches, a decoder that reads several of its layers."""
    given = layers.Input((32, 32, 32, 2))
    x = layers.Reshape((64, 96))(layers.Conv3D(96, 8, 8)(given))
    kept = []
    for _ in range(4):
        y = layers.LayerNormalization()(x)
        x = layers.Add()([x, layers.MultiHeadAttention(4, 24, flash_attention=False)(y, y)])
        y = layers.Dense(192, activation="gelu")(layers.LayerNormalization()(x))
        x = layers.Add()([x, layers.Dense(96)(y)])
        kept.append(layers.Reshape((4, 4, 4, 96))(x))
    y = _up(kept[-1], 32)
    y = _conv(layers.Concatenate()([y, _up(kept[1], 32)]), 32)
    y = _conv(layers.Concatenate()([_up(y, 16), _up(_up(kept[0], 16), 16)]), 16)
    y = _conv(layers.Concatenate()([_up(y, 8), _conv(given, 8)]), 8)
    return segmenter(given, layers.Conv3D(3, 1, activation="softmax")(layers.BatchNormalization()(y)))


def swin_unetr() -> Subject:
    """Hatamizadeh et al., "Swin UNETR", BrainLes 2021: attention in windows that every second layer shifts."""

    def attend(x: Tensor, size: int, shift: int) -> Tensor:
        side, width = x.shape[1], x.shape[-1]
        y = keras.ops.roll(layers.LayerNormalization()(x), (-shift,) * 3, (1, 2, 3)) if shift else x
        number = side // size
        y = keras.ops.reshape(y, (-1, number, size, number, size, number, size, width))
        y = keras.ops.reshape(keras.ops.transpose(y, (0, 1, 3, 5, 2, 4, 6, 7)), (-1, number**3, size**3, width))
        y = layers.MultiHeadAttention(2, width // 2, attention_axes=(2,), flash_attention=False)(y, y)
        y = keras.ops.reshape(y, (-1, number, number, number, size, size, size, width))
        y = keras.ops.reshape(keras.ops.transpose(y, (0, 1, 4, 2, 5, 3, 6, 7)), (-1, side, side, side, width))
        y = keras.ops.roll(y, (shift,) * 3, (1, 2, 3)) if shift else y
        x = layers.Add()([x, y])
        return layers.Add()([x, layers.Dense(width)(layers.Dense(2 * width, activation="gelu")(x))])

    given = layers.Input((32, 32, 32, 2))
    x = layers.Conv3D(16, 2, 2)(given)
    x = skip = attend(attend(x, 4, 0), 4, 2)
    x = attend(attend(layers.Conv3D(32, 2, 2)(x), 4, 0), 4, 2)
    x = _conv(layers.Concatenate()([_up(x, 16), skip]), 16)
    x = _conv(layers.Concatenate()([_up(x, 8), _conv(given, 8)]), 8)
    return segmenter(given, layers.Conv3D(3, 1, activation="softmax")(x))


def voxel_morph() -> Subject:
    """Balakrishnan et al., "VoxelMorph", TMI 2019: a field of displacements that warps one volume onto the other."""

    def warp(volume: tf.Tensor, field: tf.Tensor) -> tf.Tensor:
        side = volume.shape[1]
        axes = tf.range(side, dtype=tf.float32)
        grid = tf.stack(tf.meshgrid(axes, axes, axes, indexing="ij"), -1) + field
        low = tf.floor(grid)
        share, total = grid - low, tf.zeros_like(volume)
        for corner in ((a, b, c) for a in (0, 1) for b in (0, 1) for c in (0, 1)):
            at = tf.clip_by_value(tf.cast(low, tf.int32) + corner, 0, side - 1)
            weight = tf.reduce_prod(tf.where(tf.constant(corner) > 0, share, 1 - share), -1, keepdims=True)
            total += weight * tf.gather_nd(volume, at, batch_dims=1)
        return total

    class Warp(layers.Layer):
        def call(self, volume: Tensor, field: Tensor) -> Tensor:
            return warp(volume, field)

    given = layers.Input((32, 32, 32, 2))
    x = first = layers.LeakyReLU(0.2)(_conv(given, 8))
    x = layers.LeakyReLU(0.2)(_conv(x, 16, 3, 2))
    x = layers.Concatenate()([layers.UpSampling3D()(layers.LeakyReLU(0.2)(_conv(x, 16))), first])
    field = _conv(layers.LeakyReLU(0.2)(_conv(x, 8)), 3)
    return segmenter(given, Warp()(given[..., :1], field), loss="mse")


ZOO = {
    "V-Net": v_net,
    "SegResNet": seg_res_net,
    "Attention U-Net": attention_u_net,
    "MedNeXt": med_next,
    "UNETR": unetr,
    "Swin UNETR": swin_unetr,
    "VoxelMorph": voxel_morph,
    "mixed bfloat16": mixed_bfloat16,
}
