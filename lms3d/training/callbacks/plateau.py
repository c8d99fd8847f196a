"""Keras's ReduceLROnPlateau and EarlyStopping on the validation loss, with a state that survives a resume."""

from __future__ import annotations

import keras

from lms3d.training.callbacks.order import Place, TrainingCallback
from lms3d.training.run import TrainingRun


class Plateau(TrainingCallback, keras.callbacks.ReduceLROnPlateau):
    """Lowers the learning rate when the validation loss no longer falls."""

    place, name = Place.PLATEAU, "plateau"
    kept = ("best", "wait", "cooldown_counter")

    @classmethod
    def wanted(cls, run: TrainingRun) -> bool:
        return run.schedule.decay == "plateau"

    def __init__(self, run: TrainingRun) -> None:
        self.run, schedule = run, run.schedule
        keras.callbacks.ReduceLROnPlateau.__init__(
            self, "val_loss", schedule.plateau_factor, schedule.plateau_patience, mode="min"
        )


class EarlyStopping(TrainingCallback, keras.callbacks.EarlyStopping):
    """Ends training when the validation loss has not fallen for a while."""

    place, name = Place.EARLY_STOPPING, "early_stopping"
    kept = ("best", "wait", "best_epoch", "stopped_epoch")

    def __init__(self, run: TrainingRun) -> None:
        self.run = run
        keras.callbacks.EarlyStopping.__init__(self, "val_loss", patience=run.schedule.patience, mode="min")
