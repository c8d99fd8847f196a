"""What was planned for a step and what was measured: a value, as JSON and as Markdown. No TensorFlow here."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from lms3d.swap.tiers import TIERS
from lms3d.units import format_seconds, format_size


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What happens to one large tensor. `action`: keep, swap, recompute or both; `copies`: how often it comes back in a step."""

    tensor: str
    bytes: int
    action: str
    copies: int = 0


@dataclass(kw_only=True)
class Round:
    """A plan for the step and how it did: predicted, and measured over its first warm steps (None: not, or not yet).

    plan: its number in lms_stats.csv, None where it never ran. budget_bytes: the limit that it was made for.
    measured_stall_seconds: by how much the step took longer than its predicted computing, but no longer than transfers
    were under way: the waiting itself cannot be seen. None where the tier does not measure transfers (host memory).
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
        """A row of the table of rounds."""
        peak, step, stall = (
            f"{_or_dash(predicted, form)} / {_or_dash(measured, form)}"
            for predicted, measured, form in (
                (self.predicted_peak_bytes, self.measured_peak_bytes, format_size),
                (self.predicted_step_seconds, self.measured_step_seconds, format_seconds),
                (self.predicted_stall_seconds, self.measured_stall_seconds, format_seconds),
            )
        )
        return str(self.plan or "-"), self.reason, peak, step, stall, self.outcome


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def _or_dash(value: Any, form: Callable[[Any], str]) -> str:
    return "-" if value is None else form(value)


@dataclass(kw_only=True)
class Report:
    """Planned and measured figures of one traced step ("train", "test" or "predict").

    unedited_peak_bytes: predicted peak without LMS; predicted_peak_bytes: with the plan; floor_bytes: the smallest
    memory limit that any plan found fits in; unedited_limit_bytes: the smallest limit that would do without LMS.
    timeline_bytes, unedited_timeline_bytes: live bytes per planned event, in order; timeline_seconds: when each starts.
    planning_seconds: what the plan took when it was made; from_cache: it was made earlier, for the same step.
    evaluations, effort_seconds: schedules and replays that it was chosen from, and their price (`lms3d.swap.effort`).
    plan: number of the plan in lms_stats.csv; rounds: every plan that was made for this step (see `lms3d.keras_step.adaptation`).
    """

    step: str
    planner: str
    tier: str
    limit_bytes: int
    unedited_peak_bytes: int
    predicted_peak_bytes: int
    unedited_limit_bytes: int
    floor_bytes: int | None
    unedited_step_seconds: float
    predicted_step_seconds: float
    predicted_stall_seconds: float = 0.0
    swapped_out_bytes: int = 0
    swapped_in_bytes: int = 0
    recomputed_ops: int = 0
    change: str = ""
    decisions: tuple[Decision, ...] = ()
    timeline_bytes: Sequence[int] = ()
    timeline_seconds: Sequence[float] = ()
    unedited_timeline_bytes: Sequence[int] = ()
    peak_at: str = ""
    peak_tensors: tuple[tuple[str, int], ...] = ()
    parameters: dict[str, Any] = field(default_factory=dict)
    planning_seconds: float = 0.0
    evaluations: int = 0
    effort_seconds: float = 0.0
    from_cache: bool = False
    measured_peak_bytes: int | None = None
    measured_step_seconds: float | None = None
    steps_measured: int = 0
    plan: int = 0
    rounds: list[Round] = field(default_factory=list)

    @property
    def rewritten(self) -> bool:
        """True where the plan changes the step."""
        return self.planner not in ("off", "none")

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready form."""
        return json.loads(json.dumps(asdict(self), default=int))

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), indent=1)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Report:
        """The inverse of `to_dict`; TypeError for a field that this version does not know."""
        plain = {name: _tuples(value) for name, value in values.items() if name not in ("decisions", "rounds")}
        decisions = tuple(Decision(**d) for d in values["decisions"])
        return cls(**plain, decisions=decisions, rounds=[Round(**r) for r in values["rounds"]])

    def to_markdown(self) -> str:
        """The report as a person reads it: figures first, then the tensors at the peak, then every decision."""
        lines = [f"# LMS report: {self.step} step", "", self.headline(), "", "| figure | value |", "| --- | --- |"]
        lines += [f"| {name} | {value} |" for name, value in self._figures()]
        if self.rewritten or len(self.rounds) > 1:
            lines += self._rounds()
        if self.peak_tensors:
            lines += ["", f"## Live at the predicted peak (`{self.peak_at}`)", "", "| tensor | size |", "| --- | --- |"]
            lines += [f"| `{name}` | {format_size(size)} |" for name, size in self.peak_tensors]
        if self.decisions:
            lines += ["", "## Decisions", "", "| tensor | size | decision | copies |", "| --- | --- | --- | --- |"]
            rows = sorted(self.decisions, key=lambda d: (-d.bytes, d.tensor))
            lines += [f"| `{d.tensor}` | {format_size(d.bytes)} | {d.action} | {d.copies or ''} |" for d in rows]
        return "\n".join(lines) + "\n"

    def _rounds(self) -> list[str]:
        """Each plan that was made for this step, and how it did."""
        if not self.rounds:
            return []
        head = ("plan", "why", "peak", "step", "waiting for the tier", "what became of it")
        rows = [head, ("---",) * len(head), *(r.cells() for r in self.rounds)]
        note = (
            "Transfers to and from host memory are TensorFlow's own and are not measured: the step time is all there is."
            if not TIERS[self.tier].measures_transfers
            else "Waiting (measured): what a step took longer than its computing should take, as far as transfers explain it."
        )
        return ["", "## Rounds (predicted / measured)", "", *(f"| {' | '.join(row)} |" for row in rows), "", note]

    def headline(self) -> str:
        """One sentence for a terminal."""
        if not self.rewritten:
            return (
                f"LMS changes nothing in the {self.step} step: predicted peak {format_size(self.unedited_peak_bytes)}, "
                f"limit {format_size(self.limit_bytes)}."
            )
        moved = f"{format_size(self.swapped_out_bytes)} swapped out per step, {self.recomputed_ops} ops recomputed"
        if not self.swapped_out_bytes and not self.recomputed_ops:
            moved = "the large ops run in another order, nothing is swapped out or recomputed"
        return (
            f"LMS takes the {self.step} step from a predicted peak of {format_size(self.unedited_peak_bytes)} to "
            f"{format_size(self.predicted_peak_bytes)} (limit {format_size(self.limit_bytes)}): {moved}."
        )

    def _figures(self) -> list[tuple[str, str]]:
        def size(value: int | None) -> str:
            return "" if value is None else format_size(value)

        rows = [
            ("planner", self.planner),
            ("swap tier", self.tier),
            ("memory limit", size(self.limit_bytes)),
            ("smallest limit without LMS (predicted)", size(self.unedited_limit_bytes)),
            ("smallest limit with LMS: the floor (predicted)", size(self.floor_bytes)),
            ("peak without LMS (predicted)", size(self.unedited_peak_bytes)),
            ("peak with this plan (predicted)", size(self.predicted_peak_bytes)),
            ("peak (measured)", size(self.measured_peak_bytes)),
            ("predicted / measured peak", self._ratio(self.predicted_peak_bytes, self.measured_peak_bytes)),
            ("swapped out per step", size(self.swapped_out_bytes)),
            ("swapped in per step", size(self.swapped_in_bytes)),
            ("ops recomputed per step", str(self.recomputed_ops)),
            ("step time without LMS (predicted)", format_seconds(self.unedited_step_seconds)),
            ("step time with this plan (predicted)", format_seconds(self.predicted_step_seconds)),
            ("of that, waiting for the tier (predicted)", format_seconds(self.predicted_stall_seconds)),
            (
                "step time (median, measured)",
                "" if self.measured_step_seconds is None else format_seconds(self.measured_step_seconds),
            ),
            (
                "planning time",
                format_seconds(self.planning_seconds) + (" once, now from the cache" if self.from_cache else ""),
            ),
            ("rewrite", self.change),
        ]
        rows += [(name, str(value)) for name, value in self.parameters.items()]
        return [(name, value) for name, value in rows if value]

    @staticmethod
    def _ratio(predicted: float, measured: float | None) -> str:
        return "" if not measured else f"{predicted / measured:.2f}"
