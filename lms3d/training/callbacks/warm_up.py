"""A learning rate that grows over the first epochs from that of one rank to that of all.

Linear scaling holds only once the weights have settled: Goyal et al., Accurate, Large Minibatch SGD (2017), section 2.2.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np


class WarmUp(keras.callbacks.Callback):
    """Sets the rate before each step of the first `epochs`: a function of the position, so that a resumed run agrees.

    rate: the full one, of `size` ranks; it starts at rate / size. position: gives (epoch, step) of the run.
    Stands after callbacks that lower the rate at the end of an epoch: what they do is kept as the factor `cut`.
    """

    def __init__(
        self, rate: float, size: int, epochs: int, steps_per_epoch: int, position: Callable[[], tuple[int, int]]
    ) -> None:
        super().__init__()
        self.rate, self.size, self.steps = rate, size, epochs * steps_per_epoch
        self.steps_per_epoch, self.position = steps_per_epoch, position
        self.cut = 1.0
        self._set: float | None = None

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        epoch, step = self.position()
        done = epoch * self.steps_per_epoch + step
        if done <= self.steps and self.steps:
            wanted = self.cut * self.rate_at(done)
            # Alone the rate does not grow: setting it anew would only round what others have set.
            if self.size > 1 or not np.isclose(self._now(), wanted, rtol=1e-5, atol=0):
                self.model.optimizer.learning_rate = wanted
            self._set = self._now()

    def take_up(self) -> None:
        """For an epoch whose end is due and whose steps an earlier run has made."""
        epoch, step = self.position()
        if epoch * self.steps_per_epoch + step - 1 <= self.steps and self.steps:
            self._set = self._now()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if self._set is not None and self._now() != self._set:
            self.cut *= self._now() / self._set
        self._set = None

    def rate_at(self, step: int) -> float:
        """Learning rate of a step, counted from 0 over all epochs."""
        grown = min(1.0, step / self.steps)
        return self.rate * (1 + (self.size - 1) * grown) / self.size

    def _now(self) -> float:
        return float(np.asarray(self.model.optimizer.learning_rate))
