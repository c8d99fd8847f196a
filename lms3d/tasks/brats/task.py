"""Brain tumours: four MRI sequences in, three regions out, learned from whole volumes."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lms3d.console import Report as Progress
from lms3d.console import say
from lms3d.errors import DoesNotFit, InputError
from lms3d.files import require_checksums
from lms3d.ranks.world import World
from lms3d.tasks.brats.options import BratsConfig
from lms3d.tasks.task import Task
from lms3d.training import demo

if TYPE_CHECKING:
    import keras
    import numpy as np

    from lms3d.keras_step.report import Report
    from lms3d.tasks.brats.material import BratsMaterial
    from lms3d.training.trainer import History


class BrainTumours(Task):
    """See `lms3d.tasks.task.Task`."""

    options = BratsConfig
    axes = 3
    target_dtype = "uint8"
    shown = ("loss", "dice_WT")
    plateau = (0.5, 10)  # the case study's: half the rate after ten epochs without progress

    def prepare(
        self, options: BratsConfig, run_dir: Path, resuming: bool, world: World, progress: Progress
    ) -> BratsMaterial:
        from lms3d.tasks.brats import material

        return material.prepare(options, run_dir, resuming, world, progress)

    def network(self, options: BratsConfig, material: BratsMaterial | None) -> keras.Model:
        from lms3d import models
        from lms3d.tasks.brats.material import targets

        outputs = targets(options, material).names
        shape, more = (*options.sample_shape(), 4), options.network_arguments()
        model = models.build(options.model, input_shape=shape, outputs=len(outputs), **more)
        if options.start_from is not None:
            _start_from(model, options, outputs, material.described["data"]["modalities"] if material else None)
        if options.weights is not None:
            _load_weights(model, options.weights, f"--weights {options.weights}")
        return model

    def loss(self, options: BratsConfig, material: BratsMaterial | None) -> Any:
        from lms3d.scoring import losses

        chosen = {"dice": losses.dice_loss, "dice_cross_entropy": losses.dice_cross_entropy}[options.loss]
        if not options.deep_supervision:
            return chosen
        from lms3d.tasks.brats.material import targets

        return losses.of_each_head(chosen, len(targets(options, material).names))

    def target_shape(self, options: BratsConfig, model: keras.Model) -> Sequence[int]:
        from lms3d.models.isensee2017 import HEADS

        *sides, channels = model.output_shape[1:]
        return (*sides, channels // HEADS if options.deep_supervision else channels)

    def metrics(self, options: BratsConfig, material: BratsMaterial | None) -> list[Any]:
        from lms3d.scoring.keras_dice import RegionDice
        from lms3d.tasks.brats.material import targets

        learnt = targets(options, material)
        return [
            RegionDice(channels, channels=len(learnt.names), disjoint=learnt.kind == "labels", name=f"dice_{region}")
            for region, channels in learnt.region_channels.items()
            if channels  # a region of a user's schema may have no label that is learnt
        ]

    def demonstration_limit_bytes(self, options: BratsConfig) -> int | None:
        return demo.limit_bytes(math.prod(options.sample_shape()))

    def finish(
        self, run_dir: Path, options: BratsConfig, model: keras.Model, material: BratsMaterial, report: Report
    ) -> None:
        """Draws figures/slice.png: one validation case, segmented by the best weights. If that does not fit, a message says so: the
        rest of the run is done."""
        import numpy as np

        from lms3d.data import pseudonyms
        from lms3d.data.brats.schema import CHANNELS
        from lms3d.scoring.figures import slices

        cache, case_id = material.cache, material.split.validation[0]
        image, truth = cache.image(case_id), cache.truth(case_id)
        assert truth is not None, "the pipeline refuses validation cases without truth"
        try:
            labels = _segment(run_dir, options, model, material, case_id)
        except DoesNotFit as error:
            say(f"figures/slice.png is left out: {error}")
            return
        regions = cache.schema.regions
        slices.slice_with_outlines(
            image[..., CHANNELS.index("flair")],
            {region: np.isin(truth, values) for region, values in regions.items()},
            {region: np.isin(labels, values) for region, values in regions.items()},
            run_dir / "figures" / "slice.png", title=f"{pseudonyms.of(case_id)} (validation)",
        )  # fmt: skip

    def results(self, run_dir: Path, history: History) -> dict[str, str]:
        rows = {}
        if history.rows:
            best = min(history.rows, key=lambda row: row["val_loss"])
            shown = [name.removeprefix("val_dice_") for name in best if name.startswith("val_dice_")]
            dice = "  ".join(f"{region} {best[f'val_dice_{region}']:.3f}" for region in shown)
            rows["best epoch"] = f"{best['epoch']:.0f} of {len(history.rows)}, validation Dice {dice}"
        return {**rows, "next": f"{Path(sys.executable).name} -m lms3d.predict {run_dir}"}

    def packaged(self, run_dir: Path, options: BratsConfig, content: Mapping[str, Any]) -> dict[str, Any]:
        said: dict[str, Any] = self._beside("package").packaged(run_dir, options, content)
        return said

    def unpacked(self, said: Mapping[str, Any], options: BratsConfig, where: str) -> dict[str, Any]:
        content: dict[str, Any] = self._beside("package").unpacked(said, options, where)
        return content

    def recognises(self, path: Path) -> bool:
        from lms3d.tasks.brats import label_maps

        return label_maps.folder_in(path) is not None


TASK = BrainTumours()


def _start_from(
    model: keras.Model, options: BratsConfig, outputs: Sequence[str], modalities: Sequence[str] | None
) -> None:
    """Takes over the best weights of another run. InputError if it has other outputs; a message says so if its outputs have other
    names, or if it has learnt from other modalities.

    BraTS has called one tissue NCR and NETC: the names do not tell whether the weights are of use.
    """
    from lms3d import tasks
    from lms3d.data.brats import definition
    from lms3d.data.brats.schema import CHANNELS
    from lms3d.data.brats.targets import targets_of

    run_dir = options.start_from
    assert run_dir is not None
    trained, content = tasks.load(run_dir)
    if not isinstance(trained, BratsConfig):
        raise InputError(
            f"--start-from {run_dir}: found a run of --task {trained.task}; expected one of --task {options.task}; give another run"
        )
    if _learnt(trained) != _learnt(options):
        raise InputError(
            f"--start-from {run_dir}: found a run of {trained.model} with --targets {trained.targets}; expected {options.model} "
            f"with --targets {options.targets}, and --deep-supervision in both or in neither; give another run"
        )
    _load_weights(model, run_dir / "best.keras", f"--start-from {run_dir}")
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


def _load_weights(model: keras.Model, path: Path, option: str) -> None:
    """Loads the weights of an earlier run, of any resolution. InputError if they belong to another network."""
    import tensorflow as tf

    try:
        if path.suffix == ".keras":
            require_checksums(path)
        model.load_weights(path)
    except tf.errors.ResourceExhaustedError:
        raise
    except Exception as error:  # of h5py, zipfile, or Keras, for files of all kinds
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)[:200]
        raise InputError(
            f"{option}: cannot be used for {model.name} ({reason}); give best.keras of a run of this network"
        ) from None


def _segment(
    run_dir: Path, options: BratsConfig, model: keras.Model, material: BratsMaterial, case_id: str
) -> np.ndarray:
    """The labels (A, B, C) that the best weights predict for a case."""
    from lms3d.data.brats import normalise
    from lms3d.tasks import inference
    from lms3d.tasks.brats import segment
    from lms3d.training.callbacks import best_weights

    best_weights.put_back(run_dir, model)
    with inference.rewriter(options, wanted=None, limit_bytes=options.memory_limit) as lms:
        predict = inference.predictor(model, options.sample_shape(), lms=lms)
        image = normalise.image(material.normalisation, material.cache, case_id)
        return material.targets.from_channels(
            segment.probabilities(predict, image, channels=len(material.targets.names), patch=material.shown.patch)
        )
