"""Resizing by whole numbers along the sliced axis.

RESIZE-1  From n to f n planes: planes a .. b of the input make planes f a .. f b of the output by a resize of their own, whose
          scale is the same. Linear interpolation reads one plane more on both sides; the planes that these make are dropped. From
          f n to n planes the same holds, and no neighbour is read.
RESIZE-2  Gradients go the other way round.
RESIZE-3  With aligned corners, and with other ratios, a part would have another scale: the tensors are joined.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lms3d.engine.slabs.levels import AXIS
from lms3d.engine.slabs.planes import Range
from lms3d.engine.slabs.rules.registry import places, rule, shape_of, sliced
from lms3d.engine.slabs.rules.windows import layout_of, output_layout, part, readable
from lms3d.engine.slabs.sliced_step import Builder
from lms3d.engine.slabs.values import Node, Shape, SlabLayout, Value


def _factors(coarse_or_fine: int, other: int) -> tuple[int, int] | None:
    """(up, down) of a resize from one number of planes to the other, one of them 1; None if neither number is a multiple."""
    if other % coarse_or_fine == 0:
        return other // coarse_or_fine, 1
    return (1, coarse_or_fine // other) if coarse_or_fine % other == 0 else None


def _prepared(
    build: Builder, node: Node, data: Value, small: Shape, large: Shape
) -> tuple[SlabLayout, tuple[int, int]] | None:
    """How the output is cut, and the factors from `small` to `large`; None if the rule does not hold."""
    layout = output_layout(build, node, layout_of(build, data)) if readable(data) else None
    factors = _factors(small[AXIS], large[AXIS]) if len(small) == 4 and len(large) == 4 else None
    if layout is None or factors is None or node.attributes["align_corners"]:
        return None
    return layout, factors


@rule("ResizeBilinear", "ResizeNearestNeighbor")
def resize(build: Builder, node: Node, values: Sequence[Value]) -> Sequence[Value] | None:
    """Images (B, H, W, C), and their new height and width -> the resized images (RESIZE-1)."""
    before, after = shape_of(values[0]), node.outputs[0].shape or ()
    prepared = _prepared(build, node, values[0], before, after)
    if prepared is None:
        return None
    layout, (up, down) = prepared
    halo = 1 if node.type == "ResizeBilinear" and up > 1 else 0
    pieces = []
    for planes, place in places(layout):
        read = Range(planes.start // up * down - halo, -(-planes.stop // up) * down + halo).within(before[AXIS])
        made = Range(read.start * up // down, read.stop * up // down)
        shape = layout.shape(after, made)
        image = part(build, values[0], read)
        whole = build.repeat([image, np.array(shape[1:3], np.int32)], shape, place=place)
        pieces.append(build.slice(whole, AXIS, _inside(planes, made)) if planes != made else whole)
    return [sliced(node.outputs[0], layout, pieces)]


@rule("ResizeBilinearGrad", "ResizeNearestNeighborGrad")
def gradient(build: Builder, node: Node, values: Sequence[Value]) -> Sequence[Value] | None:
    """The gradient of the resized images, and the images (linear) or their height and width (nearest) -> that of the images
    (RESIZE-2)."""
    resized, shape, linear = shape_of(values[0]), node.outputs[0].shape or (), node.type == "ResizeBilinearGrad"
    prepared = _prepared(build, node, values[0], shape, resized)
    if prepared is None or (linear and not readable(values[1])):
        return None
    layout, (up, down) = prepared
    halo = 1 if linear and up > 1 else 0
    pieces = []
    for planes, place in places(layout):
        made = Range(planes.start // down * down - halo, -(-planes.stop // down) * down + halo).within(shape[AXIS])
        dy = part(build, values[0], Range(made.start * up // down, made.stop * up // down))
        sizes = layout.shape(shape, made)
        other = part(build, values[1], made) if linear else np.array(sizes[1:3], np.int32)
        whole = build.repeat([dy, other], sizes, place=place)
        pieces.append(build.slice(whole, AXIS, _inside(planes, made)) if planes != made else whole)
    return [sliced(node.outputs[0], layout, pieces)]


def _inside(planes: Range, made: Range) -> Range:
    return Range(planes.start - made.start, planes.stop - made.start)
