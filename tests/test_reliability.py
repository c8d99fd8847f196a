"""docs/reliability.md names tests and commands that exist."""

import re
from pathlib import Path

from tests.stress.__main__ import PARTS

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "reliability.md").read_text()


def test_every_promise_names_tests_that_are_there():
    rows = [
        row for row in PAGE.split("## What has been run")[0].splitlines() if row.startswith("| ") and "---" not in row
    ]
    promises = [row for row in rows if not row.startswith("| promise")]
    assert len(promises) > 15
    for row in promises:
        named = re.findall(r"`(tests/[\w/]+\.py)`", row)
        assert named, row
        for name in named:
            assert (ROOT / name).is_file(), name


def test_every_command_is_there():
    parts = [command.split(" --")[0].split() for command in re.findall(r"python -m tests\.stress ([^`]*)", PAGE)]
    assert {"python -m tests.stress"} == set(re.findall(r"python -m [\w.]+", PAGE))
    assert {part for named in parts for part in named} == set(PARTS)  # `make torture` runs them all
