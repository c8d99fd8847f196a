"""Convolutions and their gradients.

CONV-1  Forward: the planes that a slab reads are padded with zeros, and convolved without padding. So every slab has exactly the
        planes that it owns.
CONV-2  The gradient of the input at stride 1 is the convolution of the output's gradient with the reversed kernel, by CONV-1.
CONV-3  At other strides, in transposed convolutions, and if channels come in groups, TensorFlow's op computes the gradient of a
        part that lines up with the whole (`planes.Window.part`), and the result is cropped. With explicit paddings the part has all
        windows that reach into the slab. A slab that no window reads is zeros: in float64 TensorFlow 2.21's op for volumes ends the
        process if the output's gradient has no planes.
CONV-4  The gradient of the kernel is computed for one plane of it and one slab of the input at a time: plane i is correlated with
        the planes of the input that lie i further on. No halo is joined, nothing is padded, and no product is computed twice.
CONV-5  If one slab of outputs reads several slabs of the input (at stride 2, if both levels have as many), it is made in as many
        parts. Then outputs are joined, which are smaller than inputs, and never more than a slab with its halo is read at once.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from lms3d.engine.slabs.levels import AXIS
from lms3d.engine.slabs.planes import Range, Window
from lms3d.engine.slabs.rules import windows as common
from lms3d.engine.slabs.rules.registry import is_sliced, places, rule, shape_of, sliced, summed
from lms3d.engine.slabs.rules.windows import (
    channels_last,
    cropped,
    layout_of,
    output_layout,
    padded,
    part,
    readable,
    whole_layout,
)
from lms3d.engine.slabs.sliced_step import Builder, Input
from lms3d.engine.slabs.values import Node, Ref, Shape, SlabLayout, Sliced, Value


@rule("Conv2D", "Conv3D", "DepthwiseConv2dNative")
def convolution(build: Builder, node: Node, values: Sequence[Value]) -> Sequence[Value] | None:
    """Input, kernel -> output (CONV-1)."""
    if not readable(values[0]) or not channels_last(node) or values[1].spec.shape is None:
        return None
    layout = output_layout(build, node, layout_of(build, values[0]))
    if layout is None:
        return None
    along = common.windows(node, shape_of(values[0]), values[1].spec.shape)
    kernel = build.whole(values[1])
    shape, source, pieces = node.outputs[0].shape or (), layout_of(build, values[0]), []
    for planes, place in places(layout):
        made = [
            _convolved(
                build,
                node.type,
                dict(node.attributes),
                values[0],
                kernel,
                along,
                some,
                place,
                layout.shape(shape, some),
            )
            for some in _parts(planes, along[0], source)
        ]
        pieces.append(made[0] if len(made) == 1 else build.concat(made, layout))
    return [sliced(node.outputs[0], layout, pieces)]


def _parts(planes: Range, window: Window, source: SlabLayout | None) -> list[Range]:
    """Parts of a slab of outputs, each of which reads about one slab of the input (CONV-5)."""
    if source is None:
        return [planes]
    slab = max(r.planes for r in source.ranges)
    number = max(1, min(planes.planes, round(planes.planes * window.stride / slab)))
    bounds = [planes.start + i * planes.planes // number for i in range(number + 1)]
    return [Range(a, b) for a, b in itertools.pairwise(bounds)]


def _convolved(
    build: Builder, kind: str, attributes: dict[str, Any], value: Value, kernel: Ref, along: Sequence[Window], planes: Range,
    place: float, shape: Shape,
) -> Ref:  # fmt: skip
    read = along[0].reads(planes)
    inside = read.within(along[0].extent)
    if inside.planes <= 0:
        return common.zeros(build, shape, kernel.dtype, place)
    x = part(build, value, inside)
    pads = [(inside.start - read.start, read.stop - inside.stop), *(w.pads for w in along[1:])]
    changed: dict[str, Any] = {"padding": "VALID"}
    if kind == "Conv3D":
        x = padded(build, x, pads)
    else:  # convolutions in 2D take paddings of any kind
        flat = [0, 0, *(int(n) for pair in pads for n in pair), 0, 0]
        changed = (
            {"padding": "EXPLICIT", "explicit_paddings": flat} if any(flat) else changed | {"explicit_paddings": []}
        )
    return build.one(kind, [x, kernel], shape, x.dtype, attributes=attributes | changed, place=place)


@rule("Conv2DBackpropInput", "Conv3DBackpropInputV2", "DepthwiseConv2dNativeBackpropInput")
def input_gradient(build: Builder, node: Node, values: Sequence[Value]) -> Sequence[Value] | None:
    """Sizes, kernel, gradient of the output -> gradient of the input. This is also the transposed convolution."""
    shape, kernel_shape = node.outputs[0].shape, values[1].spec.shape
    if not readable(values[2]) or not channels_last(node) or shape is None or kernel_shape is None:
        return None
    layout = output_layout(build, node, layout_of(build, values[2]))
    if layout is None:
        return None
    along = common.windows(node, shape, kernel_shape)
    explicit = node.attributes["padding"] == "EXPLICIT"
    if all(w.stride == 1 for w in along) and not node.type.startswith("Depthwise") and kernel_shape[-2] == shape[-1]:
        return _by_convolution(build, node, values, along, layout)
    if not explicit and any(along[0].part(planes) is None for planes, _ in places(layout)):
        return None
    kernel, of = build.whole(values[1]), _of_windows if explicit else _of_part
    pieces = [of(build, node, values[2], kernel, along, planes, place) for planes, place in places(layout)]
    return [sliced(node.outputs[0], layout, pieces)]


def _by_convolution(
    build: Builder, node: Node, values: Sequence[Value], along: Sequence[Window], layout: SlabLayout
) -> Sequence[Value]:
    """The slabs of the input's gradient at stride 1 (CONV-2)."""
    gradient = values[2]
    backward = [
        Window(
            w.outputs,
            w.kernel,
            1,
            w.dilation,
            (w.reach - 1 - w.pads[0], w.extent - w.outputs - (w.reach - 1 - w.pads[0]) + w.reach - 1),
        )
        for w in along
    ]
    kernel = _reversed(build, build.whole(values[1]))
    kind = "Conv2D" if node.type.startswith("Conv2D") else "Conv3D"
    kept = {k: v for k, v in node.attributes.items() if k not in ("padding", "explicit_paddings")}
    pieces = [
        _convolved(
            build,
            kind,
            dict(kept),
            gradient,
            kernel,
            backward,
            planes,
            place,
            layout.shape(node.outputs[0].shape or (), planes),
        )
        for planes, place in places(layout)
    ]
    return [sliced(node.outputs[0], layout, pieces)]


