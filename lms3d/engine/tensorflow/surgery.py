"""The edits of a traced graph, by calls of TensorFlow that are not public. Checked with TensorFlow 2.21.

A `FuncGraph` is edited in place, and by the functions below alone. Passes call them (`lms3d.engine.passes`), and tiers, which make
the ops that a pass asks them for; `tests/test_architecture.py` keeps everybody else out.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import tensorflow as tf
from tensorflow.python.eager.polymorphic_function import atomic_function
from tensorflow.python.framework import ops

# -- edges ---------------------------------------------------------------------------------------------------------------


def set_input(op: tf.Operation, index: int, tensor: tf.Tensor) -> None:
    """Make input `index` of `op` read `tensor`."""
    op._update_input(index, tensor)


def redirect(old: tf.Tensor, new: tf.Tensor) -> int:
    """Make all readers of `old` read `new`. Returns the number of inputs that changed."""
    count = 0
    for reader in old.consumers():
        for i, read in enumerate(reader.inputs):
            if read is old:
                set_input(reader, i, new)
                count += 1
    return count


def add_control_inputs(op: tf.Operation, before: Iterable[tf.Operation]) -> None:
    """Make `op` wait for the ops of `before`."""
    op._add_control_inputs(list(before))


def set_control_inputs(op: tf.Operation, before: Iterable[tf.Operation]) -> None:
    """Make `op` wait for its inputs and the ops of `before`, and for no other op."""
    op._remove_all_control_inputs()
    op._add_control_inputs(list(before))


def wait_instead(old: tf.Operation, new: tf.Operation) -> None:
    """Make the ops that wait for `old` without reading it wait for `new`: an op that others wait for runs."""
    for op in old._control_outputs:
        set_control_inputs(op, dict.fromkeys(new if before is old else before for before in op.control_inputs))


ControlInputs: TypeAlias = dict[tf.Operation, list[tf.Operation]]


def control_inputs(graph: tf.Graph) -> ControlInputs:
    """The control inputs of each op, for `restore_control_inputs`."""
    return {op: list(op.control_inputs) for op in graph.get_operations()}


def restore_control_inputs(before: ControlInputs) -> None:
    """Give the ops the control inputs that they had. Ops that were made since then are left alone."""
    for op, waits in before.items():
        if op.control_inputs != waits:
            set_control_inputs(op, waits)


def replace_outputs(graph: tf.Graph, stands_for: Mapping[str, tf.Tensor]) -> None:
    """Make the function of `graph` return other tensors. stands_for: name of a returned tensor -> the new one."""

    def new(tensor: Any) -> Any:
        return stands_for.get(tensor.name, tensor) if isinstance(tensor, tf.Tensor) else tensor

    graph.outputs = [new(t) for t in graph.outputs]
    graph.structured_outputs = tf.nest.map_structure(new, graph.structured_outputs, expand_composites=False)


def set_branch(op: tf.Operation, attribute: str, branch: tf.Graph) -> None:
    """Make an If call the edited graph of one of its branches (`reading.branches`)."""
    name = f"{op.get_attr(attribute).name}_{ops.uid()}"
    op.graph._add_function_recursive(atomic_function.from_func_graph(name, branch, {}))
    op._set_func_attr(attribute, name)


# -- ops -----------------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def insertion(graph: tf.Graph, device: str | None, before: Sequence[tf.Operation] = ()) -> Iterator[None]:
    """Ops that are made in the block go to `graph` on `device` and wait for the ops of `before`."""
    with graph.as_default(), tf.control_dependencies(None), tf.control_dependencies(list(before)), tf.device(device):
        yield


def copy_op(op: tf.Operation, name: str, before: Sequence[tf.Operation]) -> tf.Operation:
    """A copy of `op`, with its inputs and attributes, that runs after the ops of `before`."""
    graph = op.graph
    attributes = {key: value for key, value in op.node_def.attr.items() if key != "_class"}
    with insertion(graph, op.device or None, before):
        made = graph._create_op_internal(
            op.type, list(op.inputs), [t.dtype for t in op.outputs], name=name, attrs=attributes, op_def=op.op_def
        )
    for old, new in zip(op.outputs, made.outputs, strict=True):
        new.set_shape(old.shape)
    return made


def keep(op: tf.Operation) -> None:
    """Forbid the graph optimiser to remove or merge `op`."""
    op._set_attr("_grappler_do_not_remove", tf.compat.v1.AttrValue(b=True))


# -- what a graph remembers ----------------------------------------------------------------------------------------------


def remember_slices(graph: tf.Graph, order: Mapping[str, Any], group: Mapping[str, str]) -> None:
    """Keep for `reading.slices_of`: order (op -> its place) and group (op -> the op of the trace that it is a slab of)."""
    graph.lms3d_slices = (dict(order), dict(group))


def remember_order(graph: tf.Graph, order: Mapping[str, Any]) -> None:
    """Keep for `reading.order_of`: the place of each op, of a step that is whole, too."""
    graph.lms3d_order = dict(order)


def needs(graph: tf.Graph, tier: Any) -> None:
    """Let the functions that `functions.make_function` makes of `graph` from now on hold a `tiers.base.Tier`.

    They cannot run without it. The graph itself does not hold it: if a layer has a custom gradient, TensorFlow keeps the graph for
    ever.
    """
    graph.lms3d_needs = weakref.ref(tier)
