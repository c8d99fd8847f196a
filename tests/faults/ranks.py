"""`python -m tests.faults.ranks`: the fault shim in one of two ranks, which horovodrun starts as Pythons of their own.

RANKS-1  Whatever befalls one rank's files, the job ends soon, with a code other than 0 and one line of lms3d.
RANKS-2  After an error nothing is left behind: no process, no swap file, no temporary name; after a kill not once it was repeated.
RANKS-3  Repeated with --resume, the job ends with the weights of the undisturbed one, bit for bit.

Results are added to OUTPUT/results.jsonl; what went well there is not tried again.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import psutil

from experiments import rank_jobs
from tests.faults import outcome, scenarios, shim

FAULTS = (
    *((0, f"rename:run/last/checkpoint.npz:2:{action}") for action in ("kill", "EIO", "ENOSPC")),
    *((0, f"fsync:run/last/.checkpoint.*:1:{action}") for action in ("kill", "EIO", "ENOSPC")),
    *((0, f"write:run/last/.checkpoint.*:40:{action}") for action in ("kill", "EIO", "ENOSPC")),
    *((1, f"create:swap/lms3d-swap-*/*:1:{action}") for action in ("kill", "EIO", "ENOSPC")),
)
"""Rank, and what befalls it: rank 0 writes the checkpoints, each rank its own swap files."""

_TRAINING = [
    "--resolution", "16", "--model", "unet3d", "--epochs", "2", "--steps-per-epoch", "2", "--validation-steps", "1", "--seed", "3",
    *scenarios.SWAP.split(),
]  # fmt: skip
_PRELOADED = 'if [ "$HOROVOD_RANK" = "$FAULTS_RANK" ]; then export LD_PRELOAD="$FAULTS_LIBRARY"; fi; exec "$@"'
_MOST_SECONDS = 600.0
_SETTLED_SECONDS = 60.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Tries all. Returns 1 if something is wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.ranks", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--most", type=int, metavar="N", default=len(FAULTS), help="the first N faults (default: all)")
    parser.add_argument("--output", default="runs/faults-ranks", help="folder for results and work")
    options = parser.parse_args(arguments)
    folder = Path(options.output).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    os.environ["LMS3D_CACHE"] = str(folder / "cache")
    if not (folder / "data").exists():
        scenarios.make_data(folder / "data")
    if not (folder / "undisturbed" / "done").exists():
        shutil.rmtree(folder / "undisturbed", ignore_errors=True)
        rank_jobs.finish(folder / "undisturbed", "run", str(folder / "data" / "volumes"), _TRAINING)
        (folder / "undisturbed" / "done").touch()
    library, results = shim.built(folder), folder / "results.jsonl"
    lines = [json.loads(line) for line in results.read_text().splitlines()] if results.exists() else []
    found = {(one["rank"], one["fault"]): one["wrong"] for one in lines}
    for rank, rule in FAULTS[: options.most]:
        if found.get((rank, rule), "not tried"):
            found[rank, rule] = wrong = tried(folder, library, rank, rule)
            print(f"rank {rank}, {rule}: {wrong or 'well'}", flush=True)
            with results.open("a") as stream:
                print(json.dumps({"rank": rank, "fault": rule, "wrong": wrong}), file=stream)
    print(f"{len(found)} faults of one of two ranks, {sum(map(bool, found.values()))} wrong")
    return int(any(found.values()))


def tried(folder: Path, library: Path, rank: int, rule: str) -> str:
    """What was wrong after this fault; "" if nothing."""
    job, scratch, data = folder / "job", folder / "scratch", str(folder / "data" / "volumes")
    for path in (job, scratch):
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir()
    environment = shim.environment(library, job, scratch, rule)
    environment |= {"FAULTS_LIBRARY": environment.pop("LD_PRELOAD"), "FAULTS_RANK": str(rank)}
    process = rank_jobs.start(
        job, "run", data, _TRAINING, within=("sh", "-c", _PRELOADED, "sh"), environment=environment
    )
    code, left = _ended(process)
    if not shim.struck(scratch):
        return f"the fault has not struck; exit code {code}"
    lines = [line for line in (job / "run.log").read_text(errors="replace").splitlines() if "lms3d: " in line]
    if told := _wrong_end(code, lines, left):
        return told
    _settle(job / "swap")
    if not rule.endswith(":kill") and (names := outcome.temporary_names(job)):
        return f"left behind by an error: {', '.join(map(shim.pattern, names))}"
    try:
        rank_jobs.finish(job, "run", data, [*_TRAINING, "--resume"])
    except rank_jobs.Failed as error:
        return f"repeated, {error}"
    _settle(job / "swap")
    if names := outcome.temporary_names(job):
        return f"left behind: {', '.join(map(shim.pattern, names))}"
    return "" if rank_jobs.same(folder / "undisturbed" / "run", job / "run") else "repeated, it has other weights"


def _wrong_end(code: int | None, lines: Sequence[str], left: Sequence[psutil.Process]) -> str:
    """RANKS-1, -2."""
    if code is None:
        return "the job hangs"
    if code == 0:
        return "the job ended with code 0"
    if len(lines) != 1:
        return f"{len(lines)} lines of lms3d: {' | '.join(lines)[:600]}"
    return f"left running: {', '.join(str(one.pid) for one in left)}" if left else ""


def _ended(job: subprocess.Popen[bytes]) -> tuple[int | None, list[psutil.Process]]:
    """The exit code, None if it hung, and the processes that outlived it."""
    seen, until = set[psutil.Process](), time.monotonic() + _MOST_SECONDS
    while job.poll() is None and time.monotonic() < until:
        seen |= set(rank_jobs.family(job.pid))
        time.sleep(0.1)
    if job.poll() is None:
        for process in [*rank_jobs.family(job.pid), job]:
            process.kill()
        job.wait()
        return None, []
    _, left = psutil.wait_procs(seen, timeout=_SETTLED_SECONDS)
    return job.returncode, left


def _settle(swap: Path) -> None:
    """Until who removes the swap folder of a killed rank is done."""
    until = time.monotonic() + _SETTLED_SECONDS
    while any(swap.iterdir()) and time.monotonic() < until:
        time.sleep(0.1)


if __name__ == "__main__":
    sys.exit(main())
