"""The volumes that networks learn from, of any organ."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lms3d.console import ProgressReport, say
from lms3d.data.words import counted
from lms3d.errors import InputError
from lms3d.ranks.messages import sendable
from lms3d.ranks.world import World
from lms3d.tasks.segmentation.facts import grid, network_spacing
from lms3d.tasks.segmentation.options import SegmentationConfig
from lms3d.tasks.task import chief_first
from lms3d.tasks.volumes.material import (
    VolumeMaterial,
    divided,
    presentation,
    tell_of_cut_off,
    tell_of_left_out,
    tell_of_unused,
)
from lms3d.training import config_file

if TYPE_CHECKING:
    from lms3d.data.segmentation.layouts import Found
    from lms3d.data.segmentation.spacing import Spacing
    from lms3d.data.volumes.cache import Cache
    from lms3d.data.volumes.data_set import DataSet


def prepare(
    options: SegmentationConfig, run_dir: Path, resuming: bool, world: World, progress: ProgressReport
) -> VolumeMaterial:
    """Reads, checks and caches the data; writes split.json (rank 0). Raises InputError or DataError."""
    from lms3d.data import split
    from lms3d.data.phantoms import abdomens
    from lms3d.data.segmentation import intensities, layouts
    from lms3d.data.volumes import cache

    folder = options.data
    if folder is None:
        say(f"No --data: using the embedded artificial abdomens in {abdomens.default_directory()} (made once)")
        folder = world.from_chief(lambda: abdomens.write(abdomens.default_directory(), progress=progress))

    def build() -> tuple[Found, DataSet, Cache, Spacing]:
        found = layouts.find(folder)
        cases, schema = found.data_set
        spacing_mm = network_spacing(options, cases)
        volumes = cache.build(cases, schema, grid(options, spacing_mm), progress=progress)
        return found, found.data_set.with_same_brains(volumes.alike()), volumes, spacing_mm

    for kind in (split.Split, intensities.ByChannel, intensities.Channel):
        sendable(kind)
    found, data_set, volumes, spacing_mm = chief_first(world, build)
    _tell(found, volumes)
    described = found.description.to_json()

    def parts_of() -> split.Split:
        if resuming:
            _require_same_meaning(run_dir, described)
        return divided(options, run_dir, resuming, data_set, volumes)

    parts = world.from_chief(parts_of)
    normalisation = world.from_chief(lambda: intensities.fit(volumes, parts.training))
    return VolumeMaterial(
        cache=volumes, targets=found.description.targets, split=parts, normalisation=normalisation,
        batch_size=options.batch_size, validation_batch_size=options.validation_batch_size or options.batch_size,
        seed=options.seed, shown=presentation(options, evenly=True),
        described={
            "data": {
                "fingerprint": volumes.fingerprint, "schema": volumes.schema.name, "cases": len(volumes.ids),
                "modalities": list(volumes.channels),
            },
            "description": described,
            "normalisation": normalisation.to_json(),
            "preprocessing": volumes.preprocessing.to_json(),
            "spacing_mm": list(spacing_mm),
        },
    )  # fmt: skip


def _require_same_meaning(run_dir: Path, described: Mapping[str, Any]) -> None:
    """InputError if dataset.json was changed since the run began: its weights and its normalisation belong to what it said then."""
    before = config_file.read(run_dir).get("description", {})
    for name in sorted(described.keys() - {"name"}):  # the name may be that of the folder, which may be moved
        if before.get(name) != described[name]:
            raise InputError(
                f"--resume: the data set now has other {name} ({str(described[name])[:80]}) than {run_dir} was trained on "
                f"({str(before.get(name))[:80]}); restore them, or start another run"
            )


def _tell(found: Found, volumes: Cache) -> None:
    """Says what the data set is, and what is left out of it."""
    described, unused = found.description, found.data_set.unused
    say(f"{counted(len(volumes.ids), 'case')} of {found.data_set.layout}: {described.in_words}")
    if described.schema.ignore is not None:
        say(f"label {described.schema.ignore} is ignored: loss and metrics leave it out")
    tell_of_unused(unused)
    tell_of_left_out(volumes)
    tell_of_cut_off(volumes, volumes.ids)
