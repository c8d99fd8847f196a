"""Ops that fill, repeat, pad, split and join."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lms3d.engine.slabs.planes import Range
from lms3d.engine.slabs.rules.elementwise import layout_of
from lms3d.engine.slabs.rules.registry import broadcast, is_sliced, lined_up, places, rule, shape_of, sliced
from lms3d.engine.slabs.sliced_step import Builder, Input
from lms3d.engine.slabs.values import Node, Ref, SlabLayout, Sliced, Value


@rule("Fill", "BroadcastTo")
def fill(build: Builder, node: Node, values: Sequence[Value]) -> Sequence[Value] | None:
    """One value, or a smaller tensor, is repeated to the shape of a level, slab by slab."""
    shape = node.outputs[0].shape
    layout = build.levels.layout(shape)
    source = values[1] if node.type == "Fill" else values[0]
    if node.type == "BroadcastTo" and layout is None:
        layout = layout_of(build, values[:1], shape)
    if layout is None or shape is None or not lined_up(source, layout, shape):
        return None
    pieces = []
    for planes, place in places(layout):
        piece_shape = layout.shape(shape, planes)
        dims, part = np.array(piece_shape, np.int32), broadcast(build, source, layout, shape, planes)
        inputs: list[Input] = [dims, part] if node.type == "Fill" else [part, dims]
        pieces.append(build.one(node.type, inputs, piece_shape, node.outputs[0].dtype, place=place))
    return [sliced(node.outputs[0], layout, pieces)]


@rule("Tile")
def tile(build: Builder, node: Node, values: Sequence[Value]) -> Sequence[Value] | None:
    """Along other axes each slab is repeated; along the sliced axis only a single plane can be."""
    value, old, shape = values[0], values[0].spec.shape, node.outputs[0].shape
    if shape is None or old is None or 0 in old:
        return None
    layout = value.layout if isinstance(value, Sliced) else build.levels.layout(shape)
    if layout is not None and old[layout.axis] == 1:
        layout = build.levels.layout(shape)
    times = np.array([n // m for n, m in zip(shape, old, strict=True)], np.int32)
    if layout is None or (times[layout.axis] != 1 and old[layout.axis] != 1):
        return None
    pieces = []
    for planes, place in places(layout):
        many, piece_shape = times.copy(), layout.shape(shape, planes)
        if old[layout.axis] == 1:
            part, many[layout.axis] = build.whole(value), planes.planes
        else:
            part = build.part(value, planes, layout)
        pieces.append(build.repeat([part, many], piece_shape, place=place))
    return [sliced(node.outputs[0], layout, pieces)]


@rule("ConcatV2")
def concat(build: Builder, node: Node, values: Sequence[Value]) -> Sequence[Value] | None:
    """Tensors are joined along channels, slab by slab."""
    *parts, _ = values
    axis, shape = node.constants[-1], node.outputs[0].shape
    layout = layout_of(build, parts, shape)
    if axis is None or shape is None or layout is None or int(axis) % len(shape) == layout.axis or layout.groups > 1:
        return None
    if not all(lined_up(v, layout, shape) for v in parts):
        return None
    pieces = [
        build.one("ConcatV2", [tuple(build.part(v, planes, layout) for v in parts), np.int32(axis)], layout.shape(shape, planes),
                  node.outputs[0].dtype, place=place)
        for planes, place in places(layout)
    ]  # fmt: skip
    return [sliced(node.outputs[0], layout, pieces)]


@rule("Pack")
def pack(build: Builder, node: Node, values: Sequence[Value]) -> Sequence[Value] | None:
    """Tensors are stacked along a new axis behind the sliced one, slab by slab."""
    shape = node.outputs[0].shape
    layout = layout_of(build, values[:1], shape_of(values[0]))
    if (
        not is_sliced(values)
        or shape is None
        or layout is None
        or not all(lined_up(v, layout, shape_of(v)) for v in values)
    ):
        return None
    axis = int(node.attributes["axis"]) % len(shape)
    out = SlabLayout(layout.axis + (axis <= layout.axis), layout.bounds, layout.groups)
    pieces = [
        build.repeat([tuple(build.part(v, planes, layout) for v in values)], out.shape(shape, planes), place=place)
        for planes, place in places(out)
    ]
    return [sliced(node.outputs[0], out, pieces)]


@rule("Split", "SplitV", "Unpack")
def split(build: Builder, node: Node, values: Sequence[Value]) -> Sequence[Value] | None:
    """A tensor is cut along another axis: each slab is cut."""
    data = 1 if node.type == "Split" else 0
    value = values[data]
    if not isinstance(value, Sliced) or any(s.shape is None for s in node.outputs):
        return None
    rank = len(shape_of(value))
    known = {"Split": node.constants[0], "SplitV": node.constants[-1]}.get(node.type, node.attributes.get("axis"))
    if known is None or int(known) % rank == value.layout.axis:
        return None
    axis, layout = int(known) % rank, value.layout
    if node.type == "Unpack" and axis < layout.axis:
        layout = SlabLayout(layout.axis - 1, layout.bounds, layout.groups)
    made = []
    for piece, (planes, place) in zip(value.pieces, places(layout), strict=True):
        inputs: list[Ref] = [build.whole(v) for v in values]
        inputs[data] = piece
        outputs = [(layout.shape(s.shape or (), planes), s.dtype) for s in node.outputs]
        made.append(build.make(node.type, inputs, outputs, node.attributes, place=place))
    return [sliced(spec, layout, pieces) for spec, pieces in zip(node.outputs, zip(*made, strict=True), strict=True)]


@rule("Pad", "PadV2")
def pad(build: Builder, node: Node, values: Sequence[Value]) -> Sequence[Value] | None:
    """Along the sliced axis the first and the last slab get the padding."""
    value, pads, shape = values[0], node.constants[1], node.outputs[0].shape
    if pads is None or shape is None or value.spec.shape is None:
        return None
    layout = value.layout if isinstance(value, Sliced) else build.levels.layout(value.spec.shape)
    if layout is None or layout.groups > 1:
        return None
    before = int(pads[layout.axis][0])
    out = build.levels.layout(shape) or SlabLayout(
        layout.axis, (0, *(b + before for b in layout.bounds[1:-1]), shape[layout.axis])
    )
    pieces = []
    for planes, place in places(out):
        read = Range(planes.start - before, planes.stop - before)
        inside = read.within(layout.extent)
        if not inside.planes:
            return None
        amounts = pads.copy()
        amounts[layout.axis] = (inside.start - read.start, read.stop - inside.stop)
        part = build.part(value, inside, layout)
        rest = [build.whole(v) for v in values[2:]]
        pieces.append(build.repeat([part, amounts, *rest], out.shape(shape, planes), place=place))
    return [sliced(node.outputs[0], out, pieces)]


@rule("OneHot")
def one_hot(build: Builder, node: Node, values: Sequence[Value]) -> Sequence[Value] | None:
    """The classes get a new axis, slab by slab."""
    indices, shape = values[0], node.outputs[0].shape
    if not isinstance(indices, Sliced) or shape is None:
        return None
    axis = int(node.attributes["axis"]) % len(shape)
    out = SlabLayout(indices.layout.axis + (axis <= indices.layout.axis), indices.layout.bounds, indices.layout.groups)
    rest = [build.whole(v) for v in values[1:]]
    pieces = [
        build.repeat([piece, *rest], out.shape(shape, planes), place=place)
        for piece, (planes, place) in zip(indices.pieces, places(out), strict=True)
    ]
    return [sliced(node.outputs[0], out, pieces)]


@rule("GatherV2")
def gather(build: Builder, node: Node, values: Sequence[Value]) -> Sequence[Value] | None:
    """Elements are picked along another axis than the sliced one, slab by slab."""
    data, shape, axis = values[0], node.outputs[0].shape, node.constants[2]
    if not isinstance(data, Sliced) or is_sliced(values[1:]) or shape is None or axis is None:
        return None
    along = int(axis) % len(shape_of(data))
    if int(node.attributes.get("batch_dims", 0)) or along == data.layout.axis:
        return None
    moved = len(shape_of(values[1])) - 1 if along < data.layout.axis else 0
    out = SlabLayout(data.layout.axis + moved, data.layout.bounds, data.layout.groups)
    rest = [build.whole(v) for v in values[1:]]
    pieces = [
        build.repeat([piece, *rest], out.shape(shape, planes), place=place)
        for piece, (planes, place) in zip(data.pieces, places(out), strict=True)
    ]
    return [sliced(node.outputs[0], out, pieces)]
