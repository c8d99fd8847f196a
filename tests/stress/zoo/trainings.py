"""Training steps that take more than one gradient, or more than one network."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf
from keras import layers

from tests.stress.zoo.subject import Subject, compiled, numbers

Batch = tuple[tf.Tensor, tf.Tensor]


def _network(width: int, outputs: int, shape: tuple[int, ...] = (32, 32, 3)) -> keras.Model:
    given = x = layers.Input(shape)
    for step in range(3):
        x = layers.LeakyReLU()(layers.Conv2D(width << step, 3, 1 + step % 2, padding="same")(x))
    return keras.Model(given, layers.Dense(outputs)(layers.GlobalAveragePooling2D()(x)))


class _Several(keras.Model):
    """A model that calls the first of its networks."""

    def __init__(self, *networks: keras.Model) -> None:
        super().__init__()
        self.networks = networks
        self.built = True

    def call(self, x: tf.Tensor) -> tf.Tensor:
        return self.networks[0](x)

    def _update(self, loss: tf.Tensor, gradients: Any, variables: Any) -> dict[str, tf.Tensor]:
        self.optimizer.apply(gradients, variables)
        return {"loss": loss}


class Learner(_Several):
    """Finn et al., "MAML", ICML 2017: the gradient through a step of gradient descent."""

    def train_step(self, data: Batch) -> dict[str, tf.Tensor]:
        x, y = data
        variables = self.networks[0].trainable_variables
        first, second = (tf.convert_to_tensor(v) for v in variables)
        with tf.GradientTape() as outer:
            outer.watch((first, second))
            with tf.GradientTape() as inner:
                inner.watch((first, second))
                before = tf.reduce_mean((self._apply(x, first, second) - y) ** 2)
            steps = inner.gradient(before, (first, second))
            moved = [w - 0.1 * s for w, s in zip((first, second), steps, strict=True)]
            after = tf.reduce_mean((self._apply(x, *moved) - y) ** 2)
        return self._update(after, outer.gradient(after, (first, second)), variables)

    def _apply(self, x: tf.Tensor, first: tf.Tensor, second: tf.Tensor) -> tf.Tensor:
        y = tf.nn.conv2d(x, first, 1, "SAME")
        return tf.nn.conv2d(tf.nn.softplus(y), second, 1, "SAME")


def maml() -> Subject:
    """`Learner` with two convolutions."""
    given = layers.Input((32, 32, 8))
    x = layers.Conv2D(8, 3, padding="same", use_bias=False)(layers.Conv2D(32, 3, padding="same", use_bias=False)(given))
    return compiled(Learner(keras.Model(given, x)), numbers(16, 32, 32, 8), numbers(16, 32, 32, 8, seed=1))


class Critic(_Several):
    """Gulrajani et al., "WGAN-GP", NeurIPS 2017: the gradient of a gradient's length."""

    def train_step(self, data: Batch) -> dict[str, tf.Tensor]:
        real, noise = data
        maker, critic = self.networks
        with tf.GradientTape() as tape:
            made = maker(noise, training=True)
            between = (real + made) / 2
            with tf.GradientTape() as inner:
                inner.watch(between)
                score = critic(between, training=True)
            slope = tf.sqrt(tf.reduce_sum(inner.gradient(score, between) ** 2, (1, 2, 3)) + 1e-9)
            loss = tf.reduce_mean(critic(made) - critic(real)) + 10 * tf.reduce_mean((slope - 1) ** 2)
        variables = critic.trainable_variables
        return self._update(loss, tape.gradient(loss, variables), variables)


def wgan_gp() -> Subject:
    """`Critic` with a small generator."""
    given = layers.Input((8, 8, 16))
    x = layers.Conv2DTranspose(32, 4, 2, padding="same", activation="relu")(given)
    maker = keras.Model(given, layers.Conv2DTranspose(3, 4, 2, padding="same", activation="tanh")(x))
    return compiled(Critic(maker, _network(16, 1)), numbers(16, 32, 32, 3), numbers(16, 8, 8, 16))


class Pupil(_Several):
    """Grill et al., "BYOL", NeurIPS 2020: a network learns what a slower copy of it says of another view."""

    def train_step(self, data: Batch) -> dict[str, tf.Tensor]:
        views, (online, teacher) = data, self.networks
        with tf.GradientTape() as tape:
            loss = tf.constant(0.0)
            for one, other in (views, views[::-1]):
                said, wanted = online(one, training=True), tf.stop_gradient(teacher(other, training=True))
                loss -= tf.reduce_mean(keras.losses.cosine_similarity(said, wanted))
        variables = online.trainable_variables
        done = self._update(loss, tape.gradient(loss, variables), variables)
        for slow, fast in zip(teacher.trainable_variables, variables, strict=True):
            slow.assign(0.99 * slow.value + 0.01 * fast.value)
        return done


def byol() -> Subject:
    """`Pupil` with two networks of the same kind."""
    return compiled(Pupil(_network(16, 64), _network(16, 64)), numbers(16, 32, 32, 3), numbers(16, 32, 32, 3, seed=1))


ZOO = {"MAML": maml, "WGAN-GP": wgan_gp, "BYOL": byol}
