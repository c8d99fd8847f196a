"""A training loop of your own, with a GradientTape: python examples/custom_step.py [SIDE]"""

import sys

import keras
import numpy as np
import tensorflow as tf

import lms3d


def main(side: int) -> None:
    """Writes the step as a tf.function, gives its trace to LMS, and calls what comes back."""
    layers = [keras.layers.Conv2D(16, 3, padding="same", activation="relu") for _ in range(4)]
    model = keras.Sequential([keras.Input((side, side, 3)), *layers, keras.layers.Conv2D(1, 1)])
    optimizer = keras.optimizers.Adam()
    optimizer.build(model.trainable_variables)

    @tf.function
    def step(images: tf.Tensor, targets: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(images, training=True) - targets))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    spec = tf.TensorSpec((2, side, side, 3)), tf.TensorSpec((2, side, side, 1))
    lms = lms3d.LMS()  # or LMS(memory_limit="6GiB")
    small_step = lms.rewrite(step.get_concrete_function(*spec))
    images = np.random.default_rng(7).random((2, side, side, 3), np.float32)
    for number in range(5):
        loss = small_step(tf.constant(images), tf.constant(images.mean(-1, keepdims=True)))
        print(f"step {number}: loss {float(loss):.4f}")
    print(lms.report)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 256)
