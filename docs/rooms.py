"""The rooms of the code, and which of them imports which.

A room is a folder of `lms3d`, or one of the packages `models`, `data` and `experiments`. Modules of `lms3d` itself are a room
each, but for commands, which are one room together, as are the basics: modules that import nothing but each other and `common`.

An arrow goes from a room to one that it imports, at the top of a file or within a function. Imports for type checkers alone do
not count.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from graphlib import TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("lms3d", "models", "data", "experiments")
COMMANDS, BASICS = "commands", "basics"

Arrow = tuple[str, str]
"""(room that imports, room that is imported)"""


def arrows() -> list[Arrow]:
    """All arrows of the code, sorted, even if they follow from others."""
    found = _imports()
    rooms = _rooms(found)
    return sorted({(rooms[a], rooms[b]) for a, imported in found.items() for b in imported if rooms[a] != rooms[b]})


def essential(given: Iterable[Arrow]) -> list[Arrow]:
    """Without the arrows that follow from others: a -> c where a -> b -> c. CycleError where rooms import each other."""
    below = neighbours(given)
    reached: dict[str, set[str]] = {}
    for room in TopologicalSorter(below).static_order():
        reached[room] = below.get(room, set()).union(*(reached[other] for other in below.get(room, ())))
    return sorted((a, b) for a, near in below.items() for b in near if not any(b in reached[c] for c in near - {b}))


def neighbours(given: Iterable[Arrow]) -> dict[str, set[str]]:
    """Room -> rooms that it imports, if it imports any."""
    below: dict[str, set[str]] = {}
    for a, b in given:
        below.setdefault(a, set()).add(b)
    return below


def captions() -> dict[str, list[str]]:
    """Room -> lines that say what is in it: its modules, or the first sentence of its docstring and its folders."""
    modules, rooms = _modules(), _rooms(_imports())
    lines = {}
    for room in sorted(set(rooms.values())):
        if room in (COMMANDS, BASICS):
            lines[room] = [
                ", ".join(sorted(name.split(".")[1] for name in rooms if rooms[name] == room and "." in name))
            ]
            continue
        file = modules[room if room in modules else f"lms3d.{room}"]
        docstring = " ".join((ast.get_docstring(ast.parse(file.read_text())) or "").split())
        folders = sorted(
            f"{inner.parent.name}/" for inner in file.parent.glob("*/__init__.py") if file.stem == "__init__"
        )
        lines[room] = [docstring.split(". ")[0].split(": ")[0].rstrip("."), ", ".join(folders)]
    return lines


def _modules() -> dict[str, Path]:
    """Name -> file of all modules."""
    files = [file for package in PACKAGES for file in (ROOT / package).rglob("*.py")]
    return {".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): file for file in files}


def _imports() -> dict[str, set[str]]:
    """Module -> modules of this repository that it imports."""
    modules = _modules()
    return {name: _imported(file.read_text(), modules) & set(modules) for name, file in modules.items()}


def _imported(code: str, modules: Mapping[str, Path]) -> set[str]:
    """Dotted names that are imported: of `from a import b` a.b where that is a module, else a."""
    tree = ast.parse(code)
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
            found |= {by_folder(alias.name) for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            inner = [by_folder(f"{node.module}.{alias.name}") for alias in node.names]
            found |= {name if name in modules else by_folder(node.module) for name in inner}
    return found


def by_folder(module: str) -> str:
    """The module by its place in the repository: "lms3d.data.split" -> "data.split"."""
    outer, _, inner = module.partition(".")
    return inner if outer == "lms3d" and inner.split(".")[0] in PACKAGES else module


def _rooms(imports: Mapping[str, set[str]]) -> dict[str, str]:
    """Module -> its room."""
    modules = _modules()
    alone = {name for name in modules if modules[name].parent == ROOT / "lms3d"}
    commands = {name for name in alone if '__name__ == "__main__"' in modules[name].read_text()}
    basics = alone - commands
    lowest = {name for name in modules if name.startswith("lms3d.common")}
    while above := {name for name in basics if not imports[name] <= basics | lowest}:
        basics -= above
    named = dict.fromkeys(commands, COMMANDS) | dict.fromkeys(basics, BASICS)
    return {name: named.get(name) or name.removeprefix("lms3d.").split(".")[0] for name in modules}
