"""UNFOLD-3: what a list of tensors holds, item by item, and the rules of the ops that make, change and read lists."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import numpy as np
import tensorflow as tf

from lms3d.device.pool_layout import CRUMB_BYTES
from lms3d.engine.tensorflow import functions
from lms3d.engine.tensorflow.bodies import size
from lms3d.engine.tensorflow.static_numbers import is_number


@dataclass(frozen=True)
class Row:
    """The part of a tensor that has this index along the first axis."""

    tensor: tf.Tensor
    index: int


@dataclass(frozen=True)
class Items:
    """What a list holds; None for an item that was never set.

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


class Values:
    """Makes tensors of values, in a new graph, each once, and numbers, if they are known.

    hides: whether a list was made that holds more than crumbs. In the new graph, nobody can tell how long these last.
    """

    def __init__(self, copy: functions.Copy) -> None:
        self.copy, self.hides = copy, False
        self._constants: dict[tuple[str, bytes, tuple[int, ...]], tf.Tensor] = {}
        self._rows: dict[tuple[str, int], tf.Tensor] = {}
        self._numbers: dict[str, np.ndarray] = {}

    def is_known_as(self, tensor: tf.Tensor, number: np.ndarray) -> None:
        """From here on, the tensor is known to be this number."""
        self._numbers[tensor.name] = number

    def number(self, value: Value) -> np.ndarray | None:
        """None if it is not known."""
        if isinstance(value, np.ndarray):
            return value
        if not isinstance(value, tf.Tensor) or not is_number(value):
            return None
        if value.name not in self._numbers:
            found = tf.get_static_value(value)
            if found is None:
                return None
            self._numbers[value.name] = np.asarray(found)
        return self._numbers[value.name]

    def shape(self, value: Value | None) -> tuple[int, ...] | None:
        """None if it is not known, and for lists."""
        if value is None or isinstance(value, Items):
            return None
        if isinstance(value, np.ndarray):
            return value.shape
        shape = value.tensor.shape[1:] if isinstance(value, Row) else value.shape
        return tuple(shape) if shape.is_fully_defined() else None

    def tensor(self, value: Value) -> tf.Tensor:
        """The tensor of the new graph that a value is."""
        if isinstance(value, tf.Tensor):
            return value
        with self.copy.insertion():
            if isinstance(value, np.ndarray):
                key = (value.dtype.str, value.tobytes(), value.shape)
                if key not in self._constants:
                    self._constants[key] = tf.constant(value)
                return self._constants[key]
            return self._row(value) if isinstance(value, Row) else self._list(value)

    def _row(self, row: Row) -> tf.Tensor:
        key, shape = (row.tensor.name, row.index), row.tensor.shape
        if key not in self._rows:
            begin, extent = [row.index, *[0] * (shape.rank - 1)], [1, *shape[1:]]
            self._rows[key] = tf.reshape(tf.slice(row.tensor, begin, extent), shape[1:])
        return self._rows[key]

    def _list(self, items: Items) -> tf.Tensor:
        if items.whole is not None:
            return tf.raw_ops.TensorListFromTensor(tensor=items.whole, element_shape=items.shape)
        made = tf.raw_ops.TensorListReserve(
            element_shape=items.shape, num_elements=len(items.held), element_dtype=items.dtype
        )
        for i, item in enumerate(items.held):
            if item is not None:
                self.hides |= (size(self.tensor(item)) or 0) > CRUMB_BYTES
                made = tf.raw_ops.TensorListSetItem(input_handle=made, index=i, item=self.tensor(item))
        return made


def concerns(op: tf.Operation, given: Sequence[Value]) -> bool:
    """Whether an op makes a list, or reads one that is known."""
    return op.type in _MAKERS or any(isinstance(value, Items) for value in given)


def results(op: tf.Operation, given: Sequence[Value], values: Values) -> list[Value] | None:
    """What an op that `concerns` lists makes of these inputs; None if it is not known."""
    rule = _RULES.get(op.type)
    found = None if rule is None else rule(op, given, values)
    return None if found is None else [*found] if isinstance(found, tuple) else [found]


# -- rules: op, inputs -> its result, a tuple of several, or None if it is not known -----------------------------------


def _reserved(op: tf.Operation, given: Sequence[Value], values: Values) -> Value | None:
    number = values.number(given[1]) if op.type == "TensorListReserve" else np.asarray(0)
    if number is None:
        return None
    return Items(op.get_attr("element_dtype"), (None,) * int(number), _item_shape(given[0], values))


def _item_shape(value: Value, values: Values) -> np.ndarray:
    known = value if isinstance(value, np.ndarray) else tf.get_static_value(values.tensor(value))
    return np.asarray(-1 if known is None else known, np.int32)


