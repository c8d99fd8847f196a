"""Networks with loops, tables and graphs, each smaller than in its paper."""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf
from keras import layers

from tests.stress.zoo.subject import Subject, compiled, segmenter

Tensor = keras.KerasTensor


def conv_lstm() -> Subject:
    """Shi et al., "Convolutional LSTM Network", NeurIPS 2015."""
    given = layers.Input((8, 32, 32, 4))
    x = layers.ConvLSTM2D(16, 3, padding="same", return_sequences=True)(given)
    x = layers.ConvLSTM2D(16, 3, padding="same")(x)
    return segmenter(given, layers.Conv2D(1, 1)(x), batch=4)


def long_conv_lstm() -> Subject:
    """A hundred rounds, and so thousands of tensors of one size."""
    given = layers.Input((100, 32, 32, 2))
    return segmenter(given, layers.Conv2D(1, 1)(layers.ConvLSTM2D(16, 3, padding="same")(given)), batch=2)


def gated_units() -> Subject:
    """Two bidirectional layers of gated recurrent units."""
    given = layers.Input((64, 32))
    x = layers.Bidirectional(layers.GRU(64, return_sequences=True))(given)
    return segmenter(given, layers.Dense(5)(layers.Bidirectional(layers.GRU(64))(x)), batch=64)


def ordinary_equation() -> Subject:
    """Chen et al., "Neural ODEs", NeurIPS 2018: a loop of Euler steps, by `tf.while_loop`."""

    class Flow(layers.Layer):
        def build(self, shape: tuple[int, ...]) -> None:
            self.first = self.add_weight(shape=(shape[-1], 128), initializer="glorot_normal", name="first")
            self.second = self.add_weight(shape=(128, shape[-1]), initializer="glorot_normal", name="second")

        def call(self, x: Tensor) -> Tensor:
            first, second = tf.convert_to_tensor(self.first), tf.convert_to_tensor(self.second)

            def step(i: tf.Tensor, x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
                return i + 1, x + 0.1 * tf.matmul(tf.tanh(tf.matmul(x, first)), second)

            return tf.while_loop(lambda i, x: i < 10, step, (0, x))[1]

    given = layers.Input((64,))
    x = Flow()(layers.Dense(64)(given))
    return segmenter(given, layers.Dense(3)(x), batch=2048)


def language_model() -> Subject:
    """A small decoder with a table of words, and logits over all of them."""
    given = layers.Input((64,), dtype="int32")
    x = layers.Embedding(2000, 64)(given)
    for _ in range(2):
        y = layers.LayerNormalization()(x)
        y = layers.MultiHeadAttention(4, 16, flash_attention=False)(y, y, use_causal_mask=True)
        x = layers.Add()([x, y])
        x = layers.Add()([x, layers.Dense(64)(layers.Dense(256, activation="gelu")(x))])
    words = np.random.default_rng(0).integers(0, 2000, (8, 64)).astype(np.int32)
    model = keras.Model(given, layers.Dense(2000)(x))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return compiled(model, words, words, loss=loss, optimizer="adam")


def mixture_of_experts() -> Subject:
    """Shazeer et al., ICLR 2017: the best two of eight experts for each token, by masks."""

    class Experts(layers.Layer):
        def build(self, shape: tuple[int, ...]) -> None:
            width = shape[-1]
            self.gate = self.add_weight(shape=(width, 8), initializer="glorot_normal", name="gate")
            self.wide = self.add_weight(shape=(8, width, 128), initializer="glorot_normal", name="wide")
            self.back = self.add_weight(shape=(8, 128, width), initializer="glorot_normal", name="back")

        def call(self, x: Tensor) -> Tensor:
            share, best = tf.math.top_k(tf.nn.softmax(tf.matmul(x, self.gate)), 2)
            weights = tf.reduce_sum(tf.one_hot(best, 8) * share[..., None], -2)
            y = tf.nn.gelu(tf.einsum("btc,ech->bteh", x, self.wide))
            return tf.einsum("bteh,ehc,bte->btc", y, self.back, weights)

    given = layers.Input((64, 64))
    x = given
    for _ in range(2):
        x = layers.Add()([x, Experts()(layers.LayerNormalization()(x))])
    return segmenter(given, layers.Dense(4)(x), batch=8)


def graph_network() -> Subject:
    """Gilmer et al., "Neural Message Passing", ICML 2017: gathered along edges, summed at nodes."""
    edges = np.random.default_rng(0).integers(0, 512, (2, 4096))

    class Pass(layers.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.message, self.update = layers.Dense(64, activation="relu"), layers.Dense(64)

        def call(self, x: Tensor) -> Tensor:
            sent = self.message(tf.concat([tf.gather(x, edges[0], axis=1), tf.gather(x, edges[1], axis=1)], -1))
            summed = tf.math.unsorted_segment_sum(tf.transpose(sent, (1, 0, 2)), edges[1], 512)
            return x + self.update(tf.transpose(summed, (1, 0, 2)))

        def build(self, shape: tuple[int, ...]) -> None:
            self.message.build((None, None, 2 * shape[-1]))
            self.update.build((None, None, 64))

    given = layers.Input((512, 64))
    x = given
    for _ in range(3):
        x = Pass()(x)
    return segmenter(given, layers.Dense(2)(x), batch=4)


def nested_functions() -> Subject:
    """Layers that call a `tf.function` of their own."""

    @tf.function(autograph=False, jit_compile=False)
    def block(x: tf.Tensor, first: tf.Tensor, second: tf.Tensor) -> tf.Tensor:
        return tf.nn.gelu(tf.matmul(tf.nn.gelu(tf.matmul(x, first)), second)) + x

    class Block(layers.Layer):
        def build(self, shape: tuple[int, ...]) -> None:
            self.first = self.add_weight(shape=(shape[-1], 256), initializer="glorot_normal", name="first")
            self.second = self.add_weight(shape=(256, shape[-1]), initializer="glorot_normal", name="second")

        def call(self, x: Tensor) -> Tensor:
            return block(x, tf.convert_to_tensor(self.first), tf.convert_to_tensor(self.second))

    given = layers.Input((64,))
    x = given
    for _ in range(4):
        x = Block()(x)
    return segmenter(given, layers.Dense(1)(x), batch=2048)


ZOO = {
    "ConvLSTM": conv_lstm,
    "long ConvLSTM": long_conv_lstm,
    "bidirectional GRU": gated_units,
    "neural ODE": ordinary_equation,
    "language model": language_model,
    "experts": mixture_of_experts,
    "message passing": graph_network,
    "nested functions": nested_functions,
}
