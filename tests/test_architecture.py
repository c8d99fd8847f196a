"""The house: which room may import which, that nothing goes round in circles, and where TensorFlow and Keras may be touched.

Every module is discovered, and has to stand in a room that `ROOMS` names: a new or renamed one cannot drop out in silence.
"""

from __future__ import annotations

import ast
import re
import symtable
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

ROOMS = (
    # What everything may use, then each room on top of those above it. The longest name that fits counts.
    "lms3d.common",
    "lms3d.errors lms3d.units lms3d.registry lms3d.console lms3d.collector lms3d.atomic_files lms3d.after_keras "
    "lms3d.keras_backend lms3d.cli",
    "lms3d.ranks",
    "lms3d.device",
    "lms3d.engine",
    "lms3d.engine.step_model lms3d.engine.request",
    "lms3d.engine.planners",
    "lms3d.engine.planning lms3d.engine.plan_cache lms3d.engine.sweep",
    "lms3d.engine.native",
    "lms3d.engine.tensorflow lms3d.engine.tiers",
    "lms3d.engine.passes",
    "lms3d.engine.choosing",
    "lms3d.engine.engine",
    "lms3d.keras_step",
    "lms3d.scoring",
    "lms3d.config lms3d.machines",
    "lms3d.training",
    "lms3d.tasks",
    "lms3d.command_options",
    "lms3d.plan_display",
    "lms3d lms3d.train lms3d.predict lms3d.package lms3d.evaluate lms3d.plan lms3d.doctor lms3d.launch "
    "lms3d.__main__ lms3d.completion",
)
APART = ("models", "data", "experiments", "deploy")
FOLDERS = ("models", "data", "experiments", "deploy")
"""Packages of lms3d at the top of the repository: an import names `lms3d.models`, a folder and this file `models`."""
DOORS = (
    "lms3d.tasks",
    "lms3d.plan_display",
    "lms3d.train",
    "lms3d.predict",
    "lms3d.package",
    "lms3d.evaluate",
    "lms3d.plan",
)
"""Which may enter `models` and `data`."""
TOUCHING = (
    "lms3d.engine.native",
    "lms3d.engine.tensorflow",
    "lms3d.engine.tiers",
    "lms3d.engine.passes",
    "lms3d.engine.engine",
)
THINKING = ("lms3d.engine", "lms3d.keras_step.adaptation", "lms3d.keras_step.report")
PLANNERS = "lms3d.engine.planners"
PRIVATE_NAMES = {
    "lms3d.device.gpu_pool",
    "lms3d.engine.tensorflow.functions",
    "lms3d.engine.tensorflow.reading",
    "lms3d.engine.tensorflow.surgery",
    "lms3d.keras_step.attachment",
    "lms3d.ranks.horovod",
    "lms3d.ranks.tensorflow_server",
}
"""The only homes of names that TensorFlow, Keras and Horovod keep to themselves."""
SURGERY = "lms3d.engine.tensorflow.surgery"
EDITING = ("lms3d.engine.passes",)
"""Which may edit a traced graph."""
ADDING = {"insertion", "keep", "needs"}
"""What tiers use of `SURGERY`: a pass asks them for ops, and they edit none that are there."""
EDITS = {"_update_input", "_add_control_inputs", "_remove_all_control_inputs", "_set_attr", "_set_func_attr"}
"""TensorFlow's own names for an edit."""


@dataclass(frozen=True)
class Module:
    """A source file, and what it imports: dotted names, of modules if there are such, else of names in them."""

    name: str
    tree: ast.Module = field(repr=False)
    imports: frozenset[str]
    typing_imports: frozenset[str]


def by_folder(dotted: str) -> str:
    """A name by its place in the repository: "lms3d.data.split" -> "data.split"."""
    outer, _, inner = dotted.partition(".")
    return inner if outer == "lms3d" and inner.split(".")[0] in FOLDERS else dotted


def imports_of(tree: ast.Module, package: str = "") -> tuple[frozenset[str], frozenset[str]]:
    """What a module imports anywhere in it, and what for type checkers alone. package: that it lies in."""
    typing_only = {
        id(node)
        for block in ast.walk(tree)
        if isinstance(block, ast.If) and ast.unparse(block.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")
        for node in ast.walk(block)
    }
    found: tuple[set[str], set[str]] = set(), set()
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) + 1 - node.level] if node.level else []
            source = ".".join([*above, *([node.module] if node.module else [])])
            names = [f"{source}.{alias.name}" for alias in node.names]
        found[id(node) in typing_only].update(map(by_folder, names))
    return frozenset(found[0]), frozenset(found[1])