def _pushed(op: tf.Operation, given: Sequence[Value], values: Values) -> Value | None:
    items, item = given
    if not isinstance(items, Items) or isinstance(item, Items):
        return None
    return items.of(*items.held, item)


def _popped(op: tf.Operation, given: Sequence[Value], values: Values) -> tuple[Value, Value] | None:
    items = given[0]
    if not isinstance(items, Items) or not items.held or items.held[-1] is None:
        return None
    return items.of(*items.held[:-1]), items.held[-1]


def _with_item(op: tf.Operation, given: Sequence[Value], values: Values) -> Value | None:
    items, index, item = given[0], values.number(given[1]), given[2]
    if not isinstance(items, Items) or index is None or isinstance(item, Items) or not 0 <= index < len(items.held):
        return None
    return items.of(*items.held[: int(index)], item, *items.held[int(index) + 1 :])


def _item(op: tf.Operation, given: Sequence[Value], values: Values) -> Value | None:
    items, index = given[0], values.number(given[1])
    if not isinstance(items, Items) or index is None or not 0 <= index < len(items.held):
        return None
    return items.held[int(index)]


def _rows(op: tf.Operation, given: Sequence[Value], values: Values) -> Value | None:
    tensor = values.tensor(given[0]) if not isinstance(given[0], Items) else None
    if tensor is None or not tensor.shape.is_fully_defined() or tensor.shape.rank < 1:
        return None
    held = tuple(Row(tensor, i) for i in range(tensor.shape[0]))
    return Items(tensor.dtype, held, _item_shape(given[1], values), tensor)


def _stacked(op: tf.Operation, given: Sequence[Value], values: Values) -> Value | None:
    items = given[0]
    if not isinstance(items, Items) or not items.held:
        return None
    held = [item for item in items.held if item is not None]
    if len(held) < len(items.held) or len({values.shape(item) for item in held}) != 1:
        return None
    tensors = [values.tensor(item) for item in held]
    with values.copy.insertion(op.device):
        return tf.stack(tensors)


def _length(op: tf.Operation, given: Sequence[Value], values: Values) -> Value | None:
    return np.asarray(len(given[0].held), np.int32) if isinstance(given[0], Items) else None


def _shape(op: tf.Operation, given: Sequence[Value], values: Values) -> Value | None:
    if not isinstance(given[0], Items):
        return None
    shapes = {values.shape(item) for item in given[0].held if item is not None}
    known = shapes.pop() if len(shapes) == 1 else None
    return np.asarray(-1 if known is None else known, op.outputs[0].dtype.as_numpy_dtype)


def _zeros(op: tf.Operation, given: Sequence[Value], values: Values) -> Value | None:
    items = given[0]
    if not isinstance(items, Items) or None in items.held or items.dtype == tf.variant:
        return None
    tensors = [values.tensor(item) for item in items.held if item is not None]
    with values.copy.insertion(op.device):
        return items.of(*map(tf.zeros_like, tensors))


def _sum(op: tf.Operation, given: Sequence[Value], values: Values) -> Value | None:
    """An item that was never set is nothing, and adds nothing. Sums of three or more items depend on their order: no rule."""
    lists = [value for value in given if isinstance(value, Items)]
    if len({len(one.held) for one in lists}) != 1 or len(lists) < len(given) or lists[0].dtype == tf.variant:
        return None
    places = [[item for item in held if item is not None] for held in zip(*(one.held for one in lists), strict=True)]
    if any(len(place) > 2 for place in places):
        return None
    made: list[tf.Tensor | np.ndarray | Row | None] = []
    for place in places:
        made.append(_item_sum(op, place, values) if len(place) == 2 else next(iter(place), None))
    return lists[0].of(*made)


def _item_sum(op: tf.Operation, pair: Sequence[tf.Tensor | np.ndarray | Row], values: Values) -> tf.Tensor:
    x, y = map(values.tensor, pair)
    with values.copy.insertion(op.device):
        return tf.raw_ops.AddV2(x=x, y=y)


_Rule: TypeAlias = Callable[[tf.Operation, Sequence[Value], Values], Value | tuple[Value, Value] | None]
_RULES: Mapping[str, _Rule] = {
    "EmptyTensorList": _reserved,
    "TensorListReserve": _reserved,
    "TensorListPushBack": _pushed,
    "TensorListPopBack": _popped,
    "TensorListSetItem": _with_item,
    "TensorListGetItem": _item,
    "TensorListFromTensor": _rows,
    "TensorListStack": _stacked,
    "TensorListLength": _length,
    "TensorListElementShape": _shape,
    "ZerosLike": _zeros,
    "AddN": _sum,
    "AddV2": _sum,
}
_MAKERS = frozenset({"EmptyTensorList", "TensorListReserve", "TensorListFromTensor"})
