"""The rules that close the loop, each on invented measurements."""

from __future__ import annotations

import dataclasses

import pytest

from lms3d.engine.cost import Machine
from lms3d.engine.plan import Plan, Recompute
from lms3d.engine.prediction import Prediction
from lms3d.engine.tuning import COLD, WARM
from lms3d.keras_step import report
from lms3d.keras_step.adaptation import Feedback, Learnt
from lms3d.keras_step.adaptation_rules import COSTS, LINKS, MARGIN, PEAK, Change

MIB = 1 << 20
LIMIT = 1000 * MIB
MACHINE = Machine(swap_out_bytes_per_second=1e9, swap_in_bytes_per_second=2e9)


def predicted(*, seconds: float = 2.0, peak: int = 940 * MIB, **others: object) -> Prediction:
    """A plan that takes a step of 1 s to 2 s, 0.5 s of it waiting."""
    return Prediction(
        step="train", planner="hybrid", tier="disk", limit_bytes=LIMIT, unedited_peak_bytes=2 * LIMIT,
        predicted_peak_bytes=peak, unedited_limit_bytes=2 * LIMIT, floor_bytes=None, unedited_step_seconds=1.0,
        predicted_step_seconds=seconds, predicted_stall_seconds=0.5, **others,
    )  # fmt: skip


def plan(number: int) -> Plan:
    return Plan(recomputes=(Recompute(op="a", tensor="a:0", copy=number, consumers=(), triggers=()),), planner="hybrid")


def row(seconds: float = 2.0, peak: int = 930 * MIB, **others: float) -> dict[str, float]:
    return {"seconds": seconds, "peak_bytes": peak, **others}


def run(loop: Feedback, measured: dict[str, float], *, cold: float = 30.0, steps: int = COLD + WARM) -> None:
    for step in range(steps):
        loop.add({**measured, "seconds": measured["seconds"] + (cold if step < COLD else 0)})


def first(measured: dict[str, float], **planned: object) -> Feedback:
    """A loop whose first plan was measured and judged."""
    loop = Feedback(LIMIT)
    loop.begin(1, plan(1), predicted(**planned), MACHINE)
    run(loop, measured)
    assert loop.due
    assert loop.judge()
    assert not loop.due
    return loop


SLOW_IN = {"swapped_in_bytes": 1e9, "swap_in_seconds": 2.0, "swapped_out_bytes": 1e9, "swap_out_seconds": 1.1}
ROOMY = row(peak=800 * MIB)


def test_nothing_to_do_where_the_plan_does_what_it_promised():
    as_planned = row(swapped_in_bytes=1e9, swap_in_seconds=0.55, swapped_out_bytes=1e9, swap_out_seconds=1.1)
    assert first(as_planned).propose() is None


# -- the rules that ask for another plan


def test_rule_1_a_peak_above_the_limit():
    change = first(row(peak=1030 * MIB)).propose()
    assert (change.rule, change.machine) == (PEAK, MACHINE)
    assert change.budget_bytes == int(LIMIT * 0.92)
    assert first(row(peak=999 * MIB)).propose() is None  # a pool that is full to the brim is no sign of anything


def test_rule_1_of_a_limit_that_nothing_enforces_goes_down_by_the_excess():
    assert first(row(peak=1900 * MIB)).propose().budget_bytes == int(LIMIT * 0.5)


def test_rule_2_links_that_are_slower_than_planned():
    change = first(row(3.5, **SLOW_IN)).propose()
    assert (change.rule, change.budget_bytes) == (LINKS, LIMIT)
    assert change.machine == dataclasses.replace(
        MACHINE, swap_in_bytes_per_second=0.5e9, swap_out_bytes_per_second=0.91e9
    )
    assert "swap-ins run at 477 MiB/s and not 1.86 GiB/s" in change.reason
    assert "swap-outs" not in change.reason


