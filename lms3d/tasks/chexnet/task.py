"""Chest X-rays: one image in, the probabilities of 14 findings out, as in CheXNet (arXiv:1711.05225)."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lms3d.console import ProgressReport, say
from lms3d.ranks.world import World
from lms3d.tasks.chexnet.options import ChexnetConfig
from lms3d.tasks.task import Task, TrainedRun, chief_first

if TYPE_CHECKING:
    import keras
    import numpy as np
    import tensorflow as tf

    from lms3d.data.chest_xray.records import Index, Part
    from lms3d.keras_step.report import Report
    from lms3d.scoring.auroc import Scores
    from lms3d.training.trainer import History


@dataclass(frozen=True, kw_only=True)
class ChexnetMaterial:
    """The shards of all images, split by patient."""

    index: Index
    batch_size: int
    validation_batch_size: int
    seed: int
    augment: bool
    described: Mapping[str, Any] = field(repr=False)

    @property
    def training_count(self) -> int:
        return len(self.index.parts["training"])

    @property
    def validation_count(self) -> int:
        return len(self.index.parts["validation"])

    def training(self, first_sample: int, world: World) -> tf.data.Dataset:
        from lms3d.data.chest_xray import pipeline

        return pipeline.training_dataset(
            self.index.parts["training"], batch_size=self.batch_size, seed=self.seed, first_sample=first_sample,
            rank=world.rank, size=world.size, augment=self.augment,
        )  # fmt: skip

    def validation(self, world: World) -> tf.data.Dataset:
        from lms3d.data.chest_xray import pipeline

        part = self.index.parts["validation"]
        return pipeline.validation_dataset(
            part, batch_size=self.validation_batch_size, rank=world.rank, size=world.size
        )


class ChestXRays(Task):
    """See `lms3d.tasks.task.Task`."""

    options = ChexnetConfig
    axes = 2
    target_dtype = "float32"
    shown = ("loss", "auroc")
    planned_by_data = False
    plateau = (0.1, 1)  # the scaling study's: a tenth of the rate after an epoch without progress

    def prepare(
        self, options: ChexnetConfig, run_dir: Path, resuming: bool, world: World, progress: ProgressReport
    ) -> ChexnetMaterial:
        from lms3d.data.chest_xray import collection as chest_xray
        from lms3d.data.chest_xray import shards
        from lms3d.data.phantoms import chests
        from lms3d.training import run_folder

        folder = options.data
        if folder is None:
            say(f"No --data: using the embedded artificial radiographs in {chests.default_directory()} (made once)")
            folder = world.from_chief(lambda: chests.write(chests.default_directory(), progress=progress))

        def build() -> Index:
            collection = chest_xray.find_images(folder)
            return shards.build(collection, options.resolution, seed=options.seed, progress=progress)

        index = chief_first(world, build)
        if resuming:
            world.from_chief(lambda: run_folder.check_data(run_dir, index.fingerprint))
        world.from_chief(lambda: _keep_split(options, run_dir, resuming, index))
        counts = {name: len(part) for name, part in index.parts.items()}
        return ChexnetMaterial(
            index=index, batch_size=options.batch_size,
            validation_batch_size=options.validation_batch_size or options.batch_size, seed=options.seed, augment=options.augment,
            described={"data": {"fingerprint": index.fingerprint, "images": counts, "shards": str(index.directory)}},
        )  # fmt: skip

    def network(self, options: ChexnetConfig, material: Any) -> keras.Model:
        from lms3d import models

        shape = (options.resolution, options.resolution, 3)
        return models.build(options.model, input_shape=shape, weights=options.weights)

    def loss(self, options: ChexnetConfig, material: ChexnetMaterial | None) -> Any:
        from lms3d.data.chest_xray.collection import FINDINGS
        from lms3d.scoring import findings

        if options.loss != "weighted":
            return findings.binary_cross_entropy
        if material is None:  # a step takes the same with any weights
            return findings.WeightedCrossEntropy(*findings.class_weights([1] * len(FINDINGS), 2))
        labels = material.index.parts["training"].labels
        return findings.WeightedCrossEntropy(*findings.class_weights(labels.sum(0).tolist(), len(labels)))

    def metrics(self, options: ChexnetConfig, material: ChexnetMaterial | None) -> list[Any]:
        from lms3d.data.chest_xray.collection import FINDINGS
        from lms3d.scoring.findings import Auroc

        return [Auroc(len(FINDINGS))]

    def callbacks(self, model: keras.Model, material: ChexnetMaterial, world: World) -> list[Any]:
        from lms3d.scoring.findings import Auroc, PooledAuroc
        from lms3d.training.trainer import build_metrics

        build_metrics(model, material.validation(world))  # otherwise Keras names them only after the first step
        metrics = [m for group in model.metrics for m in getattr(group, "metrics", [])]
        auroc = next(m for m in metrics if isinstance(m, Auroc))
        share = world.share(range(material.validation_count))
        return [PooledAuroc(auroc, world.average, validates=bool(share))]

    def finish(
        self, run_dir: Path, options: ChexnetConfig, model: keras.Model, material: ChexnetMaterial, report: Report
    ) -> None:
        """Writes auroc.csv, auroc.md (with the published areas), figures/roc.png and figures/auroc.png, for the test patients."""
        from lms3d.tasks.chexnet.evaluate import write_areas
        from lms3d.training.callbacks import best_weights

        best_weights.put_back(run_dir, model)
        part = material.index.parts["test"]
        scores = write_areas(
            run_dir, run_dir / "figures", part.labels, _probabilities(model, part, options.batch_size), part.patients,
            f"{options.model} at {options.resolution}$^2$", _remark(options),
        )  # fmt: skip
        say(_sentence(scores))

    def sample(self, run: TrainedRun) -> tuple[str, np.ndarray]:
        sample: tuple[str, np.ndarray] = self._beside("predict").sample(run)
        return sample

    def results(self, run_dir: Path, history: History) -> dict[str, str]:
        rows = {}
        if history.rows:
            best = min(history.rows, key=lambda row: row["val_loss"])
            rows["best epoch"] = f"{best['epoch']:.0f} of {len(history.rows)}, validation AUROC {best['val_auroc']:.3f}"
        command = f"{Path(sys.executable).name} -m lms3d.predict {run_dir} --data FOLDER"
        return {**rows, "AUROC per finding": str(run_dir / "auroc.md"), "next": command}

    def claims(self, data: Path) -> bool:
        from lms3d.data.chest_xray import collection

        return collection.is_chest_xray(data)

    def recognises(self, path: Path) -> bool:
        from lms3d.tasks.chexnet import evaluate

        return evaluate.table_in(path) is not None


TASK = ChestXRays()


def _keep_split(options: ChexnetConfig, run_dir: Path, resuming: bool, index: Index) -> None:
    """Writes split.json: the images of each part, and the images on which the first weights of the run were trained."""
    from lms3d.data.files import write_json
    from lms3d.tasks.chexnet import seen

    path, before = run_dir / "split.json", []
    if resuming:
        before = seen.before(path)
    elif options.weights is not None:
        before = seen.trained_by(options.weights, index)
    parts = {name: list(part.names) for name, part in index.parts.items()}
    write_json(path, parts | ({"seen_before": before} if before else {}))


def _probabilities(model: keras.Model, part: Part, batch_size: int) -> np.ndarray:
    """The probabilities (images, 14), in the order of the part."""
    import numpy as np

    from lms3d.data.chest_xray import pipeline

    batches = pipeline.validation_dataset(part, batch_size=batch_size)
    return np.concatenate([np.asarray(model(images, training=False)) for images, _ in batches])


def _remark(options: ChexnetConfig) -> str:
    return "" if options.data is not None else "Artificial radiographs: this says nothing about real patients."


def _sentence(scores: Scores) -> str:
    missing = f" (without {', '.join(scores.left_out)}: one answer only)" if scores.left_out else ""
    about = f"{scores.images} images of {scores.patients} test patients"
    if math.isnan(scores.mean):
        return f"No AUROC: of each finding the {about} show one answer only"
    interval = "" if math.isnan(scores.low) else f" (95 % interval {scores.low:.3f} to {scores.high:.3f})"
    return f"Mean AUROC {scores.mean:.3f}{interval} on {about}{missing}"
