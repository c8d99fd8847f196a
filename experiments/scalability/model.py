"""How long N ranks take: step time x contention x waiting for the slowest rank, plus communication that is not hidden.

step(N) = t1 * contention(ranks on a node) * (1 + cv * m(N)) + max(0, all-reduce(N) - overlap * backward share * t1)
pass over the data = step(N) * steps per pass (`shares`)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lms3d.experiments.scalability import shares
from lms3d.experiments.scalability.communication import RingLink, expected_maximum, hierarchical_seconds

STRONG, WEAK = "strong", "weak"


@dataclass(frozen=True, kw_only=True)
class ModelledJob:
    """What is trained."""

    name: str
    samples: int
    """Samples of a pass over the training data."""

    batch: int = 1
    """Samples of a step on each rank."""

    step_seconds: float
    """The step of one rank alone."""

    gradient_bytes: int
    overlap: float = 0.0
    """The share of the backward pass during which gradients are sent; 0: one reduction at its end, as in lms3d."""

    backward_share: float = 2 / 3
    """The backward pass as a share of a step: it has twice the operations of the forward pass."""


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """The machines that it is trained on."""

    name: str
    ranks_per_node: int
    local: RingLink
    """The link between ranks of a node."""

    network: RingLink
    """The link between nodes, which all ranks of a node share."""

    contention: tuple[tuple[int, float], ...] = ((1, 1.0),)
    """(ranks on a node, step time relative to one alone), without communication; linear in between."""

    cv: float = 0.0
    """Coefficient of variation of step times over the ranks."""


@dataclass(frozen=True, kw_only=True)
class RankTimes:
    """The times for one number of ranks."""

    scaling: str
    ranks: int
    account: shares.PassAccount
    step_seconds: float
    single_step_seconds: float
    contention: float
    straggler: float
    communication_seconds: float
    """All communication, hidden or not."""

    exposed_seconds: float

    @property
    def pass_seconds(self) -> float:
        """Strong: of one pass over the data. Weak: of as many steps as one rank has in a pass."""
        steps = self.account.steps_per_pass if self.scaling == STRONG else self.account.needed_steps * self.ranks
        return self.step_seconds * steps

    @property
    def efficiency(self) -> float:
        """Samples that the pass needs, per second and rank, relative to one rank alone."""
        used = self.account.efficiency if self.scaling == STRONG else 1.0
        return used * self.single_step_seconds / self.step_seconds

    @property
    def speed_up(self) -> float:
        return self.ranks * self.efficiency


def predict(
    job: ModelledJob, machine: Cluster, ranks: int, *, scaling: str = STRONG, distribution: str = shares.ONE_ORDER
) -> RankTimes:
    """`ranks` fill one node after another."""
    deal = shares.fixed_shares if distribution == shares.FIXED else shares.one_order
    inside = min(ranks, machine.ranks_per_node)
    known, slower = zip(*machine.contention, strict=True)
    contention = float(np.interp(inside, np.asarray(known, dtype=float), np.asarray(slower, dtype=float)))
    straggler = 1 + machine.cv * expected_maximum(ranks)
    whole = hierarchical_seconds(ranks, machine.ranks_per_node, job.gradient_bytes, machine.local, machine.network)
    exposed = max(0.0, whole - job.overlap * job.backward_share * job.step_seconds)
    return RankTimes(
        scaling=scaling, ranks=ranks, account=deal(job.samples, ranks, job.batch), single_step_seconds=job.step_seconds,
        step_seconds=job.step_seconds * contention * straggler + exposed, contention=contention, straggler=straggler,
        communication_seconds=whole, exposed_seconds=exposed,
    )  # fmt: skip
