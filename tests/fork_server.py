"""Runs what `python -m` and `python -c` run, each in a fork of a process that has imported TensorFlow, Keras and lms3d already.

    test ── words, variables, streams ──> server ── fork ──> keeper ── fork ──> command
      ^──────────────── process id, then exit code ────────────┘

A program that starts Python itself, such as a launcher of ranks, starts `tests/forked.py` in its place (`Commands.python`), which
asks the server as a test does, by the server's own socket.

A command is a process of its own, with its own arguments, variables, folder, umask, streams, signals, limits and exit code. What
it has not is a start of its own: it gets a fresh Python if it asks for another value of a variable that Python or a library
reads when it starts. What concerns the start (what is imported, and what that prints; launchers; the memory of a process) is
tested by `python -m` itself.

A fork copies the calling thread alone. To import TensorFlow starts no thread; OpenBLAS has some, and ends them before each fork.
The server does not start if others are left.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import os
import pkgutil
import runpy
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import types
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import IO, Any, Self

ROOT = Path(__file__).parents[1]
ONE_WORKER = {"LOKY_MAX_CPU_COUNT": "1"}
"""Files are read and written by the command itself: processes that have to start first would take longer."""
READ_WHEN_USED = (
    "LMS3D_", "PYTEST_", "PYTHONPATH", "TMPDIR", "TF_CPU_ALLOCATOR_USE_BFC", "TF_CPU_BFC_MEM_LIMIT_IN_MB",
    "TF_FORCE_GPU_ALLOW_GROWTH", "ONEDNN_MAX_CPU_ISA", "HOROVOD_", "OMPI_MCA_", *ONE_WORKER,
)  # fmt: skip
"""The begins of the names of variables that may differ between the commands of a server."""
PACKAGES = ("lms3d", "data", "examples", "experiments", "tests")
"""The packages whose modules `python -m` runs from the top of the repository."""
NOT_IMPORTED = (
    "lms3d.ranks.horovod",
    "lms3d.ranks.notices",
    "lms3d.experiments.harness.steps_torch",
)
"""They load libraries that few commands need."""
_QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3"}  # TensorFlow's import reads it, and lms3d sets it before
_NUMBER = struct.Struct("i")


class Command:
    """A command that runs. Its output goes to files, so that nobody needs to read along."""

    def __init__(
        self, words: Sequence[str], process: _Forked | subprocess.Popen[bytes], streams: Sequence[IO[bytes]]
    ) -> None:
        self.words, self.pid = list(words), process.pid
        self._process, self._streams = process, streams

    def poll(self) -> int | None:
        """The exit code, or minus the signal that ended it; None while it runs."""
        return self._process.poll()

    def wait(self, timeout: float | None = None) -> int:
        """The same at its end; subprocess.TimeoutExpired after so many seconds."""
        return self._process.wait(timeout)

    def send_signal(self, number: int) -> None:
        """To the command alone, if it still runs."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def end(self, timeout: float | None = None) -> subprocess.CompletedProcess[str]:
        """Waits for it. Its output is text; stderr is "" where it went to stdout. Killed if it takes longer."""
        try:
            code = self.wait(timeout)
        except BaseException:  # the test's own time may be up, too
            self.send_signal(signal.SIGKILL)
            self.wait()
            raise
        written = []
        for stream in self._streams:
            stream.seek(0)
            written.append(stream.read().decode())
            stream.close()
        return subprocess.CompletedProcess(self.words, code, written[0], "".join(written[1:]))


