"""Swap-ins begin earlier if memory allows: the step waits less, also over a link that is slower than stated."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lms3d.engine import edit
from lms3d.engine.cost import Machine
from lms3d.engine.effort import Account
from lms3d.engine.planners.hybrid import prefetch, tuning
from lms3d.engine.planning import make_plan
from lms3d.engine.request import Settings
from lms3d.engine.step_model import emit, fit
from lms3d.engine.step_model.decisions import Choice, Mode
from lms3d.engine.step_model.pool import GPU_POOL, NO_POOL, Pool
from lms3d.engine.step_model.problem import reduce
from lms3d.engine.step_model.schedule import build
from lms3d.engine.step_model.simulate import simulate
from tests.lms3d.engine.toy_graphs import MIB, training

GRAPH = training(10, mib=8, resident_mib=3)
MACHINE = Machine(flops_per_second=1e10, swap_out_bytes_per_second=1e10, swap_in_bytes_per_second=4e9, node_seconds=0)


def solution(limit_mib: int, *, tight: bool = False, machine: Machine = MACHINE, pool: Pool = GPU_POOL) -> fit.Solution:
    """Everything that can be is swapped."""
    problem = reduce(GRAPH, machine)
    choice = Choice(Mode.SWAP, tight_out=tight, tight_in=tight)
    choices = {b: choice for b, buffer in enumerate(problem.buffers) if buffer.swappable}
    found = fit.check(problem, choices, build(problem, choices, machine), limit_mib * MIB, pool)
    assert found.fits
    return found


def advance(before: fit.Solution, pool: Pool = GPU_POOL, machine: Machine = MACHINE) -> fit.Solution:
    return prefetch.advance(before, machine, pool, Account())


def transfers(found: fit.Solution) -> dict[tuple[int, int], int]:
    """When the swap-ins begin, in the order in which they are read."""
    copies = sorted((c for c in found.schedule.copies if c.mode is Mode.SWAP), key=lambda c: c.first_read)
    return {(c.buffer, c.number): c.start for c in copies}


@pytest.mark.parametrize("tight", [True, False])
@pytest.mark.parametrize("limit_mib", [90, 200])
def test_swap_ins_begin_earlier_and_the_step_is_no_longer(limit_mib, tight):
    before = solution(limit_mib, tight=tight)
    after = advance(before)
    then, now = transfers(before), transfers(after)
    assert all(now[key] <= then[key] for key in then)
    assert now != then
    assert list(now.values()) == sorted(now.values())
    assert after.fits
    assert after.schedule.seconds <= before.schedule.seconds
    assert after.schedule.release == before.schedule.release
    assert all(c.start >= after.schedule.release[c.buffer] for c in after.schedule.copies if c.mode is Mode.SWAP)
    assert fit.check(after.problem, after.choices, after.schedule, limit_mib * MIB, GPU_POOL).fits


def test_a_step_with_room_waits_for_nothing():
    """Each swap-in began when its reader was due: with free memory none is waited for."""
    before = solution(200, tight=True)
    after = advance(before)
    assert before.schedule.stall_seconds > 0.01
    assert after.schedule.stall_seconds < 0.3 * before.schedule.stall_seconds


def test_over_a_link_that_is_slower_than_stated_the_step_waits_less():
    before = solution(200)
    after = advance(before)
    slower = replace(MACHINE, swap_in_bytes_per_second=MACHINE.swap_in_bytes_per_second / 1.3)
    seconds = [simulate(edit.apply(GRAPH, emit.emit(one)), slower).seconds for one in (before, after)]
    unplanned = simulate(GRAPH, slower).seconds
    assert seconds[1] - unplanned < 0.7 * (seconds[0] - unplanned)


def test_what_does_not_fit_together_is_moved_in_parts(monkeypatch):
    before, fits, tried = solution(200), fit.check, []

    def few(problem, choices, schedule, *rest):
        moved = sum(c.start != transfers(before).get((c.buffer, c.number), c.start) for c in schedule.copies)
        tried.append(moved)
        return replace(fits(problem, choices, schedule, *rest), fits=moved <= 3)

    monkeypatch.setattr(fit, "check", few)
    after = advance(before)
    assert (
        sum(now != then for now, then in zip(transfers(after).values(), transfers(before).values(), strict=True)) == 3
    )
    assert 5 < len(tried) <= tuning.PREFETCH_TRIES


def test_what_is_read_in_place_and_what_has_no_pool_stays(monkeypatch):
    mapped = replace(MACHINE, mapped=True)
    before = solution(200, machine=mapped)
    assert advance(before, machine=mapped) is before
    loose = solution(200, pool=NO_POOL)
    assert advance(loose, pool=NO_POOL) is loose


def test_the_default_planner_does_so(monkeypatch):
    request = replace(Settings(limit_bytes=90 * MIB, pool=GPU_POOL).request(GRAPH, MACHINE), with_floor=False)
    plan, figures = make_plan(request)
    assert make_plan(request)[0] == plan
    monkeypatch.setattr(prefetch, "advance", lambda found, *_: found)
    late, late_figures = make_plan(request)
    assert [back.name for back in plan.swap_ins] == [back.name for back in late.swap_ins]
    assert [back.triggers for back in plan.swap_ins] != [back.triggers for back in late.swap_ins]
    assert figures.predicted_step_seconds <= late_figures.predicted_step_seconds
    assert figures.predicted_peak_bytes <= 90 * MIB
