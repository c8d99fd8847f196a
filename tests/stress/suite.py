"""The tests of the suite that `tests.thorough` makes longer, file by file, with other random examples for each seed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.stress.harness import Options, Part, Result
from tests.thorough import VARIABLE

ROOT = Path(__file__).parents[2]
_SECONDS = 4 * 3600
_SHOWN = 3000


def groups() -> list[str]:
    """The names of the files of tests that import `tests.thorough`."""
    files = sorted((ROOT / "tests").rglob("test_*.py"))
    return [str(file.relative_to(ROOT)) for file in files if "from tests.thorough import" in file.read_text()]


def _cases(options: Options, group: str) -> list[str]:
    return [f"seed {options.seed}"]


def _run(options: Options, group: str, case: str) -> Result:
    """Runs a file. If its exit code is not 0, its last lines are the fault."""
    seed, environment = case.removeprefix("seed "), {**os.environ, VARIABLE: "1"}
    environment.pop("CI", None)  # it would draw the same examples each time
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-n", "0", "-q", "--timeout", str(_SECONDS), f"--hypothesis-seed={seed}", group],
        cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True,
    )  # fmt: skip
    return Result(wrong=(done.stdout + done.stderr)[-_SHOWN:] if done.returncode else "")


TESTS = Part(groups=groups(), cases=_cases, run=_run, seconds=_SECONDS)
