"""What tasks on volumes have in common: how a task is asked for its data, and how large its demonstration may be."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

from lms3d.console import ProgressReport
from lms3d.ranks.world import World
from lms3d.tasks.task import Task
from lms3d.tasks.volumes.options import VolumeConfig
from lms3d.training import demo

if TYPE_CHECKING:
    from lms3d.tasks.volumes.material import VolumeMaterial


class VolumeTask(Task):
    """A task whose folder has a material.py with `prepare`. See `lms3d.tasks.task.Task`."""

    axes = 3
    target_dtype = "uint8"
    plateau = (0.5, 10)  # the case study's: half the rate after ten epochs without progress

    def prepare(
        self, options: VolumeConfig, run_dir: Path, resuming: bool, world: World, progress: ProgressReport
    ) -> VolumeMaterial:
        material: VolumeMaterial = self._beside("material").prepare(options, run_dir, resuming, world, progress)
        return material

    def demonstration_limit_bytes(self, options: VolumeConfig) -> int | None:
        return demo.limit_bytes(math.prod(options.sample_shape()))