def test_rule_2_does_not_care_for_what_costs_nothing_or_cannot_be_seen():
    costs_nothing = {**SLOW_IN, "swapped_in_bytes": 1e7, "swap_in_seconds": 0.02}
    assert first(row(3.5, **costs_nothing)).propose().rule == COSTS
    assert (
        first(row(2.03, **SLOW_IN)).propose() is None
    )  # the step is as fast as planned: computing hides the transfers
    unseen = row(3.5, swapped_in_bytes=1e9)  # host memory: bytes of the plan, but no seconds
    assert first(unseen).propose().rule == COSTS


def test_rule_3_a_margin_that_is_too_cautious():
    change = first(ROOMY).propose()
    assert (change.rule, change.machine) == (MARGIN, MACHINE)
    assert change.budget_bytes == int(LIMIT * 1.15)  # at most
    slightly = first(row(peak=890 * MIB)).propose()
    assert slightly.budget_bytes == int(LIMIT * (940 / 890))
    nearer = first(row(peak=880 * MIB), peak=1000 * MIB).propose()
    assert nearer.budget_bytes == int(LIMIT * (950 / 880))  # no peak above 95 % of the limit is aimed at


@pytest.mark.parametrize(
    ("measured", "planned"),
    [
        (row(peak=910 * MIB), {}),  # no room
        (ROOMY, {"peak": 800 * MIB}),  # predicted rightly: the plan cannot use more
        (ROOMY, {"seconds": 1.015}),  # costs nothing that matters
        (ROOMY, {"rewritten": False, "seconds": 2.0}),  # nothing is planned
        (row(peak=0), {}),  # nothing was counted
    ],
)
def test_rule_3_does_not_apply(measured, planned):
    assert first(measured, **planned).propose() is None


def test_the_first_rule_that_applies_is_taken():
    assert first(row(3.5, peak=1030 * MIB, **SLOW_IN)).propose().rule == PEAK
    assert first(row(3.5, peak=800 * MIB, **SLOW_IN)).propose().rule == LINKS


def test_rule_4_planning_must_pay_for_itself():
    assert first(ROOMY).propose(steps_left=31).rule == MARGIN  # 1 s a step against the 30 s that the first one took
    assert first(ROOMY).propose(steps_left=30) is None
    assert first(row(3.5, **SLOW_IN)).propose(steps_left=21).rule == LINKS  # 1.5 s a step
    assert first(row(3.5, **SLOW_IN)).propose(steps_left=20) is None
    assert first(row(peak=1030 * MIB)).propose(steps_left=1).rule == PEAK


def of_run(steps: int | None, spent: float) -> Feedback:
    """A loop whose first plan leaves room, and was planned for so many seconds of effort."""
    loop = Feedback(LIMIT, run_steps=steps)
    loop.begin(1, plan(1), predicted(effort_seconds=spent), MACHINE)
    run(loop, ROOMY, cold=0.0)
    assert loop.judge()
    return loop


def test_rule_4_a_run_grants_no_more_than_it_is_worth():
    """By price, so that what came from the cache counts, too; a peak that is too high is lowered all the same."""
    assert of_run(None, spent=100.0).propose(1000).rule == MARGIN  # nobody knows how long it is
    assert of_run(100, spent=3.0).propose(100) is None  # 3 s
    assert of_run(100, spent=2.0).propose(100).rule == MARGIN
    assert of_run(1000, spent=3.0).propose(1000).rule == MARGIN  # 20 s
    assert of_run(1000, spent=20.0).propose(1000) is None
    high = Feedback(LIMIT, run_steps=4)
    high.begin(1, plan(1), predicted(effort_seconds=3.0), MACHINE)
    run(high, row(peak=1030 * MIB))
    assert high.judge()
    assert high.propose(1).rule == PEAK


def test_a_plan_that_was_refused_has_cost_as_much():
    loop = of_run(100, spent=1.0)
    change = loop.propose(100)
    loop.refuse(change, "the same plan again", predicted(effort_seconds=2.0))
    assert loop.account.seconds == 3.0


# -- rule 6: computing is predicted to take 1.5 s, waiting 0.5 s


