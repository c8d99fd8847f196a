"""Planning is worth its time: its allowance depends on the run, and is counted in evaluations and not by the clock."""

from __future__ import annotations

import itertools
import time
from dataclasses import replace

import keras
import numpy as np
import pytest

from lms3d import LMS
from lms3d.engine import effort, plan_cache, planning, tuning
from lms3d.engine.cost import Machine
from lms3d.engine.effort import RunLength
from lms3d.engine.planners.hybrid import local_search, search, strategy
from lms3d.engine.planners.hybrid.tuning import CHEAP_SHARES
from lms3d.engine.planning import make_plan
from lms3d.engine.request import Settings
from lms3d.engine.step_model.pool import CPU_POOL, GPU_POOL, NO_POOL, POOLS, Pool
from lms3d.engine.step_model.problem import reduce
from lms3d.engine.step_model.study import Study
from tests.lms3d.engine.toy_graphs import training

MACHINE = Machine(flops_per_second=1e10)
DEEP = training(120, mib=4, resident_mib=3)  # 600 anchors, as a network of today


def half(graph, pool: Pool = NO_POOL) -> Settings:
    """Half of what a step needs."""
    _, known = make_plan(Settings(limit_bytes=1 << 40, pool=pool).request(graph, MACHINE, with_floor=False))
    return Settings(limit_bytes=known.unedited_limit_bytes // 2, pool=pool)


# -- what a run grants


@pytest.mark.parametrize(("steps", "step_seconds", "granted"), [
    (None, 1.0, None),  # nobody knows
    (4, 0.3, 3.0), (500, 0.3, 3.0),  # 3 s are the least
    (1000, 0.3, 6.0), (1190, 0.3, 6.0), (1200, 0.3, 6.0),  # nearly equal runs ask the same question
    (1000, 5.0, None),  # more than any step can use
])  # fmt: skip
def test_a_run_grants_the_larger_of_3_seconds_and_2_percent_in_classes(steps, step_seconds, granted):
    found = RunLength(steps).granted(step_seconds)
    assert found == granted
    assert found is None or found <= max(3.0, 0.02 * steps * step_seconds)


def test_what_was_spent_is_not_granted_again():
    assert RunLength(1000, 1.0).granted(0.3) == 3.0
    assert RunLength(1000, 4.0).granted(0.3) == 1.5
    assert RunLength(1000, 7.0).granted(0.3) == tuning.SMALLEST_SECONDS  # there has to be a plan


@pytest.mark.parametrize(("steps", "step_seconds", "seconds"), [
    (None, 1.0, 0.0), (29, 1.0, 0.0),  # 10 % of that are less than the least effort
    (40, 1.0, 24.0), (47, 1.0, 24.0), (48, 1.0, 48.0),
])  # fmt: skip
def test_runs_of_nearly_the_same_length_have_as_much_at_stake(steps, step_seconds, seconds):
    assert RunLength(steps).seconds(step_seconds) == seconds


def test_a_tenth_of_what_a_run_loses_is_at_stake():
    assert effort.at_stake(1000.0, 0.5) == 50.0
    assert effort.at_stake(1e6, 0.5) == tuning.MOST_SECONDS
    assert effort.at_stake(0.0, 0.5) == 0.0


# -- what planning costs


@pytest.mark.parametrize("pool", [NO_POOL, CPU_POOL])
@pytest.mark.parametrize("seconds", [0.375, 0.75])
def test_a_short_run_is_planned_within_what_it_grants(seconds, pool):
    settings = half(DEEP, pool)
    plan, report = make_plan(settings.request(DEEP, MACHINE, effort_seconds=seconds, with_floor=False))
    assert not plan.empty
    assert report.predicted_peak_bytes <= settings.limit_bytes
    assert report.effort_seconds <= 1.25 * seconds  # an evaluation is begun before its price is known
    assert 10 < report.evaluations < seconds / (600 * tuning.ANCHOR_SECONDS)


def test_a_rough_plan_moves_as_few_as_are_enough_and_takes_few_looks():
    """The buffer that waits the longest goes first: in a training step, the one made first."""
    problem = reduce(training(30, mib=4, resident_mib=3), MACHINE)
    searching = search.Search(problem, MACHINE, 10)
    budget = searching.build({})[1].peak_bytes // 2
    before = searching.evaluations
    choices, schedule = searching.fewest_moved(lambda found: found[1].peak_bytes <= budget)
    orders = 2 + len(CHEAP_SHARES)
    assert searching.evaluations - before <= orders * (1 + len(problem.buffers).bit_length())
    assert schedule.peak_bytes <= budget
    last = max(choices, key=lambda b: problem.buffers[b].defined)
    assert searching.build({b: c for b, c in choices.items() if b != last})[1].peak_bytes > budget
    assert searching.fewest_moved(lambda found: False) is None


def test_where_the_plan_found_stalls_the_search_goes_on():
    """Over a slow link; beside a fast one nothing is lost, and the same run grants no more."""
    short = half(DEEP).request(DEEP, MACHINE, effort_seconds=tuning.SMALLEST_SECONDS, with_floor=False)
    found = {}
    for bytes_per_second in (2e7, 1e13):
        machine = replace(
            MACHINE, swap_out_bytes_per_second=bytes_per_second, swap_in_bytes_per_second=bytes_per_second
        )
        asked = replace(short, machine=machine)
        found[bytes_per_second] = [make_plan(question)[1] for question in (asked, replace(asked, run_seconds=96.0))]
    (once, on), (settled, as_settled) = found.values()
    assert once.effort_seconds < 1.25 * tuning.SMALLEST_SECONDS
    assert 2 * tuning.SMALLEST_SECONDS < on.effort_seconds < tuning.MOST_SECONDS
    assert on.predicted_step_seconds < once.predicted_step_seconds
    assert as_settled.evaluations == settled.evaluations


def test_where_nothing_stalls_the_search_ends_early():
    """A plan within `SETTLED` of the unplanned step is taken, whatever else a run grants."""
    machine = replace(MACHINE, swap_out_bytes_per_second=1e13, swap_in_bytes_per_second=1e13)
    asked = half(DEEP).request(DEEP, machine, effort_seconds=tuning.LEAST_SECONDS, with_floor=False)
    _, report = make_plan(asked)
    assert report.predicted_step_seconds <= (1 + tuning.SETTLED) * report.unedited_step_seconds
    assert report.effort_seconds < 0.5


def test_the_clock_decides_nothing(monkeypatch):
    """As on a machine so busy that each look at the clock costs an hour."""
    graph = training(5, mib=4, resident_mib=3)
    asked = half(graph).request(graph, MACHINE, with_floor=False)
    questions = [replace(asked, effort_seconds=seconds) for seconds in (0.375, None)]
    answers = [make_plan(question)[0] for question in questions]
    for clock in ("thread_time", "process_time", "perf_counter"):
        monkeypatch.setattr(time, clock, itertools.count(0, 3600).__next__)
    assert [make_plan(question)[0] for question in questions] == answers


@pytest.mark.parametrize("pool", POOLS.values(), ids=POOLS)
def test_the_least_effort_finds_a_plan_wherever_there_is_one(pool):
    graph = training(5, mib=4, resident_mib=3)
    _, known = make_plan(Settings(limit_bytes=1 << 40, pool=pool).request(graph, MACHINE))
    for part in (0.0, 0.1, 0.5):
        limit = int(known.floor_bytes + part * (known.unedited_limit_bytes - known.floor_bytes))
        settings = Settings(limit_bytes=limit, pool=pool)
        asked = settings.request(graph, MACHINE, effort_seconds=tuning.SMALLEST_SECONDS, with_floor=False)
        assert make_plan(asked)[1].predicted_peak_bytes <= limit


def test_what_little_effort_does_not_find_all_does(monkeypatch):
    graph, solve, asked = training(5, mib=4, resident_mib=3), local_search.solve, []

    def unlucky(*given, seconds, **options):
        asked.append(seconds)
        return replace(solve(*given, seconds=seconds, **options), fits=seconds is None)

    monkeypatch.setattr(local_search, "solve", unlucky)
    assert not make_plan(half(graph).request(graph, MACHINE, effort_seconds=0.375, with_floor=False))[0].empty
    assert asked[-1] is None
    assert asked[0] < 0.375


@pytest.mark.parametrize(("whole_is", "taken"), [(9.0, "shortest"), (1.0, "whole")])
def test_a_dear_plan_of_the_whole_search_is_compared_with_that_of_the_shortest(monkeypatch, whole_is, taken):
    real, found = strategy._search, {}

    def search(study, limit_bytes, seconds, most_swapped_bytes):
        name = "whole" if seconds is None else "shortest"
        solution = real(study, limit_bytes, None, most_swapped_bytes)
        seconds = solution.schedule.seconds * (whole_is if seconds is None else 2.0)
        found[name] = replace(solution, schedule=replace(solution.schedule, seconds=seconds))
        return found[name]

    monkeypatch.setattr(strategy, "_search", search)
    monkeypatch.setattr(strategy, "_advanced", lambda study, solution: solution)
    monkeypatch.setattr(strategy, "LEAST_SECONDS", 0.0)
    monkeypatch.setattr(strategy.tuning, "LOST", -1.0)
    study = Study(half(DEEP).request(DEEP, MACHINE, with_floor=False))
    assert strategy._solve(study).schedule is found[taken].schedule
    assert {*found} == {"whole", "shortest"}


def test_where_effort_is_limited_nothing_is_compared(monkeypatch):
    monkeypatch.setattr(strategy, "LEAST_SECONDS", 0.0)
    monkeypatch.setattr(strategy.tuning, "LOST", -1.0)
    request = half(DEEP).request(DEEP, MACHINE, with_floor=False)
    solution = strategy._solve(Study(replace(request, effort_seconds=100.0)))
    monkeypatch.setattr(strategy, "_search", None)
    assert strategy._search_again(Study(replace(request, effort_seconds=100.0)), solution, None) is solution


@pytest.mark.parametrize(("pool", "lost", "seconds", "asked"), [
    (GPU_POOL, -1.0, None, 1),
    (NO_POOL, -1.0, None, 0),  # every free byte is as good as another
    (GPU_POOL, 9.0, None, 0),  # the plan is cheap
    (GPU_POOL, -1.0, 100.0, 0),  # effort is limited
])  # fmt: skip
def test_room_for_cheaper_plans_is_looked_for_if_a_plan_in_a_pool_is_dear(monkeypatch, pool, lost, seconds, asked):
    request = replace(half(DEEP, pool).request(DEEP, MACHINE, with_floor=False), effort_seconds=seconds)
    study, paid = Study(request), []
    solution = strategy._search(study, request.limit_bytes, 1.0, None)
    monkeypatch.setattr(strategy.tuning, "LOST", lost)
    monkeypatch.setattr(strategy, "LEAST_SECONDS", 9.0)
    monkeypatch.setattr(local_search, "place", lambda *_, **options: paid.append(options["pool"]) or [])
    assert strategy._search_again(study, solution, None).choices == solution.choices
    assert paid == [pool] * asked


def test_plans_of_other_classes_are_other_plans(monkeypatch):
    graph, made, whole = training(5, mib=4, resident_mib=3), [], planning.make_plan
    asked = half(graph).request(graph, MACHINE, with_floor=False)
    monkeypatch.setattr(planning, "make_plan", lambda request: made.append(request) or whole(request))
    for steps in (1000, 1100, 5):
        found = plan_cache.cached_plan(replace(asked, effort_seconds=RunLength(steps).granted(0.3)))[1]
    assert len(made) == 2
    assert not found.from_cache


# -- who asks


def test_each_kind_of_run_tells_its_length(monkeypatch, tmp_path):
    asked, granted = [], RunLength.granted
    monkeypatch.setattr(RunLength, "granted", lambda run, seconds: asked.append(run.steps) or granted(run, seconds))
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(4)])
    model.compile("sgd", "mse", jit_compile=False)
    x = np.ones((12, 4), np.float32)
    lms = LMS(swap_dir=tmp_path, memory_limit="1GiB")
    model.fit(x, x, batch_size=4, epochs=5, validation_data=(x, x), verbose=0, callbacks=[lms])
    assert asked == [15, 12]  # training, and validation after the first epoch: the same run
    model.evaluate(x, x, batch_size=2, verbose=0, callbacks=[lms])
    model.predict(x, batch_size=3, verbose=0, callbacks=[lms])
    assert asked[2:] == [6, 4]
    lms.close()


def test_what_a_run_grants_is_for_all_batch_shapes_together(monkeypatch):
    """Each fit grants it anew."""
    asked, granted = [], RunLength.granted
    monkeypatch.setattr(
        RunLength, "granted", lambda run, seconds: asked.append(run.spent_seconds) or granted(run, seconds)
    )
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(4)])
    model.compile("sgd", "mse", jit_compile=False)
    lms = LMS(memory_limit="1GiB")
    for shapes in ((3, 2), (4,)):
        x = np.ones((sum(shapes), 4), np.float32)
        model.fit(x, x, batch_size=shapes[0], verbose=0, shuffle=False, callbacks=[lms])
    first, second, other_run = asked
    assert first == other_run == 0.0
    assert second == next(iter(lms._runner.steps.values())).prepared.prediction.effort_seconds > 0.0
    lms.close()
