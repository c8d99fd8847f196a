"""`python -m lms3d.launch`: start a command as several ranks on this machine. It needs neither Horovod nor MPI."""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence

import psutil

from lms3d import cli, errors
from lms3d.errors import InputError
from lms3d.ranks import meeting
from lms3d.ranks.store_server import StoreServer

_DESCRIPTION = """\
Start a command as N ranks on this machine, which train together; one rank per GPU:
  python -m lms3d.launch -np 4 python -m lms3d.train --resolution 192 --output runs/192"""

_EPILOG = """\
Ctrl-C (SIGINT) and SIGTERM are passed on to the ranks, which save and stop.
exit codes: 0 if all ranks return 0; else that of the rank that failed first"""

POLL_SECONDS = 0.05
GRACE_SECONDS = 35.0
"""How long the other ranks may go on after one has failed: they notice within 30 s by themselves, and rank 0 may be saving."""
KILL_SECONDS = 10.0
_LAUNCHER_ENDS = 1  # PR_SET_PDEATHSIG of prctl


def main(arguments: Sequence[str] | None = None) -> int:
    """Starts the ranks and waits for them. Returns the exit code."""

    def launch() -> int:
        given = _parser().parse_args(arguments)
        if not given.command:
            raise InputError("the command is missing: python -m lms3d.launch -np N python -m lms3d.train OPTIONS")
        return run(given.ranks, given.command)

    return errors.run(launch)


def run(ranks: int, command: Sequence[str]) -> int:
    """Runs a command as `ranks` processes to their end. Returns the exit code."""
    store = StoreServer()
    processes: list[subprocess.Popen[bytes]] = []
    try:
        with _noted_signals() as signals:
            for rank in range(ranks):
                processes.append(_started(command, rank, ranks, store.place))
            store.serve()  # now: a process that has threads should not fork
            return _wait(processes, signals)
    finally:
        _end(processes)
        store.close()


def _started(command: Sequence[str], rank: int, ranks: int, place: str) -> subprocess.Popen[bytes]:
    """The process of one rank, in a session of its own: signals reach it once, by `_wait`."""
    variables = {meeting.RANK: str(rank), meeting.SIZE: str(ranks), meeting.STORE: place}
    try:
        return subprocess.Popen(
            command, env={**os.environ, **variables}, start_new_session=True, preexec_fn=_end_with_the_launcher
        )
    except OSError as error:
        raise InputError(f"{command[0]}: {error.strerror}; expected a command, such as python -m lms3d.train") from None


_libc = ctypes.CDLL(None)


def _end_with_the_launcher() -> None:
    """Asks the kernel, in the new process, to end it if the launcher dies."""
    _libc.prctl(_LAUNCHER_ENDS, signal.SIGTERM)


def _wait(processes: Sequence[subprocess.Popen[bytes]], signals: list[int]) -> int:
    """Waits until all have ended, and passes on each of the `signals` that arrive meanwhile.

    After a failure it waits for `GRACE_SECONDS`, and not for a rank that is stopped. Returns the first exit code that is not 0,
    else 0.
    """
    code, until = 0, float("inf")
    while running := [process for process in processes if process.poll() is None]:
        while signals:
            number = signals.pop(0)
            for process in running:
                process.send_signal(number)
        if not code and (failed := [p.returncode for p in processes if p.returncode]):
            code, until = failed[0], time.monotonic() + GRACE_SECONDS
        if code:
            _kill_stopped(running)
        if time.monotonic() > until:
            _end(running)
        time.sleep(POLL_SECONDS)
    code = code or next((p.returncode for p in processes if p.returncode), 0)
    return code if code >= 0 else 128 - code


def _kill_stopped(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """Kills what SIGSTOP has stopped: the job is lost because of it, and it hears nothing else."""
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            if psutil.Process(process.pid).status() == psutil.STATUS_STOPPED:
                process.kill()


def _end(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """Ends what still runs: it may close its files, and is killed after `KILL_SECONDS`."""
    running = [process for process in processes if process.poll() is None]
    for process in running:
        process.terminate()
    until = time.monotonic() + KILL_SECONDS
    for process in running:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(max(0.0, until - time.monotonic()))
            continue
        process.kill()
        process.wait()


@contextlib.contextmanager
def _noted_signals() -> Iterator[list[int]]:
    """A list to which SIGINT and SIGTERM are added within the block. They do nothing else: not all ranks may have started yet."""
    signals: list[int] = []
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, lambda received, _: signals.append(received)) for number in numbers}
    try:
        yield signals
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _parser() -> cli.Parser:
    parser = cli.Parser(prog="python -m lms3d.launch", description=_DESCRIPTION, epilog=_EPILOG)
    parser.add_argument(
        "-np", dest="ranks", type=cli.whole(1, 1024), required=True, metavar="N", help="number of ranks"
    )
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="COMMAND", help="what to start, with its options")
    return parser


if __name__ == "__main__":
    sys.exit(main())
