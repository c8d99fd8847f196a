"""Validates an exponential moving average of the weights, and saves it as best.keras (Polyak and Juditsky 1992; `--ema`).

Keras's optimiser keeps the average (`use_ema`) among its own variables, so a checkpoint has it. This callback exchanges weights and
average from the beginning of a validation to the end of the epoch. A checkpoint always holds the weights themselves.

    step .. step -> [exchange] -> validate -> history, best.keras -> [exchange] -> checkpoint -> step ..
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lms3d.training.callbacks.order import Place, TrainingCallback
from lms3d.training.run import TrainingRun

_AVERAGE = "_average"  # the end of the optimiser's names for its averages


class AveragedWeights(TrainingCallback):
    """Does nothing if the optimiser keeps no average."""

    place = Place.AVERAGED_WEIGHTS

    def __init__(self, run: TrainingRun) -> None:
        super().__init__(run)
        self._exchanged = False
        run.before_saving = self._put_back

    def on_train_begin(self, logs: Any = None) -> None:
        if self._averages:  # Keras would leave the average in the model whenever `fit` ends, a resumed epoch included
            self.model.optimizer.finalize_variable_values = lambda _: None

    def on_test_begin(self, logs: Any = None) -> None:
        if self._averages and not self._exchanged:
            self._exchange()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._put_back()

    def _put_back(self) -> None:
        if self._exchanged:
            self._exchange()

    def _exchange(self) -> None:
        for weight, average in zip(self.model.trainable_variables, self._averages, strict=True):
            before = np.asarray(weight).copy()
            weight.assign(average)
            average.assign(before)
        self._exchanged = not self._exchanged

    @property
    def _averages(self) -> list[Any]:
        """The optimiser's averages, one for each trainable variable; [] if it keeps none."""
        optimizer = getattr(self.model.optimizer, "inner_optimizer", self.model.optimizer)
        if not getattr(optimizer, "use_ema", False):
            return []
        return [variable for variable in optimizer.variables if variable.name.endswith(_AVERAGE)]
