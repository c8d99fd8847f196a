"""`python -m experiments.look_at_brains`: a picture of brains, and of what their intensities tell about the labels.

A row for each case: the slice with most of the tumour in the four sequences, with the outline of each label. Below, for each
sequence, how often each z-score occurs in each label and in the rest of the brain, over all cases drawn. If two curves do not
overlap in any sequence, a threshold would tell the labels apart. Without --data the embedded artificial brains are drawn.

--distorted: one case as it is, and after each of the distortions that `lms3d.train --distort` adds, T1 with contrast and FLAIR.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lms3d import cli
from lms3d.console import progress
from lms3d.data import pseudonyms
from lms3d.data.brats import layouts
from lms3d.data.brats.preprocess import cube
from lms3d.data.brats.schema import CHANNELS
from lms3d.data.volumes import cache, normalise
from lms3d.data.volumes.data_set import DataSet
from lms3d.data.volumes.distortions import DISTORTIONS, Sample
from lms3d.data.volumes.labels import LabelSchema
from lms3d.experiments.harness import baseline, command, commands

_EPILOG = """\
examples:
  python -m experiments.look_at_brains --output brains.png
  python -m experiments.look_at_brains --data ~/BraTS2020 --cases 5
  python -m experiments.look_at_brains --distorted --output distortions.png --seed 3
