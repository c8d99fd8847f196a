"""Normalisation by the names of the channels, as nnU-Net has it (Isensee et al., Nature Methods 2021).

CT                clipped to the 0.5 and 99.5 percentiles of the foreground of the training cases, then z-scores by its mean
                  and deviation: Hounsfield units mean the same in every scanner
noNorm            unchanged
rescale_to_0_1    each case from its smallest to its largest value
rgb_to_0_1        divided by 255
any other         z-scores of each case; inside the non-zero part alone, if the crop to it removes a quarter or more
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from lms3d.data.errors import DataError
from lms3d.data.segmentation.description import plain
from lms3d.data.segmentation.grid import SAMPLE_FILE
from lms3d.data.volumes.cache import Cache

SCHEMES = {
    "ct": "ct",
    "nonorm": "none",
    "none": "none",
    "rescale_to_0_1": "range",
    "rescale_0_1": "range",
    "rgb_to_0_1": "rgb",
    "rgb": "rgb",
}
"""The name of a channel in lower case -> its scheme. Channels of any other name get z-scores."""
Z_SCORE = "z-score"
PERCENTILES = (0.5, 99.5)
MOST_KEPT = 0.75
"""If the crop keeps less than this share of the median case, statistics and z-scores are those inside the non-zero part."""
_LEAST_STD = 1e-8


@dataclass(frozen=True, kw_only=True)
class Channel:
    """How the intensities of one channel become the network's."""

    name: str
    scheme: str
    """"ct", "none", "range", "rgb" or "z-score"."""
    low: float = 0.0
    """For "ct": the intensities that are kept, and their mean and standard deviation."""
    high: float = 0.0
    mean: float = 0.0
    std: float = 1.0


@dataclass(frozen=True, kw_only=True)
class ByChannel:
    """The normalisation of each channel by the scheme that its name asks for. See `lms3d.data.volumes.normalise.Normalisation`."""

    kind: ClassVar[str] = "channels"
    channels: tuple[Channel, ...]
    inside_brain: bool = False
    """Whether z-scores are taken over the non-zero part, outside of which all is 0. Only if every channel gets z-scores."""

    def figures(self, entry: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray]:
        pairs = [self._pair(channel, index, entry) for index, channel in enumerate(self.channels)]
        mean, std = zip(*pairs, strict=True)
        return np.array(mean, np.float32), np.maximum(np.array(std, np.float32), np.float32(_LEAST_STD))

    def _pair(self, channel: Channel, index: int, entry: Mapping[str, Any]) -> tuple[float, float]:
        """The mean and the deviation of one channel."""
        if channel.scheme == "range":
            least, most = entry["least"][index], entry["most"][index]
            return least, most - least or 1.0
        if channel.scheme == Z_SCORE:
            kind = "brain_" if self.inside_brain else ""
            return entry[f"{kind}mean"][index], entry[f"{kind}std"][index]
        return {"ct": (channel.mean, channel.std), "rgb": (0.0, 255.0), "none": (0.0, 1.0)}[channel.scheme]

    @property
    def limits(self) -> tuple[np.ndarray, np.ndarray] | None:
        if not any(channel.scheme == "ct" for channel in self.channels):
            return None
        kept = [(c.low, c.high) if c.scheme == "ct" else (-np.inf, np.inf) for c in self.channels]
        return np.array([low for low, _ in kept], np.float32), np.array([high for _, high in kept], np.float32)

    def to_json(self) -> dict[str, Any]:
        names = ("name", "scheme", "low", "high", "mean", "std")
        channels = [{name: getattr(channel, name) for name in names} for channel in self.channels]
        return {"kind": self.kind, "inside": self.inside_brain, "channels": channels}

    @staticmethod
    def from_json(value: Any) -> ByChannel:
        """What `to_json` wrote. ValueError for anything that cannot be applied."""
        try:
            channels = tuple(_channel(one) for one in value["channels"])
            if value["kind"] != ByChannel.kind or not channels or type(value["inside"]) is not bool:
                raise ValueError
        except (KeyError, TypeError, ValueError, OverflowError):
            raise ValueError(f"found normalisation {str(value)[:80]}, expected a scheme for each channel") from None
        return ByChannel(channels=channels, inside_brain=value["inside"])


def _channel(value: Mapping[str, Any]) -> Channel:
    low, high, mean, std = (float(value[name]) for name in ("low", "high", "mean", "std"))
    if value["scheme"] not in (*SCHEMES.values(), Z_SCORE) or not np.isfinite([low, high, mean, std]).all() or std <= 0:
        raise ValueError
    return Channel(name=str(value["name"]), scheme=value["scheme"], low=low, high=high, mean=mean, std=std)


def scheme_of(channel: str) -> str:
    """The scheme that the name of a channel asks for."""
    return SCHEMES.get(plain(channel).strip().lower(), Z_SCORE)


def fit(cache: Cache, training_ids: Iterable[str]) -> ByChannel:
    """The normalisation of a data set. training_ids: statistics of validation cases would leak into the training."""
    ids = sorted(training_ids)
    if not ids:
        raise DataError("training cases: found none; expected at least one; check the split")
    schemes = [scheme_of(channel) for channel in cache.channels]
    samples = _samples(cache, ids) if "ct" in schemes else np.zeros((0, len(schemes)), np.float32)
    channels = tuple(
        _of_foreground(name, samples[:, index]) if scheme == "ct" else Channel(name=name, scheme=scheme)
        for index, (name, scheme) in enumerate(zip(cache.channels, schemes, strict=True))
    )
    inside = all(scheme == Z_SCORE for scheme in schemes) and _kept(cache, ids) < MOST_KEPT
    return ByChannel(channels=channels, inside_brain=inside)


def _samples(cache: Cache, ids: Sequence[str]) -> np.ndarray:
    """The intensities (n, channels) of the foreground of the cases. DataError if no case has any."""
    found = [
        cache.array(case_id, SAMPLE_FILE, (count, len(cache.channels)), np.float32)
        for case_id in ids
        if (count := cache.entry(case_id)["samples"])
    ]
    if not found:
        raise DataError(
            f"{cache.directory}: found no foreground in {len(ids)} training cases; expected some, by which a CT is normalised; "
            "check the label maps"
        )
    return np.concatenate(found)


def _of_foreground(name: str, samples: np.ndarray) -> Channel:
    low, high = np.percentile(samples, PERCENTILES)
    mean, std = samples.mean(dtype=np.float64), samples.std(dtype=np.float64)
    deviation = max(float(std), _LEAST_STD)
    return Channel(name=name, scheme="ct", low=float(low), high=float(high), mean=float(mean), std=deviation)


def _kept(cache: Cache, ids: Sequence[str]) -> float:
    """The median share of the native grid that the crop to the non-zero part keeps."""
    shares = []
    for case_id in ids:
        lower, upper = np.array(cache.entry(case_id)["brain"])
        shares.append(float(np.prod(upper - lower)) / float(np.prod(cache.geometry(case_id).shape)))
    return float(np.median(shares))
