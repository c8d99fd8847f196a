"""Normalisation, which makes intensities comparable between scanners. They have no unit.

case     for each case and channel separately: z-scores inside the brain, 0 outside. This is usual in the field, and the default.
global   one mean and one standard deviation per channel for all cases, from the training cases, as in the case study.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np

from lms3d.data.errors import DataError
from lms3d.data.volumes.cache import Cache

KINDS = ("case", "global")


class Normalisation(Protocol):
    """A normalisation: image -> (image - mean) / std, per channel."""

    def figures(self, entry: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray]:
        """The mean (channels,) and std (channels,), float32, for the case with this cache entry."""

    @property
    def inside_brain(self) -> bool:
        """Whether voxels with 0 in all channels stay 0."""

    @property
    def limits(self) -> tuple[np.ndarray, np.ndarray] | None:
        """The lowest and the highest intensity (channels,) float32 that is kept; what lies beyond is clipped. None: all is kept."""

    def to_json(self) -> dict[str, Any]: ...


@dataclass(frozen=True, kw_only=True)
class PerCase:
    """The normalisation by the mean and standard deviation of the brain's voxels of each case."""

    kind: ClassVar[str] = "case"
    inside_brain: ClassVar[bool] = True
    limits: ClassVar[None] = None

    channels: tuple[str, ...] = ()
    """The channels' names, for `to_json`."""

    def figures(self, entry: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray]:
        return np.asarray(entry["brain_mean"], np.float32), np.asarray(entry["brain_std"], np.float32)

    def to_json(self) -> dict[str, Any]:
        return {"kind": self.kind, "channels": list(self.channels)}


@dataclass(frozen=True, kw_only=True)
class Global:
    """The normalisation by the same mean and standard deviation for every case."""

    kind: ClassVar[str] = "global"
    inside_brain: ClassVar[bool] = False
    limits: ClassVar[None] = None

    mean: tuple[float, ...]
    """The mean of the subjects' means over whole volumes, background included, (channels,)."""
    std: tuple[float, ...]
    """The mean of the subjects' standard deviations, (channels,)."""
    channels: tuple[str, ...] = ()
    """The channels' names, for `to_json`."""

    def figures(self, entry: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray]:
        return np.asarray(self.mean, np.float32), np.asarray(self.std, np.float32)

    def to_json(self) -> dict[str, Any]:
        return {"kind": self.kind, "channels": list(self.channels), "mean": list(self.mean), "std": list(self.std)}


def from_json(value: Mapping[str, Any]) -> Normalisation:
    """The normalisation that `to_json` wrote. A run of an old version without a kind has global figures."""
    if value.get("kind", Global.kind) == PerCase.kind:
        return PerCase(channels=tuple(value.get("channels", ())))
    channels = tuple(value.get("channels", ()))
    return Global(mean=tuple(map(float, value["mean"])), std=tuple(map(float, value["std"])), channels=channels)


def fit(kind: str, cache: Cache, training_ids: Iterable[str]) -> Normalisation:
    """The normalisation of a kind, one of KINDS. DataError for any other.

    training_ids: the training cases only, since statistics of validation cases would leak into the training.
    """
    if kind == PerCase.kind:
        return PerCase(channels=cache.channels)
    if kind != Global.kind:
        raise DataError(f"--normalisation: found {kind!r}; expected {' or '.join(KINDS)}; choose one of them")
    entries = [cache.entry(case_id) for case_id in sorted(training_ids)]
    if not entries:
        raise DataError("training cases: found none; expected at least one; check the split")
    mean = np.mean([entry["mean"] for entry in entries], axis=0)
    std = np.mean([entry["std"] for entry in entries], axis=0)
    return Global(mean=tuple(mean.tolist()), std=tuple(std.tolist()), channels=cache.channels)


def apply(
    normalisation: Normalisation, stored: np.ndarray, scale: np.ndarray, entry: Mapping[str, Any], out: np.ndarray
) -> np.ndarray:
    """Writes the normalised image (A, B, C, channels) float32 to `out` and returns it.

    stored, scale: from `Cache.stored_image`, or a turned view of its image. It is one strided read, without copies.
    """
    mean, std = normalisation.figures(entry)
    np.multiply(stored, scale / std, out=out)
    if normalisation.limits is not None:
        low, high = normalisation.limits
        np.clip(out, low / std, high / std, out=out)
    out -= mean / std
    if normalisation.inside_brain:
        out *= stored.any(axis=-1, keepdims=True)
    return out


def background(normalisation: Normalisation, entry: Mapping[str, Any]) -> np.ndarray:
    """The values (channels,) float32 beside the body, as a network takes them.

    Of any organ this is the smallest intensity of each channel of the case, clipped to `limits`: air in a CT. Of brain scans, whose
    cache entries do not say it, this is the scanner's 0.
    """
    scale = np.asarray(entry["scale"], np.float32)
    if normalisation.inside_brain:
        return np.zeros_like(scale)
    stored = (np.asarray(entry.get("least", np.zeros_like(scale)), np.float32) / scale).astype(np.float16)
    around = stored.reshape(1, 1, 1, -1)
    return apply(normalisation, around, scale, entry, np.empty(around.shape, np.float32)).ravel()


def image(normalisation: Normalisation, cache: Cache, case_id: str) -> np.ndarray:
    """The image of a case, (A, B, C, channels) float32, as a network takes it."""
    stored, scale = cache.stored_image(case_id)
    return apply(normalisation, stored, scale, cache.entry(case_id), np.empty(stored.shape, np.float32))
