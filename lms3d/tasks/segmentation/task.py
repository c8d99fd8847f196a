"""Any organ: volumes with any channels in, a class for each label out, or the regions that the data set states."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lms3d.errors import InputError
from lms3d.tasks.segmentation.options import SegmentationConfig
from lms3d.tasks.volumes.task import VolumeTask

if TYPE_CHECKING:
    import keras

    from lms3d.data.volumes.targets import Targets
    from lms3d.keras_step.report import Report
    from lms3d.tasks.volumes.material import VolumeMaterial
    from lms3d.training.trainer import History

MOST_SHOWN = 8
"""The regions whose Dice is measured after each epoch, one by one; their mean alone if there are more."""


class Segmentation(VolumeTask):
    """See `lms3d.tasks.task.Task`."""

    options = SegmentationConfig
    shown = ("loss", "dice")

    def read_data(self, options: SegmentationConfig) -> None:
        from lms3d.tasks.segmentation.facts import facts

        facts(options)

    def network(self, options: SegmentationConfig, material: VolumeMaterial | None) -> keras.Model:
        from lms3d import models
        from lms3d.tasks.segmentation.facts import facts
        from lms3d.tasks.volumes import starting

        known = facts(options, material)
        targets, shape = known.description.targets, (*options.sample_shape(), len(known.description.channels))
        try:
            model = models.build(
                options.model, input_shape=shape, outputs=len(targets.names), activation=targets.activation,
                spacing_mm=known.spacing_mm, **options.network_arguments(),
            )  # fmt: skip
        except ValueError as error:
            raise InputError(f"--model {options.model}: {error}; choose other sides") from None
        starting.start(model, options)
        return model

    def loss(self, options: SegmentationConfig, material: VolumeMaterial | None) -> Any:
        from lms3d.scoring import losses, masked

        targets = _targets(options, material)
        chosen = masked.loss_of(options.loss, classes=targets.kind == "classes", ignored=_ignored(targets))
        return losses.of_each_head(chosen, len(targets.names)) if options.deep_supervision else chosen

    def target_shape(self, options: SegmentationConfig, model: keras.Model) -> Sequence[int]:
        return (*model.output_shape[1:-1], len(_targets(options, None).names))

    def metrics(self, options: SegmentationConfig, material: VolumeMaterial | None) -> list[Any]:
        """The mean Dice of all regions, and that of each if there are few."""
        from lms3d.scoring.keras_dice import MeanDice, RegionDice

        targets = _targets(options, material)
        disjoint = targets.kind == "classes"
        shared: dict[str, Any] = {
            "channels": len(targets.names), "disjoint": disjoint, "threshold": 0.0 if disjoint else 0.5,
            "ignored": _ignored(targets),
        }  # fmt: skip
        regions = targets.region_channels
        each = [RegionDice(channels, **shared, name=f"dice_{_plain(name)}") for name, channels in regions.items()]
        return [MeanDice(list(regions.values()), **shared, name="dice"), *(each if len(each) <= MOST_SHOWN else [])]

    def finish(
        self, run_dir: Path, options: SegmentationConfig, model: keras.Model, material: VolumeMaterial, report: Report
    ) -> None:
        """Draws figures/slice.png."""
        from lms3d.tasks.volumes import figures

        figures.draw_slice(run_dir, options, model, material, 0, material.cache.channels[0])

    def results(self, run_dir: Path, history: History) -> dict[str, str]:
        rows = {}
        if history.rows:
            best = min(history.rows, key=lambda row: row["val_loss"])
            rows["best epoch"] = (
                f"{best['epoch']:.0f} of {len(history.rows)}, validation Dice {best['val_dice']:.3f} in the mean"
            )
        return {**rows, "next": f"{Path(sys.executable).name} -m lms3d.predict {run_dir}"}

    def network_options(self, said: Mapping[str, Any], where: str) -> dict[str, Any]:
        built: dict[str, Any] = self._beside("package").network_options(said, where)
        return built

    def claims(self, data: Path) -> bool:
        from lms3d.data.segmentation import layouts

        try:
            return layouts.is_data_set(data)
        except OSError:  # it is reported when the data are read
            return False

    def recognises(self, path: Path) -> bool:
        from lms3d.tasks.volumes import label_maps

        return label_maps.task_in(path) == self.options.task

    def knows(self, truth: Path) -> bool:
        known: bool = self._beside("evaluate").knows(truth)
        return known


TASK = Segmentation()


def _plain(name: str) -> str:
    """The name of a region as part of a metric's name, in which TensorFlow takes few characters."""
    return re.sub(r"[^A-Za-z0-9.]+", "_", name).strip("_") or "region"


def _targets(options: SegmentationConfig, material: VolumeMaterial | None) -> Targets:
    from lms3d.tasks.segmentation.facts import facts

    return material.targets if material is not None else facts(options).description.targets


def _ignored(targets: Targets) -> int | None:
    """The value of the targets in voxels that do not count."""
    from lms3d.data.volumes.targets import IGNORED

    return None if targets.schema.ignore is None else IGNORED
