"""PLAN-1 and PLAN-2 of `local_search`: downhill from a plan above the budget, a move or a pair at a time. No TensorFlow here."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from lms3d.engine.cost import Machine
from lms3d.engine.effort import Account
from lms3d.engine.planners.hybrid import moves
from lms3d.engine.planners.hybrid.tuning import (
    LOWER_SHARE,
    PEAK_EVENTS,
    TRIED_FIRST,
    TRIED_MOVES,
    TRIED_SECOND,
    WORTHLESS_SHARE,
)
from lms3d.engine.step_model.decisions import Choice, Mode
from lms3d.engine.step_model.problem import Problem
from lms3d.engine.step_model.schedule import Schedule, build


class Draft(NamedTuple):
    """A plan that the search looks at."""

    choices: dict[int, Choice]
    schedule: Schedule


def cost(draft: Draft) -> tuple[float, int]:
    """What the search minimises: seconds, then bytes."""
    return draft.schedule.cost_seconds, draft.schedule.peak_bytes


Good = Callable[[Draft], bool]
"""A condition on plans, such as that they fit in the limit."""


def anything(_: Draft) -> bool:
    """The mildest `Good`."""
    return True


class Descent:
    """Evaluates plans and descends among them, until `seconds` of effort have been charged to the account (`effort`).

    least_bytes: no plan has a peak below this. most_swapped_bytes: that a plan may write to the tier per step; None: any number.
    """

    def __init__(
        self,
        problem: Problem,
        machine: Machine,
        seconds: float,
        *,
        least_bytes: int,
        most_swapped_bytes: int | None = None,
        account: Account | None = None,
    ) -> None:
        self.problem, self.machine, self.most_swapped_bytes = problem, machine, most_swapped_bytes
        self.account = account or Account()
        self._deadline = self.account.seconds + seconds
        self.evaluations = 0
        self.step_seconds = float(problem.seconds.sum())
        self.least_bytes = least_bytes
        self.visited: list[Draft] = []  # by descents

    @property
    def late(self) -> bool:
        """Whether the effort is used up."""
        return self.seconds_left < 0

    @property
    def seconds_left(self) -> float:
        return self._deadline - self.account.seconds

    def extend(self, seconds: float) -> None:
        """Grants `seconds` more of effort."""
        self._deadline += seconds

    def leave_at_least(self, seconds: float) -> None:
        """Makes sure that at least `seconds` of effort are left."""
        self._deadline = max(self._deadline, self.account.seconds + seconds)

    def build(self, choices: dict[int, Choice]) -> Draft:
        self.evaluations += 1
        schedule = build(self.problem, choices, self.machine)
        self.account.charge_schedule(len(self.problem.anchors), len(schedule.copies) - len(self.problem.buffers))
        return Draft(choices, schedule)

    def allowed(self, choices: dict[int, Choice]) -> bool:
        """Whether the choices swap no more than `most_swapped_bytes`."""
        if self.most_swapped_bytes is None:
            return True
        swapped = sum(self.problem.buffers[b].bytes for b, c in choices.items() if c.mode is Mode.SWAP)
        return swapped <= self.most_swapped_bytes

    def descend(
        self, choices: dict[int, Choice], schedule: Schedule, budget_bytes: int, *, kept: int = -1, rounds: int = 10**6
    ) -> Draft:
        """The first plan within the budget, else the lowest visited (PLAN-1, PLAN-2). kept: a buffer that must not move."""
        lowest = here = Draft(choices, schedule)
        if kept < 0:
            self.visited.append(here)
        reachable = max(budget_bytes, self.least_bytes)
        while self.problem.anchors and here.schedule.peak_bytes > reachable and rounds and not self.late:
            rounds -= 1
            lower = self._best_move(here, budget_bytes, kept) or (
                self._best_pair(here, budget_bytes) if kept < 0 else None
            )
            if lower is None:
                break
            here = lower
            if kept < 0:
                self.visited.append(here)
            if here.schedule.peak_bytes < lowest.schedule.peak_bytes:
                lowest = here
        return lowest

    def _best_move(self, here: Draft, budget_bytes: int, kept: int) -> Draft | None:
        """The plan after the best move (PLAN-1); None if no move lowers the excess."""
        goal_bytes = _goal_bytes(here.schedule, budget_bytes)
        before = _excess(here.schedule, goal_bytes)
        promising = sorted(self._moves(*here, kept), key=lambda m: -m.promise)
        # Copies of buffers that hardly wait come last: they gain little, and block better moves.
        usual: list[moves.Move] = []
        last: list[moves.Move] = []
        for move in promising:
            (last if move.buffer not in here.choices and move.choice.split == 1 else usual).append(move)
        batches = [group[i : i + TRIED_MOVES] for group in (usual, last) for i in range(0, len(group), TRIED_MOVES)]
        best, best_score = None, 0.0
        for batch in batches:
            for _, buffer, choice in batch:
                after = self.build({**here.choices, buffer: choice})
                gained = before - _excess(after.schedule, goal_bytes)
                added = max(after.schedule.cost_seconds - here.schedule.cost_seconds, 0.0)
                score = gained / (added + WORTHLESS_SHARE * self.step_seconds)
                if gained > 0 and score > best_score:
                    best, best_score = after, score
            if best is not None:
                break
        return best

    def _best_pair(self, here: Draft, budget_bytes: int) -> Draft | None:
        """The plan after the pair of moves that lowers the excess the most (PLAN-2)."""
        goal_bytes = _goal_bytes(here.schedule, budget_bytes)
        best, least = None, _excess(here.schedule, goal_bytes)
        firsts = [self.build({**here.choices, buffer: choice}) for _, buffer, choice in self._moves(*here, -1)]
        for first in sorted(firsts, key=lambda f: _excess(f.schedule, goal_bytes))[:TRIED_FIRST]:
            seconds = sorted(self._moves(*first, -1), key=lambda m: -m.promise)
            for _, buffer, choice in seconds[:TRIED_SECOND]:
                after = self.build({**first.choices, buffer: choice})
                if _excess(after.schedule, goal_bytes) < least:
                    best, least = after, _excess(after.schedule, goal_bytes)
        return best

    def _moves(self, choices: dict[int, Choice], schedule: Schedule, kept: int) -> Iterator[moves.Move]:
        """The allowed moves at the peak."""
        for move in moves.at_the_peak(self.problem, choices, schedule):
            swaps = move.choice.mode is Mode.SWAP
            if move.buffer != kept and (not swaps or self.allowed({**choices, move.buffer: move.choice})):
                yield move


def _goal_bytes(schedule: Schedule, budget_bytes: int) -> int:
    """The bytes that a round works towards: the budget, or a little less than the peak if the budget is 0."""
    return budget_bytes if budget_bytes > 0 else int(schedule.peak_bytes * LOWER_SHARE)


def _excess(schedule: Schedule, goal_bytes: int) -> float:
    """How far a schedule is above a goal: the area above it, plus the peak, which counts like `PEAK_EVENTS` events."""
    over = np.maximum(schedule.live_bytes - goal_bytes, 0)
    return float(over.sum() + PEAK_EVENTS * over.max())
