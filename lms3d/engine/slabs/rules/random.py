"""Random numbers that follow from a key and a counter: a slab draws exactly the numbers that it has in the whole tensor.

RANDOM-1  Philox makes a block of 128 bits from each value of its counter. TensorFlow makes a few elements from each block, or from
          some blocks (`_group`), in the order of the flat tensor (`FillPhiloxRandomTask` in `random_op_cpu.h`; on a GPU each
          thread skips to its block, too). So a slab begins with the block that holds its first element: the counter is moved on
          by the blocks before it, and the elements before the first are dropped. Each sample of a batch is drawn by itself.
RANDOM-2  The counter is two words of 64 bits, the low one first. The low one counts from 0, for seeds and generators alike. A carry
          into the high one would need 2^64 blocks, and is left out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from lms3d.engine.slabs.planes import Range
from lms3d.engine.slabs.rules.registry import places, rule, shape_of, sliced
from lms3d.engine.slabs.sliced_step import Builder, Input
from lms3d.engine.slabs.values import Node, Ref, Value

_PHILOX, _AUTOMATIC = 1, 3  # `random_ops_util.Algorithm`; on a CPU and on a GPU the automatic choice is Philox
_LONG = frozenset({"float64", "int64", "uint64"})


@rule(
    "StatelessRandomUniformV2", "StatelessRandomNormalV2", "StatelessTruncatedNormalV2", "StatelessRandomUniformIntV2",
    "StatelessRandomUniformFullIntV2",
)  # fmt: skip
def random(build: Builder, node: Node, values: Sequence[Value]) -> Sequence[Value] | None:
    """Shape, key, counter, algorithm [, least, most] -> numbers."""
    shape, algorithm = node.outputs[0].shape, node.constants[3]
    layout = build.levels.layout(shape)
    if layout is None or shape is None or algorithm is None or int(algorithm) not in (_PHILOX, _AUTOMATIC):
        return None
    if shape_of(values[2]) != (2,):
        return None
    row, samples = math.prod(shape[layout.axis + 1 :]), math.prod(shape[: layout.axis])
    pieces = []
    for planes, place in places(layout):
        one_sample = (*(1 for _ in shape[: layout.axis]), planes.planes, *shape[layout.axis + 1 :])
        drawn = []
        for sample in range(samples):
            first = (sample * layout.extent + planes.start) * row
            flat = _elements(build, node, values, Range(first, first + planes.planes * row), place)
            drawn.append(build.reshape(flat, one_sample))
        piece_shape = layout.shape(shape, planes)
        if samples > 1:
            stacked = build.one("ConcatV2", [tuple(drawn), np.int32(0)], (samples, *one_sample[1:]), drawn[0].dtype)
            drawn = [build.reshape(stacked, piece_shape)]
        pieces.append(drawn[0])
    return [sliced(node.outputs[0], layout, pieces)]


def _elements(build: Builder, node: Node, values: Sequence[Value], wanted: Range, place: float) -> Ref:
    """The elements of the flat tensor in this range (RANDOM-1)."""
    size, blocks = _group(node)
    before = wanted.start % size
    number = wanted.planes + before
    counter = build.whole(values[2])
    if wanted.start >= size:
        skip = build.constant(np.array([wanted.start // size * blocks, 0], np.uint64), "uint64")
        counter = build.one("AddV2", [counter, skip], (2,), "uint64")
    inputs: list[Input] = [np.array([number], np.int32), build.whole(values[1]), counter, *map(build.whole, values[3:])]
    drawn = build.repeat(inputs, (number,), place=place)
    return build.slice(drawn, 0, Range(before, number)) if before else drawn


def _group(node: Node) -> tuple[int, int]:
    """(elements that are made together, blocks that they are made from): (4, 1), and (2, 1) for types of 64 bits.

    Truncated normal numbers have 256 words reserved for each element, because some numbers are drawn again.
    """
    size = 2 if node.outputs[0].dtype in _LONG else 4
    return size, size * 256 // 4 if node.type == "StatelessTruncatedNormalV2" else 1