class Commands:
    """The tests' side: a server that starts with the first command. A context manager."""

    def __init__(self) -> None:
        self._server: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._environment: dict[str, str] = {}
        self._made: dict[str, str] = {}  # variables that the imports set, as they would in a fresh process
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def run(self, words: Sequence[object], *, timeout: float = 300, **how: Any) -> subprocess.CompletedProcess[str]:
        """`start` and `Command.end`."""
        return self.start(words, **how).end(timeout)

    def start(
        self,
        words: Sequence[object],
        *,
        cwd: str | Path = ROOT,
        env: Mapping[str, str] | None = None,
        merged: bool = False,
    ) -> Command:
        """Starts `python words`, in its own process group only if the tests are in theirs. Its stdin is empty.

        env: the variables of this process by default, and ONE_WORKER if they do not name it. merged: stderr goes to stdout.
        """
        line, environment = [str(word) for word in words], ONE_WORKER | dict(os.environ if env is None else env)
        streams = [tempfile.TemporaryFile() for _ in range(1 if merged else 2)]  # noqa: SIM115  Command.end closes them
        process: _Forked | subprocess.Popen[bytes]
        if self._forks(line, environment):
            process = self._fork(line, str(cwd), environment, (streams[0].fileno(), streams[-1].fileno()))
        else:
            process = subprocess.Popen(
                [sys.executable, *line],
                cwd=cwd,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=streams[0],
                stderr=streams[-1],
            )
        return Command(line, process, streams)

    def python(self) -> list[str]:
        """The text for `sys.executable` in a program that starts Python: the process that it starts has its command's
        streams and exit code, and hands signals on. The command is no child of it, and has the affinity of the server."""
        if self._server is None:
            self._begin()
        assert self._folder is not None
        return [sys.executable, "-S", "-E", str(ROOT / "tests/forked.py"), _door(self._folder.name)]

    def _forks(self, words: Sequence[str], environment: Mapping[str, str]) -> bool:
        """Whether a fork would be as good as a start."""
        if words[0] != "-c" and (words[0] != "-m" or words[1].split(".")[0] not in PACKAGES):
            return False
        if self._server is None:
            self._begin()
        here = {**self._environment, **_QUIET}
        return all(
            name.startswith(READ_WHEN_USED) or environment.get(name, _QUIET.get(name)) == here.get(name)
            for name in (environment.keys() | here.keys()) - self._made.keys()
        )

    def _begin(self) -> None:
        self._environment = dict(os.environ)
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._folder = tempfile.TemporaryDirectory(prefix="lms3d-forks-")  # a socket's path must be short
        self._server = subprocess.Popen(
            [sys.executable, "-m", "tests.fork_server", str(theirs.fileno()), _door(self._folder.name)],
            cwd=ROOT, env={**self._environment, **_QUIET}, pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        )  # fmt: skip
        theirs.close()
        if not (made := self._control.recv(1 << 16)):
            raise RuntimeError("the server has not started; it says why on stderr")
        self._made = json.loads(made)

    def _fork(self, words: list[str], cwd: str, environment: dict[str, str], streams: tuple[int, int]) -> _Forked:
        assert self._control is not None
        told, tells = os.pipe()
        umask = os.umask(0o077)  # the server has that of the test it began in
        os.umask(umask)
        job = json.dumps({"words": words, "cwd": cwd, "environment": self._made | environment, "umask": umask}).encode()
        with open(os.devnull, "rb") as nothing:
            socket.send_fds(self._control, [job], [nothing.fileno(), *streams, tells])
        os.close(tells)
        return _Forked(words, told)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._control is not None and self._server is not None:
            self._control.close()
            self._server.wait()
        if self._folder is not None:
            self._folder.cleanup()


class _Forked:
    """A forked command, as subprocess.Popen would have it, from what its keeper tells."""

    def __init__(self, words: list[str], told: int) -> None:
        self._words, self._told, self._code = words, os.fdopen(told, "rb", buffering=0), None
        self.pid = self._next()

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.wait(0)
        return None

    def wait(self, timeout: float | None = None) -> int:
        if self._code is None:
            if not select.select([self._told], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self._words, timeout or 0)
            self._code: int | None = self._next()
            self._told.close()
        assert self._code is not None
        return self._code

    def _next(self) -> int:
        (number,) = _NUMBER.unpack(self._told.read(_NUMBER.size))
        return int(number)


def require_one_thread() -> None:
    """Forks once, as a trial. RuntimeError if threads are left that a fork would lose."""
    if not (child := os.fork()):
        os._exit(0)
    left = len(os.listdir("/proc/self/task"))  # OpenBLAS's have ended, and begin again when they are needed
    os.waitpid(child, 0)
    if left != 1:
        raise RuntimeError(f"{left} threads: a fork would lose them")


def take(streams: Sequence[int], environment: Mapping[str, str]) -> None:
    """Takes over the calling process's stdin, stdout and stderr (descriptors), and all its environment variables."""
    for number, descriptor in enumerate(streams):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.environ.clear()
    os.environ.update(environment)


