"""`python -m experiments.torture`: one of two ranks gets a signal; does its job end soon and cleanly, and resume to the same bits?

1. A job of two ranks trains undisturbed: its weights are the reference, its duration the time in which ranks are struck.
2. The same job is started many times, with swapped tensors and without in turn, and one of its ranks, chosen at random, gets
   SIGKILL, SIGTERM or SIGINT at a random moment.
3. The job must end within 60 s, after SIGKILL with an exit code other than 0, with at most one line of lms3d, and with no process
   or swap file left.
4. The same command with --resume must end with the weights of the undisturbed run, bit for bit: swapping changes none.
5. The job is also repeated without any signal, swapping and without in turn: it must end with the same weights. A run that does not
   is kept, as repeat-N beside the reference, undisturbed. All of them record the bits of each step of each rank in bits/
   (`--record-bits`), so that the first step that differs is known, with its arrays.

Results are added to results.jsonl and repeats.jsonl. A struck job that went well is not struck again; a repeat is never run again,
whatever came of it: a rare difference that is tried again is gone.
"""

from __future__ import annotations

import argparse
import json
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

import psutil

from experiments import rank_jobs
from lms3d import cli, errors
from lms3d.errors import InputError
from lms3d.files import writable_folder, write_json
from lms3d.training import checkpoint

MOST_SECONDS = 60.0
_BITS = "bits"
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
_TRAINING = ["--resolution", "16", "--epochs", "6", "--steps-per-epoch", "6", "--seed", "5"]  # small
_SWAPPING = [
    "--swap-tier", "disk", "--sync-mode", "0", "--swapout-threshold", "30", "--swapin-ahead", "3", "--swapin-groupby", "0"
]  # fmt: skip


_DESCRIPTION = """\
Does a job of two ranks end soon and cleanly when one of them gets SIGKILL, SIGTERM or SIGINT, and does it reach the same
weights when resumed? Does it reach them again when nothing happens to it?

A job that nothing happens to is the reference. It is started again and again, with swapped tensors and without in turn;
some jobs get a signal at a random moment and are resumed. A job takes about half a minute. Needs Horovod (make horovod)."""

_EPILOG = """\
examples:
  python -m experiments.torture --kills 6 --repeats 0
  python -m experiments.torture --kills 0 --repeats 100      # is training with two ranks repeatable?

writes into --output: results.jsonl and repeats.jsonl, logs, bits/ (steps that differ are in *-differs-*.json and .npz there), and
the runs that went wrong; goes on there when started again
exit codes: 0 all went well, 1 a job went wrong, 2 wrong option, 130 interrupted (run again to go on)"""


class WentWrong(RuntimeError):
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
        return _training(self.swaps)


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
            f"{self.number + 1}: rank {self.rank}, {_how(self.swaps)}, {self.signal} after "
            f"{self.struck_after:5.1f} s: job ended {self.ended_after:4.1f} s later, code {self.code}, {self.lines} line(s) of "
            f"lms3d, left behind: {self.left or 'nothing'}; resumed: {'same' if self.same else 'OTHER'} weights"
        )

    @property
    def good(self) -> bool:
        # A rank that was asked to end may just have finished.
        ended = self.code != 0 or self.signal != "SIGKILL"
        return self.ended_after < MOST_SECONDS and ended and self.lines <= 1 and not self.left and self.same


@dataclass(frozen=True, kw_only=True)
class Repeat:
    """How a job without a signal ended. weights: "same" as those of the reference, "OTHER", or "no" where it failed. first: the
    first step with other bits, and in which arrays, of each rank that had one."""

    number: int
    swaps: bool
    weights: str
    first: str = ""

    @property
    def differs(self) -> bool:
        return self.weights == "OTHER" or bool(self.first)

    def __str__(self) -> str:
        found = f"; {self.first}" if self.first else ""
        return f"repeat {self.number + 1}, {_how(self.swaps)}: {self.weights} weights{found}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all, report. Returns the exit code."""
    return errors.run(lambda: _torture(_parser().parse_args(arguments)))


