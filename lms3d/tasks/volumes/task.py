"""What tasks on volumes have in common: how a task is asked for its data, and how large its demonstration may be."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

from lms3d.console import ProgressReport
from lms3d.ranks.world import World
from lms3d.tasks.task import Task, TrainedRun
from lms3d.tasks.volumes.options import VolumeConfig
from lms3d.training import demo

if TYPE_CHECKING:
    import numpy as np
    import tensorflow as tf

    from lms3d.tasks.volumes.material import VolumeMaterial
    from lms3d.training.validation import OwnValidation


class VolumeTask(Task):
    """A task whose folder has a material.py with `prepare`, and a predict.py with `sample`. See `lms3d.tasks.task.Task`."""

    axes = 3
    target_dtype = "uint8"
    plateau = (0.5, 10)  # the case study's: half the rate after ten epochs without progress

    def prepare(
        self, options: VolumeConfig, run_dir: Path, resuming: bool, world: World, progress: ProgressReport
    ) -> VolumeMaterial:
        material: VolumeMaterial = self._beside("material").prepare(options, run_dir, resuming, world, progress)
        return material

    def validation(
        self, options: VolumeConfig, material: VolumeMaterial, world: World, scratch: Path
    ) -> tf.data.Dataset | OwnValidation:
        """Whole volumes: as they are, or by sliding windows in a run on patches."""
        if options.patch is None:
            return material.validation(world)
        from lms3d.tasks.volumes.validation import SlidingValidation

        most = options.validation_steps and options.validation_steps * material.validation_batch_size
        return SlidingValidation(
            material=material, case_ids=material.validation_share(world)[:most], scratch=scratch, loss=options.loss,
            metrics=self.metrics(options, material), ranks=world.size,
        )  # fmt: skip

    def validation_cost(self, options: VolumeConfig, material: VolumeMaterial) -> float:
        if options.patch is None:
            return 1.0
        from lms3d.tasks.volumes.validation import mean_windows

        return mean_windows(material) * material.validation_batch_size

    def sample(self, run: TrainedRun) -> tuple[str, np.ndarray]:
        sample: tuple[str, np.ndarray] = self._beside("predict").sample(run)
        return sample

    def demonstration_limit_bytes(self, options: VolumeConfig) -> int | None:
        return demo.limit_bytes(math.prod(options.sample_shape()))
