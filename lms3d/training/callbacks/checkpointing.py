"""Saves a snapshot at the end of each epoch, and puts back what Keras resets when a resumed run begins."""

from __future__ import annotations

from typing import Any

from lms3d.ranks import variables
from lms3d.training import checkpoint
from lms3d.training.callbacks import order
from lms3d.training.callbacks.order import Place, TrainingCallback


class Checkpointing(TrainingCallback):
    """Saves the run together with the states of its callbacks."""

    place = Place.CHECKPOINT

    def on_train_begin(self, logs: Any = None) -> None:
        order.restore(self.run.callbacks, self.run.state.callbacks)  # undoes the reset that Keras callbacks do here

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        if self.run.unfinished:
            sums = variables.metric_variables(self.model)
            variables.assign(sums, self.run.unfinished, checkpoint.path_in(self.run.dir))
            self.run.unfinished = {}

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.run.update(callbacks=order.states(self.run.callbacks))
        self.run.save(self.model)