"""

DISTORTED = ("t1ce", "flair")
RANGE = (-2.5, 3.5)  # z-scores, black to white
COLOURS = ("#0072B2", "#E69F00", "#CC3311", "#009988")
_BINS = np.linspace(-4, 6, 81)  # z-scores

Volumes = tuple[np.ndarray, np.ndarray]
"""The z-scores (X, Y, Z, 4), NaN outside the brain, and the label map (X, Y, Z)."""


def _run(options: argparse.Namespace, typed: str) -> None:
    pseudonyms.start(options.anonymous)
    found = layouts.find_cases(commands.data_folder(options.data), labels=options.labels, require_truth=True)
    if options.distorted:
        _draw_distorted(_sample(found, options.resolution), options.seed, options.output)
    else:
        cases = {pseudonyms.of(case.id): _read(case, found.schema) for case in found.cases[: options.cases]}
        _draw(cases, found.schema, options.output)
    print(f"written: {options.output}")


def _read(case: Any, schema: LabelSchema) -> Volumes:
    images, truth = baseline.read(case, schema)
    images = np.where(images.any(axis=-1, keepdims=True), images, np.nan)
    mean, deviation = np.nanmean(images, axis=(0, 1, 2)), np.nanstd(images, axis=(0, 1, 2))
    return (images - mean) / np.maximum(deviation, 1e-6), truth


def _draw(cases: dict[str, Volumes], schema: LabelSchema, path: Path) -> None:
    from matplotlib.figure import Figure

    from lms3d.scoring.figures import style

    figure = Figure(figsize=(1.9 * len(CHANNELS), 2.2 * len(cases) + 1.5), layout="constrained")
    panels = figure.subplots(len(cases) + 1, len(CHANNELS), squeeze=False, height_ratios=[*[2.2] * len(cases), 1.5])
    for row, (name, (image, truth)) in enumerate(cases.items()):
        level = int((truth > 0).sum(axis=(0, 1)).argmax())
        for column, channel in enumerate(CHANNELS):
            panel = panels[row, column]
            panel.imshow(np.nan_to_num(image[:, :, level, column], nan=-4).T, cmap="gray", vmin=RANGE[0], vmax=RANGE[1])
            _outline(panel, truth[:, :, level], schema)
            panel.set(xticks=[], yticks=[], ylabel=name if column == 0 else "", title=channel if row == 0 else "")
    for column in range(len(CHANNELS)):
        _histogram(panels[-1, column], [(image[..., column], truth) for image, truth in cases.values()], schema)
    panels[-1, 0].legend(fontsize=6, frameon=False)
    style.write(figure, path, dpi=70)


def _outline(panel: Any, labels: np.ndarray, schema: LabelSchema) -> None:
    for colour, value in zip(COLOURS, schema.labels.values(), strict=False):
        if (labels == value).any():
            panel.contour((labels == value).T, levels=[0.5], colors=colour, linewidths=0.7)


def _histogram(panel: Any, volumes: Sequence[Volumes], schema: LabelSchema) -> None:
    """One line for each label and for the rest of the brain: the share of its voxels in each bin."""
    for colour, (name, value) in zip(("black", *COLOURS), {"rest": 0, **schema.labels}.items(), strict=False):
        values = np.concatenate([image[(truth == value) & np.isfinite(image)] for image, truth in volumes])
        counts, _ = np.histogram(values, _BINS)
        panel.plot(_BINS[:-1], counts / max(1, counts.sum()), color=colour, linewidth=1, label=name)
    panel.set(yticks=[], xlabel="z-score")


def _sample(found: DataSet, resolution: int) -> Sample:
    """The first case as a training sample."""
    with progress() as report:
        volumes = cache.build(found.cases[:1], found.schema, cube(resolution, anti_alias=True), progress=report)
    normalisation, case_id = normalise.PerCase(), volumes.ids[0]
    mean, std = normalisation.figures(volumes.entry(case_id))
    truth = volumes.truth(case_id)
    assert truth is not None, "find_cases asks for it"
    return Sample(
        image=normalise.image(normalisation, volumes, case_id), truth=truth, zero=mean / std,
        background=normalise.background(normalisation, volumes.entry(case_id)),
    )  # fmt: skip


def _draw_distorted(sample: Sample, seed: int, path: Path) -> None:
    """A row for each of DISTORTED; a column for the sample as it is, and for each distortion."""
    from matplotlib.figure import Figure

    from lms3d.scoring.figures import style

    columns = {"as it is": sample}
    for name, one in DISTORTIONS.items():
        columns[name] = one.apply(sample, np.random.default_rng([seed, len(columns)]))
    figure = Figure(figsize=(1.5 * len(columns), 1.6 * len(DISTORTED) + 0.3), layout="constrained")
    panels = figure.subplots(len(DISTORTED), len(columns), squeeze=False)
    level = int((sample.truth > 0).sum(axis=(0, 1)).argmax())
    for column, (name, shown) in enumerate(columns.items()):
        for row, channel in enumerate(DISTORTED):
            panel = panels[row, column]
            image = np.where(shown.brain, shown.image, RANGE[0])[:, :, level, CHANNELS.index(channel)]
            panel.imshow(image.T, cmap="gray", vmin=RANGE[0], vmax=RANGE[1], origin="lower")
            tumour = shown.truth[:, :, level] > 0
            if tumour.any():
                panel.contour(tumour.T, levels=[0.5], colors=COLOURS[1], linewidths=0.8)
            panel.set(xticks=[], yticks=[], ylabel=channel if column == 0 else "")
            if row == 0:
                panel.set_title(name, fontsize=9)
    style.write(figure, path, dpi=110)


def _options(parser: cli.Parser) -> None:
    command.add_volumes(parser)
    add = parser.add_argument
    add("--cases", type=cli.whole(1), metavar="N", default=3, help="cases to draw, the first ones (default: 3)")
    add("--distorted", action="store_true", default=False, help="draw one case under each distortion (default: off)")
    command.add_resolution(parser, 96, what="side of the cube of --distorted")
    add("--seed", type=cli.whole(0), metavar="N", default=0, help="decides how --distorted distorts (default: 0)")
    picture = Path("brains.png")
    add("--output", type=Path, metavar="FILE", default=picture, help="the picture (default: brains.png)")
    command.add_anonymous(parser)


main, _parser = command.of("look_at_brains", _run, _options, __doc__, _EPILOG)


if __name__ == "__main__":
    sys.exit(main())
