"""`python -m experiments.scoring_speed`: how long does scoring a whole challenge take?

Artificial label maps of 240x240x155 voxels: nested regions of realistic size with rough borders, satellites, and predictions that
miss some of it. Reading the compressed files is part of the time.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from lms3d import cli
from lms3d.data.brats.schema import schema_named
from lms3d.data.volumes.case import Case
from lms3d.data.volumes.geometry import Box, Geometry
from lms3d.experiments.harness import command
from lms3d.scoring.rules import RULES
from lms3d.tasks.volumes.job import ScoringJob, Source

SHAPE = (240, 240, 155)
BRAIN = Box(lower=(50, 35, 5), upper=(190, 206, 145))
"""140x171x140, the mean of Table 1 of the LMS case study."""
CASES = 1251
"""The cases of the training set of BraTS 2021 and 2023."""


def _measure(options: argparse.Namespace, typed: str) -> None:
    from joblib import cpu_count  # type: ignore[import-untyped]

    from lms3d.scoring import rules
    from lms3d.tasks.volumes import job

    random = np.random.default_rng(0)
    named = rules.select(options.scoring, "brats2024", ())
    with tempfile.TemporaryDirectory() as folder:
        jobs = [_job(Path(folder), number, random, named.name, options.resolution) for number in range(options.cases)]
        seconds = []
        for one in jobs:
            begin = time.perf_counter()
            job.score_case(one)
            seconds.append(time.perf_counter() - begin)
    mean, cores = float(np.mean(seconds)), cpu_count()
    print(f"{named.name}: {mean:.2f} s per case and core ({min(seconds):.2f}-{max(seconds):.2f}, {len(seconds)} cases)")
    print(
        f"{CASES} cases: {mean * CASES / 60:.1f} min on one core, {mean * CASES / 60 / cores:.1f} min on the {cores} here"
    )


def _job(folder: Path, number: int, random: np.random.Generator, rules: str, resolution: int | None) -> ScoringJob:
    """Two files, and what a worker is told of them. resolution: of the network's cube; None: a folder of label maps."""
    import nibabel as nib

    paths = []
    for name, labels in zip(("truth", "prediction"), pair(random), strict=True):
        paths.append(folder / f"{name}{number}.nii.gz")
        nib.save(nib.Nifti1Image(labels, np.eye(4)), paths[-1])
    schema = schema_named("brats2024")
    rows = tuple(tuple(row) for row in np.eye(4).tolist())
    geometry = Geometry(shape=SHAPE, affine=rows, box=BRAIN) if resolution else None
    shape = (resolution,) * 3 if resolution else None
    source = Source(label="p", coding=schema, native=paths[1], geometry=geometry, shape=shape)
    case = Case(id=str(number), images={}, truth=paths[0])
    return ScoringJob(case=case, schema=schema, rules=RULES[rules], sources=(source,), geometry=geometry, grid=None)


def pair(random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """(truth, prediction) (X, Y, Z) uint8: whole tumours of 20 to 250 ml, their core and rim, satellites, some noise."""
    from scipy import ndimage

    side = 120
    noise = ndimage.gaussian_filter(random.normal(size=(side,) * 3), 5)
    other = ndimage.gaussian_filter(random.normal(size=(side,) * 3), 3)
    centre, radius = random.uniform(50, 70, 3), random.uniform(17, 39)
    away = np.linalg.norm(np.indices((side,) * 3).T - centre, axis=-1).T + 5 * noise / noise.std()
    for _ in range(int(random.integers(0, 4))):  # satellites
        place = random.uniform(15, 105, 3)
        away = np.minimum(
            away, np.linalg.norm(np.indices((side,) * 3).T - place, axis=-1).T + radius - random.uniform(2, 7)
        )
    maps = []
    for depth in (away, away + 1.5 * other / other.std()):
        labels = np.zeros(SHAPE, np.uint8)
        inside = labels[60:180, 60:180, 20:140]
        for share, value in ((1.0, 2), (0.7, 3), (0.5, 1)):
            inside[depth < radius * share] = value
        maps.append(labels)
    maps[1][random.integers(0, 100_000, SHAPE) == 0] = 2  # specks
    return maps[0], maps[1]


def _options(parser: cli.Parser) -> None:
    add = parser.add_argument
    add("--cases", type=cli.whole(1), metavar="N", default=6, help="label maps to make and score (default: 6)")
    add("--scoring", metavar="RULES", default="brats2024-gli", help="rules (default: brats2024-gli, which cost most)")
    grid = "also score the ceiling of a cube of N (default: as a folder of label maps, which has none)"
    add("--resolution", type=cli.whole(16), metavar="N", default=None, help=grid)


main, _parser = command.of("scoring_speed", _measure, _options, __doc__)


if __name__ == "__main__":
    sys.exit(main())
