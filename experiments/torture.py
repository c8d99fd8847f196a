"""`python -m experiments.torture`: one of two ranks gets a signal; does its job end soon and cleanly, and resume to the same bits?

1. A job of two ranks trains undisturbed: its weights are the reference, its duration the time in which ranks are struck.
2. The same job is started many times, with swapped tensors and without in turn, and one of its ranks, chosen at random, gets
   SIGKILL, SIGTERM or SIGINT at a random moment.
3. The job must end within 60 s, after SIGKILL with an exit code other than 0, with at most one line of lms3d, and with no process
   or swap file left.
4. The same command with --resume must end with the weights of the undisturbed run, bit for bit: swapping changes none.
5. With --undisturbed, as many more jobs that nothing befalls are compared with the first, swapping and without in turn. A run that
   differs is kept: no signal did that.

Results are added to results.jsonl and undisturbed.jsonl; what went well there is not tried again.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from lms3d import cli, errors
from lms3d.files import writable_folder, write_json
from lms3d.training import checkpoint

MOST_SECONDS = 60.0
RANKS = 2
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
_COMMAND = [sys.executable, "-m", "lms3d.train"]
_TRAINING = ["--resolution", "16", "--epochs", "6", "--steps-per-epoch", "6", "--seed", "5"]  # small
_SWAPPING = [
    "--swap-tier", "disk", "--sync-mode", "0", "--swapout-threshold", "30", "--swapin-ahead", "3", "--swapin-groupby", "0"
]  # fmt: skip


class Failed(RuntimeError):
    """A job hung, left something behind, or lost work."""

    exit_code = 1


@dataclass(frozen=True, kw_only=True)
class Strike:
    """What befalls one job. at_seconds: after its start."""

    number: int
    signal: str
    rank: int
    swaps: bool
    at_seconds: float

    @property
    def training(self) -> list[str]:
        """Options of the job."""
        return [*_TRAINING, *(_SWAPPING if self.swaps else ["--no-lms"])]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a job that was struck ended. same: resumed, it ended with the weights of the undisturbed run."""

    number: int
    signal: str
    rank: int
    swaps: bool
    struck_after: float
    ended_after: float
    code: int
    lines: int
    left: str
    same: bool = False

    def __str__(self) -> str:
        return (
            f"{self.number + 1}: rank {self.rank}, {'swapping' if self.swaps else 'without LMS'}, {self.signal} after "
            f"{self.struck_after:5.1f} s: job ended {self.ended_after:4.1f} s later, code {self.code}, {self.lines} line(s) of "
            f"lms3d, left behind: {self.left or 'nothing'}; resumed: {'same' if self.same else 'OTHER'} weights"
        )

    @property
    def good(self) -> bool:
        # A rank that was asked to end may just have finished.
        ended = self.code != 0 or self.signal != "SIGKILL"
        return self.ended_after < MOST_SECONDS and ended and self.lines <= 1 and not self.left and self.same


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all, report. Returns the exit code."""
    return errors.run(lambda: _torture(_parser().parse_args(arguments)))


def _torture(options: argparse.Namespace) -> None:
    folder = writable_folder(Path(options.output).expanduser(), "--output").absolute()
    length, results = _undisturbed(folder, options.data), folder / "results.jsonl"
    other = _others(folder, options.undisturbed, options.data)
    by_number = {one.number: one for one in (Outcome(**line) for line in _read(results))}
    for number in range(options.kills):
        if number in by_number and by_number[number].good:
            continue
        chance = random.Random(f"{options.seed} {number}")
        outcome = None
        while outcome is None:  # the job had ended before: draw again
            outcome = _struck(folder, _drawn(number, length, chance), options.data)
        print(outcome, flush=True)
        _add(results, asdict(outcome))
        by_number[number] = outcome
    found = list(by_number.values())
    if found:
        print(table(found))
    bad, failed = [one.number + 1 for one in found if not one.good], []
    if bad:
        failed.append(f"jobs {_list(bad)} of {len(found)} failed")
    if other:
        failed.append(f"undisturbed jobs {_list(other)} of {options.undisturbed} ended with other weights")
    if failed:
        raise Failed(f"{'; '.join(failed)}; their logs are in {folder}")


def _list(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))


def _read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def _add(path: Path, result: Mapping[str, Any]) -> None:
    with path.open("a", encoding="utf-8") as stream:
        print(json.dumps(result), file=stream)


def _others(folder: Path, count: int, data: str | None) -> list[int]:
    """Of `count` more jobs that nothing befalls, those that ended with other weights than the first, from 1 on."""
    results = folder / "undisturbed.jsonl"
    known = {result["number"]: result["same"] for result in _read(results)}
    for number in range(count):
        if number in known:
            continue
        name, swaps = f"undisturbed-{number + 1}", number % 2 == 0
        shutil.rmtree(folder / name, ignore_errors=True)
        finish(folder, name, data, [*_TRAINING, *(_SWAPPING if swaps else ["--no-lms"])])
        known[number] = same(folder / "undisturbed", folder / name)
        if known[number]:
            shutil.rmtree(folder / name)
        how = "swapping" if swaps else "without LMS"
        print(f"undisturbed {number + 1}, {how}: {'same' if known[number] else 'OTHER'} weights", flush=True)
        _add(results, {"number": number, "swaps": swaps, "same": known[number]})
    return [number + 1 for number in range(count) if not known[number]]


def table(found: Sequence[Outcome]) -> str:
    """Markdown: what was tried and what went wrong, by signal, with swapped tensors and without."""
    tried = Counter((one.signal, one.swaps) for one in found)
    wrong = Counter((one.signal, one.swaps) for one in found if not one.good)
    rows = [
        f"| {name} | {'yes' if swaps else 'no'} | {count} | {wrong[name, swaps]} |"
        for (name, swaps), count in sorted(tried.items())
    ]
    return "\n".join(
        ["| signal to one of two ranks | swapping | tried | wrong |", "| --- | --- | ---: | ---: |", *rows]
    )


def _drawn(number: int, length: float, chance: random.Random) -> Strike:
    return Strike(
        number=number,
        signal=SIGNALS[number % len(SIGNALS)].name,
        rank=chance.randrange(RANKS),
        swaps=number // len(SIGNALS) % 2 == 0,
        at_seconds=chance.uniform(1, length),
    )


def _undisturbed(folder: Path, data: str | None) -> float:
    """Seconds of the job that nothing befalls; its weights are the reference."""
    note = folder / "undisturbed.json"
    if not note.exists():
        shutil.rmtree(folder / "undisturbed", ignore_errors=True)
        finish(folder, "undisturbed", data, _TRAINING)  # the first makes caches and measures the machine
        shutil.rmtree(folder / "undisturbed")
        seconds = finish(folder, "undisturbed", data, [*_TRAINING, *_SWAPPING])
        write_json(note, {"seconds": seconds})
    seconds = float(json.loads(note.read_text(encoding="utf-8"))["seconds"])
    print(f"undisturbed: {seconds:.0f} s", flush=True)
    return seconds


def _struck(folder: Path, strike: Strike, data: str | None) -> Outcome | None:
    """What became of one job, and of its continuation. None where the rank had ended before."""
    name = f"struck-{strike.number + 1}"
    shutil.rmtree(folder / name, ignore_errors=True)
    outcome = _strike(folder, name, data, strike)
    if outcome is None:
        return None
    try:
        finish(folder, name, data, [*strike.training, "--resume"])
        as_before = same(folder / "undisturbed", folder / name)
    except Failed:
        as_before = False
    if as_before:
        shutil.rmtree(folder / name)
    return replace(outcome, same=as_before)


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
    with _log(folder, name, training).open("w") as log:
        return subprocess.Popen(
            [*launcher, *within, *_COMMAND, *training, *where], stdin=subprocess.DEVNULL, stdout=log,
            stderr=subprocess.STDOUT, env={**os.environ, **(environment or {})},
        )  # fmt: skip


def _log(folder: Path, name: str, training: Sequence[str]) -> Path:
    return folder / f"{name}{'-resumed' if '--resume' in training else ''}.log"


def finish(folder: Path, name: str, data: str | None, training: Sequence[str]) -> float:
    """Duration of an undisturbed run in seconds."""
    started = time.monotonic()
    if code := start(folder, name, data, training).wait():
        raise Failed(f"the job of {_log(folder, name, training)} ended with code {code}; see there")
    return time.monotonic() - started


def _strike(folder: Path, name: str, data: str | None, strike: Strike) -> Outcome | None:
    """Starts a job and strikes one of its ranks at the given time, or as soon as that rank has started; None if the rank has
    ended before."""
    started = time.monotonic()
    job, seen = start(folder, name, data, strike.training), set[psutil.Process]()
    while time.monotonic() - started < strike.at_seconds or (job.poll() is None and strike.rank not in _ranks(job.pid)):
        seen |= set(family(job.pid))
        time.sleep(0.1)
    seen |= set(family(job.pid))
    if (rank := _ranks(job.pid).get(strike.rank)) is None:
        job.wait()
        return None
    rank.send_signal(signal.Signals[strike.signal])
    struck = time.monotonic()
    try:
        code = job.wait(2 * MOST_SECONDS)
    except subprocess.TimeoutExpired:
        code = 0
        for process in [*family(job.pid), job]:
            process.kill()
    ended = time.monotonic()
    time.sleep(3.0)  # the process that cleans up after a killed rank takes a moment
    processes = [one for one in seen if one.is_running() and one.status() != psutil.STATUS_ZOMBIE]
    left = [f"process {one.pid}" for one in processes] + [path.name for path in (folder / "swap").iterdir()]
    return Outcome(
        number=strike.number,
        signal=strike.signal,
        rank=strike.rank,
        swaps=strike.swaps,
        struck_after=struck - started,
        ended_after=ended - struck,
        code=code,
        lines=_log(folder, name, strike.training).read_text(errors="replace").count("lms3d: "),
        left=", ".join(left),
    )


def family(pid: int) -> list[psutil.Process]:
    """What a process has started, and what that has."""
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def _ranks(pid: int) -> dict[int, psutil.Process]:
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


def _parser() -> cli.Parser:
    parser = cli.Parser(prog="python -m experiments.torture", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--kills", type=cli.whole(0), default=30, help="jobs to start and to strike (default: 30)")
    parser.add_argument(
        "--undisturbed",
        type=cli.whole(0),
        default=0,
        help="jobs that nothing befalls, compared with the first (default: 0)",
    )
    parser.add_argument("--seed", type=int, default=0, help="of ranks and moments (default: 0)")
    parser.add_argument("--data", default=None, help="data set to train on (default: the embedded one)")
    parser.add_argument(
        "--output", default="runs/torture", help="folder of runs and logs, new or to go on in (default: runs/torture)"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
