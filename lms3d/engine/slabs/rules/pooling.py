"""Poolings and their gradients: the part that a slab reads has whole windows, so no window is cut by a slab's end.

POOL-1  A slab of outputs reads the planes of its windows. Padding is made if it is needed: the least number for maxima, zeros for
        averages, which are then divided by the number of elements without padding. If stride and window are equal, and the bounds
        of both levels nest, each slab reads its own planes only, and nothing is joined or padded.
POOL-2  A slab of a gradient reads all windows that reach into it, and is cropped.
POOL-3  The gradient of a maximum reads the output of its own op (`ir.PAIRED_TYPES`): the slab of the forward pass if that has the
        same windows. Otherwise the maxima are taken once more.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from lms3d.engine.slabs.levels import AXIS
from lms3d.engine.slabs.planes import Range, Window
from lms3d.engine.slabs.rules.registry import places, rule, shape_of, sliced
from lms3d.engine.slabs.rules.windows import (
    around,
    channels_last,
    cropped,
    layout_of,
    output_layout,
    padded,
    part,
    readable,
    windows,
)
from lms3d.engine.slabs.sliced_step import Builder
from lms3d.engine.slabs.values import Node, Ref, Shape, Sliced, Value

_FLOATS = frozenset({"float16", "bfloat16", "float32", "float64"})
_UNPADDED: dict[str, Any] = {"padding": "VALID"}


@rule("MaxPool", "MaxPool3D", "AvgPool", "AvgPool3D")
def pooling(build: Builder, node: Node, values: Sequence[Value]) -> Sequence[Value] | None:
    """Input -> maxima or averages (POOL-1)."""
    if not readable(values[0]) or not _sliceable(node):
        return None
    layout, shape = output_layout(build, node, layout_of(build, values[0])), node.outputs[0].shape
    if layout is None or shape is None:
        return None
    along = windows(node, shape_of(values[0]), node.attributes["ksize"][1:-1])
    pieces = []
    for planes, place in places(layout):
        read = _Read(build, node, values[0], along, planes, along[0].reads(planes))
        made = _pooled(build, node, node.type, read.ref, layout.shape(shape, planes), place)
        pieces.append(_per_element(build, made, along, planes) if node.type.startswith("Avg") else made)
    return [sliced(node.outputs[0], layout, pieces)]


def _sliceable(node: Node) -> bool:
    ksize, strides = node.attributes["ksize"], node.attributes["strides"]
    ends = [*(ksize[i] for i in (0, -1)), *(strides[i] for i in (0, -1))]
    return channels_last(node) and all(n == 1 for n in ends) and node.outputs[0].dtype in _FLOATS


class _Read:
    """The part `domain` of an input, with its padding. ref: the tensor."""

    def __init__(
        self, build: Builder, node: Node, value: Value, along: Sequence[Window], planes: Range, domain: Range
    ) -> None:
        inside = domain.within(along[0].extent)
        pads = [(inside.start - domain.start, domain.stop - inside.stop), *(w.pads for w in along[1:])]
        filling = -np.inf if node.type.startswith("Max") else 0.0
        self.ref = padded(build, part(build, value, inside), pads, filling)


def _pooled(build: Builder, node: Node, kind: str, ref: Ref, shape: Shape, place: float) -> Ref:
    kept = {k: v for k, v in node.attributes.items() if k in ("ksize", "strides", "data_format")}
    return build.one(kind, [ref], shape, ref.dtype, attributes=kept | _UNPADDED, place=place)


def _per_element(build: Builder, ref: Ref, along: Sequence[Window], planes: Range) -> Ref:
    """Averages of padded windows -> averages of the elements that are no padding."""
    factor: Ref | None = None
    for axis, one in enumerate(along, 1):
        outputs = planes if axis == AXIS else Range(0, one.outputs)
        counts = [one.reads(Range(j, j + 1)).within(one.extent).planes for j in range(outputs.start, outputs.stop)]
        if all(n == one.kernel for n in counts):
            continue
        shape = [1] * len(ref.shape)
        shape[axis] = len(counts)
        share = build.constant((one.kernel / np.array(counts)).reshape(shape), ref.dtype)
        if factor is None:
            factor = share
        else:
            together = tuple(max(a, b) for a, b in zip(factor.shape, share.shape, strict=True))
            factor = build.one("Mul", [factor, share], together, ref.dtype)
    return ref if factor is None else build.one("Mul", [ref, factor], ref.shape, ref.dtype)


@rule("MaxPoolGrad", "MaxPool3DGrad", "AvgPoolGrad", "AvgPool3DGrad")
def gradient(build: Builder, node: Node, values: Sequence[Value]) -> Sequence[Value] | None:
    """Input and output, or the shape of the input; gradient of the output -> gradient of the input (POOL-2)."""
    largest = node.type.startswith("Max")
    if not readable(values[-1], *(values[:2] if largest else ())) or not _sliceable(node):
        return None
    layout, shape = output_layout(build, node, layout_of(build, values[-1])), node.outputs[0].shape
    if layout is None or shape is None:
        return None
    along = windows(node, shape, node.attributes["ksize"][1:-1])
    of = _of_maxima if largest else _of_averages
    pieces = [
        of(build, node, values, along, planes, place, layout.shape(shape, planes)) for planes, place in places(layout)
    ]
    return [sliced(node.outputs[0], layout, pieces)]


def _of_averages(
    build: Builder, node: Node, values: Sequence[Value], along: Sequence[Window], planes: Range, place: float, shape: Shape
) -> Ref:  # fmt: skip
    outputs, domain = around(along[0], planes)
    dy = _per_element(build, part(build, values[-1], outputs), along, outputs)
    sizes = (shape[0], domain.planes, *(w.extent + sum(w.pads) for w in along[1:]), shape[-1])
    dx = build.repeat([np.array(sizes, np.int32), dy], sizes, place=place, **_without_padding(node))
    return cropped(build, dx, _begin(along, planes, domain), shape)


def _of_maxima(
    build: Builder, node: Node, values: Sequence[Value], along: Sequence[Window], planes: Range, place: float, shape: Shape
) -> Ref:  # fmt: skip
    outputs, domain = around(along[0], planes)
    x = _Read(build, node, values[0], along, planes, domain).ref
    dy = part(build, values[-1], outputs)
    y = _slab(values[1], outputs) if domain == along[0].reads(outputs) else None
    if y is None:  # POOL-3
        y = _pooled(build, node, node.type.removesuffix("Grad"), x, dy.shape, place)
    dx = build.repeat([x, y, dy], x.shape, place=place, **_without_padding(node))
    return cropped(build, dx, _begin(along, planes, domain), shape)


def _slab(value: Value, planes: Range) -> Ref | None:
    """The slab with exactly these planes."""
    if not isinstance(value, Sliced) or planes not in value.layout.ranges:
        return None
    return value.pieces[value.layout.ranges.index(planes)]


def _without_padding(node: Node) -> dict[str, Any]:
    return _UNPADDED | ({"explicit_paddings": []} if "explicit_paddings" in node.attributes else {})


def _begin(along: Sequence[Window], planes: Range, domain: Range) -> list[int]:
    """The plane at which the slab begins in the gradient of a padded part."""
    return [0, planes.start - domain.start, *(w.pads[0] for w in along[1:]), 0]
