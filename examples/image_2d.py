"""A 2D U-Net on images, with LMS as a callback of `fit`: python examples/image_2d.py [SIDE]"""

import sys

import keras
import numpy as np

import lms3d


def unet(side: int) -> keras.Model:
    """Two levels; (B, side, side, 3) -> (B, side, side, 1)."""
    image = keras.Input((side, side, 3))
    top = keras.layers.Conv2D(16, 3, padding="same", activation="relu")(image)
    low = keras.layers.Conv2D(32, 3, padding="same", activation="relu")(keras.layers.MaxPooling2D()(top))
    joined = keras.layers.Concatenate()([top, keras.layers.UpSampling2D()(low)])
    smooth = keras.layers.Conv2D(16, 3, padding="same", activation="relu")(joined)
    return keras.Model(image, keras.layers.Conv2D(1, 1, activation="sigmoid")(smooth))


def main(side: int) -> None:
    """Learns to find the bright pixels."""
    images = np.random.default_rng(7).random((8, side, side, 3), np.float32)
    bright = (images.mean(-1, keepdims=True) > 0.5).astype(np.float32)
    model = unet(side)
    model.compile("adam", "binary_crossentropy")
    lms = lms3d.LMS()  # the limit is what the device has, or that of lms3d.limit_memory
    model.fit(images, bright, batch_size=2, epochs=2, callbacks=[lms])
    print(lms.report)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 512)
