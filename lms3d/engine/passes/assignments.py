"""A value that a step assigns to a variable is written into the memory that the variable has.

With TensorFlow's AssignVariableOp a variable takes over the memory of the new value, and gives up its own. The new memory lies in
the middle of the step's, where a plan counts on one free piece, and there the variable stays until the next step. SGD's momentum,
averages of weights, RMSprop's and Adafactor's slots and accumulated gradients are assigned in this way. Here the value is copied:

    value ----------------------------------+
      |                                     v
      +--> variable -= 0 x value --> read --> InplaceUpdate --> assign (the variable's own memory)

ASSIGN-1  The first op makes sure that the variable has memory of its own. If anybody else holds the variable's memory (a late
          reader, a tensor that the user keeps, a variable that shares it), TensorFlow gives the variable other memory before it
          updates in place. InplaceUpdate alone would write into the memory of the others. The first op leaves the old value as it
          is: a step that fails between the two loses nothing, unless the new value is not finite.
ASSIGN-2  Then InplaceUpdate copies bit by bit. The assignment changes nothing, as its value has the variable's own memory.
ASSIGN-3  A value is left alone if it is small (`pool_layout.CRUMB_BYTES`), not of floating-point numbers, of an unknown shape, in a
          loop or in a call that stays (UNFOLD-1), or if its variable has no value yet. The branches of an If are edited, too.
ASSIGN-4  TensorFlow computes a value of constants alone once, and keeps it for good: the zeros with which accumulated gradients
          begin anew are as large as the variable. If such a value comes from a fill, broadcast or tile, each step makes it anew.
ASSIGN-5  A thread that reads the variable while the step runs may get parts of both values, and the tensor it read may change.
"""

from __future__ import annotations

from collections.abc import Iterator, Set

import tensorflow as tf

from lms3d.device.pool_layout import CRUMB_BYTES
from lms3d.engine.passes.base import Function, Normalising
from lms3d.engine.tensorflow import reading, surgery
from lms3d.engine.tensorflow.bodies import size

_TYPES = frozenset({tf.float16, tf.bfloat16, tf.float32, tf.float64})  # of ResourceApplyGradientDescent, on any device

_SHAPED = {"Fill": 0, "BroadcastTo": 1, "Tile": 1}  # type -> the input that says how large the output is


class WriteInPlace(Normalising):
    """Requires a step without a plan. Ensures that no large value is assigned that does not lie in its variable's memory."""

    name = "assignments"

    @property
    def applies(self) -> bool:
        return self.target.pooled

    def edit(self, graph: tf.Graph) -> int:
        return write_in_place(graph)

    def ensures(self, function: Function) -> None:
        if left := next(_moving(function.graph, _handles(function.graph), CRUMB_BYTES), None):
            raise RuntimeError(f"pass {self.name}: {left.name!r} still moves its variable; please report this graph")


def write_in_place(graph: tf.Graph, larger_than: int = CRUMB_BYTES) -> int:
    """Edits the assignments of values of more bytes than `larger_than`; returns how many. Results are unchanged, bit by bit."""
    return _write_in_place(graph, _handles(graph), larger_than)


def _handles(graph: tf.Graph) -> set[str]:
    """Names of the tensors that stand for a variable of a fixed shape that has a value."""
    known = {id(v.handle) for v in graph.variables if v.shape.is_fully_defined() and v.is_initialized()}
    return {inner.name for outer, inner in graph.captures if id(outer) in known}


def _moving(graph: tf.Graph, handles: Set[str], larger_than: int) -> Iterator[tf.Operation]:
    """The assignments that would move their variable, in the graph and in branches."""
    for op in graph.get_operations():
        if op.type == "AssignVariableOp" and op.inputs[0].name in handles and _moves(op, larger_than):
            yield op
        for branch in reading.branches(op).values():
            yield from _moving(branch, _handles_within(op, branch, handles), larger_than)


def _handles_within(op: tf.Operation, branch: tf.Graph, handles: Set[str]) -> set[str]:
    """The handles that an If passes on, by their names in a branch."""
    return {inner.name for outer, inner in zip(op.inputs[1:], branch.inputs, strict=True) if outer.name in handles}


def _write_in_place(graph: tf.Graph, handles: Set[str], larger_than: int) -> int:
    """The number of assignments edited. handles: see `_handles`; in a branch they are its inputs."""
    count = 0
    for op in graph.get_operations():
        if op.type == "AssignVariableOp" and op.inputs[0].name in handles and _moves(op, larger_than):
            _copy(op)
            count += 1
        for attribute, branch in reading.branches(op).items():
            if found := _write_in_place(branch, _handles_within(op, branch, handles), larger_than):
                surgery.set_branch(op, attribute, branch)
            count += found
    return count


def _moves(assign: tf.Operation, larger_than: int) -> bool:
    """Whether the variable would move (ASSIGN-3)."""
    value = assign.inputs[1]
    here = value.dtype in _TYPES and (size(value) or 0) > larger_than and not reading.in_loop(assign)
    return here and not (value.op.type == "Reshape" and value.op.inputs[0].op.type == "InplaceUpdate")


def _copy(assign: tf.Operation) -> None:
    handle, value = assign.inputs
    device = assign.device or None
    sources = _constants_behind(value.op)
    elements = value.shape.num_elements()
    with surgery.insertion(assign.graph, device):
        row = tf.constant([1, elements], tf.int64)
        if sources:  # ASSIGN-4: to TensorFlow the value is no longer a constant
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
    """`op` and all ops behind it if it is made of constants alone, which TensorFlow folds into one; empty otherwise."""
    found, left = {}, [op]
    while left:
        one = left.pop()
        if reading.is_stateful(one) or reading.in_loop(one) or not (one.inputs or one.type == "Const"):
            return []
        found[one.name] = one
        left += [t.op for t in one.inputs if t.op.name not in found]
    return list(found.values())
