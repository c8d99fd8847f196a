"""A schedule beside a memory limit: whether it fits, and what no schedule can go below. No TensorFlow here."""

from __future__ import annotations

from dataclasses import dataclass

from lms3d.engine.effort import Account
from lms3d.engine.step_model.decisions import Choice
from lms3d.engine.step_model.pool import Pool
from lms3d.engine.step_model.problem import Problem
from lms3d.engine.step_model.schedule import Schedule


@dataclass(frozen=True)
class Solution:
    """Choices, their schedule, and whether that fits in `limit_bytes`. A search without success ends with one that does not fit.

    peak_bytes: the predicted peak; in a pool with the allocator's rounding, otherwise the sum of the live buffers.
    bound_seconds: no plan that fits can have a lower `schedule.cost_seconds`; 0 if that is unknown, or if this plan does not fit.
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
        """What this plan costs more than the best plan there can be, as a share of the step that keeps everything."""
        unplanned = float(self.problem.begins[-1])
        return (self.schedule.cost_seconds - max(unplanned, self.bound_seconds)) / unplanned if unplanned else 0.0


def check(
    problem: Problem,
    choices: dict[int, Choice],
    schedule: Schedule,
    limit_bytes: int,
    pool: Pool,
    account: Account | None = None,
) -> Solution:
    """The solution that a schedule is for a limit. account: pays for the replays."""
    placed = pool.place(problem, schedule, limit_bytes, account)
    return Solution(problem, choices, schedule, limit_bytes, placed.peak_bytes, placed.fits)


def working_set_bytes(problem: Problem) -> int:
    """A lower bound of every plan's peak: what the hungriest anchor reads and makes."""
    bytes_at = problem.base_bytes + problem.small_bytes + problem.workspace_bytes
    for buffer in problem.buffers:
        on_device: list[int] = []
        last = buffer.defined
        for read in buffer.reads:
            if buffer.mapped and buffer.swappable and read - last > 1:
                break  # from here on it may be read in the tier
            on_device, last = [*on_device, read], read
        bytes_at[[*{*on_device} - {buffer.defined}]] += buffer.bytes
        # An op that writes in place allocates nothing.
        bytes_at[buffer.defined] += 0 if buffer.overwrites else buffer.bytes
    return int(bytes_at.max(initial=problem.base_bytes))
