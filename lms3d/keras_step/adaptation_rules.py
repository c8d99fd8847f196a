"""The rules by which a plan's first steps ask for another plan: ADAPT-1, 2, 3 and 6 of `adaptation`. No TensorFlow here."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from lms3d.engine import tuning
from lms3d.engine.cost import Machine, scale_in_words, scale_of
from lms3d.engine.plan import Plan
from lms3d.engine.prediction import Prediction
from lms3d.units import format_seconds, format_size

PEAK, LINKS, COSTS, MARGIN = "peak", "links", "costs", "margin"
_DIRECTIONS = (
    ("swap-outs", "swapped_out_bytes", "swap_out_seconds", "swap_out_bytes_per_second"),
    ("swap-ins", "swapped_in_bytes", "swap_in_seconds", "swap_in_bytes_per_second"),
)


@dataclass(frozen=True)
class Change:
    """What to plan for next: the rule that asks for it, its reason, and the most seconds that it can gain per step."""

    rule: str
    budget_bytes: int
    machine: Machine
    reason: str
    gain_seconds: float = math.inf


@dataclass
class Trial:
    """A plan that runs or has run: its number in lms_stats.csv, the change that it was made for, and its first steps.

    long_step_seconds: shorter steps say nothing about the costs of ops. rows: the figures of its steps, as in `step_log`.
    """

    number: int
    plan: Plan
    prediction: Prediction
    machine: Machine
    budget_bytes: int
    change: Change | None
    long_step_seconds: float = tuning.LONG_STEP_SECONDS["CPU"]
    rows: list[Mapping[str, Any]] = field(default_factory=list)

    @property
    def complete(self) -> bool:
        return len(self.rows) >= tuning.COLD + tuning.WARM

    @property
    def peak_bytes(self) -> int:
        return max(int(row["peak_bytes"]) for row in self.rows)

    @property
    def seconds(self) -> float:
        return min(float(row["seconds"]) for row in self.rows[tuning.COLD :] or self.rows)

    @property
    def run_seconds(self) -> float:
        """The seconds of the fastest warm step without the runner's own work around it, if they were measured."""
        return min(float(row.get("run_seconds", row["seconds"])) for row in self.rows[tuning.COLD :] or self.rows)

    @property
    def planning_seconds(self) -> float:
        """How much longer the first step took than the others."""
        return float(self.rows[0]["seconds"]) - self.seconds

    def per_step(self, column: str) -> float | None:
        """The mean of a column over the warm steps; None if the tier does not measure it."""
        values = [float(row[column]) for row in self.rows[tuning.COLD :] if column in row]
        return sum(values) / len(values) if values else None

    @property
    def stall_seconds(self) -> float | None:
        """See `Round.measured_stall_seconds`."""
        busy = [s for _, _, seconds, _ in _DIRECTIONS if (s := self.per_step(seconds)) is not None]
        computing = self.prediction.predicted_step_seconds - self.prediction.predicted_stall_seconds
        return min(sum(busy), max(0.0, self.seconds - computing)) if busy else None

    @property
    def ops_scale(self) -> float:
        """ADAPT-6: `Machine.ops_scale` as the steps show it; that of the plan if they show no other."""
        planned = self.prediction
        computing = planned.predicted_step_seconds - planned.predicted_stall_seconds
        if not self.complete or self.run_seconds < self.long_step_seconds:
            return self.machine.ops_scale
        longest = max(self._transfer_seconds, planned.predicted_stall_seconds)
        waiting = min(longest, max(0.0, self.run_seconds - computing))
        return scale_of(self.run_seconds - waiting, computing, self.machine.ops_scale)

    @property
    def _transfer_seconds(self) -> float:
        """The seconds of all transfers of a step, as measured or, if they are not, as planned."""
        total = 0.0
        for _, bytes_column, seconds_column, speed in _DIRECTIONS:
            seconds, moved = self.per_step(seconds_column), self.per_step(bytes_column) or 0.0
            total += moved / getattr(self.machine, speed) if seconds is None else seconds
        return total

    def measured(self) -> dict[str, Any]:
        """The measured fields of a `Round`."""
        return {
            "measured_peak_bytes": self.peak_bytes,
            "measured_step_seconds": self.seconds,
            "measured_stall_seconds": self.stall_seconds,
        }


def peak(now: Trial, limit_bytes: int) -> Change | None:
    """The change that ADAPT-1 asks for, if any."""
    peak, predicted = now.peak_bytes, now.prediction.predicted_peak_bytes
    if peak <= limit_bytes:
        return None
    budget = int(now.budget_bytes * min(tuning.TIGHTER, tuning.AIM * limit_bytes / peak))
    why = f"the peak is {format_size(peak)}, above the limit, and not {format_size(predicted)}"
    return Change(PEAK, budget, now.machine, f"{why}: planned for {format_size(budget)}")


def links(now: Trial, limit_bytes: int) -> Change | None:
    """The change that ADAPT-2 asks for, if any."""
    late = now.seconds - now.prediction.predicted_step_seconds
    if late <= tuning.MATTERS * now.seconds:
        return None
    seen: dict[str, Any] = {}
    slow, lost_seconds = [], 0.0
    for name, bytes_column, seconds_column, speed in _DIRECTIONS:
        moved, seconds = now.per_step(bytes_column), now.per_step(seconds_column)
        if not moved or not seconds:
            continue
        planned = getattr(now.machine, speed)
        seen[speed] = float(f"{moved / seconds:.1e}")  # two digits: the next time the same plan comes from the cache
        lost = seconds - moved / planned
        if seen[speed] < tuning.SLOW * planned and lost > tuning.MATTERS * now.seconds:
            slow.append(f"{name} run at {format_size(seen[speed])}/s and not {format_size(planned)}/s")
            lost_seconds += lost
    if not slow:
        return None
    return Change(LINKS, now.budget_bytes, replace(now.machine, **seen), " and ".join(slow), min(lost_seconds, late))


def costs(now: Trial, limit_bytes: int) -> Change | None:
    """The change that ADAPT-6 asks for, if any."""
    scale = now.ops_scale
    unplanned = now.prediction.unmoved_step_seconds * scale / now.machine.ops_scale
    lost_seconds = now.seconds - unplanned
    if scale == now.machine.ops_scale or lost_seconds <= tuning.MATTERS * now.seconds:
        return None
    return Change(COSTS, now.budget_bytes, replace(now.machine, ops_scale=scale), scale_in_words(scale), lost_seconds)


def margin(now: Trial, limit_bytes: int) -> Change | None:
    """The change that ADAPT-3 asks for, if any."""
    peak, planned = now.peak_bytes, now.prediction
    cost = 1 - planned.unmoved_step_seconds / planned.predicted_step_seconds if planned.predicted_step_seconds else 0.0
    if (
        not 0 < peak < tuning.ROOMY * limit_bytes or cost <= tuning.MATTERS
    ):  # 0: tensors too small for TensorFlow to count
        return None
    factor = min(tuning.LOOSER, planned.predicted_peak_bytes / peak, tuning.AIM * limit_bytes / peak)
    if factor <= 1 + tuning.MATTERS:
        return None
    budget, lost_seconds = int(now.budget_bytes * factor), cost * now.seconds
    why = f"the peak is only {format_size(peak)} while the plan costs about {format_seconds(lost_seconds)}"
    return Change(MARGIN, budget, now.machine, f"{why}: planned for {format_size(budget)}", lost_seconds)


RULES = (peak, links, costs, margin)
