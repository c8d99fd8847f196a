"""The first steps of a plan are measured, and may ask for another plan for the same step. No TensorFlow here.

A plan is made from speeds that were measured on an idle machine, with margins for what cannot be predicted. The first
`tuning.COLD` steps of a plan are left out, the next `tuning.WARM` are counted. Then ADAPT-1, 2, 6 and 3 are tried in this order,
and the first that applies asks for another plan, at most `tuning.MOST_CHANGES` times in all. A rule that did not help is not
tried again.
- ADAPT-1, peak: if the peak is above the limit, plan for less. This happens only if nothing enforces the limit: in a pool the step
  runs out of memory instead, and is planned for less at once. (In a pool a peak just below the limit says nothing: a pool hands out
  larger pieces than it was asked for while it has them.)
- ADAPT-2, links: if swapping was much slower than planned, and so was the step, plan with the speeds that were measured. Swap-ins
  then start earlier. A slow link that computing hides is no reason.
- ADAPT-3, margin: if the peak stayed well under the limit and the plan costs time, plan for more, by as much as the predicted peak
  was too high.
- ADAPT-4: ADAPT-2, ADAPT-3 and ADAPT-6 must be able to gain more in the steps that are left than the last planning took, and the
  run must still grant planning time (`engine.effort`).
- ADAPT-5: a new plan stays if it is faster and within the limit or, after ADAPT-1, if its peak is lower. Otherwise the earlier one
  comes back. It also comes back if the new one runs out of memory.
- ADAPT-6, costs: if the step without its waits differs from the sum of its ops by more than `tuning.SAME_COSTS`, plan with all ops
  slower or faster by that factor (`Machine.ops_scale`). A step that takes longer than its ops may have waited, at most for as long
  as its transfers took or as waiting was predicted: if that explains the difference, the costs stay. The factor is kept for the
  next run, even if ADAPT-4 allows no other plan. A step without a plan waits for nothing, and so tells the most (`whole_steps`).
No plan changes a result. Seconds are as noisy as the machine, so the fastest warm step counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from lms3d.engine import tuning
from lms3d.engine.cost import Machine
from lms3d.engine.effort import Account, RunLength
from lms3d.engine.plan import Plan
from lms3d.engine.prediction import Prediction
from lms3d.keras_step.adaptation_rules import COSTS, LINKS, MARGIN, PEAK, RULES, Change, Trial
from lms3d.keras_step.report import Round


@dataclass(frozen=True, kw_only=True)
class Learnt:
    """What the next run is told about a step (ADAPT-6): its seconds without swapping, or else `Machine.ops_scale`."""

    unplanned_seconds: float | None = None
    ops_scale: float | None = None


class Feedback:
    """The rounds of one step under one limit: `begin` each plan, `add` its steps; when it is `due`, `judge` and `propose`.

    changes: how often it may ask for another plan; with 0 it only keeps the record. run_steps: the steps of the whole run; None is
    unknown. account: what the plans of the run have cost, by the price list of `engine.effort`, even if they came from the cache.
    long_step_seconds: see `Trial`.
    """

    def __init__(
        self,
        limit_bytes: int,
        changes: int = tuning.MOST_CHANGES,
        run_steps: int | None = None,
        account: Account | None = None,
        long_step_seconds: float = tuning.LONG_STEP_SECONDS["CPU"],
    ) -> None:
        self.limit_bytes, self.changes_left, self.run_steps = limit_bytes, changes, run_steps
        self.account, self.long_step_seconds = account or Account(), long_step_seconds
        self.budget_bytes = limit_bytes  # of the present plan, or of the next one if there is none
        self.rounds: list[Round] = []
        self._reason = "first plan"
        self._now: Trial | None = None
        self._before: Trial | None = None  # the plan that `_now` has to beat
        self._spent: set[str] = set()
        self._judged = False

    @property
    def run(self) -> RunLength:
        """The run, and what its plans have cost so far."""
        return RunLength(self.run_steps, self.account.seconds)

    # -- the life of a plan --------------------------------------------------------------------------------------------

    def begin(
        self, number: int, plan: Plan, prediction: Prediction, machine: Machine, change: Change | None = None
    ) -> None:
        """Opens the round of a plan that is about to run: for a change that was proposed, or because there is no other plan."""
        budget = change.budget_bytes if change else self.budget_bytes
        self.rounds.append(
            Round(
                plan=number,
                reason=change.reason if change else self._reason,
                budget_bytes=budget,
                predicted_peak_bytes=prediction.predicted_peak_bytes,
                predicted_step_seconds=prediction.predicted_step_seconds,
                predicted_stall_seconds=prediction.predicted_stall_seconds,
            )
        )
        self.account.seconds += prediction.effort_seconds
        self._before = self._now if change else None
        self._now = Trial(number, plan, prediction, machine, budget, change, self.long_step_seconds)
        self._judged, self.budget_bytes = False, budget

    def add(self, row: Mapping[str, Any]) -> None:
        """Adds the figures of a step that has run: columns of `lms3d.keras_step.step_log`."""
        if self._now is not None and not self._now.complete:
            self._now.rows.append(row)
            self._note(self._now, **self._now.measured())

    def _note(self, trial: Trial, **figures: Any) -> None:
        """Notes figures in the round of a plan."""
        at = next(i for i, one in enumerate(self.rounds) if one.plan == trial.number)
        self.rounds[at] = replace(self.rounds[at], **figures)

    @property
    def due(self) -> bool:
        """Whether the present plan has run for long enough and has not been judged."""
        return self._now is not None and self._now.complete and not self._judged

    def judge(self) -> bool:
        """ADAPT-5: True if the present plan stays, False if the one before it has to come back."""
        new, old, self._judged = self._now, self._before, True
        assert new is not None, "due"
        self._note(new, outcome="kept")
        if old is None or new.change is None:
            return True
        within = new.peak_bytes <= max(self.limit_bytes, old.peak_bytes)
        lower = new.change.rule == PEAK and new.peak_bytes < old.peak_bytes
        if lower or (within and new.seconds < old.seconds):
            self._note(old, outcome=f"replaced by plan {new.number}")
            self._before = None
            return True
        why = "above the limit" if not within else "not lower" if new.change.rule == PEAK else "not faster"
        self._go_back(why)
        return False

    @property
    def ops_scale(self) -> float:
        """ADAPT-6: the factor that the steps of the plan in use have shown; 1 before there is a plan."""
        return 1.0 if self._now is None else self._now.ops_scale

    @property
    def learnt(self) -> Learnt | None:
        """ADAPT-6: what the plan in use has shown; None if it was planned with that already, or if its steps are too short."""
        now = self._now
        if now is None or not now.complete or now.run_seconds < self.long_step_seconds:
            return None
        if now.plan.empty:
            return Learnt(unplanned_seconds=now.run_seconds)
        return None if now.ops_scale == now.machine.ops_scale else Learnt(ops_scale=now.ops_scale)

    def ran_out_of_memory(self) -> bool:
        """Notes that the present plan ran out of memory. True if the one before it comes back, False if a tighter one is due."""
        assert self._now is not None, "something ran"
        self._spent.add(MARGIN)
        if self._before is not None:
            self._go_back("ran out of memory")
            return True
        self._note(self._now, outcome="ran out of memory")
        self._reason = f"plan {self._now.number} ran out of memory"
        self.budget_bytes = int(self.budget_bytes * tuning.TIGHTER)
        return False

    def _go_back(self, why: str) -> None:
        new, old = self._now, self._before
        assert new is not None, "something ran"
        assert old is not None, "there is a plan before it"
        assert new.change is not None, "it was made for a change"
        self._note(new, outcome=f"dropped: {why}")
        self._note(old, outcome="kept")
        self._spent.add(new.change.rule)
        self._now, self._before, self._judged = old, None, True
        self.budget_bytes = old.budget_bytes

    # -- the next plan -------------------------------------------------------------------------------------------------

    def propose(self, steps_left: int | None = None) -> Change | None:
        """The change that ADAPT-1 to ADAPT-4 ask for after the plan in use; None if they ask for none.

        steps_left: how many steps are to come; None is unknown, and counts as many.
        """
        now = self._now
        if now is None or not self.changes_left or not now.prediction.rewritten:
            return None
        for rule in RULES:
            change = rule(now, self.limit_bytes)
            if change is None or change.rule in self._spent or (change.rule != PEAK and not self._granted(now)):
                continue
            if steps_left is None or change.gain_seconds * steps_left > now.planning_seconds:
                self.changes_left -= 1
                return change
        return None

    def _granted(self, now: Trial) -> bool:
        return self.run.left(now.prediction.unedited_step_seconds) >= tuning.SMALLEST_SECONDS

    def reject(self, change: Change, plan: Plan, prediction: Prediction) -> str:
        """Why a plan that was made for a change need not run; empty if it should run."""
        assert self._now is not None, "a change was proposed"
        if plan == self._now.plan:
            return "the same plan again"
        # Predictions for other speeds do not compare: after ADAPT-2 and ADAPT-6 the step that was measured has to be beaten.
        now = self._now.seconds if change.rule in (LINKS, COSTS) else self._now.prediction.predicted_step_seconds
        slower = change.rule != PEAK and prediction.predicted_step_seconds >= now
        return "not predicted to be faster" if slower else ""

    def refuse(self, change: Change, why: str, prediction: Prediction | None = None) -> None:
        """Notes that a change came to nothing. prediction: that of the plan that was made for it, if one was."""
        self._spent.add(change.rule)
        self.account.seconds += prediction.effort_seconds if prediction else 0.0
        self.rounds.append(Round(reason=change.reason, budget_bytes=change.budget_bytes, outcome=f"dropped: {why}"))
