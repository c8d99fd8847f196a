"""A step graph cut into slabs without TensorFlow: sizes, readers and groups as after slicing, and no arithmetic.

    conv(x)     slab j:  Slice of x[j-1], Slice of x[j+1] -> Concat with x[j] -> Conv3D -> crop (a view)
    norm(x)     slab j:  statistics of x[j];  merge of all of them;  apply to x[j]
    sum(x)      slab j:  a partial sum of x[j], added to those before
    others      slab j of the result from slab j of each input

Slabs are made on demand, depth-first from the ops with effects, partial sums as soon as their inputs exist.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace

from lms3d.engine.ir import RESIDENT_TYPES, Op, StepGraph, Tensor, producer_name

HALO = 1 / 12  # planes of a neighbour beside a slab's own
_CONVOLUTIONS = frozenset({"Conv3D", "Conv3DBackpropInputV2"})
_SUMS = frozenset({"BiasAddGrad", "Conv3DBackpropFilterV2", "Mean", "Sum"})
_NORMS = frozenset({"FusedBatchNormV3", "FusedBatchNormGradV3"})


def sliced(graph: StepGraph, slabs: Callable[[int], int]) -> StepGraph:
    """`graph` with each result of n bytes as `slabs(n)` slabs; 1: it stays whole."""
    usual = sys.getrecursionlimit()
    sys.setrecursionlimit(10**6)
    try:
        return _Slicing(graph, slabs).run()
    finally:
        sys.setrecursionlimit(usual)  # other tests of this process nest brackets until Python refuses them


class _Slicing:
    def __init__(self, graph: StepGraph, slabs: Callable[[int], int]) -> None:
        self.graph = graph
        self.made: dict[str, Op] = {}
        self.slabs_made: dict[str, str] = {}
        self.count = {
            t.name: 1 if op.stateful or (t.bytes or 0) <= 0 else slabs(t.bytes or 0)
            for op in graph.ops
            for t in op.outputs[:1]
        }
        self.cut = dict(self.count)  # a small result of a sliced tensor is joined at once
        for op in graph.ops:
            if op.outputs and not op.stateful and not self._is_sum(op):
                most = max((self.count.get(t, 1) for t in op.inputs), default=1)
                self.cut[op.outputs[0].name] = max(self.cut[op.outputs[0].name], most)
        self.sums = defaultdict(list)
        for op in graph.ops:
            if self._is_sum(op):
                for tensor in dict.fromkeys(self._sliced_inputs(op)):
                    self.sums[tensor].append(op)

    def run(self) -> StepGraph:
        for op in self.graph.ops:
            if op.stateful or op.type in RESIDENT_TYPES or any(t.name in self.graph.returned for t in op.outputs):
                self._whole(op)
        return self.graph.with_ops(tuple(self.made.values()))

    def _sliced_inputs(self, op: Op) -> list[str]:
        return [t for t in op.inputs if self.count.get(t, 1) > 1]

    def _is_sum(self, op: Op) -> bool:
        read = self._sliced_inputs(op)
        sizes = [self.graph.tensors[t].bytes or 0 for t in (*read, *(t.name for t in op.outputs))]
        return bool(read) and (op.type in _NORMS or (op.type in _SUMS and max(sizes[len(read) :]) < sizes[0] / 20))

    def _add(self, op: Op) -> str:
        self.made.setdefault(op.name, op)
        return op.outputs[0].name if op.outputs else op.name

    def _new(self, base: Op, name: str, inputs: list[str], size: int, **options: object) -> str:
        options = {"flops": 0, "workspace_bytes": 0, "hidden_bytes": 0, **options}
        name = f"{base.name}/{name}"
        tensor = Tensor(f"{name}:0", int(size), 5)
        outputs = (tensor, Tensor(f"{name}:1", 256, 1))
        made = replace(base, name=name, inputs=tuple(inputs), control_inputs=(), outputs=outputs, signature="")
        return self._add(replace(made, group=base.name, **options))

    def _whole(self, op: Op) -> None:
        """The op itself, or all its slabs joined, with all that it needs."""
        if op.name in self.made:
            return
        if op.outputs and self.cut[op.outputs[0].name] > 1 and op.type not in RESIDENT_TYPES:
            parts = [self._slab(op.outputs[0].name, j) for j in range(self.cut[op.outputs[0].name])]
            self._add(
                replace(
                    op, type="ConcatV2", inputs=tuple(parts), control_inputs=(), flops=0, signature="", group=op.name
                )
            )
        elif self._is_sum(op):
            (self._merged if op.type in _NORMS else self._sum)(op)
        else:
            for name in (*map(producer_name, op.inputs), *op.control_inputs):
                self._whole(self.graph.by_name[name])
            self._add(op)

    def _slab(self, tensor: str, j: int) -> str:
        """The name of slab j of a tensor; made, with all that it reads, if it is not there."""
        op, count = self.graph.by_name[producer_name(tensor)], self.cut[tensor]
        done = f"{op.name}/slab{j}:0"
        if done in self.slabs_made:
            return self.slabs_made[done]
        size = (self.graph.tensors[tensor].bytes or 0) // count
        if op.type in RESIDENT_TYPES:
            self._whole(op)
            result = self._new(op, f"slab{j}", [tensor], size, type="Slice")
        elif op.type in _NORMS:
            merged = self._merged(op)
            read = [self._slab(t, j) for t in self._sliced_inputs(op)[-1:]]
            again = [f"{op.name}/partial{j}:0"] if op.type == "FusedBatchNormGradV3" else []
            result = self._new(op, f"slab{j}", [*again, *read, merged], size, type="FusedBatchNormV3")
        else:
            read = []
            for t in op.inputs:
                if self.count.get(t, 1) > 1:
                    mapped = range(
                        j * self.count[t] // count,
                        max((j + 1) * self.count[t] // count, j * self.count[t] // count + 1),
                    )
                    halo = op.type in _CONVOLUTIONS
                    parts = [self._haloed(op, t, k) if halo else self._slab(t, k) for k in mapped]
                    read += parts
                else:
                    self._whole(self.graph.by_name[producer_name(t)])
                    read.append(t)
            if op.type in _CONVOLUTIONS:
                raw = self._new(op, f"raw{j}", read, int(size * (1 + 2 * HALO)), flops=op.flops // count)
                result = self._new(op, f"slab{j}", [raw], size, type="Slice", view=True)
            else:
                result = self._new(op, f"slab{j}", read, size)
        self.slabs_made[done] = result
        self._eager(tensor, j)
        return result

    def _haloed(self, op: Op, tensor: str, j: int) -> str:
        size = (self.graph.tensors[tensor].bytes or 0) // self.count[tensor]
        near = [k for k in (j - 1, j + 1) if 0 <= k < self.count[tensor]]
        middle = self._slab(tensor, j)
        slabs = {k: self._slab(tensor, k) for k in near}
        edges = [self._new(op, f"edge{j}.{k}", [slabs[k]], size * HALO, type="Slice") for k in near]
        return self._new(op, f"halo{j}", [edges[0], middle, *edges[1:]], size * (1 + 2 * HALO), type="ConcatV2")

    def _eager(self, tensor: str, j: int) -> None:
        for op in self.sums[tensor]:
            inputs = dict.fromkeys(self._sliced_inputs(op))
            neighbours = range(max(0, j - 1), j + 2) if op.type == "Conv3DBackpropFilterV2" else (j,)
            for k in neighbours:
                if all(self._there(t, k) for t in inputs):
                    self._partial(op, k)

    def _there(self, tensor: str, j: int) -> bool:
        return j >= self.count[tensor] or f"{producer_name(tensor)}/slab{j}:0" in self.slabs_made

    def _partial(self, op: Op, j: int) -> None:
        """The part of a sum, or of statistics, that slab j gives."""
        name = f"partial{j}"
        inputs = list(dict.fromkeys(self._sliced_inputs(op)))
        count = max(self.count[t] for t in inputs)
        if f"{op.name}/{name}" in self.made or j >= count:
            return
        sizes = [self.graph.tensors[op.outputs[0].name].bytes or 0]
        size = sizes[0] // count if op.type in _NORMS else sizes[0]
        read = [self._slab(t, min(j, self.count[t] - 1)) for t in inputs]
        if f"{op.name}/{name}" in self.made:
            return
        if op.type == "Conv3DBackpropFilterV2":
            read = [self._haloed(op, inputs[0], min(j, self.count[inputs[0]] - 1)), *read[1:]]
        self._new(op, name, read, size, flops=op.flops // count)

    def _sum(self, op: Op) -> str:
        count = max(self.count[t] for t in self._sliced_inputs(op))
        for j in range(count):
            self._partial(op, j)
        return self._add(
            replace(
                op,
                type="AddN",
                inputs=tuple(f"{op.name}/partial{j}:0" for j in range(count)),
                flops=0,
                signature="",
                group=op.name,
                control_inputs=(),
            )
        )

    def _merged(self, op: Op) -> str:
        count = max(self.count[t] for t in self._sliced_inputs(op))
        for j in range(count):
            self._partial(op, j)
        small = tuple(replace(t, bytes=256) for t in op.outputs)
        for t in op.inputs:
            if self.count.get(t, 1) == 1:
                self._whole(self.graph.by_name[producer_name(t)])
        merge = replace(
            op,
            type="AddN",
            inputs=tuple(f"{op.name}/partial{j}:1" for j in range(count)),
            outputs=small,
            workspace_bytes=0,
            signature="",
            group=op.name,
            control_inputs=(),
        )
        return self._add(merge)
