"""Space is moved into the batch and back: this is how TensorFlow dilates convolutions.

With a block of b planes, plane j of phase r is plane j b + r of the padded tensor.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from lms3d.engine.slabs.levels import AXIS
from lms3d.engine.slabs.planes import Range
from lms3d.engine.slabs.rules.registry import places, rule, shape_of, sliced
from lms3d.engine.slabs.rules.windows import layout_of, output_layout, part, readable, zeros
from lms3d.engine.slabs.sliced_step import Builder
from lms3d.engine.slabs.values import Node, Value


@rule("SpaceToBatchND")
def space_to_batch(build: Builder, node: Node, values: Sequence[Value]) -> Sequence[Value] | None:
    """Input, blocks, paddings. A slab reads b times its planes; the first and the last are padded."""
    (block, pads), shape = node.constants[1:3], node.outputs[0].shape
    layout = output_layout(build, node, layout_of(build, values[0])) if readable(values[0]) else None
    if layout is None or shape is None or block is None or pads is None:
        return None
    extent, b, before = shape_of(values[0])[AXIS], int(block[0]), int(pads[0, 0])
    reads = [Range(r.start * b - before, r.stop * b - before) for r in layout.ranges]
    pieces = []
    for (planes, place), read in zip(places(layout), reads, strict=True):
        inside, piece_shape = read.within(extent), layout.shape(shape, planes)
        if inside.planes <= 0:
            pieces.append(zeros(build, piece_shape, node.outputs[0].dtype, place))
            continue
        own = np.array([(inside.start - read.start, read.stop - inside.stop), *pads[1:]], np.int32)
        x = part(build, values[0], inside)
        pieces.append(build.repeat([x, np.array(block, np.int32), own], piece_shape, place=place))
    return [sliced(node.outputs[0], layout, pieces)]


@rule("BatchToSpaceND")
def batch_to_space(build: Builder, node: Node, values: Sequence[Value]) -> Sequence[Value] | None:
    """Input, blocks, crops. A slab reads the planes that its own come from, and drops the rest of the first and the last one."""
    (block, crops), shape = node.constants[1:3], node.outputs[0].shape
    layout = output_layout(build, node, layout_of(build, values[0])) if readable(values[0]) else None
    if layout is None or shape is None or block is None or crops is None or math.prod(shape) == 0:
        return None
    b, before = int(block[0]), int(crops[0, 0])
    pieces = []
    for planes, place in places(layout):
        read = Range((planes.start + before) // b, -(-(planes.stop + before) // b))
        made = Range(read.start * b - before, read.stop * b - before)
        own = np.array([(planes.start - made.start, made.stop - planes.stop), *crops[1:]], np.int32)
        x = part(build, values[0], read)
        pieces.append(build.repeat([x, np.array(block, np.int32), own], layout.shape(shape, planes), place=place))
    return [sliced(node.outputs[0], layout, pieces)]
