"""Two ops that TensorFlow would join into one are kept apart, since the joined kernel rounds otherwise.

TensorFlow's oneDNN pass runs on every graph. It joins two neighbours if they wait for the same ops. An edge that a plan adds to one
of them undoes the join, and last bits change. (And if a convolution and its bias addition wait for the same ops, and for one at
least, the process ends: `Check failed: pred->in_edges().size() == 2`.) So the second op of each pair gets an edge from the op whose
output the first one reads. The edge orders nothing anew, and the first op can never have the same one: TensorFlow drops a control
edge from an op whose output is read.

    x --> convolution --> bias addition                 x --> convolution --> bias addition
                                                        '......................^ control

JOIN-1  Conv2D and BiasAdd: on a processor without AVX2, and in bfloat16, the sum begins with the bias.
JOIN-2  Pad and Conv2D without padding of its own.
JOIN-3  Conv2DBackpropFilter and BiasAddGrad, which read one gradient.

The pass also looks at neighbours to decide on the workspaces of poolings (`ir.PAIRED_TYPES`). Its join of Pad and _FusedConv2D is
not listed here: the remapper, which makes these, is off (`functions.execution`). On a GPU the pass leaves the ops alone.
tests/lms3d/engine/passes/test_joins.py lists the passes that run, and fails if another TensorFlow has more.
"""

from __future__ import annotations

from collections.abc import Iterable

import tensorflow as tf

from lms3d.engine.passes.base import Normalising
from lms3d.engine.tensorflow import reading, surgery

_JOINED = {("Conv2D", "BiasAdd"), ("Pad", "Conv2D")}


class KeepApart(Normalising):
    """Requires a step without a plan. Ensures that TensorFlow joins no pair of ops, with a plan's edges or without."""

    name = "joins"

    def edit(self, graph: tf.Graph) -> int:
        return keep_apart(graph)


def keep_apart(graph: tf.Graph) -> int:
    """Adds the edges to a graph that no plan has edited yet, and to the branches of its Ifs; returns how many.

    An op that waits for another op already is left alone: the two ops of a pair never wait for the same one. An edge from the other
    op's input would also stay if the step was sliced when it was added, and is whole again.
    """
    found = graph.get_operations()
    free = [op for op in found if not op.control_inputs]
    count = keep_copies_apart(free)
    for op in free:
        if op.type == "BiasAddGrad":  # JOIN-3
            count += _wait(op, [r for r in op.inputs[0].consumers() if r.type == "Conv2DBackpropFilter"])
    for op in found:
        for attribute, branch in reading.branches(op).items():
            count += _keep_branch_apart(op, attribute, branch)
    return count


def keep_copies_apart(ops: Iterable[tf.Operation]) -> int:
    """The same for ops that a plan has inserted, as both a convolution and its bias addition may be rematerialised.

    No plan rematerialises a gradient of weights.
    """
    pairs = (op for op in ops if op.inputs and (op.inputs[0].op.type, op.type) in _JOINED)  # JOIN-1, JOIN-2
    return sum(_wait(op, [op.inputs[0].op]) for op in pairs)


def _keep_branch_apart(op: tf.Operation, attribute: str, branch: tf.Graph) -> int:
    before = _edges(branch)
    count = keep_apart(branch)
    if _edges(branch) > before:
        surgery.set_branch(op, attribute, branch)
    return count


def _edges(graph: tf.Graph) -> int:
    return sum(len(op.control_inputs) for op in graph.get_operations())


def _wait(second: tf.Operation, firsts: Iterable[tf.Operation]) -> int:
    """Lets `second` wait for the first input of each of the first ops; returns how many edges are new."""
    if reading.in_loop(second):
        return 0
    waited = second.control_inputs
    new = [op for op in dict.fromkeys(first.inputs[0].op for first in firsts) if op not in waited]
    surgery.add_control_inputs(second, new)
    return len(new)
