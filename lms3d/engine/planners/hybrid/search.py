"""Moves from plan to plan under a memory limit: PLAN-1 to PLAN-4 of `local_search`. No TensorFlow here."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from lms3d.engine.cost import Machine
from lms3d.engine.effort import Account
from lms3d.engine.planners.hybrid import moves
from lms3d.engine.planners.hybrid.descent import Descent, Draft, Good, anything, cost
from lms3d.engine.planners.hybrid.tuning import EXCHANGED, REPAIRS
from lms3d.engine.step_model.decisions import KEEP, Choice, Mode
from lms3d.engine.step_model.fit import working_set_bytes
from lms3d.engine.step_model.problem import Problem
from lms3d.engine.step_model.schedule import Schedule


class Search(Descent):
    """PLAN-1 to PLAN-4. good_enough: the search ends with a plan that costs at most this share of the step more than no plan."""

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
        """Two plans in which all that can move leaves at once and returns at the last moment. Few plans have a smaller peak."""
        buffers = self.problem.buffers
        for first, second in (
            (moves.TIGHT_SWAP, moves.TIGHT_RECOMPUTE),
            (moves.TIGHT_RECOMPUTE, moves.TIGHT_SWAP),
        ):
            able = {Mode.SWAP: [b.swappable for b in buffers], Mode.RECOMPUTE: [b.recomputable for b in buffers]}
            yield {
                b: first if able[first.mode][b] else second
                for b in range(len(buffers))
                if able[first.mode][b] or able[second.mode][b]
            }

    def fewest_moved(self, good: Good) -> Draft | None:
        """A rough plan at a low price: the fewest moves of a fixed order that are enough, by bisection. None if not even all are.

        The first of `moves.orders` is tried, and, if it is not enough, once more with tight moves. If that plan is not settled, it
        is compared with the plans of the other orders.
        """
        first, *others = moves.orders(self.problem, self.machine)
        best = self._bisected(first, good)
        if best is None:
            best = self._bisected([(b, moves.tighter(choice)) for b, choice in first], good)
        if best is None or not self.settled(best):
            rough = [best, *(self._bisected(order, good) for order in others)]
            best = min((plan for plan in rough if plan is not None), key=cost, default=None)
        return best

    def settled(self, draft: Draft) -> bool:
        """Whether a plan costs so little more than the unplanned step that no search is worth its time (EFFORT-5)."""
        return draft.schedule.cost_seconds <= (1 + self.good_enough) * self.step_seconds

    def _bisected(self, order: list[tuple[int, Choice]], good: Good) -> Draft | None:
        """The shortest good prefix of `order`, if longer ones are good, too."""
        best, too_few, enough = None, 0, len(order)
        while too_few < enough and not self.late:
            half = (too_few + enough) // 2
            draft = self.build(dict(order[: half + 1]))
            if good(draft):
                best, enough = draft, half
            else:
                too_few = half + 1
        return best

    def give_back(
        self, choices: dict[int, Choice], schedule: Schedule, budget_bytes: int, good: Good = anything
    ) -> Draft:
        """The plan without moves and copies that are not needed (PLAN-3). good: what a plan must be besides within the budget."""
        here = Draft(choices, schedule)
        for b, choice in self._dearest_first(choices):
            for easier in (*moves.easier(choice), *moves.shared(here.schedule, b, choice)):
                if self.late:
                    return here
                after = self.build(moves.changed(here.choices, b, easier))
                cheaper = after.schedule.cost_seconds <= here.schedule.cost_seconds
                if cheaper and after.schedule.peak_bytes <= budget_bytes and good(after):
                    here = after
                    break
        return here

    def nearest(self, bottom: Draft, goals: list[Draft], budget_bytes: int, good: Good) -> list[Draft]:
        """The plans from `bottom`, which is good, towards each goal, as far as they stay good; the cheapest first."""
        near = [self._towards(bottom, goal, budget_bytes, good) for goal in goals] or [bottom]
        return sorted((self.give_back(*plan, budget_bytes, good) for plan in near), key=cost)

    def _towards(self, here: Draft, goal: Draft, budget_bytes: int, good: Good) -> Draft:
        """Takes over the goal's choices: all at once, and, if the plan is not good then, each half of them."""
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

    def exchange(
        self,
        choices: dict[int, Choice],
        schedule: Schedule,
        budget_bytes: int,
        good: Good,
        evaluations: int = EXCHANGED,
    ) -> Draft:
        """The plan after exchanges (PLAN-4), within so many evaluations. good: as in `give_back`."""
        here, improved = Draft(choices, schedule), True
        last = self.evaluations + evaluations
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

    def _exchanged(self, here: Draft, b: int, other: Choice, budget_bytes: int, good: Good) -> Draft | None:
        """The plan with another choice for `b`, repaired and lightened; None if it is not better."""
        after = self.build(moves.changed(here.choices, b, other))
        added = b not in here.choices
        if not self.allowed(after.choices) or (cost(after) >= cost(here) and not added):
            return None  # a repair only adds cost; a further move may pay when others are given back
        after = self.descend(*after, budget_bytes, kept=b, rounds=REPAIRS)
        if after.schedule.peak_bytes > budget_bytes or (cost(after) >= cost(here) and not added):
            return None
        lighter = self.give_back(*after, budget_bytes)
        return next((plan for plan in (lighter, after) if cost(plan) < cost(here) and good(plan)), None)

    def _dearest_first(self, choices: dict[int, Choice]) -> list[tuple[int, Choice]]:
        def price(b: int, choice: Choice) -> float:
            buffer = self.problem.buffers[b]
            moved = buffer.bytes / self.machine.swap_out_bytes_per_second + len(choice.recompute_at) * buffer.seconds
            return buffer.seconds if choice.mode is Mode.RECOMPUTE else moved

        return sorted(choices.items(), key=lambda item: price(*item), reverse=True)


def cheap(machine: Machine) -> Machine:
    """The same machine, with transfers at the lowest price."""
    return replace(machine, swap_share=0.0)
