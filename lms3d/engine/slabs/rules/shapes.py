"""Ops that rename the axes of a tensor, or ask for its shape."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from lms3d.engine.slabs.planes import Range
from lms3d.engine.slabs.rules.registry import is_sliced, places, rule, shape_of, sliced
from lms3d.engine.slabs.sliced_step import Builder
from lms3d.engine.slabs.values import Node, Shape, SlabLayout, Sliced, Value, Whole


@rule("Reshape", "ExpandDims", "Squeeze")
def reshape(build: Builder, node: Node, values: Sequence[Value]) -> Sequence[Value] | None:
    """Slabs stay slabs if their bounds fall between elements of one axis of the new shape. Otherwise the bounds are moved there, if
    each element of that axis has whole planes."""
    value, shape = values[0], node.outputs[0].shape
    if not isinstance(value, Sliced) or shape is None or value.spec.shape is None:
        return None
    old, inner = value.spec.shape, math.prod(value.spec.shape[value.layout.axis + 1 :])
    out = reshaped(value.layout, old, shape) or reshaped(value.layout, old, shape, exactly=False)
    if out is None:
        return None
    elements = math.prod(shape[out.axis + 1 :])
    reads = [Range(r.start * elements // inner, r.stop * elements // inner) for r in out.ranges]
    pieces = [
        build.reshape(build.part(value, read), out.shape(shape, planes))
        for read, planes in zip(reads, out.ranges, strict=True)
    ]
    return [sliced(node.outputs[0], out, pieces)]


def reshaped(layout: SlabLayout, old: Shape, new: Shape, *, exactly: bool = True) -> SlabLayout | None:
    """The layout after a reshape; None if no axis of the new shape has the slabs as its ranges. Elements keep their places:
    `outer` times the slab's planes of `inner` elements.

    exactly: the bounds stay the same; otherwise they are rounded down to the elements of the new axis, of one plane or more.
    """
    outer, inner = math.prod(old[: layout.axis]) * layout.groups, math.prod(old[layout.axis + 1 :])
    found = None
    for axis, length in enumerate(new):
        before, after = math.prod(new[:axis]), math.prod(new[axis + 1 :])
        if before == 0 or after == 0 or outer % before or length % (outer // before):
            continue
        groups = outer // before
        bounds = [b * inner for b in layout.bounds]
        if bounds[-1] != length // groups * after:
            continue
        if any(b % after for b in bounds) and (exactly or after % inner or length == groups):
            continue
        if found is None or groups < found.groups:
            found = SlabLayout(axis, tuple(sorted({b // after for b in bounds})), groups)
    return found


@rule("Transpose")
def transpose(build: Builder, node: Node, values: Sequence[Value]) -> Sequence[Value] | None:
    value, order = values[0], node.constants[1]
    if not isinstance(value, Sliced) or order is None or value.layout.groups > 1 or node.outputs[0].shape is None:
        return None
    out = SlabLayout([int(a) for a in order].index(value.layout.axis), value.layout.bounds)
    pieces = [
        build.repeat([piece, build.whole(values[1])], out.shape(node.outputs[0].shape, planes), place=place)
        for piece, (planes, place) in zip(value.pieces, places(out), strict=True)
    ]
    return [sliced(node.outputs[0], out, pieces)]


@rule("Shape", "ShapeN", "Size", "Rank")
def of_the_whole(build: Builder, node: Node, values: Sequence[Value]) -> Sequence[Value] | None:
    """The shape is known, so the op waits for no slab."""
    if not is_sliced(values):
        return None
    made: list[Value] = []
    for value, spec in zip(values, node.outputs, strict=True):
        shape = shape_of(value)
        number = {"Size": math.prod(shape), "Rank": len(shape)}.get(node.type)
        made.append(Whole(build.constant(np.array(shape if number is None else number), spec.dtype), spec))
    return made
