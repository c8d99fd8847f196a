"""Reads a traced function for the slicing pass, and carries out its program: the only part of `engine.slabs` that knows TensorFlow.

The function's graph is edited in place: new ops are added, those that stay read what stands for their inputs, and what was replaced
is left behind dead, since nobody reads it any more.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf

from lms3d.engine.native import kernels
from lms3d.engine.slabs.levels import AXIS, found_in
from lms3d.engine.slabs.program import Input, Key, Made, Program
from lms3d.engine.slabs.step import slice_step
from lms3d.engine.slabs.values import Node, Ref, Shape, Spec
from lms3d.engine.tensorflow import surgery
from lms3d.engine.tensorflow.capture import argument, is_argument, is_stateful, traced_order

log = logging.getLogger("lms3d")

SCOPE = "slabs/"

Function: TypeAlias = tf.types.experimental.ConcreteFunction


@dataclass(frozen=True)
class Slicing:
    """What was done to a graph, and the way back. levels: spatial axes of each level, the finest first, in the largest shape of it.
    changed: False where nothing was there to slice."""

    program: Program
    levels: tuple[Shape, ...]
    undo: Callable[[], None]

    @property
    def changed(self) -> bool:
        return bool(self.program.made)


def slice_function(function: Function, slabs: Mapping[int, int]) -> Slicing:
    """Slices the step behind `function`: `slabs` is level -> number. Its graph then also knows the order of its ops."""
    graph = function.graph
    nodes = nodes_of(function)
    levels = tuple({shape[AXIS]: shape[AXIS:] for shape in reversed(found_in(nodes))}.values())[::-1]
    program = slice_step(nodes, [t.name for t in graph.outputs], slabs)
    if not program.made:
        return Slicing(program, levels, lambda: None)
    carrier = _Carrier(graph, program)
    carrier.carry_out()
    log.info("lms: %d tensors sliced, with %d ops", len(program.sliced), len(program.made))
    return Slicing(program, levels, carrier.undo)


def nodes_of(function: Function) -> list[Node]:
    """The ops of a traced step that run, each after those that it waits for."""
    return [_node(op) for op in traced_order(function.graph)]


def _raw_op(kind: str) -> Callable[..., Any] | None:
    """The function that makes an op of this type: TensorFlow's, or of the project's own library, as `LmsMoments` is."""
    own = kernels.operations("CPU") if kind.startswith("Lms") else None
    return getattr(tf.raw_ops, kind, None) or getattr(own, re.sub(r"(?<=[a-z])(?=[A-Z])", "_", kind).lower(), None)


@functools.cache
def _parameters(kind: str) -> tuple[str, ...]:
    """Inputs of a raw op, and its attributes that do not follow from them; () where there is no such function."""
    raw = _raw_op(kind)
    return () if raw is None else tuple(n for n in inspect.signature(raw).parameters if n != "name")


def _node(op: tf.Operation) -> Node:
    known = set(op.node_def.attr)
    names = [n for n in _parameters(op.type) if n in known]
    calls = any(a.HasField("func") for a in op.node_def.attr.values())
    sliceable = not is_stateful(op) and not surgery.in_loop(op) and not calls and bool(_parameters(op.type))
    return Node(
        name=op.name,
        type=op.type,
        inputs=tuple(_spec(t) for t in op.inputs),
        outputs=tuple(_spec(t) for t in op.outputs),
        attributes={n: _plain(op.get_attr(n)) for n in names} if sliceable else {},
        constants=tuple(argument(t) if is_argument(t) else None for t in op.inputs) if sliceable else (),
        control_inputs=tuple(c.name for c in op.control_inputs),
        device=op.device,
        sliceable=sliceable,
    )


def _spec(tensor: tf.Tensor) -> Spec:
    known = tensor.shape.is_fully_defined()
    return Spec(tensor.name, tuple(tensor.shape.as_list()) if known else None, tensor.dtype.name)


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, tf.DType):
        return value.name
    return value


class _Carrier:
    """Makes the ops of a program."""

    def __init__(self, graph: tf.Graph, program: Program) -> None:
        self.graph, self.program = graph, program
        self.made: list[list[tf.Tensor]] = []
        self.constants: dict[tuple[str, bytes, tuple[int, ...]], tf.Tensor] = {}
        # What a node is made into comes before the node, where it stays and only reads what was joined for it.
        self.order: dict[str, tuple[Key, bool]] = {name: (key, True) for name, key in program.kept.items()}
        self.group: dict[str, str] = {}
        self._ways_back: list[Callable[[], None]] = []

    def undo(self) -> None:
        """The function is the whole step again; what was made stays in its graph, and never runs."""
        for way in reversed(self._ways_back):
            way()

    def carry_out(self) -> None:
        with surgery.insertion(self.graph, None):
            for one in self.program.made:
                self.made.append(self._make(one))
        self._redirect()
        self._return()
        self._keep_control_edges()
        surgery.remember_slices(self.graph, self.order, self.group)
        self._ways_back.append(partial(surgery.remember_slices, self.graph, {}, {}))

    def _make(self, one: Made) -> list[tf.Tensor]:
        device = tf.device(one.node.device) if one.node.device else contextlib.nullcontext()
        with device, tf.name_scope(f"{SCOPE}{one.node.name}/"):
            if one.type == "Const":
                outputs = [tf.constant(one.inputs[0], one.outputs[0][1])]
            else:
                outputs = self._raw(one)
        op = outputs[0].op
        self.order[op.name], self.group[op.name] = (one.key, False), one.node.name
        for tensor, (shape, _) in zip(outputs, one.outputs, strict=True):
            if shape is not None:
                tensor.set_shape(shape)
        return outputs

    def _raw(self, one: Made) -> list[tf.Tensor]:
        raw = _raw_op(one.type)
        assert raw is not None, "rules make known ops"
        inputs = [self._input(i) for i in one.inputs]
        given = dict(zip(_parameters(one.type), inputs, strict=False))
        attributes = {k: v for k, v in one.attributes.items() if k not in given}
        result = raw(**given, **attributes)
        if isinstance(result, tf.Operation):
            return []
        return [result] if isinstance(result, tf.Tensor) else list(result)

    def _input(self, one: Input) -> Any:
        if isinstance(one, Ref):
            return self._tensor(one)
        if isinstance(one, tuple):
            return [self._input(i) for i in one]
        array = np.asarray(one)
        key = (array.dtype.str, array.tobytes(), array.shape)
        if key not in self.constants:
            self.constants[key] = tf.constant(array)
            name = self.constants[key].op.name
            self.order[name] = ((0, 0.0, 0), False)
        return self.constants[key]

    def _tensor(self, ref: Ref) -> tf.Tensor:
        return self.graph.get_tensor_by_name(ref.trace) if ref.trace else self.made[ref.op][ref.index]

    def _redirect(self) -> None:
        for (name, index), ref in self.program.redirected.items():
            op = self.graph.get_operation_by_name(name)
            self._ways_back.append(partial(surgery.set_input, op, index, op.inputs[index]))
            surgery.set_input(op, index, self._tensor(ref))

    def _return(self) -> None:
        stands_for = {name: self._tensor(ref) for name, ref in self.program.returned.items()}
        if stands_for:
            back = {new.name: self.graph.get_tensor_by_name(old) for old, new in stands_for.items()}
            self._ways_back.append(partial(surgery.replace_outputs, self.graph, back))
            surgery.replace_outputs(self.graph, stands_for)

    def _keep_control_edges(self) -> None:
        """Who waited for an op that was sliced waits for all that it became."""
        pieces: dict[str, list[tf.Operation]] = {}
        for one, tensors in zip(self.program.made, self.made, strict=True):
            if tensors:
                pieces.setdefault(one.node.name, []).append(tensors[0].op)
        for name in self.program.kept:
            op = self.graph.get_operation_by_name(name)
            gone = [c for c in op.control_inputs if c.name in pieces and c.name not in self.program.kept]
            if gone:
                self._ways_back.append(partial(surgery.set_control_inputs, op, op.control_inputs))
                others = [c for c in op.control_inputs if c not in gone]
                surgery.set_control_inputs(op, [*others, *(p for c in gone for p in pieces[c.name])])
        for one, tensors in zip(self.program.made, self.made, strict=True):
            waits = [c for c in one.node.control_inputs if c in self.program.kept]
            if tensors and waits and one.type == one.node.type:
                surgery.add_control_inputs(tensors[0].op, [self.graph.get_operation_by_name(c) for c in waits])
