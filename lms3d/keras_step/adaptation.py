"""Closing the loop: what the first steps of a plan say about the next plan for the same step. No TensorFlow here.

A plan is made from speeds that were measured on an idle machine, and with margins for what nobody can foresee. The first
`COLD` steps of a plan are left out, `WARM` are counted, and then these rules are tried in this order. The first that applies
asks for another plan; at most `MOST_CHANGES` times in all, and a rule that did not help is not tried again.
 1. Peak: above the limit -> plan for less. Only where nothing enforces the limit; in a pool the step runs out of memory
    instead, and is planned for less at once. (A peak just below the limit says nothing in a pool: it hands out larger
    pieces than it was asked for while it has them.)
 2. Links: swapping was much slower than planned, and so was the step -> plan with the speed that was seen: swap-ins are
    triggered earlier. A slow link that computing hides is no reason.
 3. Margin: the peak stayed well under the limit while the plan costs time -> plan for more, by as much as the peak was
    predicted too high.
 4. What rules 2 and 3 can gain in the steps that are left must be more than the last planning took, and what the run grants
    for planning (`swap.effort`) must not be spent.
 5. A new plan stays if it is faster and within the limit or, after rule 1, if it is lower. Otherwise the earlier one comes
    back, as it does when the new one runs out of memory.
Which plan runs never changes a result. Seconds are as noisy as the machine, so the fastest warm step counts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from lms3d.keras_step.report import Report, Round
from lms3d.swap import effort
from lms3d.swap.cost import Machine
from lms3d.swap.plan import Plan
from lms3d.units import format_seconds, format_size

COLD, WARM = 1, 3  # steps of a plan; tracing, planning and graph compilation are in the first
MOST_CHANGES = 3
TIGHTER, LOOSER = 0.92, 1.15  # factors of the budget: of each tighter try; at most, of a looser one
AIM, ROOMY = 0.95, 0.9  # shares of the limit: the highest peak to aim at; a peak below the second is well under it
SLOW = 0.7  # share of the planned bandwidth below which a link is slow
MATTERS = 0.02  # share of a step

PEAK, LINKS, MARGIN = "peak", "links", "margin"
_DIRECTIONS = (
    ("swap-outs", "swapped_out_bytes", "swap_out_seconds", "swap_out_bytes_per_second"),
    ("swap-ins", "swapped_in_bytes", "swap_in_seconds", "swap_in_bytes_per_second"),
)


@dataclass(frozen=True)
class Change:
    """What to plan for next; the rule that asks for it, why, and the most that it can gain per step."""

    rule: str
    budget_bytes: int
    machine: Machine
    reason: str
    gain_seconds: float = math.inf


@dataclass
class _Trial:
    """A plan that runs or has run, the change that it came from, its place in the report, and its first steps."""

    plan: Plan
    report: Report
    machine: Machine
    budget_bytes: int
    change: Change | None
    round: Round
    rows: list[Mapping[str, Any]] = field(default_factory=list)

    @property
    def complete(self) -> bool:
        return len(self.rows) >= COLD + WARM

    @property
    def peak_bytes(self) -> int:
        return max(int(row["peak_bytes"]) for row in self.rows)

    @property
    def seconds(self) -> float:
        return min(float(row["seconds"]) for row in self.rows[COLD:] or self.rows)

    @property
    def planning_seconds(self) -> float:
        """What the first step took longer than the others."""
        return float(self.rows[0]["seconds"]) - self.seconds

    def per_step(self, column: str) -> float | None:
        """The mean over the warm steps; None where the tier does not measure it."""
        values = [float(row[column]) for row in self.rows[COLD:] if column in row]
        return sum(values) / len(values) if values else None

    @property
    def stall_seconds(self) -> float | None:
        """See `Round.measured_stall_seconds`."""
        busy = [s for _, _, seconds, _ in _DIRECTIONS if (s := self.per_step(seconds)) is not None]
        computing = self.report.predicted_step_seconds - self.report.predicted_stall_seconds
        return min(sum(busy), max(0.0, self.seconds - computing)) if busy else None

    def describe(self) -> None:
        """Put the measurements into the report."""
        self.round.measured_peak_bytes = self.peak_bytes
        self.round.measured_step_seconds = self.seconds
        self.round.measured_stall_seconds = self.stall_seconds


class Feedback:
    """The rounds of one step under one limit: `begin` each plan, `add` its steps; when it is `due`, `judge` and `propose`.

    changes: how often it may ask for another plan; 0 keeps the record alone. run_steps: of the whole run; None is unknown.
    account: of the run: what its plans have cost, by the price list of `swap.effort`, even if they came from the cache.
    """

    def __init__(
        self,
        limit_bytes: int,
        changes: int = MOST_CHANGES,
        run_steps: int | None = None,
        account: effort.Account | None = None,
    ) -> None:
        self.limit_bytes, self.changes_left, self.run_steps = limit_bytes, changes, run_steps
        self.account = account or effort.Account()
        self.budget_bytes = limit_bytes  # what the present plan was made for, or the next one is to be made for
        self.rounds: list[Round] = []
        self._reason = "first plan"
        self._now: _Trial | None = None
        self._before: _Trial | None = None  # what `_now` has to beat
        self._spent: set[str] = set()
        self._judged = False

    # -- the life of a plan --------------------------------------------------------------------------------------------

    def begin(self, plan: Plan, report: Report, machine: Machine, change: Change | None = None) -> None:
        """A plan is about to run, for a change that was proposed or, without one, because no other is left."""
        record = Round(
            plan=report.plan,
            reason=change.reason if change else self._reason,
            budget_bytes=change.budget_bytes if change else self.budget_bytes,
            predicted_peak_bytes=report.predicted_peak_bytes,
            predicted_step_seconds=report.predicted_step_seconds,
            predicted_stall_seconds=report.predicted_stall_seconds,
        )
        self.rounds.append(record)
        self.account.seconds += report.effort_seconds
        report.rounds = self.rounds
        self._before = self._now if change else None
        self._now = _Trial(plan, report, machine, record.budget_bytes, change, record)
        self._judged, self.budget_bytes = False, record.budget_bytes

    def add(self, row: Mapping[str, Any]) -> None:
        """The figures of a step that ran: columns of `lms3d.keras_step.step_log`."""
        if self._now is not None and not self._now.complete:
            self._now.rows.append(row)
            self._now.describe()

    @property
    def due(self) -> bool:
        """True once, when the present plan has run for long enough."""
        return self._now is not None and self._now.complete and not self._judged

    def judge(self) -> bool:
        """Rule 5: True where the present plan stays, False where the one before it has to come back."""
        new, old, self._judged = self._now, self._before, True
        assert new is not None, "due"
        new.round.outcome = "kept"
        if old is None or new.change is None:
            return True
        within = new.peak_bytes <= max(self.limit_bytes, old.peak_bytes)
        lower = new.change.rule == PEAK and new.peak_bytes < old.peak_bytes
        if lower or (within and new.seconds < old.seconds):
            old.round.outcome = f"replaced by plan {new.report.plan}"
            self._before = None
            return True
        why = "above the limit" if not within else "not lower" if new.change.rule == PEAK else "not faster"
        self._go_back(why)
        return False

    def ran_out_of_memory(self) -> bool:
        """The present plan did. True where the one before it comes back, False where one for a smaller budget is due."""
        assert self._now is not None, "something ran"
        self._spent.add(MARGIN)
        if self._before is not None:
            self._go_back("ran out of memory")
            return True
        self._now.round.outcome = "ran out of memory"
        self._reason = f"plan {self._now.report.plan} ran out of memory"
        self.budget_bytes = int(self.budget_bytes * TIGHTER)
        return False

    def _go_back(self, why: str) -> None:
        new, old = self._now, self._before
        assert new is not None, "something ran"
        assert old is not None, "there is a plan before it"
        assert new.change is not None, "it was made for a change"
        new.round.outcome, old.round.outcome = f"dropped: {why}", "kept"
        self._spent.add(new.change.rule)
        self._now, self._before, self._judged = old, None, True
        self.budget_bytes = old.budget_bytes

    # -- the next plan -------------------------------------------------------------------------------------------------

    def propose(self, steps_left: int | None = None) -> Change | None:
        """Rules 1 to 4 for the plan in use. steps_left: None is unknown, and counts as many."""
        now = self._now
        if now is None or not self.changes_left or not now.report.rewritten:
            return None
        for rule in (_peak, _links, _margin):
            change = rule(now, self.limit_bytes)
            if change is None or change.rule in self._spent or (change.rule != PEAK and not self._granted(now)):
                continue
            if steps_left is None or change.gain_seconds * steps_left > now.planning_seconds:
                self.changes_left -= 1
                return change
        return None

    def _granted(self, now: _Trial) -> bool:
        left = effort.left(self.run_steps, now.report.unedited_step_seconds, self.account.seconds)
        return left >= effort.SMALLEST_SECONDS

    def reject(self, change: Change, plan: Plan, report: Report) -> str:
        """Why a plan that was made for a change need not run; empty where it should."""
        assert self._now is not None, "a change was proposed"
        if plan == self._now.plan:
            return "the same plan again"
        # Predictions for other speeds do not compare: after rule 2 the step that was measured has to be beaten.
        now = self._now.seconds if change.rule == LINKS else self._now.report.predicted_step_seconds
        slower = change.rule != PEAK and report.predicted_step_seconds >= now
        return "not predicted to be faster" if slower else ""

    def refuse(self, change: Change, why: str, report: Report | None = None) -> None:
        """A change came to nothing. report: of the plan that was made for it."""
        self._spent.add(change.rule)
        self.account.seconds += report.effort_seconds if report else 0.0
        self.rounds.append(Round(reason=change.reason, budget_bytes=change.budget_bytes, outcome=f"dropped: {why}"))


def _peak(now: _Trial, limit_bytes: int) -> Change | None:
    """Rule 1."""
    peak, predicted = now.peak_bytes, now.report.predicted_peak_bytes
    if peak <= limit_bytes:
        return None
    budget = int(now.budget_bytes * min(TIGHTER, AIM * limit_bytes / peak))
    why = f"the peak is {format_size(peak)}, above the limit, and not {format_size(predicted)}"
    return Change(PEAK, budget, now.machine, f"{why}: planned for {format_size(budget)}")


def _links(now: _Trial, limit_bytes: int) -> Change | None:
    """Rule 2."""
    late = now.seconds - now.report.predicted_step_seconds
    if late <= MATTERS * now.seconds:
        return None
    seen: dict[str, Any] = {}
    slow, lost_seconds = [], 0.0
    for name, bytes_column, seconds_column, speed in _DIRECTIONS:
        moved, seconds = now.per_step(bytes_column), now.per_step(seconds_column)
        if not moved or not seconds:
            continue
        planned = getattr(now.machine, speed)
        seen[speed] = float(f"{moved / seconds:.1e}")  # two digits: the same plan comes from the cache the next time
        lost = seconds - moved / planned
        if seen[speed] < SLOW * planned and lost > MATTERS * now.seconds:
            slow.append(f"{name} run at {format_size(seen[speed])}/s and not {format_size(planned)}/s")
            lost_seconds += lost
    if not slow:
        return None
    return Change(LINKS, now.budget_bytes, replace(now.machine, **seen), " and ".join(slow), min(lost_seconds, late))


def _margin(now: _Trial, limit_bytes: int) -> Change | None:
    """Rule 3."""
    peak, report = now.peak_bytes, now.report
    cost = 1 - report.unedited_step_seconds / report.predicted_step_seconds if report.predicted_step_seconds else 0.0
    if not 0 < peak < ROOMY * limit_bytes or cost <= MATTERS:  # 0: tensors too small for TensorFlow to count
        return None
    factor = min(LOOSER, report.predicted_peak_bytes / peak, AIM * limit_bytes / peak)
    if factor <= 1 + MATTERS:
        return None
    budget, lost_seconds = int(now.budget_bytes * factor), cost * now.seconds
    why = f"the peak is only {format_size(peak)} while the plan costs about {format_seconds(lost_seconds)}"
    return Change(MARGIN, budget, now.machine, f"{why}: planned for {format_size(budget)}", lost_seconds)
