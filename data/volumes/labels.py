"""The meaning of the numbers in the label maps of a data set."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np


@dataclass(frozen=True, kw_only=True)
class LabelSchema:
    """The labels of one data set, and the regions that are scored, which are unions of labels."""

    name: str
    labels: Mapping[str, int]
    """Name -> value in the file, for every label except background (0) and the ignore label."""
    learnt: tuple[str, ...]
    """The labels that a network learns, in the order of its output channels. Other labels count as background."""
    regions: Mapping[str, tuple[int, ...]]
    """Region -> label values, sorted: what is scored."""
    nested: tuple[tuple[str, int], ...]
    """(region, label value) from the outside in. Painted one over the other, the regions reproduce the label map."""
    ignore: int | None = None
    """The value of voxels that nobody has labelled. Neither a loss nor a score looks at them. None if there are none."""
    advice: str = field(default="name the set that the labels come from with --labels", compare=False)
    """What to do if a label map holds other values, for messages."""

    @property
    def values(self) -> tuple[int, ...]:
        """Every value that a label map may hold, sorted."""
        return tuple(sorted({0, *self.labels.values(), *(() if self.ignore is None else (self.ignore,))}))

    @property
    def learnt_values(self) -> tuple[int, ...]:
        """The label values of `learnt`."""
        return tuple(self.labels[name] for name in self.learnt)

    def values_of(self, name: str) -> tuple[int, ...]:
        """The label values of a region, or of a single label, by its name. KeyError if there is neither."""
        return self.regions[name] if name in self.regions else (self.labels[name],)

    def foreground(self, truth: np.ndarray) -> np.ndarray:
        """A label map in which voxels of the ignore label are background."""
        return truth if self.ignore is None else np.where(truth == self.ignore, truth.dtype.type(0), truth)
