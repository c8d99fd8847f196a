"""TFLMS as a planner: it keeps the parameters that are given, and tunes the others to the limit. No TensorFlow here."""

from __future__ import annotations

import bisect
import itertools
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace

from lms3d.engine import edit, tuning
from lms3d.engine.cost import Machine
from lms3d.engine.ir import StepGraph
from lms3d.engine.plan import Plan, SwapOut
from lms3d.engine.planners import Outcome, Planner
from lms3d.engine.planners.tflms.parameters import Parameters
from lms3d.engine.planners.tflms.rules import build
from lms3d.engine.step_model.pool import NO_POOL, Pool
from lms3d.engine.step_model.simulate import simulate
from lms3d.engine.step_model.study import Study
from lms3d.errors import DoesNotFit


class TFLMS(Planner):
    """Swaps by the levels of the graph. The parameters of the request are `Parameters`; None: all are tuned."""

    rule = "TFLMS decides by the levels of the graph, not by costs"

    def plan(self, study: Study) -> Outcome:
        request, parameters = study.request, study.request.settings.parameters or Parameters()
        if parameters.fixed:
            plan = build(request.graph, parameters, mapped=request.machine.mapped)
        else:
            plan = autotune(request.graph, parameters, request.limit_bytes, request.machine, request.settings.pool)
        return Outcome(plan=as_simulated(study, plan))

    def no_other_plan(self, parameters: Parameters | None) -> str | None:
        if parameters is None or not parameters.fixed:
            return None
        return "the TFLMS parameters that were given leave one plan: leave some or all of them out to have them tuned"


def autotune(
    graph: StepGraph, parameters: Parameters, limit_bytes: int, machine: Machine, pool: Pool = NO_POOL
) -> Plan:
    """The plan of TFLMS's search, for the limit or the largest smaller one whose plan finds room among the pieces of the pool. If
    there is none such, that of the smallest limit: a step that runs out of memory is planned again.

    The simulator counts what TFLMS's own left out: slots, batches, workspace, transfer times.
    """
    budget_bytes = int(limit_bytes * tuning.TFLMS_SAFETY)

    def has_room(plan: Plan) -> bool:
        step = edit.apply(graph, plan)
        return pool.place_simulated(step, simulate(step, machine), limit_bytes).fits

    plan: Plan | None = None
    for share in tuning.TFLMS_BUDGETS:
        found = _within(graph, parameters, int(budget_bytes * share), machine)
        plan = found or plan
        if found is None or has_room(found):
            break
    if plan is None:
        raise DoesNotFit(
            f"TFLMS's parameters cannot make the step fit in {limit_bytes / (1 << 20):,.0f} MiB; "
            "raise the memory limit or leave the TFLMS parameters out (the default planner also recomputes)"
        )
    return plan


def _within(graph: StepGraph, parameters: Parameters, budget_bytes: int, machine: Machine) -> Plan | None:
    """The plan of TFLMS's search, by bytes alone; None if there is none.

    (1) If the step fits as it is: the empty plan. (2) At threshold 1, raise sync_mode until it fits. (3) Take the largest threshold
    that fits, then the largest ahead, by binary search. (4) groupby: all levels if that fits, else the largest number that does.
    """
    start = replace(
        parameters,
        swapout_threshold=parameters.swapout_threshold or 1,
        swapin_ahead=parameters.swapin_ahead or 1,
        swapin_groupby=parameters.swapin_groupby or 0,
        sync_mode=parameters.sync_mode or 0,
    )

    def fits(chosen: Parameters) -> bool:
        return (
            simulate(edit.apply(graph, build(graph, chosen, mapped=machine.mapped)), machine).peak_bytes <= budget_bytes
        )

    if parameters.swapout_threshold is None and simulate(graph, machine).peak_bytes <= budget_bytes:
        return Plan()
    modes = range(4) if parameters.sync_mode is None else [parameters.sync_mode]
    mode = next((m for m in modes if fits(replace(start, sync_mode=m))), None)
    if mode is None:
        return None
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


def as_simulated(study: Study, plan: Plan) -> Plan:
    """The plan that also says in which order ops run and memory changes hands, which TFLMS leaves to TensorFlow's executor.

    TFLMS-8  Large ops run in the order of the simulator: the executor would run ready ops side by side, each with its workspace.
    TFLMS-9  An original is freed after the op that runs, by the simulator, when the copy out is complete. Its swap-ins take their
             memory after that. A tier in stream order would otherwise hold every original until its copy is due back.

    Of a step with a loop of TensorFlow 1 the originals alone are held: the simulator runs the loop once, and may run an op behind
    it before one that it waits for.
    """
    if plan.empty:
        return plan
    graph, machine = study.request.graph, study.request.machine
    spans = simulate(edit.apply(graph, plan), machine).spans
    computed = [name for name in spans if name in graph.by_name and not graph.by_name[name].in_loop]
    starts = [spans[name][0] for name in computed]
    loops = any(op.in_loop for op in graph.ops)
    copies: dict[str, list[str]] = defaultdict(list)
    for back in () if loops else plan.swap_ins:
        copies[back.tensor].append(back.name)

    def held(out: SwapOut) -> SwapOut:
        begun = bisect.bisect_left(starts, spans[out.name][1]) if out.name in spans else 0
        until = (computed[begun - 1],) if begun else ()
        return replace(out, until=until, waiters=(*out.waiters, *copies[out.tensor]))

    large = set() if loops else {*study.problem.anchors}
    ordered = [name for name in computed if name in large]
    return replace(
        plan,
        swap_outs=tuple(map(held, plan.swap_outs)),
        control_edges=(*plan.control_edges, *itertools.pairwise(ordered)),
    )


def _largest(low: int, high: int, fits: Callable[[int], bool]) -> int:
    """The largest n in low..high that fits, if what fits is an interval that starts at `low`."""
    while low < high:
        middle = (low + high + 1) // 2
        if fits(middle):
            low = middle
        else:
            high = middle - 1
    return low
