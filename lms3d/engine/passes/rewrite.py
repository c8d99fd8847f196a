"""A plan -> inserted nodes: swapped tensors leave the device and come back, rematerialised ops run once more.

    x --> reader                     x --> swap_out --> swap_in --> reader      (trigger ..control..> swap_in)

REWRITE-1  Requires: the plan was made for this function (`edit.apply` accepts it).
REWRITE-2  Ensures: the function's graph equals `edit.apply(capture(before), plan)`. That is checked node by node; a difference
           raises `RuntimeError`.
REWRITE-3  Ensures: results are unchanged, since every redirected input gets an equal tensor.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

import tensorflow as tf

from lms3d.engine import edit
from lms3d.engine.ir import StepGraph, without_dead
from lms3d.engine.passes import stream
from lms3d.engine.passes.base import Function, Pass
from lms3d.engine.passes.joins import keep_copies_apart
from lms3d.engine.passes.updates import hold_back
from lms3d.engine.plan import Plan
from lms3d.engine.tensorflow import surgery
from lms3d.engine.tensorflow.capture import capture, wanted
from lms3d.engine.tiers.base import Tier, gate, gate_name

log = logging.getLogger("lms3d")


@dataclass(frozen=True, kw_only=True)
class Rewriting:
    """What a rewrite did. `changed` is False if the function was left alone."""

    changed: bool
    ops_before: int
    ops_after: int
    swap_outs: int = 0
    swap_ins: int = 0
    recomputes: int = 0
    redirected: int = 0
    control_edges: int = 0

    def __str__(self) -> str:
        if not self.changed:
            return f"nothing changed in {self.ops_before:,} ops"
        return (
            f"{self.ops_before:,} ops -> {self.ops_after:,}: {self.swap_outs} swap-outs, {self.swap_ins} swap-ins, "
            f"{self.recomputes} recomputed ops, {self.redirected} inputs redirected, {self.control_edges} control edges"
        )


class Rewrite(Pass):
    """Inserts the nodes of a plan (REWRITE-1 to REWRITE-3).

    step: as captured; the plan was made for it. tier: makes the ops of the swaps. `change` says what the pass did.
    """

    name = "rewrite"

    def __init__(self, step: StepGraph, plan: Plan, tier: Tier) -> None:
        self.step, self.plan, self.tier = step, plan, tier
        self.change = Rewriting(changed=False, ops_before=len(step.ops), ops_after=len(step.ops))
        self._expected = step

    def requires(self, function: Function) -> None:
        """REWRITE-1: before anything is touched."""
        self._expected = edit.apply(self.step, self.plan)

    def run(self, function: Function) -> bool:
        if self.plan.empty:
            return False
        graph, plan, tier = function.graph, self.plan, self.tier
        made = _insert(graph, plan, tier)
        redirected = _redirect(graph, plan, made)
        _add_control_edges(graph, plan, made)
        keep_copies_apart(made.values())
        if tier.in_stream_order:
            _order_memory(graph, plan, made, tier)
        hold_back(graph)  # rematerialised ops read variables, too
        if tier.waits_on_device:
            stream.arrive_late(graph, plan, self._expected)
        self.change = replace(
            self.change,
            changed=True,
            ops_after=len(graph.get_operations()),
            swap_outs=len(plan.swap_outs),
            swap_ins=len(plan.swap_ins),
            recomputes=len(plan.recomputes),
            redirected=redirected,
            control_edges=len(edit.control_edges(plan)),
        )
        log.info("lms rewrite: %s", self.change)
        return True

    def ensures(self, function: Function) -> None:
        """REWRITE-2."""
        _verify(function, self._expected, self.plan)
        if self.tier.in_stream_order:
            stream.check(function.graph, self.plan, self._expected, late=self.tier.waits_on_device)

    def __str__(self) -> str:
        return f"{self.name}: {self.change}"


def _insert(graph: tf.Graph, plan: Plan, tier: Tier) -> dict[str, tf.Operation]:
    """Makes the new nodes; returns node name -> op. They get their triggers later, as these may be new nodes, too."""
    made: dict[str, tf.Operation] = {}
    handle: dict[str, tf.Tensor] = {}
    for out in plan.swap_outs:
        made[out.name] = tier.swap_out(graph.get_tensor_by_name(out.tensor), out.name)
        handle[out.tensor] = made[out.name].outputs[0]
        log.debug("lms: %s", out.name)
    for back in plan.swap_ins:
        like = graph.get_tensor_by_name(back.tensor)
        tensor = tier.swap_in(handle[back.tensor], like, back.name, (), mapped=back.mapped)
        made[back.name] = tensor.op
        log.debug("lms: %s -> %s, after %s", back.name, ", ".join(back.consumers), ", ".join(back.triggers))
    for copy in plan.recomputes:
        made[copy.name] = surgery.copy_op(graph.get_operation_by_name(copy.op), copy.name, ())
        log.debug("lms: %s -> %s, after %s", copy.name, ", ".join(copy.consumers), ", ".join(copy.triggers))
    for name, op in made.items():
        if op.name != name:
            raise RuntimeError(f"the inserted op {name!r} was named {op.name!r}; please report this graph")
    return made


def _redirect(graph: tf.Graph, plan: Plan, made: dict[str, tf.Operation]) -> int:
    """Lets readers read the tensors that came back; returns how many inputs changed."""
    count = 0
    for (consumer, old), new in edit.redirections(plan).items():
        op = made.get(consumer) or graph.get_operation_by_name(consumer)
        producer, _, index = new.rpartition(":")
        tensor = made[producer].outputs[int(index)]
        for i, name in enumerate([t.name for t in op.inputs]):
            if name == old:
                surgery.set_input(op, i, tensor)  # REWRITE-3
                count += 1
    return count


def _add_control_edges(graph: tf.Graph, plan: Plan, made: dict[str, tf.Operation]) -> None:
    before: dict[str, list[tf.Operation]] = {}
    for first, second in edit.control_edges(plan):
        before.setdefault(second, []).append(made.get(first) or graph.get_operation_by_name(first))
    for name, ops in before.items():
        op = gate(graph, made[name]) if name in made else graph.get_operation_by_name(name)
        surgery.add_control_inputs(op, [o for o in ops if o not in op.control_inputs])


def _order_memory(graph: tf.Graph, plan: Plan, made: dict[str, tf.Operation], tier: Tier) -> None:
    """Lets followers wait until a swap-in has its memory, and holds originals for as long as the plan says."""

    def named(name: str) -> tf.Operation:
        return made.get(name) or graph.get_operation_by_name(name)

    for back in plan.swap_ins:
        taken = gate(graph, made[back.name])
        for name in back.followers:
            surgery.add_control_inputs(gate(graph, named(name)), [taken])
    for out in plan.swap_outs:
        until = stream.until(plan, out) if tier.waits_on_device else out.until
        if not until and not tier.in_stream_order:
            continue
        hold = tier.hold(graph.get_tensor_by_name(out.tensor), made[out.name], out.hold, [*map(named, until)])
        for name in out.waiters:
            surgery.add_control_inputs(gate(graph, named(name)), [hold])


def _verify(function: Function, expected: StepGraph, plan: Plan) -> None:
    """REWRITE-2: captures again, and compares the inputs and control inputs of every op with the plan's promise.

    An identity no longer runs if all its readers got a copy of the tensor behind it.
    """
    found = capture(function)
    swaps = {s.name for s in plan.swap_ins} | {s.name for s in plan.swap_outs}
    inserted = [op.name for op in expected.ops if op.inserted]
    asked_for = [n for n in wanted(function.graph) if n in expected.by_name]  # a tier may add inputs of its own
    for op in without_dead(expected.ops, [*asked_for, *inserted]):
        real = found.by_name.get(op.name)
        if real is None:
            raise RuntimeError(f"the rewrite lost {op.name!r}")
        held_back = found.by_name.get(gate_name(op.name), real) if op.name in swaps else real
        missing = set(op.control_inputs) - set(held_back.control_inputs)
        if missing or (op.name not in swaps and real.inputs != op.inputs):
            raise RuntimeError(
                f"the rewrite of {op.name!r} went wrong: expected {op.inputs} after {missing}, found {real.inputs}"
            )
