"""The worst cases on one page: for each case the slice with most disagreement, with the outlines of truth and prediction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.lines import Line2D

from lms3d.scoring.figures.style import GREY, in_lines, plt, region_colour, save

ACROSS = 3
LONG_NAME, LINE = 10, 24  # characters: of a name from which on a row of the legend has few, and of a line of it


@dataclass(frozen=True, kw_only=True)
class Tile:
    """One case."""

    image: np.ndarray
    """The image, (X, Y, Z), of any modality."""
    truth: Mapping[str, np.ndarray]
    """Region -> mask (X, Y, Z)."""
    prediction: Mapping[str, np.ndarray]
    title: str

    @property
    def slice(self) -> int:
        """The axial slice in which most voxels differ, over all regions; the middle slice if none differs."""
        wrong = np.zeros(self.image.shape[2])
        for region, mask in self.truth.items():
            wrong += np.count_nonzero(mask ^ self.prediction[region], axis=(0, 1))
        return int(wrong.argmax()) if wrong.any() else self.image.shape[2] // 2


def draw(tiles: Sequence[Tile], path: Path, *, title: str, modality: str) -> Path:
    """Draws the tiles, with solid lines for the truth and dashed ones for the prediction."""
    down = -(-len(tiles) // ACROSS)
    across = min(ACROSS, len(tiles))
    figure, axes = plt.subplots(
        down, across, figsize=(3.6 * across, 3.9 * down + 0.5), squeeze=False, layout="constrained", facecolor="white"
    )
    regions = list(dict.fromkeys(region for tile in tiles for region in tile.truth))
    colours = {region: region_colour(region, number) for number, region in enumerate(regions)}
    for axis, tile in zip(axes.flat, tiles, strict=False):
        _draw(axis, tile, colours)
    for axis in axes.flat[len(tiles) :]:
        axis.set_visible(False)
    handles = [Line2D([], [], color=colours[region], label=in_lines(region, LINE)) for region in regions]
    handles += [
        Line2D([], [], color=GREY, linestyle=line, label=name) for line, name in (("-", "truth"), ("--", "prediction"))
    ]
    in_a_row = len(handles) if max(map(len, regions), default=0) < LONG_NAME else across
    figure.legend(handles=handles, loc="outside lower center", ncols=in_a_row, frameon=False)
    figure.suptitle(f"{title} ({modality})")
    return save(figure, path)


def _draw(axis: plt.Axes, tile: Tile, colours: Mapping[str, str]) -> None:
    index = tile.slice
    image = tile.image[:, :, index].T
    low, high = np.percentile(image, (1, 99.5))
    axis.imshow(image, cmap="gray", vmin=low, vmax=high, origin="lower", interpolation="nearest")
    for masks, line in ((tile.truth, "-"), (tile.prediction, "--")):
        for region, mask in masks.items():
            if mask[:, :, index].any():
                axis.contour(
                    mask[:, :, index].T, levels=[0.5], colors=[colours[region]], linewidths=1.3, linestyles=line
                )
    axis.set(xticks=[], yticks=[])
    axis.set_title(f"{tile.title}\naxial slice {index + 1} of {tile.image.shape[2]}", fontsize=8)