@cache
def modules() -> dict[str, Module]:
    """Every module of the house by its dotted name."""
    found = {}
    for room in ("lms3d", *APART):
        for path in sorted((ROOT / room).rglob("*.py")):
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
            tree = ast.parse(path.read_text())
            package = name if path.stem == "__init__" else name.rpartition(".")[0]
            found[name] = Module(name, tree, *imports_of(tree, package))
    return found


def module_of(dotted: str) -> str | None:
    """The module of the house that a dotted name is or lies in; None for a foreign one."""
    parts = dotted.split(".")
    while parts and ".".join(parts) not in modules():
        parts.pop()
    return ".".join(parts) or None


def own(imported: frozenset[str], importer: str) -> Iterator[str]:
    for dotted in sorted(imported):
        module = module_of(dotted)
        if module is not None and module != importer:
            yield module


def within(module: str, rooms: tuple[str, ...]) -> bool:
    return any(module == room or module.startswith(f"{room}.") for room in rooms)


def floor_of(module: str) -> int | None:
    """The place of a module's room in `ROOMS`; None if no room is its own."""
    rooms = {room: height for height, names in enumerate(ROOMS) for room in names.split()}
    parts = module.split(".")
    while len(parts) > 1:
        if ".".join(parts) in rooms:
            return rooms[".".join(parts)]
        parts.pop()
    return rooms["lms3d"] if module == "lms3d" else None


@pytest.mark.parametrize("name", [name for name in modules() if name.startswith("lms3d")])
def test_imports_run_one_way(name):
    height = floor_of(name)
    assert height is not None, f"{name} stands in no room that ROOMS names"
    module = modules()[name]
    for imported in own(module.imports | module.typing_imports, name):
        if imported == "lms3d":
            continue  # the package itself loads its names when they are asked for
        if imported.startswith("lms3d"):
            below = floor_of(imported)
            assert below is not None, imported
            assert below <= height, f"{name} imports {imported}, which stands above it"
        else:
            assert imported.split(".")[0] in ("models", "data"), f"nobody imports {imported}"
            assert within(name, DOORS), f"{name} imports {imported}"


def planner_of(module: str) -> str | None:
    """The planner that a module is or belongs to: the part of its name behind `lms3d.engine.planners`."""
    return module.removeprefix(f"{PLANNERS}.").split(".")[0] if module.startswith(f"{PLANNERS}.") else None


@pytest.mark.parametrize("name", [name for name in modules() if planner_of(name)])
def test_no_planner_imports_another(name):
    """A package such as hybrid/ counts as one planner. Who needs another's plan asks the registry."""
    module = modules()[name]
    planners = {planner_of(imported) for imported in own(module.imports | module.typing_imports, name)}
    assert planners <= {planner_of(name), None}


def test_nobody_else_imports_the_default_planner():
    """What several ask about a step is in `step_model`; plans come from the registry."""
    hybrid = f"{PLANNERS}.hybrid"
    importers = {
        name
        for name, module in modules().items()
        if not within(name, (hybrid,))
        for imported in own(module.imports | module.typing_imports, name)
        if within(imported, (hybrid,))
    }
    assert importers == set()


@pytest.mark.parametrize("name", [name for name in modules() if name.split(".")[0] in ("models", "data", "deploy")])
def test_models_data_and_deploy_stand_alone(name):
    """The only room of lms3d that data may import is `lms3d.common`, which imports none."""
    module = modules()[name]
    rooms = ("data", "lms3d.common") if within(name, ("data",)) else (name.split(".")[0],)
    assert [
        imported for imported in own(module.imports | module.typing_imports, name) if not within(imported, rooms)
    ] == []


def test_nothing_imports_in_circles():
    graph = {name: set(own(module.imports, name)) for name, module in modules().items()}
    assert circles(graph) == []


@pytest.mark.parametrize("name", modules())
def test_an_imported_name_is_where_it_is_looked_for(name):
    """mypy accepts any name of a package with a `__getattr__`, such as lms3d. An import in a function fails only when it runs."""
    module = modules()[name]
    assert [dotted for dotted in module.imports | module.typing_imports if not is_there(dotted)] == []


