"""`python -m experiments.look_at_brains`: a picture of brains, and of what their intensities tell about the labels.

A row for each case: the slice with most of the tumour in the four sequences, with the outline of each label. Below, for each
sequence, how often each z-score occurs in each label and in the rest of the brain, over all cases drawn. If two curves do not
overlap in any sequence, a threshold would tell the labels apart.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lms3d import cli
from lms3d.atomic_files import replacing
from lms3d.data import pseudonyms
from lms3d.data.brats import layouts
from lms3d.data.brats.schema import CHANNELS
from lms3d.data.volumes.case import load_images, load_truth
from lms3d.data.volumes.geometry import foreground_box
from lms3d.data.volumes.labels import LabelSchema
from lms3d.experiments.harness import command, commands

_DESCRIPTION = """\
Draw brains with the outlines of their labels, and histograms of the four sequences by label. Without --data the embedded artificial
brains are drawn."""

_EPILOG = """\
examples:
  python -m experiments.look_at_brains --output brains.png
  python -m experiments.look_at_brains --data ~/BraTS2020 --cases 5

exit codes: 0 done, 2 wrong option or wrong input (one line says what), 130 interrupted"""

COLOURS = ("#0072B2", "#E69F00", "#CC3311", "#009988")
_BINS = np.linspace(-4, 6, 81)  # z-scores

Volumes = tuple[np.ndarray, np.ndarray]
"""The z-scores (X, Y, Z, 4), NaN outside the brain, and the label map (X, Y, Z)."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Reads cases and draws them. Returns the exit code."""
    return command.main("look_at_brains", _parser, _run, arguments)


def _run(options: argparse.Namespace, typed: str) -> None:
    pseudonyms.start(options.anonymous)
    found = layouts.find_cases(commands.data_folder(options.data), labels=options.labels, require_truth=True)
    cases = {pseudonyms.of(case.id): _read(case, found.schema) for case in found.cases[: options.cases]}
    _draw(cases, found.schema, options.output)
    print(f"written: {options.output}")


def _read(case: Any, schema: LabelSchema) -> Volumes:
    images, affine = load_images(case)
    truth = load_truth(case, schema, images.shape[:3], affine)
    assert truth is not None, "find_cases asks for it"
    box = foreground_box(images)
    images, truth = box.crop(images), box.crop(truth)
    images = np.where(images.any(axis=-1, keepdims=True), images, np.nan)
    mean, deviation = np.nanmean(images, axis=(0, 1, 2)), np.nanstd(images, axis=(0, 1, 2))
    return (images - mean) / np.maximum(deviation, 1e-6), truth


def _draw(cases: dict[str, Volumes], schema: LabelSchema, path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(1.9 * len(CHANNELS), 2.2 * len(cases) + 1.5), layout="constrained")
    panels = figure.subplots(len(cases) + 1, len(CHANNELS), squeeze=False, height_ratios=[*[2.2] * len(cases), 1.5])
    for row, (name, (image, truth)) in enumerate(cases.items()):
        level = int((truth > 0).sum(axis=(0, 1)).argmax())
        for column, channel in enumerate(CHANNELS):
            panel = panels[row, column]
            panel.imshow(np.nan_to_num(image[:, :, level, column], nan=-4).T, cmap="gray", vmin=-2.5, vmax=3.5)
            _outline(panel, truth[:, :, level], schema)
            panel.set(xticks=[], yticks=[], ylabel=name if column == 0 else "", title=channel if row == 0 else "")
    for column in range(len(CHANNELS)):
        _histogram(panels[-1, column], [(image[..., column], truth) for image, truth in cases.values()], schema)
    panels[-1, 0].legend(fontsize=6, frameon=False)
    with replacing(path) as partial:
        figure.savefig(partial, dpi=70)


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


def _parser() -> cli.Parser:
    parser = cli.Parser(prog="python -m experiments.look_at_brains", description=_DESCRIPTION, epilog=_EPILOG)
    command.add_volumes(parser)
    add = parser.add_argument
    add("--cases", type=cli.whole(1), metavar="N", default=3, help="cases to draw, the first ones (default: 3)")
    picture = Path("brains.png")
    add("--output", type=Path, metavar="FILE", default=picture, help="the picture (default: brains.png)")
    command.add_anonymous(parser)
    return parser


if __name__ == "__main__":
    sys.exit(main())
