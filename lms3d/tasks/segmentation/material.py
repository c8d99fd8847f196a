"""The volumes that networks learn from, of any organ."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from lms3d.console import Report as Progress
from lms3d.console import say
from lms3d.data.words import counted
from lms3d.ranks.messages import sendable
from lms3d.ranks.world import World
from lms3d.tasks.segmentation.facts import grid, network_spacing
from lms3d.tasks.segmentation.options import SegmentationConfig
from lms3d.tasks.task import chief_first
from lms3d.tasks.volumes.material import VolumeMaterial, divided, presentation, tell_of_cut_off, tell_of_left_out

if TYPE_CHECKING:
    from lms3d.data.segmentation.layouts import Found
    from lms3d.data.segmentation.spacing import Spacing
    from lms3d.data.volumes.cache import Cache
    from lms3d.data.volumes.data_set import DataSet


def prepare(
    options: SegmentationConfig, run_dir: Path, resuming: bool, world: World, progress: Progress
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
    parts = world.from_chief(lambda: divided(options, run_dir, resuming, data_set, volumes))
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
            "description": found.description.to_json(),
            "normalisation": normalisation.to_json(),
            "preprocessing": volumes.preprocessing.to_json(),
            "spacing_mm": list(spacing_mm),
        },
    )  # fmt: skip


def _tell(found: Found, volumes: Cache) -> None:
    """Says what the data set is, and what is left out of it."""
    described, unused = found.description, found.data_set.unused
    say(f"{counted(len(volumes.ids), 'case')} of {found.data_set.layout}: {described.in_words}")
    if described.schema.ignore is not None:
        say(f"label {described.schema.ignore} is ignored: loss and metrics leave it out")
    if unused:
        stray = counted(len(unused), "file belongs", "files belong")
        say(f"note: {stray} to no case, such as {unused[0]}")
    tell_of_left_out(volumes)
    tell_of_cut_off(volumes, volumes.ids)
