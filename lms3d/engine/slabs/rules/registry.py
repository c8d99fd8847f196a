"""The rules by type of op, and what most of them need."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from lms3d.engine.slabs.planes import Range
from lms3d.engine.slabs.sliced_step import Builder
from lms3d.engine.slabs.values import Node, Ref, Shape, SlabLayout, Sliced, Spec, Value, Whole
from lms3d.registry import Registry

Rule = Callable[[Builder, Node, Sequence[Value]], Sequence[Value] | None]
"""The values of a node's outputs; None if the rule does not hold, and the node reads joined tensors. A rule makes no op before it
has decided."""

RULES: Registry[Rule] = Registry("rule")


def rule(*types: str) -> Callable[[Rule], Rule]:
    """Decorator: the function is the rule of ops of these types."""

    def add(function: Rule) -> Rule:
        for kind in types:
            RULES.register(kind)(function)
        return function

    return add


def places(layout: SlabLayout) -> Iterator[tuple[Range, float]]:
    """The planes of each slab, and its place in the order."""
    for planes in layout.ranges:
        yield planes, planes.start / layout.extent


def shape_of(value: Value) -> Shape:
    """The shape of the whole tensor; () if it is not known."""
    return value.spec.shape or ()


def is_sliced(values: Sequence[Value]) -> bool:
    return any(isinstance(v, Sliced) for v in values)


def sliced(spec: Spec, layout: SlabLayout, pieces: Sequence[Ref]) -> Sliced:
    return Sliced(spec, layout, tuple(pieces))


def summed(build: Builder, spec: Spec, total: Ref) -> Whole:
    """A sum over all slabs, as the value of an output."""
    return Whole(build.done(total, spec.dtype), spec)


def broadcast(build: Builder, value: Value, layout: SlabLayout, shape: Shape, planes: Range) -> Ref:
    """The planes of a value that is broadcast against a tensor of `shape`, cut as `layout` says."""
    axis = layout.axis - (len(shape) - len(shape_of(value)))
    if axis < 0 or shape_of(value)[axis] != shape[layout.axis]:
        return build.whole(value)
    return build.part(value, planes, SlabLayout(axis, layout.bounds, layout.groups))


def lined_up(value: Value, layout: SlabLayout, shape: Shape) -> bool:
    """Whether `broadcast` can give the planes of a value: it is whole, or cut along the same axis."""
    if isinstance(value, Whole):
        return True
    axis = layout.axis - (len(shape) - len(shape_of(value)))
    return value.layout.axis == axis and value.layout.extent == layout.extent and value.layout.groups == layout.groups