def _reversed(build: Builder, kernel: Ref) -> Ref:
    """(.., I, O) -> (.., O, I), reversed along all spatial axes."""
    rank = len(kernel.shape)
    order = [*range(rank - 2), rank - 1, rank - 2]
    swapped = tuple(kernel.shape[a] for a in order)
    if all(n == 1 for n in kernel.shape[:-2]):
        back = kernel
    else:
        back = build.one("ReverseV2", [kernel, np.arange(rank - 2, dtype=np.int32)], kernel.shape, kernel.dtype)
    return build.one("Transpose", [back, np.array(order, np.int32)], swapped, kernel.dtype)


def _of_part(
    build: Builder, node: Node, gradient: Value, kernel: Ref, along: Sequence[Window], planes: Range, place: float
) -> Ref:
    """The slab of the input's gradient by TensorFlow's own op (CONV-3)."""
    inner = along[0].part(planes)
    assert inner is not None, "the caller has looked"
    whole = node.outputs[0].shape or ()
    if inner.out.planes == 0:
        return common.zeros(build, (whole[0], planes.planes, *whole[2:]), kernel.dtype, place)
    sizes = (whole[0], inner.extent, *whole[2:])
    made = build.repeat([np.array(sizes, np.int32), kernel, part(build, gradient, inner.out)], sizes, place=place)
    start = planes.start - inner.origin
    return made if planes.planes == inner.extent else build.slice(made, AXIS, Range(start, start + planes.planes))


