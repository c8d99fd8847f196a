"""Jobs of two ranks that train, each with one log: started, waited for, and compared by what they leave."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
import psutil

from lms3d.training import checkpoint

HUNG_SECONDS = 1800.0
"""For a job without a signal, which takes half a minute on an idle machine."""
RANKS = 2
_COMMAND = [sys.executable, "-m", "lms3d.train"]


class Failed(RuntimeError):
    """A job ended with an error, or hung."""

    exit_code = 1


def start(
    folder: Path,
    name: str,
    data: str | None,
    training: Sequence[str],
    *,
    within: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
) -> subprocess.Popen[bytes]:
    """A job of `RANKS` ranks with its run in folder/name, its swap files in folder/swap and all that it says in folder/name.log.

    within: a command that becomes the one that follows it, such as env, for each rank. environment: added to that of this process.
    """
    launcher = [str(Path(sys.executable).with_name("horovodrun")), "-np", str(RANKS), "--gloo"]
    swap = folder / "swap"
    swap.mkdir(parents=True, exist_ok=True)
    where = ["--output", str(folder / name), "--swap-dir", str(swap), *(["--data", data] if data else [])]
    with log(folder, name, training).open("w") as stream:
        return subprocess.Popen(
            [*launcher, *within, *_COMMAND, *training, *where], stdin=subprocess.DEVNULL, stdout=stream,
            stderr=subprocess.STDOUT, env={**os.environ, **(environment or {})},
        )  # fmt: skip


def log(folder: Path, name: str, training: Sequence[str]) -> Path:
    """What a job says."""
    return folder / f"{name}{'-resumed' if '--resume' in training else ''}.log"


def finish(folder: Path, name: str, data: str | None, training: Sequence[str]) -> float:
    """Duration of an undisturbed run in seconds. Failed where it ends with an error, or not at all."""
    started, job = time.monotonic(), start(folder, name, data, training)
    try:
        code = job.wait(HUNG_SECONDS)
    except subprocess.TimeoutExpired:
        end(job)
        raise Failed(
            f"the job of {log(folder, name, training)} has not ended after {HUNG_SECONDS:.0f} s; see there"
        ) from None
    if code:
        raise Failed(f"the job of {log(folder, name, training)} ended with code {code}; see there")
    return time.monotonic() - started


def end(job: subprocess.Popen[bytes]) -> None:
    """Kills it and all that it has started."""
    for process in family(job.pid):
        with suppress(psutil.NoSuchProcess):  # it has just ended
            process.kill()
    job.kill()
    job.wait()


def family(pid: int) -> list[psutil.Process]:
    """What a process has started, and what that has."""
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


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
