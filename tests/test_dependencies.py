"""docs/dependencies.md says what pyproject.toml asks for, and the command that it names works offline."""

import re
import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parent.parent


def asked_for() -> dict[str, str]:
    """Name -> versions, of every requirement but lms3d's own; the first of two counts."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    texts = [*project["dependencies"], *(text for extra in project["optional-dependencies"].values() for text in extra)]
    found: dict[str, str] = {}
    for one in map(Requirement, texts):
        if one.name != "lms3d":
            found.setdefault(one.name, str(one.specifier))
    return found


def rows() -> dict[str, list[str]]:
    lines = re.findall(r"^\| ([\w.-]+) \| (.+) \|$", (ROOT / "docs/dependencies.md").read_text(), re.MULTILINE)
    return {name: rest.split(" | ") for name, rest in lines if name not in ("package", "---")}


def parts(specifier: str) -> set[str]:
    return set(specifier.split(","))


def test_the_table_is_that_of_pyproject():
    told = rows()
    assert told.keys() == asked_for().keys()
    for name, versions in asked_for().items():
        assert parts(told[name][0]) == parts(versions), name
        assert len(told[name]) == 3, name
        assert all(cell.strip() for cell in told[name]), name


def test_everything_installed_states_a_licence():
    try:
        distribution("lms3d")
    except PackageNotFoundError:
        pytest.skip("lms3d is not installed here; `make venv` installs it")
    done = subprocess.run(
        [sys.executable, "-m", "docs.list_dependencies"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    told = {line.split()[0]: line for line in done.stdout.splitlines()}
    assert {"numpy", "tensorflow", "h5py", "pytest"} <= told.keys()  # h5py is Keras's
    assert [name for name in asked_for() if "not stated" in told.get(name.lower(), "")] == []
    assert "BSD-3-Clause" in told["numpy"]