def scale(measured: dict[str, float], **planned: object) -> float:
    return first(measured, **planned).ops_scale


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (1.3, 0.867),  # less than computing alone
        (1.4, 1.0),  # 7 % less
        (1.5, 1.0), (2.0, 1.0),  # nothing that waiting does not explain
        (2.14, 1.0),  # 9 % more
        (2.6, 1.4),
    ],
)  # fmt: skip
def test_rule_6_what_waiting_does_not_explain_is_due_to_the_ops(seconds, expected):
    assert scale(row(seconds)) == expected


def test_rule_6_a_step_may_wait_for_as_long_as_its_transfers_take():
    assert (
        scale(row(2.6, swapped_in_bytes=1e9, swap_in_seconds=0.6, swap_out_seconds=0.5, swapped_out_bytes=1e9)) == 1.0
    )
    assert (
        scale(row(2.9, swapped_in_bytes=1e9, swap_in_seconds=0.6, swap_out_seconds=0.5, swapped_out_bytes=1e9)) == 1.2
    )
    # A tier that does not measure them is taken to need the planned seconds: 0.5 in, 1 out.
    assert scale(row(3.0, swapped_in_bytes=1e9, swapped_out_bytes=1e9)) == 1.0
    assert scale(row(3.3, swapped_in_bytes=1e9, swapped_out_bytes=1e9)) == 1.2


def test_rule_6_plans_with_ops_that_take_as_long_as_they_took():
    change = first(row(2.6)).propose()
    slower = dataclasses.replace(MACHINE, ops_scale=1.4)
    reason = "ops take 1.4 times as long as measured alone"
    assert change == Change(COSTS, LIMIT, slower, reason, pytest.approx(1.2))
    loop = first(row(2.6))
    assert loop.reject(change, plan(2), predicted(seconds=2.55)) == ""  # predictions of before do not compare
    assert loop.reject(change, plan(2), predicted(seconds=2.6)) == "not predicted to be faster"
    assert loop.reject(change, plan(1), predicted(seconds=1.0)) == "the same plan again"


def test_rule_6_asks_for_no_plan_where_none_can_be_faster():
    """Ops take 0.867 times as long, and the step without LMS then 0.867 s."""
    assert first(row(1.3), seconds=1.5 + 0.5).propose().gain_seconds == pytest.approx(1.3 - 0.867)
    as_fast = first(row(0.867), seconds=1.0 + 0.5)  # all of it computing
    assert as_fast.ops_scale == 0.867
    assert as_fast.propose() is None


def test_rule_6_planning_must_pay_for_itself():
    assert first(row(2.6)).propose(steps_left=26).rule == COSTS  # 1.2 s a step against 30 s
    assert first(row(2.6)).propose(steps_left=24) is None


def test_rule_6_multiplies_with_the_scale_of_the_plan_and_comes_to_rest():
    loop, machine = Feedback(LIMIT), dataclasses.replace(MACHINE, ops_scale=1.4)
    loop.begin(1, plan(1), predicted(seconds=2.6), machine)
    run(loop, row(3.02))  # computing took 2.52 s and not 2.1 s
    assert loop.judge()
    change = loop.propose()
    assert change.machine.ops_scale == 1.68
    loop.begin(2, plan(2), predicted(seconds=3.02), change.machine, change)
    run(loop, row(3.0))
    assert loop.judge()
    assert loop.ops_scale == 1.68
    assert loop.learnt is None  # the next run begins with the costs of this plan
    assert loop.propose() is None


def test_rule_6_a_plan_that_is_not_faster_goes_and_no_other_comes():
    loop = first(row(2.6))
    change = loop.propose()
    loop.begin(2, plan(2), predicted(seconds=2.5), change.machine, change)
    run(loop, row(2.7))
    assert not loop.judge()
    assert loop.ops_scale == 1.4
    assert loop.propose() is None


