"""The real command with slabs, under a real limit: they stay with the run, interrupted or not, and it ends with the same bits.

The network is a small one (`tests.small`); slabs of the real one are in lms3d/engine/slabs.
"""

import json
import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest

from lms3d.data.phantoms import brains as phantom
from tests.caches import private_cache
from tests.fork_server import Command

LIMIT_MIB = 30
STEP = "train (1, 48, 48, 48, 4) (1, 48, 48, 48, 3)"


@pytest.fixture(scope="module")
def start(tmp_path_factory, commands):
    """Starts `lms3d.train` at 48^3 on its own phantom."""
    brains = phantom.write(tmp_path_factory.mktemp("phantom"), cases=5, spacing_mm=8, workers=1)
    environment = {**os.environ, "LMS3D_CACHE": str(private_cache(tmp_path_factory.mktemp("cache")))}
    new = ["--data", brains, "--resolution", 48, "--steps-per-epoch", 2, "--validation-steps", 1, "--epochs", 1]

    def begin(*arguments, resume=False) -> Command:
        words = [*arguments, *(["--resume"] if resume else new)]
        return commands.start(["-m", "tests.small", "lms3d.train", *words], env=environment)

    return begin


def ended(process: Command) -> tuple[int, str]:
    done = process.end(timeout=400)
    return done.returncode, done.stderr


def checkpoint(run_dir: Path) -> tuple[dict, dict[str, np.ndarray]]:
    with np.load(run_dir / "last/checkpoint.npz") as content:
        arrays = {name: content[name] for name in content.files}
    return json.loads(arrays.pop("state.json").tobytes()), arrays


@pytest.fixture(scope="module")
def straight(start, tmp_path_factory) -> Path:
    run_dir = tmp_path_factory.mktemp("runs") / "straight"
    code, stderr = ended(start("--slabs", 4, "--memory-limit", f"{LIMIT_MIB}MiB", "--output", run_dir))
    assert code == 0, stderr
    return run_dir


def test_the_run_folder_says_which_slabs_each_step_has(straight):
    state, _ = checkpoint(straight)
    assert state["slabs"][STEP] == "4/2"
    assert json.loads((straight / "config.json").read_text())["options"]["slabs"] == "4/2"
    report = json.loads((straight / "lms_plan.json").read_text())["train"]["report"]
    assert report["slabs"] == [[0, 4], [1, 2]]
    assert report["measured_peak_bytes"] <= LIMIT_MIB << 20
    assert "level 0 (48 x 48 x 48) in 4 slabs, level 1 (24 x 24 x 24) in 2" in (straight / "lms_report.md").read_text()


def test_interrupted_and_resumed_under_another_limit_it_keeps_its_slabs_and_its_bits(start, straight, tmp_path):
    run_dir = tmp_path / "run"
    process = start("--slabs", 4, "--memory-limit", f"{LIMIT_MIB}MiB", "--output", run_dir)
    statistics, deadline = run_dir / "lms_stats.csv", time.monotonic() + 300
    while time.monotonic() < deadline and not (statistics.exists() and statistics.read_text().count("\n") >= 2):
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    code, stderr = ended(process)
    assert code == 130, stderr
    assert checkpoint(run_dir)[0]["slabs"][STEP] == "4/2"  # in the midst of the first epoch
    code, stderr = ended(start("--output", run_dir, "--memory-limit", "1GiB", resume=True))  # which asks for none
    assert code == 0, stderr
    one, other = checkpoint(straight), checkpoint(run_dir)
    assert one[0]["slabs"] == other[0]["slabs"]
    assert one[1].keys() == other[1].keys()
    for name, array in one[1].items():
        np.testing.assert_array_equal(other[1][name], array, err_msg=name)


@pytest.mark.parametrize(
    ("options", "expected", "words"),
    [
        (["--slabs", "8"], 2, ["--slabs 8/4 differs from the run", "4/2"]),
        (
            ["--epochs", 2, "--memory-limit", "5MiB"],
            3,
            ["does not fit in 5.00 MiB"],
        ),
    ],
)
def test_a_run_is_not_resumed_with_other_slabs(start, straight, options, expected, words):
    for _ in range(3):  # TensorFlow's own kernels may crash if memory is short (see lms3d.engine.passes.guard)
        code, stderr = ended(start("--output", straight, *options, resume=True))
        if code >= 0:
            break
    assert code == expected, stderr
    *_, last = stderr.splitlines()  # a plan that ran out of memory is told before
    assert all(word in last for word in words), stderr
