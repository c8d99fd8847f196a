"""The edges of a rewritten graph whose copies go on beside the step (`lms3d.swap.tiers.stream`): drawn here, and checked.

    before                                      after
    .. -> d -> z                                .. -> d -------------> z
    fetch/t -> arrive/t -> z                    fetch/t -> arrive/t -> z        (d ..control..> arrive/t)

An arrival without the edge would run as soon as its fetch has, and the device would wait there for a copy that nobody needs yet.
"""

from __future__ import annotations

from collections.abc import Mapping

import tensorflow as tf

from lms3d.swap.ir import ALIAS_TYPES, StepGraph, producer_name
from lms3d.swap.plan import Plan
from lms3d.swap.tensorflow import surgery
from lms3d.swap.tiers.base import gate


def arrive_late(graph: tf.Graph, plan: Plan, expected: StepGraph) -> None:
    """STREAM-2: an arrival waits for all that its first reader waits for."""
    for arrival, before in _before_arrivals(graph, plan, expected).items():
        surgery.add_control_inputs(arrival, [op for op in before if op not in arrival.control_inputs])


def _before_arrivals(graph: tf.Graph, plan: Plan, expected: StepGraph) -> dict[tf.Operation, list[tf.Operation]]:
    """Arrival -> what its first reader waits for, but for other arrivals and their views: two of one reader would wait for each
    other."""
    arrivals = {graph.get_operation_by_name(back.name) for back in plan.swap_ins if not back.mapped}
    place = {op.name: number for number, op in enumerate(expected.ops)}
    views = {arrival: _views(arrival) for arrival in arrivals}
    passed_on = arrivals.union(*views.values())
    found = {}
    for arrival, mine in views.items():
        readers = [op for view in (arrival, *mine) for op in _consumers(view) if op.name in place and op not in mine]
        first = min(readers, key=lambda op: place[op.name], default=None)
        found[arrival] = [] if first is None else _waits(first, place, passed_on)
    return found


def _consumers(op: tf.Operation) -> list[tf.Operation]:
    return [reader for tensor in op.outputs for reader in tensor.consumers()]


def _views(op: tf.Operation) -> set[tf.Operation]:
    """The ops that pass its memory on, one behind the other: who reads them reads it."""
    found: set[tf.Operation] = set()
    left = _consumers(op)
    while left:
        one = left.pop()
        if one.type in ALIAS_TYPES and one not in found:
            found.add(one)
            left += _consumers(one)
    return found


def _waits(reader: tf.Operation, place: Mapping[str, int], but: set[tf.Operation]) -> list[tf.Operation]:
    """What it waits for and what comes before it in the order of the step."""
    waits = dict.fromkeys([*reader.control_inputs, *(t.op for t in reader.inputs)])
    return [op for op in waits if op not in but and place.get(op.name, len(place)) < place[reader.name]]


def check(graph: tf.Graph, plan: Plan, expected: StepGraph) -> None:
    """RuntimeError where an edge makes one of the four operations wait where it must not, or lets one go where it must wait.

    - A swap-out waits for its tensor alone, and a fetch for its handle, its triggers and the fetch before it.
    - Every original is held, after its swap-out and what the plan names.
    - An arrival waits for all that its first reader waits for.
    """
    late = _before_arrivals(graph, plan, expected)
    for arrival, before in late.items():
        _require(arrival, before, "arrives too early: it needs")
    fetches = {gate(graph, arrival): arrival for arrival in late}
    backs = {back.name: back for back in plan.swap_ins}
    for fetch, arrival in fetches.items():
        allowed = {*backs[arrival.name].triggers, *(op.name for op in fetches), producer_name(fetch.inputs[0].name)}
        if strange := [op.name for op in fetch.control_inputs if op.name not in allowed]:
            raise RuntimeError(f"the rewrite made {fetch.name!r} wait for {strange[0]!r}, which its plan does not name")
    for out in plan.swap_outs:
        op, hold = graph.get_operation_by_name(out.name), graph.get_operation_by_name(out.hold)
        if op.control_inputs:
            raise RuntimeError(f"the rewrite made {op.name!r} wait for {op.control_inputs[0].name!r} beside its tensor")
        needed = [graph.get_operation_by_name(name) for name in (out.name, *out.until)]
        _require(hold, needed, "holds too short: it needs")


def _require(op: tf.Operation, needed: list[tf.Operation], what: str) -> None:
    waits = {*op.control_inputs, *(t.op for t in op.inputs)}
    if missing := [one.name for one in needed if one not in waits]:
        raise RuntimeError(f"the rewrite lost an edge: {op.name!r} {what} {missing[0]!r}")
