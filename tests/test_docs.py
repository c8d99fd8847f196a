"""The pages in docs/ name every command, option and parameter, and none that does not exist."""

import argparse
import re
from importlib import import_module
from pathlib import Path

import pytest

from lms3d.keras_step.step_log import COLUMNS
from lms3d.swap.planners.tflms import Parameters

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "commands.md").read_text()
SECTIONS = dict(re.findall(r"^## (\S+)\n(.*?)(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE))
COMMANDS = sorted(
    f"{path.parent.name}.{path.stem}"
    for room in ("lms3d", "data", "experiments", "deploy")
    for path in (ROOT / room).glob("*.py")
    if '__name__ == "__main__"' in path.read_text()
)


def options(command: str) -> set[str]:
    parser: argparse.ArgumentParser = import_module(command)._parser()
    return {option for action in parser._actions for option in action.option_strings} - {"-h", "--help"}


def test_every_command_has_its_section():
    assert set(SECTIONS) - {"make"} == set(COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_is_there_and_no_other(command):
    assert set(re.findall(r"(?<![\w-])--[a-z0-9][a-z0-9-]*", SECTIONS[command])) == options(command)


def test_every_target_of_make_is_there():
    targets = set(re.findall(r"^# make (\w+)", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert targets <= set(re.findall(r"`make (\w+)", SECTIONS["make"]))


def test_every_parameter_and_figure_is_on_the_page_for_those_who_come_from_tflms():
    page = set(re.findall(r"[a-z][a-z_]+", (ROOT / "docs" / "from_tflms.md").read_text()))
    assert set(Parameters.__dataclass_fields__) <= page
    assert {"bytes_in_use", "peak_bytes", "limit_bytes", "voxels_per_second"} <= page & set(COLUMNS)
