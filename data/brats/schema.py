"""What the numbers in a label map mean. Never inferred from the values: 3 and 4 differ between data sets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from data.errors import DataError

CHANNELS = ("t1", "t1ce", "flair", "t2")
"""The four modalities, in the order of the image channels."""

REGIONS = ("WT", "TC", "ET")
"""Whole tumour, tumour core, enhancing tumour."""


@dataclass(frozen=True, kw_only=True)
class LabelSchema:
    """The labels of one data set.

    `labels` is ordered necrosis, oedema, enhancing tumour in every schema, so the output channels of a model mean the
    same for every data set. Regions are unions of labels.
    """

    name: str
    labels: tuple[int, int, int]
    """Label values of the three output channels."""
    regions: Mapping[str, tuple[int, ...]]
    """Label values that make up each of REGIONS."""
    ignored: tuple[int, ...] = field(default=())
    """Labels that may occur in a file and count as background here."""

    @property
    def values(self) -> tuple[int, ...]:
        """Every value that a label map may hold."""
        return tuple(sorted((0, *self.labels, *self.ignored)))

    @property
    def region_channels(self) -> dict[str, tuple[int, ...]]:
        """Indices of the output channels that make up each region."""
        return {name: tuple(sorted(self.labels.index(v) for v in values)) for name, values in self.regions.items()}

    def to_channels(self, labels: np.ndarray) -> np.ndarray:
        """Label map (X, Y, Z) -> disjoint channels (X, Y, Z, 3), uint8 0 or 1. Ignored labels become background."""
        channels = np.empty((*labels.shape, len(self.labels)), np.uint8)
        for index, value in enumerate(self.labels):
            np.equal(labels, value, out=channels[..., index], casting="unsafe")
        return channels

    def from_channels(self, probabilities: np.ndarray) -> np.ndarray:
        """Probabilities (X, Y, Z, 3) -> label map (X, Y, Z) uint8: the largest channel where it is >= 0.5, else 0."""
        winners = np.asarray(self.labels, np.uint8)[np.argmax(probabilities, axis=-1)]
        return np.where(np.max(probabilities, axis=-1) >= 0.5, winners, np.uint8(0)).astype(np.uint8)


def _schema(name: str, necrosis: int, oedema: int, enhancing: int, ignored: tuple[int, ...] = ()) -> LabelSchema:
    regions = {"WT": tuple(sorted((necrosis, oedema, enhancing))), "TC": tuple(sorted((necrosis, enhancing)))}
    regions["ET"] = (enhancing,)
    return LabelSchema(name=name, labels=(necrosis, oedema, enhancing), regions=regions, ignored=ignored)


SCHEMAS: dict[str, LabelSchema] = {
    schema.name: schema
    for schema in (
        _schema("tcia", 1, 2, 4),
        _schema("brats2017", 1, 2, 4),
        _schema("brats2018", 1, 2, 4),
        _schema("brats2019", 1, 2, 4),
        _schema("brats2020", 1, 2, 4),
        _schema("brats2021", 1, 2, 4),
        _schema("brats2023", 1, 2, 3),
        _schema("brats2024", 1, 2, 3, ignored=(4,)),  # 4 is the resection cavity, no part of any region
        _schema("msd", 2, 1, 3),  # the Medical Segmentation Decathlon counts oedema first
    )
}


def schema_named(name: str) -> LabelSchema:
    """The schema called `name`; DataError lists the known ones."""
    if name not in SCHEMAS:
        known = ", ".join(SCHEMAS)
        raise DataError(f"--labels: found {name!r}; expected one of {known}; choose the set that your labels come from")
    return SCHEMAS[name]
