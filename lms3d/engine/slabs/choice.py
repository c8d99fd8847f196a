"""How many slabs each level gets. No TensorFlow here.

CHOICE-1  The bytes that the hungriest op needs at once are a lower bound for every plan, unless it reads some of them where they
          lie. A tensor of a level with n slabs counts with 1/n of its bytes, and the planes of its neighbours.
CHOICE-2  While the bound, with room for other bytes of a plan (`tuning.ROOM`), is above the limit, the level of the hungriest op
          gets twice as many slabs, and so do levels that need nearly as much. Slabs are never thinner than `tuning.THINNEST`
          planes.
CHOICE-3  Only the limit, the trace, and whether swapped tensors are read where they lie (`cost.Machine.mapped`) decide, not
          measured speeds: all ranks, and all runs with swap folders of one kind, choose alike. If swapped tensors are read where
          they lie, a whole step is the fastest if it fits. If they are copied back over a link, slabs are faster even under
          somewhat larger limits: they move fewer bytes. And finer slabs leave more room for what is on its way, and to recompute.
CHOICE-4  On a GPU a tensor of more elements than its kernels can index is cut under any limit (`elements`).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from lms3d.engine import tuning
from lms3d.engine.ir import ALIAS_TYPES, METADATA_TYPES, RESIDENT_TYPES
from lms3d.engine.slabs import elements
from lms3d.engine.slabs.levels import AXIS, found_in
from lms3d.engine.slabs.step import size
from lms3d.engine.slabs.values import Node, Shape
from lms3d.errors import InputError

AUTO, OFF = "auto", "off"

Slabs = tuple[tuple[int, int], ...]
"""(level, number of slabs), the finest level first; levels that stay whole are left out. Hashable, for settings."""

Wanted = str | Slabs
"""AUTO, OFF, or numbers."""


def parse(given: object) -> Wanted:
    """AUTO, OFF or numbers from "auto", "off", 16, "16", "16/8/4" or {level: number}.

    One number is that of the finest level; the next level then gets half of it. InputError for anything else.
    """
    if given in (AUTO, OFF):
        return str(given)
    pairs = _pairs(given)
    for level, number in pairs:
        if not isinstance(level, int) or not isinstance(number, int) or level < 0 or number < 0:
            raise InputError(f"slabs {given!r}: a level is 0 (the finest), 1, ..; a number of slabs is at least 1")
    return tuple(sorted((int(level), int(number)) for level, number in pairs if number > 1))


def _pairs(given: object) -> list[tuple[Any, Any]]:
    if isinstance(given, Mapping):
        return list(given.items())
    if isinstance(given, tuple) and all(isinstance(p, tuple | list) and len(p) == 2 for p in given):
        return [(level, number) for level, number in given]
    parts = str(given).split("/")
    if not all(p.isdecimal() for p in parts):
        raise InputError(f"slabs {given!r}: expected auto, off, or slabs per level such as 16 or 16/8")
    numbers = [int(p) for p in parts]
    return list(enumerate([*numbers, numbers[0] // 2] if len(numbers) == 1 else numbers))


def text(slabs: Slabs) -> str:
    """The slabs as `parse` reads them: "16/8", "4/1"; "off" for a whole step."""
    if not slabs:
        return OFF
    numbers = dict(slabs)
    return "/".join(str(numbers.get(level, 1)) for level in range(max(1, *numbers) + 1))


def note(wanted: Wanted, tried: Slabs) -> str:
    """A clause about slabs, for the error of a limit that is too small. tried: the finest slabs that did not fit."""
    if wanted == OFF:
        return '; slabs are off (slabs="off")'
    if wanted != AUTO:
        return f"; the slabs are as given, or as the run began: {text(numbers(wanted))}"
    return f"; slabs were tried, down to {text(tried)}" if tried else ""


def numbers(wanted: object) -> Slabs:
    """The numbers that `text` has written."""
    parsed = parse(wanted)
    return () if isinstance(parsed, str) else parsed


class WorkingSet:
    """The working set of a trace by level. extents: planes of each level, the finest first."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        shapes = found_in(nodes)
        self.extents = sorted({s[AXIS] for s in shapes}, reverse=True)
        self._level = {s: self.extents.index(s[AXIS]) for s in shapes}
        self._level_of: dict[str, int] = {}
        self._needs: dict[tuple[tuple[int, int], ...], int] = {}  # ((level, bytes), ..) of an op -> how many ops
        self._elements: dict[int, int] = {}  # level -> elements of the largest tensor that a kernel counts in 32 bits
        for node in nodes:
            self._add(node)

    def _add(self, node: Node) -> None:
        inherited = [self._level_of[s.name] for s in node.inputs if s.name in self._level_of]
        for spec in node.outputs:
            level = self._of_shape(spec.shape)
            if level is None and node.type in (*ALIAS_TYPES, "Tile") and inherited:
                level = inherited[0]
            if level is not None and node.type not in RESIDENT_TYPES:
                self._level_of[spec.name] = level
        if node.type in ALIAS_TYPES or node.type in METADATA_TYPES or node.type in RESIDENT_TYPES:
            return
        bytes_at: dict[int, int] = {}
        for name, spec in {s.name: s for s in (*node.inputs, *node.outputs)}.items():
            if name in self._level_of:
                level = self._level_of[name]
                bytes_at[level] = bytes_at.get(level, 0) + size(spec)
        if bytes_at:
            key = tuple(sorted(bytes_at.items()))
            self._needs[key] = self._needs.get(key, 0) + 1
        for spec in elements.indexed(node):
            if spec.name in self._level_of:
                level = self._level_of[spec.name]
                self._elements[level] = max(self._elements.get(level, 0), spec.elements)

    def _of_shape(self, shape: Shape | None) -> int | None:
        return next((self._level[shape[:n]] for n in (4, 3) if shape is not None and shape[:n] in self._level), None)

    def bound(self, slabs: Mapping[int, int]) -> int:
        """The lower bound of every plan, in bytes (CHOICE-1)."""
        return max(self._by_level(slabs).values(), default=0)

    def _by_level(self, slabs: Mapping[int, int]) -> dict[int, int]:
        """Level -> bytes of its hungriest op. An op belongs to the level that most of its bytes belong to."""
        most: dict[int, int] = {}
        for need in self._needs:
            parts = [(bytes_ * self._share(level, slabs), level) for level, bytes_ in need]
            level = max(parts)[1]
            most[level] = max(most.get(level, 0), int(sum(b for b, _ in parts)))
        return most

    def most_elements(self, slabs: Mapping[int, int]) -> int:
        """The elements of the largest tensor that a kernel counts in 32 bits (CHOICE-4)."""
        return max((int(n * self._share(level, slabs)) for level, n in self._elements.items()), default=0)

    def _share(self, level: int, slabs: Mapping[int, int]) -> float:
        """The share of a tensor of this level that one slab has, with the planes of its neighbours."""
        number = slabs.get(level, 1)
        return 1.0 if number == 1 else min(1.0, 1 / number + 2 / self.extents[level])

    def rungs(self) -> Iterator[Slabs]:
        """The slabs to try: whole, then finer and finer, as the bound demands (CHOICE-2)."""
        slabs: dict[int, int] = {}
        while True:
            yield tuple(sorted(slabs.items()))
            most = self._by_level(slabs)
            raised = {n: 2 * slabs.get(n, 2) for n, b in most.items() if b >= tuning.RAISED_TOO * max(most.values())}
            if not raised or any(self.extents[level] // number < tuning.THINNEST for level, number in raised.items()):
                return
            slabs |= raised


def finest(nodes: Sequence[Node]) -> Slabs:
    """The numbers that need the least memory; empty for a trace without levels."""
    *_, last = WorkingSet(nodes).rungs()
    return last


def rungs(
    nodes: Sequence[Node], limit_bytes: int, resident_bytes: int, *, mapped: bool, most_elements: int | None = None
) -> Iterator[Slabs]:
    """The slabs to try for a limit, from the first that leave room to the finest (CHOICE-2), and last the whole step.

    most_elements: the largest tensor that kernels can index (CHOICE-4); None if there is no such limit.
    """
    levels = WorkingSet(nodes)
    whole_room, sliced_room = (
        (tuning.WHOLE_ROOM_MAPPED, tuning.ROOM_MAPPED) if mapped else (tuning.WHOLE_ROOM, tuning.ROOM)
    )

    def too_large(slabs: Slabs) -> bool:
        if most_elements is not None and levels.most_elements(dict(slabs)) > most_elements:
            return True
        room = sliced_room if slabs else whole_room
        return resident_bytes + levels.bound(dict(slabs)) * room > limit_bytes

    ladder = list(levels.rungs())
    tried = [*itertools.dropwhile(too_large, ladder[:-1]), ladder[-1]]
    yield from tried
    if () not in tried:  # a step that cannot be sliced well may still fit as a whole
        yield ()
