"""The position of the run, counted step by step."""

from __future__ import annotations

from typing import Any

from lms3d.training.callbacks.order import Place, TrainingCallback
from lms3d.training.run_state import Position, floats


class StepCounter(TrainingCallback):
    """Counts steps and samples, and keeps the logs of the last step."""

    place = Place.STEP_COUNTER

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        state = self.run.state
        position = Position(state.position.epoch, state.position.step + 1)
        self.run.update(position=position, samples=state.samples + state.samples_per_step)
        self.run.logs = floats(logs)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.run.update(position=Position(epoch + 1))
