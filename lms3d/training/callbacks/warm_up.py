"""A learning rate that grows over the first epochs from the rate of one rank to that of all ranks.

Linear scaling holds only once the weights have settled: Goyal et al., Accurate, Large Minibatch SGD (2017), section 2.2.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lms3d.training.callbacks.order import Place, TrainingCallback
from lms3d.training.run import TrainingRun
from lms3d.training.run_state import learning_rate


class WarmUp(TrainingCallback):
    """Sets the rate before each step. It depends on the position, so a resumed run takes the same rates.

    cut: the factor by which other callbacks (a plateau, a schedule) have changed the rate; the warm-up keeps it.
    """

    place, name = Place.WARM_UP, "warm_up"
    kept = ("cut",)

    @classmethod
    def wanted(cls, run: TrainingRun) -> bool:
        """Not for a cosine, which has a warm-up of its own."""
        return run.schedule.decay == "plateau"

    def __init__(self, run: TrainingRun) -> None:
        super().__init__(run)
        self.steps = run.schedule.warmup_epochs * run.schedule.steps_per_epoch
        self.cut = 1.0
        self._set: float | None = None  # the rate seen last: if it is another one now, another callback has changed it

    def on_train_begin(self, logs: Any = None) -> None:
        self._set = learning_rate(self.model)

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        if not self._warming_up:
            return
        self._take_over()
        wanted = self.cut * self.rate_at(self._done)
        # On one rank the rate does not grow: setting it would only round what others have set.
        if self.run.world.size > 1 or not np.isclose(learning_rate(self.model), wanted, rtol=1e-5, atol=0):
            self.model.optimizer.learning_rate = wanted
        self._set = learning_rate(self.model)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if self._warming_up:
            self._take_over()

    def _take_over(self) -> None:
        """Takes over what other callbacks have done to the rate since."""
        now = learning_rate(self.model)
        if self._set is not None and now != self._set:
            self.cut *= now / self._set
        self._set = now

    @property
    def _warming_up(self) -> bool:
        return 0 < self.steps >= self._done

    def rate_at(self, step: int) -> float:
        """The learning rate of a step, counted from 0 over all epochs."""
        return warmed(self.run.full_rate, self.run.world.size, step, self.steps)

    @property
    def _done(self) -> int:
        position = self.run.state.position
        return position.epoch * self.run.schedule.steps_per_epoch + position.step


def warmed(full_rate: float, size: int, step: int, steps: int) -> float:
    """The rate of a step, counted from 0, on `size` ranks: over `steps` steps it grows from that of one rank to `full_rate`."""
    grown = min(1.0, step / steps) if steps else 1.0
    return full_rate * (1 + (size - 1) * grown) / size