def _door(folder: str) -> str:
    """The path of the server's own socket."""
    return f"{folder}/door"


def serve(control: socket.socket, path: str) -> None:
    """Forks until the tests close their end. A fork ends in it, or it raises the command's exception. path: of a socket to
    which others connect, each with one command."""
    before = dict(os.environ)
    gc.disable()  # imports stay
    _import_all()
    gc.enable()
    paths = sys.path[1 + len(os.environ.get("PYTHONPATH", "").split(":")) * ("PYTHONPATH" in os.environ) :]
    require_one_thread()
    gc.freeze()  # else each fork would copy the pages of all objects when it collects
    door = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    door.bind(path)
    door.listen(64)
    control.sendall(
        json.dumps({name: value for name, value in os.environ.items() if before.get(name) != value}).encode()
    )
    while True:
        asks, _, _ = select.select([control, door], [], [])
        guest = None if control in asks else door.accept()[0]
        job, descriptors, _, _ = socket.recv_fds(guest or control, 1 << 20, 4)
        if guest:
            guest.close()
        if not job and guest:
            continue
        if not job:
            return
        *streams, tells = descriptors
        if not os.fork():
            if not (command := os.fork()):
                os.close(tells)
                control.close()
                door.close()
                _end_of(partial(_run, json.loads(job), streams, paths))
            _keep(command, tells, streams)
        for descriptor in descriptors:
            os.close(descriptor)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:  # keepers that have ended
                pass


def _import_all() -> None:
    """What some command imports."""
    import keras  # noqa: F401
    import tensorflow  # noqa: F401

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for module in pkgutil.walk_packages(importlib.import_module("lms3d").__path__, "lms3d."):
            if module.name not in NOT_IMPORTED:
                importlib.import_module(module.name)


def _keep(command: int, tells: int, streams: Sequence[int]) -> None:
    """Tells of a command, and ends with it. If nobody listens any more, the command is killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the command's to answer
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    for descriptor in streams:
        os.close(descriptor)
    os.write(tells, _NUMBER.pack(command))
    events = select.poll()
    events.register(os.pidfd_open(command), select.POLLIN)
    events.register(tells, 0)
    if any(descriptor == tells for descriptor, _ in events.poll()):
        os.kill(command, signal.SIGKILL)
    os.write(tells, _NUMBER.pack(os.waitstatus_to_exitcode(os.waitpid(command, 0)[1])))
    os._exit(0)


def _end_of(run: Callable[[], None]) -> None:
    """Runs it and ends as Python does, but takes nothing apart: to free all modules takes a third of a second, and the kernel frees
    the memory. Raises what is an error, or a Ctrl-C."""
    code: Any = 0
    try:
        run()
    except SystemExit as end:
        code = end.code or 0
    threading._shutdown()  # type: ignore[attr-defined]  as Python waits for its threads
    atexit._run_exitfuncs()
    if not isinstance(code, int):
        print(code, file=sys.stderr)
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    os._exit(code & 0xFF if isinstance(code, int) else 1)


def _run(job: dict[str, Any], streams: Sequence[int], paths: Sequence[str]) -> None:
    """What `python` does with its words; the rest is as in a process that has just started."""
    import numpy as np

    take(streams, job["environment"])
    os.chdir(job["cwd"])
    os.umask(job["umask"])
    kind, program, *arguments = job["words"] if job["words"][0] in ("-c", "-m") else ["", *job["words"]]
    named = os.environ.get("PYTHONPATH")
    first = {"-c": "", "-m": job["cwd"]}.get(kind, str(Path(program).parent))
    sys.path[:] = [first, *(named.split(":") if named else []), *paths]
    tempfile.tempdir = None
    np.random.seed()
    sys.argv, sys.orig_argv = [kind if kind == "-c" else program, *arguments], [sys.executable, *job["words"]]
    if not kind:
        runpy.run_path(program, run_name="__main__")
    elif kind == "-c":
        main = sys.modules["__main__"] = types.ModuleType("__main__")
        exec(program, vars(main))
    else:
        sys.modules.pop(program, None)
        runpy.run_module(program, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])), sys.argv[2])
