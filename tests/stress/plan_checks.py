"""The promises of every plan, whatever the step and the planner. No TensorFlow here."""

from __future__ import annotations

from collections import Counter

from lms3d.engine import edit
from lms3d.engine.ir import StepGraph
from lms3d.engine.plan import SCOPE, Plan, Recompute, SwapIn


def check_plan(graph: StepGraph, plan: Plan) -> StepGraph:
    """The step under the plan. AssertionError if the plan breaks a promise, ValueError if it cannot be applied."""
    edited = edit.apply(graph, plan)
    _all_inserted_are_named(graph, edited, plan)
    _each_edge_once(plan)
    _what_must_run_once_does(graph, plan)
    _untouchable_ops_are_untouched(graph, edited, plan)
    _only_inputs_and_control_edges_differ(graph, edited, plan)
    same_values(graph, edited, plan)
    return edited


def _all_inserted_are_named(graph: StepGraph, edited: StepGraph, plan: Plan) -> None:
    new = {op.name for op in edited.ops} - graph.by_name.keys()
    assert all(name.startswith(SCOPE) for name in new), new
    assert len(new) == len(plan.swap_outs) + len(plan.swap_ins) + len(plan.recomputes)
    assert plan.swap_ins or not plan.swap_outs, "written for nobody"


def _each_edge_once(plan: Plan) -> None:
    copies: list[SwapIn | Recompute] = [*plan.swap_ins, *plan.recomputes]
    claims = Counter(edge for copy in copies for edge in (*((c, copy.tensor) for c in copy.consumers), *copy.through))
    assert max(claims.values(), default=1) == 1, claims.most_common(1)
    assert len({s.tensor for s in plan.swap_outs}) == len(plan.swap_outs)


def _what_must_run_once_does(graph: StepGraph, plan: Plan) -> None:
    never = {op.name for op in graph.ops if op.stateful or op.in_loop or "Random" in op.type}
    assert not never & {again.op for again in plan.recomputes}


def _untouchable_ops_are_untouched(graph: StepGraph, edited: StepGraph, plan: Plan) -> None:
    copied = {copy.tensor.rpartition(":")[0] for copy in (*plan.swap_ins, *plan.recomputes)}
    for op in graph.ops:
        if op.in_loop or not op.on_device:
            assert edited.by_name[op.name].inputs == op.inputs
            assert op.name not in copied


def _only_inputs_and_control_edges_differ(graph: StepGraph, edited: StepGraph, plan: Plan) -> None:
    new_inputs, new_edges = edit.redirections(plan), set(edit.control_edges(plan))
    for op in graph.ops:
        new = edited.by_name[op.name]
        assert (new.type, new.outputs) == (op.type, op.outputs)
        assert new.inputs == tuple(new_inputs.get((op.name, t), t) for t in op.inputs)
        assert set(op.control_inputs) <= set(new.control_inputs)
        assert all((c, op.name) in new_edges for c in set(new.control_inputs) - set(op.control_inputs))


def same_values(graph: StepGraph, edited: StepGraph, plan: Plan) -> None:
    """Every op of the trace reads the values that it read before: they are worked out with names in place of numbers."""
    copies = {again.name: again.op for again in plan.recomputes}
    known: dict[tuple[object, ...], int] = {}
    before, after = _values(graph, {}, known), _values(edited, copies, known)
    for op in graph.ops:
        assert [after[t] for t in edited.by_name[op.name].inputs] == [before[t] for t in op.inputs], op.name


def _values(graph: StepGraph, copies: dict[str, str], known: dict[tuple[object, ...], int]) -> dict[str, int]:
    """Tensor -> a number for its value: equal for equal ops on equal inputs. A tensor that comes round in a loop stands for itself.

    known: the numbers so far.
    """
    values = {t: known.setdefault(("loop", t), len(known)) for op in graph.ops if op.in_loop for t in op.inputs}
    for op in graph.ops:
        read = tuple(values[t] for t in op.inputs)
        for i, tensor in enumerate(op.outputs):
            key = (copies.get(op.name, op.name), i, *(() if op.in_loop else read))
            same = op.type in _PASSING and read
            values[tensor.name] = read[i % len(read)] if same else known.setdefault(key, len(known))
    return values


_PASSING = frozenset({"SwapOut", "SwapIn", "Identity", "IdentityN", "StopGradient", "PreventGradient", "EnsureShape"})
