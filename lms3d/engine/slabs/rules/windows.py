"""Windows of convolutions and poolings: which planes a slab reads, and how inputs and outputs are cut."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from lms3d.engine.slabs.levels import AXIS
from lms3d.engine.slabs.planes import Range, Window
from lms3d.engine.slabs.rules.registry import shape_of
from lms3d.engine.slabs.sliced_step import Builder
from lms3d.engine.slabs.values import Node, Ref, Shape, SlabLayout, Sliced, Value


def window(node: Node, axis: int, extent: int, kernel: int) -> Window:
    """The window op of a node along one axis of its input."""
    padding: Any = node.attributes["padding"]
    if padding == "EXPLICIT":
        pads = node.attributes["explicit_paddings"]
        padding = (int(pads[2 * axis]), int(pads[2 * axis + 1]))
    dilations = node.attributes.get("dilations") or [1] * 8
    return Window(extent, kernel, int(node.attributes["strides"][axis]), int(dilations[axis]), padding)


def windows(node: Node, shape: Shape, kernel: Sequence[int]) -> list[Window]:
    """The window ops of a node along all spatial axes. shape: of the input. kernel: its shape, spatial axes first."""
    return [window(node, a, shape[a], int(kernel[a - 1])) for a in range(1, len(shape) - 1)]


def channels_last(node: Node) -> bool:
    return str(node.attributes.get("data_format", "NHWC"))[-1] == "C"


def readable(*values: Value) -> bool:
    """Whether slabs of these values can be joined: each is whole, or cut along the first spatial axis."""
    return all(not isinstance(v, Sliced) or (v.layout.axis == AXIS and v.layout.groups == 1) for v in values)


def layout_of(build: Builder, value: Value) -> SlabLayout | None:
    """How an input is cut: as it is already, or like its level."""
    return value.layout if isinstance(value, Sliced) else build.levels.layout(value.spec.shape)


def output_layout(build: Builder, node: Node, source: SlabLayout | None) -> SlabLayout | None:
    """How the output is cut: like its level, or else in as many parts as the input, which are joined.

    None if neither is sliced.
    """
    shape = node.outputs[0].shape
    own = build.levels.layout(shape)
    if own is not None or source is None or shape is None:
        return own
    number, extent = len(source.bounds) - 1, shape[AXIS]
    bounds = sorted({i * extent // number for i in range(number + 1)})
    return SlabLayout(AXIS, tuple(bounds)) if len(bounds) > 2 else None


def whole_layout(value: Value) -> SlabLayout:
    """The layout of a value that is read in one piece."""
    return SlabLayout(AXIS, (0, shape_of(value)[AXIS]))


def part(build: Builder, value: Value, planes: Range) -> Ref:
    """The planes of this range of a value, sliced or whole."""
    return build.part(value, planes, whole_layout(value))


def padded(build: Builder, ref: Ref, pads: Sequence[tuple[int, int]], filling: float = 0.0) -> Ref:
    """The tensor with planes of one number around the spatial axes."""
    if not any(map(any, pads)):
        return ref
    amounts = np.array([(0, 0), *pads, (0, 0)], np.int32)
    shape = tuple(n + int(a) + int(b) for n, (a, b) in zip(ref.shape, amounts, strict=True))
    if filling == 0:
        return build.one("Pad", [ref, amounts], shape, ref.dtype)
    return build.one("PadV2", [ref, amounts, build.constant(np.float64(filling), ref.dtype)], shape, ref.dtype)


def zeros(build: Builder, shape: Shape, dtype: str, place: float) -> Ref:
    """A slab whose windows see padding only."""
    nothing = build.constant(np.float64(0), dtype)
    return build.one("Fill", [np.array(shape, np.int32), nothing], shape, dtype, place=place)


def cropped(build: Builder, ref: Ref, begin: Sequence[int], shape: Shape) -> Ref:
    """A box of a tensor; along the first spatial axis alone it is a view if it can be one."""
    if tuple(shape) == ref.shape:
        return ref
    if all(n == m for axis, (n, m) in enumerate(zip(shape, ref.shape, strict=True)) if axis != AXIS):
        return build.slice(ref, AXIS, Range(begin[AXIS], begin[AXIS] + shape[AXIS]))
    return build.one("Slice", [ref, np.array(begin, np.int32), np.array(shape, np.int32)], shape, ref.dtype)


def around(one: Window, planes: Range) -> tuple[Range, Range]:
    """The outputs whose windows reach into these planes, and the planes that these windows span."""
    found = one.read_by(planes)
    first = min(found.start, (planes.start + one.pads[0]) // one.stride, one.outputs - 1)
    outputs = Range(first, max(found.stop, first + 1))
    read = one.reads(outputs)
    return outputs, Range(read.start, max(read.stop, planes.stop))
