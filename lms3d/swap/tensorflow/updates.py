"""Keep each variable where it is: its update waits for all ops that still read its old value.

A read of a variable shares its memory. TensorFlow's updates write in place where nothing else holds that memory; else they copy the
variable into a new piece, and leave the old one behind. Between steps the new piece stays where a plan counts on one free
piece, and each later step needs more than was planned. Reads and updates of a variable are ordered in a traced graph,
but not the ops that use what was read: a gradient that flows on through a convolution may be late, since small ops run whenever
they can.

    kernel --> read --> convolution's input gradient ..control..>  kernel -= change

UPDATE-1  Ops that read through identities, reshapes and slices count, too.
UPDATE-2  What comes after the update in every order is left alone: it reads the old value once more, and the variable moves.
UPDATE-3  So does a variable that is assigned a tensor, as SGD's momentum is: it takes over the memory of that. And updates within
          functions, as Keras accumulates gradients, are not seen.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import tensorflow as tf

from lms3d.swap.ir import ALIAS_TYPES, Op, topological, without_dead
from lms3d.swap.liveness import SLICE_TYPES
from lms3d.swap.tensorflow import surgery
from lms3d.swap.tensorflow.capture import wanted

_MAY_PASS_ON = ALIAS_TYPES | SLICE_TYPES | {"CheckNumerics", "Transpose"}
_IN_PLACE = ("AssignAddVariableOp", "AssignSubVariableOp", "ResourceApply", "ResourceScatter", "ResourceSparseApply")


def hold_back(graph: tf.Graph) -> int:
    """Adds the control edges; returns how many. Results are unchanged."""
    found = graph.get_operations()
    updates = [op for op in found if op.type.startswith(_IN_PLACE) and not surgery.in_loop(op)]
    if not updates:
        return 0
    place = _places(graph, found, {op.name for op in updates})
    holders: dict[str, list[tf.Operation]] = defaultdict(list)
    for op in found:
        if op.type == "ReadVariableOp" and op.name in place:
            holders[op.inputs[0].name] += _readers(op.outputs[0])
    count = 0
    for update in updates:
        here = place.get(update.name, 0)
        known = {*(t.op.name for t in update.inputs), *(op.name for op in update.control_inputs)}
        late = {op.name: op for op in holders[update.inputs[0].name] if place.get(op.name, here) < here}
        waits = [op for name, op in late.items() if name not in known and not surgery.in_loop(op)]
        surgery.add_control_inputs(update, waits)
        count += len(waits)
    return count


def _places(graph: tf.Graph, found: list[tf.Operation], updates: set[str]) -> dict[str, int]:
    """The ops that run, in an order in which updates come as late as they can, among themselves as traced: edges along it make no
    cycle."""
    light = [
        Op(
            op.name,
            op.type,
            tuple(t.name for t in op.inputs),
            tuple(c.name for c in op.control_inputs),
            stateful=surgery.is_stateful(op),
            in_loop=surgery.in_loop(op),
        )
        for op in found
    ]
    ops = topological(without_dead(light, wanted(graph)), urgent=lambda op: op.name not in updates)
    return {op.name: i for i, op in enumerate(ops)}


def _readers(tensor: tf.Tensor) -> Iterator[tf.Operation]:
    """UPDATE-1."""
    for op in tensor.consumers():
        yield op
        if op.type in _MAY_PASS_ON:
            for output in op.outputs:
                yield from _readers(output)
