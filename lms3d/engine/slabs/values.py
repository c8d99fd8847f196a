"""The tensors of a traced step as the slicing pass sees them. No TensorFlow here."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lms3d.engine.slabs.planes import Range

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Spec:
    """Name, shape (None if the trace does not know it) and type of a tensor."""

    name: str
    shape: Shape | None
    dtype: str

    @property
    def elements(self) -> int:
        return math.prod(self.shape) if self.shape is not None else 0


@dataclass(frozen=True, kw_only=True)
class Node:
    """An op of the trace.

    attributes: all but the types of its inputs. constants: for each input the values of integers (axes, sizes, paddings), or None
    for data. sliceable: the op is stateless, not in a loop, and calls no functions.
    """

    name: str
    type: str
    inputs: tuple[Spec, ...]
    outputs: tuple[Spec, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    constants: tuple[np.ndarray | None, ...] = ()
    control_inputs: tuple[str, ...] = ()
    device: str = ""
    sliceable: bool = True


@dataclass(frozen=True, slots=True)
class SlabLayout:
    """How a tensor is cut: along `axis`, whose planes are `groups` times the planes 0 .. bounds[-1] one after the other.

    If the axis is a batch axis and a spatial axis merged, `groups` is above 1; each slab then has its planes of all groups.
    """

    axis: int
    bounds: tuple[int, ...]
    groups: int = 1

    @property
    def extent(self) -> int:
        return self.bounds[-1]

    @property
    def ranges(self) -> list[Range]:
        return [Range(a, b) for a, b in itertools.pairwise(self.bounds)]

    def shape(self, whole: Shape, planes: Range) -> Shape:
        """The shape of the slab with these planes."""
        return (*whole[: self.axis], self.groups * planes.planes, *whole[self.axis + 1 :])


@dataclass(frozen=True, eq=False)
class Ref:
    """A tensor of the sliced step: output `index` of an op that `sliced_step` makes, or a tensor of the trace (`trace`).

    phase, place: when it is made (`sliced_step`). barrier: it is made from all slabs of a tensor.
    """

    shape: Shape
    dtype: str
    phase: int
    place: float
    op: int = -1
    index: int = 0
    trace: str = ""
    barrier: bool = False


@dataclass(frozen=True, eq=False)
class Whole:
    """A tensor of the trace that exists in one piece."""

    ref: Ref
    spec: Spec


@dataclass(frozen=True, eq=False)
class Sliced:
    """A tensor of the trace that exists as slabs only."""

    spec: Spec
    layout: SlabLayout
    pieces: tuple[Ref, ...]


Value = Whole | Sliced
