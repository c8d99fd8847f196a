"""An elastic job shrinks when a rank is killed, and grows when there are more hosts. Training continues.

Ranks are forks of a process with all imports; in integration/test_train_elastic they are not."""

from __future__ import annotations

import csv
import os
import signal
import warnings
from pathlib import Path

import pytest

from lms3d.errors import InputError
from lms3d.ranks import elastic
from tests.fork_server import Commands
from tests.lms3d.ranks.started import LAUNCHER, Started

with_horovod = pytest.mark.skipif(not LAUNCHER.exists(), reason="Horovod is not installed: make horovod")
RATE, SAMPLES, BATCH = 1e-3, 24, 2  # as in elastic_job.py
GLOO_FAULT = "gloo::EnforceNotMet"  # docs/limits.md: now and then Gloo aborts a rank that is left


class Job:
    """Runs elastic_job.py on several "hosts", all on this machine, because Horovod avoids a host on which a rank has failed."""

    def __init__(self, folder: Path, epochs: int, hosts: str, commands: Commands) -> None:
        self.folder, self.steps = folder, folder / "steps"
        self.steps.mkdir()
        self.set_hosts(hosts)
        script = folder / "discover"
        script.write_text(f"#!/bin/sh\ncat '{folder}/hosts'\n")
        script.chmod(0o755)
        ranks = sum(int(line.split(":")[1]) for line in hosts.split())
        launcher = ["-np", str(ranks), "--min-np", "2", "--max-np", "3", "--host-discovery-script", str(script)]
        arguments = folder / "run", str(epochs), self.steps
        self.running = Started(folder / "log", launcher, "elastic_job.py", *arguments, python=commands.python())

    def set_hosts(self, hosts: str) -> None:
        (self.folder / "new").write_text(hosts)
        (self.folder / "new").replace(self.folder / "hosts")

    def lines(self) -> dict[int, list[list[str]]]:
        """process -> [host, rank, size, epoch, steps per epoch, learning rate] of each step so far."""
        return {
            int(file.stem): [line.split() for line in file.read_text().splitlines()] for file in self.steps.iterdir()
        }

    def count(self, size: int) -> int:
        """Steps so far of all ranks, in a world of this size."""
        return sum(line[2] == str(size) for lines in self.lines().values() for line in lines)

    def rows(self) -> list[dict[str, str]]:
        with (self.folder / "run/history.csv").open(newline="") as file:
            return list(csv.DictReader(file))


def steps_of(size: int) -> int:
    return SAMPLES // (size * BATCH)


def check_world(lines: list[list[str]], size: int) -> None:
    """Asserts that the length of an epoch and the learning rate are right for so many ranks."""
    assert {(line[4], line[5]) for line in lines if line[2] == str(size)} == {
        (str(steps_of(size)), f"{RATE * size:.6f}")
    }


@with_horovod
@pytest.mark.parametrize("victim", ["localhost", "127.0.0.1"], ids=["rank 0 may go", "rank 2 goes"])
def test_a_killed_rank_shrinks_the_job(tmp_path, victim, commands):
    epochs = 7
    hosts = "localhost:2\n127.0.0.1:1\n" if victim == "127.0.0.1" else "localhost:1\n127.0.0.1:2\n"
    for attempt in ("first", "second"):
        (tmp_path / attempt).mkdir()
        job = Job(tmp_path / attempt, epochs, hosts, commands)
        with job.running as running:
            running.until(lambda job=job: job.count(3) >= 3 * 10)
            (process,) = [process for process, lines in job.lines().items() if lines and lines[0][0] == victim]
            os.kill(process, signal.SIGKILL)
            for other in job.lines():
                running.watch(other)
            running.end()
            assert running.left() == []
            if running.process.returncode == 0 or GLOO_FAULT not in running.output:
                break
        warnings.warn(f"Gloo aborted a rank that was left, as docs/limits.md says ({attempt} attempt)", stacklevel=1)
    assert running.process.returncode == 0, running.output
    rows = job.rows()
    assert [row["epoch"] for row in rows] == [str(number + 1) for number in range(epochs)]
    assert float(rows[0]["learning_rate"]) == pytest.approx(3 * RATE)
    assert float(rows[-1]["learning_rate"]) == pytest.approx(2 * RATE)
    survivors = [lines for other, lines in job.lines().items() if other != process]
    assert len(survivors) == 2
    for lines in survivors:
        check_world(lines, 3)
        check_world(lines, 2)
        last = [line for line in lines if line[3] == str(epochs - 1)]
        assert len(last) == steps_of(2)  # the last epoch is whole
    first, second = ([line[3] for line in lines if line[2] == "2"] for lines in survivors)
    assert first == second
    # The step in which the rank is lost may end on one of the others, and fail on the other.
    assert abs(len(survivors[0]) - len(survivors[1])) <= 1


@with_horovod
def test_a_new_rank_joins(tmp_path, commands):
    epochs = 16
    job = Job(tmp_path, epochs, "localhost:1\n127.0.0.1:1\n", commands)
    with job.running as running:
        running.until(lambda: job.count(2) >= 2 * 8)
        job.set_hosts("localhost:2\n127.0.0.1:1\n")
        running.end(200)
        assert running.process.returncode == 0, running.output
    assert [row["epoch"] for row in job.rows()] == [str(number + 1) for number in range(epochs)]
    assert len(job.lines()) == 3
    assert job.count(3) > 0, "the job ended before the new rank came"
    for lines in job.lines().values():
        check_world(lines, 3)
    (new,) = [lines for lines in job.lines().values() if {line[2] for line in lines} == {"3"}]
    assert int(new[0][3]) > 0  # it has not begun at the beginning
    assert len([line for line in new if line[3] == str(epochs - 1)]) == steps_of(3)


def test_elastic_needs_its_launcher(monkeypatch):
    monkeypatch.delenv("HOROVOD_ELASTIC", raising=False)
    with pytest.raises(InputError, match="--host-discovery-script"):
        elastic.run(lambda world, memory: None)


def test_a_commit_is_due_after_a_while(monkeypatch):
    memory = elastic.Memory()
    assert not memory.due
    now = elastic.time.monotonic()
    monkeypatch.setattr(elastic.time, "monotonic", lambda: now + elastic.COMMIT_SECONDS + 1)
    assert memory.due
    memory.commit("a snapshot")
    assert memory.committed == "a snapshot"
    assert not memory.due
    memory.on_hosts_updated(0, None)
    assert memory.due