def _torture(options: argparse.Namespace) -> None:
    if not options.kills and not options.repeats:
        raise InputError("--kills 0 and --repeats 0 leave nothing to do; expected at least one job")
    folder = writable_folder(Path(options.output).expanduser(), "--output").absolute()
    length, results = _undisturbed(folder, options.data), folder / "results.jsonl"
    repeats = _repeats(folder, options.repeats, options.data)
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
    if by_number:
        print(table(list(by_number.values())))
    wrong = [*_wrong_strikes(list(by_number.values())), *_wrong_repeats(repeats)]
    if wrong:
        raise WentWrong(f"{'; '.join(wrong)}; what they left is in {folder}")


def _wrong_strikes(found: Sequence[Outcome]) -> list[str]:
    bad = [one.number for one in found if not one.good]
    return [f"jobs {_list(bad)} of {len(found)} failed"] if bad else []


def _wrong_repeats(found: Sequence[Repeat]) -> list[str]:
    other, none = [one.number for one in found if one.differs], [one.number for one in found if one.weights == "no"]
    wrong = [f"repeats {_list(none)} of {len(found)} failed"] if none else []
    if other:
        odd = ", so it may be the reference that is odd" if 2 * len(other) > len(found) - len(none) else ""
        wrong.append(f"repeats {_list(other)} of {len(found)} had other bits than the reference{odd}")
    return wrong


def _list(numbers: Sequence[int]) -> str:
    return ", ".join(str(number + 1) for number in numbers)


def _training(swaps: bool) -> list[str]:
    return [*_TRAINING, *(_SWAPPING if swaps else ["--no-lms"])]


def _how(swaps: bool) -> str:
    return "swapping" if swaps else "without LMS"


def _read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def _add(path: Path, result: Mapping[str, Any]) -> None:
    with path.open("a", encoding="utf-8") as stream:
        print(json.dumps(result), file=stream)


def _repeats(folder: Path, count: int, data: str | None) -> list[Repeat]:
    """Runs the job `count` times without a signal, less those that `folder` has; all that it has then."""
    results = folder / "repeats.jsonl"
    found = {one.number: one for one in (Repeat(**line) for line in _read(results))}
    for number in range(count):
        if number in found:
            continue
        name, swaps = f"repeat-{number + 1}", number % 2 == 0
        shutil.rmtree(folder / name, ignore_errors=True)
        known = _differences(folder)
        weights = _weights_after(folder, name, data, _recorded(folder, swaps))
        first = "; ".join(_told(path) for path in _differences(folder) if path not in known)
        found[number] = Repeat(number=number, swaps=swaps, weights=weights, first=first)
        if weights == "same" and not first:
            shutil.rmtree(folder / name)
        print(found[number], flush=True)
        _add(results, asdict(found[number]))
    return list(found.values())


def _recorded(folder: Path, swaps: bool) -> list[str]:
    """Options of a job that gets no signal."""
    return [*_training(swaps), "--record-bits", str(folder / _BITS)]


def _differences(folder: Path) -> list[Path]:
    return sorted((folder / _BITS).glob("*-differs-*.json"))


def _told(path: Path) -> str:
    """A difference that a job has recorded, in a few words."""
    found = json.loads(path.read_text(encoding="utf-8"))
    rank, names = path.name.partition("-of-")[0].replace("-", " "), found["differ"]
    what = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
    return f"{rank}: step {found['step']} of epoch {found['epoch']} is the first with other bits, in {what}; see {path}"


def _weights_after(folder: Path, name: str, data: str | None, training: Sequence[str]) -> str:
    """How a job without a signal ends: with the "same" weights as the reference, "OTHER" ones, or "no", where it fails or what it
    leaves cannot be read."""
    try:
        rank_jobs.finish(folder, name, data, training)
        return "same" if rank_jobs.same(folder / "undisturbed", folder / name) else "OTHER"
    except (rank_jobs.Failed, checkpoint.Damaged):
        return "no"


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
        rank=chance.randrange(rank_jobs.RANKS),
        swaps=number // len(SIGNALS) % 2 == 0,
        at_seconds=chance.uniform(1, length),
    )


