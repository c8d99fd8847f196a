"""The default planner: keep, swap or recompute each tensor, and never do worse than TFLMS. No TensorFlow here."""

from __future__ import annotations

from dataclasses import replace

from lms3d.engine import edit, effort, tuning
from lms3d.engine.plan import Plan
from lms3d.engine.planners import PLANNERS, Outcome, Planner
from lms3d.engine.planners.hybrid import ladder, local_search, prefetch
from lms3d.engine.prediction import does_not_fit
from lms3d.engine.step_model import emit, figures, fit
from lms3d.engine.step_model.simulate import simulate
from lms3d.engine.step_model.study import Study
from lms3d.errors import DoesNotFit

RIVAL = "tflms"


class Hybrid(Planner):
    """The cheapest plan found, or the rival's where that moves fewer bytes or ours does not fit."""

    slices = True

    def is_noop(self, study: Study) -> bool:
        return study.unedited_limit_bytes <= study.request.limit_bytes

    def plan(self, study: Study) -> Outcome:
        if self.is_noop(study) or not study.problem.anchors:
            return Outcome(plan=Plan())
        rival, solution = _rival(study), _solve(study)
        if rival is not None:
            if solution is not None and emit.emit(solution).swapped_out_bytes > rival.swapped_out_bytes:
                solution = _solve(study, most_swapped_bytes=rival.swapped_out_bytes)
            if solution is None or _simulated_peak(study, emit.emit(solution)) > study.request.limit_bytes:
                return Outcome(plan=rival, within_limit=True)
        if solution is None:
            raise _does_not_fit(study)
        solution = prefetch.advance(solution, study.request.machine, study.request.settings.pool, study.account)
        plan = emit.emit(solution)
        return Outcome(
            plan=plan, figures=figures.planned(solution, plan, study.request.machine), within_limit=not plan.empty
        )


def _rival(study: Study) -> Plan | None:
    """The auto-tuned plan to beat, for a small step; None where there is none.

    Only without a pool: TFLMS knows nothing of its pieces. That nothing need be done is not taken on its word.
    """
    request = study.request
    if request.settings.pool != "none" or len(request.graph.ops) > tuning.COMPARED_OPS:
        return None
    try:
        plan = PLANNERS[RIVAL]().plan(Study(request.under(planner=RIVAL, parameters=None))).plan
    except DoesNotFit:
        return None
    return None if plan.empty else plan


def _solve(study: Study, *, most_swapped_bytes: int | None = None) -> fit.Solution | None:
    """What fits in the limit; None at once where the largest op alone does not.

    In a pool it is chance which pieces fit. Where a limit above the floor finds nothing, the plans of smaller ones are tried; where
    the pieces of none of them are sure to fit in this one, that of the floor is taken all the same. A step that runs out of memory
    is planned again, and to be told of a smaller limit that would do helps nobody.
    """
    limit, pool = study.request.limit_bytes, study.request.settings.pool
    least = 0 if ladder.applies(study.problem) else fit.working_set_bytes(study.problem)
    if fit.usable_bytes(limit, pool) < least:
        return None
    found = _solved(study, limit, most_swapped_bytes)
    if found is None and pool != "none" and study.lowest.limit_bytes < limit:
        return _of_a_smaller_limit(study, most_swapped_bytes)
    if found is not None and pool != "none" and found.lost_share > tuning.DEAR:
        return _with_fewer_bytes(study, found, most_swapped_bytes)
    return found


