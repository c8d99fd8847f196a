"""A limit in, a plan out that keeps it: the hybrid planner on small training steps."""

from __future__ import annotations

import itertools
import json
import re
from dataclasses import replace

import pytest

from lms3d.engine import edit
from lms3d.engine.cost import Machine
from lms3d.engine.ir import Tensor
from lms3d.engine.plan import Plan
from lms3d.engine.planners import PLANNERS
from lms3d.engine.planners.hybrid import floor, local_search, search, strategy, tuning
from lms3d.engine.planning import is_noop, make_plan
from lms3d.engine.request import Settings
from lms3d.engine.step_model import emit, fit
from lms3d.engine.step_model.decisions import Choice, Mode
from lms3d.engine.step_model.order import branch_ends_first
from lms3d.engine.step_model.pool import CPU_POOL, GPU_POOL, NO_POOL, POOLS, Pool
from lms3d.engine.step_model.problem import reduce
from lms3d.engine.step_model.schedule import build
from lms3d.engine.step_model.simulate import simulate
from lms3d.engine.step_model.study import Study
from lms3d.engine.tuning import NAMED_TENSORS
from lms3d.errors import DoesNotFit
from lms3d.keras_step import report as reports
from lms3d.units import format_size
from tests.lms3d.engine.toy_graphs import MIB, op, placeholder, step, training

MACHINE = Machine(flops_per_second=1e10)
GRAPH = training(10, mib=4, resident_mib=3)
UNEDITED = simulate(GRAPH, MACHINE).peak_bytes


def floor_bytes(graph, pool: Pool = NO_POOL) -> int:
    return floor.lowest(reduce(graph, MACHINE), MACHINE, pool=pool).limit_bytes


@pytest.mark.parametrize("share", [0.9, 0.7, 0.5, 0.4])
def test_the_plan_keeps_the_limit(share):
    limit = int(UNEDITED * share)
    plan, report = make_plan(Settings(limit_bytes=limit).request(GRAPH, MACHINE))
    edited = edit.apply(GRAPH, plan)
    assert report.predicted_peak_bytes <= limit
    assert simulate(edited, MACHINE).peak_bytes <= limit
    assert report.floor_bytes <= limit < report.unedited_limit_bytes
    assert not plan.empty


