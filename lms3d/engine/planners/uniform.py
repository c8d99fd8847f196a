"""The planners with one decision for every tensor that allows it, whatever the limit: others must beat them. No TensorFlow here."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from lms3d.engine.ir import producer_name
from lms3d.engine.planners import Outcome, Planner
from lms3d.engine.step_model import emit, figures, fit
from lms3d.engine.step_model.decisions import Choice, Mode
from lms3d.engine.step_model.problem import Buffer, Problem
from lms3d.engine.step_model.schedule import build
from lms3d.engine.step_model.study import Study
from lms3d.errors import DoesNotFit
from lms3d.units import format_size


class _Uniform(Planner):
    name: str
    mode: Mode

    def moves(self, problem: Problem, buffer: Buffer) -> bool:
        raise NotImplementedError

    def plan(self, study: Study) -> Outcome:
        """The only plan. DoesNotFit, with the limit that it needs, if that is above the limit of the request."""
        request, problem = study.request, study.traced
        choices = {i: Choice(self.mode) for i, buffer in enumerate(problem.buffers) if self.moves(problem, buffer)}
        schedule = build(problem, choices, request.machine)
        needed = request.settings.pool.needed_bytes(problem, schedule)
        if needed > request.limit_bytes:
            raise DoesNotFit(
                f"the step does not fit in {format_size(request.limit_bytes)} with the planner {self.name}, which needs "
                f"{format_size(needed)}; raise the memory limit or choose another planner",
                needed,
            )
        solution = fit.Solution(problem, choices, schedule, needed, schedule.peak_bytes, True)
        plan = replace(emit.emit(solution), planner=self.name)
        return Outcome(plan=plan, figures=figures.planned(solution, plan, request.machine))

    def no_other_plan(self, parameters: Any) -> str:
        return f"the planner {self.name} has one plan for all limits: choose another planner"


class SwapEverything(_Uniform):
    """Swaps every buffer that can be swapped."""

    name, mode, rule = (
        "swap_everything",
        Mode.SWAP,
        "swap_everything swaps whatever can leave and is not read again soon",
    )

    def moves(self, problem: Problem, buffer: Buffer) -> bool:
        return buffer.swappable


class RecomputeEverything(_Uniform):
    """Recomputes every buffer that can be recomputed."""

    name, mode = "recompute_everything", Mode.RECOMPUTE
    rule = "recompute_everything recomputes whatever can leave and is not read again soon"

    def moves(self, problem: Problem, buffer: Buffer) -> bool:
        return buffer.recomputable


class RecomputeAllButConvolutions(RecomputeEverything):
    """Keeps the results of convolutions and recomputes the others: the checkpoint policy that JAX calls `dots_saveable`."""

    name, rule = (
        "recompute_all_but_convolutions",
        "whatever no convolution made is recomputed, if it is not read again soon",
    )

    def moves(self, problem: Problem, buffer: Buffer) -> bool:
        convolution = "Conv" in problem.graph.by_name[producer_name(buffer.root)].type
        return super().moves(problem, buffer) and not convolution
