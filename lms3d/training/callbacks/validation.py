"""Validates as the task does (`lms3d.training.validation`), between the last step of an epoch and everything that its end brings.

Keras validates before it calls any `on_epoch_end`. So does this callback, since only LMS stands before it. It calls the hooks of a
validation for each batch of the network, and LMS runs that as a step of `predict`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from lms3d.console import say
from lms3d.training.callbacks.order import Place, TrainingCallback
from lms3d.training.run import TrainingRun
from lms3d.training.validation import OwnValidation
from lms3d.units import format_seconds


class Validation(TrainingCallback):
    """Adds the scores to the logs, as `val_loss` and so on."""

    place, name = Place.VALIDATION, "validation"
    kept = ("own",)

    @classmethod
    def wanted(cls, run: TrainingRun) -> bool:
        return isinstance(run.data.validation, OwnValidation)

    def __init__(self, run: TrainingRun) -> None:
        super().__init__(run)
        self.own = True  # kept, so that a checkpoint tells how the epochs before it were validated
        self._batch, self._begin, self._told = 0, 0.0, False

    def on_train_begin(self, logs: Any = None) -> None:
        state = self.run.state
        if state.rows and self.name not in state.callbacks:
            say(
                "note: an earlier version validated this run in another way; the best epoch is chosen anew, from here on"
            )
            states = {name: _without_best(kept) for name, kept in state.callbacks.items()}
            self.run.update(best_loss=math.inf, callbacks={**states, self.name: {"own": True}})

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._begin = time.monotonic()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        trained = time.monotonic()
        scores = self._scores()
        if logs is not None:
            logs.update({f"val_{name}": value for name, value in scores.items()})
        self._tell(training_seconds=trained - self._begin, seconds=time.monotonic() - trained)

    def _tell(self, training_seconds: float, seconds: float) -> None:
        """Says, once, that validation takes longer than training, and what to do."""
        if seconds > training_seconds and not self._told:
            self._told = True
            say(
                f"note: validating took {format_seconds(seconds)}, longer than training, {format_seconds(training_seconds)}; "
                "--validation-steps N validates fewer cases"
            )

    def _scores(self) -> dict[str, float]:
        self._batch = 0
        self.model.make_predict_function()  # Keras's own, if no LMS puts another in its place
        self._call("on_test_begin")
        self._call("on_predict_begin")
        try:
            scores: dict[str, float] = self.run.data.validation.scores(self._predict)
        finally:
            self._call("on_predict_end")
        self._call("on_test_end")
        return scores

    def _predict(self, sample: np.ndarray) -> np.ndarray:
        """See `lms3d.training.validation.Predict`."""
        self._call("on_test_batch_begin", self._batch)
        said = np.asarray(self.model.predict_function([(sample[np.newaxis],)])[0], np.float32)
        self._call("on_test_batch_end", self._batch)
        self._batch += 1
        return said

    def _call(self, hook: str, *arguments: Any) -> None:
        for callback in self.run.callbacks:
            getattr(callback, hook)(*arguments)


def _without_best(kept: Mapping[str, Any]) -> dict[str, Any]:
    """The state of a callback that has not seen a validation loss yet."""
    return {**kept, "best": math.inf} if "best" in kept else dict(kept)
