"""The reason of a decision in plain words, from what its alternatives cost. No TensorFlow here.

If a planner weighs costs, the costs are the reason. If it goes by a rule, the rule is, and the costs say what it is worth.
"""

from __future__ import annotations

from collections.abc import Sequence

from lms3d.engine.ir import Op, paired, producer_name
from lms3d.engine.prediction import Decision
from lms3d.engine.step_model.problem import Buffer, Problem, is_random
from lms3d.units import format_seconds, format_size

VERDICTS = {"keep": "kept", "swap": "swapped", "recompute": "recomputed", "both": "swapped and recomputed"}
_NAMED_SOURCES = 2
_ALL, _NONE = 0.995, 0.005  # shares of a transfer that round to these


def of_buffer(
    decision: Decision, buffer: Buffer, problem: Problem, *, sources: Sequence[Buffer], peak_at: str, rule: str
) -> str:
    """The reason of a decision on a buffer, such as "swapped: moving it out and back takes 11 ms, ...".

    sources: buffers that would stay for it alone if it were recomputed. peak_at: the op that runs at the peak. rule: how the
    planner decides, if not by costs.
    """
    if decision.action == "keep":
        why = rule or _why_kept(decision, buffer, problem, sources, peak_at)
    else:
        costs = [_moving(decision, buffer, problem), _computing(decision, buffer, problem, sources)]
        costs = costs[::-1] if decision.action == "recompute" else costs
        why = "; ".join([rule, *costs] if rule else [*costs, *_why_not_the_cheaper(decision, sources)])
    return f"{VERDICTS[decision.action]}: {why}"


def of_another(decision: Decision, rule: str) -> str:
    """The reason of a decision on a swapped tensor that is no buffer of the problem."""
    seconds = f"moving it takes {duration(decision.swap_seconds or 0.0)}"
    return f"{VERDICTS[decision.action]}: {'; '.join([*([rule] if rule else []), seconds])}"


def duration(seconds: float) -> str:
    """0.00083 -> "0.83 ms", 0.011 -> "11 ms": two figures, also of what is shorter than a millisecond."""
    if seconds >= 0.0995 or not seconds:
        return format_seconds(seconds)
    return f"{seconds * 1e3:.2g} ms" if seconds >= 1e-4 else f"{seconds * 1e6:.2g} µs"


def _why_kept(decision: Decision, buffer: Buffer, problem: Problem, sources: Sequence[Buffer], peak_at: str) -> str:
    if decision.swap_seconds is None and decision.recompute_seconds is None:
        return _why_it_cannot_leave(buffer, problem)
    if not decision.peak_bytes:
        return "it is not in memory at the predicted peak"
    if peak_at in _users(buffer, problem):
        return f"{peak_at}, which runs at the predicted peak, uses it"
    costs = (_moving(decision, buffer, problem), _computing(decision, buffer, problem, sources))
    return f"there is room for it; {'; '.join(costs)}"


def _why_not_the_cheaper(decision: Decision, sources: Sequence[Buffer]) -> list[str]:
    """Why the alternative was not taken, if it looks cheaper by the figures of this tensor alone and these do not say why."""
    swap, hidden, recompute = decision.swap_seconds, decision.hidden_seconds, decision.recompute_seconds
    if swap is None or hidden is None or recompute is None:
        return []
    stall = swap - hidden
    if decision.action == "recompute" and stall < recompute:
        return ["moving it looks cheaper, but takes the links from other tensors, and on a CPU cores from the step"]
    if decision.action == "swap" and recompute < stall and not sources:
        return ["computing it again looks cheaper, but the plan was chosen by the whole step"]
    return []


def _why_it_cannot_leave(buffer: Buffer, problem: Problem) -> str:
    moving, computing = _obstacle_to_moving(buffer, problem), _obstacle_to_computing(buffer, problem)
    if moving == computing:
        return f"it cannot leave, because {moving}"
    return f"it cannot be moved, because {moving}; it cannot be computed again, because {computing}"


def _users(buffer: Buffer, problem: Problem) -> set[str]:
    return {problem.anchors[anchor] for anchor in (buffer.defined, *buffer.reads)}


def _moving(decision: Decision, buffer: Buffer, problem: Problem) -> str:
    if decision.swap_seconds is None or decision.hidden_seconds is None:
        return f"it cannot be moved, because {_obstacle_to_moving(buffer, problem)}"
    is_moved = decision.action in ("swap", "both")
    verb, auxiliary = ("takes", "can") if is_moved else ("would take", "could")
    act = "writing it out" if buffer.mapped else "moving it out and back"
    share = decision.hidden_seconds / decision.swap_seconds if decision.swap_seconds else 1.0
    part = "all" if share > _ALL else "none" if share < _NONE else duration(decision.hidden_seconds)
    return f"{act} {verb} {duration(decision.swap_seconds)}, {part} of which idle links {auxiliary} hide"


def _computing(decision: Decision, buffer: Buffer, problem: Problem, sources: Sequence[Buffer]) -> str:
    if decision.recompute_seconds is None:
        return f"it cannot be computed again, because {_obstacle_to_computing(buffer, problem)}"
    is_computed = decision.action in ("recompute", "both")
    clause = f"computing it again {'takes' if is_computed else 'would take'} {duration(decision.recompute_seconds)}"
    if not sources:
        return clause
    size = format_size(sum(source.bytes for source in sources))
    return f"{clause} and {'needs' if is_computed else 'would need'} {_names(sources)} ({size}) until then"


def _names(sources: Sequence[Buffer]) -> str:
    named = [source.root for source in sources[:_NAMED_SOURCES]]
    more = len(sources) - len(named)
    return " and ".join([*named, *([f"{more} more"] if more else [])])


def _obstacle_to_moving(buffer: Buffer, problem: Problem) -> str:
    op, graph = _maker(buffer, problem), problem.graph
    reader = next((name for name in _users(buffer, problem) if paired(op, graph.by_name[name])), None)
    if reader is not None:
        return f"{reader} has to read the original"
    if graph.tensors[buffer.root].rank is None:
        return "its number of axes is not known"
    return _obstacle(buffer, problem)


def _obstacle_to_computing(buffer: Buffer, problem: Problem) -> str:
    op = _maker(buffer, problem)
    if is_random(op):
        return f"{op.name} draws random numbers"
    if op.stateful:
        return f"{op.name} has a state, such as a variable that may have changed by then"
    return _obstacle(buffer, problem)


def _obstacle(buffer: Buffer, problem: Problem) -> str:
    """What stands in the way of moving a buffer and of computing it again alike."""
    op, graph = _maker(buffer, problem), problem.graph
    if buffer.returned:
        return "the step returns it"
    if op.in_loop or any(graph.by_name[name].in_loop for name in graph.consumers.get(buffer.root, ())):
        return "it belongs to a loop"
    if not buffer.reads:
        return "nobody reads it later"
    if op.name not in problem.anchors:
        return f"{op.name} does not run at a fixed place in the step"
    return "it is so small that moving it would not pay"


def _maker(buffer: Buffer, problem: Problem) -> Op:
    return problem.graph.by_name[producer_name(buffer.root)]
