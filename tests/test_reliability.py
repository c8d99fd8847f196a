"""docs/reliability.md names tests and commands that exist."""

import re
from pathlib import Path

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
    for module in re.findall(r"python -m ([\w.]+)", PAGE):
        path = ROOT / module.replace(".", "/")
        assert path.with_suffix(".py").is_file() or (path / "__main__.py").is_file(), module
    makefile = (ROOT / "Makefile").read_text().partition("torture: horovod")[2]
    assert set(re.findall(r"-m ([\w.]+)", PAGE)) <= set(re.findall(r"-m ([\w.]+)", makefile))
