"""Moves from plan to plan under a memory limit: PLAN-1 to PLAN-4 of `planner`. No TensorFlow here."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from lms3d.engine.cost import Machine
from lms3d.engine.effort import Account
from lms3d.engine.planners.hybrid import moves
from lms3d.engine.planners.hybrid.descent import Candidate, Descent, Good, anything, cost
from lms3d.engine.step_model.decisions import KEEP, Choice, Mode
from lms3d.engine.step_model.fit import working_set_bytes
from lms3d.engine.step_model.problem import Problem
from lms3d.engine.step_model.schedule import Schedule
from lms3d.engine.tuning import EXCHANGED, REPAIRS


class Search(Descent):
    """PLAN-1 to PLAN-4. good_enough: a plan that costs this share of the step more than the unplanned one ends the search."""

    def __init__(
        self,
        problem: Problem,
        machine: Machine,
        seconds: float,
        most_swapped_bytes: int | None = None,
        account: Account | None = None,
        good_enough: float = 0.0,
    ) -> None:
        self.good_enough = good_enough
        least = working_set_bytes(problem)
        super().__init__(
            problem, machine, seconds, least_bytes=least, most_swapped_bytes=most_swapped_bytes, account=account
        )

    def everything_moved(self) -> Iterator[dict[int, Choice]]:
        """All that can move leaves at once and returns at the last moment: few plans have a smaller peak."""
        buffers = self.problem.buffers
        for first, second in ((moves.TIGHT, moves.TIGHT_AGAIN), (moves.TIGHT_AGAIN, moves.TIGHT)):
            able = {Mode.SWAP: [b.swappable for b in buffers], Mode.RECOMPUTE: [b.recomputable for b in buffers]}
            yield {
                b: first if able[first.mode][b] else second
                for b in range(len(buffers))
                if able[first.mode][b] or able[second.mode][b]
            }

    def fewest_moved(self, good: Good) -> Candidate | None:
        """The fewest moves of a fixed order that are enough, found by bisection: a rough plan at a low price.

        The first of `moves.orders`; where it is not enough its moves are made tight. Where that plan is not settled, it is compared
        with those of the other orders. None where nothing is enough.
        """
        first, *others = moves.orders(self.problem, self.machine)
        found = self._bisected(first, good)
        if found is None:
            found = self._bisected([(b, moves.tighter(choice)) for b, choice in first], good)
        if found is None or not self.settled(found):
            rough = [found, *(self._bisected(order, good) for order in others)]
            found = min((plan for plan in rough if plan is not None), key=cost, default=None)
        return found

    def settled(self, found: Candidate) -> bool:
        """Whether a plan costs so little more than the unplanned step that no search is worth its time (EFFORT-5)."""
        return found.schedule.cost_seconds <= (1 + self.good_enough) * self.step_seconds

    def _bisected(self, order: list[tuple[int, Choice]], good: Good) -> Candidate | None:
        """The shortest good prefix of `order`, if longer ones are good, too."""
        best, too_few, enough = None, 0, len(order)
        while too_few < enough and not self.late:
            half = (too_few + enough) // 2
            found = self.build(dict(order[: half + 1]))
            if good(found):
                best, enough = found, half
            else:
                too_few = half + 1
        return best

    def give_back(
        self, choices: dict[int, Choice], schedule: Schedule, budget_bytes: int, good: Good = anything
    ) -> Candidate:
        """PLAN-3. good: what a plan must be besides low enough."""
        here = Candidate(choices, schedule)
        for b, choice in self._dearest_first(choices):
            for easier in moves.easier(choice):
                if self.late:
                    return here
                after = self.build(moves.changed(here.choices, b, easier))
                cheaper = after.schedule.cost_seconds <= here.schedule.cost_seconds
                if cheaper and after.schedule.peak_bytes <= budget_bytes and good(after):
                    here = after
                    break
        return here

    def nearest(self, bottom: Candidate, goals: list[Candidate], budget_bytes: int, good: Good) -> list[Candidate]:
        """From `bottom`, which is good, towards each goal as far as plans stay good; the cheapest first."""
        near = [self._towards(bottom, goal, budget_bytes, good) for goal in goals] or [bottom]
        return sorted((self.give_back(*f, budget_bytes, good) for f in near), key=cost)

    def _towards(self, here: Candidate, goal: Candidate, budget_bytes: int, good: Good) -> Candidate:
        """Takes over the goal's choices, all at once, and where that is not good, each half of them."""
        either = self._dearest_first({**goal.choices, **here.choices})
        differing = [b for b, _ in either if here.choices.get(b) != goal.choices.get(b)]
        groups = [differing]
        while groups and not self.late:
            group = groups.pop()
            choices = here.choices
            for b in group:
                choices = moves.changed(choices, b, goal.choices.get(b, KEEP))
            after = self.build(choices)
            cheaper = self.allowed(choices) and cost(after) <= cost(here)
            if cheaper and after.schedule.peak_bytes <= budget_bytes and good(after):
                here = after
            elif len(group) > 1:
                half = len(group) // 2
                groups += [group[half:], group[:half]]
        return here

    def exchange(self, choices: dict[int, Choice], schedule: Schedule, budget_bytes: int, good: Good) -> Candidate:
        """PLAN-4. good: as in `give_back`."""
        here, improved = Candidate(choices, schedule), True
        last = self.evaluations + EXCHANGED
        while improved:
            improved = False
            kept = [(b, KEEP) for b in self.problem.youngest_first if b not in here.choices]
            for b, choice in self._dearest_first(here.choices) + kept:
                for other in (
                    moves.others(self.problem, here.schedule, b, choice) if here.choices.get(b, KEEP) == choice else ()
                ):
                    if self.evaluations > last or self.late or self.settled(here):
                        return here
                    better = self._exchanged(here, b, other, budget_bytes, good)
                    if better is not None:
                        here, improved = better, True
                        break
        return here

    def _exchanged(self, here: Candidate, b: int, other: Choice, budget_bytes: int, good: Good) -> Candidate | None:
        """The plan with another choice for `b`, repaired and lightened; None where it is not better."""
        after = self.build(moves.changed(here.choices, b, other))
        added = b not in here.choices
        if not self.allowed(after.choices) or (cost(after) >= cost(here) and not added):
            return None  # a repair only adds cost; a further move may pay when others are given back
        after = self.descend(*after, budget_bytes, kept=b, rounds=REPAIRS)
        if after.schedule.peak_bytes > budget_bytes or (cost(after) >= cost(here) and not added):
            return None
        lighter = self.give_back(*after, budget_bytes)
        return next((f for f in (lighter, after) if cost(f) < cost(here) and good(f)), None)

    def _dearest_first(self, choices: dict[int, Choice]) -> list[tuple[int, Choice]]:
        def price(b: int, choice: Choice) -> float:
            buffer = self.problem.buffers[b]
            moved = buffer.bytes / self.machine.swap_out_bytes_per_second + len(choice.again) * buffer.seconds
            return buffer.seconds if choice.mode is Mode.RECOMPUTE else moved

        return sorted(choices.items(), key=lambda item: price(*item), reverse=True)


def cheap(machine: Machine) -> Machine:
    """The same machine, with transfers at the least price."""
    return replace(machine, swap_share=0.0)
