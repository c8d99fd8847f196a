"""`python -m deploy.horovod.build` (`make horovod`): Horovod in this Python environment, compiled at most once per machine.

1. The recipe (features, versions, machine) names a folder of the cache: `$LMS3D_CACHE` or `~/.cache/lms3d`, then wheels/<key>.
2. If the environment holds the wheel of that very key, nothing is to be done.
3. Else one process at a time: takes the wheel from the cache, or fetches the source, compiles it, tries the wheel in a
   folder of its own and moves it into the cache in one step; then installs it.

Nothing but Python's own library is used, so that this runs in any environment. Exit codes: 0 done; 2 with one line that says why.
"""

from __future__ import annotations

import fcntl
import importlib.metadata
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO
from urllib.parse import unquote, urlparse

from . import recipe, source
from .recipe import Recipe
from .source import VERSION, BuildError

_PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check")
_PROGRESS_SECONDS = 30.0
_MOST_JOBS = 16
_PREFIX = "lms3d-horovod-"
_TRY = """
import horovod.tensorflow as hvd
built = {"gloo": hvd.gloo_built(), "mpi": hvd.mpi_built(), "nccl": hvd.nccl_built()}
print("features", *(name for name, is_built in built.items() if is_built))
"""


def main() -> int:
    """Installs and prints what was done. Returns the exit code."""
    try:
        ensure(recipe.detect(os.environ))
    except BuildError as error:
        say(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except OSError as error:
        say(
            f"error: {error}; is there space, and may you write there? LMS3D_CACHE names another cache", file=sys.stderr
        )
        return 2
    except KeyboardInterrupt:
        say("interrupted; nothing was changed", file=sys.stderr)
        return 130
    return 0


def ensure(wanted: Recipe) -> None:
    """Horovod as the recipe says is installed when this returns. BuildError or OSError otherwise."""
    key = wanted.key()
    if installed_key() == key:
        say(f"Horovod {VERSION} is installed ({wanted})")
        return
    wheels = cache() / "wheels"
    with alone(wheels / ".lock"):
        wheel = kept(wheels / key)
        if wheel is None:
            recipe.require_tools(os.environ)
            wheel = build(wanted, wheels / key)
        recipe.require_packages()
        install(wheel)
    say(f"installed Horovod {VERSION} ({wanted}) from {wheel}")


def cache() -> Path:
    """The folder of lms3d's caches (the rule of `lms3d.common.disk.cache_directory`)."""
    named = os.environ.get("LMS3D_CACHE")
    return Path(named).expanduser().absolute() if named else Path.home() / ".cache" / "lms3d"


def kept(folder: Path) -> Path | None:
    """The wheel in a folder of the cache."""
    return next(iter(sorted(folder.glob(f"horovod-{VERSION}-*.whl"))), None)


def installed_key() -> str | None:
    """The key of the wheel that is installed here: pip notes down the path that it came from. None for any other Horovod."""
    try:
        note = importlib.metadata.distribution("horovod").read_text("direct_url.json")
    except importlib.metadata.PackageNotFoundError:
        return None
    return Path(unquote(urlparse(json.loads(note or "{}").get("url", "")).path)).parent.name


def build(wanted: Recipe, folder: Path) -> Path:
    """Compiles in a temporary folder; a wheel that works is then moved to `folder`, whole. The log stays beside `folder`."""
    log = folder.with_name(f"{folder.name}.log")
    begin = time.monotonic()
    with workspace() as work:
        root = source.prepared(work)
        say(f"compiling Horovod {VERSION} ({wanted}): 4 minutes of one core, once; log: {log}")
        command = (
            *_PIP,
            "wheel",
            "--verbose",
            "--no-deps",
            "--no-build-isolation",
            "--wheel-dir",
            work / "wheel",
            root,
        )
        compile_quietly([str(part) for part in command], build_environment(wanted, work), log)
        wheel = kept(work / "wheel")
        if wheel is None:
            raise BuildError(f"the build made no wheel; see {log}")
        try_out(wheel, wanted, work / "try")
        say(f"compiled in {time.monotonic() - begin:.0f} s")
        return moved(wheel, folder)


@contextmanager
def workspace() -> Iterator[Path]:
    """A temporary folder for a build, locked while the build runs. Folders of builds that were killed are removed first."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with suppress(OSError), locked(folder):  # BlockingIOError: that build runs
            shutil.rmtree(folder)
    with tempfile.TemporaryDirectory(prefix=_PREFIX, ignore_cleanup_errors=True) as temporary, locked(Path(temporary)):
        yield Path(temporary)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """A block that has a folder of this user for itself. BlockingIOError if another process has it, OSError for other folders."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        if os.fstat(descriptor).st_uid != os.getuid():
            raise PermissionError(folder)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


def build_environment(wanted: Recipe, work: Path) -> dict[str, str]:
    """The caller's environment, with the recipe's settings and as many compilers at once as there are cores."""
    jobs = min(_MOST_JOBS, len(os.sched_getaffinity(0)))
    # `make horovod` hands its own flags down; a job server that is closed to this grandchild would stop the build.
    inherited = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL")}
    return {**inherited, **wanted.settings, **_linkable_nccl(wanted, work), "MAKEFLAGS": f"-j{jobs}"}


def compile_quietly(command: Sequence[str], environment: dict[str, str], log: Path) -> None:
    """Runs the build with its output in `log` and a sign of life every half minute. BuildError with the end of the log."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with (
        log.open("w") as output,
        subprocess.Popen(  # in a group of its own, so that the compilers end with pip
            command, env=environment, stdout=output, stderr=output, start_new_session=True
        ) as process,
    ):
        try:
            code = _ended(process)
        except BaseException:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            raise
    if code:
        lines = log.read_text(errors="replace").splitlines()
        why = next((line.strip() for line in lines if "error:" in line.lower()), lines[-1] if lines else "no output")
        raise BuildError(f"Horovod did not compile (exit code {code}): {why}; the whole log: {log}")


def _ended(process: subprocess.Popen[bytes]) -> int:
    """The exit code of a process at its end, with a sign of life every half minute until then."""
    begin = time.monotonic()
    while True:
        try:
            return process.wait(_PROGRESS_SECONDS)
        except subprocess.TimeoutExpired:
            say(f"still compiling after {time.monotonic() - begin:.0f} s")


def try_out(wheel: Path, wanted: Recipe, folder: Path) -> None:
    """BuildError unless the wheel, unpacked in `folder`, loads into TensorFlow and has the features of the recipe."""
    pip("install", "--no-deps", "--target", str(folder), str(wheel))
    environment = {**os.environ, "PYTHONPATH": str(folder), "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run([sys.executable, "-c", _TRY], env=environment, capture_output=True, text=True, cwd=folder)
    found = [line.split()[1:] for line in done.stdout.splitlines() if line.startswith("features")]
    if done.returncode or found != [list(wanted.features)]:
        what = f"has {found[0]}" if found else (done.stderr.strip().splitlines() or ["said nothing"])[-1]
        raise BuildError(f"the compiled Horovod was tried out and {what}; expected {list(wanted.features)}")


def moved(wheel: Path, folder: Path) -> Path:
    """Copies the wheel beside its place and renames it: a reader of the cache never sees half of it, nor does a power cut
    leave half of it, or take it away afterwards. Machines that share the cache may do so at once."""
    folder.mkdir(parents=True, exist_ok=True)
    partial = folder / f".{wheel.name}.{secrets.token_hex(8)}.partial"
    try:
        shutil.copyfile(wheel, partial)
        sync(partial)
        os.replace(partial, folder / wheel.name)
    finally:
        partial.unlink(missing_ok=True)
    for changed in (folder, *folder.parents[:2]):
        with suppress(OSError):  # not every file system can sync a folder
            sync(changed)
    return folder / wheel.name


def sync(path: Path) -> None:
    """Returns when the content of a file, or the names in a folder, are on the disk."""
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def install(wheel: Path) -> None:
    """Puts the wheel into this environment, in the place of any other Horovod."""
    pip("install", "--no-deps", "--force-reinstall", str(wheel))


def pip(*arguments: str) -> None:
    """Runs pip. BuildError with its last line if it fails."""
    done = subprocess.run([*_PIP, *arguments], capture_output=True, text=True)
    if done.returncode:
        said = (done.stderr.strip() or "pip said nothing").splitlines()[-1]
        raise BuildError(f"pip {arguments[0]} {arguments[-1]} failed: {said}")


@contextmanager
def alone(lock: Path) -> Iterator[None]:
    """One process at a time; the system frees the lock of a process that died."""
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("waiting for another process that builds or installs Horovod")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def say(text: str, file: TextIO | None = None) -> None:
    """One line for the reader, on stdout unless another file is given."""
    print("horovod:", text, file=file or sys.stdout, flush=True)


def _linkable_nccl(wanted: Recipe, work: Path) -> dict[str, str]:
    """NVIDIA's Python package of NCCL has libnccl.so.2 alone; the linker looks for libnccl.so."""
    home = wanted.settings.get("HOROVOD_NCCL_HOME")
    library = recipe.nccl_libraries(Path(home))[0] if home else None
    if library is None or library.name == "libnccl.so":
        return {}
    links = work / "nccl"
    links.mkdir()
    (links / "libnccl.so").symlink_to(library)
    flags = f"{os.environ.get('LDFLAGS', '')} -Wl,-rpath,{library.parent}".strip()
    return {"HOROVOD_NCCL_LIB": str(links), "LDFLAGS": flags}


if __name__ == "__main__":
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)  # the temporary folder goes, as with Ctrl-C
    sys.exit(main())
