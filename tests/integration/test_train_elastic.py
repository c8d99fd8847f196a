"""The real command with `--elastic`: a rank is killed, and the one that is left goes on to the end, LMS at work in both worlds.

The network is a small one (`tests.small`).
"""

import csv
import json
import signal
from contextlib import suppress

import psutil
import pytest

from lms3d.data.phantoms import brains as phantom
from tests.lms3d.ranks.started import LAUNCHER, Started

EPOCHS, STEPS = 3, 12
RATE = 1e-3
TRAIN = ("tests.small", "lms3d.train")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not LAUNCHER.exists(), reason="Horovod is not installed: make horovod"),
]


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    """Two "hosts" that are both this machine: Horovod shuns a host one of whose ranks has failed."""
    folder = tmp_path_factory.mktemp("elastic")
    brains = phantom.write(folder / "brains", cases=5, spacing_mm=8, workers=1)
    script = folder / "discover"
    script.write_text("#!/bin/sh\necho localhost:1\necho 127.0.0.1:1\n")
    script.chmod(0o755)
    launcher = ["-np", "2", "--min-np", "1", "--max-np", "2", "--host-discovery-script", str(script)]
    options = ["--elastic", "--data", brains, "--model", "unet3d", "--resolution", 16, "--epochs", EPOCHS,
               "--steps-per-epoch", STEPS, "--validation-steps", 1, "--warmup-epochs", 0, "--learning-rate", RATE,
               "--lms", "--swapout-threshold", 20, "--output", folder / "run"]  # fmt: skip
    return Started(folder / "log", launcher, "-m", *TRAIN, *map(str, options)), folder / "run"


def test_the_rest_goes_on_when_a_rank_is_killed(job):
    running, run_dir = job
    with running:
        statistics = run_dir / "lms_stats.csv"
        running.until(lambda: statistics.exists() and statistics.read_text().count("\n") > 3, 240)
        (victim,) = [rank for rank in ranks_of(running) if rank.environ()["HOROVOD_HOSTNAME"] == "127.0.0.1"]
        victim.send_signal(signal.SIGKILL)
        running.end(240)
        assert running.process.returncode == 0, running.output
        assert running.left() == []
    assert "A rank is lost: 2 ranks become 1, and training goes on" in running.output
    assert running.output.count("Training ended after") == 1

    with (run_dir / "history.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["epoch"] for row in rows] == [str(number + 1) for number in range(EPOCHS)]
    assert float(rows[-1]["learning_rate"]) == pytest.approx(RATE)  # of one rank; two had twice as much
    assert json.loads((run_dir / "lms_plan.json").read_text())["train"]["report"]["swapped_out_bytes"] > 0
    assert {"best.keras", "last", "split.json", "figures"} <= {path.name for path in run_dir.iterdir()}


def ranks_of(running: Started) -> list[psutil.Process]:
    children = psutil.Process(running.process.pid).children(recursive=True)
    return [child for child in children if words_of(child)[1:4] == ["-m", *TRAIN]]


def words_of(process: psutil.Process) -> list[str]:
    with suppress(psutil.Error):  # it has ended meanwhile
        return process.cmdline()
    return []
