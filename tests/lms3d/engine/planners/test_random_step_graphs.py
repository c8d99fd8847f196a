"""Whatever the step and whatever the parameters: plans can be applied, keep every op and keep the limit they promise."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from lms3d.engine import edit
from lms3d.engine.cost import Machine
from lms3d.engine.ir import Op, StepGraph
from lms3d.engine.liveness import peak_bytes
from lms3d.engine.plan import Plan
from lms3d.engine.planners import tflms
from lms3d.engine.planning import make_plan
from lms3d.engine.request import Settings
from lms3d.engine.step_model.pool import GPU_POOL, NO_POOL
from lms3d.engine.step_model.simulate import simulate
from lms3d.errors import DoesNotFit
from tests.lms3d.engine.toy_graphs import MIB, op, placeholder, step

TYPES = ("Conv3D", "Relu", "AddV2", "Reshape", "Identity", "ConcatV2", "Shape", "RandomUniform", "ReadVariableOp")
slow, fast = Machine(swap_out_bytes_per_second=1e7, swap_in_bytes_per_second=1e7), Machine()


@st.composite
def steps(draw: st.DrawFn) -> StepGraph:
    """Up to 40 ops that read what stands before them, near or far, some in loops or elsewhere, some with control inputs."""
    ops: list[Op] = [placeholder()]
    for i in range(draw(st.integers(2, 40))):
        kind = draw(st.sampled_from(TYPES))
        names = [o.name for o in ops]
        inputs = [] if kind == "ReadVariableOp" else draw(st.lists(st.sampled_from(names), min_size=1, max_size=3))
        size = draw(st.sampled_from([0.01, 0.5, 1, 2, 4, None]))
        if kind in ("Reshape", "Identity"):  # as large as what they share
            source = next(o for o in ops if o.name == inputs[0]).outputs[0]
            inputs, size = inputs[:1], None if source.bytes is None else source.bytes / MIB
        odd = draw(st.sampled_from(["", "", "", "", "", "", "in_loop", "on_device", "stateful"]))
        if odd == "stateful" and kind in ("Reshape", "Identity"):  # a view has no state
            odd = ""
        ops.append(
            op(
                f"o{i}",
                *inputs,
                type=kind,
                mib=size,
                rank=draw(st.sampled_from([4, 4, 4, 2, 1])) if size is not None else None,
                after=draw(st.lists(st.sampled_from(names), max_size=1)),
                flops=draw(st.sampled_from([0, 10**8])),
                workspace_bytes=draw(st.sampled_from([0, 0, MIB])),
                **({odd: odd != "on_device"} if odd else {}),
            )
        )
    returned = draw(st.lists(st.sampled_from([o.name for o in ops]), max_size=3))
    return step(*ops, returned=returned, resident_mib=draw(st.integers(0, 3)))


parameters = st.builds(
    tflms.Parameters,
    swapout_threshold=st.integers(1, 8),
    swapin_ahead=st.integers(1, 12),
    swapin_groupby=st.integers(-1, 6),
    sync_mode=st.integers(0, 3),
    serialization=st.lists(st.one_of(st.integers(-3, 9), st.sampled_from(["3:5", "::2", "4:"]))).map(tuple),
    serialization_by_size=st.sampled_from([0, 0.001]),
    n_tensors=st.sampled_from([None, None, 0, 1, 3]),
)


def check(graph: StepGraph, plan: Plan) -> StepGraph:
    """`apply` accepts the plan (so the result is acyclic), and only redirected inputs and new control inputs differ."""
    edited = edit.apply(graph, plan)
    new_input, new_edges = edit.redirections(plan), set(edit.control_edges(plan))
    for old in graph.ops:
        new = edited.by_name[old.name]
        assert (new.type, new.outputs) == (old.type, old.outputs)
        assert new.inputs == tuple(new_input.get((old.name, t), t) for t in old.inputs)
        added = set(new.control_inputs) - set(old.control_inputs)
        assert all((c, old.name) in new_edges for c in added)
    untouchable = {o.name for o in graph.ops if o.in_loop or not o.on_device}
    assert not untouchable & {consumer for consumer, _ in new_input}
    copies = {c.tensor for c in (*plan.swap_ins, *plan.recomputes)}
    assert not untouchable & {t.rpartition(":")[0] for t in copies}
    return edited


@given(steps(), parameters)
@settings(max_examples=100, deadline=None)
def test_tflms(graph, chosen):
    plan = tflms.build(graph, chosen)
    edited = check(graph, plan)
    simulate(edited, fast)
    distance = [graph.levels[c] - graph.levels[s.tensor.rpartition(":")[0]] for s in plan.swap_ins for c in s.consumers]
    assert all(d > chosen.swapout_threshold for d in distance)
    assert len({s.tensor for s in plan.swap_outs}) == len(plan.swap_outs)


@given(steps(), st.floats(0.3, 1.1))
@settings(max_examples=40, deadline=None)
def test_autotune(graph, share):
    limit = int(simulate(graph, fast).peak_bytes * share)
    try:
        plan = tflms.autotune(graph, tflms.Parameters(), limit, fast)
    except DoesNotFit:
        return
    assert simulate(check(graph, plan), fast).peak_bytes <= limit


@given(steps(), st.floats(0.2, 1.1), st.sampled_from([slow, fast]), st.sampled_from([NO_POOL, GPU_POOL]))
@settings(max_examples=30, deadline=None)
def test_hybrid(graph, share, machine, pool):
    limit = int(peak_bytes(graph) * share)
    try:
        plan, report = make_plan(Settings(limit_bytes=limit, pool=pool).request(graph, machine))
    except DoesNotFit as error:
        smallest = error.smallest_limit_bytes or 0
        plan, report = make_plan(Settings(limit_bytes=smallest, pool=pool).request(graph, machine))
        assert smallest > limit
        limit = smallest
    check(graph, plan)
    never = {o.name for o in graph.ops if o.stateful or o.type == "RandomUniform"}
    assert not never & {r.op for r in plan.recomputes}
    if report.rewritten:
        assert report.predicted_peak_bytes <= limit
