"""What TensorFlow knows of a graph, an op or a device, and tells by calls that are not public. Reads only."""

from __future__ import annotations

import copy
import hashlib
import re
from typing import Any

import tensorflow as tf
from tensorflow.python.client import device_lib
from tensorflow.python.framework import config, function_def_to_graph

COMPILED = "_XlaMustCompile"
"""The attribute of a call that XLA compiles as a whole."""

_FRAME_TYPES = frozenset({"Enter", "Exit", "NextIteration", "Switch", "Merge", "LoopCond", "RefEnter", "RefExit"})

# -- ops -----------------------------------------------------------------------------------------------------------------


def in_loop(op: tf.Operation) -> bool:
    """True for ops of a control-flow frame (TensorFlow 1 while loops and conds), which must not be touched."""
    return op._get_control_flow_context() is not None or op.type in _FRAME_TYPES


def is_stateful(op: tf.Operation) -> bool:
    """True for ops that read or write variables, draw random numbers or do I/O."""
    definition = op.op_def
    return definition is None or definition.is_stateful


def waits_for_ranks(op: tf.Operation) -> bool:
    """True for ops that end when all ranks have run them."""
    return op.type.startswith(("Horovod", "Collective"))


def branches(op: tf.Operation) -> dict[str, tf.Graph]:
    """Attribute -> graph of each function that an If chooses from; empty for other ops.

    The inputs of a branch are the If's except for the first. An edit has no effect before `surgery.set_branch`.
    """
    if op.type not in ("If", "StatelessIf"):
        return {}
    found = {name: op.graph._get_function(op.get_attr(name).name) for name in ("then_branch", "else_branch")}
    return {attribute: function.graph for attribute, function in found.items() if function is not None}


_CALLS = frozenset({"PartitionedCall", "StatefulPartitionedCall"})


def functions_of(op: tf.Operation) -> dict[str, tf.Graph]:
    """Attribute -> graph of each function that an op runs: a branch, the body of a loop, what a call calls; empty for other ops.

    The last inputs of the op are each function's inputs. If the op knows their shapes and the trace of the function does not, the
    graph is a copy that knows them. A program (`is_program`) stays closed.
    """
    if op.type in ("While", "StatelessWhile"):
        names: tuple[str, ...] = ("body",)
    elif op.type in _CALLS and not is_program(op):
        names = ("f",)
    else:
        names = ("then_branch", "else_branch") if op.type in ("If", "StatelessIf") else ()
    graphs = {name: _function(op, name) for name in names}
    return {name: graph for name, graph in graphs.items() if graph is not None}


def condition_of(op: tf.Operation) -> tf.Graph | None:
    """The graph of a loop's condition, which has the loop's inputs."""
    return _function(op, "cond")


def _function(op: tf.Operation, attribute: str) -> tf.Graph | None:
    function = op.graph._get_function(op.get_attr(attribute).name)
    if function is None:
        return None
    graph, passed = function.graph, op.inputs[len(op.inputs) - len(function.graph.inputs) :]
    told = [
        outer.shape.is_fully_defined() and not inner.shape.is_fully_defined()
        for outer, inner in zip(passed, graph.inputs, strict=True)
    ]
    if attribute == "cond" or not any(told):
        return graph
    shapes = [
        outer.shape if tells else inner.shape for tells, outer, inner in zip(told, passed, graph.inputs, strict=True)
    ]
    definition = copy.deepcopy(function.cached_definition)
    definition.arg_attr.clear()  # these would have the last word on shapes
    with op.graph.as_default():
        return function_def_to_graph.function_def_to_graph(definition, input_shapes=shapes)


def is_inlined(op: tf.Operation) -> bool:
    """True for a call whose function TensorFlow makes a part of the graph that the call is in."""
    function = op.graph._get_function(op.get_attr("f").name) if op.type in _CALLS else None
    if function is None:
        return False
    marked = [
        attributes[name].b
        for attributes in (op.node_def.attr, function.cached_definition.attr)
        for name in ("_noinline", COMPILED)
        if name in attributes
    ]
    return not any(marked)


def is_program(op: tf.Operation) -> bool:
    """True for a call of a function without effects that XLA compiles as a whole."""
    return op.type == "PartitionedCall" and COMPILED in op.node_def.attr and bool(op.get_attr(COMPILED))


def program_digest(op: tf.Operation) -> str:
    """A hash of the function that an `is_program` op calls; its name does not count."""
    definition = copy.deepcopy(op.graph._get_function(op.get_attr("f").name).cached_definition)
    definition.signature.name = ""
    return hashlib.sha256(definition.SerializeToString(deterministic=True)).hexdigest()[:16]


# -- graphs and functions ------------------------------------------------------------------------------------------------


def slices_of(graph: tf.Graph) -> tuple[dict[str, Any], dict[str, str]]:
    """The order and the groups that `surgery.remember_slices` was given; empty for a graph that is whole."""
    return getattr(graph, "lms3d_slices", ({}, {}))


def order_of(graph: tf.Graph) -> dict[str, Any]:
    """The place of each op, as `surgery.remember_order` or else `remember_slices` was given it; empty for a graph as traced."""
    return getattr(graph, "lms3d_order", {}) or slices_of(graph)[0]


def draws_by_itself(graph: tf.Graph) -> bool:
    """Whether an op keeps the state of its random numbers in its kernel (`tf.random.normal` and the like; Keras's seed generators
    are variables). Traced again, such an op begins with its first number."""
    whole = graph.as_graph_def()
    bodies = [whole.node, *(function.node_def for function in whole.library.function)]
    return any("seed2" in node.attr and not node.op.startswith("Stateless") for body in bodies for node in body)


def was_differentiated(function: tf.types.experimental.ConcreteFunction) -> bool:
    """True after a tape took gradients of `function` from outside: its graph then also returns what the backward pass needs."""
    return len(function.graph.outputs) > len(function.function_type.flat_outputs)


def captured_bytes(function: tf.types.experimental.ConcreteFunction) -> int:
    """Bytes of the variables and tensors that a concrete function holds from outside: weights, slots, constants."""
    seen: dict[int, int] = {}
    for variable in function.graph.variables:
        seen[id(variable)] = variable.shape.num_elements() * variable.dtype.size
    for tensor in function.captured_inputs:
        sized = tensor.dtype not in (tf.resource, tf.variant, tf.string) and tensor.shape.is_fully_defined()
        if sized:
            seen[id(tensor)] = tensor.shape.num_elements() * tensor.dtype.size
    return sum(seen.values())


def digest(function: tf.types.experimental.ConcreteFunction) -> str:
    """A hash of a traced function: equal, in every process, for functions that do the same by the same ops."""
    content = function.graph.as_graph_def().SerializeToString(deterministic=True)
    content += repr([t.name for t in (*function.graph.inputs, *function.graph.outputs)]).encode()
    return hashlib.sha256(content).hexdigest()[:16]


# -- this machine --------------------------------------------------------------------------------------------------------


def is_deterministic() -> bool:
    """Whether `tf.config.experimental.enable_op_determinism` was called."""
    return bool(config.is_op_determinism_enabled())


def gpu_buses() -> dict[int, str]:
    """Number of a GPU -> its PCI bus id, which TensorFlow tells in prose only."""
    described = (d.physical_device_desc for d in device_lib.list_local_devices() if d.device_type == "GPU")
    found = (re.search(r"device: (\d+),.*pci bus id: ([0-9a-fA-F:.]+)", text) for text in described)
    return {int(match.group(1)): match.group(2) for match in found if match}
