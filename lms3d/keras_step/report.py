"""The report on a step: what was predicted and what was measured, as JSON and as Markdown. No TensorFlow here."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from lms3d.atomic_files import write_text
from lms3d.common.markdown import table
from lms3d.engine.cost import scale_in_words
from lms3d.engine.plan import Plan
from lms3d.engine.prediction import Decision, Prediction
from lms3d.engine.step_model import reasons
from lms3d.keras_step.step_log import StepStatistics
from lms3d.units import format_seconds, format_size

KEEP = "keep"
"""The action of a `Decision` on a tensor that stays where it is."""

DECISION_COLUMNS = (
    "tensor", "size", "decision", "copies", "to swap", "of that hidden", "to recompute", "links idle", "at the peak", "why",
)  # fmt: skip
DECISION_NOTE = (
    "Times are those of one return, after the longest time that nobody uses the tensor. `links idle`: for how much of that time "
    "the links are idle, and can hide transfers. A dash: impossible, or too small to be weighed. `at the peak`: the bytes that a "
    "kept tensor has at the predicted peak; for any other tensor, how much higher the peak would be if it stayed."
)


@dataclass(frozen=True, kw_only=True)
class Round:
    """A plan for the step and its figures: predicted, and measured over its first warm steps (None: not, or not yet).

    plan: its number in lms_stats.csv; None if it never ran. budget_bytes: the limit that it was made for.
    measured_stall_seconds: how much longer the step took than its predicted computing, at most the time of its transfers: waiting
    itself cannot be observed. None if the tier does not measure transfers (host memory).
    """

    plan: int | None = None
    reason: str
    budget_bytes: int
    predicted_peak_bytes: int | None = None
    measured_peak_bytes: int | None = None
    predicted_step_seconds: float | None = None
    measured_step_seconds: float | None = None
    predicted_stall_seconds: float | None = None
    measured_stall_seconds: float | None = None
    outcome: str = ""

    def cells(self) -> tuple[str, ...]:
        """The row of this round in the table of rounds."""
        peak, step, stall = (
            f"{_or_dash(predicted, form)} / {_or_dash(measured, form)}"
            for predicted, measured, form in (
                (self.predicted_peak_bytes, self.measured_peak_bytes, format_size),
                (self.predicted_step_seconds, self.measured_step_seconds, format_seconds),
                (self.predicted_stall_seconds, self.measured_stall_seconds, format_seconds),
            )
        )
        return str(self.plan or "-"), self.reason, peak, step, stall, self.outcome


def _or_dash(value: Any, form: Callable[[Any], str]) -> str:
    return "-" if value is None else form(value)


@dataclass(frozen=True, kw_only=True)
class Report(Prediction):
    """The prediction for one traced step, and what was measured under its plan.

    limit_bytes: the limit in force, whatever the plan was made for. limit_kind: what kind of limit was assumed, if that had to be.
    change: what the rewrite inserted.
    measured_peak_bytes: the largest peak of all steps; None if nothing has run, or if the step is so small that the process has not
    grown. measured_step_seconds: the median after the first step; None if nothing has run.
    unplanned_seconds: the measured seconds of a step without swapping; None if there are none yet. ops_scale: the factor that the
    steps have shown, see `cost.Machine`. plan: the number of the plan in lms_stats.csv. rounds: every plan that was made for this
    step (see `adaptation`).
    """

    change: str = ""
    limit_kind: str = ""
    measured_peak_bytes: int | None = None
    measured_step_seconds: float | None = None
    steps_measured: int = 0
    unplanned_seconds: float | None = None
    ops_scale: float = 1.0
    plan: int = 0
    rounds: tuple[Round, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready form."""
        return {name: value for name, value in super().to_dict().items() if name != "rewritten"}

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), indent=1)

    def __str__(self) -> str:
        """What `print` shows: the headline and the figures."""
        figures = self._figures()
        width = max(len(name) for name, _ in figures)
        return "\n".join([self.headline(), *(f"  {name:<{width}}  {value}" for name, value in figures)])

    def to_markdown(self, *, kept: bool = True) -> str:
        """The report for people: the figures first, then the tensors at the peak, then every decision.

        kept: whether each tensor that stays has a row of its own; if not, they share one.
        """
        lines = [
            f"# LMS report: {self.step} step",
            "",
            self.headline(),
            "",
            table(("figure", "value"), self._figures()),
        ]
        if self.rewritten or len(self.rounds) > 1:
            lines += self._rounds()
        if self.peak_tensors:
            rows = [(f"`{name}`", format_size(size)) for name, size in self.peak_tensors]
            lines += ["", f"## Live at the predicted peak (`{self.peak_at}`)", "", table(("tensor", "size"), rows)]
        if self.compiled:
            programs = [
                (f"`{one.name}`", str(one.ops), f"{one.seconds_saved * 1000:.2f} ms", format_size(one.unwritten_bytes))
                for one in sorted(self.compiled, key=lambda one: (-one.seconds_saved, one.name))
            ]
            lines += ["", "## Compiled", "", table(("program", "ops", "seconds saved", "not written"), programs)]
        if self.joined:
            joined = sorted(self.joined, key=lambda one: (-one[2], one[0]))
            ops = [(f"`{name}`", kind, format_size(size)) for name, kind, size in joined]
            lines += ["", "## Joined", "", table(("op", "type", "size"), ops)]
        if self.decisions:
            lines += self._decision_table(kept)
        return "\n".join(lines) + "\n"

    def _decision_table(self, kept: bool) -> list[str]:
        """Each decision with the costs of its alternatives, the largest tensor first."""
        every = sorted(self.decisions, key=lambda d: (-d.bytes, d.tensor))
        shown = [d for d in every if kept or d.action != KEEP]
        rows = [_cells(decision) for decision in shown]
        if len(shown) < len(every):
            others = sum(d.bytes for d in every if d.action == KEEP)
            named = [f"({len(every) - len(shown)} others)", f"{format_size(others)} together", KEEP]
            rows.append(named + [""] * (len(DECISION_COLUMNS) - len(named)))
        return ["", "## Decisions", "", table(DECISION_COLUMNS, rows), "", DECISION_NOTE]

    def _rounds(self) -> list[str]:
        """The table of the plans that were made for this step."""
        if not self.rounds:
            return []
        head = ("plan", "why", "peak", "step", "waiting for the tier", "what became of it")
        note = (
            "Transfers were not measured: the step time is all there is."
            if all(r.measured_stall_seconds is None for r in self.rounds)
            else "Waiting (measured): what a step took longer than its computing should take, as far as transfers explain it."
        )
        return ["", "## Rounds (predicted / measured)", "", table(head, [r.cells() for r in self.rounds]), "", note]

    def _figures(self) -> list[tuple[str, str]]:
        def size(value: int | None) -> str:
            return "" if value is None else format_size(value)

        def seconds(value: float | None) -> str:
            return "" if value is None else format_seconds(value)

        rows = [
            ("planner", self.planner),
            *(self._slab_figures() if self.slabs else []),
            *(self._compiled_figures() if self.compiled else []),
            ("swap tier", self.tier),
            ("memory limit", size(self.limit_bytes) + (f", {self.limit_kind}" if self.limit_kind else "")),
            ("smallest limit without LMS (predicted)", size(self.unedited_limit_bytes)),
            ("smallest limit with LMS: the floor (predicted)", size(self.floor_bytes)),
            ("peak without LMS (predicted)", size(self.unedited_peak_bytes)),
            ("peak with this plan (predicted)", size(self.predicted_peak_bytes)),
            ("peak (measured)", size(self.measured_peak_bytes)),
            ("predicted / measured peak", self._ratio(self.predicted_peak_bytes, self.measured_peak_bytes)),
            ("swapped out per step", size(self.swapped_out_bytes)),
            ("swapped in per step", size(self.swapped_in_bytes)),
            ("ops recomputed per step", str(self.recomputed_ops)),
            ("step time without LMS (predicted)", seconds(self.unedited_step_seconds)),
            ("step time without LMS (measured)", seconds(self.unplanned_seconds)),
            (
                "predicted / measured step time without LMS",
                self._ratio(self.unedited_step_seconds, self.unplanned_seconds),
            ),
            ("ops in the step", "" if self.ops_scale == 1 else scale_in_words(self.ops_scale)),
            ("step time with this plan (predicted)", seconds(self.predicted_step_seconds)),
            ("of that, waiting for the tier (predicted)", seconds(self.predicted_stall_seconds)),
            ("lower bound: the longest of computing, bytes out, bytes in (predicted)", self.bound_text()),
            ("step time (median, measured)", seconds(self.measured_step_seconds)),
            (
                "planning time",
                format_seconds(self.planning_seconds) + (" once, now from the cache" if self.from_cache else ""),
            ),
            ("rewrite", self.change),
        ]
        rows += [(name, str(value)) for name, value in self.parameters.items()]
        return [(name, value) for name, value in rows if value]

    def _slab_figures(self) -> list[tuple[str, str]]:
        return [
            ("slabs", self.levels_text()),
            ("tensors sliced", str(self.sliced_tensors)),
            ("joined, since their ops take no slabs", self.joined_text()),
            ("added to the step by slabs (predicted)", format_seconds(self.slab_seconds)),
            ("results", "those of the whole step, to rounding"),
        ]

    def _compiled_figures(self) -> list[tuple[str, str]]:
        return [
            ("programs compiled", str(len(self.compiled))),
            ("ops that they replace", str(sum(one.ops for one in self.compiled))),
            ("saved per step by programs (predicted)", format_seconds(self.compiled_seconds)),
            ("off the peak without a plan, by programs (predicted)", format_size(max(0, self.compiled_bytes))),
            ("results", "those of the step as traced, to rounding"),
        ]

    @staticmethod
    def _ratio(predicted: float, measured: float | None) -> str:
        return "" if not measured else f"{predicted / measured:.2f}"


