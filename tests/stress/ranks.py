"""Two ranks train; one of them is struck, or nothing happens. The job must end soon and cleanly, and resume to the same bits.

RANKS-1  After SIGKILL of a rank, or an error or a kill at one of its file operations, the job ends soon, with a code other than 0
         and at most one line of lms3d; after a fault of a file with exactly one. After SIGTERM and SIGINT it ends soon, too.
RANKS-2  No process and no swap file is left, nor, after an error, a temporary name. After a kill at a file operation this is
         asked of the repetition alone.
RANKS-3  With --resume the job ends with the weights of the reference, an undisturbed job, bit for bit. Swapping tensors
         changes none.
RANKS-4  An undisturbed job ends with the weights of the reference, too. It records the bits of each step of each rank
         (`--record-bits`), so that the first step that differs is known, with its arrays.
"""

from __future__ import annotations

import json
import random
import shutil
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import psutil

from lms3d.atomic_files import write_json
from lms3d.errors import InputError
from lms3d.training import checkpoint
from tests.lms3d.ranks.started import Started
from tests.stress import outcome, shim
from tests.stress.harness import Options, Part, Result, family

RANKS = 2
HUNG_SECONDS = 1800.0
"""The deadline of an undisturbed job, which takes half a minute on an idle machine."""
SOON_SECONDS, FILES_SECONDS = 60.0, 600.0
"""How soon a job must end: after a signal, and after its start if a file operation fails."""
SETTLED_SECONDS = 60.0
"""How soon the process that removes the swap folder of a killed rank must be done."""
SIGNALS = ("SIGKILL", "SIGTERM", "SIGINT")
_TRAINING = ["--resolution", "16", "--epochs", "6", "--steps-per-epoch", "6", "--seed", "5"]  # small
_SWAPPING = [
    "--swap-tier", "disk", "--sync-mode", "0", "--swapout-threshold", "30", "--swapin-ahead", "3", "--swapin-groupby", "0"
]  # fmt: skip
_HOW = {"swapping": [*_TRAINING, *_SWAPPING], "without LMS": [*_TRAINING, "--no-lms"]}
_RULES = {
    "rank 0": ("rename:run/last/checkpoint.npz:2", "fsync:run/last/.checkpoint.*:1", "write:run/last/.checkpoint.*:40"),
    "rank 1": ("create:swap/lms3d-swap-*/*:1",),
}
"""Rank 0 writes the checkpoints, each rank its own swap files."""
_ACTIONS = ("kill", "EIO", "ENOSPC")
_PRELOADED = 'if [ "$HOROVOD_RANK" = "$FAULTS_RANK" ]; then export LD_PRELOAD="$FAULTS_LIBRARY"; fi; exec "$@"'


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How a job ended. code: None if it had to be killed. left: the processes that outlived it."""

    code: int | None
    lines: Sequence[str]
    left: Sequence[psutil.Process] = ()
    names: Sequence[str] = ()

    def wrong(self, *, must_fail: bool, must_tell: bool) -> str:
        """The broken rule of RANKS-1 and RANKS-2; "" if both hold."""
        if self.code is None:
            return "the job hangs"
        if must_fail and self.code == 0:
            return "the job ended with code 0"
        if len(self.lines) > 1 or (must_tell and not self.lines):
            return f"{len(self.lines)} lines of lms3d: {' | '.join(self.lines)[:600]}"
        left = [*(f"process {one.pid}" for one in self.left), *map(shim.pattern, self.names)]
        return f"left behind: {', '.join(left)}" if left else ""


class Failed(RuntimeError):
    """A job ended with an error, or hung."""


# -- signals


_STRUCK = [f"{name}, {how}" for how in _HOW for name in SIGNALS]


def _kill_cases(options: Options, group: str) -> list[str]:
    return [str(number) for number in range(options.kills) if _STRUCK[number % len(_STRUCK)] == group]


def _run_kill(options: Options, group: str, case: str) -> Result:
    seconds = _reference(options)
    chance, folder = random.Random(f"{options.seed} {case}"), options.output / "ranks" / f"killed-{case}"
    while (result := _killed(options, group, folder, seconds, chance)) is None:
        pass  # the rank had ended before: draw again
    return result


def _killed(options: Options, group: str, folder: Path, seconds: float, chance: random.Random) -> Result | None:
    """Strikes a rank at a random moment, or as soon as it has started. None if it has ended before."""
    name, _, how = group.partition(", ")
    rank, moment, started = chance.randrange(RANKS), chance.uniform(1, seconds), time.monotonic()
    shutil.rmtree(folder, ignore_errors=True)
    with job(folder, options.data, _HOW[how]) as running:
        while time.monotonic() - started < moment or (running.process.poll() is None and rank not in ranks(running)):
            running.alive()
            time.sleep(0.1)
        if (victim := ranks(running).get(rank)) is None:
            return None
        victim.send_signal(signal.Signals[name])
        struck = time.monotonic() - started
        ended = _ended(running, folder, SOON_SECONDS)
    ended = replace(ended, names=[one for one in ended.names if one.startswith("swap/")])
    wrong = ended.wrong(must_fail=name == "SIGKILL", must_tell=False) or _wrong_repetition(options, folder, _HOW[how])
    return _closed(folder, f"rank {rank}, struck after {struck:.1f} s", wrong)


# -- faults of files


def _fault_cases(options: Options, group: str) -> list[str]:
    return [f"{rule}:{action}" for rule in _RULES[group] for action in _ACTIONS]


def _run_fault(options: Options, group: str, case: str) -> Result:
    _reference(options)
    folder, scratch = options.output / "ranks" / "fault", options.output / "ranks" / "scratch"
    for path in (folder, scratch):
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir(parents=True)
    told = shim.environment(shim.built(scratch), folder, scratch, case)
    told |= {"FAULTS_LIBRARY": told.pop("LD_PRELOAD"), "FAULTS_RANK": group.removeprefix("rank ")}
    within = ["env", *(f"{name}={value}" for name, value in told.items()), "sh", "-c", _PRELOADED, "sh"]
    with job(folder, options.data, _HOW["swapping"], within) as running:
        ended = _ended(running, folder, FILES_SECONDS)
    if not shim.struck(scratch):
        return Result(wrong=f"the fault has not struck; exit code {ended.code}")
    if case.endswith(":kill"):
        ended = replace(ended, names=())
    wrong = ended.wrong(must_fail=True, must_tell=True) or _wrong_repetition(options, folder, _HOW["swapping"])
    return _closed(folder, "the fault has struck", wrong)


# -- undisturbed jobs


def _repeat_cases(options: Options, group: str) -> list[str]:
    return [str(number) for number in range(options.repeats) if list(_HOW)[number % len(_HOW)] == group]


def _run_repeat(options: Options, group: str, case: str) -> Result:
    """RANKS-4."""
    _reference(options)
    folder, bits = options.output / "ranks" / f"repeat-{case}", options.output / "ranks" / "bits"
    shutil.rmtree(folder, ignore_errors=True)
    known = set(bits.glob("*-differs-*.json"))
    wrong = _wrong_weights(options, folder, [*_HOW[group], "--record-bits", str(bits)])
    first = "; ".join(_first_difference(path) for path in sorted(set(bits.glob("*-differs-*.json")) - known))
    return _closed(folder, "the job has ended", "; ".join(filter(None, (wrong, first))))


def _first_difference(path: Path) -> str:
    """A difference that a job has recorded, in a few words."""
    found = json.loads(path.read_text(encoding="utf-8"))
    rank, names = path.name.partition("-of-")[0].replace("-", " "), found["differ"]
    what = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
    return f"{rank}: step {found['step']} of epoch {found['epoch']} is the first with other bits, in {what}; see {path}"


# -- what all of them share


def job(folder: Path, data: str | None, training: Sequence[str], within: Sequence[str] = ()) -> Started:
    """A job of `RANKS` ranks that trains in folder/run, swaps in folder/swap, and writes all that it says to folder/run.log.

    within: the words of a command, such as env, that becomes the rank.
    """
    (folder / "swap").mkdir(parents=True, exist_ok=True)
    log = folder / ("run-resumed.log" if "--resume" in training else "run.log")
    where = ["--output", folder / "run", "--swap-dir", folder / "swap", *(["--data", data] if data else [])]
    return Started(log, ["-np", str(RANKS), "--gloo", *within], "-m", "lms3d.train", *training, *where)


def finish(folder: Path, data: str | None, training: Sequence[str]) -> float:
    """The duration of a job in seconds. Failed if it ends with an error, or not at all."""
    with job(folder, data, training) as running:
        try:
            seconds = running.end(HUNG_SECONDS)
        except AssertionError:
            raise Failed(f"the job of {running.log} has not ended after {HUNG_SECONDS:.0f} s") from None
        if code := running.process.returncode:
            raise Failed(f"the job of {running.log} ended with code {code}")
        return seconds


def ranks(running: Started) -> dict[int, psutil.Process]:
    """The Python processes of a job by their rank."""
    found: dict[int, psutil.Process] = {}
    for process in family(running.process.pid):
        with suppress(psutil.Error):
            if process.cmdline()[1:3] == ["-m", "lms3d.train"] and (rank := process.environ().get("HOROVOD_RANK")):
                found[int(rank)] = process
    return found


def same(one: Path, other: Path) -> bool:
    """Whether two runs have the same weights, optimiser and random states."""
    first, second = (checkpoint.load(checkpoint.path_in(run))[0] for run in (one, other))
    return first.keys() == second.keys() and all(np.array_equal(first[name], second[name]) for name in first)


def _reference(options: Options) -> float:
    """The duration in seconds of the reference, which is run once. InputError if it is of other data, or damaged."""
    folder, bits, data = options.output / "ranks" / "reference", options.output / "ranks" / "bits", options.data
    note = folder / "reference.json"
    if not note.exists():
        for _ in range(2):  # the first makes caches and measures the machine
            for path in (folder, bits):
                shutil.rmtree(path, ignore_errors=True)
            seconds = finish(folder, data, [*_HOW["swapping"], "--record-bits", str(bits)])
        write_json(note, {"seconds": seconds, "data": data})
    known = json.loads(note.read_text(encoding="utf-8"))
    if known["data"] != data:
        trained = f"trains with --data {known['data'] or 'none'}, this call with {data or 'none'}"
        raise InputError(f"{folder}: its job {trained}; use another --output")
    checkpoint.load(checkpoint.path_in(folder / "run"))
    return float(known["seconds"])


def _ended(running: Started, folder: Path, seconds: float) -> Ended:
    """Waits so long for a job, and then for the processes that clean up after it."""
    with suppress(AssertionError):  # it hangs
        running.end(seconds)
    code = running.process.poll()
    _settle(folder)
    left = running.left(SETTLED_SECONDS) if code is not None else ()
    return Ended(code=code, lines=running.lines, left=left, names=outcome.temporary_names(folder))


def _settle(folder: Path) -> None:
    """Waits until the swap folder of a killed rank is removed."""
    until = time.monotonic() + SETTLED_SECONDS
    while any((folder / "swap").iterdir()) and time.monotonic() < until:
        time.sleep(0.1)


def _wrong_repetition(options: Options, folder: Path, training: Sequence[str]) -> str:
    """RANKS-2, RANKS-3, of the job begun again with --resume."""
    wrong = _wrong_weights(options, folder, [*training, "--resume"])
    _settle(folder)
    names = outcome.temporary_names(folder)
    return wrong or (f"resumed, it left behind: {', '.join(map(shim.pattern, names))}" if names else "")


def _wrong_weights(options: Options, folder: Path, training: Sequence[str]) -> str:
    """Runs a job to its end, and compares it with the reference."""
    try:
        finish(folder, options.data, training)
        equal = same(options.output / "ranks" / "reference" / "run", folder / "run")
    except (Failed, checkpoint.DamagedCheckpoint) as error:
        return str(error)
    return "" if equal else "other weights than the reference (if most jobs differ, the reference may be the odd one)"


def _closed(folder: Path, what: str, wrong: str) -> Result:
    """The result. The folder of a job that went wrong is kept."""
    if wrong:
        return Result(wrong=f"{what}: {wrong}; see {folder}")
    shutil.rmtree(folder)
    return Result(note=f"{what}, same weights")


KILLS = Part(groups=_STRUCK, cases=_kill_cases, run=_run_kill)
REPEATS = Part(groups=tuple(_HOW), cases=_repeat_cases, run=_run_repeat, once=True)
FILES = Part(groups=tuple(_RULES), cases=_fault_cases, run=_run_fault)
