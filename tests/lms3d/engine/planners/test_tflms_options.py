"""TFLMS's rules 6 and 7, values that are refused, and the automatic tuning."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from lms3d.engine import edit, planning
from lms3d.engine.cost import Machine
from lms3d.engine.planners.tflms import Parameters, autotune, build
from lms3d.engine.planning import make_plan
from lms3d.engine.request import Settings
from lms3d.engine.step_model.pool import LIMITED_GPU_POOL
from lms3d.engine.step_model.simulate import simulate
from lms3d.engine.tuning import TFLMS_SAFETY
from lms3d.errors import DoesNotFit, InputError
from tests.lms3d.engine.toy_graphs import MIB, SECONDS, op, placeholder, step, training, worked_example

FIXED = Parameters(swapout_threshold=4, swapin_ahead=1, swapin_groupby=0, sync_mode=0)
NONE = replace(FIXED, swapout_threshold=1000)
# a's near consumers are f1 and near; z waits for f4 and late
FORK = step(
    *worked_example().ops[:-1],
    op("near", "a"),
    op("late", "near"),
    op("z", "f4", "late", "a"),
)


@pytest.mark.parametrize(
    ("mode", "waiters", "triggers"),
    [
        (0, (), ("f3",)),
        (1, ("f1", "near"), ("f3",)),
        (2, (), ("late", "f4")),  # all the other inputs of z; ahead is ignored
        (3, ("f1", "near"), ("late", "f4")),
    ],
)
def test_sync_mode(mode, waiters, triggers):
    made = build(FORK, replace(FIXED, sync_mode=mode, swapin_ahead=1))
    assert (made.swap_outs[0].waiters, made.swap_ins[0].triggers) == (waiters, triggers)
    edited = edit.apply(FORK, made)
    assert [o.name for o in edited.ops if "lms/swap_out/a" in o.control_inputs] == list(waiters)


def test_modes_2_and_3_ignore_ahead():
    assert (
        build(FORK, replace(FIXED, sync_mode=2)).swap_ins
        == build(FORK, replace(FIXED, sync_mode=2, swapin_ahead=3)).swap_ins
    )


def test_weights_are_no_trigger():
    graph = step(op("w", type="ReadVariableOp"), *worked_example().ops[:-1], op("z", "f4", "a", "w"))
    assert build(graph, replace(FIXED, sync_mode=2)).swap_ins[0].triggers == ("f4",)


# Levels: x 0; a b c 1; d e 2; f 3
WIDE = step(
    placeholder(),
    op("a", "x"),
    op("b", "x"),
    op("c", "x"),
    op("d", "a"),
    op("e", "b"),
    op("f", "d", "e"),
    op("w", type="Const"),
)
LEVEL_1, LEVEL_2 = [("a", "b"), ("b", "c")], [("d", "e")]


@pytest.mark.parametrize(
    ("levels", "edges"),
    [
        ((1,), LEVEL_1),
        ((2, 1), LEVEL_1 + LEVEL_2),
        (("2",), LEVEL_2),
        (("1:3",), LEVEL_1 + LEVEL_2),
        (("1:2",), LEVEL_1),
        (("2:",), LEVEL_2),
        ((":2",), LEVEL_1),
        (("::2",), LEVEL_2),
        (("-2:",), LEVEL_2),
        ((-2,), LEVEL_2),
        (("-3",), LEVEL_1),
        ((0, 3, 50, "7:9"), []),  # w and x are not run, f is alone, the others do not exist
    ],
)
def test_serialization(levels, edges):
    made = build(WIDE, replace(NONE, serialization=levels))
    assert sorted(made.control_edges) == sorted(edges)
    assert made.empty == (not edges)
    edit.apply(WIDE, made)


def test_the_highest_level_can_be_named_from_the_end():
    graph = step(*WIDE.ops, op("g", "d", "e"))
    assert build(graph, replace(NONE, serialization=(-1,))).control_edges == (("f", "g"),)


@pytest.mark.parametrize("level", ["", ":", "a", "1:2:3:4", "3.5", "3-5", "-", "1:-", "1:5:0", "3,5"])
def test_serialization_that_is_no_level(level):
    with pytest.raises(InputError, match="expected a number or a slice"):
        Parameters(serialization=(level,))


def test_serialization_by_size():
    gib = 1024
    ops = [placeholder(mib=gib / 4), op("a", "x", mib=gib / 4), op("b", "x", mib=gib / 4)]  # 4 quarters at level 1
    graph = step(*ops, op("c", "a", mib=gib / 4), op("d", "b", mib=gib / 2))  # 5 at level 2
    chained = {g: build(graph, replace(NONE, serialization_by_size=g)).control_edges for g in (0, 0.9, 1, 1.2, 1.25)}
    both, second = (("a", "b"), ("c", "d")), (("c", "d"),)
    assert chained == {0: (), 0.9: both, 1: second, 1.2: second, 1.25: ()}  # more than, not as much as


@pytest.mark.parametrize(
    "wrong",
    [
        {"swapout_threshold": 0},
        {"swapout_threshold": -1},
        {"swapin_ahead": 0},
        {"sync_mode": 4},
        {"sync_mode": -1},
        {"serialization_by_size": -0.5},
        {"n_tensors": -1},
    ],
)
def test_values_that_are_refused(wrong):
    (name, value), *_ = wrong.items()
    with pytest.raises(InputError, match=f"{name}={value}: expected"):
        Parameters(**wrong)


# -- automatic tuning

MACHINE = Machine(swap_out_bytes_per_second=1e12, swap_in_bytes_per_second=1e12)
GRAPH = training(8, mib=4)
PEAK = simulate(GRAPH, MACHINE).peak_bytes


def limit_for(peak_bytes: int) -> int:
    return int(peak_bytes / TFLMS_SAFETY) + 1


def peak(parameters: Parameters) -> int:
    return simulate(edit.apply(GRAPH, build(GRAPH, parameters)), MACHINE).peak_bytes


def chosen(made) -> Parameters:
    return Parameters(**made.parameters)


def test_what_fits_is_left_alone():
    assert autotune(GRAPH, Parameters(), limit_for(PEAK), MACHINE).empty


@pytest.mark.parametrize("share", [0.9, 0.7, 0.55])
def test_tuned_parameters_fit_and_are_the_largest_that_do(share):
    limit = limit_for(int(PEAK * share))
    parameters = chosen(autotune(GRAPH, Parameters(), limit, MACHINE))
    budget = limit * TFLMS_SAFETY
    assert peak(parameters) <= budget < PEAK
    first = replace(parameters, swapin_ahead=1, swapin_groupby=0)
    assert peak(replace(first, swapout_threshold=parameters.swapout_threshold + 1)) > budget
    if parameters.sync_mode < 2 and parameters.swapin_ahead < max(GRAPH.levels.values()):
        assert peak(replace(parameters, swapin_groupby=0, swapin_ahead=parameters.swapin_ahead + 1)) > budget
    assert all(peak(replace(first, swapout_threshold=1, sync_mode=m)) > budget for m in range(parameters.sync_mode))


def test_tighter_limits_never_get_a_larger_threshold():
    thresholds = [
        chosen(autotune(GRAPH, Parameters(), limit_for(int(PEAK * share)), MACHINE)).swapout_threshold
        for share in (0.95, 0.8, 0.65, 0.5)
    ]
    assert thresholds == sorted(thresholds, reverse=True)
    assert len(set(thresholds)) > 1


def test_given_values_are_kept():
    given = Parameters(swapout_threshold=3, sync_mode=3)
    made = chosen(autotune(GRAPH, given, limit_for(int(PEAK * 0.8)), MACHINE))
    assert (made.swapout_threshold, made.sync_mode) == (3, 3)
    assert made.fixed


def test_fixed_values_are_not_tuned_even_if_they_do_not_fit():
    fixed = replace(FIXED, swapout_threshold=7)
    made, _ = plan_of(GRAPH, 1, parameters=fixed)
    assert (made.parameters, made.swap_ins) == (build(GRAPH, fixed).parameters, build(GRAPH, fixed).swap_ins)


# -- what TFLMS leaves to the executor


def plan_of(graph, limit_bytes: int, machine: Machine = MACHINE, **settings):
    request = Settings(limit_bytes=limit_bytes, planner="tflms", **settings).request(graph, machine)
    return make_plan(replace(request, with_floor=False))


def test_large_ops_run_one_after_the_other_in_the_order_of_the_simulator():
    made, _ = plan_of(FORK, 64 * MIB, parameters=FIXED)
    spans = simulate(edit.apply(FORK, build(FORK, FIXED)), MACHINE).spans
    names = [name for name in spans if name in FORK.by_name]
    assert names
    assert made.control_edges == tuple(itertools.pairwise(names))
    assert {"near", "late", "f4"} <= {*names}


def test_swap_ins_take_their_memory_after_the_original_has_given_back_its_own():
    made, _ = plan_of(FORK, 64 * MIB, parameters=replace(FIXED, sync_mode=1))
    (out,) = made.swap_outs
    assert out.waiters == ("f1", "near", "lms/swap_in/a/0")
    assert out.until


def test_a_step_with_a_loop_keeps_the_order_of_the_executor():
    """The simulator runs a loop once, and may run what is behind it too early: an edge from there could wait for itself."""
    graph = step(*FORK.ops, op("again", "x", in_loop=True))
    made, _ = plan_of(graph, 64 * MIB, parameters=FIXED)
    assert made.control_edges == made.swap_outs[0].waiters == ()
    assert made.swap_outs[0].until


def test_the_predicted_seconds_are_those_of_the_order(monkeypatch):
    seen, real = [], planning.step_seconds
    monkeypatch.setattr(
        planning, "step_seconds", lambda graph, machine, *, ordered=(): seen.append({*ordered}) or real(graph, machine)
    )
    plan_of(FORK, 64 * MIB, parameters=FIXED)
    assert {"near", "late", "f4"} <= seen[-1]


def test_an_empty_plan_stays_empty():
    assert plan_of(FORK, 64 * MIB, parameters=NONE)[0].empty


LIMITS = [int(PEAK * percent / 100) for percent in range(60, 110, 2)]


def test_in_a_pool_the_pieces_fit_too():
    by_pieces = [autotune(GRAPH, Parameters(), limit, MACHINE, LIMITED_GPU_POOL) for limit in LIMITS]
    assert by_pieces != [autotune(GRAPH, Parameters(), limit, MACHINE) for limit in LIMITS]
    for limit, made in zip(LIMITS, by_pieces, strict=True):
        edited = edit.apply(GRAPH, made)
        assert LIMITED_GPU_POOL.place_simulated(edited, simulate(edited, MACHINE), limit).fits


def test_the_predicted_peak_in_a_pool_counts_its_pieces():
    made, prediction = plan_of(GRAPH, LIMITS[0], pool=LIMITED_GPU_POOL)
    edited = edit.apply(GRAPH, made)
    run = simulate(edited, MACHINE)
    assert prediction.predicted_peak_bytes == LIMITED_GPU_POOL.place_simulated(edited, run, LIMITS[0]).peak_bytes
    assert prediction.predicted_peak_bytes > run.peak_bytes


def test_nothing_fits():
    with pytest.raises(DoesNotFit, match=r"cannot make the step fit in 8 MiB.*raise the memory limit"):
        autotune(GRAPH, Parameters(), 8 * MIB, MACHINE)


def test_building_needs_every_value():
    with pytest.raises(ValueError, match="must be tuned first"):
        build(GRAPH, Parameters(swapout_threshold=1))


# -- when an original's memory is given back

CHAIN = step(
    placeholder(),
    op("a", "x", flops=1),
    *[op(f"f{i}", f"f{i - 1}" if i > 1 else "a", flops=2) for i in range(1, 6)],
    op("z", "f5", "a", flops=1),
    returned=["z"],
)
"""a ends after a second, and each f takes two."""


def planned(graph, machine: Machine, **parameters):
    return plan_of(graph, 1, machine, parameters=replace(FIXED, **parameters))[0]


@pytest.mark.parametrize(("seconds", "until"), [(0.5, "f1"), (2.5, "f2"), (4, "f2"), (5, "f3"), (100, "f5")])
def test_an_original_goes_after_the_op_that_runs_when_its_copy_is_complete(seconds, until):
    """The last that began before that, even if nothing runs then."""
    link = replace(SECONDS, swap_out_bytes_per_second=MIB / seconds)
    (out,) = planned(CHAIN, link).swap_outs
    assert out.until == (until,)


@pytest.mark.parametrize("mode", range(4))
def test_waiting_for_that_op_closes_no_circle(mode):
    """Near readers wait for the hold, which waits for that op."""
    made = planned(FORK, replace(SECONDS, op_seconds=0.3), sync_mode=mode)
    (out,) = made.swap_outs
    (until,) = out.until
    edges = tuple((until, waiter) for waiter in out.waiters)
    edit.apply(FORK, replace(made, control_edges=edges))
    assert until == ("a" if mode in (1, 3) else "f4")
