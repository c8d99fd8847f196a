"""Which planes of its inputs a slab needs: integers only. No TensorFlow here.

Planes are counted along the sliced axis. A range (start, stop) is half open. A window op (convolution, pooling) with kernel k,
stride s, dilation d and p planes of padding in front reads, for its plane j, the planes j s - p + i d, i = 0 .. k - 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import NamedTuple


class Range(NamedTuple):
    """The planes start .. stop - 1."""

    start: int
    stop: int

    @property
    def planes(self) -> int:
        return self.stop - self.start

    def within(self, extent: int) -> Range:
        """The planes of this range that lie in a tensor of `extent` planes."""
        return Range(min(max(self.start, 0), extent), max(min(self.stop, extent), 0))


def even_bounds(extent: int, number: int, multiple: int = 1) -> tuple[int, ...]:
    """The bounds of `number` slabs as equal as can be, each start a multiple of `multiple`: (0, .., extent).

    There are fewer slabs if there are not so many multiples. Equal slabs leave holes of equal size in a memory pool.
    """
    units = -(-extent // multiple)
    number = max(1, min(number, units))
    return (*(i * units // number * multiple for i in range(number)), extent)


@dataclass(frozen=True)
class Window:
    """A window op along one axis. extent: planes of its input; padding: "SAME", "VALID", or (before, after)."""

    extent: int
    kernel: int
    stride: int = 1
    dilation: int = 1
    padding: str | tuple[int, int] = "SAME"

    @property
    def reach(self) -> int:
        """The number of planes from the first to the last one that a window reads."""
        return (self.kernel - 1) * self.dilation + 1

    @property
    def pads(self) -> tuple[int, int]:
        """Planes of padding (before, after). TensorFlow's SAME puts the odd one after."""
        if isinstance(self.padding, tuple):
            return self.padding
        if self.padding == "VALID":
            return 0, 0
        missing = max((-(-self.extent // self.stride) - 1) * self.stride + self.reach - self.extent, 0)
        return missing // 2, missing - missing // 2

    @property
    def outputs(self) -> int:
        """The number of planes of the output."""
        return (self.extent + sum(self.pads) - self.reach) // self.stride + 1

    def reads(self, out: Range) -> Range:
        """The planes that the outputs `out` read, padding included: they may begin below 0 and end above `extent`."""
        first = out.start * self.stride - self.pads[0]
        return Range(first, (out.stop - 1) * self.stride - self.pads[0] + self.reach)

    def read_by(self, planes: Range) -> Range:
        """The outputs that read any of these input planes. A gradient of the planes is summed over them."""
        first = -(-(planes.start + self.pads[0] - self.reach + 1) // self.stride)
        last = (planes.stop - 1 + self.pads[0]) // self.stride
        return Range(first, last + 1).within(self.outputs)

    @cache  # noqa: B019 -- a frozen value; slabs of all ops of a level ask the same
    def part(self, planes: Range, *, whole_windows: bool = False) -> WindowPart | None:
        """The smallest window op of the same kernel that gives the gradient of `planes`; None if there is none.

        TensorFlow computes its padding from its own extent, so only some extents line up with the whole op.
        whole_windows: each window that reads one of `planes` must lie in the part, or be cut by the end of the whole tensor.
        Averages, which count the planes of a window, and maxima, which compare them, require this.
        """
        needed = self.read_by(planes)
        best: WindowPart | None = None
        slack = self.reach + self.stride
        for start in range(max(needed.start - slack, 0), needed.start + 1):
            for stop in range(needed.stop, min(needed.stop + slack, self.outputs) + 1):
                least = (stop - start - 1) * self.stride + 1
                for extent in range(least, least + self.reach + self.stride):
                    found = self._aligned(Range(start, stop), extent)
                    if found is None or not found.covers(planes) or (best and best.size <= found.size):
                        continue
                    if not whole_windows or self._whole(found, needed):
                        best = found
        return best

    def _aligned(self, out: Range, extent: int) -> WindowPart | None:
        inner = Window(extent, self.kernel, self.stride, self.dilation, self.padding)
        if inner.outputs != out.planes:
            return None
        origin = out.start * self.stride - self.pads[0] + inner.pads[0]
        return WindowPart(origin, extent, out)

    def _whole(self, part: WindowPart, needed: Range) -> bool:
        domain = Range(part.origin, part.origin + part.extent)
        if domain.start < 0 or domain.stop > self.extent:
            return False
        for j in range(needed.start, needed.stop):
            window = self.reads(Range(j, j + 1)).within(self.extent)
            if window.start < domain.start or window.stop > domain.stop:
                return False
        return True


@dataclass(frozen=True)
class WindowPart:
    """A smaller window op inside a whole one, with the outputs `out`.

    Its input planes are `origin` .. `origin + extent - 1`; some may lie outside of the whole tensor.
    """

    origin: int
    extent: int
    out: Range

    def covers(self, planes: Range) -> bool:
        return self.origin <= planes.start and planes.stop <= self.origin + self.extent

    @property
    def size(self) -> tuple[int, int]:
        return self.extent, self.out.planes
