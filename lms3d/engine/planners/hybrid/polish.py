"""The last changes to a plan of the covering program: slabs together, then one by one. No TensorFlow here.

The program prices a transfer by its bytes. If the links are busy, the step waits, and a recomputed tensor is cheaper than the
program believes. A schedule knows what a plan really takes, so each change is judged by one.

POLISH-1  The slabs of one tensor that leave for the tier are recomputed instead, all of them at once: a single slab saves little,
          since its neighbours come back for the same reads. Tensors of the most bytes come first, again and again until none is
          left that makes the step cheaper within the budget. What a chain needs, and nobody reads any longer, is recomputed for it.
POLISH-2  Then each buffer is given back if that is cheaper (PLAN-3).
POLISH-3  A plan whose step hardly waits for the links is left alone, as is a plan whose tensors are read in the tier: there the
          program's prices are right.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from lms3d.engine.cost import Machine
from lms3d.engine.effort import Account
from lms3d.engine.ir import producer_name
from lms3d.engine.planners.hybrid.candidates import segments
from lms3d.engine.planners.hybrid.descent import Draft, cost
from lms3d.engine.planners.hybrid.remat import Chains, for_others_alone
from lms3d.engine.planners.hybrid.search import Search
from lms3d.engine.planners.hybrid.tuning import HARDLY_WAITS, POLISH_SECONDS
from lms3d.engine.step_model.decisions import KEEP, Choice, Mode
from lms3d.engine.step_model.problem import Problem


class Polish:
    """Polishes plans of one problem. account: pays for it."""

    def __init__(self, problem: Problem, machine: Machine, account: Account) -> None:
        self.problem, self.machine, self.account = problem, machine, account
        self.chains = Chains(problem, machine)
        self.together = _slabs_of_one_tensor(problem)

    def __call__(self, plan: Draft, budget_bytes: int) -> Draft:
        """A plan that is no dearer, within the budget; or the plan itself, if it is above."""
        schedule = plan.schedule
        waits = schedule.stall_seconds > HARDLY_WAITS * schedule.seconds
        if self.machine.mapped or not waits or schedule.peak_bytes > budget_bytes:
            return plan
        search = Search(self.problem, self.machine, POLISH_SECONDS, account=self.account)
        improved = True
        while improved:
            plan, improved = self._recomputed_together(search, plan, budget_bytes)
        return search.give_back(*plan, budget_bytes)

    def _recomputed_together(self, search: Search, here: Draft, budget_bytes: int) -> tuple[Draft, bool]:
        """The plan after one pass over all tensors (POLISH-1), and whether it is cheaper."""
        before = here
        for slabs in self.together:
            if all(here.choices.get(b, KEEP).mode is not Mode.SWAP for b in slabs):
                continue
            for choices in self._recomputed(slabs):
                if search.late:
                    return here, False
                after = search.build(self._with_chains(here.choices, choices))
                if after.schedule.peak_bytes <= budget_bytes and cost(after) < cost(here):
                    here = after
        return here, here is not before

    def _recomputed(self, slabs: list[int]) -> Iterator[dict[int, Choice]]:
        """Choices that recompute all slabs: cut at their first far gap, and at their longest one."""
        possible = {b: choices for b in slabs if (choices := list(self.chains.choices(b)))}
        for cut in range(max(map(len, possible.values()), default=0)):
            yield {b: choices[min(cut, len(choices) - 1)] for b, choices in possible.items()}

    def _with_chains(self, choices: dict[int, Choice], recomputed: dict[int, Choice]) -> dict[int, Choice]:
        """The choices with some recomputed, and with the parents that nobody reads any longer at that time."""
        after, buffers = {**choices, **recomputed}, self.problem.buffers
        waiting = [(b, start) for b in recomputed for start, _ in segments(buffers[b], after[b])[1:]]
        while waiting:
            b, anchor = waiting.pop()
            for parent in buffers[b].parents:
                gone = not buffers[parent].returned and max(buffers[parent].reads, default=0) < anchor
                if gone and parent not in after and buffers[parent].recomputable:
                    after[parent] = for_others_alone(buffers[parent])
                    waiting.append((parent, anchor))
        return after


def _slabs_of_one_tensor(problem: Problem) -> list[list[int]]:
    """The buffers that slices of one op make, or a whole op; the most bytes first."""
    made: dict[tuple[str, str], list[int]] = defaultdict(list)
    for b, buffer in enumerate(problem.buffers):
        op = problem.graph.by_name[producer_name(buffer.root)]
        made[op.group or op.name, op.type].append(b)
    return sorted(made.values(), key=lambda slabs: -sum(problem.buffers[b].bytes for b in slabs))
