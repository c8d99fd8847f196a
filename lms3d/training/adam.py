"""Adam whose moving average of the weights follows them closely at the start, when they change most."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops


class AveragingAdam(keras.optimizers.Adam):
    """Keras's Adam, whose average forgets faster at the start.

    After t changes of the weights the decay is min(`ema_momentum`, (1 + t) / (10 + t)), as in TensorFlow's
    `train.ExponentialMovingAverage` with `num_updates`. With a fixed decay of 0.98, a run of few steps, such as the last stage of a
    demonstration, would keep the weights that it began with.
    """

    @property
    def ema_momentum(self) -> Any:
        """The decay of the average in this step: a scalar tensor. Keras averages in every step, and changes the weights in one of
        `gradient_accumulation_steps`."""
        changes = ops.cast(self.iterations, "float32")
        decay = (1 + changes) / (10 + changes)
        return ops.minimum(self._largest, decay ** (1 / (self.gradient_accumulation_steps or 1)))

    @ema_momentum.setter
    def ema_momentum(self, value: float) -> None:
        self._largest = value

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {"ema_momentum": self._largest}
