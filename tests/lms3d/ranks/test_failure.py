"""A rank that dies or hangs ends the whole job soon, with one line, and leaves nothing behind; the run can be resumed."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest

from tests.lms3d.ranks.started import LAUNCHER, Started

TWO = ("-np", "2", "--gloo")
MOST_SECONDS = 60.0

pytestmark = pytest.mark.skipif(not LAUNCHER.exists(), reason="Horovod is not installed: make horovod")


def job(folder: Path, *more: str) -> Started:
    folder.mkdir(exist_ok=True)
    return Started(folder / "log", TWO, "job_failure.py", folder, folder / "run", *more)


def finished(folder: Path) -> list[dict]:
    with job(folder) as running:
        running.end()
        assert running.process.returncode == 0, running.output
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(2)]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> list[dict]:
    return finished(tmp_path_factory.mktemp("undisturbed"))


def steps_of(folder: Path, rank: int) -> int:
    file = folder / f"steps{rank}"
    return file.read_text().count("\n") if file.exists() else 0


def strike(folder: Path, victim: int, number: signal.Signals, after: int, *more: str) -> tuple[Started, float]:
    """Sends a signal to a rank after so many of its steps. Returns the job, and the seconds until it ended."""
    with job(folder, *more) as running:
        running.until(lambda: steps_of(folder, victim) >= after)
        assert list((folder / "swap").iterdir()), "the ranks swap nothing"
        os.kill(int((folder / f"pid{victim}").read_text()), number)
        seconds = running.end()
        left = time.monotonic() + 5
        while (running.alive() or list((folder / "swap").iterdir())) and time.monotonic() < left:
            time.sleep(0.05)
        assert running.left() == []
        assert list((folder / "swap").iterdir()) == []
    return running, seconds


@pytest.mark.parametrize(("victim", "after"), [(1, 3), (0, 9)], ids=["rank 1", "rank 0"])
def test_a_killed_rank(tmp_path, undisturbed, victim, after):
    running, seconds = strike(tmp_path, victim, signal.SIGKILL, after)
    assert running.process.returncode != 0
    assert seconds < MOST_SECONDS / 3
    (line,) = running.lines
    assert f"rank {victim} of 2 is lost (it ended without a word)" in line
    assert "--resume" in line
    for now, before in zip(finished(tmp_path), undisturbed, strict=True):
        assert now == before  # weights and history, to the bit


def test_a_killed_rank_while_the_other_is_in_a_long_step(tmp_path):
    """The survivor cannot notice the loss in a reduction; its watchdog does."""
    running, seconds = strike(tmp_path, 1, signal.SIGKILL, 6, "0")
    assert running.process.returncode != 0
    assert seconds < MOST_SECONDS / 3
    (line,) = running.lines
    assert "rank 1 of 2 is lost" in line


def test_a_rank_whose_main_thread_hangs_is_named(tmp_path):
    """Its process lives and its heartbeat continues, so no rank is lost. Once it is ended, it is lost."""
    with job(tmp_path, "1", "3") as running:
        running.until(lambda: "keeps the others waiting" in running.output)
        (line,) = running.lines
        assert "rank 1 of 2 keeps the others waiting" in line
        os.kill(int((tmp_path / "pid1").read_text()), signal.SIGKILL)
        running.end()
    assert running.process.returncode != 0
    assert "rank 1 of 2 is lost" in running.lines[-1]


def test_a_rank_that_hangs(tmp_path):
    running, seconds = strike(tmp_path, 1, signal.SIGSTOP, 5)
    assert running.process.returncode != 0
    assert seconds < MOST_SECONDS
    (line,) = running.lines
    assert "rank 1 of 2 is lost (it has not answered for" in line
