"""The brain scans that networks learn from."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from lms3d.console import ProgressReport, say
from lms3d.data.words import counted
from lms3d.ranks.messages import sendable
from lms3d.ranks.world import World
from lms3d.tasks.brats.options import BratsConfig
from lms3d.tasks.task import chief_first
from lms3d.tasks.volumes.material import (
    VolumeMaterial,
    divided,
    presentation,
    tell_of_cut_off,
    tell_of_left_out,
    tell_of_unused,
)

if TYPE_CHECKING:
    from lms3d.data.brats.preprocess import Preprocessing
    from lms3d.data.volumes.cache import Cache
    from lms3d.data.volumes.data_set import DataSet
    from lms3d.data.volumes.labels import LabelSchema
    from lms3d.data.volumes.targets import Targets


def prepare(
    options: BratsConfig, run_dir: Path, resuming: bool, world: World, progress: ProgressReport
) -> VolumeMaterial:
    """Reads, checks and caches the data; writes split.json (rank 0). Raises InputError or DataError."""
    from lms3d.data import split
    from lms3d.data.brats import layouts
    from lms3d.data.brats.definition import described
    from lms3d.data.brats.schema import CHANNELS
    from lms3d.data.phantoms import brains
    from lms3d.data.volumes import cache, normalise
    from lms3d.data.volumes.targets import targets_of

    folder = options.data
    if folder is None:
        say(f"No --data: using the embedded artificial brains in {brains.default_directory()} (made once)")
        folder = world.from_chief(lambda: brains.write(brains.default_directory(), progress=progress))

    def build() -> tuple[DataSet, Cache]:
        found = layouts.find_cases(folder, labels=options.labels, require_complete=False)
        volumes = cache.build(found.cases, found.schema, preprocessing(options), progress=progress)
        return found.with_same_brains(volumes.alike()), volumes

    for kind in (split.Split, normalise.PerCase, normalise.Global):
        sendable(kind)
    found, volumes = chief_first(world, build)
    say(f"{counted(len(found.cases), 'case')} of {found.layout}, labels of {found.schema.name}")
    if absent := [channel for channel in CHANNELS if channel not in found.modalities]:
        say(f"note: no case has {', '.join(absent)}: the network learns from {', '.join(found.modalities)} alone")
    tell_of_unused(found.unused)
    tell_of_left_out(volumes)
    tell_of_cut_off(volumes, volumes.ids)
    parts = world.from_chief(lambda: divided(options, run_dir, resuming, found, volumes))
    normalisation = world.from_chief(lambda: normalise.fit(options.normalisation, volumes, parts.training))
    return VolumeMaterial(
        cache=volumes, targets=targets_of(options.targets, volumes.schema), split=parts, normalisation=normalisation,
        batch_size=options.batch_size, validation_batch_size=options.validation_batch_size or options.batch_size,
        seed=options.seed, shown=presentation(options),
        described={
            "data": {
                "fingerprint": volumes.fingerprint, "schema": volumes.schema.name, "cases": len(volumes.ids),
                "modalities": list(found.modalities),
            },
            "labels": described(volumes.schema),
            "normalisation": normalisation.to_json(),
        },
    )  # fmt: skip


def preprocessing(options: BratsConfig) -> Preprocessing:
    """The preprocessing of every case, from the options."""
    from lms3d.data.brats.preprocess import Preprocessing

    a, b, c = options.volume_shape()
    return Preprocessing(shape=(a, b, c), stretched=options.box is None, n4=options.n4, anti_alias=options.anti_alias)


def targets(options: BratsConfig, material: VolumeMaterial | None) -> Targets:
    """The targets of the material. Without one `options.data` decides, or else the schema that the options name, or the embedded
    data."""
    from lms3d.data.brats.schema import schema_named
    from lms3d.data.volumes.targets import targets_of

    if material is not None:
        return material.targets
    if options.data is not None:
        return targets_of(options.targets, _schema(options.data, options.labels))
    return targets_of(options.targets, schema_named(options.labels or "brats2021"))


@lru_cache(maxsize=4)
def _schema(folder: Path, labels: str | None) -> LabelSchema:
    from lms3d.data.brats import layouts

    return layouts.find_cases(folder, labels=labels, require_truth=False, require_complete=False).schema
