"""TFLMS as a planner: parameters that are given are kept, the others are tuned to the limit. No TensorFlow here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from lms3d.errors import DoesNotFit
from lms3d.swap import edit, tuning
from lms3d.swap.cost import Machine
from lms3d.swap.ir import StepGraph
from lms3d.swap.plan import Plan
from lms3d.swap.planners import Outcome, Planner
from lms3d.swap.planners.study import Study
from lms3d.swap.planners.tflms.parameters import Parameters
from lms3d.swap.planners.tflms.rules import build
from lms3d.swap.simulate import simulate


class TFLMS(Planner):
    """Swaps by levels. The request's parameters are `Parameters`; None: all are tuned."""

    def plan(self, study: Study) -> Outcome:
        request, parameters = study.request, study.request.settings.parameters or Parameters()
        if parameters.fixed:
            return Outcome(plan=build(request.graph, parameters, mapped=request.machine.mapped))
        return Outcome(plan=autotune(request.graph, parameters, request.limit_bytes, request.machine))

    def no_other_plan(self, parameters: Parameters | None) -> str | None:
        if parameters is None or not parameters.fixed:
            return None
        return "the TFLMS parameters that were given leave one plan: leave some or all of them out to have them tuned"


def autotune(graph: StepGraph, parameters: Parameters, limit_bytes: int, machine: Machine) -> Plan:
    """TFLMS's search, against a simulator that counts what TFLMS's left out: slots, batches, workspace, transfer times.

    (1) It fits as it is: the empty plan. (2) At threshold 1, raise sync_mode until it fits. (3) The largest threshold that
    fits, then the largest ahead, by binary search. (4) groupby = all levels if that fits, else the largest that does.
    """
    budget = int(limit_bytes * tuning.TFLMS_SAFETY)
    start = replace(
        parameters,
        swapout_threshold=parameters.swapout_threshold or 1,
        swapin_ahead=parameters.swapin_ahead or 1,
        swapin_groupby=parameters.swapin_groupby or 0,
        sync_mode=parameters.sync_mode or 0,
    )

    def fits(chosen: Parameters) -> bool:
        return simulate(edit.apply(graph, build(graph, chosen, mapped=machine.mapped)), machine).peak_bytes <= budget

    if parameters.swapout_threshold is None and simulate(graph, machine).peak_bytes <= budget:
        return Plan()
    modes = range(4) if parameters.sync_mode is None else [parameters.sync_mode]
    mode = next((m for m in modes if fits(replace(start, sync_mode=m))), None)
    if mode is None:
        raise DoesNotFit(
            f"TFLMS's parameters cannot make the step fit in {limit_bytes / (1 << 20):,.0f} MiB; "
            "raise --memory-limit or leave the TFLMS parameters out (the default planner also recomputes)"
        )
    chosen = replace(start, sync_mode=mode)
    highest = max(graph.levels.values(), default=1)
    if parameters.swapout_threshold is None:
        chosen = replace(
            chosen, swapout_threshold=_largest(1, highest, lambda n: fits(replace(chosen, swapout_threshold=n)))
        )
    if parameters.swapin_ahead is None and mode in (0, 1):
        chosen = replace(chosen, swapin_ahead=_largest(1, highest, lambda n: fits(replace(chosen, swapin_ahead=n))))
    if parameters.swapin_groupby is None:
        everything = replace(chosen, swapin_groupby=highest)
        best = highest if fits(everything) else _largest(0, highest, lambda n: fits(replace(chosen, swapin_groupby=n)))
        chosen = replace(chosen, swapin_groupby=best)
    return build(graph, chosen, mapped=machine.mapped)


def _largest(low: int, high: int, fits: Callable[[int], bool]) -> int:
    """The largest n in low..high that fits, if what fits is an interval that starts at `low`."""
    while low < high:
        middle = (low + high + 1) // 2
        if fits(middle):
            low = middle
        else:
            high = middle - 1
    return low
