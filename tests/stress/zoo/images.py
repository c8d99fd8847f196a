"""Networks for images and fields, each smaller than in its paper."""

from __future__ import annotations

import keras
import tensorflow as tf
from keras import layers

from tests.stress.zoo.subject import Subject, segmenter

Tensor = keras.KerasTensor


def _block(x: Tensor, width: int, stride: int = 1, dilation: int = 1) -> Tensor:
    x = layers.Conv2D(width, 3, stride, padding="same", dilation_rate=dilation, use_bias=False)(x)
    return layers.ReLU()(layers.BatchNormalization()(x))


def u_net_plus_plus() -> Subject:
    """Zhou et al., "UNet++", DLMIA 2018: every level feeds the one above, several times."""
    given = layers.Input((64, 64, 3))
    rows = [[_block(given, 16)]]
    for width in (32, 64):
        rows.append([_block(layers.MaxPooling2D()(rows[-1][0]), width)])
    for column in (1, 2):
        for level in range(3 - column):
            below = layers.UpSampling2D()(rows[level + 1][column - 1])
            rows[level].append(_block(layers.Concatenate()([*rows[level], below]), 16 << level))
    return segmenter(given, layers.Conv2D(2, 1, activation="softmax")(rows[0][-1]), batch=8)


def deep_lab() -> Subject:
    """Chen et al., "DeepLabv3", 2017: windows with holes side by side, and bilinear growth."""
    given = layers.Input((96, 96, 3))
    x = _block(_block(given, 16, 2), 32, 2)
    parts = [_block(x, 32, dilation=rate) for rate in (1, 2, 4)]
    pooled = layers.UpSampling2D(24, interpolation="bilinear")(layers.AveragePooling2D(24)(x))
    x = _block(layers.Concatenate()([*parts, pooled]), 32)
    return segmenter(given, layers.UpSampling2D(4, interpolation="bilinear")(layers.Conv2D(8, 1)(x)), batch=8)


def dense_net() -> Subject:
    """Huang et al., "DenseNet", CVPR 2017: each layer reads all before it."""
    given = layers.Input((64, 64, 3))
    x = layers.Conv2D(16, 3, padding="same")(given)
    for stage in range(2):
        x = layers.AveragePooling2D(2)(x) if stage else x
        for _ in range(5):
            x = layers.Concatenate()([x, _block(_block(x, 32), 12)])
    x = layers.Dense(10, activation="softmax")(layers.GlobalAveragePooling2D()(x))
    return segmenter(given, x, batch=8)


def stochastic_depth() -> Subject:
    """Huang et al., "Deep Networks with Stochastic Depth", ECCV 2016: a branch leaves whole blocks out."""

    class Perhaps(layers.Layer):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.first, self.second = (layers.Conv2D(width, 3, padding="same") for _ in range(2))
            self.draw = keras.random.SeedGenerator(5)

        def call(self, x: Tensor) -> Tensor:
            kept = keras.random.uniform((), seed=self.draw) < 0.8
            for layer in (self.first, self.second):
                if not layer.built:
                    layer.build(x.shape)
            return x + tf.cond(kept, lambda: self.second(tf.nn.relu(self.first(x))), lambda: tf.zeros_like(x))

    given = layers.Input((64, 64, 3))
    x = layers.Conv2D(24, 3, padding="same")(given)
    for _ in range(6):
        x = Perhaps(24)(x)
    return segmenter(given, layers.Dense(10)(layers.GlobalAveragePooling2D()(x)), batch=8)


