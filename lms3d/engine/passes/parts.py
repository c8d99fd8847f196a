"""Parts of a tensor along its first axis are written as slices, since TensorFlow does not copy them.

Split, SplitV, Unpack and a strided slice hand out pieces of their input's own memory if its rows are aligned (`split_op.cc`,
`unpack_op.cc`, `strided_slice_op.cc`). The input stays in memory until its last part is gone. Of a Slice the model of memory knows
that (`capture`), and a Slice has one result, which a plan can make again of a copy of the input:

    q, k, v = unstack(qkv)   ->   q = reshape(slice(qkv, 0, 1)), k = reshape(slice(qkv, 1, 1)), v = reshape(slice(qkv, 2, 1))

PART-1  The input is large (`pool_layout.CRUMB_BYTES`), its shape known, and its rows are multiples of 64 bytes. Else TensorFlow
        copies parts, or it does not matter.
PART-2  A strided slice has steps of 1, and is whole along all other axes.
PART-3  Results are unchanged, bit by bit. Parts in loops are left alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from lms3d.device.pool_layout import CRUMB_BYTES
from lms3d.engine.passes.base import Function, Normalising
from lms3d.engine.tensorflow import reading, surgery
from lms3d.engine.tensorflow.bodies import size
from lms3d.engine.tensorflow.capture import SLICE_ALIGNMENT


class _Part(NamedTuple):
    """Rows of a tensor, along its first axis, and the output that they are."""

    output: tf.Tensor
    begin: int
    rows: int


class SliceParts(Normalising):
    """Requires a step without a plan. Ensures that nobody reads a part that TensorFlow does not copy, other than a Slice."""

    name = "parts"

    def edit(self, graph: tf.Graph) -> int:
        return sum(_slice(op) for op in list(_found(graph)))

    def ensures(self, function: Function) -> None:
        for op in _found(function.graph):
            raise RuntimeError(
                f"pass {self.name}: a part that {op.name!r} makes is still read, which a slice could be; please report this graph"
            )


def _found(graph: tf.Graph) -> Iterator[tf.Operation]:
    returned = {t.name for t in graph.outputs}
    for op in graph.get_operations():
        if op.type in _PARTS and not reading.in_loop(op):
            read = any(t.consumers() or t.name in returned for t in op.outputs)
            if read and _shares_rows(_whole(op)) and all(t.shape.is_fully_defined() for t in op.outputs) and _parts(op):
                yield op


def _whole(op: tf.Operation) -> tf.Tensor:
    """The tensor that an op takes parts of."""
    return op.inputs[1 if op.type == "Split" else 0]


def _shares_rows(whole: tf.Tensor) -> bool:
    """PART-1."""
    size_bytes = size(whole)
    if not size_bytes or size_bytes <= CRUMB_BYTES or not whole.shape.rank:
        return False
    return (size_bytes // whole.shape[0]) % SLICE_ALIGNMENT == 0


def _parts(op: tf.Operation) -> list[_Part]:
    return _PARTS[op.type](op)


def _split(op: tf.Operation) -> list[_Part]:
    axis, whole = tf.get_static_value(op.inputs[0 if op.type == "Split" else 2]), _whole(op)
    if axis is None or axis % whole.shape.rank:
        return []
    rows = [t.shape[0] for t in op.outputs]
    return [_Part(t, sum(rows[:i]), n) for i, (t, n) in enumerate(zip(op.outputs, rows, strict=True))]


def _unpack(op: tf.Operation) -> list[_Part]:
    if op.get_attr("axis") % op.inputs[0].shape.rank:
        return []
    return [_Part(t, i, 1) for i, t in enumerate(op.outputs)]


def _strided(op: tf.Operation) -> list[_Part]:
    """PART-2. A mask has one bit for each axis that the slice names, the first axis in the lowest."""
    whole, *limits = op.inputs
    begin, end, steps = (tf.get_static_value(t) for t in limits)
    masks = {kind: op.get_attr(f"{kind}_mask") for kind in ("begin", "end", "ellipsis", "new_axis", "shrink_axis")}
    if begin is None or end is None or steps is None or not len(steps) or masks["ellipsis"] or masks["new_axis"]:
        return []
    if (steps != 1).any() or masks["shrink_axis"] > 1:
        return []
    bounds = []
    for i, length in enumerate(whole.shape[: len(steps)]):
        from_start = masks["begin"] >> i & 1 and not masks["shrink_axis"] >> i & 1  # a single index has no mask
        first = 0 if from_start else int(np.clip(begin[i] + length * (begin[i] < 0), 0, length))
        last = length if masks["end"] >> i & 1 else int(np.clip(end[i] + length * (end[i] < 0), 0, length))
        bounds.append((first, last))
    if any((first, last) != (0, n) for (first, last), n in zip(bounds[1:], whole.shape[1 : len(bounds)], strict=True)):
        return []
    first, last = bounds[0]
    rows = 1 if masks["shrink_axis"] else last - first
    return [_Part(op.outputs[0], first, rows)] if 0 < rows < whole.shape[0] else []


_PARTS = {"Split": _split, "SplitV": _split, "Unpack": _unpack, "StridedSlice": _strided}


def _slice(op: tf.Operation) -> int:
    """Makes the slices and lets all readers read them; returns how many inputs changed."""
    whole, graph, count = _whole(op), op.graph, 0
    returned, stands_for = {t.name for t in graph.outputs}, {}
    for part in _parts(op):
        rest = whole.shape[1:].as_list()
        with surgery.insertion(graph, op.device or None, op.control_inputs):
            rows = tf.slice(whole, [part.begin, *[0] * len(rest)], [part.rows, *rest], name=f"{op.name}/rows")
            made = rows if rows.shape == part.output.shape else tf.reshape(rows, part.output.shape)
        count += surgery.redirect(part.output, made)
        if part.output.name in returned:
            stands_for[part.output.name] = made
    if stands_for:
        surgery.replace_outputs(graph, stands_for)
    surgery.wait_instead(op, made.op)
    return max(1, count)
