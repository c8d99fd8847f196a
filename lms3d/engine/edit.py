"""What a plan does to a step, without TensorFlow: `StepGraph` in, `StepGraph` out. `passes.rewrite` does the same to a FuncGraph.

Requires: every op and tensor that the plan names exists; a consumer reads the tensor that it is to get from a copy.
Ensures: the result is acyclic (its ops are in a topological order), original ops keep their names, types and outputs, and
only the inputs that the plan redirects have changed.

EDIT-1  One swap-out per tensor; its waiters get a control input from it.
EDIT-2  One swap-in per copy: data from the swap-out, a control input from each trigger.
EDIT-3  One recomputed copy: a second op with the inputs of the first, and a control input from each trigger.
EDIT-4  Consumers of a copy read it instead of the original. A recomputed copy can be such a consumer.
EDIT-5  The plan's own control edges are added as they are.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from lms3d.engine.ir import Op, StepGraph, Tensor, topological
from lms3d.engine.plan import Plan, Recompute, SwapIn


def _copies(plan: Plan) -> list[SwapIn | Recompute]:
    return [*plan.swap_ins, *plan.recomputes]


def control_edges(plan: Plan) -> list[tuple[str, str]]:
    """Every control edge that the plan adds, each once: (before, after)."""
    edges: dict[tuple[str, str], None] = {}
    for out in plan.swap_outs:  # EDIT-1
        edges.update({(out.name, waiter): None for waiter in out.waiters})
    for copy in _copies(plan):  # EDIT-2, EDIT-3
        edges.update({(trigger, copy.name): None for trigger in copy.triggers})
    edges.update(dict.fromkeys(plan.control_edges))  # EDIT-5
    return list(edges)


def redirections(plan: Plan) -> dict[tuple[str, str], str]:
    """(consumer, tensor that it reads) -> tensor to read instead. `ValueError` if two copies claim one edge."""
    new_input: dict[tuple[str, str], str] = {}
    for copy in _copies(plan):  # EDIT-4
        for edge in (*((consumer, copy.tensor) for consumer in copy.consumers), *copy.through):
            if new_input.setdefault(edge, copy.output) != copy.output:
                raise ValueError("op {!r} would read {!r} from two copies".format(*edge))
    return new_input


def apply(graph: StepGraph, plan: Plan) -> StepGraph:
    """The step after the rewrite. `ValueError` names what does not exist, or the ops of a cycle."""
    after: dict[str, list[str]] = {}
    for before, op in control_edges(plan):
        after.setdefault(op, []).append(before)
    new_input = redirections(plan)
    used: set[tuple[str, str]] = set()

    def edited(op: Op) -> Op:
        inputs = tuple(new_input.get((op.name, t), t) for t in op.inputs)
        used.update((op.name, t) for t in op.inputs)
        extra = [c for c in after.get(op.name, ()) if c not in op.control_inputs]
        if inputs == op.inputs and not extra:
            return op
        return replace(op, inputs=inputs, control_inputs=op.control_inputs + tuple(extra))

    ops = [edited(op) for op in (*graph.ops, *_inserted(graph, plan))]
    unused = [edge for edge in new_input if edge not in used]
    if unused:
        raise ValueError("op {!r} does not read {!r}".format(*unused[0]))
    return graph.with_ops(topological(ops))


def _inserted(graph: StepGraph, plan: Plan) -> Iterable[Op]:
    for out in plan.swap_outs:
        yield Op(out.name, "SwapOut", (out.tensor,), outputs=(Tensor(f"{out.name}:0", 0, 0),), inserted=True)
    source = {out.tensor: out for out in plan.swap_outs}
    for back in plan.swap_ins:
        if back.tensor not in source:
            raise ValueError(f"{back.name!r} brings back {back.tensor!r}, which no swap-out writes")
        size = 0 if back.mapped else source[back.tensor].bytes
        came_back = replace(graph.tensors[back.tensor], name=back.output, bytes=size)
        yield Op(back.name, "SwapIn", (f"{source[back.tensor].name}:0",), outputs=(came_back,), inserted=True)
    for again in plan.recomputes:
        if again.op not in graph.by_name:
            raise ValueError(f"{again.name!r} is a copy of {again.op!r}, which does not exist")
        op = graph.by_name[again.op]
        outputs = tuple(replace(t, name=f"{again.name}:{i}") for i, t in enumerate(op.outputs))
        yield replace(op, name=again.name, outputs=outputs, control_inputs=(), inserted=True)