def _of_windows(
    build: Builder, node: Node, gradient: Value, kernel: Ref, along: Sequence[Window], planes: Range, place: float
) -> Ref:
    """The slab of the input's gradient by TensorFlow's own op, with explicit paddings (CONV-3)."""
    outputs, domain = common.around(along[0], planes)
    whole = node.outputs[0].shape or ()
    sizes = (whole[0], domain.planes, *(w.extent + sum(w.pads) for w in along[1:]), whole[-1])
    inputs: list[Input] = [np.array(sizes, np.int32), kernel, part(build, gradient, outputs)]
    made = build.repeat(inputs, sizes, place=place, padding="VALID", explicit_paddings=[])
    begin = [0, planes.start - domain.start, *(w.pads[0] for w in along[1:]), 0]
    return cropped(build, made, begin, (whole[0], planes.planes, *whole[2:]))


@rule("Conv2DBackpropFilter", "Conv3DBackpropFilterV2", "DepthwiseConv2dNativeBackpropFilter")
def kernel_gradient(build: Builder, node: Node, values: Sequence[Value]) -> Sequence[Value] | None:
    """Input, sizes, gradient of the output -> gradient of the kernel (CONV-4)."""
    shape, sizes = values[0].spec.shape, node.outputs[0].shape
    read = [values[0], values[2]]
    if not readable(*read) or not is_sliced(read) or not channels_last(node) or shape is None or sizes is None:
        return None
    layout = values[2].layout if isinstance(values[2], Sliced) else whole_layout(values[2])
    window, flat = common.window(node, AXIS, shape[AXIS], sizes[0]), (1, *sizes[1:])
    totals: list[Ref | None] = [None] * sizes[0]
    for planes, place in places(layout):
        for i, some in itertools.product(range(sizes[0]), _pieces(values[0])):
            outputs = _touching(window, i, planes, some)
            if outputs.planes > 0:
                made = _plane_gradient(build, node, values, window, i, outputs, flat, place)
                totals[i] = build.grow(totals[i], made)
    dtype = next(t.dtype for t in totals if t is not None)
    done = [t if t is not None else build.constant(np.zeros(flat), dtype) for t in totals]
    joined = done[0] if len(done) == 1 else build.one("ConcatV2", [tuple(done), np.int32(0)], sizes, dtype)
    return [summed(build, node.outputs[0], joined)]


def _pieces(value: Value) -> list[Range]:
    return value.layout.ranges if isinstance(value, Sliced) else [Range(0, shape_of(value)[AXIS])]


def _touching(window: Window, i: int, planes: Range, some: Range) -> Range:
    """The outputs among `planes` whose input under plane i of the kernel lies in `some`: a range that may be empty."""
    offset = i * window.dilation - window.pads[0]
    first = max(planes.start, -((offset - some.start) // window.stride))
    return Range(first, max(first, min(planes.stop, (some.stop - 1 - offset) // window.stride + 1)))


def _plane_gradient(
    build: Builder,
    node: Node,
    values: Sequence[Value],
    window: Window,
    i: int,
    outputs: Range,
    flat: Shape,
    place: float,
) -> Ref:
    """The share of these outputs in plane i of the kernel's gradient."""
    offset = i * window.dilation - window.pads[0]
    read = Range(outputs.start * window.stride + offset, (outputs.stop - 1) * window.stride + offset + 1)
    x, dy = part(build, values[0], read), part(build, values[2], outputs)
    dilations = node.attributes.get("dilations")
    changed: dict[str, Any] = {}
    if dilations is not None:
        changed["dilations"] = [1 if a == AXIS else int(d) for a, d in enumerate(dilations)]
    if node.attributes["padding"] == "EXPLICIT":
        pads = [int(n) for n in node.attributes["explicit_paddings"]]
        changed["explicit_paddings"] = [*pads[:2], 0, 0, *pads[4:]]
    return build.repeat([x, np.array(flat, np.int32), dy], flat, place=place, **changed)
