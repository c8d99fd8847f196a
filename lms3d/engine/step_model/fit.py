"""Whether a schedule fits in a memory limit, and the smallest limit that it fits in. No TensorFlow here."""

from __future__ import annotations

from dataclasses import dataclass

from lms3d.device.pool_layout import FIRST_REGIONS_BYTES
from lms3d.engine.effort import Account
from lms3d.engine.step_model import allocator
from lms3d.engine.step_model.decisions import Choice
from lms3d.engine.step_model.problem import Problem
from lms3d.engine.step_model.schedule import Schedule
from lms3d.engine.tuning import ACCIDENT, RESERVE, RESERVE_IN_TURN, RESERVE_ON_GPU

_MOST_ACCIDENT_BYTES = 3 * allocator.MOST_WASTE


@dataclass(frozen=True)
class Solution:
    """What the planner found. `fits` is False where even the best plan does not fit in `limit_bytes`.

    peak_bytes: predicted peak; in a pool with the allocator's rounding, otherwise the sum of the live buffers.
    bound_seconds: no plan that fits can have a lower `schedule.cost_seconds`; 0 where unknown, or where this plan does not fit.
    """

    problem: Problem
    choices: dict[int, Choice]
    schedule: Schedule
    limit_bytes: int
    peak_bytes: int
    fits: bool
    bound_seconds: float = 0.0

    @property
    def lost_share(self) -> float:
        """Of the step where all is kept: what this plan costs more than the best there can be."""
        unplanned = float(self.problem.begins[-1])
        return (self.schedule.cost_seconds - max(unplanned, self.bound_seconds)) / unplanned if unplanned else 0.0


def usable_bytes(limit_bytes: int, pool: str = "none") -> int:
    """Bytes of a limit that a plan may use."""
    return int(limit_bytes * (1 - _reserve(pool)))


def _reserve(pool: str) -> float:
    """A GPU's pool has no room apart for crumbs, which come and go between the planned pieces."""
    return RESERVE_ON_GPU if pool == "single" else RESERVE


def _accident_bytes(problem: Problem) -> int:
    """Room for one accident of a step whose order nobody holds."""
    return min(int(ACCIDENT * max((b.bytes for b in problem.buffers), default=0)), _MOST_ACCIDENT_BYTES)


def check(
    problem: Problem,
    choices: dict[int, Choice],
    schedule: Schedule,
    limit_bytes: int,
    pool: str,
    account: Account | None = None,
) -> Solution:
    """Whether a schedule fits in a limit. account: pays for the replays."""
    usable = usable_bytes(limit_bytes, pool)
    if pool == "none" or schedule.peak_bytes > usable:
        return Solution(problem, choices, schedule, limit_bytes, schedule.peak_bytes, schedule.peak_bytes <= usable)
    # The order is held: the replay is exact to the piece, if the size of the pool is.
    placed = allocator.place(problem, schedule, limit_bytes, pool, margin=_reserve(pool))
    fits = placed.fits and placed.peak_bytes <= limit_bytes * (1 - RESERVE_IN_TURN)
    if account is not None:
        account.charge_replay(len(problem.anchors), len(schedule.copies), placed.replays)
    return Solution(problem, choices, schedule, limit_bytes, max(placed.peak_bytes, schedule.peak_bytes), fits)


def fits(solution: Solution, pool: str) -> bool:
    """True where a solution fits in its limit."""
    return check(solution.problem, solution.choices, solution.schedule, solution.limit_bytes, pool).fits


def needed_bytes(problem: Problem, schedule: Schedule, pool: str, *, planned: bool = True) -> int:
    """The smallest limit in bytes, a whole number of MiB, that a schedule fits in. planned: its order will be held."""
    # Plans cannot use the first regions of a CPU's pool; next to a small step they are not small.
    least = max(schedule.peak_bytes, 2 * FIRST_REGIONS_BYTES if pool == "split" else 1)
    accident = 0 if planned or pool == "none" else _accident_bytes(problem)
    for percent in range(100, 400):
        limit = -int(-((least * percent // 100 + accident) / (1 - _reserve(pool))) // (1 << 20)) * (1 << 20)
        if check(problem, {}, schedule, limit - accident, pool).fits:
            return limit
    raise AssertionError("a pool of four times the bytes must hold everything")


def working_set_bytes(problem: Problem) -> int:
    """A lower bound of every plan's peak: what the hungriest anchor reads and makes."""
    bytes_at = problem.base_bytes + problem.small_bytes + problem.workspace_bytes
    for buffer in problem.buffers:
        there: list[int] = []
        last = buffer.defined
        for read in buffer.reads:
            if buffer.mapped and buffer.swappable and read - last > 1:
                break  # from here on it may be read in the tier
            there, last = [*there, read], read
        bytes_at[[*{*there} - {buffer.defined}]] += buffer.bytes
        # An op that writes in place allocates nothing.
        bytes_at[buffer.defined] += 0 if buffer.overwrites else buffer.bytes
    return int(bytes_at.max(initial=problem.base_bytes))
