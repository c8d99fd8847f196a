"""PLAN-1 and PLAN-2 of `local_search`: downhill from a plan above the budget, a move or a pair at a time. No TensorFlow here."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, Protocol

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


class Excess(Protocol):
    """The bytes that are too many at each event of a schedule: shape (events,). It may count less if it is sure that the `total` is
    `enough` or more."""

    def __call__(self, schedule: Schedule, enough: float = math.inf) -> np.ndarray: ...


class Tried(NamedTuple):
    """A plan after a move, and its excess. score: bytes of excess gained for each second; not above 0 if it gains none."""

    score: float
    move: moves.Move
    plan: Draft
    excess: np.ndarray


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
            excess = _above(here.schedule, budget_bytes)
            lower = self._best_move(here, excess, kept) or (self._best_pair(here, excess) if kept < 0 else None)
            if lower is None:
                break
            here = lower
            if kept < 0:
                self.visited.append(here)
            if here.schedule.peak_bytes < lowest.schedule.peak_bytes:
                lowest = here
        return lowest

    def _best_move(self, here: Draft, excess: Excess, kept: int = -1) -> Draft | None:
        """The plan after the best move at the event with the largest excess (PLAN-1); None if no move lowers it."""
        at_each = excess(here.schedule)
        promising = self.moves_at(here, int(at_each.argmax()), kept)
        # Copies of buffers that hardly wait come last: they gain little, and block better moves.
        usual: list[moves.Move] = []
        last: list[moves.Move] = []
        for move in promising:
            (last if move.buffer not in here.choices and move.choice.split == 1 else usual).append(move)
        batches = [group[i : i + TRIED_MOVES] for group in (usual, last) for i in range(0, len(group), TRIED_MOVES)]
        for batch in batches:
            best = self.best_of(here, total(at_each), batch, excess)
            if best is not None and best.score > 0:
                return best.plan
        return None

    def best_of(
        self, here: Draft, before: float, tried: Iterable[moves.Move], excess: Excess, most_seconds: float = math.inf
    ) -> Tried | None:
        """The move with the best score of those whose plans cost at most `most_seconds`. before: the total excess of `here`."""
        best: Tried | None = None
        for move in tried:
            after = self.build({**here.choices, move.buffer: move.choice})
            if after.schedule.cost_seconds > most_seconds:
                continue
            added = max(after.schedule.cost_seconds - here.schedule.cost_seconds, 0.0)
            price = added + WORTHLESS_SHARE * self.step_seconds
            at_each = excess(after.schedule, math.inf if best is None else _most_total(before, best.score, price))
            score = _score(before - total(at_each), price)
            if best is None or score > best.score:
                best = Tried(score, move, after, at_each)
        return best

    def _best_pair(self, here: Draft, excess: Excess) -> Draft | None:
        """The plan after the pair of moves that lowers the excess the most (PLAN-2)."""

        def above(draft: Draft) -> float:
            return total(excess(draft.schedule))

        best, least = None, above(here)
        event = int(excess(here.schedule).argmax())
        firsts = [self.build({**here.choices, buffer: choice}) for _, buffer, choice in self._moves(here, event, -1)]
        for first in sorted(firsts, key=above)[:TRIED_FIRST]:
            seconds = self.moves_at(first, int(excess(first.schedule).argmax()))
            for _, buffer, choice in seconds[:TRIED_SECOND]:
                after = self.build({**first.choices, buffer: choice})
                if above(after) < least:
                    best, least = after, above(after)
        return best

    def moves_at(self, here: Draft, event: int, kept: int = -1) -> list[moves.Move]:
        """The allowed moves at an event, the most promising first. kept: a buffer that must not move."""
        return sorted(self._moves(here, event, kept), key=lambda move: -move.promise)

    def _moves(self, here: Draft, event: int, kept: int) -> Iterator[moves.Move]:
        choices, schedule = here
        for move in moves.at_event(self.problem, choices, schedule, event):
            swaps = move.choice.mode is Mode.SWAP
            if move.buffer != kept and (not swaps or self.allowed({**choices, move.buffer: move.choice})):
                yield move


def _above(schedule: Schedule, budget_bytes: int) -> Excess:
    """The bytes above what a round works towards: the budget, or a little less than the peak if the budget is 0."""
    goal_bytes = budget_bytes if budget_bytes > 0 else int(schedule.peak_bytes * LOWER_SHARE)

    def excess(schedule: Schedule, enough: float = math.inf) -> np.ndarray:
        above: np.ndarray = np.maximum(schedule.live_bytes - goal_bytes, 0)
        return above

    return excess


def _score(gained: float, price: float) -> float:
    return gained / price if gained > 0 else gained * price


def _most_total(before: float, score: float, price: float) -> float:
    """The total excess from which on a move has a lower score."""
    return before - (score * price if score > 0 else score / price)


def total(excess: np.ndarray) -> float:
    """One figure for the excess at all events: its sum, plus the highest, which counts like `PEAK_EVENTS` events."""
    return float(excess.sum() + PEAK_EVENTS * excess.max(initial=0))
