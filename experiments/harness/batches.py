"""A batch, the same for every method. No TensorFlow here."""

from __future__ import annotations

import numpy as np


def volumes(side: int) -> tuple[np.ndarray, np.ndarray]:
    """Image (1, D, H, W, 4), float32 noise with three nested balls in it; truth (1, D, H, W, 3), uint8, the balls."""
    axes = np.ogrid[:side, :side, :side]
    squares = sum((axis - side * centre) ** 2 for axis, centre in zip(axes, (0.4, 0.5, 0.6), strict=True))
    balls = np.stack([squares < (side * radius) ** 2 for radius in (0.3, 0.2, 0.1)], axis=-1)
    image = np.random.default_rng(0).normal(size=(side, side, side, 4)) + balls.sum(axis=-1, keepdims=True)
    return image[None].astype("f4"), balls[None].astype("u1")


def noise(inputs: tuple[int, ...], outputs: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and outputs of these shapes, float32 noise."""
    rng = np.random.default_rng(0)
    return rng.normal(size=inputs).astype("f4"), rng.normal(size=outputs).astype("f4")
