"""`--tracker`: the numbers of each epoch, on rank 0, to programs that show them (`lms3d.training.trackers`).

trackers.json in the run folder has the name by which each tracker knows the run, so that a resumed run continues there. A tracker
that is new to a resumed run gets its earlier epochs first.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial
from typing import Any

from lms3d import errors
from lms3d.atomic_files import write_json
from lms3d.common import json_values
from lms3d.keras_step.callback import LMS
from lms3d.training.callbacks.order import Place, TrainingCallback
from lms3d.training.run import TrainingRun
from lms3d.training.trackers import TRACKERS, TrackedRun, Tracker

FILE = "trackers.json"


class Tracking(TrainingCallback):
    """Begins with the first `fit` of a run and ends with the run."""

    place = Place.TRACKING

    @classmethod
    def wanted(cls, run: TrainingRun) -> bool:
        return run.world.is_chief

    def __init__(self, run: TrainingRun) -> None:
        super().__init__(run)
        self._trackers: dict[str, Tracker] = {}
        self._ids: dict[str, str] = {}  # what trackers.json holds
        self._begun = False

    def on_train_begin(self, logs: Any = None) -> None:
        if not self._begun:  # a resumed run may call `fit` twice
            self._begun, self._ids = True, self._earlier_ids()
            for name in self.run.job.trackers:
                self._or_without(name, partial(self._begin, name))

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        row = {**self.run.state.rows[-1], **self._figures()}
        for name, tracker in list(self._trackers.items()):
            self._or_without(name, partial(tracker.log, row))

    def on_run_end(self, error: BaseException | None) -> None:
        ending = "interrupted" if isinstance(error, KeyboardInterrupt) else "failed" if error else "finished"
        for name, tracker in list(self._trackers.items()):
            self._or_without(name, partial(tracker.close, ending))
        self._trackers = {}

    def _begin(self, name: str) -> None:
        run, job = self.run, self.run.job
        tracked = TrackedRun(folder=run.dir, name=job.name, options=job.options, id=self._ids.get(name, ""))
        tracker = self._trackers[name] = TRACKERS[name](tracked)
        if tracker.id and tracker.id != tracked.id:
            self._ids[name] = tracker.id
            write_json(run.dir / FILE, self._ids)
            for row in run.state.rows:
                tracker.log(row)

    def _earlier_ids(self) -> dict[str, str]:
        """The ids of a resumed run. A new run forgets the ids of a run that never finished an epoch in this folder."""
        run, path = self.run, self.run.dir / FILE
        content: Any = {}
        with contextlib.suppress(OSError, ValueError):  # without them, trackers begin a new run
            if run.job.resume or (run.memory is not None and run.memory.resuming):
                content = json_values.parse(path.read_text(encoding="utf-8"))
            else:
                path.unlink(missing_ok=True)
        return {name: id for name, id in content.items() if isinstance(id, str)} if isinstance(content, dict) else {}

    def _figures(self) -> dict[str, float]:
        """Peaks in bytes and the step in seconds, from the report on the training step so far. A figure that is not measured yet is
        left out."""
        report = next((one.report for one in self.run.callbacks if isinstance(one, LMS)), None)
        if report is None:
            return {}
        figures = {
            "peak_bytes": report.measured_peak_bytes,
            "predicted_peak_bytes": report.predicted_peak_bytes,
            "step_seconds": report.measured_step_seconds,
        }
        return {name: float(value) for name, value in figures.items() if value is not None}

    def _or_without(self, name: str, act: Callable[[], None]) -> None:
        """Trackers repeat history.csv: if one fails, training goes on without it."""
        try:
            act()
        except Exception as error:  # a foreign library, a network or a disk: anything may be raised
            self._trackers.pop(name, None)
            errors.say(f"--tracker {name}: {error or type(error).__name__}; training goes on without it")
