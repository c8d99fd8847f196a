"""The rules of import that keep the rooms of the house apart."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ROOMS = ("lms3d", "models", "data", "experiments")
ENTRY_POINTS = {f"lms3d/{name}.py" for name in ("train", "predict", "evaluate", "plan", "doctor")}
TASKS = "lms3d/tasks/"  # what an entry point would say about its task
THINKING = ("lms3d/swap/", "lms3d/keras_step/adaptation.py", "lms3d/keras_step/report.py")
TOUCHING = ("lms3d/swap/tensorflow/", "lms3d/swap/tiers/", "lms3d/swap/engine.py")
PURE = {
    str(path.relative_to(ROOT))
    for path in (ROOT / "lms3d").rglob("*.py")
    if str(path.relative_to(ROOT)).startswith(THINKING) and not str(path.relative_to(ROOT)).startswith(TOUCHING)
}


def sources(room: str) -> list[str]:
    return sorted(str(path.relative_to(ROOT)) for path in (ROOT / room).rglob("*.py"))


def imported(code: str) -> set[str]:
    """Top-level packages that `code` imports anywhere in it, apart from imports for type checkers alone."""
    tree = ast.parse(code)
    typing_only = {
        id(node)
        for block in ast.walk(tree)
        if isinstance(block, ast.If) and isinstance(block.test, ast.Name) and block.test.id == "TYPE_CHECKING"
        for node in ast.walk(block)
    }
    found: set[str] = set()
    for node in ast.walk(tree):
        if id(node) in typing_only:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:  # a relative one stays in its room
            found.add(node.module.split(".")[0])
    return found


def allowed(source: str) -> set[str]:
    room, entry = source.split("/")[0], source in ENTRY_POINTS or source.startswith(TASKS)
    if room in ("models", "data"):
        return {room}
    return (
        set(ROOMS)
        - ({"experiments"} if room == "lms3d" else set())
        - ({"models", "data"} if room == "lms3d" and not entry else set())
    )


@pytest.mark.parametrize("source", [source for room in ROOMS for source in sources(room)])
def test_rooms_are_entered_through_their_doors(source):
    assert imported((ROOT / source).read_text()) & set(ROOMS) <= allowed(source)


@pytest.mark.parametrize("source", sorted(PURE & set(sources("lms3d"))))
def test_the_thinking_half_of_the_engine_knows_no_tensorflow(source):
    assert not imported((ROOT / source).read_text()) & {"tensorflow", "keras"}


def test_imports_are_found_wherever_they_hide():
    code = "if TYPE_CHECKING:\n    import data\ndef f():\n    from models.layers import x\n    import lms3d.units\n"
    assert imported(code) == {"models", "lms3d"}
    assert not imported(code) <= allowed("models/net.py")
    assert not imported(code) <= allowed("lms3d/training/trainer.py")
    assert imported(code) <= allowed("lms3d/train.py")
