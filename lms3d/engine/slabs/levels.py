"""The levels of a network: which tensors are cut, and where. No TensorFlow here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from lms3d.engine.slabs.planes import even_bounds
from lms3d.engine.slabs.values import Node, Shape, SlabLayout

AXIS = 1
"""The first spatial axis: channels come last."""

_SPATIAL = frozenset(
    f"{name}{version}"
    for name, version in (("Conv2D", ""), ("Conv3D", ""), ("DepthwiseConv2dNative", ""), ("MaxPool", ""), ("MaxPool3D", ""),
                          ("AvgPool", ""), ("AvgPool3D", ""))
)  # fmt: skip
_TRANSPOSED = frozenset({"Conv2DBackpropInput", "Conv3DBackpropInputV2"})


def found_in(nodes: Iterable[Node]) -> tuple[Shape, ...]:
    """The levels of a trace, the finest first: the batch and spatial axes, (B, D, H, W) or (B, H, W), that convolutions and
    poolings read or make. Each shape is there once; among shapes of one depth D the larger one comes first."""
    shapes: set[Shape] = set()
    for node in nodes:
        if node.type in _SPATIAL:
            shapes.update(s.shape[:-1] for s in (node.inputs[0], node.outputs[0]) if s.shape is not None)
        elif node.type in _TRANSPOSED:
            shapes.update(s.shape[:-1] for s in (node.inputs[2], node.outputs[0]) if s.shape is not None)
    return tuple(sorted((s for s in shapes if len(s) >= 3), key=lambda s: (-s[AXIS], [-n for n in s])))


@dataclass(frozen=True)
class Levels:
    """The number of slabs of each level. numbers: (batch, spatial axes) -> slabs; 1 or missing means whole."""

    numbers: Mapping[Shape, int]

    @staticmethod
    def of(nodes: Iterable[Node], slabs: Mapping[int, int]) -> Levels:
        """The levels of a trace. slabs: level (0 is the finest) -> number. Shapes of one extent along the sliced axis are one
        level."""
        shapes = found_in(nodes)
        extents = sorted({s[AXIS] for s in shapes}, reverse=True)
        return Levels({s: slabs.get(extents.index(s[AXIS]), 1) for s in shapes})

    def layout(self, shape: Shape | None) -> SlabLayout | None:
        """How a tensor of this shape is cut; None if it stays whole."""
        for rank in (4, 3):
            number = self.numbers.get(shape[:rank], 1) if shape is not None else 1
            if shape is not None and len(shape) >= rank and number > 1:
                bounds = even_bounds(shape[AXIS], number, self._multiple(shape[AXIS], number))
                return SlabLayout(AXIS, bounds) if len(bounds) > 2 else None
        return None

    def stays_whole(self, shape: Shape | None) -> bool:
        """Whether a tensor belongs to a level that is not sliced."""
        return shape is not None and any(
            self.numbers.get(shape[:rank], 2) <= 1 for rank in (4, 3) if len(shape) >= rank
        )

    def _multiple(self, extent: int, number: int) -> int:
        """The number of planes that every slab's start is a multiple of.

        Slabs begin in line with the slabs of the next coarser sliced levels, so that pooling needs no planes of neighbours.
        """
        coarser = [s[AXIS] for s, n in self.numbers.items() if n > 1 and s[AXIS] < extent and extent % s[AXIS] == 0]
        fitting = [extent // c for c in coarser if number * (extent // c) <= extent]
        return max(fitting, default=2 if extent % 2 == 0 and 2 * number <= extent else 1)
