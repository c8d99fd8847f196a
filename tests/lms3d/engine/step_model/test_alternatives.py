"""Each decision of a plan says what its alternatives would have cost, and gives a reason."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lms3d.engine.ir import StepGraph
from lms3d.engine.plan import Plan, Recompute, SwapIn, SwapOut
from lms3d.engine.planners import PLANNERS, Outcome, Planner
from lms3d.engine.planning import make_plan
from lms3d.engine.prediction import Decision, Figures, Prediction
from lms3d.engine.request import Settings
from lms3d.engine.step_model import alternatives, reasons
from lms3d.engine.step_model.planned_step import PlannedStep
from lms3d.engine.step_model.problem import reduce
from tests.lms3d.engine.toy_graphs import MIB, SECONDS, op, placeholder, step, training


def waiting(made_in: float, waits: float, **options: object) -> StepGraph:
    """`a` (4 MiB) takes `made_in` seconds to make, and is read again after 10 ops that take `waits` seconds together."""
    chain = [op(f"f{i}", f"f{i - 1}" if i else "a", mib=0.25, flops=waits / 10) for i in range(10)]
    return step(
        placeholder(mib=0.25),
        op("a", "x", mib=4, flops=made_in, **options),
        *chain,
        op("big", "f9", mib=8),
        op("small", "big", mib=0.25, flops=6),
        op("z", "small", "a", mib=0.25),
    )


def planned(graph: StepGraph, limit_mib: float, **settings: object) -> Prediction:
    return make_plan(Settings(limit_bytes=int(limit_mib * MIB), **settings).request(graph, SECONDS))[1]


def decision(prediction: Prediction, tensor: str = "a:0") -> Decision:
    return next(d for d in prediction.decisions if d.tensor == tensor)


def test_a_tensor_that_is_cheaper_to_swap():
    made = decision(planned(waiting(made_in=30, waits=40), 10))
    assert (made.action, made.copies) == ("swap", 1)
    assert (made.swap_seconds, made.hidden_seconds, made.recompute_seconds) == pytest.approx((8, 8, 30))
    assert made.idle_link_seconds == pytest.approx(46)
    assert 0 < made.peak_bytes <= 4 * MIB
    assert made.reason == (
        "swapped: moving it out and back takes 8.0 s, all of which idle links can hide; computing it again would take 30.0 s"
    )


def test_a_tensor_that_is_cheaper_to_recompute():
    made = decision(planned(waiting(made_in=1, waits=1), 10))
    assert (made.action, made.copies) == ("recompute", 1)
    assert (made.swap_seconds, made.hidden_seconds, made.recompute_seconds) == pytest.approx((8, 6.9, 1))
    assert made.peak_bytes > 0
    assert made.reason == (
        "recomputed: computing it again takes 1.0 s; moving it out and back would take 8.0 s, 6.9 s of which idle links could hide"
    )


@pytest.mark.parametrize(("action", "hidden", "recompute", "reason"), [
    ("recompute", 6.0, 3.0, "; moving it looks cheaper, but takes the links from other tensors, and on a CPU cores from the step"),
    ("swap", 6.0, 1.0, "; computing it again looks cheaper, but the plan was chosen by the whole step"),
    ("recompute", 6.0, 1.0, "6.0 s of which idle links could hide"),
    ("swap", 6.0, 3.0, "computing it again would take 3.0 s"),
])  # fmt: skip
def test_an_alternative_that_looks_cheaper_and_was_not_taken(action, hidden, recompute, reason):
    """2 of 8 s of transfers are not hidden."""
    problem = reduce(waiting(made_in=1, waits=1), SECONDS)
    buffer = next(b for b in problem.buffers if b.root == "a:0")
    made = Decision(
        tensor="a:0", bytes=4 * MIB, action=action, swap_seconds=8.0, hidden_seconds=hidden, recompute_seconds=recompute
    )
    said = reasons.of_buffer(made, buffer, problem, sources=(), peak_at="big", rule="")
    assert said.endswith(reason)
    assert "cheaper" not in reasons.of_buffer(made, buffer, problem, sources=(), peak_at="big", rule="a rule")


@pytest.mark.parametrize(("options", "action", "part"), [
    ({"stateful": True}, "swap", "it cannot be computed again, because a has a state, such as a variable"),
    ({"type": "RandomUniform"}, "swap", "it cannot be computed again, because a draws random numbers"),
    ({"rank": None}, "recompute", "it cannot be moved, because its number of axes is not known"),
])  # fmt: skip
def test_what_stands_in_the_way_of_an_alternative(options, action, part):
    made = decision(planned(waiting(made_in=1, waits=40, **options), 10))
    assert made.action == action
    assert part in made.reason
    assert None in (made.swap_seconds, made.recompute_seconds)


def test_a_tensor_that_can_do_neither():
    graph = waiting(made_in=1, waits=1, stateful=True, rank=None)
    made = decision(planned(graph, 100, planner="swap_everything"))
    assert (made.action, made.swap_seconds, made.hidden_seconds, made.recompute_seconds) == ("keep", None, None, None)
    problem = reduce(graph, SECONDS)
    stays = next(b for b in problem.buffers if b.root == "a:0")
    assert reasons.of_buffer(made, stays, problem, sources=(), peak_at="big", rule="") == (
        "kept: it cannot be moved, because its number of axes is not known; it cannot be computed again, because a has a state, "
        "such as a variable that may have changed by then"
    )


def test_tensors_that_stay_say_why():
    found = planned(training(5, mib=4, resident_mib=3), 36)
    said = {d.tensor: d.reason for d in found.decisions if d.action == "keep"}
    assert said["gc2:0"] == "kept: it is not in memory at the predicted peak"
    assert said["r4:0"] == f"kept: {found.peak_at}, which runs at the predicted peak, uses it"
    assert any(
        why.startswith("kept: there is room for it; moving it out and back would take 8.0 s") for why in said.values()
    )
    at_peak = {name for name, _ in found.peak_tensors}
    assert {d.tensor for d in found.decisions if d.action == "keep" and d.peak_bytes} == at_peak & set(said)


def test_a_returned_tensor_and_one_that_is_small():
    graph = step(
        placeholder(mib=0.1), op("a", "x", mib=400), op("little", "a", mib=0.07), op("b", "little", mib=8),
        op("c", "b", "little", mib=4), returned=["c"],
    )  # fmt: skip
    problem = reduce(graph, SECONDS)
    step_figures = Figures(peak_bytes=1, step_seconds=1)
    made = {d.tensor: d.reason for d in alternatives.decisions(problem, SECONDS, step_figures, None)}
    assert made["c:0"] == "kept: it cannot leave, because the step returns it"
    assert made["little:0"] == "kept: it cannot leave, because it is so small that moving it would not pay"


def test_a_link_that_is_busy_hides_less():
    """`b` goes to the tier and back while `a` waits, which takes both links for 20 of 40 seconds."""
    graph = step(
        placeholder(mib=0.25), op("a", "x", mib=4, flops=1), op("b", "x", mib=20, flops=1),
        *[op(f"f{i}", f"f{i - 1}" if i else "b", mib=0.25, flops=6) for i in range(10)],
        op("y", "f9", "b", mib=0.25), op("z", "y", "a", mib=0.25),
    )  # fmt: skip
    plan = Plan(
        swap_outs=(SwapOut(tensor="b:0", bytes=20 * MIB),),
        swap_ins=(SwapIn(tensor="b:0", copy=0, consumers=("y",), triggers=("f5",)),),
    )
    after = PlannedStep.simulated(graph, plan, SECONDS)
    figures = Figures(peak_bytes=after.run.peak_bytes, step_seconds=after.run.seconds)
    found = {d.tensor: d for d in alternatives.decisions(reduce(graph, SECONDS), SECONDS, figures, after)}
    alone = {d.tensor: d for d in alternatives.decisions(reduce(graph, SECONDS), SECONDS, figures, None)}
    assert found["a:0"].idle_link_seconds == pytest.approx(alone["a:0"].idle_link_seconds - 20)
    assert found["b:0"].idle_link_seconds == pytest.approx(
        alone["b:0"].idle_link_seconds
    )  # its own transfers do not count
    assert found["b:0"].peak_bytes == 0  # it is back at the peak
    assert after.lives("b:0") == [pytest.approx((1, 22)), pytest.approx((38, 62))]


def test_a_source_that_would_have_to_stay_is_named():
    graph = step(
        placeholder(mib=0.25), op("p", "x", mib=5, flops=60), op("a", "p", mib=4, flops=1),
        *[op(f"f{i}", f"f{i - 1}" if i else "a", mib=0.25, flops=4) for i in range(10)],
        op("big", "f9", mib=8), op("small", "big", mib=0.25, flops=6), op("z", "small", "a", mib=0.25),
    )  # fmt: skip
    made = decision(planned(graph, 12))
    assert made.action == "swap"
    assert made.reason.endswith("computing it again would take 1.0 s and would need p:0 (5.00 MiB) until then")


def test_a_mapped_tensor_is_only_written():
    request = Settings(limit_bytes=10 * MIB).request(waiting(made_in=30, waits=40), replace(SECONDS, mapped=True))
    made = decision(make_plan(request)[1])
    assert (made.action, made.swap_seconds, made.hidden_seconds) == ("swap", pytest.approx(4), pytest.approx(4))
    assert made.reason.startswith("swapped: writing it out takes 4.0 s, all of which")


@pytest.mark.parametrize(("planner", "rule"), [
    ("tflms", "TFLMS decides by the levels of the graph, not by costs"),
    ("swap_everything", "swap_everything swaps whatever can leave and is not read again soon"),
    ("recompute_everything", "recompute_everything recomputes whatever can leave and is not read again soon"),
    ("off", "the planner off changes nothing"),
])  # fmt: skip
def test_a_planner_that_goes_by_a_rule_names_it(planner, rule):
    limit = 30 if planner == "off" else 44
    found = planned(training(5, mib=4, resident_mib=3), limit, planner=planner)
    assert all(f": {rule}" in d.reason for d in found.decisions)
    moved = [d for d in found.decisions if d.action != "keep"]
    assert bool(moved) == (planner != "off")
    assert all("moving it out and back" in d.reason and "computing it again" in d.reason for d in moved)
    fits = planned(training(5, mib=4, resident_mib=3), 400, planner="tflms")
    assert {d.reason for d in fits.decisions} == {"kept: the step fits in the limit as it is"}


def test_a_planner_without_figures_knows_what_is_live_at_the_peak():
    found = planned(training(5, mib=4, resident_mib=3), 44, planner="tflms")
    live = sum(d.bytes for d in found.decisions if d.action == "keep" and d.peak_bytes)
    assert 0 < live <= found.predicted_peak_bytes


def test_what_a_plan_swaps_besides_has_a_decision_too():
    """A tensor below a crumb is no buffer of the problem; a planner may swap it all the same."""

    class Mine(Planner):
        rule = "the small ones leave"

        def plan(self, study):
            small = SwapIn(tensor="s:0", copy=0, consumers=("z",), triggers=("big",))
            return Outcome(
                plan=Plan(swap_outs=(SwapOut(tensor="s:0", bytes=MIB // 32),), swap_ins=(small,), planner="mine")
            )

    graph = step(
        placeholder(), op("s", "x", mib=1 / 32), op("a", "s", mib=4), op("big", "a", mib=4), op("z", "big", "s", mib=4)
    )
    PLANNERS.register("mine")(Mine)
    try:
        made = decision(planned(graph, 100, planner="mine"), "s:0")
    finally:
        PLANNERS.remove("mine")
    assert (made.action, made.swap_seconds) == ("swap", pytest.approx(1 / 16))
    assert made.reason == "swapped: the small ones leave; moving it takes 62 ms"
    assert not made.weighed


def test_a_tensor_whose_view_is_swapped_says_so():
    graph = step(
        placeholder(), op("a", "x", mib=4), op("v", "a", mib=4, type="Identity"), op("big", "a"), op("z", "big", "v")
    )
    back = SwapIn(tensor="v:0", copy=0, consumers=("z",), triggers=("big",))
    plan = Plan(swap_outs=(SwapOut(tensor="v:0", bytes=4 * MIB),), swap_ins=(back,))
    planned_step, figures = PlannedStep.simulated(graph, plan, SECONDS), Figures(peak_bytes=0, step_seconds=0)
    decisions = alternatives.decisions(reduce(graph, SECONDS), SECONDS, figures, planned_step, rule="by levels")
    assert [d.reason for d in decisions if d.tensor == "a:0"] == ["kept: by levels; its view v:0 is swapped"]
    assert [d.action for d in decisions if d.tensor == "v:0"] == ["swap"]


def test_an_op_that_runs_once_more_uses_what_it_reads():
    """`a` is read by `z` after 41 seconds, but also by the copy of `b`, which runs after 30."""
    graph = step(
        placeholder(mib=0.25),
        op("a", "x", mib=4, flops=1),
        op("b", "a", mib=4, flops=1),
        *(op(f"g{i}", f"g{i - 1}" if i else "b", mib=0.25, flops=3) for i in range(10)),
        op("late", "g9", "b", mib=0.25, flops=10),
        op("z", "late", "a", mib=0.25, flops=1),
    )
    again = Recompute(op="b", tensor="b:0", copy=0, consumers=("late",), triggers=("g9",))
    planned_step = PlannedStep.simulated(graph, Plan(recomputes=(again,)), SECONDS)
    figures = Figures(peak_bytes=0, step_seconds=0)
    a, b = alternatives.decisions(reduce(graph, SECONDS), SECONDS, figures, planned_step)[:2]
    assert (a.tensor, a.idle_link_seconds) == ("a:0", pytest.approx(30))
    assert (b.tensor, b.idle_link_seconds) == ("b:0", pytest.approx(27))  # after g0


def test_what_is_gained_by_leaving_is_what_the_peak_would_rise_by():
    """With `a` kept, and nothing else changed, the step holds as much more as its decision says."""
    graph = waiting(made_in=30, waits=40)
    plan, prediction = make_plan(Settings(limit_bytes=10 * MIB).request(graph, SECONDS))
    after = PlannedStep.simulated(graph, plan, SECONDS)
    order_alone = replace(plan, swap_outs=(), swap_ins=(), control_edges=())
    whole = PlannedStep.simulated(graph, order_alone, SECONDS)
    assert decision(prediction).peak_bytes == whole.run.peak_bytes - after.run.peak_bytes


def test_decisions_survive_json():
    found = planned(training(5, mib=4, resident_mib=3), 36)
    assert Prediction.from_dict(found.to_dict()) == found
    assert all(d.reason for d in found.decisions)


@pytest.mark.parametrize(("seconds", "text"), [
    (0, "0 ms"), (3.14e-6, "3.1 µs"), (8.34e-4, "0.83 ms"), (0.0112, "11 ms"), (0.234, "234 ms"), (8.04, "8.0 s"),
])  # fmt: skip
def test_short_durations_keep_two_figures(seconds, text):
    assert reasons.duration(seconds) == text
