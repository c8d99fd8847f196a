"""The shared parts of all figures: colours, plain axes, and writing whole files."""

from __future__ import annotations

import io
import re
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lms3d.atomic_files import replacing

# Okabe and Ito's palette, told apart by all kinds of colour vision (https://jfly.uni-koeln.de/color/).
BLUE, ORANGE, GREEN, VERMILION, PURPLE, SKY = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9"
GREY, BLACK = "#6b6b6b", "#000000"
REGION_COLOURS = {"WT": BLUE, "TC": ORANGE, "ET": GREEN, "RC": VERMILION, "NETC": PURPLE, "CC": SKY, "ED": GREY}
REGION_NAMES = {
    "WT": "whole tumour",
    "TC": "tumour core",
    "ET": "enhancing tumour",
    "RC": "resection cavity",
    "NETC": "non-enhancing core",
    "CC": "cysts",
    "ED": "oedema",
}
"""The names of all regions in `lms3d.data.brats.schema.SCHEMAS`."""
_OTHERS = (BLUE, ORANGE, GREEN, VERMILION, PURPLE, SKY)


def region_colour(region: str, number: int) -> str:
    """The colour of a region, which is one of tumours or has this number among the regions of another data set."""
    return REGION_COLOURS.get(region, _OTHERS[number % len(_OTHERS)])


def region_name(region: str) -> str:
    """The name of a region in words: of one of tumours, or as another data set calls it."""
    return REGION_NAMES.get(region, region)


def in_lines(name: str, longest: int) -> str:
    """A name in lines of at most `longest` characters, broken after spaces, underscores and hyphens alone."""
    lines = [""]
    for word in re.split(r"(?<=[ _-])", name):
        if lines[-1] and len(lines[-1] + word.rstrip()) > longest:
            lines.append("")
        lines[-1] += word
    return "\n".join(line.rstrip() for line in lines)


def plain(axis: Axes) -> None:
    """Removes the frame and draws a pale grid."""
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(alpha=0.25, linewidth=0.6)


def write(figure: Figure, path: Path, *, dpi: int = 150) -> None:
    """Writes the figure, atomically, in the format of the path's ending. StorageError if that fails.

    It is drawn in memory first, because matplotlib's PDF writer turns an error of the disk into an AttributeError.
    """
    content = io.BytesIO()
    figure.savefig(content, format=path.suffix[1:], dpi=dpi)
    with replacing(path) as partial:
        partial.write_bytes(content.getbuffer())


def write_png_and_pdf(figure: Figure, path: Path, *, dpi: int = 150) -> list[Path]:
    """Writes the figure as `path`, with the endings .png and .pdf, and returns both paths. Everything has one place in both: the
    layout, which takes as long as the drawing, is made once."""
    paths = [path.with_suffix(".png"), path.with_suffix(".pdf")]
    for target in paths:
        write(figure, target, dpi=dpi)
        figure.set_layout_engine(None)
    return paths


def save(figure: Figure, path: Path) -> Path:
    """Writes the figure, closes it, and returns the path."""
    write(figure, path)
    plt.close(figure)
    return path
