"""`python -m experiments.torture`: kills ranks at random; does each job end soon and cleanly, and resume to the same bits?

1. A job of two ranks trains undisturbed: its weights are the reference, its duration the time in which ranks are killed.
2. The same job is started many times, and one of its ranks, chosen at random, gets SIGKILL at a random moment.
3. The job must end within 60 s with an exit code other than 0, at most one line of lms3d, and no process or swap file left.
4. The same command with --resume must end with the weights of the undisturbed run, bit for bit.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil

from lms3d import cli, errors
from lms3d.training import checkpoint

MOST_SECONDS = 60.0
RANKS = 2
_COMMAND = [sys.executable, "-m", "lms3d.train"]
# Small, and with a limit that makes it swap.
_TRAINING = [
    "--resolution", "16", "--epochs", "6", "--steps-per-epoch", "6", "--seed", "5", "--swap-tier", "disk", "--sync-mode", "0",
    "--swapout-threshold", "30", "--swapin-ahead", "3", "--swapin-groupby", "0",
]  # fmt: skip


class Failed(RuntimeError):
    """A job hung, left something behind, or lost work."""

    exit_code = 1


@dataclass
class Outcome:
    """How one job that lost a rank ended."""

    victim: int
    at_seconds: float
    ended_after: float
    code: int
    lines: int
    left: str

    def __str__(self) -> str:
        return (
            f"rank {self.victim} killed after {self.at_seconds:5.1f} s: job ended {self.ended_after:4.1f} s later, code "
            f"{self.code}, {self.lines} line(s) of lms3d, left behind: {self.left or 'nothing'}"
        )

    @property
    def good(self) -> bool:
        return self.ended_after < MOST_SECONDS and self.code != 0 and self.lines <= 1 and not self.left


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all, report. Returns the exit code."""
    return errors.run(lambda: _torture(_parser().parse_args(arguments)))


def _torture(options: argparse.Namespace) -> None:
    folder, chance = Path(options.output).absolute(), random.Random(options.seed)
    started = time.monotonic()
    _finish(folder, "undisturbed", options.data)
    length = time.monotonic() - started
    print(f"undisturbed: {length:.0f} s", flush=True)
    bad, name = 0, ""
    for number in range(options.kills):
        outcome, tries = None, 0
        while outcome is None:  # the job had ended before: draw again
            name, tries = f"killed-{number}-{tries}", tries + 1
            outcome = _kill(folder, name, options.data, chance.randrange(RANKS), chance.uniform(1, length))
        resumed = _finish(folder, name, options.data, "--resume")
        same = _same(folder / "undisturbed", folder / name)
        print(f"{number + 1}: {outcome}; resumed in {resumed:.0f} s, {'same' if same else 'OTHER'} weights", flush=True)
        bad += not (outcome.good and same)
    if bad:
        raise Failed(f"{bad} of {options.kills} jobs failed; their logs are in {folder}")


def _start(folder: Path, name: str, data: str | None, *more: str) -> subprocess.Popen[bytes]:
    launcher = [str(Path(sys.executable).with_name("horovodrun")), "-np", str(RANKS), "--gloo"]
    swap = folder / "swap"
    swap.mkdir(parents=True, exist_ok=True)
    where = ["--output", str(folder / name), "--swap-dir", str(swap), *(["--data", data] if data else [])]
    with (folder / f"{name}{''.join(more)}.log").open("w") as log:
        command = [*launcher, *_COMMAND, *_TRAINING, *where, *more]
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)


def _finish(folder: Path, name: str, data: str | None, *more: str) -> float:
    """Duration of an undisturbed run in seconds."""
    started = time.monotonic()
    if code := _start(folder, name, data, *more).wait():
        raise Failed(f"the run {name} {' '.join(more)} ended with code {code}; its log is in {folder}")
    return time.monotonic() - started


def _kill(folder: Path, name: str, data: str | None, victim: int, at_seconds: float) -> Outcome | None:
    """Starts a job and kills one of its ranks at the given time, or as soon as that rank has started; None if the rank has
    ended before."""
    started = time.monotonic()
    job, seen = _start(folder, name, data), set[psutil.Process]()
    while time.monotonic() - started < at_seconds or (job.poll() is None and victim not in _ranks(job.pid)):
        seen |= set(_family(job.pid))
        time.sleep(0.1)
    seen |= set(_family(job.pid))
    if (rank := _ranks(job.pid).get(victim)) is None:
        job.wait()
        return None
    rank.kill()
    struck = time.monotonic()
    try:
        code = job.wait(2 * MOST_SECONDS)
    except subprocess.TimeoutExpired:
        code = 0
        for process in [*_family(job.pid), job]:
            process.kill()
    ended = time.monotonic()
    time.sleep(3.0)  # the process that cleans up after a killed rank takes a moment
    processes = [one for one in seen if one.is_running() and one.status() != psutil.STATUS_ZOMBIE]
    left = [f"process {one.pid}" for one in processes] + [path.name for path in (folder / "swap").iterdir()]
    lines = (folder / f"{name}.log").read_text(errors="replace").count("lms3d: ")
    return Outcome(victim, struck - started, ended - struck, code, lines, ", ".join(left))


def _family(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def _ranks(pid: int) -> dict[int, psutil.Process]:
    """The Python processes of a job by their rank."""
    found: dict[int, psutil.Process] = {}
    for process in _family(pid):
        try:
            rank = process.environ().get("HOROVOD_RANK")
            if rank is not None and process.cmdline()[1:3] == _COMMAND[1:3]:
                found[int(rank)] = process
        except psutil.Error:
            continue
    return found


def _same(one: Path, other: Path) -> bool:
    """Whether two runs have the same weights, optimiser and random states."""
    first, second = (checkpoint.load(checkpoint.path_in(run))[0] for run in (one, other))
    return first.keys() == second.keys() and all(np.array_equal(first[name], second[name]) for name in first)


def _parser() -> cli.Parser:
    parser = cli.Parser(prog="python -m experiments.torture", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--kills", type=cli.whole(1), default=10, help="jobs to start and to kill (default: 10)")
    parser.add_argument("--seed", type=int, default=None, help="of victims and moments (default: others each time)")
    parser.add_argument("--data", default=None, help="data set to train on (default: the embedded one)")
    parser.add_argument(
        "--output", default="runs/torture", help="a new folder for runs and logs (default: runs/torture)"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
