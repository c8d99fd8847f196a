"""A compiled model and its batches, for training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import keras
import numpy as np


@dataclass(frozen=True)
class Subject:
    """A model that `fit` trains, inputs and targets of one step, and its name in the zoo's table."""

    model: keras.Model
    x: np.ndarray
    y: np.ndarray


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    """Numbers between 0 and 1: float32 of this shape."""
    return np.random.default_rng(seed).uniform(size=shape).astype(np.float32)


def compiled(model: keras.Model, x: np.ndarray, y: np.ndarray, *, loss: Any = "mse", optimizer: Any = "sgd") -> Subject:
    """The subject, compiled without XLA."""
    model.compile(optimizer=optimizer, loss=loss, jit_compile=False)
    return Subject(model, x, y)


def segmenter(given: Any, made: Any, *, batch: int = 1, loss: Any = "mse", optimizer: Any = "sgd") -> Subject:
    """A functional model from `given` to `made`, with batches of their shapes."""
    x, y = numbers(batch, *given.shape[1:]), numbers(batch, *made.shape[1:], seed=1)
    return compiled(keras.Model(given, made), x, y, loss=loss, optimizer=optimizer)
