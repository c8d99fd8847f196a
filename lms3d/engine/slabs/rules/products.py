"""Products of matrices and tensors: dense layers over channels, and their gradients.

PRODUCT-1  Every axis has a letter, as in an einsum. If the sliced axis's letter is in the result, each slab gives a slab of the
           result. If it is not, the op sums over the axis, and the results of the slabs are summed.
"""

from __future__ import annotations

import string
from collections.abc import Sequence

from lms3d.engine.slabs.rules.registry import places, rule, shape_of, sliced, summed
from lms3d.engine.slabs.sliced_step import Builder
from lms3d.engine.slabs.values import Node, Ref, Shape, SlabLayout, Sliced, Value


@rule("MatMul", "BatchMatMulV2", "Einsum")
def product(build: Builder, node: Node, values: Sequence[Value]) -> Sequence[Value] | None:
    """Two operands -> their product (PRODUCT-1)."""
    shape, letters = node.outputs[0].shape, _letters(node, [shape_of(v) for v in values])
    cut = next((i for i, v in enumerate(values) if isinstance(v, Sliced)), None)
    if shape is None or letters is None or cut is None:
        return None
    *operands, result = letters
    layout = values[cut].layout  # type: ignore[union-attr]
    letter = operands[cut][layout.axis]
    axes = [one.find(letter) for one in (*operands, result)]
    layouts = [SlabLayout(axis, layout.bounds, layout.groups) if axis >= 0 else None for axis in axes]
    if any(isinstance(v, Sliced) and v.layout != its for v, its in zip(values, layouts[:-1], strict=True)):
        return None
    out, total, pieces = layouts[-1], None, []
    for planes, place in places(layout):
        parts = [
            build.part(v, planes, its) if its is not None else build.whole(v)
            for v, its in zip(values, layouts[:-1], strict=True)
        ]
        inputs = [tuple(parts)] if node.type == "Einsum" else parts
        piece_shape = shape if out is None else out.shape(shape, planes)
        made = build.repeat(inputs, piece_shape, place=place)
        if out is None:
            total = build.grow(total, made)
        else:
            pieces.append(made)
    return [sliced(node.outputs[0], out, pieces)] if out else [summed(build, node.outputs[0], _there(total))]


def _there(total: Ref | None) -> Ref:
    assert total is not None, "there are slabs"
    return total


def _letters(node: Node, shapes: Sequence[Shape]) -> list[str] | None:
    """A letter for each axis of the operands, then of the result. "." stands for an axis of length 1 that is broadcast."""
    if node.type == "Einsum":
        equation = str(node.attributes["equation"]).replace(" ", "")
        operands, arrow, result = equation.partition("->")
        letters = [*operands.split(","), result]
        repeated = any(len(set(one)) < len(one) for one in letters)
        return None if not arrow or "." in equation or repeated else letters
    prefix = "transpose_" if node.type == "MatMul" else "adj_"
    flipped = [bool(node.attributes[prefix + one]) for one in ("ab" if node.type == "MatMul" else "xy")]
    rank = max(map(len, shapes)) - 2
    batch = string.ascii_lowercase[:rank]
    found = []
    for shape, rows, flip in zip(shapes, ("IJ", "JK"), flipped, strict=True):
        own = batch[rank - (len(shape) - 2) :]
        own = "".join("." if n == 1 else one for one, n in zip(own, shape, strict=False))
        found.append(own + (rows[::-1] if flip else rows))
    return [*found, batch + "IK"]
