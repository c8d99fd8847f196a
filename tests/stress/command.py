"""Runs commands under the file shim, each in a fork of a child that has made their imports: half a second, not five.

Importing TensorFlow starts no thread, so a fork is safe until devices are made.
"""

from __future__ import annotations

import ctypes
import gc
import os
import resource
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from pathlib import Path

from tests import fork_server
from tests.stress.harness import Child

MOST_SECONDS = 1800.0
"""The deadline of one command, on a busy machine."""


@dataclass(frozen=True, kw_only=True)
class Command:
    """`python -m module arguments`, with a signal that it gets and limits of its process."""

    module: str
    arguments: Sequence[str]
    environment: Mapping[str, str]
    output: Path
    """Gets its stdout; the same name with .err its stderr."""
    strike: tuple[int, float] | None = None
    """A signal, and the seconds after which the command gets it."""
    limits: Mapping[str, int] = field(default_factory=dict)
    """Limits of the process, by their names in `resource`."""


def child(library: Path) -> Child:
    """A child in which the shim is loaded; `run` is the function to call."""
    return Child(LD_PRELOAD=str(library), OPENBLAS_NUM_THREADS="1")


def run(library: Path, modules: Sequence[str], command: Command) -> int:
    """The exit code of a command, or minus the signal that ended it. modules: its imports."""
    _prepare(tuple(modules))
    if pid := os.fork():
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    try:
        code = _main(library, command)
    except KeyboardInterrupt:  # not caught by the command: end by the signal, as Python does
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    sys.exit(code)


@cache
def _prepare(modules: Sequence[str]) -> None:
    gc.disable()
    for module in modules:
        import_module(module)
    gc.enable()
    gc.freeze()  # as in tests.fork_server: forks do not visit these objects, and so do not copy their pages
    fork_server.require_one_thread()


def _main(library: Path, command: Command) -> int:
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    streams = (os.devnull, str(command.output), f"{command.output}.err")
    files = [os.open(name, os.O_RDWR | os.O_CREAT | os.O_TRUNC) for name in streams]
    fork_server.take(files, {**os.environ, **command.environment})
    if command.strike:
        _strike_later(*command.strike)
    ctypes.CDLL(str(library)).faults_begin()
    for name, most in command.limits.items():
        resource.setrlimit(getattr(resource, name), (most, most))
    return import_module(command.module).main(command.arguments)


def _strike_later(number: int, seconds: float) -> None:
    """Sends the signal from a process of its own, which ends with the command."""
    command = os.getpid()
    if os.fork():
        return
    until = time.monotonic() + seconds
    while time.monotonic() < until and os.getppid() == command:
        time.sleep(0.005)
    if os.getppid() == command:
        os.kill(command, number)
    os._exit(0)
