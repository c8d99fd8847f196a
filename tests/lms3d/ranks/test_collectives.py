"""Two ranks that TensorFlow's own collectives link, started by `lms3d.launch`: no Horovod. The results of `job_collectives.py`."""

import os
import re
import signal
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.lms3d.ranks.started import Started
from tests.lms3d.ranks.test_ranks_training import WEIGHTS, flat

LAUNCH = [sys.executable, "-m", "lms3d.launch", "-np", "2"]
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def job(started_by):
    return started_by(LAUNCH, "job_collectives.py", timeout=400)


@pytest.fixture(scope="module")
def found(job):
    return [job.results(rank) for rank in range(2)]


def test_ranks_meet_and_each_sees_its_own_devices_alone(found):
    assert [rank["world"] for rank in found] == [[0, 2, 0, 2], [1, 2, 1, 2]]
    assert [rank["early"] for rank in found] == [[0, 9]] * 2
    assert [rank["limit"] for rank in found] == [400 << 20] * 2
    assert [(rank["kind"], len(rank["devices"])) for rank in found] == [("Collectives", 1)] * 2


def test_messages(found):
    for rank in found:
        assert rank["late_value"] == 0
        assert rank["everyone"] == ["ab", "abab"]
        assert rank["mean"]["b"] == (3 * 1.0 + 1 * 2.0) / 4
        assert rank["mean_one_counts"] == {"a": 5.0}
        assert rank["largest"] == [1.0, 0.0, 0.5]


@pytest.mark.parametrize(("compression", "most"), [("none", 1e-6), ("fp16", 2e-3)])
def test_gradients_are_averaged_in_pieces_one_after_another(found, compression, most):
    for rank in found:
        wrong, bits, stateful, in_turn = rank[f"pieces_{compression}"]
        assert wrong <= most
        assert bits == found[0][f"pieces_{compression}"][1]
        assert (stateful, in_turn) == ([True] * 3, True)
        assert rank["open_shape"] == [0.5] * 3


def test_two_ranks_are_one_rank_with_a_batch_of_two(found):
    mine, alone = found[0]["adam"], found[0]["adam_alone"]
    assert mine == found[1]["adam"]
    weights, expected = flat(mine[:WEIGHTS]), flat(alone[:WEIGHTS])
    assert np.linalg.norm(weights - expected) <= 1e-6 * np.linalg.norm(expected)


@pytest.mark.parametrize("name", ["lms_both", "lms_one"])
def test_swapping_changes_no_bit(found, name):
    assert found[1][name]["swaps"] > 0
    for rank in found:
        assert rank[name]["values"] == rank["lms_none"]["values"]
        assert rank[name]["rows"] == rank["lms_none"]["rows"]


def test_an_error_of_all_ranks_is_told_once_and_its_code_returned(job):
    assert job.code == 2
    assert job.output.count("lms3d: error: no such folder") == 1
    assert "Traceback" not in job.output


def test_a_killed_rank_ends_the_job(tmp_path):
    def steps() -> int:
        file = tmp_path / "steps1"
        return file.read_text().count("\n") if file.exists() else 0

    with Started(tmp_path / "log", (), "job_failure.py", tmp_path, tmp_path / "run", launcher=LAUNCH) as running:
        running.until(lambda: steps() >= 3)
        os.kill(int((tmp_path / "pid1").read_text()), signal.SIGKILL)
        running.end()
        assert running.left() == []
    assert running.process.returncode == 128 + signal.SIGKILL
    (line,) = running.lines
    assert re.search(r"rank 1 of 2 is lost \(it ended without a word\); go on .* --resume", line)
    assert list((Path(tmp_path) / "swap").iterdir()) == []
