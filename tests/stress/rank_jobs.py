"""Jobs of two ranks that train, each with one log: started, waited for, and compared by what they leave."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import psutil

from lms3d.training import checkpoint
from tests.stress.harness import end_family, family

HUNG_SECONDS = 1800.0
"""For a job that nothing befalls, which takes half a minute on an idle machine."""
RANKS = 2
_COMMAND = [sys.executable, "-m", "lms3d.train"]


class Failed(RuntimeError):
    """A job ended with an error, or hung."""


def start(
    folder: Path,
    data: str | None,
    training: Sequence[str],
    *,
    within: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
) -> subprocess.Popen[bytes]:
    """A job of `RANKS` ranks. It trains in folder/run, swaps in folder/swap, and writes all that it says to folder/run.log.

    within: a command that becomes the one that follows it, such as env, for each rank. environment: added to that of this process.
    """
    launcher = [str(Path(sys.executable).with_name("horovodrun")), "-np", str(RANKS), "--gloo"]
    (folder / "swap").mkdir(parents=True, exist_ok=True)
    where = ["--output", str(folder / "run"), "--swap-dir", str(folder / "swap"), *(["--data", data] if data else [])]
    with log(folder, training).open("w") as stream:
        return subprocess.Popen(
            [*launcher, *within, *_COMMAND, *training, *where], stdin=subprocess.DEVNULL, stdout=stream,
            stderr=subprocess.STDOUT, env={**os.environ, **(environment or {})},
        )  # fmt: skip


def log(folder: Path, training: Sequence[str]) -> Path:
    """The file with all that a job says."""
    return folder / ("run-resumed.log" if "--resume" in training else "run.log")


def finish(folder: Path, data: str | None, training: Sequence[str]) -> float:
    """The duration of a job in seconds. Failed if it ends with an error, or not at all."""
    started, job = time.monotonic(), start(folder, data, training)
    try:
        code = job.wait(HUNG_SECONDS)
    except subprocess.TimeoutExpired:
        end(job)
        raise Failed(f"the job of {log(folder, training)} has not ended after {HUNG_SECONDS:.0f} s") from None
    if code:
        raise Failed(f"the job of {log(folder, training)} ended with code {code}")
    return time.monotonic() - started


def end(job: subprocess.Popen[bytes]) -> None:
    """Kills a job and all that it has started."""
    end_family(job.pid)
    job.wait()


def ranks(pid: int) -> dict[int, psutil.Process]:
    """The Python processes of a job by their rank."""
    found: dict[int, psutil.Process] = {}
    for process in family(pid):
        try:
            rank = process.environ().get("HOROVOD_RANK")
            if rank is not None and process.cmdline()[1:3] == _COMMAND[1:3]:
                found[int(rank)] = process
        except psutil.Error:
            continue
    return found


def same(one: Path, other: Path) -> bool:
    """Whether two runs have the same weights, optimiser and random states."""
    first, second = (checkpoint.load(checkpoint.path_in(run))[0] for run in (one, other))
    return first.keys() == second.keys() and all(np.array_equal(first[name], second[name]) for name in first)