def is_there(dotted: str) -> bool:
    """Whether a dotted name is a module of the house or a name in one; true of foreign names."""
    module = module_of(dotted)
    if module in (None, dotted):
        return True
    return dotted.removeprefix(f"{module}.") in names_in(module)


@cache
def names_in(module: str) -> frozenset[str]:
    """The names that a module defines or imports at its top level."""
    top = symtable.symtable(ast.unparse(modules()[module].tree), module, "exec")
    return frozenset(s.get_name() for s in top.get_symbols() if s.is_assigned() or s.is_imported())


def test_a_name_that_has_moved_is_found():
    for dotted in ("lms3d.common.json_values", "lms3d.LMS", "json.loads"):
        assert is_there(dotted)
    assert not is_there("lms3d.json_values")


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Groups of two or more names that reach each other (Tarjan 1972)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(name: str) -> None:
        index[name] = low[name] = len(index)
        stack.append(name)
        for other in sorted(graph[name]):
            if other not in index:
                visit(other)
                low[name] = min(low[name], low[other])
            elif other in stack:
                low[name] = min(low[name], index[other])
        if low[name] == index[name]:
            at = stack.index(name)
            group, stack[at:] = stack[at:], []
            if len(group) > 1:
                found.append(sorted(group))

    for name in graph:
        if name not in index:
            visit(name)
    return found


@pytest.mark.parametrize("name", [name for name in modules() if within(name, THINKING) and not within(name, TOUCHING)])
def test_the_thinking_half_of_the_engine_knows_no_tensorflow(name):
    """Neither itself nor through its imports."""
    seen, waiting = set(), [name]
    while waiting:
        module = waiting.pop()
        if module in seen:
            continue
        seen.add(module)
        imported = modules()[module].imports
        assert not {dotted.split(".")[0] for dotted in imported} & {"tensorflow", "keras"}, module
        waiting += own(imported, module)


@cache
def own_private_names() -> frozenset[str]:
    """Names with an underscore that the house itself defines: functions, classes, variables, attributes, fields."""
    found: set[str] = set()
    for module in modules().values():
        for node in ast.walk(module.tree):
            match node:
                case ast.FunctionDef(name=name) | ast.ClassDef(name=name) | ast.Name(id=name, ctx=ast.Store()):
                    found.add(name)
                case ast.Attribute(attr=name, ctx=ast.Store()):
                    found.add(name)
    return frozenset(found)


def foreign(attribute: str) -> bool:
    """Whether an attribute is private, and neither the house's nor Python's own."""
    private = attribute.startswith("_") and not attribute.startswith("__")
    return private and attribute not in own_private_names() | PYTHONS_OWN


PYTHONS_OWN = {"_actions", "_CData", "_Pointer", "_SimpleCData", "_asdict", "_exit", "_fields", "_replace"}


@pytest.mark.parametrize("name", sorted(set(modules()) - PRIVATE_NAMES))
def test_private_names_of_libraries_have_one_home_each(name):
    module = modules()[name]
    private = sorted(d for d in module.imports if d.startswith(("tensorflow.python", "tensorflow.core", "keras.src")))
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Attribute) and foreign(node.attr):
            private.append(ast.unparse(node))
    assert private == []


def surgery_of(tree: ast.Module) -> set[str]:
    """The functions of `SURGERY` that a module names."""
    used = {n.attr for n in ast.walk(tree) if isinstance(n, ast.Attribute) and ast.unparse(n.value) == "surgery"}
    return used | {d.removeprefix(f"{SURGERY}.") for d in imports_of(tree)[0] if d.startswith(f"{SURGERY}.")}


@pytest.mark.parametrize("name", [name for name in modules() if name != SURGERY and not within(name, EDITING)])
def test_nothing_but_a_pass_edits_a_graph(name):
    """Whoever wants to, has to write a pass: its manager checks what it requires and ensures, and says what it changed."""
    module = modules()[name]
    if within(name, ("lms3d.engine.tiers",)):
        assert surgery_of(module.tree) <= ADDING
    else:
        assert SURGERY not in set(own(module.imports | module.typing_imports, name))
    assert not [n.attr for n in ast.walk(module.tree) if isinstance(n, ast.Attribute) and n.attr in EDITS]


def test_an_edit_is_found_however_it_is_imported():
    code = f"from lms3d.engine.tensorflow import surgery\nfrom {SURGERY} import copy_op\nsurgery.set_input(a, 0, b)"
    assert surgery_of(ast.parse(code)) == {"set_input", "copy_op"}


