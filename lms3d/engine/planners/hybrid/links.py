"""The two links to and from the tier: when a transfer ends, and when it must begin. For plans without a schedule. No TensorFlow.

A schedule places transfers one after the other on two serial links (SCHEDULE-4). `Links` says where one more transfer would lie
among the transfers of a given schedule: exactly if it is one of these, otherwise approximately.
"""

from __future__ import annotations

import numpy as np

from lms3d.engine.cost import Machine
from lms3d.engine.step_model.decisions import Mode
from lms3d.engine.step_model.problem import Problem
from lms3d.engine.step_model.schedule import Copy


class Links:
    """The transfers of `copies`, whose events are the anchors of `problem`. Without copies both links are free."""

    def __init__(self, problem: Problem, machine: Machine, copies: list[Copy] | None = None) -> None:
        self.problem, self.machine, self.begins = problem, machine, problem.begins
        back = [c for c in copies or [] if c.mode is Mode.SWAP]
        swapped = {c.buffer for c in back}
        sizes = {problem.buffers[b].defined: 0 for b in swapped}
        for b in swapped:
            sizes[problem.buffers[b].defined] += problem.buffers[b].bytes
        self._defined = np.array(sorted(sizes), np.intp)
        self._free = _one_by_one(
            self.begins[self._defined + 1],
            np.array([sizes[d] for d in self._defined], float) / machine.swap_out_bytes_per_second,
        )
        reads = sorted((c.readers[0].anchor, c.bytes) for c in back if c.bytes)
        self._read = np.array([anchor for anchor, _ in reads], np.intp)
        # Backwards in time the link from the tier is a queue like the other.
        seconds = np.array([size for _, size in reads], float) / machine.swap_in_bytes_per_second
        self._issue = -_one_by_one(-self.begins[self._read][::-1], seconds[::-1])[::-1]

    def written(self, defined: int, seconds: float) -> float:
        """The time at which a swap-out of so many seconds is complete, of what anchor `defined` makes."""
        before = int(np.searchsorted(self._defined, defined)) - 1
        free = float(self._free[before]) if before >= 0 else 0.0
        return max(free, float(self.begins[defined + 1])) + seconds

    def first_after(self, time: float) -> int:
        """The first anchor that begins at a time or later; the last anchor if none does."""
        return min(int(np.searchsorted(self.begins[:-1], time)), len(self.begins) - 2)

    def issued(self, read: int, seconds: float) -> int:
        """The last anchor at which a swap-in of so many seconds can start and still be complete for anchor `read`."""
        after = int(np.searchsorted(self._read, read, side="right"))
        needed = float(self.begins[read])
        if after < len(self._issue):
            needed = min(needed, float(self._issue[after]))
        return max(int(np.searchsorted(self.begins, needed - seconds, side="right")) - 1, 0)


def _one_by_one(ready: np.ndarray, seconds: np.ndarray) -> np.ndarray:
    """The times at which a queue of transfers is complete: each begins when it is ready and the one before it is complete."""
    done = seconds.cumsum()
    return done + np.maximum.accumulate(ready - done + seconds) if len(done) else done
