"""A learning rate that falls along half a cosine to a small share of itself (Loshchilov and Hutter, SGDR, ICLR 2017)."""

from __future__ import annotations

import math
from typing import Any

from lms3d.training.callbacks.order import Place, TrainingCallback
from lms3d.training.callbacks.warm_up import warmed
from lms3d.training.run import TrainingRun
from lms3d.training.run_state import learning_rate

LAST_SHARE = 0.01
"""The share of the rate that is left in the last step."""


class Cosine(TrainingCallback):
    """Sets the rate before each step, warm-up included. It depends on the position alone, so a resumed run takes the same rates."""

    place = Place.COSINE

    @classmethod
    def wanted(cls, run: TrainingRun) -> bool:
        return run.schedule.decay == "cosine"

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        run, schedule = self.run, self.run.schedule
        step = run.state.position.epoch * schedule.steps_per_epoch + run.state.position.step
        rate = warmed(run.full_rate, run.world.size, step, schedule.warmup_epochs * schedule.steps_per_epoch)
        self.model.optimizer.learning_rate = rate * share(step, schedule.epochs * schedule.steps_per_epoch)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        if logs is not None:
            logs["learning_rate"] = learning_rate(self.model)


def share(step: int, steps: int) -> float:
    """The share of the full rate in step `step` of `steps`: from 1 down to LAST_SHARE."""
    fallen = min(1.0, step / max(1, steps - 1))
    return LAST_SHARE + (1 - LAST_SHARE) * (1 + math.cos(math.pi * fallen)) / 2
