"""A traced step -> the same step on slabs. No TensorFlow here.

SLAB-1  A tensor is sliced where its level is, and stays sliced through every op that has a rule (`rules.RULES`).
SLAB-2  A tensor that is made of slabs, and belongs to a level that stays whole, is joined right after it is made, slab by slab.
SLAB-3  An op without a rule, or one whose rule does not hold, reads joined tensors; the report names it.
SLAB-4  The tensors that the step returns are joined.
SLAB-5  Results equal the whole step's to rounding: only the order of sums over slabs differs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from lms3d.engine.slabs.levels import Levels
from lms3d.engine.slabs.rules import RULES
from lms3d.engine.slabs.sliced_step import Builder, Key, SlicedStep
from lms3d.engine.slabs.values import Node, Ref, Sliced, Spec, Value, Whole

_BYTES = {"float64": 8, "int64": 8, "uint64": 8, "complex64": 8, "complex128": 16, "float16": 2, "bfloat16": 2, "int16": 2,
          "uint16": 2, "int8": 1, "uint8": 1, "bool": 1}  # fmt: skip
_LARGE_BYTES, _LARGE_RANK = 1 << 20, 3
_START: Key = (0, 0.0, 0)


def slice_step(nodes: Sequence[Node], returned: Iterable[str], slabs: Mapping[int, int]) -> SlicedStep:
    """The sliced step; its `made` is empty if nothing is sliced.

    nodes: in topological order, dead ones left out. returned: names of tensors. slabs: level -> number of slabs.
    """
    return _Pass(nodes, frozenset(returned), slabs).run()


class _Pass:
    def __init__(self, nodes: Sequence[Node], returned: frozenset[str], slabs: Mapping[int, int]) -> None:
        self.nodes, self.returned = nodes, returned
        self.build = Builder(Levels.of(nodes, slabs))
        self.values: dict[str, Value] = {}
        self.kept_key = self.build.step.kept
        self.last_key: dict[str, Key] = {}  # of the ops that stand for a node

    def run(self) -> SlicedStep:
        for index, node in enumerate(self.nodes):
            self.build.begin(node, index)
            values = [self.values[s.name] for s in node.inputs]
            before = len(self.build.step.made)
            made = self._by_rule(node, values)
            self.last_key[node.name] = max((one.key for one in self.build.step.made[before:]), default=_START)
            if made is None:
                self._keep(node, values, index)
            else:
                self._replace(node, made)
        for name in sorted(self.returned):  # SLAB-4
            value = self.values[name]
            if isinstance(value, Sliced) or not value.ref.trace:
                self.build.step.returned[name] = self.build.whole(value)
        self.build.step.make_late()
        return self.build.step

    def _by_rule(self, node: Node, values: Sequence[Value]) -> Sequence[Value] | None:
        if not node.sliceable or node.type not in RULES:
            return None
        return RULES[node.type](self.build, node, values)

    def _replace(self, node: Node, made: Sequence[Value]) -> None:
        for spec, value in zip(node.outputs, made, strict=True):
            if isinstance(value, Sliced) and self.build.levels.stays_whole(spec.shape):  # SLAB-2
                value = Whole(self.build.whole(value), spec)
            self.values[spec.name] = value
            if isinstance(value, Sliced):
                self.build.rise(max(p.phase for p in value.pieces))
                self.build.step.sliced[spec.name] = len(value.pieces)

    def _keep(self, node: Node, values: Sequence[Value], index: int) -> None:
        """Keeps an op, which reads joined tensors (SLAB-3)."""
        reads: list[Ref] = []
        for i, (spec, value) in enumerate(zip(node.inputs, values, strict=True)):
            ref = self.build.whole(value)
            if ref.trace != spec.name:
                self.build.step.redirected[node.name, i] = ref
            if isinstance(value, Sliced):
                self.build.step.joined.append((node.name, node.type, size(spec)))
            reads.append(ref)
        waits = [self.last_key[name] for name in node.control_inputs if name in self.last_key]
        phase, place = max(self.build.when(reads), max(waits, default=_START)[:2])
        self.kept_key[node.name] = self.last_key[node.name] = (phase, place, index)
        if any(size(s) >= _LARGE_BYTES and len(s.shape or ()) >= _LARGE_RANK for s in node.outputs):
            self.build.rise(phase)
        for spec in node.outputs:
            ref = Ref(spec.shape or (), spec.dtype, phase, place, trace=spec.name)
            self.values[spec.name] = Whole(ref, spec)


def size(spec: Spec) -> int:
    """The bytes of a tensor."""
    return spec.elements * _BYTES.get(spec.dtype, 4)
