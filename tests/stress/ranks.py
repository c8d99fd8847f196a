"""Two ranks train; one of them is struck, or nothing happens. The job must end soon and cleanly, and resume to the same bits.

RANKS-1  After SIGKILL of a rank, or an error or a kill at one of its file operations, the job ends soon, with a code other than 0
         and at most one line of lms3d; after a fault of a file with exactly one. After SIGTERM and SIGINT it ends soon, too.
RANKS-2  No process and no swap file is left, nor, after an error, a temporary name. After a kill at a file operation this is
         asked of the repetition alone.
RANKS-3  With --resume the job ends with the weights of the reference, a job that nothing befell, bit for bit. Swapping tensors
         changes none.
RANKS-4  A job that nothing befalls ends with the weights of the reference, too. It records the bits of each step of each rank
         (`--record-bits`), so that the first step that differs is known, with its arrays.
"""

from __future__ import annotations

import json
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from lms3d.errors import InputError
from lms3d.files import write_json
from lms3d.training import checkpoint
from tests.stress import outcome, rank_jobs, shim
from tests.stress.harness import Options, Part, Result, alive, family

SOON_SECONDS, FILES_SECONDS = 60.0, 600.0
"""In which a job must end: after a signal, and after its start if a file operation fails."""
SETTLED_SECONDS = 60.0
"""In which the process that removes the swap folder of a killed rank must be done."""
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
        """RANKS-1, RANKS-2: what is wrong; "" if nothing is."""
        if self.code is None:
            return "the job hangs"
        if must_fail and self.code == 0:
            return "the job ended with code 0"
        if len(self.lines) > 1 or (must_tell and not self.lines):
            return f"{len(self.lines)} lines of lms3d: {' | '.join(self.lines)[:600]}"
        left = [*(f"process {one.pid}" for one in self.left), *map(shim.pattern, self.names)]
        return f"left behind: {', '.join(left)}" if left else ""


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
    rank, moment = chance.randrange(rank_jobs.RANKS), chance.uniform(1, seconds)
    shutil.rmtree(folder, ignore_errors=True)
    started, seen = time.monotonic(), set[psutil.Process]()
    job = rank_jobs.start(folder, options.data, _HOW[how])
    while time.monotonic() - started < moment or (job.poll() is None and rank not in rank_jobs.ranks(job.pid)):
        seen |= set(family(job.pid))
        time.sleep(0.1)
    if (victim := rank_jobs.ranks(job.pid).get(rank)) is None:
        job.wait()
        return None
    victim.send_signal(signal.Signals[name])
    struck = time.monotonic()
    ended = _ended(job, folder, SOON_SECONDS, seen)
    ended = replace(ended, names=[one for one in ended.names if one.startswith("swap/")])
    wrong = ended.wrong(must_fail=name == "SIGKILL", must_tell=False) or _wrong_repetition(options, folder, _HOW[how])
    note = f"rank {rank} struck after {struck - started:.1f} s, code {ended.code}; resumed to the same weights"
    return _closed(folder, wrong and f"rank {rank} struck after {struck - started:.1f} s: {wrong}", note)


# -- faults of files


def _fault_cases(options: Options, group: str) -> list[str]:
    return [f"{rule}:{action}" for rule in _RULES[group] for action in _ACTIONS]


def _run_fault(options: Options, group: str, case: str) -> Result:
    _reference(options)
    folder, scratch = options.output / "ranks" / "fault", options.output / "ranks" / "scratch"
    for path in (folder, scratch):
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir(parents=True)
    environment = shim.environment(shim.built(scratch), folder, scratch, case)
    environment |= {"FAULTS_LIBRARY": environment.pop("LD_PRELOAD"), "FAULTS_RANK": group.removeprefix("rank ")}
    within, training = ("sh", "-c", _PRELOADED, "sh"), _HOW["swapping"]
    job = rank_jobs.start(folder, options.data, training, within=within, environment=environment)
    ended = _ended(job, folder, FILES_SECONDS)
    if not shim.struck(scratch):
        return Result(wrong=f"the fault has not struck; exit code {ended.code}")
    if case.endswith(":kill"):
        ended = replace(ended, names=())
    wrong = ended.wrong(must_fail=True, must_tell=True) or _wrong_repetition(options, folder, training)
    return _closed(folder, wrong, "well")


# -- jobs that nothing befalls


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
    return _closed(folder, "; ".join(filter(None, (wrong, first))), "same weights")


def _first_difference(path: Path) -> str:
    """A difference that a job has recorded, in a few words."""
    found = json.loads(path.read_text(encoding="utf-8"))
    rank, names = path.name.partition("-of-")[0].replace("-", " "), found["differ"]
    what = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
    return f"{rank}: step {found['step']} of epoch {found['epoch']} is the first with other bits, in {what}; see {path}"


# -- what all of them share


def _reference(options: Options) -> float:
    """The duration in seconds of the job that nothing befalls, which is run once. InputError if it is of other data, or damaged."""
    folder, bits, data = options.output / "ranks" / "reference", options.output / "ranks" / "bits", options.data
    note = folder / "reference.json"
    if not note.exists():
        for _ in range(2):  # the first makes caches and measures the machine
            for path in (folder, bits):
                shutil.rmtree(path, ignore_errors=True)
            seconds = rank_jobs.finish(folder, data, [*_HOW["swapping"], "--record-bits", str(bits)])
        write_json(note, {"seconds": seconds, "data": data})
    known = json.loads(note.read_text(encoding="utf-8"))
    if known["data"] != data:
        trained = f"trains with --data {known['data'] or 'none'}, this call with {data or 'none'}"
        raise InputError(f"{folder}: its job {trained}; use another --output")
    checkpoint.load(checkpoint.path_in(folder / "run"))
    return float(known["seconds"])


def _ended(job: subprocess.Popen[bytes], folder: Path, seconds: float, seen: Iterable[psutil.Process] = ()) -> Ended:
    """Waits so long for a job, and then for the processes that clean up after it. seen: the processes that it had before."""
    known, until = set(seen), time.monotonic() + seconds
    while job.poll() is None and time.monotonic() < until:
        known |= set(family(job.pid))
        time.sleep(0.1)
    code = job.poll()
    if code is None:
        rank_jobs.end(job)
    _settle(folder)
    until = time.monotonic() + SETTLED_SECONDS
    while (left := [one for one in known if alive(one)]) and time.monotonic() < until:
        time.sleep(0.1)
    lines = [line for line in (folder / "run.log").read_text(errors="replace").splitlines() if "lms3d: " in line]
    return Ended(code=code, lines=lines, left=left, names=outcome.temporary_names(folder))


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
        rank_jobs.finish(folder, options.data, training)
        same = rank_jobs.same(options.output / "ranks" / "reference" / "run", folder / "run")
    except (rank_jobs.Failed, checkpoint.Damaged) as error:
        return str(error)
    return "" if same else "other weights than the reference (if most jobs differ, the reference may be the odd one)"


def _closed(folder: Path, wrong: str, note: str) -> Result:
    """The result; the folder of a job that went wrong is kept."""
    if wrong:
        return Result(wrong=f"{wrong}; see {folder}")
    shutil.rmtree(folder)
    return Result(note=note)


KILLS = Part(groups=_STRUCK, cases=_kill_cases, run=_run_kill)
REPEATS = Part(groups=tuple(_HOW), cases=_repeat_cases, run=_run_repeat, once=True)
FILES = Part(groups=tuple(_RULES), cases=_fault_cases, run=_run_fault)
