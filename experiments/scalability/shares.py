"""The cost of a pass over data that the ranks do not divide: dealt out as fixed shares, and in one global order.

    fixed shares (case study)             one order (`lms3d.ranks.world.World.training_steps`)
    rank r owns subjects[r::N]            step k takes the next N*b samples of an endless stream of passes
    all take as many steps as the         an epoch border is only a place to validate: a step may hold samples of two
    fullest; others repeat or wait        passes, and none is repeated or left out

228 subjects on 16 ranks: a pass needs 14.25 steps; fixed shares take 15 (95 %); one order takes 14.25 of them on average.
No TensorFlow here.
"""

from __future__ import annotations

from dataclasses import dataclass

FIXED, ONE_ORDER = "fixed shares", "one order"


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


def fixed_shares(samples: int, ranks: int, batch: int = 1) -> PassAccount:
    """`subjects[rank::size]`: each rank takes as many steps as the one with the largest share."""
    fullest = -(-samples // ranks)
    steps = -(-fullest // batch)
    return PassAccount(distribution=FIXED, samples=samples, ranks=ranks, batch=batch, steps=steps)


def one_order(samples: int, ranks: int, batch: int = 1) -> PassAccount:
    """The stream: an epoch has the whole number of steps nearest to a pass, at least one."""
    steps = max(1, (2 * samples + ranks * batch) // (2 * ranks * batch))  # a half is rounded up
    return PassAccount(distribution=ONE_ORDER, samples=samples, ranks=ranks, batch=batch, steps=steps)
