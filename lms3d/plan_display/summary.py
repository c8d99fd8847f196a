"""A plan on the terminal: what happens to the largest tensors, what is in memory at the peak, and the figures of the plan."""

from __future__ import annotations

from lms3d import console
from lms3d.engine.prediction import Decision, Prediction
from lms3d.engine.step_model import reasons
from lms3d.units import format_seconds, format_size

LARGEST = 15  # so many tensors are listed; lms_report.md lists all
MEANINGS = {
    "keep": "stays in memory until its last use",
    "swap": "is written out, and read back just before it is used again",
    "recompute": "is dropped, and computed again just before it is used again",
    "both": "comes back more than once: read back, and computed again",
}


def show(report: Prediction, *, lms: bool) -> None:
    """Prints the plan. lms: if False, only the step without LMS."""
    if report.changed and lms:
        _show_decisions(report)
        _show_peak(report)
    if lms:
        console.say(report.headline())
    planning = format_seconds(report.planning_seconds)
    sliced = {
        "slabs": report.levels_text(),
        "joined": report.joined_text(),
        "added to the step by slabs": format_seconds(report.slab_seconds),
    }
    with_plan = {
        "peak with this plan": format_size(report.predicted_peak_bytes),
        "step with this plan": f"{format_seconds(report.predicted_step_seconds)}, of that "
        f"{format_seconds(report.predicted_stall_seconds)} waiting for swaps",
        **({"lower bound": report.bound_text()} if report.bound_text() else {}),
        "planning took": f"{planning} once; now it came from the cache" if report.from_cache else planning,
    }
    without = f"{format_size(report.unedited_limit_bytes)} without"
    console.summary("Plan (predicted)" if lms else "No plan: --no-lms", {
        "memory limit": format_size(report.limit_bytes),
        "peak without LMS": format_size(report.unedited_peak_bytes),
        "step without LMS": format_seconds(report.unedited_step_seconds),
        **(sliced if report.slabs else {}),
        **(with_plan if lms else {}),
        "smallest limit": f"{format_size(report.floor_bytes or 0)} with LMS{_as(report)}, {without}",
    })  # fmt: skip


def _as(report: Prediction) -> str:
    return " in these slabs" if report.slabs else ""


def _show_decisions(report: Prediction) -> None:
    rows = []
    for action, meaning in MEANINGS.items():
        sizes = [d.bytes for d in report.decisions if d.action == action]
        rows.append((action, meaning, str(len(sizes)), format_size(sum(sizes))))
    console.table("What happens to the large tensors", ("decision", "the tensor", "tensors", "size"), rows, left=2)
    largest = sorted(report.decisions, key=lambda d: (-d.bytes, d.tensor))
    moved = [d for d in largest if d.action != "keep"][:LARGEST]
    columns = ("tensor", "decision", "copies", "size", "to swap", "hidden", "to recompute", "links idle", "at the peak")
    console.table(f"The {len(moved)} largest that do not stay", columns, map(_cells, moved), left=2)
    console.say("`--why TENSOR` says what these costs are, and why a tensor leaves or stays.")


def _cells(decision: Decision) -> tuple[str, ...]:
    """A row of the table of tensors that leave, with what the alternatives would cost."""
    idle = decision.idle_link_seconds if decision.weighed else None
    costs = (decision.swap_seconds, decision.hidden_seconds, decision.recompute_seconds, idle)
    seconds = ("-" if cost is None else reasons.duration(cost) for cost in costs)
    head = (decision.tensor, decision.action, str(decision.copies), format_size(decision.bytes))
    return *head, *seconds, format_size(decision.peak_bytes)


def _show_peak(report: Prediction) -> None:
    """Prints the largest tensors at the peak; the other large ones share a row, and so does everything small."""
    if not report.peak_tensors:
        return  # no schedule of TFLMS's names them
    *tensors, rest = report.peak_tensors
    more = tensors[LARGEST:]
    rows = [*tensors[:LARGEST], *([(f"and {len(more)} more", sum(size for _, size in more))] if more else []), rest]
    console.table(
        f"In memory at the peak, at {report.peak_at}",
        ("tensor", "size"),
        [(name, format_size(size)) for name, size in rows],
    )
