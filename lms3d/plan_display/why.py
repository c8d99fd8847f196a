"""`python -m lms3d.plan --why TENSOR`: what was decided about one tensor, and what the alternatives would have cost.

Its rows are named after the report's columns (`keras_step.report.DECISION_COLUMNS`), if there is such a column.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches

from lms3d import console
from lms3d.engine import liveness
from lms3d.engine.ir import RESIDENT_TYPES, Op, StepGraph, Tensor, producer_name
from lms3d.engine.plan import Recompute, SwapIn
from lms3d.engine.prediction import Decision, Prediction
from lms3d.engine.step_model import reasons
from lms3d.engine.step_model.planned_step import PlannedStep, Span, readers
from lms3d.errors import InputError
from lms3d.keras_step.estimate import Planned
from lms3d.units import format_size

LISTED = 8  # readers, and nearest names
MOST_ROWS = 24  # of tensors that a name may mean: what a terminal shows at once
CLOSE = 0.4  # of `difflib`: parts of names share their ends


def show(planned: Planned, name: str) -> None:
    """Explains the tensor that is meant by `name`, or lists all that may be. InputError if none is."""
    found = matching(name, planned.prediction, planned.graph)
    if len(found) > 1:
        largest = sorted(found, key=lambda d: (-d.bytes, d.tensor))[:MOST_ROWS]
        rows = [(d.tensor, d.action, format_size(d.bytes)) for d in largest]
        here = f", of which these are the {MOST_ROWS} largest" if len(found) > MOST_ROWS else ""
        console.table(
            f"{len(found)} large tensors are called so{here}; --why explains one",
            ("tensor", "decision", "size"),
            rows,
            left=2,
        )
        return
    decision = found[0]
    step = PlannedStep.simulated(planned.graph, planned.plan, planned.machine)
    console.summary(f"{decision.tensor} is {reasons.VERDICTS[decision.action]}", _rows(decision, planned, step))


def matching(name: str, prediction: Prediction, graph: StepGraph) -> list[Decision]:
    """The decisions on the tensors that `name` may mean.

    That is the tensor of this name, or the only one whose last parts it is, or else all whose names contain it. The name of an op
    means its first output, and that of a view the tensor behind it, unless TFLMS moves the view. InputError if `name` means no
    large tensor.
    """
    decisions = {decision.tensor: decision for decision in prediction.decisions}
    exact = name if ":" in name else f"{name}:0"
    root = liveness.roots(graph).get(exact, exact)
    if meant := decisions.get(exact) or decisions.get(root):
        return [meant]
    found = [decision for tensor, decision in decisions.items() if name.lower() in tensor.lower()]
    ending = [decision for decision in found if f"/{decision.tensor}".endswith(f"/{exact}")]
    return (ending if len(ending) == 1 else found) or _refuse(name, root, list(decisions), graph)


def _refuse(name: str, root: str, large: list[str], graph: StepGraph) -> list[Decision]:
    if root in graph.tensors:
        raise InputError(
            f"--why {name}: LMS decides nothing about {root}, because {_obstacle(root, graph)}; name a large tensor"
        )
    parts: dict[str, str] = {}
    for tensor in large:
        parts |= dict.fromkeys(tensor.split("/"), tensor)
    nearest = dict.fromkeys(parts[part] for part in get_close_matches(name, parts, n=LISTED, cutoff=CLOSE))
    advice = f"the nearest are {', '.join(nearest)}" if nearest else "leave --why out to see the largest ones"
    raise InputError(f"--why {name}: no large tensor of the step has that in its name; {advice}")


def _obstacle(root: str, graph: StepGraph) -> str:
    """Why a tensor of the step is none of the large ones."""
    kind, size = graph.by_name[producer_name(root)].type, graph.tensors[root].bytes
    if kind in RESIDENT_TYPES:
        return f"it lies outside the step ({kind})"
    return "its size is not known" if size is None else f"it has only {format_size(size)}"


def _rows(decision: Decision, planned: Planned, step: PlannedStep) -> dict[str, str]:
    graph, maker = planned.graph, planned.graph.by_name[producer_name(decision.tensor)]
    hidden = decision.hidden_seconds
    return {
        "why": decision.reason,
        **_shape(graph.tensors[decision.tensor]),
        "size": format_size(decision.bytes),
        "made by": _op(maker, step) + (f", a part of {maker.group}" if maker.group else ""),
        "read by": _readers(decision.tensor, graph, step),
        "in memory": _spans(step.lives(decision.tensor)) + f" of the step's {reasons.duration(step.run.seconds)}",
        **({"copies": _copies(decision.tensor, step)} if decision.copies else {}),
        "to swap": _swapped(decision),
        **({"of that hidden": reasons.duration(hidden)} if hidden is not None else {}),
        "to recompute": _recomputed(decision, maker, planned),
        **({"links idle": _idle(decision)} if decision.weighed else {}),
        "at the peak": _at_the_peak(decision, planned.prediction),
    }


def _shape(tensor: Tensor) -> dict[str, str]:
    """The row "[1, 16, 96, 96, 96] float32"; none for a list of tensors, whose shape TensorFlow does not know."""
    return {} if tensor.shape is None else {"shape": f"{list(tensor.shape)} {tensor.dtype}"}


def _op(op: Op, step: PlannedStep) -> str:
    start, end = step.run.spans.get(op.name, (None, None))
    when = "" if start is None or end is None else f", {_spans([(start, end)])}"
    return f"{op.name} ({op.type}){when}"


def _readers(tensor: str, graph: StepGraph, step: PlannedStep) -> str:
    """The ops that read a tensor, also through views, in the order in which they run."""
    root = liveness.roots(graph)[tensor]
    ops = sorted(liveness.storages(graph)[root].readers, key=lambda name: step.run.spans.get(name, (0.0, 0.0)))
    return _listed([_op(graph.by_name[name], step) for name in ops]) or "nobody"


def _listed(parts: Sequence[str]) -> str:
    """The first few parts, and how many more there are."""
    more = [f"and {len(parts) - LISTED} more"] if len(parts) > LISTED else []
    return "; ".join([*parts[:LISTED], *more])


def _copies(tensor: str, step: PlannedStep) -> str:
    """The number of copies, how each of them is made, and who reads it first."""
    copies = step.copies[tensor]
    made = [f"{_origin(copy)} for {next(iter(readers(copy)), 'nobody')}" for copy in copies]
    return f"{len(copies)}: {_listed(made)}"


def _origin(copy: SwapIn | Recompute) -> str:
    if isinstance(copy, Recompute):
        return "computed again"
    return "read where it lies" if copy.mapped else "read back"


def _spans(spans: Iterable[Span]) -> str:
    return ", ".join(f"from {reasons.duration(start)} to {reasons.duration(end)}" for start, end in spans)


def _idle(decision: Decision) -> str:
    return f"{reasons.duration(decision.idle_link_seconds)} of the longest time that nobody uses it"


def _swapped(decision: Decision) -> str:
    if decision.swap_seconds is None:
        return "impossible"
    return f"{reasons.duration(decision.swap_seconds)} of transfers, out and back"


def _recomputed(decision: Decision, maker: Op, planned: Planned) -> str:
    if decision.recompute_seconds is None:
        return "impossible" if decision.weighed else "not weighed: it is small, or a view of a large tensor"
    return f"{reasons.duration(decision.recompute_seconds)} of {maker.type}, which reads {_sources(maker, planned)}"


def _sources(maker: Op, planned: Planned) -> str:
    """What an op reads, and what happens to that."""
    roots = liveness.roots(planned.graph)
    verdicts = {d.tensor: reasons.VERDICTS[d.action] for d in planned.prediction.decisions}
    sources = dict.fromkeys(roots.get(tensor, tensor) for tensor in maker.inputs)
    named = (f"{source} ({verdicts[source]})" if source in verdicts else source for source in sources)
    return ", ".join(named) or "nothing"


def _at_the_peak(decision: Decision, prediction: Prediction) -> str:
    peak = format_size(prediction.predicted_peak_bytes)
    if decision.action == "keep":
        return f"{format_size(decision.peak_bytes)} of the predicted {peak}"
    higher = format_size(prediction.predicted_peak_bytes + decision.peak_bytes)
    return f"{format_size(decision.peak_bytes)} more if it were kept: {higher} instead of {peak}, if all else went as planned"
