"""Ops that TensorFlow would join into one are kept apart, since the joined kernel rounds otherwise.

TensorFlow's oneDNN pass runs on every graph. It joins two neighbours if they wait for the same ops: so an edge that a plan adds to
one of them undoes the join, and last bits change. (And two convolutions and bias additions that wait for the same op, and for one
at least, end the process: `Check failed: pred->in_edges().size() == 2`.) Of each pair the second op therefore gets an edge from
what the first reads. It orders nothing that was not ordered before, and the first can never have the same one: TensorFlow drops a
control edge from an op whose output is read.

    x --> convolution --> bias addition                 x --> convolution --> bias addition
                                                        '......................^ control

JOIN-1  Conv2D and BiasAdd: on a processor without AVX2, and in bfloat16, the sum begins with the bias.
JOIN-2  Pad and Conv2D without padding of its own.
JOIN-3  Conv2DBackpropFilter and BiasAddGrad, which read one gradient.

By an op's neighbours the pass also decides on the workspaces of poolings (`ir.PAIRED_TYPES`). Its join of Pad and _FusedConv2D has
none: the remapper, which makes these, is off (`surgery.execution`). On a GPU the pass leaves the ops alone.
tests/lms3d/engine/tensorflow/test_joins.py lists the passes that run, and fails if another TensorFlow has more.
"""

from __future__ import annotations

from collections.abc import Iterable

import tensorflow as tf

from lms3d.engine.tensorflow import surgery

_JOINED = {("Conv2D", "BiasAdd"), ("Pad", "Conv2D")}


def keep_apart(graph: tf.Graph) -> None:
    """Adds the edges to a graph that no plan has edited yet, and to the branches of its Ifs.

    An op that waits for something already is left alone: one of a pair never waits for what the other waits for, and an edge that
    was added while the step was sliced would stay when it is whole again.
    """
    found = graph.get_operations()
    free = [op for op in found if not op.control_inputs]
    keep_copies_apart(free)
    for op in free:
        if op.type == "BiasAddGrad":  # JOIN-3
            _wait(op, [r for r in op.inputs[0].consumers() if r.type == "Conv2DBackpropFilter"])
    for op in found:
        for attribute, branch in surgery.branches(op).items():
            _keep_branch_apart(op, attribute, branch)


def keep_copies_apart(ops: Iterable[tf.Operation]) -> None:
    """The same for ops that a plan has inserted: a convolution and its bias addition may both be computed again.

    Nobody computes a gradient of weights again.
    """
    for op in ops:
        if op.inputs and (op.inputs[0].op.type, op.type) in _JOINED:  # JOIN-1, JOIN-2
            _wait(op, [op.inputs[0].op])


def _keep_branch_apart(op: tf.Operation, attribute: str, branch: tf.Graph) -> None:
    before = _edges(branch)
    keep_apart(branch)
    if _edges(branch) > before:
        surgery.set_branch(op, attribute, branch)


def _edges(graph: tf.Graph) -> int:
    return sum(len(op.control_inputs) for op in graph.get_operations())


def _wait(second: tf.Operation, firsts: Iterable[tf.Operation]) -> None:
    """For what each of the first ops reads first."""
    if not surgery.in_loop(second):
        surgery.add_control_inputs(second, dict.fromkeys(first.inputs[0].op for first in firsts))