def fourier_operator() -> Subject:
    """Li et al., "Fourier Neural Operator", ICLR 2021: products of a few frequencies."""

    class Spectral(layers.Layer):
        def build(self, shape: tuple[int, ...]) -> None:
            shape = (2, 12, 12, shape[-1], shape[-1])
            self.factor = self.add_weight(shape=shape, initializer="glorot_normal", name="factor")

        def call(self, x: Tensor) -> Tensor:
            side = x.shape[1]
            spectrum = tf.signal.rfft2d(tf.transpose(x, (0, 3, 1, 2)))[:, :, :12, :12]
            made = tf.einsum("bixy,xyio->boxy", spectrum, tf.complex(self.factor[0], self.factor[1]))
            made = tf.pad(made, [[0, 0], [0, 0], [0, side - 12], [0, side // 2 + 1 - 12]])
            return tf.transpose(tf.signal.irfft2d(made), (0, 2, 3, 1))

    given = layers.Input((64, 64, 1))
    x = layers.Dense(24)(given)
    for _ in range(4):
        x = layers.Activation("gelu")(layers.Add()([Spectral()(x), layers.Dense(24)(x)]))
    return segmenter(given, layers.Dense(1)(x), batch=8)


def auto_encoder() -> Subject:
    """Kingma and Welling, "Auto-Encoding Variational Bayes", ICLR 2014: numbers drawn between encoder and decoder."""

    class Draw(layers.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.seed = keras.random.SeedGenerator(3)

        def call(self, mean: Tensor, spread: Tensor) -> Tensor:
            self.add_loss(tf.reduce_mean(tf.exp(spread) + mean**2 - spread))
            return mean + tf.exp(spread / 2) * keras.random.normal(mean.shape, seed=self.seed)

    given = layers.Input((64, 64, 3), batch_size=8)
    x = _block(_block(given, 32, 2), 64, 2)
    x = Draw()(layers.Conv2D(16, 1)(x), layers.Conv2D(16, 1)(x))
    for width in (64, 32):
        x = layers.LeakyReLU()(layers.Conv2DTranspose(width, 4, 2, padding="same")(x))
    return segmenter(given, layers.Conv2D(3, 3, padding="same")(x), batch=8, optimizer="adam")


def diffusion() -> Subject:
    """Ho et al., "Denoising Diffusion Probabilistic Models", NeurIPS 2020: a U-Net that knows the time, with attention."""

    def block(x: Tensor, time: Tensor, width: int) -> Tensor:
        y = layers.Conv2D(width, 3, padding="same")(layers.Activation("silu")(layers.GroupNormalization(8)(x)))
        y = layers.Add()([y, layers.Reshape((1, 1, width))(layers.Dense(width)(time))])
        y = layers.Conv2D(width, 3, padding="same")(layers.Activation("silu")(layers.GroupNormalization(8)(y)))
        return layers.Add()([y, layers.Conv2D(width, 1)(x)])

    given = layers.Input((32, 32, 3))
    time = layers.Dense(64, activation="silu")(layers.GlobalAveragePooling2D()(given))
    x = skip = block(layers.Conv2D(32, 3, padding="same")(given), time, 32)
    x = block(layers.AveragePooling2D(2)(x), time, 64)
    flat = layers.Reshape((256, 64))(x)
    attended = layers.MultiHeadAttention(2, 32, flash_attention=False)(flat, flat)
    x = layers.Add()([x, layers.Reshape((16, 16, 64))(attended)])
    x = block(layers.Concatenate()([layers.UpSampling2D()(x), skip]), time, 32)
    return segmenter(given, layers.Conv2D(3, 3, padding="same")(x), batch=8, optimizer="adam")


def python_loss() -> Subject:
    """A loss that runs in Python, by py_function."""

    def distance(y: tf.Tensor, found: tf.Tensor) -> tf.Tensor:
        def plain(y: tf.Tensor, found: tf.Tensor) -> tf.Tensor:
            return tf.reduce_mean(tf.sqrt(tf.square(y - found) + 1e-3))

        loss = tf.py_function(plain, [y, found], tf.float32)
        loss.set_shape(())
        return loss

    given = layers.Input((64, 64, 3))
    x = given
    for width in (16, 32, 16):
        x = _block(x, width)
    return segmenter(given, layers.Conv2D(16, 3, padding="same")(x), batch=8, loss=distance)


def small_classifier() -> Subject:
    """A network of a tutorial."""
    given = layers.Input((28, 28, 1))
    x = layers.MaxPooling2D()(layers.Conv2D(16, 3, activation="relu")(given))
    x = layers.Dropout(0.5)(layers.Flatten()(layers.Conv2D(32, 3, activation="relu")(x)))
    return segmenter(given, layers.Dense(10, activation="softmax")(x), batch=32)


def perceptron() -> Subject:
    """Dense layers alone, with many weights."""
    given = layers.Input((784,))
    x = given
    for width in (1024, 1024, 512):
        x = layers.Dense(width, activation="relu")(x)
    return segmenter(given, layers.Dense(10)(x), batch=256, optimizer="adam")


def mapped_over_samples() -> Subject:
    """Each image by itself: `tf.map_fn` over the batch."""

    class Each(layers.Layer):
        def build(self, shape: tuple[int, ...]) -> None:
            self.kernel = self.add_weight(shape=(3, 3, shape[-1], 16), initializer="glorot_normal", name="kernel")

        def call(self, x: Tensor) -> Tensor:
            def one(image: tf.Tensor) -> tf.Tensor:
                return tf.nn.relu(tf.nn.conv2d(image[None], self.kernel, 1, "SAME")[0])

            return tf.map_fn(one, x)

    given = layers.Input((64, 64, 3), batch_size=8)
    x = Each()(Each()(given))
    return segmenter(given, layers.Conv2D(1, 1)(x), batch=8)


def recomputing() -> Subject:
    """A network that recomputes its blocks by `tf.recompute_grad`."""

    class Block(layers.Layer):
        def build(self, shape: tuple[int, ...]) -> None:
            self.kernel = self.add_weight(shape=(3, 3, shape[-1], 24), initializer="glorot_normal", name="kernel")

        def call(self, x: Tensor) -> Tensor:
            kernel = tf.convert_to_tensor(self.kernel)

            @tf.recompute_grad
            def block(x: tf.Tensor, kernel: tf.Tensor) -> tf.Tensor:
                for _ in range(2):
                    x = tf.nn.gelu(tf.nn.conv2d(x, kernel, 1, "SAME"))
                return x

            return block(x, kernel)

    given = layers.Input((64, 64, 24))
    x = given
    for _ in range(4):
        x = Block()(x)
    return segmenter(given, layers.Conv2D(1, 1)(x), batch=8)


ZOO = {
    "UNet++": u_net_plus_plus,
    "DeepLab": deep_lab,
    "DenseNet": dense_net,
    "stochastic depth": stochastic_depth,
    "FNO": fourier_operator,
    "VAE": auto_encoder,
    "diffusion": diffusion,
    "py_function": python_loss,
    "small classifier": small_classifier,
    "perceptron": perceptron,
    "map_fn": mapped_over_samples,
    "recompute_grad": recomputing,
}
