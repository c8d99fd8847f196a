"""Plans whose bytes fit, but not their pieces -> plans whose pieces fit. No TensorFlow here.

In a pool a tensor needs one free piece of its size. In most plans that are cheap by bytes alone, some tensors find none. Which ones
they are is chance: another choice for one buffer may put all that follow elsewhere. So many plans are tried, from several starts.

FRAGMENT-1  The plans in which the fewest bytes find no piece come first (`Pool.unplaced_bytes`).
FRAGMENT-2  At the event where the most bytes find no piece, any buffer that is live there but not used can be moved, as in PLAN-1.
            The best of these moves is made even if the bytes become more, since the next one may help; a choice that was given up
            is not made again at once. A plan that becomes dearer than the best one is dropped.
FRAGMENT-3  The cheapest plans that result are lightened (PLAN-3). The best of all takes over choices of the next ones,
            and of the cheaper plans without room.
FRAGMENT-4  Who tries often enough finds a plan that fits with the shifts that were tried alone. So it must fit with others, too
            (`Pool.steady`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from lms3d.engine.planners.hybrid import tuning
from lms3d.engine.planners.hybrid.descent import Draft, cost, total
from lms3d.engine.planners.hybrid.search import Search
from lms3d.engine.step_model import fit
from lms3d.engine.step_model.decisions import KEEP, Choice
from lms3d.engine.step_model.pool import Pool
from lms3d.engine.step_model.schedule import Schedule


class Pieces:
    """Finds room for plans in a pool under one limit. search: evaluates the plans, and pays for it."""

    def __init__(self, search: Search, limit_bytes: int, pool: Pool) -> None:
        self.search, self.limit_bytes, self.pool = search, limit_bytes, pool

    def good(self, plan: Draft) -> bool:
        """Whether a plan fits, pieces included (FRAGMENT-4)."""
        search, limit_bytes = self.search, self.limit_bytes
        checked = fit.check(search.problem, *plan, limit_bytes, self.pool, search.account)
        allowed = checked.fits and search.allowed(plan.choices)
        return allowed and self.pool.steady(search.problem, plan.schedule, limit_bytes, search.account)

    def excess(self, schedule: Schedule, enough: float = math.inf) -> np.ndarray:
        """The bytes that are too many at each event, as in `descent.Excess`."""
        search = self.search
        return self.pool.unplaced_bytes(
            search.problem, schedule, self.limit_bytes, lambda unplaced: total(unplaced) >= enough, search.account
        )

    def improved(self, best: Draft, plans: Iterable[Draft]) -> Draft:
        """The cheapest plan that results (FRAGMENT-1 to FRAGMENT-4), or `best`, which fits. plans: need not fit."""
        cheaper = [plan for plan in plans if cost(plan) < cost(best)]
        share = min(tuning.ROOM_SHARE / max(len(cheaper), 1), tuning.MOST_ROOM_SHARE)
        found: list[Draft] = []
        for plan in sorted(cheaper, key=lambda plan: total(self.excess(plan.schedule))):
            room = self._with_room(plan, min(cost(other)[0] for other in (best, *found)), share)
            found += [room] if room is not None and self.good(room) else []
        budget_bytes = self.pool.usable_bytes(self.limit_bytes)
        cheapest = sorted(found, key=cost)[: tuning.EXCHANGED_PLANS]
        lighter = (self.search.give_back(*plan, budget_bytes, self.good) for plan in cheapest)
        best, *others = sorted([best, *lighter], key=cost)
        goals = [plan for plan in sorted(cheaper, key=cost) if cost(plan) < cost(best)][: tuning.EXCHANGED_PLANS]
        return min([best, *self.search.nearest(best, [*goals, *others], budget_bytes, self.good)], key=cost)

    def _with_room(self, here: Draft, most_seconds: float, share: float) -> Draft | None:
        """The plan after FRAGMENT-2, at most `most_seconds` dear; None if the moves are not enough, or this share of the remaining
        effort."""
        search, barred = self.search, dict[tuple[int, Choice], int]()
        unplaced, last_seconds = self.excess(here.schedule), (1 - share) * search.seconds_left
        least, since = total(unplaced), 0
        for number in range(tuning.ROOM_MOVES):
            if not unplaced.any():
                return here
            if since > tuning.ROOM_PATIENCE or search.seconds_left < last_seconds:
                return None
            moves = [m for m in search.moves_at(here, int(unplaced.argmax())) if barred.get(m[1:], 0) <= number]
            best = search.best_of(here, total(unplaced), moves[: tuning.ROOM_TRIED], self.excess, most_seconds)
            if best is None:
                return None
            moved = best.move.buffer
            barred[moved, here.choices.get(moved, KEEP)] = number + tuning.ROOM_BARRED
            here, unplaced = best.plan, best.excess
            since = 0 if total(unplaced) < least else since + 1
            least = min(least, total(unplaced))
        return None
