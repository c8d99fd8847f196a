"""Four public architectures, smaller than in their papers: fewer channels and stages, the same blocks.

- Residual encoder U-Net, as nnU-Net's preset M has it: Isensee et al., "nnU-Net Revisited", MICCAI 2024. Blocks per stage
  1, 3, 4, 6; instance normalisation and LeakyReLU; one convolution per stage of the decoder. Without deep supervision. It is
  written in Keras's own layers, as users' networks are; `models/resenc.py` is the one to train.
- SegFormer B0: Xie et al., "SegFormer", NeurIPS 2021. Attention over a sequence that a convolution shortens, and a feed-forward
  part with a depthwise convolution. Without stochastic depth.
- ConvNeXt T as a segmentation network: Liu et al., "A ConvNet for the 2020s", CVPR 2022, with MedNeXt's symmetric decoder (Roy
  et al., MICCAI 2023). In two dimensions, since TensorFlow has no depthwise convolution in three. Without stochastic depth.
- BERT's encoder: Devlin et al., "BERT", NAACL 2019. Attention and a feed-forward part, each with dropout, and normalised after the
  addition. Its tokens are embedded already.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import keras
from keras import layers


@dataclass(frozen=True)
class PublicNetwork:
    """build: side -> the model of images or sequences (side, .., channels). side: the usual one. multiple: every side is a multiple
    of it."""

    build: Callable[[int], keras.Model]
    side: int
    multiple: int


# -- residual encoder U-Net ----------------------------------------------------------------------------------------------


def residual_unet(
    side: int, *, features: tuple[int, ...] = (16, 32, 64, 128), blocks: tuple[int, ...] = (1, 3, 4, 6)
) -> keras.Model:
    """(side, side, side, 4) -> (side, side, side, 3)."""
    given = layers.Input((side, side, side, 4))
    x = _active(_normal(layers.Conv3D(features[0], 3, padding="same")(given)))
    skips = []
    for stage, (width, number) in enumerate(zip(features, blocks, strict=True)):
        for i in range(number):
            x = _residual(x, width, 2 if stage and not i else 1)
        skips.append(x)
    for width, skip in zip(features[-2::-1], skips[-2::-1], strict=True):
        x = layers.Concatenate()([layers.Conv3DTranspose(width, 2, 2)(x), skip])
        x = _active(_normal(layers.Conv3D(width, 3, padding="same")(x)))
    return keras.Model(given, layers.Conv3D(3, 1, activation="sigmoid")(x))


def _residual(x: keras.KerasTensor, width: int, stride: int) -> keras.KerasTensor:
    short = layers.AveragePooling3D(stride)(x) if stride > 1 else x
    if x.shape[-1] != width:
        short = _normal(layers.Conv3D(width, 1, use_bias=False)(short))
    y = _active(_normal(layers.Conv3D(width, 3, stride, padding="same")(x)))
    return _active(layers.Add()([_normal(layers.Conv3D(width, 3, padding="same")(y)), short]))


def _normal(x: keras.KerasTensor) -> keras.KerasTensor:
    return layers.GroupNormalization(-1, epsilon=1e-5)(x)


def _active(x: keras.KerasTensor) -> keras.KerasTensor:
    return layers.LeakyReLU(0.01)(x)


# -- SegFormer -----------------------------------------------------------------------------------------------------------


def segformer(side: int) -> keras.Model:
    """(side, side, 3) -> (side, side, 8)."""
    x = given = layers.Input((side, side, 3))
    stages = []
    for i, (width, heads, reduction) in enumerate(((32, 1, 8), (64, 2, 4), (160, 5, 2), (256, 8, 1))):
        x = layers.Conv2D(width, 7 if i == 0 else 3, 4 if i == 0 else 2, padding="same")(x)
        x = layers.LayerNormalization(epsilon=1e-6)(x)
        for _ in range(2):
            x = _feed_forward(_attention(x, heads, reduction))
        x = layers.LayerNormalization(epsilon=1e-6)(x)
        stages.append(x)
    quarter = side // 4
    even = [
        layers.UpSampling2D(quarter // s.shape[1], interpolation="bilinear")(layers.Dense(128)(s))
        for s in reversed(stages)
    ]
    x = layers.Conv2D(128, 1, use_bias=False)(layers.Concatenate()(even))
    x = layers.ReLU()(layers.BatchNormalization()(x))
    return keras.Model(given, layers.UpSampling2D(4, interpolation="bilinear")(layers.Conv2D(8, 1)(x)))


def _attention(x: keras.KerasTensor, heads: int, reduction: int) -> keras.KerasTensor:
    _, rows, columns, width = x.shape
    queries = layers.LayerNormalization(epsilon=1e-6)(x)
    keys = queries
    if reduction > 1:
        keys = layers.LayerNormalization(epsilon=1e-6)(layers.Conv2D(width, reduction, reduction)(keys))
    flat = [layers.Reshape((-1, width))(part) for part in (queries, keys)]
    y = layers.MultiHeadAttention(heads, width // heads, flash_attention=False)(flat[0], flat[1])
    return layers.Add()([x, layers.Reshape((rows, columns, width))(y)])


def _feed_forward(x: keras.KerasTensor) -> keras.KerasTensor:
    width = x.shape[-1]
    y = layers.Dense(4 * width)(layers.LayerNormalization(epsilon=1e-6)(x))
    y = layers.Activation("gelu")(layers.DepthwiseConv2D(3, padding="same")(y))
    return layers.Add()([x, layers.Dense(width)(y)])


# -- ConvNeXt ------------------------------------------------------------------------------------------------------------


def convnext(
    side: int, *, features: tuple[int, ...] = (48, 96, 192), blocks: tuple[int, ...] = (3, 3, 3)
) -> keras.Model:
    """(side, side, 3) -> (side, side, 8)."""
    given = layers.Input((side, side, 3))
    x = layers.LayerNormalization(epsilon=1e-6)(layers.Conv2D(features[0], 4, 4)(given))
    skips = []
    for stage, (width, number) in enumerate(zip(features, blocks, strict=True)):
        if stage:
            x = layers.Conv2D(width, 2, 2)(layers.LayerNormalization(epsilon=1e-6)(x))
        for _ in range(number):
            x = _inverted(x)
        skips.append(x)
    for width, skip in zip(features[-2::-1], skips[-2::-1], strict=True):
        x = _inverted(layers.Add()([layers.Conv2DTranspose(width, 2, 2)(x), skip]))
    return keras.Model(given, layers.Conv2DTranspose(8, 4, 4)(layers.LayerNormalization(epsilon=1e-6)(x)))


class LayerScale(layers.Layer):
    """A factor for each channel, which begins small."""

    def build(self, shape: tuple[int | None, ...]) -> None:
        self.factor = self.add_weight(shape=(shape[-1],), initializer=keras.initializers.Constant(1e-6), name="factor")

    def call(self, x: keras.KerasTensor) -> keras.KerasTensor:
        return x * self.factor


def _inverted(x: keras.KerasTensor) -> keras.KerasTensor:
    width = x.shape[-1]
    y = layers.LayerNormalization(epsilon=1e-6)(layers.DepthwiseConv2D(7, padding="same")(x))
    y = layers.Activation("gelu")(layers.Dense(4 * width)(y))
    return layers.Add()([x, LayerScale()(layers.Dense(width)(y))])


# -- BERT ----------------------------------------------------------------------------------------------------------------


def bert(side: int, *, width: int = 256, depth: int = 6) -> keras.Model:
    """(side, width) -> (side, width)."""
    x = given = layers.Input((side, width))
    x = layers.Dropout(0.1)(layers.LayerNormalization(epsilon=1e-12)(Positions()(x)))
    for _ in range(depth):
        y = layers.MultiHeadAttention(width // 64, 64, dropout=0.1, flash_attention=False)(x, x)
        x = _after(x, y)
        y = layers.Dense(width)(layers.Activation("gelu")(layers.Dense(4 * width)(x)))
        x = _after(x, y)
    return keras.Model(given, layers.Dense(width)(x))


class Positions(layers.Layer):
    """Adds a learnt vector to each place of a sequence."""

    def build(self, shape: tuple[int | None, ...]) -> None:
        self.vectors = self.add_weight(shape=shape[1:], initializer="truncated_normal", name="vectors")

    def call(self, x: keras.KerasTensor) -> keras.KerasTensor:
        return x + self.vectors


def _after(x: keras.KerasTensor, y: keras.KerasTensor) -> keras.KerasTensor:
    return layers.LayerNormalization(epsilon=1e-12)(layers.Add()([x, layers.Dropout(0.1)(y)]))


NETWORKS = {
    "residual-unet": PublicNetwork(residual_unet, side=64, multiple=8),
    "segformer": PublicNetwork(segformer, side=128, multiple=64),
    "convnext": PublicNetwork(convnext, side=128, multiple=16),
    "bert": PublicNetwork(bert, side=512, multiple=16),
}
