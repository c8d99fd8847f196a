"""Swap everything, recompute everything: plans with one decision for every tensor that allows it, made by the same engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from experiments.overhead import parts
from lms3d import LMS
from lms3d.swap.engine import Engine, Prepared
from lms3d.swap.ir import producer_name
from lms3d.swap.planners.hybrid import emit, search
from lms3d.swap.planners.hybrid.problem import Buffer, Problem, reduce
from lms3d.swap.planners.hybrid.schedule import Choice, Mode, build
from lms3d.swap.planning import Settings, decide
from lms3d.swap.tensorflow import surgery
from lms3d.swap.tensorflow.capture import capture
from lms3d.swap.tensorflow.rewrite import rewrite


class UniformEngine(Engine):
    """Prepares a step with the same decision for all its tensors, whatever the limit."""

    def __init__(self, method: str, settings: Settings, **options: Any) -> None:
        super().__init__(settings, **options)
        self.method = method

    def prepare(
        self, function: Any, step: str, *, extra_bytes: int = 0, batches: Any = None, **others: Any
    ) -> Prepared:
        """As `Engine.prepare`, with another plan."""
        surgery.separate_bias_gradients(function.graph)
        surgery.fix_shapes(function.graph)
        graph = capture(function, compute_device=self.compute_device, extra_bytes=extra_bytes, batches=batches)
        graph, machine = self._with_ops(graph, self.machine, function)
        settings = Settings(limit_bytes=self.settings.limit_bytes, tier=self.settings.tier, planner="off")
        _, report = decide(graph, settings, machine, step=step, with_floor=False)
        problem = reduce(graph, machine)
        choices = uniform_choices(problem, self.method)
        schedule = build(problem, choices, machine)
        limit = self.settings.limit_bytes
        solution = search.Solution(problem, choices, schedule, limit, schedule.peak_bytes, schedule.peak_bytes <= limit)
        plan = emit.emit(solution)
        report.planner, report.predicted_peak_bytes = "uniform", schedule.peak_bytes
        report.predicted_step_seconds += schedule.seconds - float(problem.seconds.sum())
        report.swapped_out_bytes, report.recomputed_ops = plan.swapped_out_bytes, len(plan.recomputes)
        rewritten, _ = rewrite(function, graph, plan, self.tier)
        return Prepared(rewritten, plan, report, machine)


def uniform_choices(problem: Problem, method: str) -> dict[int, Choice]:
    """One decision for each buffer that allows it; the others are kept.

    Recomputing all but convolutions is what JAX calls the checkpoint policy `dots_saveable`.
    """
    convolution = {b.root: "Conv" in problem.graph.by_name[producer_name(b.root)].type for b in problem.buffers}
    chosen: dict[str, Callable[[Buffer], bool]] = {
        parts.SWAP_ALL: lambda buffer: buffer.swappable,
        parts.RECOMPUTE_ALL: lambda buffer: buffer.recomputable,
        parts.RECOMPUTE_CHEAP: lambda buffer: buffer.recomputable and not convolution[buffer.root],
    }
    mode = Mode.SWAP if method == parts.SWAP_ALL else Mode.RECOMPUTE
    return {i: Choice(mode) for i, buffer in enumerate(problem.buffers) if chosen[method](buffer)}


def callback(method: str) -> LMS:
    """An LMS that plans this way."""
    lms = LMS(planner="hybrid", adapt=False)
    runner = lms._get_runner()
    runner.engine = UniformEngine(method, runner.engine.settings, compute_device=runner.engine.compute_device)
    return lms
