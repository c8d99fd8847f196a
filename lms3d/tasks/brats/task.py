"""Brain tumours: four MRI sequences in, three regions out, learned from whole volumes."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lms3d.config import TrainConfig
from lms3d.console import Report as Progress
from lms3d.console import say
from lms3d.errors import DoesNotFit, InputError
from lms3d.ranks.messages import sendable
from lms3d.ranks.world import World
from lms3d.tasks.brats.options import CHOICES
from lms3d.tasks.task import Task, chief_first
from lms3d.training import demo

if TYPE_CHECKING:
    import keras
    import numpy as np
    import tensorflow as tf

    from data.brats.cache import Cache
    from data.brats.normalise import Normalisation
    from data.split import Split
    from lms3d.keras_step.report import Report
    from lms3d.training.trainer import History


@dataclass(frozen=True, kw_only=True)
class Material:
    """Cubes of all cases, who trains and who validates, and the statistics of those who train."""

    cache: Cache
    split: Split
    normalisation: Normalisation
    batch_size: int
    seed: int
    augment: bool
    described: Mapping[str, Any] = field(repr=False)

    @property
    def training_count(self) -> int:
        return len(self.split.training)

    @property
    def validation_count(self) -> int:
        return len(self.split.validation)

    def training(self, first_sample: int, world: World) -> tf.data.Dataset:
        from data.brats import pipeline

        return pipeline.training_dataset(
            self.cache, self.split.training, self.normalisation, batch_size=self.batch_size, seed=self.seed,
            first_sample=first_sample, rank=world.rank, size=world.size, augment=self.augment,
        )  # fmt: skip

    def validation(self, world: World) -> tf.data.Dataset:
        from data.brats import pipeline

        # A rank without a case of its own evaluates one that does not count. The batch size is that of training: a larger
        # one would need more memory for the batches themselves.
        share = world.share(self.split.validation) or self.split.validation[:1]
        return pipeline.validation_dataset(self.cache, share, self.normalisation, batch_size=self.batch_size)


class BrainTumours(Task):
    """See `lms3d.tasks.task.Task`."""

    choices = CHOICES
    axes = 3
    target_dtype = "uint8"
    shown = ("loss", "dice_WT")
    plateau = (0.5, 10)  # the case study's: half the rate after ten epochs without progress

    def prepare(
        self, options: TrainConfig, run_dir: Path, resuming: bool, world: World, progress: Progress
    ) -> Material:
        from data import split
        from data.brats import cache, layouts, normalise
        from data.phantoms import brains

        folder = options.data
        if folder is None:
            say(f"No --data: using the embedded artificial brains in {brains.default_directory()} (made once)")
            folder = world.from_chief(lambda: brains.write(brains.default_directory(), progress=progress))

        def build() -> Cache:
            cases, schema = layouts.find_cases(folder, labels=options.labels)
            return cache.build(cases, schema, options.resolution, n4=options.n4, progress=progress)

        for kind in (split.Split, normalise.Normalisation):
            sendable(kind)
        cubes = chief_first(world, build)
        parts = world.from_chief(lambda: _split(options, run_dir, resuming, cubes, folder))
        normalisation = world.from_chief(lambda: normalise.fit(cubes, parts.training))
        return Material(
            cache=cubes, split=parts, normalisation=normalisation, batch_size=options.batch_size, seed=options.seed,
            augment=options.augment,
            described={
                "data": {"fingerprint": cubes.fingerprint, "schema": cubes.schema.name, "cases": len(cubes.ids)},
                "normalisation": normalisation.to_json(),
            },
        )  # fmt: skip

    def network(self, options: TrainConfig) -> keras.Model:
        import models

        model = models.build(options.model, input_shape=(options.resolution,) * 3 + (4,), outputs=3)
        if options.weights is not None:
            _load_weights(model, options.weights)
        return model

    def loss(self, options: TrainConfig, material: Material | None) -> Any:
        from lms3d.scoring import losses

        return {"dice": losses.dice_loss, "dice_cross_entropy": losses.dice_cross_entropy}[options.loss]

    def metrics(self, options: TrainConfig, material: Material | None) -> list[Any]:
        from data.brats.schema import SCHEMAS
        from lms3d.scoring.keras_dice import RegionDice

        schema = material.cache.schema if material is not None else next(iter(SCHEMAS.values()))
        return [RegionDice(channels, name=f"dice_{region}") for region, channels in schema.region_channels.items()]

    def demonstration_limit(self, options: TrainConfig) -> int | None:
        return demo.memory_limit(options.resolution)

    def finish(
        self, run_dir: Path, options: TrainConfig, model: keras.Model, material: Material, report: Report
    ) -> None:
        """figures/slice.png: one validation case, segmented by the best weights. Where that does not fit it is left out with
        a message: the rest of the run is done."""
        import numpy as np

        from data.brats.schema import CHANNELS
        from lms3d.scoring.figures import slices

        cache, case_id = material.cache, material.split.validation[0]
        image, truth = cache.image(case_id), cache.truth(case_id)
        assert truth is not None, "the pipeline refuses validation cases without truth"
        try:
            labels = _segment(run_dir, options, model, material, image)
        except DoesNotFit as error:
            say(f"figures/slice.png is left out: {error}")
            return
        regions = cache.schema.regions
        slices.slice_with_outlines(
            image[..., CHANNELS.index("flair")],
            {region: np.isin(truth, values) for region, values in regions.items()},
            {region: np.isin(labels, values) for region, values in regions.items()},
            run_dir / "figures" / "slice.png", title=f"{case_id} (validation)",
        )  # fmt: skip

    def results(self, run_dir: Path, history: History) -> dict[str, str]:
        from data.brats.schema import REGIONS

        rows = {}
        if history.rows:
            best = min(history.rows, key=lambda row: row["val_loss"])
            shown = [region for region in REGIONS if f"val_dice_{region}" in best]
            dice = "  ".join(f"{region} {best[f'val_dice_{region}']:.3f}" for region in shown)
            rows["best epoch"] = f"{best['epoch']:.0f} of {len(history.rows)}, validation Dice {dice}"
        return {**rows, "next": f"{Path(sys.executable).name} -m lms3d.predict {run_dir}"}

    def recognises(self, path: Path) -> bool:
        from lms3d.tasks.brats import label_maps

        return label_maps.folder_in(path) is not None


TASK = BrainTumours()


def _load_weights(model: keras.Model, path: Path) -> None:
    """Start from those of an earlier run, of any resolution. InputError where they are of another network."""
    try:
        model.load_weights(path)
    except (OSError, ValueError, KeyError) as error:
        reason = str(error).strip().splitlines()[0]
        raise InputError(
            f"--weights {path}: cannot be used for {model.name} ({reason}); give best.keras of a run of this network"
        ) from None


def _split(options: TrainConfig, run_dir: Path, resuming: bool, cubes: Cache, folder: Path) -> Split:
    """The run's own split, the one that was given, or a new one; kept with the run."""
    from data import split
    from lms3d.training import run_folder

    if resuming:
        run_folder.check_data(run_dir, cubes.fingerprint)
        parts = split.load(run_dir / "split.json")
    elif options.split:
        parts = split.load(options.split)
        if unknown := sorted({*parts.training, *parts.validation} - set(cubes.ids)):
            raise InputError(f"--split {options.split} names case {unknown[0]}, which is not in {folder}")
    else:
        parts = split.make(cubes.ids, options.seed, options.validation_fraction)
    split.save(parts, run_dir / "split.json")
    return parts


def _segment(
    run_dir: Path, options: TrainConfig, model: keras.Model, material: Material, image: np.ndarray
) -> np.ndarray:
    """Labels (N, N, N) of a case (N, N, N, 4) by the best weights."""
    from lms3d.tasks import inference
    from lms3d.training.callbacks.best_weights import without_training

    if (run_dir / "best.keras").exists():
        without_training(model).load_weights(run_dir / "best.keras")
    with inference.rewriter(options, wanted=None, limit=options.memory_limit) as lms:
        predict = inference.predictor(model, options.resolution, lms=lms)
        return material.cache.schema.from_channels(predict(material.normalisation.apply(image)))
