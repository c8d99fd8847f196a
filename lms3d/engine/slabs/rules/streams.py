"""Volumes that come into a step, or leave it, plane by plane (`engine.slabs.streams`)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lms3d.engine.slabs import streams
from lms3d.engine.slabs.rules.registry import places, rule, sliced, summed
from lms3d.engine.slabs.sliced_step import Builder
from lms3d.engine.slabs.values import Node, Ref, Sliced, Value


@rule(streams.OP_TYPE)
def stream(build: Builder, node: Node, values: Sequence[Value]) -> Sequence[Value] | None:
    """One op for each slab. Any other function of Python's reads joined tensors."""
    token = node.attributes["token"]
    if token in streams.READERS:
        return _read(build, node, values[2])
    return _written(build, node, values[0]) if token in streams.WRITERS else None


def _read(build: Builder, node: Node, start: Value) -> Sequence[Value] | None:
    """First, end, start -> the planes between the first two."""
    spec = node.outputs[0]
    layout = build.levels.layout(spec.shape)
    if layout is None or spec.shape is None:
        return None
    pieces = []
    for planes, place in places(layout):
        inputs = [(np.int32(planes.start), np.int32(planes.stop), build.whole(start))]
        outputs = [(layout.shape(spec.shape, planes), spec.dtype)]
        made = build.make(node.type, inputs, outputs, node.attributes, place=place)
        pieces.append(made[0])
    return [sliced(spec, layout, pieces)]


def _written(build: Builder, node: Node, value: Value) -> Sequence[Value] | None:
    """Planes, first -> the number of planes; that of all slabs is their sum."""
    if not isinstance(value, Sliced) or value.layout.groups > 1:
        return None
    total: Ref | None = None
    for piece, (planes, place) in zip(value.pieces, places(value.layout), strict=True):
        inputs = [(piece, np.int32(planes.start))]
        made = build.make(node.type, inputs, [((), node.outputs[0].dtype)], node.attributes, place=place)
        total = build.grow(total, made[0])
    assert total is not None, "a sliced tensor has slabs"
    return [summed(build, node.outputs[0], total)]
