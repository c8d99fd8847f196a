"""Parts of a tensor: ranges with steps, and their gradients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lms3d.engine.slabs.planes import Range
from lms3d.engine.slabs.rules.registry import places, rule, sliced
from lms3d.engine.slabs.rules.windows import zeros
from lms3d.engine.slabs.sliced_step import Builder
from lms3d.engine.slabs.values import Node, Shape, SlabLayout, Sliced, Value


@rule("Slice")
def cut(build: Builder, node: Node, values: Sequence[Value]) -> Sequence[Value] | None:
    begin = node.constants[1]
    return (
        None
        if begin is None
        else _cut(build, node, values[0], [int(b) for b in begin], [1] * len(begin), node.outputs[0].shape)
    )


@dataclass(frozen=True)
class _Box:
    """The elements first, first + step, .. along each axis, `shape` of them. dropped: axes of one element that the result lacks."""

    first: list[int]
    step: list[int]
    shape: Shape
    dropped: tuple[int, ...] = ()


def _box(node: Node, shape: Shape) -> _Box | None:
    """The part that a StridedSlice, or its gradient, takes; None for new axes, negative steps and unknown numbers."""
    begin, end, steps = node.constants[1:4]
    marks = {
        name: int(node.attributes[f"{name}_mask"]) for name in ("begin", "end", "ellipsis", "new_axis", "shrink_axis")
    }
    if begin is None or end is None or steps is None or marks["new_axis"]:
        return None
    first, step, lengths, single = [0] * len(shape), [1] * len(shape), list(shape), []
    at = 0
    for i in range(len(begin)):
        if marks["ellipsis"] >> i & 1:
            at += len(shape) - len(begin) + 1
            continue
        if marks["shrink_axis"] >> i & 1:
            first[at], lengths[at] = int(begin[i]) % shape[at], 1
            single.append(at)
        else:
            start = None if marks["begin"] >> i & 1 else int(begin[i])
            stop = None if marks["end"] >> i & 1 else int(end[i])
            planes = range(shape[at])[slice(start, stop, int(steps[i]))]
            if planes.step < 0:
                return None
            first[at], step[at], lengths[at] = planes.start, planes.step, len(planes)
        at += 1
    return _Box(first, step, tuple(lengths), tuple(single))


@rule("StridedSlice")
def strided_slice(build: Builder, node: Node, values: Sequence[Value]) -> Sequence[Value] | None:
    """Takes ranges, with steps along other axes than the sliced one, or one index along such an axis."""
    value = values[0]
    if not isinstance(value, Sliced) or value.spec.shape is None:
        return None
    box = _box(node, value.spec.shape)
    if box is None or value.layout.axis in box.dropped:
        return None
    return _cut(build, node, value, box.first, box.step, box.shape, box.dropped)


def _around(dy: Value, box: _Box, shape: Shape) -> SlabLayout | None:
    """The bounds of a part's slabs in the whole tensor: the first and the last slab get the planes outside of the part."""
    if not isinstance(dy, Sliced) or dy.layout.groups > 1:
        return None
    axis = [a for a in range(len(shape)) if a not in box.dropped][dy.layout.axis]
    return SlabLayout(axis, (0, *(b + box.first[axis] for b in dy.layout.bounds[1:-1]), shape[axis]))


@rule("StridedSliceGrad")
def gradient(build: Builder, node: Node, values: Sequence[Value]) -> Sequence[Value] | None:
    """Shape, begin, end, steps, dy -> dy in its place among zeros."""
    dy, shape = values[4], node.outputs[0].shape
    box = _box(node, shape) if shape is not None and node.constants else None
    if shape is None or box is None:
        return None
    layout = build.levels.layout(shape) or _around(dy, box, shape)
    if layout is None or layout.axis in box.dropped or box.step[layout.axis] != 1:
        return None
    inner = layout.axis - sum(d < layout.axis for d in box.dropped)
    if isinstance(dy, Sliced) and (dy.layout.axis != inner or dy.layout.groups > 1):
        return None
    kept = {f"{name}_mask": 0 for name in ("begin", "end", "ellipsis", "new_axis", "shrink_axis")}
    pieces = []
    for planes, place in places(layout):
        start, wanted = box.first[layout.axis], layout.shape(shape, planes)
        common = Range(max(planes.start - start, 0), min(planes.stop - start, box.shape[layout.axis]))
        if common.planes <= 0:
            pieces.append(zeros(build, wanted, node.outputs[0].dtype, place))
            continue
        part = build.part(dy, common, SlabLayout(inner, (0, box.shape[layout.axis])))
        part = build.reshape(part, (*box.shape[: layout.axis], common.planes, *box.shape[layout.axis + 1 :]))
        begin = [common.start + start - planes.start if a == layout.axis else f for a, f in enumerate(box.first)]
        end = [b + (n - 1) * s + 1 for b, n, s in zip(begin, part.shape, box.step, strict=True)]
        inputs = [np.array(a, np.int32) for a in (wanted, begin, end, box.step)]
        pieces.append(build.one("StridedSliceGrad", [*inputs, part], wanted, part.dtype, attributes=kept, place=place))
    return [sliced(node.outputs[0], layout, pieces)]


def _cut(
    build: Builder,
    node: Node,
    value: Value,
    first: list[int],
    step: list[int],
    shape: Shape | None,
    dropped: Sequence[int] = (),
) -> Sequence[Value] | None:
    """The elements first, first + step, .. along each axis; without the axes `dropped`, of which one element is left."""
    if not isinstance(value, Sliced) or shape is None or value.layout.groups > 1 or step[value.layout.axis] != 1:
        return None
    axis, start = value.layout.axis, first[value.layout.axis]
    if shape[axis] == 0:
        return None
    layout = build.levels.layout(shape) or _moved(value.layout, start, shape[axis])
    if layout.axis != axis:
        return None
    out = SlabLayout(axis - sum(d < axis for d in dropped), layout.bounds)
    pieces = []
    for planes, _ in places(layout):
        part = build.part(value, Range(planes.start + start, planes.stop + start))
        begin, wanted = [0 if i == axis else f for i, f in enumerate(first)], layout.shape(shape, planes)
        if wanted != part.shape:
            if all(s == 1 for s in step):
                part = build.one(
                    "Slice", [part, np.array(begin, np.int32), np.array(wanted, np.int32)], wanted, part.dtype
                )
            else:
                end = [b + (n - 1) * s + 1 for b, n, s in zip(begin, wanted, step, strict=True)]
                part = build.one(
                    "StridedSlice", [part, *(np.array(a, np.int32) for a in (begin, end, step))], wanted, part.dtype
                )
        pieces.append(build.reshape(part, out.shape(node.outputs[0].shape or (), planes)))
    return [sliced(node.outputs[0], out, pieces)]


def _moved(layout: SlabLayout, start: int, length: int) -> SlabLayout:
    """The bounds of the same slabs in a part of their planes."""
    bounds = sorted({min(max(b - start, 0), length) for b in layout.bounds})
    return SlabLayout(layout.axis, tuple(bounds), layout.groups)
