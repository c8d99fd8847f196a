"""Callbacks of one session: progress at the terminal, a time guard, and a profile of chosen steps."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from lms3d.console import ProgressReport, say
from lms3d.training import demo
from lms3d.training.callbacks.order import Place
from lms3d.training.run import TrainingSchedule
from lms3d.training.run_state import Row, floats
from lms3d.units import format_seconds


class TimeGuard(keras.callbacks.Callback):
    """Ends training as soon as the time left does not suffice for another step and a validation. Checkpoint and figures follow.

    seconds: counted from now. validation_steps: the time of a validation, in training steps, until one is measured.
    """

    place = Place.TIME_GUARD
    name, kept = "time_guard", ("reached",)

    def __init__(self, seconds: float, validation_steps: float) -> None:
        super().__init__()
        self.deadline = time.monotonic() + seconds
        self.reached = False
        self._validation_steps = validation_steps
        self._validation_seconds: float | None = None
        self._steps, self._validations = 0, 0
        self._step_seconds: deque[float] = deque(maxlen=5)
        self._begin = 0.0

    @property
    def seconds_left(self) -> float:
        """The seconds that training may still take."""
        return max(self.deadline - time.monotonic(), 0.0)

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self._begin = time.monotonic()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._steps += 1
        if self._steps == 2:
            self._step_seconds.clear()  # the first was a guess
        self._step_seconds.append(self._seconds(self._steps))
        self._look()

    def on_test_begin(self, logs: Any = None) -> None:
        self._begin = time.monotonic()

    def on_test_end(self, logs: Any = None) -> None:
        self._validations += 1
        self._validation_seconds = self._seconds(self._validations)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._look()

    def _seconds(self, number: int) -> float:
        """The seconds of a step or a validation that has just ended, without the extra seconds of the first one."""
        longer = demo.FIRST_STEP_SECONDS if number == 1 else 0.0
        return max(time.monotonic() - self._begin - longer, 0.0)

    def _look(self) -> None:
        """Asks for the end if it is due."""
        step = min(self._step_seconds, default=0.0)
        validation = step * self._validation_steps if self._validation_seconds is None else self._validation_seconds
        if self.seconds_left <= step + validation:
            self.reached = True
            self.model.stop_training = True


class ProgressLines(keras.callbacks.Callback):
    """Shows a bar per epoch through `report`, with the metrics `shown`, and prints a line with the time left at the end of each."""

    place = Place.PROGRESS

    def __init__(
        self, report: ProgressReport, schedule: TrainingSchedule, guard: TimeGuard | None = None, *,
        shown: Sequence[str] = ("loss",),
    ) -> None:  # fmt: skip
        super().__init__()
        self.report, self.epochs, self.guard, self.shown = report, schedule.epochs, guard, shown
        self.steps, self.validation_steps = schedule.steps_per_epoch, schedule.validation_steps or 0
        self.epoch = 0
        self.done = 0
        self._note = ""
        self._epoch_seconds: list[float] = []
        self._begin = 0.0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.epoch, self._begin = epoch, time.monotonic()
        self.done = _steps_done(self)
        self._show("first step: tracing and planning" if not self._epoch_seconds else "")

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.done += 1
        self._show(_words({name: value for name, value in floats(logs).items() if name in self.shown}))

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        self.done += 1
        self._show(self._note)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._epoch_seconds.append(time.monotonic() - self._begin)
        left = self._seconds_left(epoch)
        line = f"{self._title(epoch)}  {_words(floats(logs))}  {format_seconds(self._epoch_seconds[-1])}"
        say(line + (f", at most {format_seconds(left)} left" if left else ""))

    def _title(self, epoch: int) -> str:
        return f"epoch {epoch + 1}" + ("" if self.guard else f"/{self.epochs}")

    def _seconds_left(self, epoch: int) -> float:
        if self.guard:
            return 0.0 if self.guard.reached else self.guard.seconds_left
        return (self.epochs - epoch - 1) * sum(self._epoch_seconds[-5:]) / len(self._epoch_seconds[-5:])

    def _show(self, note: str) -> None:
        self._note = note
        total = self.steps + self.validation_steps
        self.report(min(self.done, total), total, self._title(self.epoch), note)


class Profile(keras.callbacks.Callback):
    """Runs TensorFlow's profiler over the steps of `where` = (epoch, first, last), all counted from 1, for TensorBoard."""

    place = Place.PROFILE

    def __init__(self, where: tuple[int, int, int], folder: Path, steps_per_epoch: int) -> None:
        super().__init__()
        self.epoch, self.first, last = where
        self.last, self.folder, self.steps = min(last, steps_per_epoch), folder, steps_per_epoch
        self._active, self._running, self._step = False, False, 0
        self.reached = False
        """Whether it has begun."""

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._active = epoch + 1 == self.epoch
        self._step = _steps_done(self)

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self._step += 1
        if self._active and not self._running and self.first <= self._step <= self.last:
            tf.profiler.experimental.start(str(self.folder))
            self._running = self.reached = True

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if self._step == self.last:
            self._stop()

    def on_train_end(self, logs: Any = None) -> None:
        self._stop()  # training may end within the range

    def tell_if_missed(self, epochs: int) -> None:
        """Says so if training has ended, after so many epochs, before the profiler was to start."""
        if not self.reached:
            say(
                f"--profile: epoch {self.epoch}, step {self.first} was never reached; training ended after epoch {epochs}"
            )

    def _stop(self) -> None:
        if self._running:
            self._running = False
            tf.profiler.experimental.stop()


def _steps_done(callback: ProgressLines | Profile) -> int:
    """The steps of this epoch that were done before a resume: Keras runs only the missing ones."""
    steps = callback.params.get("steps")
    return callback.steps - (callback.steps if steps is None else int(steps))


def _words(row: Row) -> str:
    """The losses, then the metrics, in words; the learning rate is in history.csv."""
    names = sorted(row.keys() - {"learning_rate"}, key=lambda name: (not name.endswith("loss"), name))
    return "  ".join(f"{name} {row[name]:.4f}" for name in names)