def test_rule_6_short_steps_say_nothing():
    loop = Feedback(LIMIT, long_step_seconds=3.0)
    loop.begin(1, plan(1), predicted(), MACHINE)
    run(loop, row(2.6))
    assert (loop.ops_scale, loop.learnt) == (1.0, None)
    assert loop.judge()
    assert loop.propose() is None


def test_rule_6_what_the_runner_does_around_a_step_is_no_part_of_it():
    """Such as the copy of all variables, before each of the first steps."""
    assert scale(row(2.6, run_seconds=2.0)) == 1.0


def test_rule_6_what_a_step_tells_the_next_run():
    assert first(row(2.6)).learnt == Learnt(ops_scale=1.4)
    assert first(row(2.0)).learnt is None
    loop = Feedback(LIMIT)
    assert (loop.ops_scale, loop.learnt) == (1.0, None)
    loop.begin(1, Plan(planner="off"), predicted(seconds=1.0, rewritten=False), MACHINE)
    run(loop, row(0.4))
    assert loop.learnt == Learnt(unplanned_seconds=0.4)  # even if it is as predicted
    assert loop.propose() is None


def test_the_report_says_what_is_known_of_the_step_without_swapping():
    told = report.describe(predicted(), unplanned_seconds=0.8, ops_scale=1.31).to_markdown()
    assert "| step time without LMS (predicted) | 1.0 s |\n| step time without LMS (measured) | 800 ms |" in told
    assert "| predicted / measured step time without LMS | 1.25 |" in told
    assert "| ops in the step | ops take 1.31 times as long as measured alone |" in told
    unknown = report.describe(predicted()).to_markdown()
    assert "step time without LMS (measured)" not in unknown
    assert "as measured alone" not in unknown


# -- what becomes of the new plan


def second(measured: dict[str, float], of: dict[str, float] = ROOMY) -> tuple[Feedback, bool]:
    loop = first(of)
    change = loop.propose()
    loop.begin(2, plan(2), predicted(seconds=1.5), change.machine, change)
    run(loop, measured)
    return loop, loop.judge()


def test_rule_5_a_faster_plan_stays():
    loop, stays = second(row(seconds=1.9))
    assert stays
    assert [r.outcome for r in loop.rounds] == ["replaced by plan 2", "kept"]
    assert loop.budget_bytes == int(LIMIT * 1.15)


@pytest.mark.parametrize(
    ("measured", "why"), [(row(), "not faster"), (row(seconds=1.0, peak=1001 * MIB), "above the limit")]
)
def test_rule_5_another_one_goes_and_its_rule_is_not_tried_again(measured, why):
    loop, stays = second(measured)
    assert not stays
    assert [r.outcome for r in loop.rounds] == ["kept", f"dropped: {why}"]
    assert loop.budget_bytes == LIMIT
    assert loop.propose() is None


def test_rule_5_a_lower_plan_stays_after_rule_1_even_if_it_is_slower():
    assert second(row(seconds=3.0, peak=1010 * MIB), of=row(peak=1030 * MIB))[1]
    assert not second(row(seconds=3.0, peak=1040 * MIB), of=row(peak=1030 * MIB))[1]


def test_the_fastest_warm_step_counts():
    loop = first(ROOMY)
    change = loop.propose()
    loop.begin(2, plan(2), predicted(), change.machine, change)
    for seconds in (1.0, 9.0, 1.9, 9.0):  # the first one is cold
        assert not loop.due
        loop.add(row(seconds=seconds))
    assert loop.rounds[-1].measured_step_seconds == 1.9
    assert loop.judge()


def test_out_of_memory_under_a_new_plan_goes_back_and_not_below():
    loop = first(ROOMY)
    change = loop.propose()
    loop.begin(2, plan(2), predicted(), change.machine, change)
    assert loop.ran_out_of_memory()
    assert loop.budget_bytes == LIMIT
    assert [r.outcome for r in loop.rounds] == ["kept", "dropped: ran out of memory"]
    assert not loop.due
    assert loop.propose() is None


