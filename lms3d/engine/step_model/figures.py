"""A schedule in figures: its peak, its seconds, and what is live when. No TensorFlow here."""

from __future__ import annotations

import numpy as np

from lms3d.engine.cost import Machine, copying_seconds, step_seconds
from lms3d.engine.ir import producer_name
from lms3d.engine.plan import Plan
from lms3d.engine.prediction import Figures
from lms3d.engine.step_model.decisions import Mode
from lms3d.engine.step_model.fit import Solution
from lms3d.engine.step_model.problem import Problem
from lms3d.engine.step_model.schedule import Schedule, nodes


def unedited(problem: Problem, schedule: Schedule, seconds: float) -> Figures:
    """The figures of a step without LMS. seconds: of all its ops."""
    return Figures(
        peak_bytes=schedule.peak_bytes,
        step_seconds=seconds,
        timeline_bytes=_timeline_bytes(schedule),
        timeline_seconds=_timeline_seconds(problem, schedule),
        peak_at=_peak_at(problem, schedule),
        peak_tensors=_peak_rows(problem, schedule),
    )


def planned(solution: Solution, plan: Plan, machine: Machine) -> Figures:
    """The figures of a solution and of the plan that was made of it."""
    problem, schedule = solution.problem, solution.schedule
    in_order = step_seconds(problem.graph, machine, ordered=frozenset(problem.anchors))
    copying = copying_seconds(machine, plan.swapped_out_bytes, plan.swapped_in_bytes, nodes(schedule.copies))
    return Figures(
        peak_bytes=solution.peak_bytes,
        step_seconds=in_order + schedule.seconds - float(problem.seconds.sum()) + copying,
        stall_seconds=max(0.0, schedule.stall_seconds),
        timeline_bytes=_timeline_bytes(schedule),
        timeline_seconds=_timeline_seconds(problem, schedule),
        peak_at=_peak_at(problem, schedule),
        peak_tensors=_peak_rows(problem, schedule),
        parameters=_parameters(solution),
    )


def peak_tensors(problem: Problem, schedule: Schedule) -> tuple[tuple[str, int], ...]:
    """(tensor, bytes) of the large buffers that are live at the peak, the largest first."""
    event = int(schedule.live_bytes.argmax())
    live = [c for c in schedule.copies if c.start <= event <= c.end and c.bytes]
    sizes = {problem.buffers[c.buffer].root: c.bytes for c in live}
    return tuple(sorted(sizes.items(), key=lambda item: -item[1]))


def _timeline_bytes(schedule: Schedule) -> tuple[int, ...]:
    return tuple(int(b) for b in schedule.live_bytes)


def _timeline_seconds(problem: Problem, schedule: Schedule) -> tuple[float, ...]:
    seconds = [problem.seconds_of(event) for event in schedule.events]
    return tuple(float(s) for s in np.concatenate([[0.0], np.cumsum(seconds)[:-1]])) if seconds else ()


def _peak_at(problem: Problem, schedule: Schedule) -> str:
    if not problem.anchors:
        return ""
    at = schedule.events[int(schedule.live_bytes.argmax())]
    if at.is_anchor:
        return problem.anchors[at.anchor]
    return f"recompute {producer_name(problem.buffers[at.buffer].root)}"


def _peak_rows(problem: Problem, schedule: Schedule) -> tuple[tuple[str, int], ...]:
    if not problem.anchors:
        return ()
    at = schedule.events[int(schedule.live_bytes.argmax())]
    small = problem.base_bytes + int(problem.small_bytes[at.anchor])
    return *peak_tensors(problem, schedule), ("(weights, slots, batches and small tensors)", small)


def _parameters(solution: Solution) -> dict[str, str]:
    parameters = {"tensors kept, swapped, recomputed, both": _counts(solution)}
    if solution.bound_seconds:
        above = solution.schedule.cost_seconds / solution.bound_seconds - 1
        parameters["at most above the best plan"] = f"{max(above, 0.0):.1%}"
    return parameters


def _counts(solution: Solution) -> str:
    modes: dict[int, set[Mode]] = {}
    for copy in solution.schedule.copies:
        if copy.number:
            modes.setdefault(copy.buffer, set()).add(copy.mode)
    moved = list(modes.values())
    swapped, recomputed = moved.count({Mode.SWAP}), moved.count({Mode.RECOMPUTE})
    both = len(moved) - swapped - recomputed
    return f"{len(solution.problem.buffers) - len(moved)}, {swapped}, {recomputed}, {both}"
