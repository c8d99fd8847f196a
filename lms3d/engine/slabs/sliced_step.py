"""The sliced step, op by op, and the order in which it is meant to run. No TensorFlow here.

ORDER-1  A *phase* ends with a tensor that is summed over all slabs (a statistic, a loss) or joined: its readers belong to a later
         phase. No op belongs to an earlier phase than the large ops that were traced before it.
ORDER-2  Within a phase the *place* of an op is that of the last slab that it reads, as a share of the volume; ops of one place run
         in the order of the trace. So one slab goes through all ops of a phase before the next slab follows.
ORDER-3  Ops that only fill, cut, pad or join run just before they are first read.
ORDER-4  Sums over slabs grow slab by slab, so that no partial sum waits for the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from lms3d.engine.slabs.levels import Levels
from lms3d.engine.slabs.planes import Range
from lms3d.engine.slabs.values import Node, Ref, Shape, SlabLayout, Sliced, Value, Whole

Input = Ref | np.ndarray | np.generic | tuple["Input", ...]
"""A tensor, a constant, or a list of tensors for an input that takes one."""

Output = tuple[Shape | None, str]
"""Shape and type."""


Key = tuple[int, float, int]
"""Phase, place, position in the trace."""


@dataclass(frozen=True, kw_only=True)
class Made:
    """An op to make. attributes: as TensorFlow's raw op of that type takes them. node: the op of the trace that it belongs to."""

    type: str
    inputs: tuple[Input, ...]
    outputs: tuple[Output, ...]
    attributes: Mapping[str, Any]
    node: Node
    key: Key


@dataclass
class SlicedStep:
    """The parts of a sliced step.

    made: new ops. kept: name of an op of the trace that stays -> its place in the order. redirected: (op of the trace, index of its
    input) -> the tensor that it reads now. returned: tensor of the trace -> the tensor that stands for it. joined: (name, type,
    bytes) of the reader and the tensor that was joined for it. sliced: tensor of the trace -> number of slabs.
    """

    made: list[Made] = field(default_factory=list)
    kept: dict[str, Key] = field(default_factory=dict)
    redirected: dict[tuple[str, int], Ref] = field(default_factory=dict)
    returned: dict[str, Ref] = field(default_factory=dict)
    joined: list[tuple[str, str, int]] = field(default_factory=list)
    sliced: dict[str, int] = field(default_factory=dict)

    def make_late(self) -> None:
        """Moves ops that only fill, cut, pad or join to just before their first reader (ORDER-3)."""
        first: dict[int, Key] = {}

        def read(ref: Ref, key: Key) -> None:
            if not ref.trace:
                first[ref.op] = min(first.get(ref.op, key), key)

        for (name, _), ref in self.redirected.items():
            read(ref, self.kept[name])
        for number in reversed(range(len(self.made))):
            one = self.made[number]
            if one.type in _LATE and number in first:
                one = self.made[number] = replace(one, key=max(one.key, first[number]))
            for ref in refs_in(one.inputs):
                read(ref, one.key)


_LATE = frozenset({
    "BroadcastTo", "Cast", "ConcatV2", "Const", "Fill", "Pad", "PadV2", "Reshape", "ReverseV2", "Slice", "StatelessRandomUniformV2",
    "Tile", "Transpose",
})  # fmt: skip