@pytest.mark.parametrize("pool", POOLS.values(), ids=POOLS)
def test_the_floor_is_feasible_and_below_it_an_error_names_it(pool):
    graph = training(12, mib=8, resident_mib=6)
    smallest = floor_bytes(graph, pool)
    plan, report = make_plan(Settings(limit_bytes=smallest, pool=pool).request(graph, MACHINE))
    assert report.predicted_peak_bytes <= smallest
    edit.apply(graph, plan)
    with pytest.raises(DoesNotFit, match="the smallest memory limit that would do is") as caught:
        make_plan(Settings(limit_bytes=smallest // 2, pool=pool).request(graph, MACHINE))
    assert caught.value.smallest_limit_bytes == smallest


def test_the_floor_is_sought_once_for_all_that_ask(monkeypatch):
    """The error of a limit below it, and any planner that has no floor of its own."""
    study, sought, lowest = Study(Settings(limit_bytes=MIB).request(GRAPH, MACHINE)), [], floor.lowest
    monkeypatch.setattr(floor, "lowest", lambda *a, **k: sought.append(a) or lowest(*a, **k))
    with pytest.raises(DoesNotFit) as caught:
        PLANNERS["hybrid"]().plan(study)
    assert {PLANNERS[name]().floor(study) for name in ("hybrid", "tflms", "off")} == {caught.value.smallest_limit_bytes}
    assert len(sought) == 1


def test_the_floor_does_not_depend_on_the_clock():
    """Ops are measured within a pool and without, and never quite alike."""
    speeds = (1e8, 1e10, 1e13)
    machines = [replace(MACHINE, flops_per_second=f, bytes_per_second=f) for f in speeds]
    assert len({floor.lowest(reduce(GRAPH, m), m, pool=CPU_POOL).limit_bytes for m in machines}) == 1


def test_a_little_more_than_the_floor_is_enough_too(monkeypatch):
    """Or it would hang on gaps between weights, of a MiB or two, which pieces fit."""
    problem = reduce(GRAPH, MACHINE)
    place, needed = Pool.place, floor.lowest(problem, MACHINE, pool=CPU_POOL).limit_bytes

    def unlucky(pool, problem, schedule, limit_bytes, account=None):
        placed = place(pool, problem, schedule, limit_bytes)
        return replace(placed, fits=placed.fits and limit_bytes - needed not in (4 * MIB, 5 * MIB))

    monkeypatch.setattr(Pool, "place", unlucky)
    assert floor.lowest(problem, MACHINE, pool=CPU_POOL).limit_bytes == needed + 6 * MIB


def test_a_plan_that_is_never_sure_to_fit_is_not_the_floor(monkeypatch):
    """Unless there is no other."""
    problem = reduce(GRAPH, MACHINE)
    place, needed = Pool.place, floor.lowest(problem, MACHINE, pool=CPU_POOL).limit_bytes

    def only_there(pool, problem, schedule, limit_bytes, account=None):
        placed = place(pool, problem, schedule, limit_bytes)
        return replace(placed, fits=placed.fits and limit_bytes in (needed, needed + 2 * MIB))

    monkeypatch.setattr(Pool, "place", only_there)
    assert floor._steady_limit(problem, build(problem, {}, MACHINE), needed, CPU_POOL) is None
    assert floor.lowest(problem, MACHINE, pool=CPU_POOL).limit_bytes == needed


def test_a_step_of_nothing_but_loops_has_no_lower_floor():
    graph = step(placeholder(mib=0.01), *[op(f"l{i}", "x", in_loop=True, mib=4) for i in range(3)], returned=["l2"])
    _, report = make_plan(Settings(limit_bytes=MIB).request(graph, MACHINE))
    assert report.floor_bytes > MIB


def test_draws_lower_the_floor(monkeypatch):
    """Here pieces fit better if one buffer is recomputed, which takes more bytes than the plans that descents come by."""
    problem = reduce(GRAPH, MACHINE)
    usual = floor.lowest(problem, MACHINE, pool=CPU_POOL)
    other = next(iter(usual.choices))
    assert usual.choices[other].mode is Mode.SWAP

    def lucky(problem, schedule, limit_bytes, pool):
        recomputed = any(c.buffer == other and c.mode is Mode.RECOMPUTE for c in schedule.copies)
        return recomputed and limit_bytes >= usual.limit_bytes - 2 * MIB

    monkeypatch.setattr(floor, "_surely_fits", lucky)
    drawn = floor.lowest(problem, MACHINE, pool=CPU_POOL)
    assert drawn.limit_bytes == usual.limit_bytes - 2 * MIB
    assert drawn.choices[other].mode is Mode.RECOMPUTE


def test_what_fits_as_bytes_alone_is_taken_over_as_far_as_its_pieces_fit(monkeypatch):
    """Here pieces fit if one more buffer is moved than bytes ask for."""
    problem = reduce(GRAPH, MACHINE)
    limit, check = int(UNEDITED * 0.6), fit.check
    free = local_search.solve(problem, limit, MACHINE)
    held = next(b for b in sorted(moves_all(problem)) if b not in free.choices)

    def pieces(problem, choices, schedule, limit_bytes, pool, account=None):
        found = check(problem, choices, schedule, limit_bytes, pool)
        return replace(found, fits=found.fits and held in choices)

    monkeypatch.setattr(fit, "check", pieces)
    solution = local_search.solve(problem, limit, MACHINE)
    assert solution.fits
    assert held in solution.choices
    assert len(solution.choices) <= len(free.choices) + 1 < len(moves_all(problem))


def test_choices_are_taken_over_in_halves():
    problem = reduce(GRAPH, MACHINE)
    searching = search.Search(problem, MACHINE, 10)
    bottom = searching.build(moves_all(problem))
    held = sorted(bottom[0])[len(bottom[0]) // 2]
    goal, before = searching.build({}), searching.evaluations
    found = searching._towards(bottom, goal, 1 << 40, lambda plan: held in plan[0])
    assert found[0].keys() == {held}
    assert searching.evaluations - before < len(bottom[0]) / 1.5


def moves_all(problem):
    return next(search.Search(problem, MACHINE, 10).everything_moved())


@pytest.mark.parametrize("known", [True, False])
def test_the_plan_of_the_floor_is_made_cheaper(monkeypatch, known):
    """It was found as if each op took the same time, and transfers none."""
    problem = reduce(branch_ends_first(training(12, mib=8, resident_mib=6)), MACHINE)
    lowest, asked = floor.lowest(problem, MACHINE, pool=CPU_POOL), []
    monkeypatch.setattr(search.Search, "everything_moved", lambda _: iter([]))
    monkeypatch.setattr(floor, "lowest", lambda *_, **__: asked.append(True) or lowest)
    options = {"lowest": lambda: lowest} if known else {}
    light = local_search.solve(problem, lowest.limit_bytes, MACHINE, pool=CPU_POOL, **options)
    assert bool(asked) is not known
    assert light.fits
    assert light.schedule.cost_seconds < build(problem, lowest.choices, MACHINE).cost_seconds


def test_nothing_is_refused_because_what_moves_most_does_not_fit(monkeypatch):
    """Which pieces fit is luck: a plan may, though that of the floor does not."""
    problem, check = reduce(GRAPH, MACHINE), fit.check
    limit = int(UNEDITED * 0.7)
    most = len(local_search.solve(problem, limit, MACHINE).choices)

    def few(problem, choices, schedule, limit_bytes, pool, account=None):
        found = check(problem, choices, schedule, limit_bytes, pool)
        return replace(found, fits=found.fits and len(choices) <= most)

    lowest = floor.lowest(problem, MACHINE)
    assert len(lowest.choices) > most
    monkeypatch.setattr(fit, "check", few)
    assert local_search.solve(problem, limit, MACHINE, lowest=lambda: lowest).fits


@pytest.mark.parametrize("pool", POOLS.values(), ids=POOLS)
def test_without_time_there_is_a_plan_all_the_same(pool):
    problem = reduce(GRAPH, MACHINE)
    limit = floor.lowest(problem, MACHINE, pool=pool).limit_bytes * 5 // 4
    assert local_search.solve(problem, limit, MACHINE, pool=pool, seconds=0.0).fits


def test_a_limit_that_has_a_plan_is_not_below_the_floor_that_is_named(monkeypatch):
    """The search for the floor may miss what the planner finds."""
    lowest = replace(floor.lowest(reduce(GRAPH, MACHINE), MACHINE), limit_bytes=UNEDITED)
    monkeypatch.setattr(floor, "lowest", lambda *_, **__: lowest)
    _, report = make_plan(Settings(limit_bytes=int(UNEDITED * 0.5)).request(GRAPH, MACHINE))
    assert report.rewritten
    assert report.floor_bytes == report.limit_bytes


def test_the_error_names_both_limits_and_the_largest_tensors_at_the_peak():
    smallest = floor_bytes(GRAPH)
    unedited = Study(Settings(limit_bytes=1).request(GRAPH, MACHINE)).unedited_limit_bytes
    with pytest.raises(DoesNotFit) as caught:
        make_plan(Settings(limit_bytes=smallest // 2).request(GRAPH, MACHINE))
    message = str(caught.value)
    assert f"does not fit in {format_size(smallest // 2)}, not even with LMS" in message
    assert f"would do is {format_size(smallest)} with LMS and {format_size(unedited)} without" in message
    named = re.search(r"largest at its peak: (.*); raise the memory limit", message).group(1)
    tensors = re.findall(r"(\S+:0) \(4\.00 MiB\)", named)
    lowest = floor.lowest(reduce(branch_ends_first(GRAPH), MACHINE), MACHINE)
    event = int(lowest.schedule.live_bytes.argmax())
    live = {lowest.problem.buffers[c.buffer].root for c in lowest.schedule.copies if c.start <= event <= c.end}
    assert set(tensors) <= live
    assert len(tensors) == min(NAMED_TENSORS, len(live)) > 1


def test_an_op_that_does_not_fit_alone_is_told_at_once(monkeypatch):
    """Nothing is searched for at this limit; only the floor is found, for the message."""
    graph = step(*GRAPH.ops, op("huge", "x", mib=200), op("end", "huge", mib=0.1), returned=["end"])
    solved = []
    solve = local_search.solve
    monkeypatch.setattr(
        local_search, "solve", lambda *args, **options: solved.append(args[1]) or solve(*args, **options)
    )
    with pytest.raises(DoesNotFit, match=r"largest at its peak: huge:0 \(200 MiB\)") as caught:
        make_plan(Settings(limit_bytes=150 * MIB).request(graph, MACHINE))
    assert not solved
    assert caught.value.smallest_limit_bytes > 200 * MIB
    make_plan(Settings(limit_bytes=int(UNEDITED * 0.5)).request(GRAPH, MACHINE))
    assert solved


def test_what_fits_is_left_alone_and_the_report_says_so():
    _, edited = make_plan(Settings(limit_bytes=int(UNEDITED * 0.8)).request(GRAPH, MACHINE))
    plan, report = make_plan(Settings(limit_bytes=edited.unedited_limit_bytes).request(GRAPH, MACHINE))
    assert plan == Plan()
    assert edit.apply(GRAPH, plan).ops == GRAPH.ops
    assert is_noop(Settings(limit_bytes=edited.unedited_limit_bytes).request(GRAPH, MACHINE))
    assert not report.rewritten
    assert report.planner == "none"
    assert report.predicted_peak_bytes == report.unedited_peak_bytes
    assert report.predicted_step_seconds == report.unedited_step_seconds
    assert (report.swapped_out_bytes, report.swapped_in_bytes, report.recomputed_ops) == (0, 0, 0)
    assert {d.action for d in report.decisions} == {"keep"}
    assert report.headline().startswith("LMS changes nothing in the train step")
    below = Settings(limit_bytes=edited.unedited_limit_bytes - 1)
    assert not is_noop(below.request(GRAPH, MACHINE))
    assert make_plan(below.request(GRAPH, MACHINE))[1].rewritten


def test_nothing_large_nothing_to_do():
    graph = step(placeholder(mib=0.001), op("a", "x", mib=0.001))
    plan, _ = make_plan(Settings(limit_bytes=1).request(graph, MACHINE))
    assert plan.empty


def test_less_memory_costs_more_time():
    reports = [make_plan(Settings(limit_bytes=int(UNEDITED * s)).request(GRAPH, MACHINE))[1] for s in (0.9, 0.65, 0.4)]
    seconds = [r.predicted_step_seconds for r in reports]
    assert seconds == sorted(seconds)
    assert seconds[0] >= reports[0].unedited_step_seconds


@pytest.mark.parametrize("slow", ["computing", "swap_out_bytes_per_second", "swap_in_bytes_per_second"])
def test_no_step_is_shorter_than_its_computing_or_its_bytes_each_way(slow):
    fast = replace(MACHINE, swap_out_bytes_per_second=1e12, swap_in_bytes_per_second=1e12)
    machine = fast if slow == "computing" else replace(fast, **{slow: MIB})
    settings = Settings(limit_bytes=1 << 40, planner="swap_everything")
    plan, report = make_plan(replace(settings.request(GRAPH, machine), with_floor=False))
    assert report.swapped_out_bytes >= 20 * MIB
    moved = {"computing": 0, "swap_out_bytes_per_second": plan.swapped_out_bytes}.get(slow, plan.swapped_in_bytes)
    bound = max(report.unedited_step_seconds, moved / MIB)
    assert report.lower_bound_seconds == pytest.approx(bound)
    assert report.predicted_step_seconds >= bound > 0
    assert (bound > report.unedited_step_seconds) == (slow != "computing")
    times = report.predicted_step_seconds / bound
    assert f"; this plan takes {times:.2f} times that |" in reports.describe(report).to_markdown()


def test_cheap_ops_are_recomputed_where_the_link_is_slow_and_swapped_where_it_is_fast():
    limit = int(UNEDITED * 0.6)

    def decided(bytes_per_second: float) -> tuple[int, int]:
        machine = Machine(
            flops_per_second=1e6, swap_out_bytes_per_second=bytes_per_second, swap_in_bytes_per_second=bytes_per_second
        )
        plan, _ = make_plan(Settings(limit_bytes=limit).request(GRAPH, machine))
        kinds = [GRAPH.by_name[r.op].type for r in plan.recomputes]
        assert "Conv3D" not in kinds  # 8 s each
        return len(plan.swap_outs), kinds.count("LeakyRelu")

    assert decided(1e12)[0] > 0
    assert decided(1e7)[1] > 0


def test_a_copy_of_an_op_allocates_all_that_it_returns():
    """Two results of 64 MiB, as a compiled program may have: to read one again, both are there for a moment."""
    two = replace(op("p", "x", mib=64), outputs=(Tensor("p:0", 64 * MIB, 4), Tensor("p:1", 64 * MIB, 4)))
    middle = [op("c1", "p:0", "p:1"), op("m", "c1", mib=100), op("c2", "m"), op("q", "c2", mib=64, stateful=True)]
    graph = step(placeholder(), two, *middle, op("c3", "c2", "p:0"), op("c4", "c3", "q"), returned=["c4"])
    plan, prediction = make_plan(
        Settings(limit_bytes=1 << 31, planner="recompute_everything").request(graph, Machine())
    )
    assert [again.op for again in plan.recomputes if again.op == "p"]
    assert prediction.predicted_peak_bytes == simulate(edit.apply(graph, plan), Machine()).peak_bytes > 190 * MIB


def test_random_and_stateful_ops_are_never_recomputed():
    for wrong in ({"type": "RandomUniform"}, {"stateful": True}):
        first = op("c0", "x", mib=4, **wrong)
        graph = step(GRAPH.ops[0], first, *GRAPH.ops[2:], returned=["gw0"])
        buffer = reduce(graph, MACHINE).buffers[0]
        assert (buffer.root, buffer.recomputable, buffer.swappable) == ("c0:0", False, True)
        plan, _ = make_plan(Settings(limit_bytes=floor_bytes(graph)).request(graph, MACHINE))
        assert "c0" not in {r.op for r in plan.recomputes}


def test_loops_and_returned_tensors_are_never_moved():
    looped = step(*GRAPH.ops[:-1], op("loop", "r2", in_loop=True, mib=0.1), GRAPH.ops[-1], returned=["c3"])
    buffers = {b.root: b for b in reduce(looped, MACHINE).buffers}
    assert [(buffers[t].swappable, buffers[t].recomputable) for t in ("r2:0", "c3:0")] == [(False, False)] * 2
    plan, _ = make_plan(Settings(limit_bytes=floor_bytes(looped)).request(looped, MACHINE))
    assert not {"r2:0", "c3:0"} & {s.tensor for s in (*plan.swap_ins, *plan.recomputes)}


def test_large_ops_run_in_the_planned_order():
    """Every two neighbours of the schedule are ordered by a control edge, a trigger or data."""
    problem = reduce(GRAPH, MACHINE)
    solution = local_search.solve(problem, int(UNEDITED * 0.5), MACHINE)
    edited = edit.apply(GRAPH, emit.emit(solution))
    after: dict[str, set[str]] = {}
    for o in edited.ops:
        direct = {t.rpartition(":")[0] for t in o.inputs} | set(o.control_inputs)
        after[o.name] = direct.union(*(after[d] for d in direct))
    anchors = solution.problem.anchors
    assert all(a in after[b] for a, b in itertools.pairwise(anchors))


def test_memory_changes_hands_in_the_planned_order():
    """Each original is held to the event before the one that waits for its swap-out; swap-ins queue up before an event."""
    problem = reduce(GRAPH, MACHINE)
    choices = {b: Choice(Mode.SWAP) for b, buffer in enumerate(problem.buffers) if buffer.swappable}
    schedule = build(problem, choices, MACHINE)
    plan = emit.emit(fit.Solution(problem, choices, schedule, 1, schedule.peak_bytes, True))
    anchors, names = list(problem.anchors), {back.name: back for back in plan.swap_ins}
    held = [out for out in plan.swap_outs if out.until]
    assert held
    assert names

    def queue(first: str) -> list[str]:
        """From a swap-in to the event that it starts before, each the follower of the one before."""
        found = [first]
        while found[-1] in names:
            found += names[found[-1]].followers
        return found

    for out in held:
        assert anchors.index(queue(*out.waiters)[-1]) == anchors.index(out.until[0]) + 1
    for back in plan.swap_ins:
        event = queue(back.name)[-1]
        assert back.triggers == (anchors[anchors.index(event) - 1],)
        freed = [
            out for out in held if queue(*out.waiters)[-1] == event
        ]  # before any swap-in of that event takes memory
        assert all(back.name in queue(*out.waiters) for out in freed)
    assert any(out.waiters[0] in names for out in held)


def test_a_reader_behind_a_reshape_gets_a_reshaped_copy():
    graph = step(
        placeholder(mib=0.1),
        op("a", "x", mib=4),
        op("flat", "a", type="Reshape", mib=4, rank=2),
        op("f1", "a", mib=4),
        *[op(f"f{i}", f"f{i - 1}", mib=4, flops=8 * MIB) for i in range(2, 9)],
        op("z", "f8", "flat", mib=0.1),
        returned=["z"],
    )
    problem = reduce(graph, MACHINE)
    index = [b.root for b in problem.buffers].index("a:0")
    choices = {index: Choice(Mode.SWAP)}
    schedule = build(problem, choices, MACHINE)
    made = emit.emit(fit.Solution(problem, choices, schedule, 1, schedule.peak_bytes, True))
    edited = edit.apply(graph, made)
    assert edited.by_name["z"].inputs == ("f8:0", "lms/recompute/flat:0")
    assert edited.by_name["lms/recompute/flat"].inputs == ("lms/swap_in/a/0:0",)


def test_plan_as_json():
    plan, report = make_plan(Settings(limit_bytes=int(UNEDITED * 0.45)).request(GRAPH, MACHINE))
    assert plan.recomputes or plan.swap_outs
    assert Plan.from_dict(json.loads(json.dumps(plan.to_dict()))) == plan
    assert json.loads(json.dumps(report.to_dict()))["predicted_peak_bytes"] == report.predicted_peak_bytes


def test_planning_again_gives_the_same_plan():
    settings = Settings(limit_bytes=int(UNEDITED * 0.5))
    assert make_plan(settings.request(GRAPH, MACHINE))[0] == make_plan(settings.request(GRAPH, MACHINE))[0]


def test_the_tensors_at_the_peak_of_an_unedited_step_are_those_of_its_own_order():
    """A plan would make `mask`, which ends a branch, as soon as it can, and `f0` would go; this step runs as traced."""
    chain = [op(f"f{i}", f"f{i - 1}" if i else "x", mib=4 + i, flops=8) for i in range(6)]
    last = [op("mask", "f0", mib=1, type="Tanh"), op("z", "f5", "mask", mib=4, type="AddV2")]
    _, report = make_plan(
        Settings(limit_bytes=1 << 30).request(step(placeholder(mib=0.1), *chain, *last, returned=["z"]), MACHINE)
    )
    assert report.peak_at == "f5"
    assert report.peak_tensors[:3] == (("f5:0", 9 * MIB), ("f4:0", 8 * MIB), ("f0:0", 4 * MIB))


def test_what_waits_for_nothing_counts_from_the_start_of_a_step_that_is_left_alone():
    """`kernel` is traced before the last convolution, when `f1` is gone; TensorFlow makes it at once, a plan can make it wait."""
    chain = [op(f"f{i}", f"f{i - 1}" if i else "x", mib=mib, flops=8) for i, mib in enumerate((4, 20, 4, 2))]
    last = [op("kernel", "w", mib=8, type="Transpose"), op("z", "f3", "kernel", mib=2, flops=8)]
    graph = step(placeholder(mib=0.1), placeholder("w"), *chain, *last, returned=["z"])
    _, alone = make_plan(Settings(limit_bytes=1 << 30).request(graph, MACHINE))
    plan, held = make_plan(Settings(limit_bytes=30 * MIB).request(graph, MACHINE))
    assert alone.unedited_peak_bytes == alone.predicted_peak_bytes == 32 * MIB
    assert held.predicted_peak_bytes == 24 * MIB
    assert plan.control_edges
    assert not plan.swap_outs


GIB = 1 << 30


@pytest.mark.parametrize(
    ("pieces", "effort", "taken", "tried"),
    [
        (True, None, "fewer", [0.98]),
        (False, None, "dear", [0.98, 0.95, 0.93]),  # 0.93 is the floor
        (False, 5.0, "dear", [0.98, 0.95, 0.92, 0.89, 0.86]),  # too little effort to look for it
    ],
)
def test_a_dear_plan_in_a_pool_is_compared_with_plans_for_less(monkeypatch, pieces, effort, taken, tried):
    """Which pieces fit is chance: the plan for a smaller limit may be cheaper, and is taken if its pieces fit in this one, too."""
    settings = Settings(limit_bytes=GIB, pool=GPU_POOL)
    study = Study(settings.request(GRAPH, MACHINE, with_floor=False, effort_seconds=effort))
    problem = study.problem
    lowest = replace(floor.lowest(problem, MACHINE, pool=GPU_POOL), limit_bytes=int(GIB * 0.93))
    monkeypatch.setattr(strategy, "lowest", lambda study: lowest)
    everything = build(problem, next(search.Search(problem, MACHINE, 1.0).everything_moved()), MACHINE)
    plans = {"dear": everything, "fewer": build(problem, {}, MACHINE)}
    assert everything.cost_seconds > 1.5 * plans["fewer"].cost_seconds
    limits = []

    def solution(name, limit_bytes):
        limits.append(limit_bytes)
        return fit.Solution(problem, {}, plans[name], limit_bytes, plans[name].peak_bytes, True)

    check = fit.check
    monkeypatch.setattr(strategy, "_solve_limit", lambda study, limit_bytes, _: solution("dear", limit_bytes))
    monkeypatch.setattr(local_search, "solve", lambda problem, limit_bytes, *_, **__: solution("fewer", limit_bytes))
    monkeypatch.setattr(fit, "check", lambda *a: replace(check(*a), fits=pieces))
    assert strategy._solve(study).schedule is plans[taken]
    assert limits == [GIB, *(int(GIB * share) for share in tried)]


@pytest.mark.parametrize("granted", [None, 24.0])
def test_a_dear_plan_that_took_all_effort_stays(monkeypatch, granted):
    """Nor is the floor looked for: that takes seconds. More is granted than a search takes."""
    request = Settings(limit_bytes=GIB, pool=GPU_POOL).request(GRAPH, MACHINE, with_floor=False)
    study = Study(replace(request, effort_seconds=granted))
    everything = build(study.problem, next(search.Search(study.problem, MACHINE, 1.0).everything_moved()), MACHINE)
    dear = fit.Solution(study.problem, {}, everything, GIB, everything.peak_bytes, True)
    assert dear.lost_share > tuning.DEAR
    monkeypatch.setattr(strategy, "_solve_limit", lambda *_: dear)
    monkeypatch.setattr(strategy, "lowest", lambda study: pytest.fail("the floor is looked for"))
    study.account.seconds = tuning.HYBRID_SECONDS
    assert strategy._solve(study) is dear


@pytest.mark.parametrize("fitting", [1, None])
def test_where_a_limit_finds_nothing_the_plans_of_smaller_ones_are_tried(monkeypatch, fitting):
    """From the floor upwards; if the pieces of none fit in this one, the plan of the floor is taken all the same."""
    study = Study(Settings(limit_bytes=1 << 30, pool=GPU_POOL).request(GRAPH, MACHINE, with_floor=False))
    schedule, asked, looked_at = build(study.problem, {}, MACHINE), [], []

    def solved(study, limit_bytes, most_swapped_bytes):
        asked.append(limit_bytes)
        known = fit.Solution(study.problem, {}, schedule, limit_bytes, schedule.peak_bytes, True)
        return None if limit_bytes == 1 << 30 else known

    def check(problem, choices, schedule, limit_bytes, pool, account=None):
        looked_at.append(limit_bytes)
        fits = len(looked_at) - 1 == fitting
        return fit.Solution(problem, choices, schedule, limit_bytes, schedule.peak_bytes, fits)

    floor_bytes = strategy.lowest(study).limit_bytes
    monkeypatch.setattr(strategy, "_solve_limit", solved)
    monkeypatch.setattr(fit, "check", check)
    found = strategy._solve(study)
    assert asked[:2] == [1 << 30, floor_bytes]
    assert asked == [1 << 30, *sorted(asked[1:])]
    assert looked_at == [1 << 30] * (tuning.SMALLER_LIMITS if fitting is None else fitting + 1)
    assert found.limit_bytes == (floor_bytes if fitting is None else 1 << 30)


def test_comparing_takes_no_more_than_what_is_granted():
    """Near the floor: no plan fits in nine tenths of the limit."""
    request = Settings(limit_bytes=1, pool=CPU_POOL).request(
        training(20, mib=4, resident_mib=3), MACHINE, with_floor=False, effort_seconds=0.375
    )
    floor_bytes = strategy.lowest(Study(request)).limit_bytes
    for limit in range(floor_bytes + MIB, floor_bytes + 4 * MIB, MIB):
        study = Study(request.under(limit_bytes=limit))
        strategy._solve(study)
        assert study.account.seconds < 2 * 0.375
