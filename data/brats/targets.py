"""The targets that a network learns from a label map, and the way from its output back to a label map.

labels    one channel per learnt label, disjoint, as in the case study. A voxel gets the label of its largest channel.
regions   one channel per region, nested, as BraTS scores. Regions are painted one over the other, from the outside in.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np

from lms3d.data.brats.schema import LabelSchema
from lms3d.data.errors import DataError

THRESHOLD = 0.5


class Targets(Protocol):
    """The output channels of a network for one schema."""

    kind: ClassVar[str]
    """The name in KINDS."""

    @property
    def schema(self) -> LabelSchema: ...

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the channels, in order."""

    @property
    def region_channels(self) -> Mapping[str, tuple[int, ...]]:
        """Scored region -> indices of the channels whose union it is."""

    def to_channels(self, labels: np.ndarray) -> np.ndarray:
        """The channels of a label map: (X, Y, Z) -> (X, Y, Z, C), uint8, 0 or 1."""

    def from_channels(self, probabilities: np.ndarray) -> np.ndarray:
        """The label map of probabilities: (X, Y, Z, C) -> (X, Y, Z) uint8."""


@dataclass(frozen=True)
class Labels:
    """Disjoint labels. Labels that are not learnt become background."""

    kind: ClassVar[str] = "labels"
    schema: LabelSchema

    @property
    def names(self) -> tuple[str, ...]:
        return self.schema.learnt

    @property
    def region_channels(self) -> Mapping[str, tuple[int, ...]]:
        values = self.schema.learnt_values
        return {
            name: tuple(index for index, value in enumerate(values) if value in region)
            for name, region in self.schema.regions.items()
        }

    def to_channels(self, labels: np.ndarray) -> np.ndarray:
        return _masks(labels, [(value,) for value in self.schema.learnt_values])

    def from_channels(self, probabilities: np.ndarray) -> np.ndarray:
        """The label of the largest channel if that is at least THRESHOLD, else 0."""
        winners = np.asarray(self.schema.learnt_values, np.uint8)[np.argmax(probabilities, axis=-1)]
        return np.where(np.max(probabilities, axis=-1) >= THRESHOLD, winners, np.uint8(0)).astype(np.uint8)


@dataclass(frozen=True)
class Regions:
    """Nested regions, the outermost first."""

    kind: ClassVar[str] = "regions"
    schema: LabelSchema

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.schema.nested)

    @property
    def region_channels(self) -> Mapping[str, tuple[int, ...]]:
        return {name: (index,) for index, name in enumerate(self.names)}

    def to_channels(self, labels: np.ndarray) -> np.ndarray:
        return _masks(labels, [self.schema.values_of(name) for name in self.names])

    def from_channels(self, probabilities: np.ndarray) -> np.ndarray:
        """Each region wherever its channel is at least THRESHOLD. An inner region lies over an outer one, even outside of it."""
        labels = np.zeros(probabilities.shape[:-1], np.uint8)
        for index, (_, value) in enumerate(self.schema.nested):
            labels[probabilities[..., index] >= THRESHOLD] = value
        return labels


KINDS: Mapping[str, type[Labels] | type[Regions]] = {kind.kind: kind for kind in (Labels, Regions)}


def targets_of(kind: str, schema: LabelSchema) -> Targets:
    """The targets of a kind, a name in KINDS. DataError for any other."""
    if kind not in KINDS:
        raise DataError(f"--targets: found {kind!r}; expected {' or '.join(KINDS)}; choose one of them")
    return KINDS[kind](schema)


def _masks(labels: np.ndarray, values: list[tuple[int, ...]]) -> np.ndarray:
    """The masks of label values: (X, Y, Z) -> (X, Y, Z, C) uint8. Channel i is 1 where the label is one of values[i]."""
    channels = np.zeros((*labels.shape, len(values)), np.uint8)
    for index, of_channel in enumerate(values):
        for value in of_channel:
            channels[..., index] |= labels == value
    return channels
