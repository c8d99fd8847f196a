"""The default planner: keeps, swaps or recomputes each tensor, and never does worse than TFLMS. No TensorFlow here."""

from __future__ import annotations

from dataclasses import replace

from lms3d.engine import edit, effort
from lms3d.engine.plan import Plan
from lms3d.engine.planners import PLANNERS, Outcome, Planner
from lms3d.engine.planners.hybrid import floor, ladder, local_search, prefetch, tuning
from lms3d.engine.prediction import does_not_fit
from lms3d.engine.step_model import emit, figures, fit
from lms3d.engine.step_model.fit import Solution
from lms3d.engine.step_model.problem import Problem
from lms3d.engine.step_model.simulate import simulate
from lms3d.engine.step_model.study import Study
from lms3d.engine.tuning import LEAST_SECONDS
from lms3d.errors import DoesNotFit

RIVAL = "tflms"


class Hybrid(Planner):
    """Takes the cheapest plan found; the rival's plan if that moves fewer bytes, or if ours does not fit."""

    slices = True

    def is_noop(self, study: Study) -> bool:
        return study.unedited_limit_bytes <= study.request.limit_bytes

    def floor(self, study: Study) -> int:
        return lowest(study).limit_bytes

    def plan(self, study: Study) -> Outcome:
        if self.is_noop(study) or not study.problem.anchors:
            return Outcome(plan=Plan())
        rival, solution = _rival_plan(study), _solve(study)
        if rival is not None:
            if solution is not None and emit.emit(solution).swapped_out_bytes > rival.swapped_out_bytes:
                solution = _solve(study, most_swapped_bytes=rival.swapped_out_bytes)
            if solution is None or _simulated_peak(study, emit.emit(solution)) > study.request.limit_bytes:
                return Outcome(plan=rival, within_limit=True)
        if solution is None:
            raise _refusal(study)
        solution = _advanced(study, solution)
        plan = emit.emit(solution)
        return Outcome(
            plan=plan, figures=figures.planned(solution, plan, study.request.machine), within_limit=not plan.empty
        )


def _advanced(study: Study, solution: Solution) -> Solution:
    return prefetch.advance(solution, study.request.machine, study.request.settings.pool, study.account)


def lowest(study: Study) -> Solution:
    """The plan that needs the smallest limit found. Takes seconds, once per study."""
    return study.once(_lowest)


def _lowest(study: Study) -> Solution:
    """The plan of the floor. It has the order of `study.ordered`: if the traced order is enough, the step needs no such plan."""
    problem, pool = study.ordered, study.request.settings.pool
    if not ladder.applies(problem):
        return floor.lowest(problem, study.request.machine, pool=pool, account=study.account)
    rungs = study.once(_ladder) if study.problem is problem else _new_ladder(study, problem)
    return ladder.lowest(rungs, pool=pool)


def _ladder(study: Study) -> ladder.Ladder:
    """The plans of `study.problem` by budget, for a step of many pieces."""
    return _new_ladder(study, study.problem)


def _new_ladder(study: Study, problem: Problem) -> ladder.Ladder:
    return ladder.Ladder(problem, study.request.machine, study.account)


def _rival_plan(study: Study) -> Plan | None:
    """The auto-tuned plan of the rival, to be compared with; None for a large step, in a pool, and if there is no such plan.

    In a pool its search takes too long, and its plans are less sure to fit. An empty plan is no rival: that the step fits as it is
    needs more than its word.
    """
    request = study.request
    if request.settings.pool.in_pieces or len(request.graph.ops) > tuning.COMPARED_OPS:
        return None
    try:
        plan = PLANNERS[RIVAL]().plan(Study(request.under(planner=RIVAL, parameters=None))).plan
    except DoesNotFit:
        return None
    return None if plan.empty else plan


def _solve(study: Study, *, most_swapped_bytes: int | None = None) -> Solution | None:
    """A plan that fits in the limit of the request; None at once if the largest op alone does not.

    In a pool it is chance which pieces fit. If the search finds nothing for a limit above the floor, the plans of smaller limits
    are tried. If the pieces of none of them are sure to fit, the plan of the floor is taken all the same: a step that runs out of
    memory is planned again, and an error that names a smaller limit than the user's would help nobody.
    """
    limit_bytes, pool = study.request.limit_bytes, study.request.settings.pool
    least = 0 if ladder.applies(study.problem) else fit.working_set_bytes(study.problem)
    if pool.usable_bytes(limit_bytes) < least:
        return None
    solution = _solve_limit(study, limit_bytes, most_swapped_bytes)
    if solution is None and pool.in_pieces and lowest(study).limit_bytes < limit_bytes:
        return _solve_smaller_limits(study, most_swapped_bytes)
    if solution is not None and pool.in_pieces and solution.lost_share > tuning.DEAR:
        return _compare_smaller_limits(study, solution, most_swapped_bytes)
    return solution


def _solve_smaller_limits(study: Study, most_swapped_bytes: int | None) -> Solution | None:
    """From the floor upwards, the first plan whose pieces fit in the limit of the request, too; else the plan of the floor."""
    floor_bytes, limit_bytes = lowest(study).limit_bytes, study.request.limit_bytes
    tried = [
        floor_bytes + (limit_bytes - floor_bytes) * i // tuning.SMALLER_LIMITS for i in range(tuning.SMALLER_LIMITS)
    ]
    first = None
    for smaller in dict.fromkeys(tried):
        solution = _solve_limit(study, smaller, most_swapped_bytes)
        if solution is not None:
            first = first or solution
            checked = _in_the_limit(study, solution)
            if checked.fits:
                return checked
    return first