class Builder:
    """Makes the ops of one node after the other. Rules call it."""

    def __init__(self, levels: Levels) -> None:
        self.levels, self.step = levels, SlicedStep()
        self.phase = 0  # ORDER-1: the phase of the large ops so far
        self._parts: dict[tuple[int, int, int, int], Ref] = {}
        self._values: list[Value] = []  # the values that `_parts` names by id must live on
        self.node: Node
        self._index = 0

    def begin(self, node: Node, index: int) -> None:
        """Go on to the next node of the trace."""
        self.node, self._index = node, index

    # -- ops -----------------------------------------------------------------------------------------------------------

    def make(
        self,
        kind: str,
        inputs: Sequence[Input],
        outputs: Sequence[Output],
        attributes: Mapping[str, Any] | None = None,
        *,
        place: float = 0.0,
        barrier: bool = False,
    ) -> tuple[Ref, ...]:
        """The outputs of a new op. place: the earliest that it may have."""
        phase, place = self.when(refs_in(inputs), place)
        self.step.made.append(
            Made(
                type=kind, inputs=tuple(inputs), outputs=tuple(outputs), attributes=attributes or {}, node=self.node,
                key=(phase, place, self._index),
            )
        )  # fmt: skip
        number = len(self.step.made) - 1
        return tuple(
            Ref(shape or (), dtype, phase, place, op=number, index=i, barrier=barrier)
            for i, (shape, dtype) in enumerate(outputs)
        )

    def one(self, kind: str, inputs: Sequence[Input], shape: Shape, dtype: str, **rest: Any) -> Ref:
        """The output of a new op that has one."""
        return self.make(kind, inputs, [(tuple(int(n) for n in shape), dtype)], **rest)[0]

    def repeat(self, inputs: Sequence[Input], shape: Shape, *, place: float = 0.0, **changed: Any) -> Ref:
        """A new op like the present node, with other inputs and one output of this shape. changed: attributes."""
        attributes = {**self.node.attributes, **changed}
        return self.one(self.node.type, inputs, shape, self.node.outputs[0].dtype, attributes=attributes, place=place)

    def when(self, refs: Sequence[Ref], place: float = 0.0) -> tuple[int, float]:
        """The phase and place of an op that reads these tensors (ORDER-1, ORDER-2)."""
        phase = max([self.phase, *(r.phase + r.barrier for r in refs)])
        return phase, max([place, *(r.place for r in refs if r.phase == phase and not r.barrier)])

    def rise(self, phase: int) -> None:
        """Let later nodes belong to this phase at least (ORDER-1)."""
        self.phase = max(self.phase, phase)

    # -- parts of values -----------------------------------------------------------------------------------------------

    def whole(self, value: Value) -> Ref:
        """The value in one piece; its slabs are joined."""
        if isinstance(value, Whole):
            return value.ref
        return self.part(value, Range(0, value.layout.extent), barrier=True)

    def part(self, value: Value, planes: Range, layout: SlabLayout | None = None, *, barrier: bool = False) -> Ref:
        """These planes of a value. layout: how to cut a value that is whole."""
        layout = value.layout if isinstance(value, Sliced) else layout
        assert layout is not None, "a whole value does not know how it is cut"
        key = (id(value), layout.axis, planes.start, planes.stop)
        found = self._parts.get(key)
        if found is not None and self.when([found])[0] == found.phase + barrier and found.barrier == barrier:
            return found
        made = (
            self._part_of_slabs(value, planes)
            if isinstance(value, Sliced)
            else self._cut(value.ref, layout, planes, layout.extent)
        )
        if barrier:
            made = replace(made, barrier=True)
        self._parts[key] = made
        self._values.append(value)
        return made

    def _part_of_slabs(self, value: Sliced, planes: Range) -> Ref:
        layout, refs = value.layout, []
        for piece, there in zip(value.pieces, layout.ranges, strict=True):
            common = Range(max(there.start, planes.start), min(there.stop, planes.stop))
            if common.planes > 0:
                inside = Range(common.start - there.start, common.stop - there.start)
                refs.append(self._cut(piece, layout, inside, there.planes))
        return refs[0] if len(refs) == 1 else self.concat(refs, layout)

    def _cut(self, ref: Ref, layout: SlabLayout, planes: Range, extent: int) -> Ref:
        if planes == (0, extent):
            return ref
        if layout.groups == 1:
            return self.slice(ref, layout.axis, planes)
        opened = (*ref.shape[: layout.axis], layout.groups, extent, *ref.shape[layout.axis + 1 :])
        cut = self.slice(self.reshape(ref, opened), layout.axis + 1, planes)
        return self.reshape(cut, layout.shape(ref.shape, planes))

    def concat(self, refs: Sequence[Ref], layout: SlabLayout) -> Ref:
        """Slabs joined side by side."""
        axis, groups = layout.axis, layout.groups
        planes = [r.shape[axis] // groups for r in refs]
        shape = layout.shape(refs[0].shape, Range(0, sum(planes)))
        if groups == 1:
            return self.one("ConcatV2", [tuple(refs), np.int32(axis)], shape, refs[0].dtype)
        opened = [
            self.reshape(r, (*r.shape[:axis], groups, n, *r.shape[axis + 1 :]))
            for r, n in zip(refs, planes, strict=True)
        ]
        inner = (*opened[0].shape[: axis + 1], sum(planes), *opened[0].shape[axis + 2 :])
        return self.reshape(self.one("ConcatV2", [tuple(opened), np.int32(axis + 1)], inner, refs[0].dtype), shape)

    def slice(self, ref: Ref, axis: int, planes: Range) -> Ref:
        """A part along one axis. If all axes before it have length 1, as in a batch of one, no byte is copied: TensorFlow slices
        the first axis in place."""
        shape = (*ref.shape[:axis], planes.planes, *ref.shape[axis + 1 :])
        if axis and all(n == 1 for n in ref.shape[:axis]):
            flat = self.reshape(ref, ref.shape[axis:])
            return self.reshape(self.slice(flat, 0, planes), shape)
        begin = np.zeros(len(shape), np.int32)
        begin[axis] = planes.start
        return self.one("Slice", [ref, begin, np.array(shape, np.int32)], shape, ref.dtype)

    def reshape(self, ref: Ref, shape: Shape) -> Ref:
        if tuple(shape) == ref.shape:
            return ref
        return self.one("Reshape", [ref, np.array(shape, np.int32)], shape, ref.dtype)

    # -- sums over slabs -----------------------------------------------------------------------------------------------

    def grow(self, total: Ref | None, part: Ref, kind: str = "AddV2") -> Ref:
        """The sum so far plus one part (ORDER-4). Half precision is summed in float32, as kernels do inside."""
        if part.dtype in _HALF:
            part = self.one("Cast", [part], part.shape, "float32", attributes={"DstT": "float32"})
        return part if total is None else self.one(kind, [total, part], part.shape, part.dtype)

    def done(self, total: Ref, dtype: str) -> Ref:
        """A sum over all slabs, in its own type. Its readers wait for the last slab."""
        if total.dtype != dtype:
            total = self.one("Cast", [total], total.shape, dtype, attributes={"DstT": dtype})
        return replace(total, barrier=True)

    def constant(self, value: np.ndarray | np.generic, dtype: str) -> Ref:
        """A small tensor of fixed numbers."""
        array = np.asarray(value)
        return self.one("Const", [array], array.shape, dtype)


_HALF = frozenset({"float16", "bfloat16"})


def refs_in(inputs: Sequence[Input]) -> list[Ref]:
    """The tensors among the inputs of an op."""
    found: list[Ref] = []
    for one in inputs:
        if isinstance(one, Ref):
            found.append(one)
        elif isinstance(one, tuple):
            found += refs_in(one)
    return found