def _undisturbed(folder: Path, data: str | None) -> float:
    """Seconds of the job that nothing befalls; its weights are the reference. InputError where it is of other data, or damaged."""
    note, scans = folder / "undisturbed.json", data and str(Path(data).absolute())
    if not note.exists():
        shutil.rmtree(folder / "undisturbed", ignore_errors=True)
        rank_jobs.finish(folder, "undisturbed", data, _TRAINING)  # the first makes caches and measures the machine
        for name in ("undisturbed", _BITS):
            shutil.rmtree(folder / name, ignore_errors=True)
        seconds = rank_jobs.finish(folder, "undisturbed", data, _recorded(folder, True))
        write_json(note, {"seconds": seconds, "data": scans})
    known = json.loads(note.read_text(encoding="utf-8"))
    if known.get("data", scans) != scans:
        was = known["data"] or "none"
        raise InputError(
            f"{folder}: its jobs train with --data {was}, this call with {scans or 'none'}; use another --output"
        )
    checkpoint.load(checkpoint.path_in(folder / "undisturbed"))
    seconds = float(known["seconds"])
    print(f"undisturbed: {seconds:.0f} s", flush=True)
    return seconds


def _struck(folder: Path, strike: Strike, data: str | None) -> Outcome | None:
    """What became of one job, and of its continuation. None where the rank had ended before."""
    name = f"struck-{strike.number + 1}"
    shutil.rmtree(folder / name, ignore_errors=True)
    outcome = _strike(folder, name, data, strike)
    if outcome is None:
        return None
    as_before = _weights_after(folder, name, data, [*strike.training, "--resume"]) == "same"
    if as_before:
        shutil.rmtree(folder / name)
    return replace(outcome, same=as_before)


def _strike(folder: Path, name: str, data: str | None, strike: Strike) -> Outcome | None:
    """Starts a job and strikes one of its ranks at the given time, or as soon as that rank has started; None if the rank has
    ended before."""
    started = time.monotonic()
    job, seen = rank_jobs.start(folder, name, data, strike.training), set[psutil.Process]()
    while time.monotonic() - started < strike.at_seconds or (
        job.poll() is None and strike.rank not in rank_jobs.ranks(job.pid)
    ):
        seen |= set(rank_jobs.family(job.pid))
        time.sleep(0.1)
    seen |= set(rank_jobs.family(job.pid))
    if (rank := rank_jobs.ranks(job.pid).get(strike.rank)) is None:
        job.wait()
        return None
    rank.send_signal(signal.Signals[strike.signal])
    struck = time.monotonic()
    try:
        code = job.wait(2 * MOST_SECONDS)
    except subprocess.TimeoutExpired:
        code = 0
        rank_jobs.end(job)
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
        lines=rank_jobs.log(folder, name, strike.training).read_text(errors="replace").count("lms3d: "),
        left=", ".join(left),
    )


def _parser() -> cli.Parser:
    parser = cli.Parser(prog="python -m experiments.torture", description=_DESCRIPTION, epilog=_EPILOG)
    add = parser.add_argument
    add("--kills", type=cli.whole(0), metavar="N", default=30, help="jobs that get a signal (default: 30)")
    repeats = "jobs that get none, and must end with the weights of the reference (default: 10)"
    add("--repeats", type=cli.whole(0), metavar="N", default=10, help=repeats)
    add("--seed", type=int, metavar="N", default=0, help="of ranks and moments (default: 0)")
    add("--data", metavar="DIR", default=None, help="data set to train on (default: the embedded one)")
    where = "folder of runs and logs, new or to go on in (default: runs/torture)"
    add("--output", metavar="DIR", default="runs/torture", help=where)
    return parser


if __name__ == "__main__":
    sys.exit(main())