def _compare_smaller_limits(study: Study, dear: Solution, most_swapped_bytes: int | None) -> Solution:
    """A dear plan, or a cheaper one for a smaller limit whose pieces fit in this one, too, within what is left of the effort.

    All together costs as much as one search at most. The search for a small step leaves some of it, that for a real network
    nothing. With little effort granted the floor is not looked for; else it is the smallest of these limits.
    """
    request, problem = study.request, study.problem
    limit_bytes, pool, best = request.limit_bytes, request.settings.pool, dear
    enough = local_search.most_seconds(problem)
    granted = enough if request.effort_seconds is None else min(request.effort_seconds, enough)
    if ladder.applies(problem) or study.account.seconds >= granted:
        return dear
    floor_bytes = lowest(study).limit_bytes if granted >= enough else 0
    for smaller in dict.fromkeys(max(floor_bytes, int(limit_bytes * share)) for share in tuning.DEAR_SHARES):
        seconds = granted - study.account.seconds
        possible = pool.usable_bytes(smaller) >= fit.working_set_bytes(problem)
        if best.lost_share <= tuning.DEAR or seconds <= 0 or smaller >= limit_bytes or not possible:
            break
        cheaper = local_search.solve(
            problem, smaller, request.machine, pool=pool, most_swapped_bytes=most_swapped_bytes,
            seconds=None if seconds > tuning.NEARLY_ALL * enough else seconds,
            lowest=lambda: lowest(study) if floor_bytes else dear, account=study.account,
        )  # fmt: skip
        if cheaper.fits and cheaper.schedule.cost_seconds < best.schedule.cost_seconds:
            checked = _in_the_limit(study, cheaper)
            best = replace(checked, bound_seconds=dear.bound_seconds) if checked.fits else best
    return best


def _in_the_limit(study: Study, solution: Solution) -> Solution:
    """The solution for another limit, checked against the limit of the request."""
    limit_bytes, pool = study.request.limit_bytes, study.request.settings.pool
    checked = fit.check(solution.problem, solution.choices, solution.schedule, limit_bytes, pool, study.account)
    return replace(checked, bound_seconds=solution.bound_seconds)


def _solve_limit(study: Study, limit_bytes: int, most_swapped_bytes: int | None) -> Solution | None:
    """A plan that fits in a limit, or None. If the effort that was granted finds none, the search begins anew without a grant."""
    request, problem, granted = study.request, study.problem, study.request.effort_seconds
    if ladder.applies(problem):
        pool = request.settings.pool
        solution = ladder.solve(
            study.once(_ladder), limit_bytes, pool=pool, seconds=granted, lowest=lambda: lowest(study)
        )
        return solution if solution.fits else None
    for seconds in (None,) if granted is None else (granted - study.account.seconds, None):
        solution = _search(study, limit_bytes, seconds, most_swapped_bytes)
        if solution.fits:
            whole = seconds is None or seconds >= local_search.most_seconds(problem)
            other = _search_again if whole else _search_further
            return other(study, solution, most_swapped_bytes)
    return None


def _search(study: Study, limit_bytes: int, seconds: float | None, most_swapped_bytes: int | None) -> Solution:
    return local_search.solve(
        study.problem,
        limit_bytes,
        study.request.machine,
        pool=study.request.settings.pool,
        seconds=seconds,
        most_swapped_bytes=most_swapped_bytes,
        lowest=lambda: lowest(study),
        account=study.account,
    )


def _search_again(study: Study, solution: Solution, most_swapped_bytes: int | None) -> Solution:
    """The solution, or the cheapest of what other searches find, which end in other minima (EFFORT-7)."""
    request, pool = study.request, study.request.settings.pool
    if request.effort_seconds is not None or solution.lost_share <= tuning.LOST:
        return solution
    found = [solution]
    if study.account.seconds > LEAST_SECONDS:
        found.append(_search(study, solution.limit_bytes, LEAST_SECONDS, most_swapped_bytes))
    fitting = [other for other in found if other.fits]
    if pool.in_pieces:
        fitting += local_search.place(
            min(fitting, key=lambda s: s.schedule.cost_seconds),
            request.machine,
            pool=pool,
            most_swapped_bytes=most_swapped_bytes,
            account=study.account,
        )
    cheapest = sorted(fitting, key=lambda s: s.schedule.cost_seconds)[: tuning.ADVANCED]
    best = min(cheapest, key=lambda s: _advanced(study, s).schedule.cost_seconds)
    return replace(best, bound_seconds=max(other.bound_seconds for other in found))


def _search_further(study: Study, solution: Solution, most_swapped_bytes: int | None) -> Solution:
    """The solution, or a cheaper one if so much is at stake that a further search is worth more than all before (EFFORT-4)."""
    seconds = effort.at_stake(study.request.run_seconds, solution.lost_share)
    if seconds <= study.account.seconds:
        return solution
    further = _search(study, solution.limit_bytes, seconds, most_swapped_bytes)
    return min((s for s in (solution, further) if s.fits), key=lambda s: s.schedule.cost_seconds)


def _simulated_peak(study: Study, plan: Plan) -> int:
    """The peak in bytes by the simulator that judged the rival, which also knows what the planned order does not hold."""
    return simulate(edit.apply(study.request.graph, plan), study.request.machine).peak_bytes


def _refusal(study: Study) -> DoesNotFit:
    plan, unedited = lowest(study), study.unedited_limit_bytes
    largest = figures.peak_tensors(plan.problem, plan.schedule)
    return does_not_fit(study.request.limit_bytes, min(plan.limit_bytes, unedited), unedited, largest)
