"""Keras's own tests of its trainer and its callbacks pass with LMS, too: nobody here wrote the models and data in them."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.lms3d.keras_step.keras_own_tests import CHOSEN, FEW, SOURCE

SCRIPT = Path(__file__).with_name("keras_own_tests.py")


def test_keras_own_tests_pass_with_lms(tmp_path, commands):
    """A chosen part with every tensor swapped, and a few of it with `LMS()`, whose steps go the same way; the script takes
    `--all`."""
    if not (SOURCE / "trainers/trainer_test.py").exists():
        pytest.skip("this build of Keras comes without its tests")
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")} | {
        "KERAS_BACKEND": "tensorflow", "TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONPATH": str(SCRIPT.parents[3]),
    }  # fmt: skip
    done = subprocess.run(
        [*commands.python(), SCRIPT, tmp_path / "results.json", "--basetemp", tmp_path / "temporary"],
        env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=550, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads((tmp_path / "results.json").read_text())
    assert set(found) == {"lms", "swapped"}
    for mode, result in found.items():
        failed = [name for name, outcome in result["outcomes"].items() if outcome != "passed"]
        assert not failed, f"{mode}: {failed}\n{done.stdout[-5000:]}"
        assert {name.rpartition("::")[2] for name in result["outcomes"]} == set(FEW if mode == "lms" else CHOSEN)
        assert result["steps"] > (10 if mode == "lms" else 100)
    assert found["lms"].get("swap_outs", 0) == 0  # these models are tiny
    assert found["swapped"]["swap_outs"] > 100
