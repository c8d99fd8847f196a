"""`python -m experiments.distortions`: a picture of what `--distort` does to a training sample, one column for each."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from lms3d import cli
from lms3d.atomic_files import replacing
from lms3d.console import progress
from lms3d.data import pseudonyms
from lms3d.data.brats import layouts
from lms3d.data.brats.preprocess import cube
from lms3d.data.brats.schema import CHANNELS
from lms3d.data.phantoms import brains
from lms3d.data.volumes import cache, normalise
from lms3d.data.volumes.distortions import DISTORTIONS, Sample
from lms3d.experiments.harness import command

_DESCRIPTION = """\
Draw one case as it is, and after each of the distortions that `lms3d.train --distort` adds: T1 with contrast and FLAIR, the slice
with most of the tumour, its outline in colour."""

_EPILOG = """\
examples:
  python -m experiments.distortions --output distortions.png
  python -m experiments.distortions --data ~/MICCAI_BraTS2020_TrainingData --seed 3

exit codes: 0 done, 2 wrong option or wrong input (one line says what), 130 interrupted"""

SHOWN = ("t1ce", "flair")
RANGE = (-2.5, 3.5)  # standard deviations, black to white


def main(arguments: Sequence[str] | None = None) -> int:
    """Reads a case, distorts, draws. Returns the exit code."""
    return command.main("distortions", _parser, _run, arguments)


def _run(options: argparse.Namespace, typed: str) -> None:
    pseudonyms.start(options.anonymous)
    sample = _sample(options)
    columns = {"as it is": sample}
    for name, one in DISTORTIONS.items():
        columns[name] = one.apply(sample, np.random.default_rng([options.seed, len(columns)]))
    _draw(columns, options.output)
    print(f"written: {options.output}")


def _sample(options: argparse.Namespace) -> Sample:
    with progress() as report:
        folder = options.data or brains.write(brains.default_directory(), progress=report)
        cases, schema = layouts.find_cases(folder, labels=options.labels)
        volumes = cache.build(cases[:1], schema, cube(options.resolution, anti_alias=True), progress=report)
    normalisation, case_id = normalise.PerCase(), volumes.ids[0]
    mean, std = normalisation.figures(volumes.entry(case_id))
    truth = volumes.truth(case_id)
    assert truth is not None, "find_cases asks for it"
    return Sample(
        image=normalise.image(normalisation, volumes, case_id),
        truth=truth,
        zero=mean / std,
        background=normalise.background(normalisation, volumes.entry(case_id)),
    )


def _draw(columns: dict[str, Sample], path: Path) -> None:
    """A row for each of SHOWN, a column for each sample."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(1.5 * len(columns), 1.6 * len(SHOWN) + 0.3), layout="constrained")
    panels = figure.subplots(len(SHOWN), len(columns), squeeze=False)
    level = int((next(iter(columns.values())).truth > 0).sum(axis=(0, 1)).argmax())
    for column, (name, sample) in enumerate(columns.items()):
        for row, channel in enumerate(SHOWN):
            panel = panels[row, column]
            image = np.where(sample.brain, sample.image, RANGE[0])[:, :, level, CHANNELS.index(channel)]
            panel.imshow(image.T, cmap="gray", vmin=RANGE[0], vmax=RANGE[1], origin="lower")
            tumour = sample.truth[:, :, level] > 0
            if tumour.any():
                panel.contour(tumour.T, levels=[0.5], colors="#E69F00", linewidths=0.8)
            panel.set(xticks=[], yticks=[], ylabel=channel if column == 0 else "")
            if row == 0:
                panel.set_title(name, fontsize=9)
    with replacing(path) as partial:
        figure.savefig(partial, dpi=110)


def _parser() -> cli.Parser:
    parser = cli.Parser(prog="python -m experiments.distortions", description=_DESCRIPTION, epilog=_EPILOG)
    add = parser.add_argument
    add("--data", type=cli.path, metavar="DIR", default=None, help="a BraTS folder (default: the embedded brains)")
    add("--labels", metavar="SCHEMA", default=None, help="what labels mean, if file names do not tell")
    command.add_resolution(parser, 96)
    add("--seed", type=cli.whole(0), metavar="N", default=0, help="decides everything that is random (default: 0)")
    picture = Path("distortions.png")
    add("--output", type=Path, metavar="FILE", default=picture, help="the picture (default: distortions.png)")
    command.add_anonymous(parser)
    return parser


if __name__ == "__main__":
    sys.exit(main())
