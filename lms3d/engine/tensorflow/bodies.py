"""What ops hold that run functions: the branches of an If, the rounds of a loop, the ops of a call. Reads only.

BODY-1  A function is captured like a step of its own. What it holds at its peak beyond its results is workspace of the op.
BODY-2  A list or an optional has the bytes of the tensors that the function puts into it, each buffer once.
BODY-3  A loop puts them in once per round. If its condition compares a counter with a known number, the rounds are known; else one
        counts. Rounds that pass on no more than crumbs to the next one run side by side, as many as the loop allows.
BODY-4  Of results that share a buffer, the one that is read last has its bytes; so it is with lists of the same buffers. A result
        that passes on what stays on the device throughout has none.
BODY-5  If a loop puts what it gets from a list into another one that is read later, the bytes count for the later list, too.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import tensorflow as tf

from lms3d.device.pool_layout import CRUMB_BYTES
from lms3d.engine.ir import ALIAS_TYPES, RESIDENT_TYPES
from lms3d.engine.tensorflow import reading

Held = Callable[[tf.Graph, Sequence[tf.Tensor]], int]
"""The most bytes that a function holds at a time besides its arguments and constants, if these tensors of it last."""

PUTS = {"TensorListPushBack": 1, "TensorListSetItem": 2, "OptionalFromValue": 0}
"""Op that puts a tensor into a list or an optional, which then holds it -> the input that is put in."""
GETS = frozenset({"TensorListPopBack", "TensorListGetItem", "OptionalGetValue"})
"""Ops whose results lie in the list or the optional that they read."""
LOOPS = frozenset({"While", "StatelessWhile"})
_HELD_ELSEWHERE = GETS | (RESIDENT_TYPES - {"Placeholder"})


@dataclass(frozen=True)
class Kept:
    """Bytes of each result of an op, None if unknown, and of what it takes besides while it runs."""

    results: tuple[int | None, ...]
    workspace: int


def size(tensor: tf.Tensor) -> int | None:
    """The bytes of a tensor; None if its shape is not fully known, or its type has no size."""
    if tensor.dtype in (tf.resource, tf.variant, tf.string) or not tensor.shape.is_fully_defined():
        return None
    return tensor.shape.num_elements() * tensor.dtype.size


def kept(op: tf.Operation, held: Held) -> Kept | None:
    """What an op keeps that runs functions, or that copies a tensor into a list; None for other ops."""
    if op.type == "TensorListFromTensor":
        return Kept((size(op.inputs[0]),), 0)
    functions = list(reading.functions_of(op).values())
    if not functions:
        return None
    if op.type in LOOPS:
        return _kept_by_loop(op, functions[0], held)
    every = [_kept_by_call(op, graph, held) for graph in functions]
    results = tuple(_most(*sizes) for sizes in zip(*(one.results for one in every), strict=True))
    whole = max(one.workspace + sum(n or 0 for n in one.results) for one in every)
    return Kept(results, max(0, whole - sum(n or 0 for n in results)))


def _most(*sizes: int | None) -> int | None:
    return max((n for n in sizes if n is not None), default=None)


def _kept_by_call(op: tf.Operation, graph: tf.Graph, held: Held) -> Kept:
    """The results of one branch, or of the function of a call."""
    stored = [_stored(t) for t in graph.outputs]
    results = _results(op, graph)
    for i, items in enumerate(stored):
        if items:
            results[i] = sum(size(t) or 0 for t in items if not _is_argument(t, graph))
    peak = held(graph, [*graph.outputs, *(t for items in stored for t in items)])
    return Kept(tuple(results), max(0, peak - sum(n or 0 for n in results)))


def _kept_by_loop(op: tf.Operation, body: tf.Graph, held: Held) -> Kept:
    """The results of a loop after its last round (BODY-3).

    An argument that is put into a list was a result of the round before: after the last round the list holds one less of those.
    """
    results, number, last_read = _results(op, body), rounds(op), _last_reads(op.outputs)
    stored = {i: _stored(t, GETS) for i, t in enumerate(body.outputs) if t.dtype == tf.variant}
    results = [0 if i in stored else n for i, n in enumerate(results)]
    per_round, twice = 0, 0
    for holders in _holders(stored, body):
        i, item = max(holders, key=lambda holder: last_read[holder[0]])  # BODY-4
        bytes_ = size(item) or 0
        if item.op.type in GETS:
            added = _got(item, op, body, last_read[i])
            twice += added
        else:
            added = bytes_ * (number - all(_is_argument(t, body) for _, t in holders))
            per_round += bytes_
        results[i] = (results[i] or 0) + added
    lasting = [*body.outputs, *(t for items in stored.values() for t in items)]
    each = max(0, held(body, lasting) - per_round)
    return Kept(tuple(results), max(0, each * min(number, _side_by_side(op, body)) - twice))


def _holders(stored: Mapping[int, Sequence[tf.Tensor]], body: tf.Graph) -> list[list[tuple[int, tf.Tensor]]]:
    """For each buffer that the rounds put into lists: the results that hold it, each with the tensor that is put in.

    stored: number of a result -> tensors. What is the same in each round is left out.
    """
    found: dict[str, list[tuple[int, tf.Tensor]]] = {}
    names = {t.name for items in stored.values() for t in items}
    for i, items in stored.items():
        for item in items:
            if (name := _name_in_lists(item, names, body)) is not None:
                found.setdefault(name, []).append((i, item))
    return list(found.values())


def _name_in_lists(item: tf.Tensor, names: Collection[str], body: tf.Graph) -> str | None:
    """The name of an item, or of the one that is the same buffer in the round before; None if it is the same in each round."""
    seen = set[str]()
    while _is_argument(item, body) and item.name not in seen:
        seen.add(item.name)
        following = _root(body.outputs[_index(item, body.inputs)])
        if following is item:
            return None
        if following.name not in names:
            break
        item = following
    return item.name


def _got(item: tf.Tensor, loop: tf.Operation, body: tf.Graph, last_read: int) -> int:
    """BODY-5: the bytes of what all rounds read from a list that is the same in each round; 0 if that list lives long enough.

    last_read: the place of the last reader of the list that the items are put into.
    """
    given = _root(item.op.inputs[0])
    if not _is_argument(given, body) or _root(body.outputs[_index(given, body.inputs)]) is not given:
        return 0
    items = loop.inputs[_index(given, body.inputs)]
    if _last_reads([items])[0] >= last_read:
        return 0
    whole = size(items.op.inputs[0]) if items.op.type == "TensorListFromTensor" else None
    every = (size(item) or 0) * rounds(loop)
    return every if whole is None else min(every, whole)


def _side_by_side(op: tf.Operation, body: tf.Graph) -> int:
    """The rounds of a loop that run at a time."""
    passed = [size(t) or 0 for i, t in enumerate(body.outputs) if _root(t) is not body.inputs[i]]
    return int(op.get_attr("parallel_iterations")) if max(passed, default=0) <= CRUMB_BYTES else 1


def _results(op: tf.Operation, graph: tf.Graph) -> list[int | None]:
    """The bytes of each result, by BODY-4; None for lists and unknown sizes."""
    last_read, results, holder = _last_reads(op.outputs), list[int | None](), dict[str, int]()
    for i, (outer, inner) in enumerate(zip(op.outputs, graph.outputs, strict=True)):
        root = _root(inner)
        bytes_ = size(outer) if size(outer) is not None else size(inner)
        if _stays(root, op, graph):
            bytes_ = bytes_ and 0
        elif root.name in holder and bytes_:
            other = holder[root.name]
            loser = i if last_read[i] <= last_read[other] else other
            results = [0 if j == loser else n for j, n in enumerate(results)]
            bytes_ = 0 if loser == i else bytes_
        if bytes_:
            holder[root.name] = i
        results.append(bytes_)
    return results


def _stays(root: tf.Tensor, op: tf.Operation, graph: tf.Graph) -> bool:
    """Whether a tensor of a function is an argument that stays on the device throughout the step."""
    if not _is_argument(root, graph):
        return False
    first = len(op.inputs) - len(graph.inputs)
    return _root(op.inputs[first + _index(root, graph.inputs)]).op.type in RESIDENT_TYPES


def _last_reads(tensors: Sequence[tf.Tensor]) -> list[int]:
    """For each tensor of a graph the place of its last reader in the traced order; -1 if nobody reads it."""
    if not tensors:
        return []
    graph = tensors[0].graph
    places = {op.name: i for i, op in enumerate(graph.get_operations())}
    last = {t.name: len(places) for t in graph.outputs}
    for tensor in tensors:
        for reader in tensor.consumers():
            last[tensor.name] = max(last.get(tensor.name, -1), places[reader.name])
    return [last.get(t.name, -1) for t in tensors]


def running(graph: tf.Graph) -> list[tf.Operation]:
    """The ops that a function runs for its results and effects, in no order."""
    left = [*(t.op for t in graph.outputs), *graph.control_outputs]
    found = {op.name: op for op in left}
    while left:
        op = left.pop()
        new = {one.name: one for one in (*(t.op for t in op.inputs), *op.control_inputs) if one.name not in found}
        found |= new
        left += new.values()
    return list(found.values())


def _stored(output: tf.Tensor, besides: Collection[str] = ()) -> list[tf.Tensor]:
    """The buffers that a function puts into the list or optional that it returns (BODY-2).

    What lies elsewhere is left out, unless an op of a type in `besides` returns it.
    """
    found: dict[str, tf.Tensor] = {}
    left, seen = [output] if output.dtype == tf.variant else [], set[str]()
    while left:
        tensor = left.pop()
        if tensor.name in seen:
            continue
        seen.add(tensor.name)
        op = tensor.op
        left += [t for t in op.inputs if t.dtype == tf.variant]
        item = _root(op.inputs[PUTS[op.type]]) if op.type in PUTS else None
        if item is not None and (item.op.type not in _HELD_ELSEWHERE or item.op.type in besides):
            found[item.name] = item
    return list(found.values())


def _root(tensor: tf.Tensor) -> tf.Tensor:
    """The tensor whose buffer this one shares."""
    while (tensor.op.type in ALIAS_TYPES or is_whole(tensor.op)) and tensor.op.inputs:
        tensor = tensor.op.inputs[tensor.value_index if tensor.op.type == "IdentityN" else 0]
    return tensor


def is_whole(op: tf.Operation) -> bool:
    """Whether a StridedSlice takes all of its input, in the same order: it then lies there."""
    if op.type != "StridedSlice" or size(op.inputs[0]) is None or size(op.inputs[0]) != size(op.outputs[0]):
        return False
    strides = tf.get_static_value(op.inputs[3])
    return strides is not None and bool((strides > 0).all())


def _is_argument(tensor: tf.Tensor, graph: tf.Graph) -> bool:
    return any(tensor is given for given in graph.inputs)


def _index(tensor: tf.Tensor, among: Sequence[tf.Tensor]) -> int:
    return next(i for i, one in enumerate(among) if one is tensor)


# -- rounds --------------------------------------------------------------------------------------------------------------


def rounds(op: tf.Operation) -> int:
    """How often a loop runs: the least of what its condition compares with known numbers; 1 if it compares with none (BODY-3)."""
    condition = reading.condition_of(op)
    found = [
        limit - first
        for one in (condition.get_operations() if condition is not None else ())
        if one.type == "Less" and condition is not None
        for first, limit in [(_given(one.inputs[0], op, condition), _given(one.inputs[1], op, condition))]
        if first is not None and limit is not None
    ]
    return max(1, min(found, default=1))


def _given(tensor: tf.Tensor, op: tf.Operation, condition: tf.Graph) -> int | None:
    """The number that a tensor of a condition has before the first round; None if that is unknown."""
    root = _root(tensor)
    return _number(op.inputs[_index(root, condition.inputs)] if _is_argument(root, condition) else root)


def _number(tensor: tf.Tensor) -> int | None:
    """The value of a scalar: a constant, or a counter that an earlier loop has raised by one in each round."""
    root = _root(tensor)
    value = tf.get_static_value(root) if root.dtype.is_integer and root.shape.rank == 0 else None
    if value is not None:
        return int(value)
    loop = root.op
    if loop.type not in LOOPS:
        return None
    body, start = next(iter(reading.functions_of(loop).values()), None), _number(loop.inputs[root.value_index])
    if body is None or start is None:
        return None
    step = _root(body.outputs[root.value_index]).op
    counts = step.type == "AddV2" and step.inputs[0] is body.inputs[root.value_index]
    return start + rounds(loop) if counts and tf.get_static_value(step.inputs[1]) == 1 else None
