"""Readers of an identity of several tensors read these themselves.

Custom gradients leave such an op behind. It runs when the last of its inputs is there, and keeps the others alive until then.

    a, b --> IdentityN --> readers                     a --> reader, b --> reader
"""

from __future__ import annotations

from collections.abc import Iterator

import tensorflow as tf

from lms3d.engine.passes.base import Function, Normalising
from lms3d.engine.tensorflow import reading, surgery


class PassIdentities(Normalising):
    """Requires a step without a plan. Ensures that nobody reads an identity of several tensors."""

    name = "identities"

    def edit(self, graph: tf.Graph) -> int:
        return pass_identities(graph)

    def ensures(self, function: Function) -> None:
        for _, alias in _found(function.graph):
            if alias.consumers():
                raise RuntimeError(f"pass {self.name}: {alias.name!r} is still read; please report this graph")


def pass_identities(graph: tf.Graph) -> int:
    """Lets the readers read the tensors behind the identity; returns how many inputs changed."""
    return sum(surgery.redirect(alias, source) for source, alias in _found(graph))


def _found(graph: tf.Graph) -> Iterator[tuple[tf.Tensor, tf.Tensor]]:
    """(tensor, its identity) of the identities of several tensors."""
    for op in graph.get_operations():
        if op.type == "IdentityN" and len(op.inputs) > 1 and not reading.in_loop(op):
            yield from zip(op.inputs, op.outputs, strict=True)
