"""The operations of `src/ops.cc`, compiled on this machine and kept in the cache folder.

NATIVE-1  They are compiled once for each version of TensorFlow, compiler and source, with the headers of TensorFlow's wheel: at
          first use, or by `python -m lms3d.engine.native.library` (`make venv`).
NATIVE-2  Processes that start together compile once: the others wait for a lock. A library appears under its name only when it is
          whole.
NATIVE-3  LMS3D_NATIVE_LIBRARY names a library that was compiled elsewhere, for a machine without compiler or headers. It is
          loaded as it is.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from lms3d import atomic_files, console
from lms3d.common.disk import cache_directory
from lms3d.errors import InputError, StorageError

SOURCES = Path(__file__).with_name("src")
GIVEN = "LMS3D_NATIVE_LIBRARY"
_COMPILERS = ("g++", "c++", "clang++")
_FLAGS = ("-std=c++17", "-O2", "-fPIC", "-shared", "-fvisibility-inlines-hidden", "-pthread")
_LOADING = threading.Lock()
_PATIENCE_SECONDS = 600.0
_ANOTHER = f"look at the compiler's version, name another one in CXX, or name a compiled library in {GIVEN}"
_WHAT_TO_DO = f"install one (Debian: apt-get install g++), name one in CXX, or name a compiled library in {GIVEN}"


@dataclass(frozen=True)
class Library:
    """The loaded library. operations: the module of TensorFlow's wrappers (`lms_swap_out`, ...). calls: the functions of
    `src/face.cc`."""

    path: Path
    operations: Any
    calls: ctypes.CDLL


def library() -> Library:
    """The library, compiled if need be, and loaded. InputError, with advice, if that is not possible."""
    with _LOADING:
        found = _loaded()
    if isinstance(found, InputError):
        raise InputError(str(found))
    return found


def missing() -> str:
    """The reason why there is no library, with advice; empty if there is one."""
    try:
        library()
    except InputError as error:
        return str(error)
    return ""


@functools.cache
def _loaded() -> Library | InputError:
    """The library, or the reason why there is none. Tried once in a process: TensorFlow returns a library's operations only to its
    first caller, and a compiler that fails takes its time."""
    try:
        return _load(given() or compiled())
    except InputError as error:
        return error


def _load(path: Path) -> Library:
    import tensorflow as tf

    try:
        return Library(path, tf.load_op_library(str(path)), _with_types(ctypes.CDLL(str(path))))
    except (tf.errors.OpError, OSError, AttributeError) as error:
        why = str(error).splitlines()[0]
        raise InputError(
            f"the native library {str(path)!r} does not load: {why}; it must be compiled from this version of lms3d for TensorFlow "
            f"{tf.__version__}: remove it, or unset {GIVEN}, and lms3d compiles a new one"
        ) from None


def given() -> Path | None:
    """The path of a library that was compiled elsewhere (NATIVE-3), or None. InputError if the file is missing."""
    name = os.environ.get(GIVEN)
    if not name:
        return None
    if not Path(name).is_file():
        raise InputError(f"{GIVEN}={name}: no such file; name a compiled library, or unset it to compile one")
    return Path(name).resolve()


def compiled() -> Path:
    """The path of the library, compiled if it is not there yet."""
    compiler = find_compiler()
    folder = cache_directory() / "native"
    path = folder / f"lms3d-{_key(compiler)}.so"
    try:
        _make_private(folder)
        if path.exists():
            return path
        with FileLock(f"{path}.lock", timeout=_PATIENCE_SECONDS):  # NATIVE-2
            if not path.exists():
                _compile(compiler, path)
    except Timeout:
        raise InputError(
            f"another process has held {path}.lock for {_PATIENCE_SECONDS:.0f} s; end it, or remove the file, and start again"
        ) from None
    except OSError as error:
        raise InputError(
            f"the swap engine cannot be kept in {str(folder)!r}: {error.strerror}; make room there, or name another cache folder "
            "in LMS3D_CACHE"
        ) from None
    return path


def _make_private(folder: Path) -> None:
    """Raises InputError if others may write to the folder, since its library is run."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.stat()
    if found.st_uid != os.geteuid() or found.st_mode & 0o022:
        raise InputError(
            f"the folder of the swap engine {str(folder)!r} is another user's, or others may write there: remove it, or name "
            "another cache folder in LMS3D_CACHE"
        )


