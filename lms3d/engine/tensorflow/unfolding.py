"""A function -> the same function without calls, and with the rounds of its loops one after the other. The given one stays.

A plan moves tensors of the step, and sees none that lie in a function that an op runs. TensorFlow makes the functions of calls
parts of the step when it runs; here that is done before the step is planned. Loops whose rounds are known can be unfolded, too:

    x --> While(push: y = f(x)) --> list --> While(pop: g(y))           x --> f --> y --> f --> y' --> g(y') --> g(y)

UNFOLD-1  A call of a function becomes the ops of that function. Ops with effects wait for what the call waited for, and who
          waited for the call waits for them. Calls that TensorFlow keeps, and programs, stay.
UNFOLD-2  The ops of each round are copied, in the order of the trace, so no bit changes. Numbers that follow from constants, such
          as counters and sizes, become constants.
UNFOLD-3  A list of tensors is known item by item: who reads an item reads the tensor that was put in. An op without a rule gets a
          real list of the same items. If they are more than crumbs, all loops stay: nobody could tell when these items go.
UNFOLD-4  A loop stays if its rounds are not known before it runs, or change shapes; if they have effects or draw numbers of their
          own (to read a variable is no effect); if it holds crumbs alone, which no plan moves; or if its copies would be too many.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import TypeAlias

import numpy as np
import tensorflow as tf

from lms3d.device.pool_layout import CRUMB_BYTES
from lms3d.engine.ir import RESIDENT_TYPES
from lms3d.engine.tensorflow import functions, reading, static_numbers, tensor_lists
from lms3d.engine.tensorflow.bodies import LOOPS, running, size
from lms3d.engine.tensorflow.capture import runs_once, traced_order
from lms3d.engine.tensorflow.tensor_lists import Items, Row, Value, Values
from lms3d.engine.tuning import UNFOLDED_OPS

Function: TypeAlias = tf.types.experimental.ConcreteFunction


def without_calls(function: Function) -> Function:
    """The function without calls (UNFOLD-1); itself if it has none."""
    calls = any(reading.is_inlined(op) for op in function.graph.get_operations())
    return _Unfolding(function, loops=False).made() if calls and functions.Copy.can(function) else function


def has_loops(function: Function) -> bool:
    """Whether the function runs loops that might be unfolded."""
    return any(op.type in LOOPS for op in function.graph.get_operations()) and functions.Copy.can(function)


def without_loops(function: Function) -> Function:
    """The function with its loops unfolded (UNFOLD-2 to UNFOLD-4); itself if there are none that can be."""
    if not has_loops(function):
        return function
    unfolding = _Unfolding(function, loops=True)
    made = unfolding.made()
    return made if unfolding.unfolded and not unfolding.hides else function


class _Body:
    """What has been copied of one function: the values of its tensors, and for each op the copies that stand for it."""

    def __init__(self, scope: str, device: str, waits: Sequence[tf.Operation], rounds: bool) -> None:
        self.scope, self.device, self.waits, self.rounds = scope, device, list(waits), rounds
        self.values: dict[str, Value] = {}
        self.ends: dict[str, list[tf.Operation]] = {}
        self.effects: list[tf.Operation] = []

    def before(self, op: tf.Operation) -> list[tf.Operation]:
        """What stands for the ops of the same function that an op waits for."""
        return list(dict.fromkeys(end for one in op.control_inputs for end in self.ends.get(one.name, ())))

    def waits_of(self, op: tf.Operation) -> list[tf.Operation]:
        """The same, and what stands for the ops that its function waits for, if that matters."""
        return list(dict.fromkeys([*self.before(op), *(self.waits if runs_once(op) or op.type in LOOPS else ())]))


class _Unfolding:
    def __init__(self, function: Function, *, loops: bool) -> None:
        self.function, self.loops = function, loops
        self.copy = functions.Copy(function)
        self.unfolded = 0
        self._left = UNFOLDED_OPS
        self._values = Values(self.copy)
        self._constants: dict[tuple[str, bytes], tf.Tensor] = {}

    def made(self) -> Function:
        graph, body = self.function.graph, _Body("", "", (), rounds=False)
        for old, new in zip(graph.inputs, self.copy.inputs, strict=True):
            body.values[old.name], body.ends[old.op.name] = new, [new.op]
        self._ops(graph, traced_order(graph), body)
        outputs = [self._values.tensor(body.values[t.name]) for t in graph.outputs]
        effects = [end for op in graph.control_outputs for end in body.ends[op.name]]
        return self.copy.finished(outputs, effects)

    @property
    def hides(self) -> bool:
        return self._values.hides

    # -- ops -----------------------------------------------------------------------------------------------------------

    def _ops(self, graph: tf.Graph, ops: Iterable[tf.Operation], body: _Body) -> None:
        for op in ops:
            if op.name not in body.ends:
                values, ends = self._op(op, [body.values[t.name] for t in op.inputs], body)
                body.values |= {t.name: value for t, value in zip(op.outputs, values, strict=True)}
                body.ends[op.name] = ends
                body.effects += ends if runs_once(op) or op in graph.control_outputs else []

    def _op(self, op: tf.Operation, given: list[Value], body: _Body) -> tuple[list[Value], list[tf.Operation]]:
        """The values of an op's results, and the ops that stand for it."""
        if reading.is_inlined(op):
            (called,) = reading.functions_of(op).values()
            return self._pasted(called, op, given, body)
        if self.loops and op.type in LOOPS:
            number = self._rounds(op, given)
            if number is not None:
                return self._unrolled(op, given, number, body)
        if self.loops and (known := self._known(op, given, body)) is not None:
            return known, body.before(op)
        if body.rounds and op.type == "Const" and not op.control_inputs:
            key = (op.device or body.device, hashlib.sha256(op.node_def.attr["value"].SerializeToString()).digest())
            if key not in self._constants:
                self._constants[key] = self._copied(op, [], body).outputs[0]
            return [self._constants[key]], [self._constants[key].op]
        made = self._copied(op, given, body)
        return list(made.outputs), [made]

    def _copied(self, op: tf.Operation, given: Sequence[Value], body: _Body) -> tf.Operation:
        inputs = [self._values.tensor(value) for value in given]
        return self.copy.add(op, inputs, body.waits_of(op), name=body.scope + op.name, device=op.device or body.device)

    def _pasted(
        self,
        graph: tf.Graph,
        op: tf.Operation,
        given: Sequence[Value],
        around: _Body,
        scope: str = "",
        *,
        rounds: bool = False,
    ) -> tuple[list[Value], list[tf.Operation]]:
        """UNFOLD-1: the values that a function returns, and its effects; if it has none, all that the call waited for, and what
        makes the values. Once its gradient has been taken, a function's graph has more outputs than this call: they come last."""
        scope = f"{around.scope}{scope or op.name}/"
        body = _Body(scope, op.device or around.device, around.waits_of(op), around.rounds or rounds)
        passed = given[len(given) - len(graph.inputs) :]
        for inner, value in zip(graph.inputs, passed, strict=True):
            body.values[inner.name], body.ends[inner.op.name] = value, []
        alive = {one.name for one in running(graph)}
        self._ops(graph, [one for one in traced_order(graph) if one.name in alive], body)
        outputs = [body.values[t.name] for t in graph.outputs[: len(op.outputs)]]
        return outputs, list(dict.fromkeys(body.effects or [*_makers(outputs), *_makers(given), *body.waits]))

    # -- loops ---------------------------------------------------------------------------------------------------------

    def _unrolled(
        self, op: tf.Operation, given: list[Value], number: int, around: _Body
    ) -> tuple[list[Value], list[tf.Operation]]:
        (graph,) = reading.functions_of(op).values()
        values, ends = given, list[tf.Operation]()
        for one in range(number):
            values, made = self._pasted(graph, op, values, around, f"{op.name}/{one}", rounds=True)
            ends += made
        self.unfolded += 1
        return values, ends or [*_makers(given), *around.waits_of(op)]

    def _rounds(self, op: tf.Operation, given: Sequence[Value]) -> int | None:
        """How often a loop runs; None if it stays (UNFOLD-4)."""
        condition, bodies = reading.condition_of(op), list(reading.functions_of(op).values())
        if condition is None or len(bodies) != 1:
            return None
        graph, ops = bodies[0], running(bodies[0])
        pairs = zip(graph.inputs, graph.outputs, strict=True)
        if any(t.dtype != tf.variant and not t.shape.is_compatible_with(made.shape) for t, made in pairs):
            return None
        if any(runs_once(one) and one.type not in ("ReadVariableOp", "Placeholder") for one in ops):
            return None
        if not any((size(t) or 0) > CRUMB_BYTES for one in ops for t in one.outputs if one.type not in RESIDENT_TYPES):
            return None
        numbers = [self._values.number(value) for value in given]
        for done in range(UNFOLDED_OPS):
            goes_on = static_numbers.evaluated(condition.outputs[0], condition, numbers, {})
            if goes_on is None:
                return None
            if not goes_on:
                self._left -= done * len(ops)
                return done
            if (done + 1) * len(ops) > self._left:
                return None
            seen: dict[str, np.ndarray | None] = {}
            numbers = [static_numbers.evaluated(t, graph, numbers, seen) for t in graph.outputs]
        return None

    # -- what is known without an op -----------------------------------------------------------------------------------

    def _known(self, op: tf.Operation, given: Sequence[Value], body: _Body) -> list[Value] | None:
        """The values of the results if they are known without an op; None if an op has to be made."""
        if op.type in ("Identity", "StopGradient") and isinstance(given[0], Items | Row | np.ndarray):
            return [given[0]]
        if tensor_lists.concerns(op, given):
            return tensor_lists.results(op, given, self._values)
        if op.type == "Shape" and body.rounds:
            shape = self._values.shape(given[0])
            return None if shape is None else [np.asarray(shape, op.outputs[0].dtype.as_numpy_dtype)]
        if not static_numbers.has_rule(op):
            return None
        number = static_numbers.computed(op, [self._values.number(value) for value in given])
        if number is None:
            return None
        if body.rounds:
            return [number]
        made = self._copied(op, given, body).outputs[0]  # outside of loops the trace stays as it is
        self._values.is_known_as(made, number)
        return [made]


def _makers(values: Sequence[Value]) -> list[tf.Operation]:
    return [value.op for value in values if isinstance(value, tf.Tensor)]
