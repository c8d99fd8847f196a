"""`python -m docs.draw_architecture`: draws docs/architecture.png, the rooms of the code and which of them imports which.

Arrows that follow from others are left out. The picture holds its arrows as text, too, which `tests/test_docs.py` compares with
the code. The layout is that of Sugiyama, Tagawa, Toda (1981): levels by the longest way down, then rooms and bends of arrows
sorted within each level by the mean place of their neighbours.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from pathlib import Path
from statistics import mean
from textwrap import fill
from typing import NamedTuple

import matplotlib as mpl
from matplotlib import pyplot as plt
from matplotlib.patches import FancyArrowPatch, Rectangle
from matplotlib.path import Path as Curve
from PIL import Image

from docs import rooms
from docs.rooms import Arrow

PICTURE = rooms.ROOT / "docs" / "architecture.png"
WIDTH, HEIGHT = 0.9, 0.76  # of a box; boxes are 1 apart
INCHES = (3.0, 1.2)  # for each of these units, across and up
WIDEST = 40  # characters in a line of a box
SWEEPS = 60


class Place(NamedTuple):
    """The middle of a room, or a bend of an arrow; y is the level."""

    x: float
    y: float


def draw(picture: Path = PICTURE) -> None:
    """Writes the picture. Raises CycleError if rooms import each other in a circle."""
    mpl.use("agg")
    captions, shown = rooms.captions(), rooms.essential(rooms.arrows())
    places, ways = _places(captions, shown)
    across, up = [place.x for place in places.values()], [place.y for place in places.values()]
    size = (INCHES[0] * (max(across) - min(across) + 1), INCHES[1] * (max(up) + 1))
    figure, axes = plt.subplots(figsize=size)
    axes.set(xlim=(min(across) - 0.5, max(across) + 0.5), ylim=(-0.5, max(up) + 0.5))
    axes.axis("off")
    for way in ways:
        path = _curve([places[name] for name in way])
        axes.add_patch(FancyArrowPatch(path=path, arrowstyle="-|>", mutation_scale=12, color="#666666"))
    for name, lines in captions.items():
        x, y = places[name]
        axes.add_patch(Rectangle((x - WIDTH / 2, y - HEIGHT / 2), WIDTH, HEIGHT, fc="#e8f1f8", ec="#0072b2"))
        axes.text(x, y + HEIGHT / 2 - 0.04, name, ha="center", va="top", weight="bold", size=11)
        text = "\n".join(fill(line, WIDEST) for line in lines if line)
        axes.text(x, y + HEIGHT / 2 - 0.23, text, ha="center", va="top", size=7, linespacing=1.1)
    figure.savefig(picture, dpi=100, bbox_inches="tight", metadata={"arrows": json.dumps(shown)})
    plt.close(figure)


def drawn_arrows(picture: Path = PICTURE) -> list[Arrow]:
    """The arrows that a picture holds as text."""
    with Image.open(picture) as image:
        return [(a, b) for a, b in json.loads(image.info["arrows"])]


def _places(names: Iterable[str], shown: list[Arrow]) -> tuple[dict[str, Place], list[list[str]]]:
    """(place of each room and bend, way of each arrow through rooms and bends)."""
    level = _levels(names, shown)
    ways = []
    for a, b in shown:
        bends = {f"{a}>{b}>{height}": height for height in range(level[a] - 1, level[b], -1)}
        level |= bends
        ways.append([a, *bends, b])
    near: dict[str, list[str]] = {name: [] for name in level}
    for a, b in (pair for way in ways for pair in pairwise(way)):
        near[a].append(b)
        near[b].append(a)
    rows = [sorted(name for name in level if level[name] == height) for height in range(max(level.values()) + 1)]
    x = {name: float(place) for row in rows for place, name in enumerate(row)}
    for sweep in range(SWEEPS):
        for row in rows if sweep % 2 else rows[::-1]:
            wanted = {name: mean([x[other] for other in near[name]] or [x[name]]) for name in row}
            row.sort(key=wanted.__getitem__)
            x |= _apart(row, wanted)
    return {name: Place(x[name], level[name]) for name in level}, ways


def _levels(names: Iterable[str], shown: list[Arrow]) -> dict[str, int]:
    """Room -> level: 0 at the bottom, each above all that it imports."""
    below = {name: set[str]() for name in names} | rooms.neighbours(shown)
    level: dict[str, int] = {}
    for room in TopologicalSorter(below).static_order():
        level[room] = 1 + max((level[other] for other in below[room]), default=-1)
    return level


def _apart(row: list[str], wanted: Mapping[str, float]) -> dict[str, float]:
    """Where the rooms and bends of a row go: in this order, near the places that they want, without touching."""
    x = {row[0]: wanted[row[0]]}
    for left, right in pairwise(row):
        gap = 1.0 - 0.35 * sum(">" in name for name in (left, right))
        x[right] = max(wanted[right], x[left] + gap)
    aside = mean(x[name] - wanted[name] for name in row)
    return {name: x[name] - aside for name in row}


def _curve(way: list[Place]) -> Curve:
    """From below the first room to above the last; upright beside the rooms of the levels between."""
    points, kinds = [Place(way[0].x, way[0].y - HEIGHT / 2)], [Curve.MOVETO]
    for above, below in pairwise(way):
        start, end = Place(above.x, above.y - HEIGHT / 2), Place(below.x, below.y + HEIGHT / 2)
        middle = (start.y + end.y) / 2
        points += [start, Place(start.x, middle), Place(end.x, middle), end]
        kinds += [Curve.LINETO, *[Curve.CURVE4] * 3]
    return Curve(points, kinds)


if __name__ == "__main__":
    try:
        draw()
    except CycleError as error:
        sys.exit(f"rooms import each other in a circle: {' -> '.join(error.args[1])}")
