"""A function -> the same function without calls, and with the rounds of its loops one after the other. The given one stays.

A plan moves tensors of the step, and sees none that lie in a function that an op runs. TensorFlow makes the functions of calls
parts of the step when it runs; here that is done before the step is planned. Loops whose rounds are known can be unfolded, too:

    x --> While(push: y = f(x)) --> list --> While(pop: g(y))           x --> f --> y --> f --> y' --> g(y') --> g(y)

UNFOLD-1  A call of a function becomes the ops of that function. Ops with effects wait for what the call waited for, and who
          waited for the call waits for them. Calls that TensorFlow keeps, and programs, stay.
UNFOLD-2  The ops of each round are copied, in the order of the trace, so no bit changes. Numbers that follow from constants, such
          as counters and sizes, become constants.
UNFOLD-3  A list of tensors is known item by item: who reads an item reads the tensor that was put in. An op without a rule gets a
          real list of the same items.
UNFOLD-4  A loop stays if its rounds are not known before it runs, or change shapes; if they have effects or draw numbers of their
          own (to read a variable is no effect); if it holds crumbs alone, which no plan moves; or if its copies would be too many.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf

from lms3d.device.pool_layout import CRUMB_BYTES
from lms3d.engine.ir import RESIDENT_TYPES
from lms3d.engine.tensorflow import functions, reading
from lms3d.engine.tensorflow.bodies import LOOPS, running, size
from lms3d.engine.tensorflow.capture import runs_once, traced_order
from lms3d.engine.tuning import UNFOLDED_OPS

Function: TypeAlias = tf.types.experimental.ConcreteFunction


@dataclass(frozen=True)
class Row:
    """The part of a tensor that has this index along the first axis."""

    tensor: tf.Tensor
    index: int


@dataclass(frozen=True)
class Items:
    """What a list of tensors holds (UNFOLD-3); None for an item that was never set.

    shape: that of each item, as the maker of the list was told it; -1 if unknown. whole: the tensor whose rows the items are, or
    None.
    """

    dtype: tf.DType
    held: tuple[tf.Tensor | np.ndarray | Row | None, ...]
    shape: np.ndarray = field(default_factory=lambda: np.asarray(-1, np.int32))
    whole: tf.Tensor | None = None

    def of(self, *held: tf.Tensor | np.ndarray | Row | None) -> Items:
        """A list of the same kind that holds other items."""
        return replace(self, held=held, whole=None)


Value: TypeAlias = tf.Tensor | np.ndarray | Row | Items
"""What stands for a tensor of the trace: a tensor of the new graph, a number that is known, an item, or a list."""


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
    return made if unfolding.unfolded else function


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
        self._constants: dict[tuple[Any, ...], tf.Tensor] = {}
        self._rows: dict[tuple[str, int], tf.Tensor] = {}
        self._numbers: dict[str, np.ndarray] = {}

    def made(self) -> Function:
        graph, body = self.function.graph, _Body("", "", (), rounds=False)
        for old, new in zip(graph.inputs, self.copy.inputs, strict=True):
            body.values[old.name], body.ends[old.op.name] = new, [new.op]
        self._ops(graph, traced_order(graph), body)
        outputs = [self._tensor(body.values[t.name]) for t in graph.outputs]
        effects = [end for op in graph.control_outputs for end in body.ends[op.name]]
        return self.copy.finished(outputs, effects)

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
        inputs = [self._tensor(value) for value in given]
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
        numbers = [self._number(value) for value in given]
        for done in range(UNFOLDED_OPS):
            goes_on = _evaluated(condition.outputs[0], condition, numbers, {})
            if goes_on is None:
                return None
            if not goes_on:
                self._left -= done * len(ops)
                return done
            if (done + 1) * len(ops) > self._left:
                return None
            seen: dict[str, np.ndarray | None] = {}
            numbers = [_evaluated(t, graph, numbers, seen) for t in graph.outputs]
        return None

    # -- numbers and lists ---------------------------------------------------------------------------------------------

    def _number(self, value: Value) -> np.ndarray | None:
        if isinstance(value, np.ndarray):
            return value
        if not isinstance(value, tf.Tensor) or not _is_number(value):
            return None
        if value.name not in self._numbers:
            found = tf.get_static_value(value)
            if found is None:
                return None
            self._numbers[value.name] = np.asarray(found)
        return self._numbers[value.name]

    def _known(self, op: tf.Operation, given: Sequence[Value], body: _Body) -> list[Value] | None:
        """The values of the results if they are known without an op; None if an op has to be made."""
        if op.type in ("Identity", "StopGradient") and isinstance(given[0], Items | Row | np.ndarray):
            return [given[0]]
        if op.type in _MAKES_LISTS or any(isinstance(value, Items) for value in given):
            rule = _LISTS.get(op.type)
            return None if rule is None else rule(self, op, given)
        if not body.rounds:  # outside of loops the trace stays as it is
            numbers = [self._number(value) for value in given]
            if op.type in _NUMBERS and numbers and all(n is not None for n in numbers) and _is_number(op.outputs[0]):
                made = self._copied(op, given, body).outputs[0]
                self._numbers[made.name] = np.asarray(_NUMBERS[op.type](op, *numbers))
                return [made]
            return None
        return self._known_number(op, given)

    def _known_number(self, op: tf.Operation, given: Sequence[Value]) -> list[Value] | None:
        if op.type == "Shape" and (shape := self._shape(given[0])) is not None:
            return [np.asarray(shape, op.outputs[0].dtype.as_numpy_dtype)]
        if op.type not in _NUMBERS or not _is_number(op.outputs[0]):
            return None
        numbers = [self._number(value) for value in given]
        known = [n for n in numbers if n is not None]
        return [np.asarray(_NUMBERS[op.type](op, *known))] if known and len(known) == len(numbers) else None

    def _shape(self, value: Value) -> Sequence[int] | None:
        if isinstance(value, np.ndarray):
            return value.shape
        if isinstance(value, Items):
            return None
        shape = value.tensor.shape[1:] if isinstance(value, Row) else value.shape
        return tuple(shape) if shape.is_fully_defined() else None

    def _tensor(self, value: Value) -> tf.Tensor:
        """The tensor of the new graph that a value is."""
        if isinstance(value, tf.Tensor):
            return value
        with self.copy.insertion():
            if isinstance(value, np.ndarray):
                key = (value.dtype.str, value.tobytes(), value.shape)
                if key not in self._constants:
                    self._constants[key] = tf.constant(value)
                return self._constants[key]
            return self._row(value) if isinstance(value, Row) else self._real(value)

    def _row(self, row: Row) -> tf.Tensor:
        key, shape = (row.tensor.name, row.index), row.tensor.shape
        if key not in self._rows:
            begin, extent = [row.index, *[0] * (shape.rank - 1)], [1, *shape[1:]]
            self._rows[key] = tf.reshape(tf.slice(row.tensor, begin, extent), shape[1:])
        return self._rows[key]

    def _real(self, items: Items) -> tf.Tensor:
        if items.whole is not None:
            return tf.raw_ops.TensorListFromTensor(tensor=items.whole, element_shape=items.shape)
        made = tf.raw_ops.TensorListReserve(
            element_shape=items.shape, num_elements=len(items.held), element_dtype=items.dtype
        )
        for i, item in enumerate(items.held):
            if item is not None:
                made = tf.raw_ops.TensorListSetItem(input_handle=made, index=i, item=self._tensor(item))
        return made

    # -- rules of lists: the values of the results, or None if they are not known --------------------------------------

    def reserve(self, op: tf.Operation, given: Sequence[Value]) -> list[Value] | None:
        number = self._number(given[1]) if op.type == "TensorListReserve" else np.asarray(0)
        return (
            None
            if number is None
            else [Items(op.get_attr("element_dtype"), (None,) * int(number), self._items_shape(given[0]))]
        )

    def _items_shape(self, value: Value) -> np.ndarray:
        known = value if isinstance(value, np.ndarray) else tf.get_static_value(self._tensor(value))
        return np.asarray(-1 if known is None else known, np.int32)

    def push(self, op: tf.Operation, given: Sequence[Value]) -> list[Value] | None:
        items, item = given
        if not isinstance(items, Items) or isinstance(item, Items):
            return None
        return [items.of(*items.held, item)]

    def pop(self, op: tf.Operation, given: Sequence[Value]) -> list[Value] | None:
        items = given[0]
        if not isinstance(items, Items) or not items.held or items.held[-1] is None:
            return None
        return [items.of(*items.held[:-1]), items.held[-1]]

    def put(self, op: tf.Operation, given: Sequence[Value]) -> list[Value] | None:
        items, index, item = given[0], self._number(given[1]), given[2]
        if not isinstance(items, Items) or index is None or isinstance(item, Items) or not 0 <= index < len(items.held):
            return None
        return [items.of(*items.held[: int(index)], item, *items.held[int(index) + 1 :])]

    def get(self, op: tf.Operation, given: Sequence[Value]) -> list[Value] | None:
        items, index = given[0], self._number(given[1])
        if not isinstance(items, Items) or index is None or not 0 <= index < len(items.held):
            return None
        item = items.held[int(index)]
        return None if item is None else [item]

    def rows(self, op: tf.Operation, given: Sequence[Value]) -> list[Value] | None:
        tensor = self._tensor(given[0]) if not isinstance(given[0], Items) else None
        if tensor is None or not tensor.shape.is_fully_defined() or tensor.shape.rank < 1:
            return None
        held = tuple(Row(tensor, i) for i in range(tensor.shape[0]))
        return [Items(tensor.dtype, held, self._items_shape(given[1]), tensor)]

    def stack(self, op: tf.Operation, given: Sequence[Value]) -> list[Value] | None:
        items = given[0]
        if not isinstance(items, Items) or not items.held:
            return None
        held = [item for item in items.held if item is not None]
        if len(held) < len(items.held) or len({self._shape(item) for item in held}) != 1:
            return None
        tensors = [self._tensor(item) for item in held]
        with self.copy.insertion(op.device):
            return [tf.stack(tensors)]

    def length(self, op: tf.Operation, given: Sequence[Value]) -> list[Value] | None:
        return [np.asarray(len(given[0].held), np.int32)] if isinstance(given[0], Items) else None

    def shape(self, op: tf.Operation, given: Sequence[Value]) -> list[Value] | None:
        if not isinstance(given[0], Items):
            return None
        shapes = {self._shape(item) for item in given[0].held if item is not None}
        known = shapes.pop() if len(shapes) == 1 else None
        return [np.asarray(-1 if known is None else known, op.outputs[0].dtype.as_numpy_dtype)]

    def zeros(self, op: tf.Operation, given: Sequence[Value]) -> list[Value] | None:
        items = given[0]
        if not isinstance(items, Items) or None in items.held or items.dtype == tf.variant:
            return None
        tensors = [self._tensor(item) for item in items.held if item is not None]
        with self.copy.insertion(op.device):
            return [items.of(*map(tf.zeros_like, tensors))]

    def add(self, op: tf.Operation, given: Sequence[Value]) -> list[Value] | None:
        """An item that was never set is nothing, and adds nothing. Sums of three or more items depend on their order: no rule."""
        lists = [value for value in given if isinstance(value, Items)]
        if len({len(one.held) for one in lists}) != 1 or len(lists) < len(given) or lists[0].dtype == tf.variant:
            return None
        places = [
            [item for item in held if item is not None] for held in zip(*(one.held for one in lists), strict=True)
        ]
        if any(len(place) > 2 for place in places):
            return None
        return [lists[0].of(*(self._sum(op, *place) for place in places))]

    def _sum(self, op: tf.Operation, first: Any = None, second: Any = None) -> Any:
        if second is None:
            return first
        x, y = self._tensor(first), self._tensor(second)
        with self.copy.insertion(op.device):
            return tf.raw_ops.AddV2(x=x, y=y)


_LISTS: Mapping[str, Callable[[_Unfolding, tf.Operation, Sequence[Value]], list[Value] | None]] = {
    "EmptyTensorList": _Unfolding.reserve,
    "TensorListReserve": _Unfolding.reserve,
    "TensorListPushBack": _Unfolding.push,
    "TensorListPopBack": _Unfolding.pop,
    "TensorListSetItem": _Unfolding.put,
    "TensorListGetItem": _Unfolding.get,
    "TensorListFromTensor": _Unfolding.rows,
    "TensorListStack": _Unfolding.stack,
    "TensorListLength": _Unfolding.length,
    "TensorListElementShape": _Unfolding.shape,
    "ZerosLike": _Unfolding.zeros,
    "AddN": _Unfolding.add,
    "AddV2": _Unfolding.add,
}
"""UNFOLD-3: type of op -> the rule for lists."""
_MAKES_LISTS = frozenset({"EmptyTensorList", "TensorListReserve", "TensorListFromTensor"})

_NUMBERS: Mapping[str, Callable[..., Any]] = {
    "Add": lambda op, a, b: a + b,
    "AddV2": lambda op, a, b: a + b,
    "Sub": lambda op, a, b: a - b,
    "Mul": lambda op, a, b: a * b,
    "Max": lambda op, a, axes: _largest(op, a, axes),
    "Minimum": lambda op, a, b: np.minimum(a, b),
    "Maximum": lambda op, a, b: np.maximum(a, b),
    "Less": lambda op, a, b: a < b,
    "LessEqual": lambda op, a, b: a <= b,
    "Greater": lambda op, a, b: a > b,
    "GreaterEqual": lambda op, a, b: a >= b,
    "Equal": lambda op, a, b: a == b,
    "NotEqual": lambda op, a, b: a != b,
    "LogicalAnd": lambda op, a, b: a & b,
    "LogicalOr": lambda op, a, b: a | b,
    "LogicalNot": lambda op, a: ~a,
    "Identity": lambda op, a: a,
    "Cast": lambda op, a: a.astype(op.outputs[0].dtype.as_numpy_dtype),
}
"""Type of op -> what it makes of numbers (UNFOLD-2)."""
_FEW = 8


def _makers(values: Sequence[Value]) -> list[tf.Operation]:
    return [value.op for value in values if isinstance(value, tf.Tensor)]


def _is_number(tensor: tf.Tensor) -> bool:
    """Whether a tensor is a whole number or a truth value, or a few of them."""
    known = tensor.dtype in (tf.int32, tf.int64, tf.bool) and tensor.shape.is_fully_defined()
    return known and tensor.shape.num_elements() <= _FEW


def _largest(op: tf.Operation, numbers: np.ndarray, axes: np.ndarray) -> Any:
    return np.max(numbers, axis=tuple(np.atleast_1d(axes).tolist()), keepdims=bool(op.get_attr("keep_dims")))


def _evaluated(
    tensor: tf.Tensor, graph: tf.Graph, given: Sequence[np.ndarray | None], seen: dict[str, np.ndarray | None]
) -> np.ndarray | None:
    """The number that a tensor of a function is, if these are its arguments; None if it is not known."""
    if tensor.name not in seen:
        seen[tensor.name] = _newly_evaluated(tensor, graph, given, seen)
    return seen[tensor.name]


def _newly_evaluated(
    tensor: tf.Tensor, graph: tf.Graph, given: Sequence[np.ndarray | None], seen: dict[str, np.ndarray | None]
) -> np.ndarray | None:
    for inner, number in zip(graph.inputs, given, strict=True):
        if inner is tensor:
            return number
    if not _is_number(tensor):
        return None
    if tensor.op.type == "Const":
        return np.asarray(tf.get_static_value(tensor))
    if tensor.op.type not in _NUMBERS:
        return None
    inputs = [_evaluated(t, graph, given, seen) for t in tensor.op.inputs]
    known = [n for n in inputs if n is not None]
    return np.asarray(_NUMBERS[tensor.op.type](tensor.op, *known)) if len(known) == len(inputs) else None
