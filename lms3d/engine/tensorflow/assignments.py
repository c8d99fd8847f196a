"""Write what a step assigns to a variable into the memory that the variable has.

With TensorFlow's AssignVariableOp a variable takes over the memory of the new value, and gives up its own. That memory lies in the
middle of what the step uses, where a plan counts on one free piece, and there the variable stays until the next step. SGD's
momentum, averages of weights, RMSprop's and Adafactor's slots and accumulated gradients are assigned so. Here the value is copied:

    value ----------------------------------+
      |                                     v
      +--> variable -= 0 x value --> read --> InplaceUpdate --> assign (the variable's own memory)

ASSIGN-1  The first op is there for what TensorFlow does before it updates in place: where anybody else holds the memory of the
          variable (a late reader, a tensor that the user keeps, a variable that shares it), the variable gets its own first.
          InplaceUpdate alone would write into theirs. The first op leaves the old value as it is: a step that fails between the
          two loses nothing, unless the new value is not finite.
ASSIGN-2  Then InplaceUpdate copies bit by bit, and to assign what has the variable's own memory changes nothing.
ASSIGN-3  Left alone: what is small (`pool_layout.CRUMB_BYTES`), no floating-point number, of an unknown shape, in a loop or in a
          called function, or assigned to a variable that has no value yet. The branches of an If are edited, too.
ASSIGN-4  What is made of constants alone, such as the zeros where accumulated gradients begin anew, TensorFlow makes once and
          keeps, as large as the variable, for good. Where it comes from a fill, broadcast or tile it is made in each step.
ASSIGN-5  A thread that reads the variable while the step runs may get a part of either value, and what it has read may change.
"""

from __future__ import annotations

from collections.abc import Set

import tensorflow as tf

from lms3d.device.pool_layout import CRUMB_BYTES
from lms3d.engine.tensorflow import surgery
from lms3d.engine.tensorflow.capture import size

_TYPES = frozenset({tf.float16, tf.bfloat16, tf.float32, tf.float64})  # of ResourceApplyGradientDescent, on any device

_SHAPED = {"Fill": 0, "BroadcastTo": 1, "Tile": 1}  # type -> the input that says how large the output is


def write_in_place(graph: tf.Graph, larger_than: int = CRUMB_BYTES) -> int:
    """Edits the graph, for values of more bytes; returns how many assignments. Results are unchanged, bit by bit."""
    known = {id(v.handle) for v in graph.variables if v.shape.is_fully_defined() and v.is_initialized()}
    return _write_in_place(graph, {inner.name for outer, inner in graph.captures if id(outer) in known}, larger_than)


def _write_in_place(graph: tf.Graph, handles: Set[str], larger_than: int) -> int:
    """handles: names of the tensors that stand for a variable of a fixed shape, with a value."""
    count = 0
    for op in graph.get_operations():
        if op.type == "AssignVariableOp" and op.inputs[0].name in handles and _moves(op, larger_than):
            _copy(op)
            count += 1
        for attribute, branch in surgery.branches(op).items():
            passed = zip(op.inputs[1:], branch.inputs, strict=True)
            known = {inner.name for outer, inner in passed if outer.name in handles}
            if found := _write_in_place(branch, known, larger_than):
                surgery.set_branch(op, attribute, branch)
            count += found
    return count


def _moves(assign: tf.Operation, larger_than: int) -> bool:
    """Whether the variable would move (ASSIGN-3)."""
    value = assign.inputs[1]
    here = value.dtype in _TYPES and (size(value) or 0) > larger_than and not surgery.in_loop(assign)
    return here and not (value.op.type == "Reshape" and value.op.inputs[0].op.type == "InplaceUpdate")


def _copy(assign: tf.Operation) -> None:
    handle, value = assign.inputs
    device = assign.device or None
    sources = _constants_behind(value.op)
    elements = value.shape.num_elements()
    with surgery.insertion(assign.graph, device):
        row = tf.constant([1, elements], tf.int64)
        if sources:  # ASSIGN-4: no constant, as TensorFlow sees it
            nothing = 0 * tf.reduce_prod(tf.raw_ops.VariableShape(input=handle, out_type=tf.int64))
            row += nothing
            for op in sources:
                if op.type in _SHAPED:
                    shape = op.inputs[_SHAPED[op.type]]
                    surgery.set_input(op, _SHAPED[op.type], shape + tf.cast(nothing, shape.dtype))
    with surgery.insertion(assign.graph, device, assign.control_inputs):
        zero = tf.zeros((), value.dtype)
        own = tf.raw_ops.ResourceApplyGradientDescent(var=handle, alpha=zero, delta=value)  # ASSIGN-1
    with surgery.insertion(assign.graph, device, [own]):
        memory = tf.reshape(tf.raw_ops.ReadVariableOp(resource=handle, dtype=value.dtype), row)
        written = tf.raw_ops.InplaceUpdate(x=memory, i=[0], v=tf.reshape(value, row))  # ASSIGN-2
        written.set_shape([1, elements])
        surgery.set_input(assign, 1, tf.reshape(written, value.shape))


def _constants_behind(op: tf.Operation) -> list[tf.Operation]:
    """`op` and all that it is made from, where these are constants alone, which TensorFlow folds into one; else empty."""
    found, left = {}, [op]
    while left:
        one = left.pop()
        if surgery.is_stateful(one) or surgery.in_loop(one) or not (one.inputs or one.type == "Const"):
            return []
        found[one.name] = one
        left += [t.op for t in one.inputs if t.op.name not in found]
    return list(found.values())