def _of_a_smaller_limit(study: Study, most_swapped_bytes: int | None) -> fit.Solution | None:
    """From the floor upwards, the first plan whose pieces fit in the limit, too; else that of the floor."""
    floor_bytes, limit = study.lowest.limit_bytes, study.request.limit_bytes
    tried = [floor_bytes + (limit - floor_bytes) * i // tuning.SMALLER_LIMITS for i in range(tuning.SMALLER_LIMITS)]
    lowest = None
    for smaller in dict.fromkeys(tried):
        plan = _solved(study, smaller, most_swapped_bytes)
        if plan is not None:
            lowest = lowest or plan
            again = _in_the_limit(study, plan)
            if again.fits:
                return again
    return lowest


def _with_fewer_bytes(study: Study, found: fit.Solution, most_swapped_bytes: int | None) -> fit.Solution:
    """A dear plan, or a cheaper one for a smaller limit whose pieces fit in this one, too, in what is left of the effort.

    All together costs as much as one search at most: that for a small step leaves some of it, that for a real network nothing. With
    little effort granted the floor is not looked for; else it is the smallest of these limits.
    """
    request, problem = study.request, study.problem
    limit, pool, best = request.limit_bytes, request.settings.pool, found
    enough = local_search.most_seconds(problem)
    granted = enough if request.effort_seconds is None else min(request.effort_seconds, enough)
    if ladder.applies(problem) or study.account.seconds >= granted:
        return found
    floor_bytes = study.lowest.limit_bytes if granted >= enough else 0
    for smaller in dict.fromkeys(max(floor_bytes, int(limit * share)) for share in tuning.DEAR_SHARES):
        seconds = granted - study.account.seconds
        possible = fit.usable_bytes(smaller, pool) >= fit.working_set_bytes(problem)
        if best.lost_share <= tuning.DEAR or seconds <= 0 or smaller >= limit or not possible:
            break
        fewer = local_search.solve(
            problem, smaller, request.machine, pool=pool, seconds=seconds, most_swapped_bytes=most_swapped_bytes,
            lowest=lambda: study.lowest if floor_bytes else found, account=study.account,
        )  # fmt: skip
        if fewer.fits and fewer.schedule.cost_seconds < best.schedule.cost_seconds:
            again = _in_the_limit(study, fewer)
            best = replace(again, bound_seconds=found.bound_seconds) if again.fits else best
    return best


def _in_the_limit(study: Study, plan: fit.Solution) -> fit.Solution:
    """A plan of another limit, looked at in that of the request."""
    limit, pool = study.request.limit_bytes, study.request.settings.pool
    again = fit.check(plan.problem, plan.choices, plan.schedule, limit, pool, study.account)
    return replace(again, bound_seconds=plan.bound_seconds)


def _solved(study: Study, limit_bytes: int, most_swapped_bytes: int | None) -> fit.Solution | None:
    """What the search finds in a limit. Where little effort fails, all is spent."""
    request, problem, granted = study.request, study.problem, study.request.effort_seconds
    if ladder.applies(problem):
        pool = request.settings.pool
        found = ladder.solve(study.ladder, limit_bytes, pool=pool, seconds=granted, lowest=lambda: study.lowest)
        return found if found.fits else None
    for seconds in (None,) if granted is None else (granted - study.account.seconds, None):
        found = _searched(study, limit_bytes, seconds, most_swapped_bytes)
        if found.fits:
            whole = seconds is None or seconds >= local_search.most_seconds(problem)
            return found if whole else _searched_on(study, found, most_swapped_bytes)
    return None


def _searched(study: Study, limit_bytes: int, seconds: float | None, most_swapped_bytes: int | None) -> fit.Solution:
    return local_search.solve(
        study.problem,
        limit_bytes,
        study.request.machine,
        pool=study.request.settings.pool,
        seconds=seconds,
        most_swapped_bytes=most_swapped_bytes,
        lowest=lambda: study.lowest,
        account=study.account,
    )


def _searched_on(study: Study, found: fit.Solution, most_swapped_bytes: int | None) -> fit.Solution:
    """A solution, or a cheaper one where so much is at stake that a further search is worth more than all before (EFFORT-4)."""
    seconds = effort.at_stake(study.request.run_seconds, found.lost_share)
    if seconds <= study.account.seconds:
        return found
    further = _searched(study, found.limit_bytes, seconds, most_swapped_bytes)
    return min((one for one in (found, further) if one.fits), key=lambda one: one.schedule.cost_seconds)


def _simulated_peak(study: Study, plan: Plan) -> int:
    """By the simulator that judged the rival, which also knows what the planned order does not hold."""
    return simulate(edit.apply(study.request.graph, plan), study.request.machine).peak_bytes


def _does_not_fit(study: Study) -> DoesNotFit:
    lowest, unedited = study.lowest, study.unedited_limit_bytes
    largest = figures.peak_tensors(lowest.problem, lowest.schedule)
    return does_not_fit(study.request.limit_bytes, min(lowest.limit_bytes, unedited), unedited, largest)
