"""A validation that is not one loss per batch: of whole volumes, of which the network sees windows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import numpy as np

Predict = Callable[[np.ndarray], np.ndarray]
"""One sample without the batch, in the shape of the network's input, float32 -> what the network says, float32."""


class OwnValidation(ABC):
    """The validation of one rank's samples, in place of a dataset. See `callbacks.validation`."""

    @property
    @abstractmethod
    def batches(self) -> int:
        """How often `scores` calls the network."""

    @property
    @abstractmethod
    def in_words(self) -> str:
        """What is validated, for a line before training."""

    @abstractmethod
    def scores(self, predict: Predict) -> dict[str, float]:
        """The "loss", and each metric by its name: means over this rank's samples."""
