"""Whole numbers and truth values, alone or a few, that follow from constants: counters of loops, their ends, sizes of lists."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

_RULES: Mapping[str, Callable[..., Any]] = {
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
"""Type of op -> what it makes of numbers."""
_FEW = 8

Numbers = Sequence[np.ndarray | None]
"""None for what is not known."""


def is_number(tensor: tf.Tensor) -> bool:
    """Whether a tensor is a whole number or a truth value, or a few of them."""
    known = tensor.dtype in (tf.int32, tf.int64, tf.bool) and tensor.shape.is_fully_defined()
    return known and tensor.shape.num_elements() <= _FEW


def has_rule(op: tf.Operation) -> bool:
    """Whether `computed` knows what the op makes of numbers."""
    return op.type in _RULES and is_number(op.outputs[0])


def computed(op: tf.Operation, inputs: Numbers) -> np.ndarray | None:
    """What an op that `has_rule` makes of numbers; None if one of them is unknown."""
    known = [n for n in inputs if n is not None]
    return np.asarray(_RULES[op.type](op, *known)) if len(known) == len(inputs) else None


def evaluated(
    tensor: tf.Tensor, graph: tf.Graph, given: Numbers, seen: dict[str, np.ndarray | None]
) -> np.ndarray | None:
    """The number that a tensor of a function is, if these are its arguments; None if it is not known. seen: what was found of the
    same function with the same arguments."""
    if tensor.name not in seen:
        seen[tensor.name] = _newly_evaluated(tensor, graph, given, seen)
    return seen[tensor.name]


def _newly_evaluated(
    tensor: tf.Tensor, graph: tf.Graph, given: Numbers, seen: dict[str, np.ndarray | None]
) -> np.ndarray | None:
    for inner, number in zip(graph.inputs, given, strict=True):
        if inner is tensor:
            return number
    if not is_number(tensor):
        return None
    if tensor.op.type == "Const":
        return np.asarray(tf.get_static_value(tensor))
    if not has_rule(tensor.op):
        return None
    return computed(tensor.op, [evaluated(t, graph, given, seen) for t in tensor.op.inputs])


def _largest(op: tf.Operation, numbers: np.ndarray, axes: np.ndarray) -> Any:
    return np.max(numbers, axis=tuple(np.atleast_1d(axes).tolist()), keepdims=bool(op.get_attr("keep_dims")))
