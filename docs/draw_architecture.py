"""`python -m docs.draw_architecture`: draws docs/architecture.png, the rooms of the code and which of them imports which.

A room is a folder of `lms3d`, or one of the packages `models`, `data` and `experiments`. Modules of `lms3d` itself are a room each,
but for commands, which are one room together, as are the basics: modules that import nothing but each other.

An arrow goes from a room to one that it imports, at the top of a file or within a function; imports for type checkers alone do not
count. Arrows that follow from others (a -> b -> c, so a -> c) are left out. The picture holds its arrows as text, too, which
`tests/test_docs.py` compares with the code.
"""

from __future__ import annotations

import ast
import json
import sys
from collections.abc import Iterable, Mapping
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from pathlib import Path
from statistics import mean
from textwrap import fill
from typing import NamedTuple

from matplotlib.path import Path as Curve

ROOT = Path(__file__).resolve().parent.parent
PICTURE = ROOT / "docs" / "architecture.png"
PACKAGES = ("lms3d", "models", "data", "experiments")
COMMANDS, BASICS = "commands", "basics"

WIDTH, HEIGHT = 0.9, 0.62  # of a box; rooms are 1 apart
WIDEST = 36  # characters in a line of a box
SWEEPS = 60

Arrow = tuple[str, str]
"""(room that imports, room that is imported)"""


class Place(NamedTuple):
    """Of the middle of a room, or of a bend of an arrow; y is the level."""

    x: float
    y: float


def arrows() -> list[Arrow]:
    """All arrows of the code, sorted; also those that follow from others."""
    found = _module_imports()
    rooms = _rooms(found)
    return sorted({(rooms[a], rooms[b]) for a, imported in found.items() for b in imported if rooms[a] != rooms[b]})


def essential(given: Iterable[Arrow]) -> list[Arrow]:
    """Without the arrows that follow from others. CycleError where rooms import each other in a circle."""
    below: dict[str, set[str]] = {}
    for a, b in given:
        below.setdefault(a, set()).add(b)
    reached: dict[str, set[str]] = {}
    for room in TopologicalSorter(below).static_order():
        reached[room] = below.get(room, set()).union(*(reached[other] for other in below.get(room, ())))
    return sorted(
        (a, b) for a, others in below.items() for b in others if not any(b in reached[c] for c in others - {b})
    )


def drawn_arrows(picture: Path = PICTURE) -> list[Arrow]:
    """The arrows that a picture holds as text."""
    from PIL import Image

    with Image.open(picture) as image:
        return [(a, b) for a, b in json.loads(image.info["arrows"])]


