"""Reductions: over the sliced axis a sum (or a maximum) grows slab by slab; over other axes each slab is reduced."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lms3d.engine.slabs.rules.registry import is_sliced, places, rule, shape_of, sliced, summed
from lms3d.engine.slabs.sliced_step import Builder
from lms3d.engine.slabs.values import Node, Ref, SlabLayout, Sliced, Value

_TOGETHER = {
    "Sum": "AddV2",
    "Mean": "AddV2",
    "Max": "Maximum",
    "Min": "Minimum",
    "Prod": "Mul",
    "All": "LogicalAnd",
    "Any": "LogicalOr",
}
"""Reduction -> the op that combines the results of two slabs; Mean's are weighted by their planes first."""


@rule(*_TOGETHER)
def reduction(build: Builder, node: Node, values: Sequence[Value]) -> Sequence[Value] | None:
    value, axes = values[0], node.constants[1]
    if not isinstance(value, Sliced) or axes is None or node.outputs[0].shape is None:
        return None
    rank, layout = len(shape_of(value)), value.layout
    reduced = {int(a) % rank for a in np.atleast_1d(axes)}
    if layout.axis in reduced:
        return [summed(build, node.outputs[0], _total(build, node, value, values[1]))]
    keep = node.attributes["keep_dims"]
    axis = layout.axis if keep else layout.axis - sum(a < layout.axis for a in reduced)
    out = SlabLayout(axis, layout.bounds, layout.groups)
    pieces = [
        build.repeat([piece, build.whole(values[1])], out.shape(node.outputs[0].shape, planes), place=place)
        for piece, (planes, place) in zip(value.pieces, places(layout), strict=True)
    ]
    return [sliced(node.outputs[0], out, pieces)]


def _total(build: Builder, node: Node, value: Sliced, axes: Value) -> Ref:
    shape, total = node.outputs[0].shape or (), None
    for piece, (planes, place) in zip(value.pieces, places(value.layout), strict=True):
        part = build.repeat([piece, build.whole(axes)], shape, place=place)
        if node.type == "Mean":
            share = build.constant(np.float64(planes.planes / value.layout.extent), part.dtype)
            part = build.one("Mul", [part, share], shape, part.dtype)
        total = build.grow(total, part, _TOGETHER[node.type])
    assert total is not None, "there are slabs"
    return total


@rule("BiasAddGrad")
def bias_gradient(build: Builder, node: Node, values: Sequence[Value]) -> Sequence[Value] | None:
    """The sum over all axes but the last."""
    value = values[0]
    if not isinstance(value, Sliced) or node.attributes.get("data_format", "NHWC")[-1] != "C":
        return None
    total = None
    for piece, (_, place) in zip(value.pieces, places(value.layout), strict=True):
        total = build.grow(total, build.repeat([piece], node.outputs[0].shape or (), place=place))
    assert total is not None, "there are slabs"
    return [summed(build, node.outputs[0], total)]


@rule("ArgMax", "ArgMin")
def arg_max(build: Builder, node: Node, values: Sequence[Value]) -> Sequence[Value] | None:
    """The op reduces an axis that is not the sliced one, slab by slab."""
    value, axis = values[0], node.constants[1]
    if not isinstance(value, Sliced) or axis is None or node.outputs[0].shape is None:
        return None
    over, layout = int(axis) % len(shape_of(value)), value.layout
    if over == layout.axis:
        return None
    out = SlabLayout(layout.axis - (over < layout.axis), layout.bounds, layout.groups)
    pieces = [
        build.repeat([piece, build.whole(values[1])], out.shape(node.outputs[0].shape, planes), place=place)
        for piece, (planes, place) in zip(value.pieces, places(layout), strict=True)
    ]
    return [sliced(node.outputs[0], out, pieces)]


@rule("L2Loss")
def half_sum_of_squares(build: Builder, node: Node, values: Sequence[Value]) -> Sequence[Value] | None:
    total: Ref | None = None
    if not is_sliced(values):
        return None
    for piece in values[0].pieces:  # type: ignore[union-attr]
        total = build.grow(total, build.repeat([piece], ()))
    assert total is not None, "there are slabs"
    return [summed(build, node.outputs[0], total)]


@rule("Cumsum", "Cumprod")
def running(build: Builder, node: Node, values: Sequence[Value]) -> Sequence[Value] | None:
    """The op works along an axis that is not the sliced one, slab by slab."""
    value, axis, shape = values[0], node.constants[1], node.outputs[0].shape
    if not isinstance(value, Sliced) or axis is None or shape is None or int(axis) % len(shape) == value.layout.axis:
        return None
    pieces = [
        build.repeat([piece, build.whole(values[1])], value.layout.shape(shape, planes), place=place)
        for piece, (planes, place) in zip(value.pieces, places(value.layout), strict=True)
    ]
    return [sliced(node.outputs[0], value.layout, pieces)]


@rule("UnsortedSegmentSum", "ScatterNd")
def counts(build: Builder, node: Node, values: Sequence[Value]) -> Sequence[Value] | None:
    """Data and numbers, in either order -> the elements added up by number, as in histograms: a sum over slabs."""
    pair, layout = values[:2], next((v.layout for v in values[:2] if isinstance(v, Sliced)), None)
    if layout is None or any(shape_of(v)[: layout.axis + 1] != shape_of(pair[0])[: layout.axis + 1] for v in pair):
        return None
    if node.type == "ScatterNd" and layout.axis >= len(shape_of(values[0])) - 1:
        return None
    if any(isinstance(v, Sliced) and v.layout != layout for v in pair):
        return None
    total, size = None, build.whole(values[2])
    for planes, place in places(layout):
        parts = [build.part(v, planes, layout) for v in pair]
        total = build.grow(total, build.repeat([*parts, size], node.outputs[0].shape or (), place=place))
    assert total is not None, "there are slabs"
    return [summed(build, node.outputs[0], total)]
