"""How long N ranks take: step time x contention x waiting for the slowest rank, plus communication that is not hidden.

step(N) = t1 * contention(ranks on a node) * (1 + cv * m(N)) + max(0, all-reduce(N) - overlap * backward share * t1)
pass over the data = step(N) * steps per pass

1. Ring all-reduce over n members of B bytes: 2 (n-1)/n * B / bandwidth + 2 (n-1) * latency. Every member sends and receives
   n-1 parts of B/n twice: reduce-scatter, then all-gather (Patarasuk and Yuan, J. Parallel Distrib. Comput. 69, 2009).
2. Hierarchical: reduce-scatter and all-gather within each node over its own links, and a ring over the nodes in between.
   The ranks of a node share its network port, so all B bytes pass through it.
3. Ranks in step wait for the slowest: with step times that are normal and independent, N ranks take
   mean * (1 + cv * m(N)), m(N) the expected maximum of N standard normals (0 for one, 1.03 for 4, 3.25 for 1024).
4. Data that the ranks do not divide:

    fixed shares (case study)             one order (`lms3d.ranks.world.World.training_steps`)
    rank r owns subjects[r::N]            step k takes the next N*b samples of an endless stream of passes
    all take as many steps as the         an epoch border is only a place to validate: a step may hold samples of two
    fullest; others repeat or wait        passes, and none is repeated or left out

228 subjects on 16 ranks: a pass needs 14.25 steps; fixed shares take 15 (95 %); one order takes 14.25 of them on average.
No TensorFlow here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from lms3d.ranks.world import World

STRONG, WEAK = "strong", "weak"
FIXED, ONE_ORDER = "fixed shares", "one order"


@dataclass(frozen=True, kw_only=True)
class RingLink:
    """The connection between two neighbours of a ring."""

    bytes_per_second: float
    """The rate in one direction."""

    latency_seconds: float
    """The seconds of one step of the ring for any number of bytes: network, and starting the transfer."""

    at_least: bool = False
    """Whether the bandwidth is only known to be no less."""


def ring_seconds(members: int, size_bytes: float, link: RingLink) -> float:
    """Rule 1."""
    share = 2 * (members - 1) / members
    return share * size_bytes / link.bytes_per_second + 2 * (members - 1) * link.latency_seconds


def hierarchical_seconds(
    ranks: int, ranks_per_node: int, size_bytes: float, local: RingLink, network: RingLink
) -> float:
    """Rule 2; within one node a plain ring."""
    nodes = -(-ranks // ranks_per_node)
    inside = ring_seconds(min(ranks, ranks_per_node), size_bytes, local)
    return inside + ring_seconds(nodes, size_bytes, network)


def fit_link(members: int, sizes_bytes: Sequence[float], seconds: Sequence[float]) -> RingLink:
    """The link that explains measured all-reduces best: rule 1, by least squares of the relative errors.

    If other work hides what the bytes cost (large all-reduces took no longer than small ones), the bandwidth is the highest that
    was seen, and at least that. ValueError with fewer than two sizes or members.
    """
    if members < 2 or len(set(sizes_bytes)) < 2:
        raise ValueError(f"{members} members, {len(set(sizes_bytes))} sizes: expected at least two of both")
    measured = np.asarray(seconds, dtype=float)
    per_byte, per_step = 2 * (members - 1) / members, 2 * (members - 1)
    terms = np.stack([per_byte * np.asarray(sizes_bytes, dtype=float), np.full(len(measured), float(per_step))], axis=1)
    inverse_bandwidth, latency = np.linalg.lstsq(terms / measured[:, None], np.ones(len(measured)), rcond=None)[0]
    if hidden := inverse_bandwidth <= 0:
        inverse_bandwidth = 1 / np.max(terms[:, 0] / measured)
        each = terms[:, 1] / measured
        latency = np.sum(each) / np.sum(each**2)
    return RingLink(
        bytes_per_second=1 / float(inverse_bandwidth),
        latency_seconds=max(float(latency), 0.0),
        at_least=bool(hidden),
    )


@cache
def expected_maximum(members: int) -> float:
    """Rule 3: m(N), the integral of (1 - F^N) above zero and -F^N below it, F the normal distribution function."""
    x, distribution = _normal()
    power = distribution**members
    return float(np.sum(np.where(x > 0, 1 - power, -power)) * (x[1] - x[0]))


@cache
def _normal() -> tuple[np.ndarray, np.ndarray]:
    """The middles of 4000 intervals over -8..8, and F at each."""
    x = np.linspace(-8, 8, 4001)[:-1] + 0.002
    return x, np.array([0.5 * math.erfc(-value / math.sqrt(2)) for value in x])


@dataclass(frozen=True, kw_only=True)
class PassAccount:
    """The steps of an epoch as the program counts it."""

    distribution: str
    samples: int
    """Samples of a pass over the data."""

    ranks: int
    batch: int
    """Samples of a step on each rank."""

    steps: int
    """Steps of a counted epoch."""

    @property
    def needed_steps(self) -> float:
        """Steps that a pass would take if everything divided."""
        return self.samples / (self.ranks * self.batch)

    @property
    def steps_per_pass(self) -> float:
        """Steps that a pass takes, on average over many."""
        return float(self.steps) if self.distribution == FIXED else self.needed_steps

    @property
    def efficiency(self) -> float:
        """The share of the samples in these steps that belong to the pass: efficiency by samples per second."""
        return self.needed_steps / self.steps_per_pass

    @property
    def passes_per_epoch(self) -> float:
        """Epochs of the stream in a counted epoch: 14 steps of 16 samples are 0.982 passes over 228."""
        return 1.0 if self.distribution == FIXED else self.steps / self.needed_steps


def account(samples: int, ranks: int, batch: int = 1, distribution: str = ONE_ORDER) -> PassAccount:
    """Rule 4. Fixed shares: as many steps as the rank with the largest share takes. One order: the whole number nearest to a pass,
    at least one."""
    world = World(size=ranks)
    counted = world.validation_steps if distribution == FIXED else world.training_steps
    return PassAccount(
        distribution=distribution, samples=samples, ranks=ranks, batch=batch, steps=counted(samples, batch)
    )


@dataclass(frozen=True, kw_only=True)
class ModelledJob:
    """The training that is modelled."""

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
    account: PassAccount
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
    job: ModelledJob, machine: Cluster, ranks: int, *, scaling: str = STRONG, distribution: str = ONE_ORDER
) -> RankTimes:
    """`ranks` fill one node after another."""
    inside = min(ranks, machine.ranks_per_node)
    known, slower = zip(*machine.contention, strict=True)
    contention = float(np.interp(inside, np.asarray(known, dtype=float), np.asarray(slower, dtype=float)))
    straggler = 1 + machine.cv * expected_maximum(ranks)
    whole = hierarchical_seconds(ranks, machine.ranks_per_node, job.gradient_bytes, machine.local, machine.network)
    exposed = max(0.0, whole - job.overlap * job.backward_share * job.step_seconds)
    return RankTimes(
        scaling=scaling, ranks=ranks, account=account(job.samples, ranks, job.batch, distribution),
        single_step_seconds=job.step_seconds, step_seconds=job.step_seconds * contention * straggler + exposed,
        contention=contention, straggler=straggler, communication_seconds=whole, exposed_seconds=exposed,
    )  # fmt: skip