def made_by() -> str:
    """The origin of the library, for people."""
    if path := given():
        return f"given as {path}"
    import tensorflow as tf

    compiler = find_compiler()
    version = subprocess.run(
        [compiler, "-dumpfullversion", "-dumpversion"], capture_output=True, text=True, check=False
    )
    return f"compiled by {Path(compiler).name} {version.stdout.strip()} for TensorFlow {tf.__version__}"


def find_compiler() -> str:
    """The C++ compiler's path: CXX, or the first of some names that there is. InputError without one."""
    for name in (os.environ.get("CXX") or "", *_COMPILERS):
        if name and (found := shutil.which(name)):
            return found
    raise InputError(f"found no C++ compiler to build the swap engine with: {_WHAT_TO_DO}")


def _compile(compiler: str, path: Path) -> None:
    import tensorflow as tf

    headers = [
        flag.replace("-I", "-isystem", 1) if flag.startswith("-I") else flag
        for flag in tf.sysconfig.get_compile_flags()
    ]
    prefix = f"compiling-{path.stem}-"
    for dead in path.parent.glob(f"{prefix}*"):  # of a process that was killed: this one holds the lock
        shutil.rmtree(dead, ignore_errors=True)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=prefix) as scratch:
        made = Path(scratch) / path.name
        command = [
            compiler, *_FLAGS, *[f for f in headers if not f.startswith("--std")], *map(str, sorted(SOURCES.glob("*.cc"))),
            "-o", str(made), *tf.sysconfig.get_link_flags(), "-ldl",
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            errors = [line for line in done.stderr.splitlines() if "error" in line] or done.stderr.splitlines()
            raise InputError(f"{compiler} could not compile the swap engine: {' '.join(errors[:1])}; {_ANOTHER}")
        os.replace(made, path)


def _key(compiler: str) -> str:
    """The name of the compiled library (NATIVE-1)."""
    import tensorflow as tf

    version = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=False).stdout
    known = hashlib.sha256()
    for part in (version, tf.__version__, tf.version.GIT_VERSION, platform.machine(), *_FLAGS):
        known.update(part.encode() + b"\0")
    for source in sorted(SOURCES.iterdir()):
        known.update(source.name.encode() + b"\0" + source.read_bytes())
    return known.hexdigest()[:20]


def _with_types(calls: ctypes.CDLL) -> ctypes.CDLL:
    number, text, address = ctypes.c_int64, ctypes.c_char_p, ctypes.c_void_p
    result = ctypes.POINTER(number)
    for name, returned, arguments in (
        ("memory_lane", number, [ctypes.c_double] * 3 + [text]),
        ("cuda_lane", number, [text]),
        ("file_lane", number, [text, ctypes.c_int] + [number] * 3),
        ("failure", text, []),
        ("reserve", text, [number] * 3),
        ("settle", text, [number]),
        ("drop", None, [number] * 2),
        ("take", None, [number, ctypes.POINTER(ctypes.c_double)]),
        ("file_begin", None, [number]),
        ("file_failed", text, [number]),
        ("file_check", text, [number, ctypes.c_int]),
        ("file_write", text, [number, number, address, result]),
        ("file_read", text, [number, number, address]),
        ("file_fetch", text, [number, number, result]),
        ("file_sync", text, [number, number]),
        ("file_remove", text, [number, number]),
        ("file_place", text, [number, number, result]),
        ("use_gpu_kernels", text, [text, text]),
        ("replace_call", ctypes.c_int, [text, address]),
        ("close", None, [number]),
    ):
        call = getattr(calls, f"lms3d_{name}")
        call.restype, call.argtypes = returned, arguments
    return calls


def main(arguments: Sequence[str] | None = None) -> int:
    """`python -m lms3d.engine.native.library [FILE]`: compiles, and says where the library lies.

    FILE: copies it there, for machines without a compiler (NATIVE-3); exit code 2 if there is none. Without FILE, as `make venv`
    calls it, a missing compiler is reported and is no error.
    """
    words = [*(sys.argv[1:] if arguments is None else arguments)]
    try:
        with console.quiet_native_log():
            path = given() or compiled()
        if words:
            with atomic_files.replacing(Path(words[0])) as partial:
                shutil.copyfile(path, partial)
            path = Path(words[0])
    except (InputError, StorageError) as error:
        print(f"swap engine: none, so steps that swap cannot run: {error}", file=sys.stderr)
        return error.exit_code if words else 0
    print(f"swap engine: {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
