"""Starts a program on N ranks of this machine, and ends it when its time is over; and what each of its ranks does. No TensorFlow
here."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lms3d.errors import InputError
from lms3d.experiments import ROOT

if TYPE_CHECKING:
    from lms3d.ranks.world import World

HORVODRUN = "horovodrun -np {ranks}"
GRACE_SECONDS = 30.0
BUSY_SECONDS = 0.3
"""How long to watch what else runs on the machine, before a run."""


class RunFailed(RuntimeError):
    """A run ended with an error, or was ended because its time was over (`late`)."""

    exit_code = 1

    def __init__(self, message: str, *, late: bool = False) -> None:
        super().__init__(message)
        self.late = late


@dataclass(frozen=True, kw_only=True)
class Launcher:
    """How to start ranks: `template` with {ranks}, such as "mpirun --map-by socket -np {ranks}"."""

    template: str = HORVODRUN
    cores_per_rank: int | None = None
    """Cores of each rank, whatever their number, so that one rank alone is not given all; None: not bound."""

    def command(self, ranks: int, program: Sequence[str]) -> list[str]:
        """The whole command. InputError if the launcher is missing."""
        try:
            words = shlex.split(self.template.format(ranks=ranks))
        except (KeyError, IndexError, ValueError) as error:
            raise InputError(
                f"--launcher {self.template!r}: {error}; expected a command with {{ranks}}, such as {HORVODRUN!r}"
            ) from None
        # The environment's own programs need not be on the PATH.
        beside = shutil.which(words[0], path=str(Path(sys.executable).parent)) if words else None
        found = shutil.which(words[0]) if words and beside is None else beside
        if found is None:
            raise InputError(
                f"--launcher: {words[0] if words else 'nothing'!s} was not found; install Horovod with `make horovod`, or name "
                "another launcher"
            )
        return [found, *words[1:], *program]

    def run(self, ranks: int, program: Sequence[str], log: Path, *, patience_seconds: float | None = None) -> None:
        """Runs `program` on N ranks to its end. RunFailed with the last words in `log`, into which it writes."""
        command = self.command(ranks, program)
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("w") as file:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT, cwd=ROOT, start_new_session=True,
                preexec_fn=self._binding(ranks),
            )  # fmt: skip
            try:
                exit_code = process.wait(patience_seconds)
            except subprocess.TimeoutExpired:
                end(process, signal.SIGTERM)
                raise RunFailed("ended: its time was over", late=True) from None
            except BaseException:  # Ctrl-C: the ranks are in a session of their own and have not seen it
                end(process, signal.SIGINT)
                raise
        if exit_code:
            raise RunFailed(f"exit code {exit_code}: {last_words(log)} (all of it: {log})")

    def _binding(self, ranks: int) -> Callable[[], None] | None:
        """What binds the launcher to the first cores before it starts; its ranks inherit that."""
        if self.cores_per_rank is None or not hasattr(os, "sched_setaffinity"):
            return None
        cores = sorted(os.sched_getaffinity(0))[: ranks * self.cores_per_rank]
        return lambda: os.sched_setaffinity(0, cores)


def rank_main(arguments: Sequence[str], find: Callable[[dict[str, Any], World], dict[str, Any]]) -> int:
    """The main function of a rank: its exit code. find(asked, world): what all ranks found, which rank 0 writes to
    asked["output"]. arguments: the task, in JSON."""
    from lms3d import errors
    from lms3d.atomic_files import write_json
    from lms3d.device.startup import start_tensorflow
    from lms3d.ranks import job

    asked = json.loads(arguments[0])

    def work() -> None:
        with job.joined() as world:
            start_tensorflow(seed=0, precision=asked["precision"], world=world)
            found = find(asked, world)
            if world.is_chief:
                write_json(Path(asked["output"]), {"ranks": world.size, **found})

    return errors.run(work)


def end(process: subprocess.Popen[bytes], how: signal.Signals) -> None:
    """Signals the process group, and kills it after a while."""
    for kind in (how, signal.SIGKILL):
        try:
            os.killpg(process.pid, kind)
            process.wait(GRACE_SECONDS)
            return
        except subprocess.TimeoutExpired:
            continue
        except ProcessLookupError:
            process.wait()
            return


def last_words(log: Path) -> str:
    """The line that says why: lms3d's own error, else a rank's exception (the launcher's comes after it), else the last."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    own = [line for line in lines if "lms3d: " in line]
    thrown = [line for line in lines if re.match(r"\[\d+\]<std\w+>:[\w.]+(Error|Exception|Lost)\b", line)]
    return (own or thrown or lines or ["it wrote nothing"])[-1][:300]


def default_cores_per_rank(most_ranks: int) -> int | None:
    """The cores shared evenly, the same for every number of ranks; with a GPU no binding."""
    if shutil.which("nvidia-smi") or not hasattr(os, "sched_getaffinity"):
        return None
    return max(1, len(os.sched_getaffinity(0)) // most_ranks)
