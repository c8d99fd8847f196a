"""How often, and along which axes, a network halves a volume, and which axes its convolutions span.

The rule is that of nnU-Net (Isensee et al., Nature Methods 2021, supplementary note 2):

TOPOLOGY-1  Each level halves every axis whose voxels are less than twice as long as the shortest ones. So the voxels of deeper
            levels become cubes.
TOPOLOGY-2  A convolution has size 1 along an axis until the axis comes within that factor of the shortest; from then on, and always
            at the lowest level, it has 3.
TOPOLOGY-3  No axis is halved below four voxels, and none alone below six. nnU-Net pads; here an odd number is never halved, so that
            every shape is possible.

    320 x 320 x 20 voxels of 0.7 x 0.7 x 5 mm
    level    0          1          2          3          4          5          6
    stride   1 1 1      2 2 1      2 2 1      2 2 2      2 2 2      2 2 1      2 2 1
    kernel   3 3 1      3 3 1      3 3 3      3 3 3      3 3 3      3 3 3      3 3 3
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

Triple = tuple[int, int, int]

SMALLEST = 4
"""The fewest voxels of an axis that has been halved."""
FACTOR = 2.0
"""An axis takes part if its voxels are less than this many times as long as the shortest."""
HALVED: Triple = (2, 2, 2)
CUBE: Triple = (3, 3, 3)


@dataclass(frozen=True, kw_only=True)
class Topology:
    """The levels of a network, from the finest on."""

    strides: tuple[Triple, ...]
    """Level -> by how much it has fewer voxels than the level above along each axis; 1 1 1 for level 0."""
    kernels: tuple[Triple, ...]
    """Level -> the size of its convolutions along each axis, 1 or 3."""

    @property
    def levels(self) -> int:
        return len(self.strides)


def regular(levels: int) -> Topology:
    """The topology for voxels that are cubes: each level halves all axes."""
    return Topology(strides=((1, 1, 1), *[HALVED] * (levels - 1)), kernels=(CUBE,) * levels)


def planned(shape: Sequence[int], spacing: Sequence[float] = (1.0, 1.0, 1.0), *, levels: int | None = None) -> Topology:
    """The topology for volumes of this shape (D, H, W), whose voxels are that long, in any unit.

    levels: at most so many; None: as many as there can be. ValueError if the volume cannot be halved once.
    """
    sizes, lengths = [int(n) for n in shape], [float(mm) for mm in spacing]
    strides: list[Triple] = [(1, 1, 1)]
    kernels: list[Triple] = []
    wide = [False, False, False]
    while levels is None or len(strides) < levels:
        halved = _halved(sizes, lengths)
        if not any(halved):
            break
        wide = _widened(wide, lengths)
        kernels.append(_numbers(wide, 3))
        strides.append(_numbers(halved, 2))
        for axis in range(3):
            sizes[axis] //= strides[-1][axis]
            lengths[axis] *= strides[-1][axis]
    if len(strides) < 2:
        raise ValueError(
            f"found a volume of {'x'.join(map(str, shape))} voxels; expected even numbers, at least {2 * SMALLEST}: the "
            "network halves them"
        )
    return Topology(strides=tuple(strides), kernels=(*kernels, CUBE))


def divisors(topology: Topology) -> Triple:
    """The numbers by which the axes of a volume must be divisible."""
    found = [1, 1, 1]
    for stride in topology.strides:
        found = [a * b for a, b in zip(found, stride, strict=True)]
    return found[0], found[1], found[2]


def features(levels: int, first: int, largest: int) -> tuple[int, ...]:
    """The channels of each level: `first`, then twice as many as above, at most `largest`."""
    return tuple(min(first * 2**level, largest) for level in range(levels))


def _halved(sizes: Sequence[int], lengths: Sequence[float]) -> list[bool]:
    """Whether each axis is halved (TOPOLOGY-1, TOPOLOGY-3)."""
    possible = [size >= 2 * SMALLEST and size % 2 == 0 for size in sizes]
    shortest = min((mm for mm, can in zip(lengths, possible, strict=True) if can), default=0.0)
    halved = [can and mm < FACTOR * shortest for mm, can in zip(lengths, possible, strict=True)]
    if sum(halved) == 1 and sizes[halved.index(True)] < 3 * SMALLEST:
        return [False, False, False]
    return halved


def _widened(wide: Sequence[bool], lengths: Sequence[float]) -> list[bool]:
    """Whether convolutions span each axis (TOPOLOGY-2)."""
    return [before or mm < FACTOR * min(lengths) for before, mm in zip(wide, lengths, strict=True)]


def _numbers(flags: Sequence[bool], number: int) -> Triple:
    first, second, third = (number if flag else 1 for flag in flags)
    return first, second, third
