"""Instance normalisation with the ops that follow it in a block, as `lms3d.models.fused` builds it.
`src/normalise.cc` defines the ops.

Statistics and sums are taken plane by plane. So slabs have the very same ones; joined, they are the whole tensor's.
"""

from __future__ import annotations

from collections.abc import Sequence

from lms3d.engine.slabs.rules.registry import is_sliced, places, rule, sliced
from lms3d.engine.slabs.rules.windows import layout_of, part, readable
from lms3d.engine.slabs.sliced_step import Builder, Input
from lms3d.engine.slabs.values import Node, Sliced, Value, Whole


@rule("LmsMoments")
def moments(build: Builder, node: Node, values: Sequence[Value]) -> Sequence[Value] | None:
    """x -> mean and variance of each plane."""
    return _by_planes(build, node, values, volumes=1)


@rule("LmsActivateSums")
def sums(build: Builder, node: Node, values: Sequence[Value]) -> Sequence[Value] | None:
    """dy, x, and inputs that belong to all planes -> two sums for each plane."""
    return _by_planes(build, node, values, volumes=2)


@rule("LmsActivate")
def activation(build: Builder, node: Node, values: Sequence[Value]) -> Sequence[Value] | None:
    """x, inputs that belong to all planes, [an addend] -> y."""
    return _by_planes(build, node, values, volumes=1, listed=values[6:])


@rule("LmsActivateGrad")
def gradient(build: Builder, node: Node, values: Sequence[Value]) -> Sequence[Value] | None:
    """dy, x, inputs that belong to all planes, the sums of each plane -> dx."""
    return _by_planes(build, node, values, volumes=2)


@rule("LmsMerge", "LmsParameterGrad")
def of_all_planes(build: Builder, node: Node, values: Sequence[Value]) -> Sequence[Value] | None:
    """Statistics and sums of planes, which are small and joined -> the volume's."""
    if not is_sliced(values):
        return None
    outputs = [(spec.shape, spec.dtype) for spec in node.outputs]
    made = build.make(node.type, [build.whole(v) for v in values], outputs, node.attributes)
    return [Whole(ref, spec) for ref, spec in zip(made, node.outputs, strict=True)]


def _by_planes(
    build: Builder, node: Node, values: Sequence[Value], *, volumes: int, listed: Sequence[Value] | None = None
) -> Sequence[Value] | None:
    """Cuts the first `volumes` inputs, and the list that the op takes after all others. Other inputs are read whole."""
    cut = [*values[:volumes], *(listed or ())]
    layout = next((v.layout for v in cut if isinstance(v, Sliced)), layout_of(build, values[0]))
    if layout is None or not readable(*cut) or any(s.shape is None for s in node.outputs):
        return None
    others: list[Input] = [build.whole(v) for v in values[volumes : 6 if listed is not None else None]]
    pieces = []
    for planes, place in places(layout):
        inputs: list[Input] = [part(build, v, planes) for v in values[:volumes]]
        last: list[Input] = [] if listed is None else [tuple(part(build, v, planes) for v in listed)]
        outputs = [(layout.shape(spec.shape or (), planes), spec.dtype) for spec in node.outputs]
        pieces.append(build.make(node.type, [*inputs, *others, *last], outputs, node.attributes, place=place))
    return [sliced(spec, layout, parts) for spec, parts in zip(node.outputs, zip(*pieces, strict=True), strict=True)]
