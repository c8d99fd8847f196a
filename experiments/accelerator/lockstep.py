"""Trainings that warm up side by side and take their timed steps in turn: cores trace and plan at once, the device is needed for
seconds. No TensorFlow here.

    first    | start | trace, measure ops on a quiet device | plan, warm up | wait | timed steps | end
    others   | start | wait                                 | trace, plan, warm up | wait       | timed steps, in turn | end

LOCK-1  The first ones measure one after the other, and no other takes a step before they have: the others read from the cache
        what these find.
LOCK-2  None takes a timed step before all are warm or have ended.
LOCK-3  One at a time takes timed steps.

LOCK-4  When a share of the time is over, a part that is not warm is ended. On an H200 timed steps beside three trainings that still
        planned and warmed up took two to three times as long.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any

from lms3d.experiments.harness.bench import Trainer
from lms3d.experiments.harness.part import StudyPart

FIRST_SHARE, WARM_SHARE = 0.5, 0.8
"""Shares of the group's time: after the first the others no longer wait, after the second a part that is not warm is ended. Not
measured."""


class Lockstep:
    """A group. first: its parts that measure before the others begin. deadline: of `time.monotonic`."""

    def __init__(
        self, group: Sequence[StudyPart], first: Collection[StudyPart] = (), deadline: float = math.inf
    ) -> None:
        self._measuring = [part.name for part in first]
        self._cold = {part.name for part in group}
        self._began, self._seconds = time.monotonic(), deadline - time.monotonic()
        self._changed, self._turn = threading.Condition(), threading.Lock()
        self._holder = ""
        self._children: dict[str, Trainer] = {}

    def of(self, child: Trainer, part: StudyPart) -> Trainer:
        """The child, which keeps to the rules of the group from here on."""
        self._children[part.name] = child
        return _InLockstep(child, part, self)

    def measured(self, part: StudyPart) -> None:
        """Notes that the part has measured what its plan needs, or has nothing to measure."""
        with self._changed:
            if part.name in self._measuring:
                self._measuring.remove(part.name)
            self._changed.notify_all()

    def wait_for_first(self, part: StudyPart) -> None:
        """LOCK-1."""
        self._wait(lambda: self._measuring[:1] in ([], [part.name]), FIRST_SHARE)

    def take_turn(self, part: StudyPart) -> None:
        """LOCK-2, LOCK-3. The part is warm."""
        self._warm(part)
        self._wait(lambda: not self._cold, WARM_SHARE)
        for name in self._cold & self._children.keys():  # LOCK-4
            self._children[name].kill()
        self._turn.acquire()
        self._holder = part.name

    def leave(self, part: StudyPart) -> None:
        """Notes that the part no longer needs the device, however it ended. A second call changes nothing."""
        self._warm(part)
        if self._holder == part.name:
            self._holder = ""
            self._turn.release()

    def _warm(self, part: StudyPart) -> None:
        self.measured(part)
        with self._changed:
            self._cold.discard(part.name)
            self._changed.notify_all()

    def _wait(self, over: Callable[[], bool], share: float) -> None:
        left = self._began + share * self._seconds - time.monotonic()
        with self._changed:
            self._changed.wait_for(over, None if math.isinf(left) else max(0.0, left))


class _InLockstep:
    """A child of a group."""

    def __init__(self, child: Trainer, part: StudyPart, group: Lockstep) -> None:
        self._child, self._part, self._group = child, part, group
        self._steps, self.ready, self.when_measured = 0, child.ready, child.when_measured
        child.when_measured = lambda: group.measured(part)

    def step(self) -> dict[str, Any]:
        if self._steps == 0:
            self._group.wait_for_first(self._part)
        if self._steps == self._part.warm_up:
            self._group.take_turn(self._part)
        self._steps += 1
        return self._child.step()

    def finish(self) -> dict[str, Any]:
        """Ends the child. It leaves the group first: reading a profile and giving back memory need no quiet device."""
        self._group.leave(self._part)
        return self._child.finish()

    def kill(self) -> None:
        self._child.kill()
