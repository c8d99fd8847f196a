"""How a device hands out its memory, and what that means for a memory limit. No TensorFlow here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from lms3d.device.pool_layout import FIRST_REGIONS_BYTES, MOST_WASTE_BYTES
from lms3d.engine.effort import Account
from lms3d.engine.ir import StepGraph
from lms3d.engine.step_model import replay
from lms3d.engine.step_model.allocator import CPU_REGIONS, GPU_REGIONS, LIMITED_GPU_REGIONS, PoolRegions
from lms3d.engine.step_model.problem import Problem
from lms3d.engine.step_model.replay import Placement
from lms3d.engine.step_model.schedule import Schedule
from lms3d.engine.step_model.simulate import SimulatedStep
from lms3d.engine.tuning import ACCIDENT, RESERVE, RESERVE_IN_TURN, RESERVE_ON_GPU

_MIB = 1 << 20
_MOST_ACCIDENT_BYTES = 3 * MOST_WASTE_BYTES


@dataclass(frozen=True)
class Pool:
    """A device's memory. name: of these alone, in keys and messages.

    regions: how the pool is laid out; None: memory comes from the system, and only the sum of bytes counts. reserve: the share of
    a limit that no plan may use. on_host: ops and batches of a CPU come at any time, and the gaps between its weights are never
    quite as predicted. least_bytes: no limit is smaller than this.
    """

    name: str
    regions: PoolRegions | None = field(repr=False)
    reserve: float = field(repr=False)
    on_host: bool = field(repr=False)
    least_bytes: int = field(default=1, repr=False)

    @property
    def in_pieces(self) -> bool:
        """Whether each tensor needs a free piece of its size."""
        return self.regions is not None

    @property
    def limited_cpu(self) -> bool:
        """Whether this is a CPU's pool under a hard limit."""
        return self.in_pieces and self.on_host

    def usable_bytes(self, limit_bytes: int) -> int:
        """The bytes of a limit that a plan may use."""
        return int(limit_bytes * (1 - self.reserve))

    def place(
        self, problem: Problem, schedule: Schedule, limit_bytes: int, account: Account | None = None
    ) -> Placement:
        """Whether a schedule, whose order a plan holds, fits in a limit, and its peak. account: pays for the replays."""
        usable = self.usable_bytes(limit_bytes)
        if self.regions is None or schedule.peak_bytes > usable:
            return Placement(schedule.peak_bytes <= usable, schedule.peak_bytes)
        # A replay in the planned order is exact to the piece, if the size of the pool is.
        placed = replay.place(problem, schedule, limit_bytes, self.regions, margin=self.reserve, account=account)
        fits = placed.fits and placed.peak_bytes <= limit_bytes * (1 - RESERVE_IN_TURN)
        return Placement(fits, max(placed.peak_bytes, schedule.peak_bytes))

    def unplaced_bytes(
        self,
        problem: Problem,
        schedule: Schedule,
        limit_bytes: int,
        enough: Callable[[np.ndarray], bool] = lambda _: False,
        account: Account | None = None,
    ) -> np.ndarray:
        """The bytes that are too many at each event for a schedule to fit in a limit: int64, shape (events,). All 0 if `place` says
        that it fits.

        In a pool, the bytes that find no piece count in each replay, until they are `enough`. account: pays for the replays.
        """
        above: np.ndarray = np.maximum(schedule.live_bytes - self.usable_bytes(limit_bytes), 0)
        if self.regions is None or enough(above):
            return above
        most_bytes = int(limit_bytes * (1 - RESERVE_IN_TURN))
        for unplaced in replay.unplaced_bytes(
            problem, schedule, limit_bytes, self.regions, most_bytes=most_bytes, margin=self.reserve, account=account
        ):
            above = above + unplaced
            if enough(above):
                break
        return above

    def steady(self, problem: Problem, schedule: Schedule, limit_bytes: int, account: Account | None = None) -> bool:
        """Whether a schedule that fits in a limit also fits with shifts that `place` does not try."""
        return self.regions is None or replay.steady(problem, schedule, limit_bytes, self.regions, account)

    def place_simulated(self, graph: StepGraph, run: SimulatedStep, limit_bytes: int) -> Placement:
        """Whether a simulated step of `graph` fits in a limit, and its peak."""
        usable = self.usable_bytes(limit_bytes)
        if self.regions is None or run.peak_bytes > usable:
            return Placement(run.peak_bytes <= usable, run.peak_bytes)
        # What is wasted depends on the size of the pool. The times of copies, and so the order of changes, are not exact either.
        tight, placed = (
            replay.replay_changes(run.changes, graph.resident_bytes, size, self.regions)
            for size in (usable, limit_bytes)
        )
        return Placement(tight.fits, max(tight.peak_bytes, placed.peak_bytes, run.peak_bytes))

    def fits(self, problem: Problem, schedule: Schedule, limit_bytes: int, account: Account | None = None) -> bool:
        """Whether a schedule fits in a limit. account: pays for the replays."""
        return self.place(problem, schedule, limit_bytes, account).fits

    def needed_bytes(self, problem: Problem, schedule: Schedule, *, planned: bool = True) -> int:
        """The smallest limit, a whole number of MiB, that a schedule fits in. planned: a plan will hold its order."""
        least = max(schedule.peak_bytes, self.least_bytes)
        accident = _accident_bytes(problem) if self.in_pieces and not planned else 0
        for percent in range(100, 400):
            limit = -int(-((least * percent // 100 + accident) / (1 - self.reserve)) // _MIB) * _MIB
            if self.fits(problem, schedule, limit - accident):
                return limit
        raise AssertionError("a pool of four times the bytes must hold everything")


def _accident_bytes(problem: Problem) -> int:
    """Room for one accident of fragmentation in a step whose order no plan holds."""
    return min(int(ACCIDENT * max((b.bytes for b in problem.buffers), default=0)), _MOST_ACCIDENT_BYTES)


NO_POOL = Pool("none", None, RESERVE, on_host=True)
GPU_POOL = Pool("single", GPU_REGIONS, RESERVE_ON_GPU, on_host=False)  # crumbs come and go between the planned pieces
# Plans cannot use the first regions of a CPU's pool; beside a small step they are not small.
CPU_POOL = Pool("split", CPU_REGIONS, RESERVE, on_host=True, least_bytes=2 * FIRST_REGIONS_BYTES)
LIMITED_GPU_POOL = Pool("close", LIMITED_GPU_REGIONS, RESERVE_ON_GPU, on_host=False)
POOLS = {pool.name: pool for pool in (NO_POOL, GPU_POOL, LIMITED_GPU_POOL, CPU_POOL)}
