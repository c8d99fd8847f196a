"""The losses and metrics of all ranks together."""

from __future__ import annotations

from typing import Any

from lms3d.training.callbacks.order import Place, TrainingCallback
from lms3d.training.run_state import floats


class RankMean(TrainingCallback):
    """Replaces each rank's losses and metrics of an epoch by their mean over the ranks."""

    place = Place.RANK_MEAN

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        world, values = self.run.world, floats(logs)
        if world.size == 1 or logs is None:
            return
        validated = {name: value for name, value in values.items() if name.startswith("val_")}
        trained = {name: value for name, value in values.items() if name not in validated}
        logs.update(world.mean(trained))
        logs.update(world.mean(validated, self.run.data.validation_weight))