def test_out_of_memory_without_an_earlier_plan_asks_for_a_tighter_one_that_is_not_loosened_again():
    loop = Feedback(LIMIT)
    loop.begin(1, plan(1), predicted(), MACHINE)
    assert not loop.ran_out_of_memory()
    assert loop.budget_bytes == int(LIMIT * 0.92)
    loop.begin(2, plan(2), predicted(), MACHINE)
    run(loop, ROOMY)
    assert loop.judge()
    assert [(r.reason, r.outcome) for r in loop.rounds] == [
        ("first plan", "ran out of memory"),
        ("plan 1 ran out of memory", "kept"),
    ]
    assert loop.propose() is None


def test_three_new_plans_at_most():
    loop, made = first(ROOMY), 0
    while (change := loop.propose()) is not None:
        made += 1
        loop.begin(1 + made, plan(1 + made), predicted(), change.machine, change)
        run(loop, row(seconds=2.0 - 0.1 * made, peak=800 * MIB))  # always faster, always roomy
        assert loop.judge()
    assert made == 3
    assert [r.plan for r in loop.rounds] == [1, 2, 3, 4]


def test_plans_that_need_not_run():
    loop = first(ROOMY)
    change = loop.propose()
    assert loop.reject(change, plan(1), predicted(seconds=1.0)) == "the same plan again"
    assert loop.reject(change, plan(2), predicted(seconds=2.0)) == "not predicted to be faster"
    assert loop.reject(change, plan(2), predicted(seconds=1.9)) == ""


def test_a_plan_for_slower_links_has_to_beat_the_step_that_was_measured():
    loop = first(row(3.5, **SLOW_IN))
    change = loop.propose()
    assert loop.reject(change, plan(2), predicted(seconds=3.4)) == ""
    assert loop.reject(change, plan(2), predicted(seconds=3.5)) == "not predicted to be faster"
    loop.refuse(change, "nothing fits")
    assert (loop.rounds[-1].plan, loop.rounds[-1].outcome) == (None, "dropped: nothing fits")
    assert loop.propose() is None


def test_a_loop_that_only_keeps_the_record():
    loop = Feedback(LIMIT, changes=0)
    loop.begin(1, plan(1), predicted(), MACHINE)
    run(loop, ROOMY)
    assert loop.judge()
    assert loop.propose() is None
    assert loop.rounds[0].measured_peak_bytes == 800 * MIB


# -- the record


def test_stalls_are_what_the_transfers_can_explain():
    waiting = {"swapped_in_bytes": 1e9, "swap_in_seconds": 0.6, "swapped_out_bytes": 1e9, "swap_out_seconds": 1.0}
    # Computing is predicted to take 1.5 s.
    assert first(row(seconds=2.0, **waiting)).rounds[0].measured_stall_seconds == 0.5
    assert first(row(seconds=9.0, **waiting)).rounds[0].measured_stall_seconds == 1.6
    assert first(row(seconds=1.0, **waiting)).rounds[0].measured_stall_seconds == 0.0
    assert first(row(seconds=2.0)).rounds[0].measured_stall_seconds is None


def test_the_report_shows_every_round():
    loop = first(ROOMY)
    change = loop.propose()
    loop.begin(2, plan(2), predicted(), change.machine, change)
    loop.add(row(seconds=1.9))
    described = report.describe(predicted(), plan=2, rounds=loop.rounds)
    text = described.to_markdown()
    assert "| 1 | first plan | 940 MiB / 800 MiB | 2.0 s / 2.0 s | 500 ms / - | kept |" in text
    assert (
        "| 2 | the peak is only 800 MiB while the plan costs about 1.0 s: planned for 1.12 GiB | 940 MiB / 930 MiB"
        in text
    )
    assert [r["plan"] for r in described.to_dict()["rounds"]] == [1, 2]
    assert "not measured: the step time is all there is" in text
    known = dataclasses.replace(described.rounds[0], measured_stall_seconds=0.1)
    assert "Waiting (measured)" in dataclasses.replace(described, rounds=(known,)).to_markdown()
