"""The edges of a rewritten graph whose copies go on beside the step (`lms3d.engine.tiers.stream`): drawn here, and checked.

    before                                      after
    .. -> d -> z                                .. -> d -------------> z
    fetch/t -> arrive/t -> z                    fetch/t -> arrive/t -> z        (d ..control..> arrive/t)

An arrival without the edge would run as soon as its fetch has, and the device would wait there for a copy that nobody needs yet.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import replace

import tensorflow as tf

from lms3d.engine.ir import ALIAS_TYPES, Op, StepGraph, producer_name, topological
from lms3d.engine.plan import Plan, SwapIn, SwapOut
from lms3d.engine.tensorflow import surgery
from lms3d.engine.tiers.base import gate


def until(plan: Plan, out: SwapOut) -> tuple[str, ...]:
    """The ops after which an original is let go of: the plan names them, or else they are the triggers of its swap-in.

    If an op waits for the memory of the original, the plan alone decides: the swap-in may come too late for that op.
    """
    if out.until or out.waiters:
        return out.until
    return next((back.triggers for back in plan.swap_ins if back.tensor == out.tensor), ())


def arrive_late(graph: tf.Graph, plan: Plan, expected: StepGraph) -> None:
    """STREAM-2: an arrival waits for all that its first reader waits for."""
    for arrival, before in _before_arrivals(graph, plan, expected).items():
        surgery.add_control_inputs(arrival, [op for op in before if op not in arrival.control_inputs])


def _before_arrivals(graph: tf.Graph, plan: Plan, expected: StepGraph) -> dict[tf.Operation, list[tf.Operation]]:
    """Arrival -> the ops that its first reader waits for.

    Other arrivals and their views are left out: two arrivals of one reader would wait for each other.
    """
    arrivals = {graph.get_operation_by_name(back.name) for back in plan.swap_ins if not back.mapped}
    place = {op.name: number for number, op in enumerate(_in_turn(plan, expected))}
    views = {arrival: _views(arrival) for arrival in arrivals}
    passed_on = arrivals.union(*views.values())
    found = {}
    for arrival, mine in views.items():
        readers = [op for view in (arrival, *mine) for op in _consumers(view) if op.name in place and op not in mine]
        first = min(readers, key=lambda op: place[op.name], default=None)
        found[arrival] = [] if first is None else _waits(first, place, passed_on)
    return found


def _in_turn(plan: Plan, expected: StepGraph) -> tuple[Op, ...]:
    """The ops of the step in an order that agrees with the holds: what waits for one comes after what the hold waits for.

    Otherwise an arrival and a hold might wait for each other. TFLMS's plans name the ops of their holds, small ones too, by the
    time at which they run, not by their place in the step.
    """
    before: dict[str, set[str]] = defaultdict(set)
    for out in plan.swap_outs:
        for waiter in out.waiters:
            before[waiter].update(out.until)
    return topological(
        replace(op, control_inputs=tuple({*op.control_inputs, *before[op.name]})) if op.name in before else op
        for op in expected.ops
    )


def _consumers(op: tf.Operation) -> list[tf.Operation]:
    return [reader for tensor in op.outputs for reader in tensor.consumers()]


def _views(op: tf.Operation) -> set[tf.Operation]:
    """The ops that pass the memory of `op` on, one behind the other: their readers read its memory."""
    found: set[tf.Operation] = set()
    left = _consumers(op)
    while left:
        one = left.pop()
        if one.type in ALIAS_TYPES and one not in found:
            found.add(one)
            left += _consumers(one)
    return found


def _waits(reader: tf.Operation, place: Mapping[str, int], but: set[tf.Operation]) -> list[tf.Operation]:
    """The ops that `reader` waits for and that come before it in the order of the step, except for `but`."""
    waits = dict.fromkeys([*reader.control_inputs, *(t.op for t in reader.inputs)])
    return [op for op in waits if op not in but and place.get(op.name, len(place)) < place[reader.name]]


def check(graph: tf.Graph, plan: Plan, expected: StepGraph, *, late: bool) -> None:
    """Raises RuntimeError if one of the four operations waits for an op that it must not wait for, or lacks an edge.

    - A swap-out waits for its tensor alone, and a fetch for its handle, its triggers, the fetch before it and the holds that free
      memory for it.
    - Every original is held until its swap-out and the ops that the plan names have run. Ops that wait for its memory wait for the
      hold.
    - An arrival waits for its fetch; the plan's followers of a fetch wait for it.
    - If `late`, an original is let go of when it is due back, at the latest, and an arrival waits for the ops that its first reader
      waits for.
    """
    arrivals = _before_arrivals(graph, plan, expected)
    for arrival, before in arrivals.items() if late else ():
        _require(arrival, before, "arrives too early: it needs")
    fetches, handles = (
        {gate(graph, op).name for op in arrivals},
        {out.tensor: f"{out.name}:0" for out in plan.swap_outs},
    )
    freed = {
        back.name: {name for out in plan.swap_outs if back.name in out.waiters for name in (out.name, out.hold)}
        for back in plan.swap_ins
    }
    for back in plan.swap_ins:
        if not back.mapped:
            _check_swap_in(graph, back, handles[back.tensor], fetches | freed[back.name])
    for out in plan.swap_outs:
        _check_swap_out(graph, out, until(plan, out) if late else out.until)


def _check_swap_in(graph: tf.Graph, back: SwapIn, handle: str, before: Collection[str]) -> None:
    """Checks a fetch and its arrival. before: other ops that the fetch may wait for: fetches, and ops that free memory for it."""
    arrival = graph.get_operation_by_name(back.name)
    fetch = gate(graph, arrival)
    _require_input(arrival, fetch.outputs[0].name)
    _require_input(fetch, handle)
    allowed = {*back.triggers, *before, producer_name(handle)}
    if strange := [op.name for op in fetch.control_inputs if op.name not in allowed]:
        raise RuntimeError(f"the rewrite made {fetch.name!r} wait for {strange[0]!r}, which its plan does not name")
    for name in back.followers:
        _require(gate(graph, graph.get_operation_by_name(name)), [fetch], "takes memory too early: it needs")


def _check_swap_out(graph: tf.Graph, out: SwapOut, until: Collection[str]) -> None:
    """Checks a swap-out and its hold. until: the ops after which the original is let go of."""
    op, hold = graph.get_operation_by_name(out.name), graph.get_operation_by_name(out.hold)
    for reader in (op, hold):
        _require_input(reader, out.tensor)
    if op.control_inputs:
        raise RuntimeError(f"the rewrite made {op.name!r} wait for {op.control_inputs[0].name!r} beside its tensor")
    _require(hold, [graph.get_operation_by_name(name) for name in (out.name, *until)], "holds too short: it needs")
    for name in out.waiters:
        _require(gate(graph, graph.get_operation_by_name(name)), [hold], "takes memory too early: it needs")


def _require_input(op: tf.Operation, tensor: str) -> None:
    if op.inputs[0].name != tensor:
        raise RuntimeError(f"the rewrite made {op.name!r} read {op.inputs[0].name!r} instead of {tensor!r}")


def _require(op: tf.Operation, needed: list[tf.Operation], what: str) -> None:
    waits = {*op.control_inputs, *(t.op for t in op.inputs)}
    if missing := [one.name for one in needed if one not in waits]:
        raise RuntimeError(f"the rewrite lost an edge: {op.name!r} {what} {missing[0]!r}")
