"""Seconds of work on a device that runs behind the host: a GPU, whose kernels are enqueued and waited for. No TensorFlow here.

QUEUE-1  Work is enqueued many times before one wait, so that the device is busy without a gap. If the host cannot enqueue as fast
         as the device works, launching is what the work costs.
QUEUE-2  Two runs of different lengths are compared: (t(many) - t(few)) / (many - few). Costs that each run has once, such as the
         first launch and the wait, drop out and need not be measured.
QUEUE-3  The fastest run of each length counts, since noise only adds.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from lms3d.engine import tuning


def seconds_each(
    start: Callable[[], object], wait: Callable[[], object], *, clock: Callable[[], float] = time.perf_counter
) -> float:
    """The seconds of one `start()` among many. start: enqueues the work once. wait: returns when the device has done all of it."""
    start()  # compiles, allocates, and lets cuDNN choose an algorithm

    def run(times: int) -> float:
        wait()
        begun = clock()
        for _ in range(times):
            start()
        wait()
        return clock() - begun

    many, spent = _enough(run)
    few = max(1, many // tuning.QUEUED_RATIO)
    short, long = math.inf, math.inf
    for _ in range(tuning.QUEUED_ROUNDS):
        runs = run(few), run(many)
        short, long, spent = min(short, runs[0]), min(long, runs[1]), spent + sum(runs)
        if spent > tuning.QUEUED_SECONDS:
            break
    return difference(few, short, many, long)


def difference(few: int, few_seconds: float, many: int, many_seconds: float) -> float:
    """The seconds of one piece of work, from two runs of `few` < `many` pieces (QUEUE-2).

    They are at most the piece's share of the longer run. If noise made the shorter run take as long, they are this share: no work
    takes no time.
    """
    share = many_seconds / many
    found = (many_seconds - few_seconds) / (many - few)
    return min(found, share) if found > 0 else share


def _enough(run: Callable[[int], float]) -> tuple[int, float]:
    """The number of pieces of work in a long run (QUEUE-1), and the seconds that it took to find out."""
    many, spent = 2, 0.0
    while True:
        seconds = run(many)
        spent += seconds
        if seconds >= tuning.QUEUED_RUN_SECONDS or many >= tuning.QUEUED_CALLS:
            return many, spent
        wanted = math.ceil(many * tuning.QUEUED_RUN_SECONDS / max(seconds, 1e-9))
        many = min(tuning.QUEUED_CALLS, max(2 * many, wanted))
