"""Brain tumours: four MRI sequences in, three regions out, learned from whole volumes."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lms3d.console import say
from lms3d.errors import InputError
from lms3d.tasks.brats.options import BratsConfig
from lms3d.tasks.volumes import starting
from lms3d.tasks.volumes.task import VolumeTask

if TYPE_CHECKING:
    import keras

    from lms3d.keras_step.report import Report
    from lms3d.tasks.volumes.material import VolumeMaterial
    from lms3d.training.trainer import History


class BrainTumours(VolumeTask):
    """See `lms3d.tasks.task.Task`."""

    options = BratsConfig
    shown = ("loss", "dice_WT")

    def read_data(self, options: BratsConfig) -> None:
        from lms3d.tasks.brats.material import targets

        targets(options, None)

    def network(self, options: BratsConfig, material: VolumeMaterial | None) -> keras.Model:
        from lms3d import models
        from lms3d.tasks.brats.material import targets

        outputs = targets(options, material).names
        shape, more = (*options.sample_shape(), 4), options.network_arguments()
        model = models.build(options.model, input_shape=shape, outputs=len(outputs), **more)
        if options.start_from is not None:
            _start_from(model, options, outputs, material.described["data"]["modalities"] if material else None)
        if options.weights is not None:
            starting.load(model, options.weights, f"--weights {options.weights}")
        return model

    def loss(self, options: BratsConfig, material: VolumeMaterial | None) -> Any:
        from lms3d.scoring import losses

        chosen = {"dice": losses.dice_loss, "dice_cross_entropy": losses.dice_cross_entropy}[options.loss]
        if not options.deep_supervision:
            return chosen
        from lms3d.tasks.brats.material import targets

        return losses.of_each_head(chosen, len(targets(options, material).names))

    def target_shape(self, options: BratsConfig, model: keras.Model) -> Sequence[int]:
        from lms3d.models.levels import HEADS

        *sides, channels = model.output_shape[1:]
        return (*sides, channels // HEADS if options.deep_supervision else channels)

    def metrics(self, options: BratsConfig, material: VolumeMaterial | None) -> list[Any]:
        from lms3d.scoring.keras_dice import RegionDice
        from lms3d.tasks.brats.material import targets

        learnt = targets(options, material)
        return [
            RegionDice(channels, channels=len(learnt.names), disjoint=learnt.kind == "labels", name=f"dice_{region}")
            for region, channels in learnt.region_channels.items()
            if channels  # a region of a user's schema may have no label that is learnt
        ]

    def finish(
        self, run_dir: Path, options: BratsConfig, model: keras.Model, material: VolumeMaterial, report: Report
    ) -> None:
        """Measures the baseline on the embedded brains. Draws figures/slice.png: one validation case, segmented by the best
        weights. If that does not fit, a message says so: the rest of the run is done."""
        from lms3d.data.brats.schema import CHANNELS
        from lms3d.tasks.brats import intensity_baseline
        from lms3d.tasks.volumes import figures

        if options.data is None:
            intensity_baseline.measure(run_dir, material)
        figures.draw_slice(run_dir, options, model, material, CHANNELS.index("flair"), "FLAIR")

    def results(self, run_dir: Path, history: History) -> dict[str, str]:
        from lms3d.tasks.brats import intensity_baseline

        rows = {}
        if history.rows:
            best = min(history.rows, key=lambda row: row["val_loss"])
            shown = [name.removeprefix("val_dice_") for name in best if name.startswith("val_dice_")]
            dice = "  ".join(f"{region} {best[f'val_dice_{region}']:.3f}" for region in shown)
            rows["best epoch"] = f"{best['epoch']:.0f} of {len(history.rows)}, validation Dice {dice}"
        rows |= intensity_baseline.results(run_dir)
        return {**rows, "next": f"{Path(sys.executable).name} -m lms3d.predict {run_dir}"}

    def recognises(self, path: Path) -> bool:
        from lms3d.tasks.volumes import label_maps

        return label_maps.folder_in(path) is not None and label_maps.task_in(path) == self.options.task

    def knows(self, truth: Path) -> bool:
        from lms3d.data.brats.layouts import find_cases
        from lms3d.data.errors import DataError

        try:
            return bool(find_cases(truth, require_truth=False, require_complete=False).cases)
        except DataError:
            return False


TASK = BrainTumours()


def _start_from(
    model: keras.Model, options: BratsConfig, outputs: Sequence[str], modalities: Sequence[str] | None
) -> None:
    """Takes over the best weights of another run. InputError if it has other outputs; a message says so if its outputs have other
    names, or if it has learnt from other modalities. Of a package, or of a run of another task, it takes what fits.

    BraTS has called one tissue NCR and NETC: the names do not tell whether the weights are of use.
    """
    from lms3d import tasks
    from lms3d.data.brats import definition
    from lms3d.data.brats.schema import CHANNELS
    from lms3d.data.volumes.targets import targets_of

    run_dir = options.start_from
    assert run_dir is not None
    if run_dir.is_file():
        starting.take_fitting(model, run_dir)
        return
    trained, content = tasks.load(run_dir)
    if not isinstance(trained, BratsConfig):
        starting.take_fitting(model, run_dir)
        return
    if _learnt(trained) != _learnt(options):
        raise InputError(
            f"--start-from {run_dir}: found a run of {trained.model} with --targets {trained.targets}; expected {options.model} "
            f"with --targets {options.targets}, and --deep-supervision in both or in neither; give another run"
        )
    starting.load(model, run_dir / "best.keras", f"--start-from {run_dir}")
    learnt = targets_of(
        trained.targets, definition.restored(content.get("labels"), where=str(run_dir / "config.json"))
    ).names
    if list(learnt) != list(outputs):
        say(f"--start-from {run_dir}: what it learnt as {', '.join(learnt)} is {', '.join(outputs)} here")

    seen = content.get("data", {}).get("modalities", list(CHANNELS))
    if modalities is not None and list(modalities) != seen:
        say(f"--start-from {run_dir}: it learnt from {', '.join(seen)}; here are {', '.join(modalities)}")


def _learnt(options: BratsConfig) -> tuple[object, ...]:
    """What two runs must have in common if one starts from the other."""
    return options.model, options.targets, options.deep_supervision
