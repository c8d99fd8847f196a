"""Two transformers of toy size, from layers of our own: a decoder of text (as GPT) and a segmenter of images (as SegFormer)."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
from keras import layers, ops

TOKENS, WORDS, PIXELS = 128, 50, 96


class Block(layers.Layer):
    """Causal self-attention and an MLP, each after a normalisation and beside a residual connection: (B, T, C) -> the same."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norms = [layers.LayerNormalization(), layers.LayerNormalization()]
        self.attention = layers.MultiHeadAttention(heads, width // heads, dropout=0.1)
        self.mlp = keras.Sequential([layers.Dense(4 * width, "gelu"), layers.Dense(width), layers.Dropout(0.1)])

    def call(self, x: Any, training: bool = False) -> Any:
        y = self.norms[0](x)
        x = x + self.attention(y, y, use_causal_mask=True, training=training)
        return x + self.mlp(self.norms[1](x), training=training)


class Decoder(keras.Model):
    """Word numbers (B, T) -> logits of the next word (B, T, WORDS). Not built before the first batch."""

    def __init__(self, width: int = 48, depth: int = 2) -> None:
        super().__init__()
        self.words, self.places = layers.Embedding(WORDS, width), layers.Embedding(TOKENS, width)
        self.blocks = [Block(width, 4) for _ in range(depth)]
        self.out = keras.Sequential([layers.LayerNormalization(), layers.Dense(WORDS)])

    def call(self, x: Any, training: bool = False) -> Any:
        y = self.words(x) + self.places(ops.arange(TOKENS))
        for block in self.blocks:
            y = block(y, training=training)
        return self.out(y)


class EfficientBlock(layers.Layer):
    """Attention to keys on a grid coarser by `reduction`, then an MLP with a depthwise convolution: (B, H, W, C) -> the same."""

    def __init__(self, width: int, heads: int, reduction: int) -> None:
        super().__init__()
        self.norms = [layers.LayerNormalization() for _ in range(3)]
        self.reduce = layers.Conv2D(width, reduction, strides=reduction)
        self.attention = layers.MultiHeadAttention(heads, width // heads)
        self.mix = keras.Sequential(
            [
                layers.Dense(4 * width),
                layers.DepthwiseConv2D(3, padding="same"),
                layers.Activation("gelu"),
                layers.Dense(width),
            ]
        )

    def call(self, x: Any) -> Any:
        _, height, width, channels = x.shape
        y = self.norms[0](x)
        keys = self.norms[1](ops.reshape(self.reduce(y), (ops.shape(x)[0], -1, channels)))
        attended = self.attention(ops.reshape(y, (ops.shape(x)[0], height * width, channels)), keys)
        x = x + ops.reshape(attended, ops.shape(x))
        return x + self.mix(self.norms[2](x))


def segformer(widths: tuple[int, ...] = (16, 32), reductions: tuple[int, ...] = (4, 2)) -> keras.Model:
    """Image (B, 96, 96, 3) -> logits of four classes (B, 96, 96, 4): overlapping patches at 1/4 and 1/8, and a decoder of MLPs."""
    inputs = y = keras.Input((PIXELS, PIXELS, 3))
    levels = []
    for i, (width, reduction) in enumerate(zip(widths, reductions, strict=True)):
        y = layers.Conv2D(width, 3 if i else 7, strides=2 if i else 4, padding="same")(y)
        y = EfficientBlock(width, 2, reduction)(layers.LayerNormalization()(y))
        levels.append(layers.UpSampling2D(2**i, interpolation="bilinear")(layers.Dense(32)(y)))
    y = layers.Dense(32, "relu")(layers.Concatenate()(levels))
    return keras.Model(inputs, layers.UpSampling2D(4, interpolation="bilinear")(layers.Dense(4)(y)))


def make(name: str) -> tuple[keras.Model, np.ndarray, np.ndarray]:
    """A compiled model with random weights, and six samples; "gpt" or "segformer"."""
    keras.utils.set_random_seed(7)
    random = np.random.default_rng(3)
    if name == "gpt":
        model: keras.Model = Decoder()
        x = random.integers(0, WORDS, (6, TOKENS))
        y = np.roll(x, -1, 1)
    else:
        model = segformer()
        x = random.normal(size=(6, PIXELS, PIXELS, 3)).astype(np.float32)
        y = random.integers(0, 4, (6, PIXELS, PIXELS))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.AdamW(1e-3), loss, jit_compile=False)
    return model, x, y