def _modules() -> dict[str, Path]:
    """Name -> file of all modules."""
    files = [file for package in PACKAGES for file in (ROOT / package).rglob("*.py")]
    return {".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): file for file in files}


def _module_imports() -> dict[str, set[str]]:
    """Module -> modules of this repository that it imports."""
    modules = _modules()
    return {name: _imported(file, modules) & set(modules) for name, file in modules.items()}


def _imported(file: Path, modules: Iterable[str]) -> set[str]:
    """Dotted names that are imported: of `from a import b` a.b where that is a module, else a."""
    tree = ast.parse(file.read_text())
    for_type_checkers = {
        id(node)
        for block in ast.walk(tree)
        if isinstance(block, ast.If) and isinstance(block.test, ast.Name) and block.test.id == "TYPE_CHECKING"
        for node in ast.walk(block)
    }
    found: set[str] = set()
    for node in ast.walk(tree):
        if id(node) in for_type_checkers:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= inner if inner <= set(modules) else {node.module} | inner
    return found


def _rooms(found: Mapping[str, set[str]]) -> dict[str, str]:
    """Module -> its room."""
    modules = _modules()
    alone = {name for name in modules if modules[name].parent == ROOT / "lms3d"}
    commands = {name for name in alone if '__name__ == "__main__"' in modules[name].read_text()}
    basics = alone - commands
    while outgoing := {name for name in basics if not found[name] <= basics}:
        basics -= outgoing

    def room(name: str) -> str:
        if name in commands:
            return COMMANDS
        if name in basics:
            return BASICS
        package, *inner = name.split(".")
        return inner[0] if package == "lms3d" else package

    return {name: room(name) for name in modules}


def _captions() -> dict[str, str]:
    """Room -> what is in it: its modules where it is no folder, else the first sentence of its docstring and its folders."""
    modules, rooms = _modules(), _rooms(_module_imports())
    captions = {}
    for room in set(rooms.values()):
        if room in (COMMANDS, BASICS):
            inner = sorted(name.split(".")[1] for name in rooms if rooms[name] == room and name != "lms3d")
            captions[room] = fill(", ".join(inner), WIDEST)
            continue
        file = modules[room if room in rooms else f"lms3d.{room}"]
        sentence = (
            (ast.get_docstring(ast.parse(file.read_text())) or "").replace("\n", " ").split(". ")[0].split(": ")[0]
        )
        folders = (
            sorted(inner.parent.name for inner in file.parent.glob("*/__init__.py")) if file.stem == "__init__" else []
        )
        captions[room] = "\n".join(
            [fill(sentence.rstrip("."), WIDEST), *([", ".join(f"{name}/" for name in folders)] * bool(folders))]
        )
    return captions


# Layout: Sugiyama, Tagawa, Toda (1981): levels by the longest way down, then rooms sorted by the mean place of their neighbours.


def _levels(given: list[Arrow]) -> dict[str, int]:
    """Room -> level: 0 at the bottom, each above all that it imports."""
    below: dict[str, set[str]] = {}
    for a, b in given:
        below.setdefault(a, set()).add(b)
    level: dict[str, int] = {}
    for room in TopologicalSorter(below).static_order():
        level[room] = 1 + max((level[other] for other in below.get(room, ())), default=-1)
    return level


def _places(given: list[Arrow]) -> tuple[dict[str, Place], list[list[str]]]:
    """(place of each room and bend, way of each arrow through rooms and bends)."""
    level = _levels(given)
    ways = []
    for a, b in given:
        bends = [f"{a}>{b}>{height}" for height in range(level[a] - 1, level[b], -1)]
        level |= {bend: int(bend.split(">")[2]) for bend in bends}
        ways.append([a, *bends, b])
    near: dict[str, list[str]] = {name: [] for name in level}
    for a, b in (pair for way in ways for pair in pairwise(way)):
        near[a].append(b)
        near[b].append(a)
    rows = [sorted(name for name in level if level[name] == height) for height in range(max(level.values()) + 1)]
    x = {name: float(place) for row in rows for place, name in enumerate(row)}
    for sweep in range(SWEEPS):
        for row in rows if sweep % 2 else rows[::-1]:
            wanted = {name: mean(x[other] for other in near[name]) for name in row}
            row.sort(key=wanted.__getitem__)
            x |= _apart(row, wanted)
    return {name: Place(x[name], level[name]) for name in level}, ways


def _apart(row: list[str], wanted: Mapping[str, float]) -> dict[str, float]:
    """Where the rooms and bends of a row go: in this order, near the places that they want, with room between them."""
    x = {row[0]: wanted[row[0]]}
    for left, right in pairwise(row):
        gap = 1.0 - 0.35 * sum(">" in name for name in (left, right))
        x[right] = max(wanted[right], x[left] + gap)
    aside = mean(x[name] - wanted[name] for name in row)
    return {name: x[name] - aside for name in row}


def draw(picture: Path = PICTURE) -> None:
    """Writes the picture. CycleError where rooms import each other in a circle."""
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot as plt
    from matplotlib.patches import FancyArrowPatch, Rectangle

    shown = essential(arrows())
    places, ways = _places(shown)
    across, up = [place.x for place in places.values()], [place.y for place in places.values()]
    figure, axes = plt.subplots(figsize=(2.8 * (max(across) - min(across) + 1), 1.15 * (max(up) + 1)))
    axes.set(xlim=(min(across) - 0.5, max(across) + 0.5), ylim=(-0.5, max(up) + 0.5))
    axes.axis("off")
    for way in ways:
        axes.add_patch(FancyArrowPatch(
            path=_curve([places[name] for name in way]), arrowstyle="-|>", mutation_scale=12, color="#666666"
        ))  # fmt: skip
    for name, caption in _captions().items():
        x, y = places[name]
        axes.add_patch(Rectangle((x - WIDTH / 2, y - HEIGHT / 2), WIDTH, HEIGHT, fc="#e8f1f8", ec="#0072b2"))
        axes.text(x, y + 0.18, name, ha="center", va="center", weight="bold", size=11)
        axes.text(x, y - 0.09, caption, ha="center", va="center", size=7.5, linespacing=1.1)
    figure.savefig(picture, dpi=100, bbox_inches="tight", metadata={"arrows": json.dumps(shown)})
    plt.close(figure)


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
        sys.exit(f"rooms import each other in a circle: {' -> '.join(error.args[1])}; see tests/test_architecture.py")
