"""Shapes that follow from known ones; and ShapeN -> constants, if the shapes are known.

A `tf.function` that was traced for any batch size returns tensors of an unknown size, which no plan could count or move.
A ShapeN waits for the last of its tensors, and keeps the others alive until then.

    a, b --> ShapeN --> reader                         constant --> reader
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import tensorflow as tf

from lms3d.engine.passes.base import Function, Normalising
from lms3d.engine.tensorflow import bodies, functions, reading, surgery


class FixShapes(Normalising):
    """Requires a step without a plan. Ensures that nobody reads a known shape from a ShapeN of several tensors."""

    name = "shapes"

    def edit(self, graph: tf.Graph) -> int:
        return infer_shapes(graph) + fix_shapes(graph)

    def ensures(self, function: Function) -> None:
        if left := next(_found(function.graph), None):
            raise RuntimeError(f"pass {self.name}: {left[1].name!r} is still read; please report this graph")


def infer_shapes(graph: tf.Graph) -> int:
    """Tells tensors the shapes that follow from their ops' inputs; returns how many tensors learnt theirs."""
    count = 0
    for op in graph.get_operations():
        unknown = [t for t in op.outputs if not t.shape.is_fully_defined() and t.dtype not in (tf.resource, tf.variant)]
        if unknown and op.inputs and all(t.shape.is_fully_defined() for t in op.inputs) and not reading.in_loop(op):
            with contextlib.suppress(ValueError, TypeError):  # the op knows no more
                for tensor, shape in zip(op.outputs, _inferred(op), strict=True):
                    tensor.set_shape(shape)
            count += sum(t.shape.is_fully_defined() for t in unknown)
    return count


def _inferred(op: tf.Operation) -> list[tf.TensorShape]:
    called = list(reading.functions_of(op).values())
    if len(called) == 1 and (op.type not in bodies.LOOPS or _is_steady(op, called[0])):
        return [t.shape for t in called[0].outputs]
    known = called or reading.is_stateful(op)
    return [t.shape for t in op.outputs] if known else functions.inferred_shapes(op)


def _is_steady(loop: tf.Operation, body: tf.Graph) -> bool:
    """Whether each round returns the shapes that it was given. Else every round may have others, and the first tells nothing of the
    last."""
    pairs = zip(loop.inputs, body.outputs, strict=True)
    return all(given.dtype == tf.variant or given.shape == made.shape for given, made in pairs)


def fix_shapes(graph: tf.Graph) -> int:
    """Lets the readers of known shapes read constants; returns how many inputs changed."""
    count = 0
    for source, shape in list(_found(graph)):
        with surgery.insertion(graph, shape.op.device or None):
            known = tf.constant(source.shape.as_list(), shape.dtype)
        count += surgery.redirect(shape, known)
    return count


def _found(graph: tf.Graph) -> Iterator[tuple[tf.Tensor, tf.Tensor]]:
    """(tensor, its shape) of the shapes that are known, and read from a ShapeN of several tensors."""
    for op in graph.get_operations():
        if op.type == "ShapeN" and len(op.inputs) > 1 and not reading.in_loop(op):
            for source, shape in zip(op.inputs, op.outputs, strict=True):
                if shape.consumers() and source.shape.is_fully_defined():
                    yield source, shape
