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

from lms3d.engine.passes.base import Function, Normalising
from lms3d.engine.tensorflow import reading, surgery

_JOINED = {("Conv2D", "BiasAdd"), ("Pad", "Conv2D")}


class KeepApart(Normalising):
    """Requires a step without a plan. Ensures that TensorFlow joins no pair of ops, with a plan's edges or without."""

    name = "joins"

    def edit(self, graph: tf.Graph) -> int:
        return keep_apart(graph)

    def ensures(self, function: Function) -> None:
        _require_apart(function.graph)


def _require_apart(graph: tf.Graph) -> None:
    """RuntimeError if the two ops of a pair wait for the same ops, in the graph or in a branch."""
    for op in graph.get_operations():
        for first in [] if reading.in_loop(op) else _firsts(op):
            if set(first.control_inputs) == set(op.control_inputs):
                raise RuntimeError(
                    f"pass {KeepApart.name}: {first.name!r} and {op.name!r} can still be joined; please report this graph"
                )
        for branch in reading.branches(op).values():
            _require_apart(branch)


def keep_apart(graph: tf.Graph) -> int:
    """Adds the edges to a graph that no plan has edited yet, and to the branches of its Ifs; returns how many.

    An op that waits for another op already is left alone: the two ops of a pair never wait for the same one. An edge from the other
    op's input would also stay if the step was sliced when it was added, and is whole again.
    """
    found = graph.get_operations()
    count = sum(_wait(op, _firsts(op)) for op in found if not op.control_inputs)
    for op in found:
        for attribute, branch in reading.branches(op).items():
            count += _keep_branch_apart(op, attribute, branch)
    return count


def keep_copies_apart(ops: Iterable[tf.Operation]) -> int:
    """The same for ops that a plan has inserted, as both a convolution and its bias addition may be rematerialised.

    No plan rematerialises a gradient of weights.
    """
    return sum(_wait(op, _firsts(op)) for op in ops if op.type != "BiasAddGrad")


def _firsts(second: tf.Operation) -> list[tf.Operation]:
    """The ops that TensorFlow would join with this one, as the first of the two."""
    if second.type == "BiasAddGrad":  # JOIN-3
        return [reader for reader in second.inputs[0].consumers() if reader.type == "Conv2DBackpropFilter"]
    joined = bool(second.inputs) and (second.inputs[0].op.type, second.type) in _JOINED  # JOIN-1, JOIN-2
    return [second.inputs[0].op] if joined else []


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
