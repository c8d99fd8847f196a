"""What TensorFlow computes once and keeps: the ops of a function that follow from constants alone. Reads only.

CONST-1  Before a step runs for the first time, TensorFlow replaces each such op by a constant, such as the zeros that a branch
         returns in place of a block. Their memory stays taken until the step is forgotten.
CONST-2  A call, a branch and the body of a loop become a part of the step, each with constants of its own.
"""

from __future__ import annotations

from collections.abc import Iterable

import tensorflow as tf

from lms3d.engine.ir import METADATA_TYPES, RESIDENT_TYPES
from lms3d.engine.tensorflow import reading
from lms3d.engine.tensorflow.bodies import running, size

_SHAPES = METADATA_TYPES - {"BroadcastGradientArgs"}


def folded(graph: tf.Graph) -> frozenset[str]:
    """The names of the ops of a function that follow from constants alone."""
    found = set[str]()
    for op in graph.get_operations():
        if _follows(op, found):
            found.add(op.name)
    return frozenset(found)


def _follows(op: tf.Operation, known: set[str]) -> bool:
    """Whether an op is a constant, or computed from ops that follow from constants, or tells shapes that are known."""
    if op.type in RESIDENT_TYPES:
        return op.type == "Const"
    if reading.is_stateful(op) or reading.in_loop(op) or not op.inputs or any(size(t) is None for t in op.outputs):
        return False
    if op.type in _SHAPES:
        return all(t.shape.is_fully_defined() for t in op.inputs)
    return all(t.op.name in known for t in op.inputs) and not reading.functions_of(op)


def bytes_within(ops: Iterable[tf.Operation]) -> int:
    """The bytes of the constants in the functions that these ops run, and in those that the functions' own ops run (CONST-2)."""
    graphs = [graph for op in ops for graph in reading.functions_of(op).values()]
    return sum(_bytes_of(graph) + bytes_within(running(graph)) for graph in graphs)


def _bytes_of(graph: tf.Graph) -> int:
    """The bytes of the results of `folded` ops that other ops read, or that the function returns."""
    names, returned = folded(graph), {t.name for t in graph.outputs}
    results = [t for op in running(graph) if op.name in names for t in op.outputs]
    lasting = [t for t in results if t.name in returned or any(reader.name not in names for reader in t.consumers())]
    return sum(size(t) or 0 for t in lasting)
