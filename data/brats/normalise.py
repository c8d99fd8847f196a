"""One mean and one standard deviation per channel, from training subjects only, stored with the run."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from data.brats.cache import Cache
from data.brats.schema import CHANNELS
from data.errors import DataError


@dataclass(frozen=True, kw_only=True)
class Normalisation:
    """image -> (image - mean) / std, per channel."""

    mean: tuple[float, ...]
    """(4,), mean of the subjects' means."""
    std: tuple[float, ...]
    """(4,), mean of the subjects' standard deviations."""

    def apply(self, image: np.ndarray) -> np.ndarray:
        """Images (..., 4) -> normalised float32 of the same shape."""
        mean, std = np.asarray(self.mean, np.float32), np.asarray(self.std, np.float32)
        return (image.astype(np.float32, copy=False) - mean) / std

    def to_json(self) -> dict[str, Any]:
        return {"channels": list(CHANNELS), "mean": list(self.mean), "std": list(self.std)}

    @staticmethod
    def from_json(value: dict[str, Any]) -> Normalisation:
        return Normalisation(mean=tuple(map(float, value["mean"])), std=tuple(map(float, value["std"])))


def fit(cache: Cache, training_ids: Iterable[str]) -> Normalisation:
    """Mean of subject means and mean of subject standard deviations over whole cubes, as the case study took them.

    training_ids: never the validation cases, whose statistics would leak into the training.
    """
    entries = [cache.entry(case_id) for case_id in sorted(training_ids)]
    if not entries:
        raise DataError("training cases: found none; expected at least one; check the split")
    mean = np.mean([entry["mean"] for entry in entries], axis=0)
    std = np.mean([entry["std"] for entry in entries], axis=0)
    return Normalisation(mean=tuple(mean.tolist()), std=tuple(std.tolist()))