def test_the_homes_of_private_names_are_where_they_are_said_to_be():
    for name in PRIVATE_NAMES:
        assert name in modules()


def test_imports_are_found_wherever_they_hide():
    code = "if TYPE_CHECKING:\n    from lms3d import data\ndef f():\n    from lms3d.models.layers import x\n"
    code += "    import lms3d.units\n"
    assert imports_of(ast.parse(code)) == ({"models.layers.x", "lms3d.units"}, {"data"})
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == [["a", "b", "c"]]
    assert floor_of("lms3d.engine.planners.hybrid.search") == floor_of("lms3d.engine.planners")
    assert floor_of("lms3d.nowhere") is None
    assert [planner_of(f"{PLANNERS}{end}") for end in ("", ".off", ".hybrid.search")] == [None, "off", "hybrid"]


PAGE = (ROOT / "docs" / "architecture.md").read_text()
WALKS = ("The way of a volume", "The way of a memory limit")


def walk(title: str) -> list[list[str]]:
    """The modules that each line of a walk's table names."""
    table = PAGE.partition(f"## {title}")[2].partition("\n## ")[0]
    files = [
        re.findall(r"`((?:lms3d|data|models)/[\w/]+\.py)`", line) for line in table.splitlines() if line[:1] == "|"
    ]
    return [[file[:-3].replace("/", ".").removesuffix(".__init__") for file in line] for line in files if line]


@pytest.mark.parametrize("title", WALKS)
def test_a_walk_goes_along_imports(title):
    """A module of each line imports one of the next, or is imported by it, or a third one that the walk names joins the two."""
    lines = walk(title)
    named = {name for line in lines for name in line}
    assert len(lines) > 4
    assert named <= set(modules())
    for here, there in pairwise(lines):
        assert joined(here, there, named), f"no import joins {here} and {there}"


def test_a_walk_that_jumps_is_found():
    first, last = ["lms3d.command_options"], ["lms3d.engine.request"]
    assert not joined(first, last, {*first, *last})
    assert joined(first, ["lms3d.units"], set())
    assert joined(["lms3d.cli"], first, set())
    assert joined(["lms3d.train"], ["lms3d.tasks.brats.task"], {"lms3d.tasks"}), "by its name in a registry"


def joined(here: list[str], there: list[str], named: set[str]) -> bool:
    """Whether an import joins two lines of a walk, or two imports of a module that is named."""
    above, below = ({*line}.union(*map(neighbours, line)) for line in (here, there))
    return bool(above & set(there) or above & below & named)


@cache
def neighbours(name: str) -> frozenset[str]:
    """The modules that a module imports or has in a registry, and the modules that have it."""
    return frozenset(one for a, b in edges() if name in (a, b) for one in (a, b))


@cache
def edges() -> frozenset[tuple[str, str]]:
    """(module, other): all imports, those for type checkers included, and the places in registries ("module:attribute")."""
    found = set()
    for name, module in modules().items():
        places = {by_folder(node.value.partition(":")[0]) for node in ast.walk(module.tree) if is_place(node)}
        found |= {(name, other) for other in own(module.imports | module.typing_imports | places, name)}
    return frozenset(found)


def is_place(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and bool(re.fullmatch(r"lms3d[\w.]+:\w+", str(node.value)))


def bare_imports(tree: ast.Module) -> set[str]:
    """The imports of `data`, `models` or `experiments` without `lms3d` before them. `deploy` is tested as what it is: apart."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names.add(str(node.module))
    return {name for name in names if name.split(".")[0] in set(FOLDERS) - {"deploy"}}


def test_no_module_is_loaded_twice():
    """`import data` works at the top of a checkout only, and would make a second module beside `lms3d.data`."""
    files = [path for room in ("lms3d", *APART, "docs", "tests") for path in (ROOT / room).rglob("*.py")]
    assert [str(path.relative_to(ROOT)) for path in files if bare_imports(ast.parse(path.read_text()))] == []
    assert bare_imports(ast.parse("import data.split\nfrom models import x\nfrom lms3d import data")) == {
        "data.split",
        "models",
    }


def test_an_installation_has_every_package():
    """Without an editable install only what pyproject.toml lists is there."""
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    listed = [by_folder(package) for package in listed]
    there = {
        str(path.parent.relative_to(ROOT)).replace("/", ".")
        for room in ("lms3d", *APART)
        for path in (ROOT / room).rglob("*.py")
    }
    assert set(listed) == there | {"deploy"}
