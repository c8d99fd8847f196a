"""Tensors of the largest levels -> slabs: reads a trace for `engine.slabs`, and makes the ops of the sliced step.

    x --> conv --> y --> reader                         x --> Slice --> conv --> y' --+
                                                        '---> Slice --> conv --> y''--+--> ConcatV2 --> reader

New ops are added to the graph. Ops that stay read the tensors that stand for their inputs. Ops that were replaced stay behind dead,
since nobody reads them any more. The edit can be taken back (`edits`).
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
from typing import Any

import numpy as np
import tensorflow as tf

from lms3d.engine.native import kernels
from lms3d.engine.passes.base import (
    Function,
    Pass,
    Returned,
    require_returned,
    require_unplanned,
    require_without_programs,
    returned,
)
from lms3d.engine.passes.edits import Edits
from lms3d.engine.slabs.levels import AXIS, found_in
from lms3d.engine.slabs.sliced_step import Input, Key, Made, SlicedStep
from lms3d.engine.slabs.step import slice_step
from lms3d.engine.slabs.values import Node, Ref, Shape, Spec
from lms3d.engine.tensorflow import reading, surgery
from lms3d.engine.tensorflow.capture import argument, is_argument, runs_once, traced_order

log = logging.getLogger("lms3d")

SCOPE = "slabs/"


@dataclass(frozen=True)
class Slicing:
    """What slicing did to a graph.

    levels: the spatial axes of each level, the finest first, in the largest shape of the level. edits: None if there was nothing to
    slice.
    """

    step: SlicedStep
    levels: tuple[Shape, ...]
    edits: Edits | None = None

    @property
    def changed(self) -> bool:
        return self.edits is not None


class Slice(Pass):
    """Requires a step without a plan and without programs. Ensures equal results, to rounding, of the same shapes.

    slabs: level -> number of slabs.
    """

    name = "slice"

    def __init__(self, slabs: Mapping[int, int]) -> None:
        self.slabs = slabs
        self.made: Slicing | None = None
        self._returned: Returned = []

    def requires(self, function: Function) -> None:
        require_unplanned(self, function)
        require_without_programs(self, function)
        self._returned = returned(function)

    def run(self, function: Function) -> bool:
        self.made = slice_function(function, self.slabs)
        return self.made.changed

    def ensures(self, function: Function) -> None:
        require_returned(self, function, self._returned)

    def __str__(self) -> str:
        sliced = 0 if self.made is None else len(self.made.step.sliced)
        return f"{self.name}: {sliced} tensors"


def slice_function(function: Function, slabs: Mapping[int, int]) -> Slicing:
    """Slices the step behind `function`. slabs: level -> number. The graph then also knows the order of its ops."""
    graph = function.graph
    nodes = nodes_of(function)
    levels = tuple({shape[AXIS]: shape[AXIS:] for shape in reversed(found_in(nodes))}.values())[::-1]
    step = slice_step(nodes, [t.name for t in graph.outputs], slabs)
    if not step.made:
        return Slicing(step, levels)
    carrier = _Carrier(graph, step)
    carrier.carry_out()
    log.info("lms: %d tensors sliced, with %d ops", len(step.sliced), len(step.made))
    return Slicing(step, levels, carrier.edits)


def nodes_of(function: Function) -> list[Node]:
    """The ops of a traced step that run, each after the ops that it waits for."""
    return [_node(op) for op in traced_order(function.graph)]


def _raw_op(kind: str) -> Callable[..., Any] | None:
    """The function that makes an op of this type: TensorFlow's, or of the project's own library, as `LmsMoments` is."""
    own = kernels.operations("CPU") if kind.startswith("Lms") else None
    return getattr(tf.raw_ops, kind, None) or getattr(own, re.sub(r"(?<=[a-z])(?=[A-Z])", "_", kind).lower(), None)


@functools.cache
def _parameters(kind: str) -> tuple[str, ...]:
    """Inputs of a raw op, and its attributes that do not follow from them; () if there is no such function."""
    raw = _raw_op(kind)
    return () if raw is None else tuple(n for n in inspect.signature(raw).parameters if n != "name")


def _node(op: tf.Operation) -> Node:
    known = set(op.node_def.attr)
    names = [n for n in _parameters(op.type) if n in known]
    calls = any(a.HasField("func") for a in op.node_def.attr.values())
    sliceable = not runs_once(op) and not reading.in_loop(op) and not calls and bool(_parameters(op.type))
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
    """Makes the ops of a sliced step."""

    def __init__(self, graph: tf.Graph, step: SlicedStep) -> None:
        self.graph, self.step = graph, step
        self.made: list[list[tf.Tensor]] = []
        self.constants: dict[tuple[str, bytes, tuple[int, ...]], tf.Tensor] = {}
        # The new ops of a node come before the node itself, if it stays and only reads the tensors that they joined.
        self.order: dict[str, tuple[Key, bool]] = {name: (key, True) for name, key in step.kept.items()}
        self.group: dict[str, str] = {}
        self.edits = Edits(graph)

    def carry_out(self) -> None:
        with surgery.insertion(self.graph, None):
            for one in self.step.made:
                self.made.append(self._make(one))
        self._redirect()
        self._return()
        self._keep_control_edges()
        remember = partial(surgery.remember_slices, self.graph)
        self.edits.make(partial(remember, self.order, self.group), partial(remember, {}, {}))

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
        for (name, index), ref in self.step.redirected.items():
            op = self.graph.get_operation_by_name(name)
            read = partial(surgery.set_input, op, index)
            self.edits.make(partial(read, self._tensor(ref)), partial(read, op.inputs[index]))

    def _return(self) -> None:
        stands_for = {name: self._tensor(ref) for name, ref in self.step.returned.items()}
        if stands_for:
            back = {new.name: self.graph.get_tensor_by_name(old) for old, new in stands_for.items()}
            replace = partial(surgery.replace_outputs, self.graph)
            self.edits.make(partial(replace, stands_for), partial(replace, back))

    def _keep_control_edges(self) -> None:
        """Lets ops that waited for a sliced op wait for all of its slabs."""
        pieces: dict[str, list[tf.Operation]] = {}
        for one, tensors in zip(self.step.made, self.made, strict=True):
            if tensors:
                pieces.setdefault(one.node.name, []).append(tensors[0].op)
        for name in self.step.kept:
            op = self.graph.get_operation_by_name(name)
            gone = [c for c in op.control_inputs if c.name in pieces and c.name not in self.step.kept]
            if gone:
                wait = partial(surgery.set_control_inputs, op)
                others = [c for c in op.control_inputs if c not in gone]
                new = [*others, *(p for c in gone for p in pieces[c.name])]
                self.edits.make(partial(wait, new), partial(wait, op.control_inputs))
        for one, tensors in zip(self.step.made, self.made, strict=True):
            waits = [c for c in one.node.control_inputs if c in self.step.kept]
            if tensors and waits and one.type == one.node.type:
                surgery.add_control_inputs(tensors[0].op, [self.graph.get_operation_by_name(c) for c in waits])
