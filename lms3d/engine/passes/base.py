"""What a pass is: one edit of a traced graph, which says what it requires, what it ensures, and whether it changed anything."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, TypeAlias

import tensorflow as tf

from lms3d.engine.plan import SCOPE
from lms3d.engine.tensorflow import reading

Function: TypeAlias = tf.types.experimental.ConcreteFunction


class Pass:
    """Edits the graph behind a function in place. `manager.run` calls the three methods, in this order.

    Results stay equal bit by bit; those of a pass that says so (`turned` and `pieces` on a GPU, `slicing`, `compiling`) stay equal
    to rounding.
    """

    name: ClassVar[str]
    """As logs and errors call it."""

    def requires(self, function: Function) -> None:
        """Raises RuntimeError if the graph is not what the pass can work on. Edits nothing."""

    def run(self, function: Function) -> bool:
        """Edits the graph. False if nothing in it changed."""
        raise NotImplementedError

    def ensures(self, function: Function) -> None:
        """Raises RuntimeError if the graph is not what the pass promises. Only called after a change."""

    def __str__(self) -> str:
        """What the pass did, for the log."""
        return self.name


@dataclass(frozen=True, kw_only=True)
class Target:
    """What the step runs on. pooled: a CPU whose pool has a hard limit; a plan foresees the pieces of such a pool."""

    compute_device: str = "CPU:0"
    pooled: bool = False


class Normalising(Pass):
    """A pass that every step gets before it is captured. It changes nothing when it runs again."""

    count: int = 0
    """How many edits the last run made."""

    def __init__(self, target: Target) -> None:
        self.target = target

    @property
    def applies(self) -> bool:
        """Whether steps on this target get the pass."""
        return True

    def requires(self, function: Function) -> None:
        """A plan fits its graph as it was captured: nothing is normalised after that."""
        require_unplanned(self, function)

    def run(self, function: Function) -> bool:
        self.count = self.edit(function.graph)
        return self.count > 0

    def edit(self, graph: tf.Graph) -> int:
        """Edits the graph; returns how many edits it took."""
        raise NotImplementedError

    def __str__(self) -> str:
        return f"{self.name}: {self.count} edits"


def was_rewritten(graph: tf.Graph) -> bool:
    """Whether a plan's nodes are in the graph."""
    return any(op.name.startswith(SCOPE) for op in graph.get_operations())


def require_unplanned(one: Pass, function: Function) -> None:
    """RuntimeError if a plan's nodes are in the graph."""
    if was_rewritten(function.graph):
        raise RuntimeError(
            f"pass {one.name}: found the nodes of a plan; expected a step without any; run it before rewrite"
        )


Returned: TypeAlias = list[tuple[tf.TensorShape, tf.DType]]


def returned(function: Function) -> Returned:
    """The shapes and types of the tensors that the graph returns."""
    return [(tensor.shape, tensor.dtype) for tensor in function.graph.outputs]


def require_returned(one: Pass, function: Function, before: Returned) -> None:
    """RuntimeError if the graph returns tensors of other shapes or types than `before`."""
    for tensor, (shape, dtype) in zip(function.graph.outputs, before, strict=True):
        if tensor.dtype != dtype or not tensor.shape.is_compatible_with(shape):
            raise RuntimeError(
                f"pass {one.name}: {tensor.name!r} is {tensor.shape} of {tensor.dtype.name}; expected {shape} of {dtype.name}; "
                "please report this graph"
            )


def require_whole(one: Pass, function: Function) -> None:
    """RuntimeError if the step has slabs or programs."""
    if reading.slices_of(function.graph)[0]:
        raise RuntimeError(f"pass {one.name}: found slabs or programs; expected a step as traced; take them back first")


def require_without_programs(one: Pass, function: Function) -> None:
    """RuntimeError if the step has programs: no rule slices them."""
    order, group = reading.slices_of(function.graph)
    if order and not group:
        raise RuntimeError(f"pass {one.name}: found programs; expected a step without any; take them back first")