def _cells(decision: Decision) -> list[str]:
    """A row of the table of decisions."""
    swap, hidden, recompute = (
        _or_dash(seconds, reasons.duration)
        for seconds in (decision.swap_seconds, decision.hidden_seconds, decision.recompute_seconds)
    )
    idle = _or_dash(decision.idle_link_seconds if decision.weighed else None, reasons.duration)
    head = [f"`{decision.tensor}`", format_size(decision.bytes), decision.action, str(decision.copies or "")]
    return [*head, swap, hidden, recompute, idle, format_size(decision.peak_bytes), decision.reason]


def describe(
    prediction: Prediction,
    *,
    change: str = "",
    limit_kind: str = "",
    plan: int = 0,
    statistics: StepStatistics | None = None,
    rounds: Sequence[Round] = (),
    unplanned_seconds: float | None = None,
    ops_scale: float = 1.0,
) -> Report:
    """The report on a prediction and on the steps that have run under its plan.

    plan: the plan's number in `statistics`. unplanned_seconds: measured in an earlier run; a step that is left as it was traced
    measures them itself.
    """
    touched = prediction.changed or bool(prediction.compiled)
    median_seconds = statistics.median_seconds(plan) if statistics else None
    return Report(
        **{field.name: getattr(prediction, field.name) for field in fields(Prediction)},
        change=change,
        limit_kind=limit_kind,
        measured_peak_bytes=statistics.peak_bytes(plan) or None if statistics else None,
        measured_step_seconds=median_seconds,
        unplanned_seconds=unplanned_seconds if touched else median_seconds or unplanned_seconds,
        ops_scale=ops_scale if prediction.rewritten else 1.0,
        steps_measured=statistics.steps_of(plan) if statistics else 0,
        plan=plan,
        rounds=tuple(rounds),
    )


def write(folder: Path, found: Mapping[str, tuple[Report, Plan]]) -> None:
    """Writes lms_plan.json and lms_report.md, with the report and the plan of each kind of step, to `folder`."""
    content = {kind: {"report": report.to_dict(), "plan": plan.to_dict()} for kind, (report, plan) in found.items()}
    write_text(folder / "lms_plan.json", json.dumps(content, indent=1))
    write_text(folder / "lms_report.md", "\n".join(report.to_markdown() for report, _ in found.values()))
