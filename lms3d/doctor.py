"""`python -m lms3d.doctor`: what this machine offers to a training run."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from lms3d import cli, console, errors, memory, runs
from lms3d.files import writable_folder
from lms3d.units import format_size

_DESCRIPTION = """\
Show what this machine offers to a training run: devices, memory that training can have, the disk that tensors would be
swapped to (its free space and measured speed), and the versions of the libraries."""

PROBE_BYTES = 512 * 2**20
_CHUNK_BYTES = 16 * 2**20


def main(arguments: Sequence[str] | None = None) -> int:
    """Look and print. Returns the exit code."""
    return errors.run(lambda: _examine(_parser().parse_args(arguments)))


def _examine(options: object) -> None:
    from lms3d import startup

    folder = writable_folder(getattr(options, "swap_dir", Path(tempfile.gettempdir())), "--swap-dir")
    startup.start_tensorflow()
    console.summary("Devices", devices())
    console.summary("Memory", host_memory())
    console.summary(f"Swap disk ({folder})", swap_disk(folder))
    console.summary("Versions", {**runs.versions(), "horovod": horovod()})


def devices() -> dict[str, str]:
    """Each device of TensorFlow and what training can have on it."""
    import tensorflow as tf

    found = {f"CPU ({os.cpu_count()} cores)": "oneDNN" if _one_dnn() else "plain kernels"}
    for gpu in tf.config.get_visible_devices("GPU"):
        about = tf.config.experimental.get_device_details(gpu)
        capability = ".".join(map(str, about.get("compute_capability", ())))
        found[gpu.name.removeprefix("/physical_device:")] = f"{about.get('device_name', '?')}, capability {capability}"
    found["training runs on"] = f"{memory.compute_device()}, {format_size(memory.device_memory_bytes())} to use"
    return found


def host_memory() -> dict[str, str]:
    """Memory of the machine, and of the container if that is less."""
    import psutil

    whole, free = psutil.virtual_memory(), memory.free_host_bytes()
    rows = {"machine": f"{format_size(whole.total)}, {format_size(whole.available)} available"}
    if free < 0.99 * whole.available:
        rows["container"] = f"{format_size(free)} left below its limit"
    limit = memory.current_limit()
    rows["hard limit for TensorFlow"] = format_size(limit) if limit else "none (--memory-limit sets one)"
    return rows


def swap_disk(folder: Path) -> dict[str, str]:
    """Free space, and the speed of a file of 512 MiB (or a quarter of the free space) past the page cache."""
    import psutil

    free = psutil.disk_usage(str(folder)).free
    size = min(PROBE_BYTES, free // 4) // _CHUNK_BYTES * _CHUNK_BYTES
    rows = {"free": format_size(free)}
    if size:
        write, read = disk_speed(folder, size)
        rows["write"] = f"{format_size(write)}/s"
        rows["read"] = f"{format_size(read)}/s"
    return rows


def disk_speed(folder: Path, size_bytes: int) -> tuple[float, float]:
    """(write, read) in bytes per second of one sequential pass each. StorageError if the disk fails."""
    chunk = os.urandom(_CHUNK_BYTES)  # a disk that compresses must not look faster than it is
    try:
        with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
            begin = time.perf_counter()
            for _ in range(size_bytes // _CHUNK_BYTES):
                file.write(chunk)
            os.fsync(file.fileno())
            write_seconds = time.perf_counter() - begin
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)  # read from the disk, not from memory
            file.seek(0)
            begin = time.perf_counter()
            while file.read(_CHUNK_BYTES):
                pass
            read_seconds = time.perf_counter() - begin
    except OSError as error:
        raise errors.StorageError(f"--swap-dir {folder}: {error.strerror or error}; choose another disk") from error
    return size_bytes / write_seconds, size_bytes / read_seconds


def horovod() -> str:
    """The version of Horovod, or that it is missing."""
    try:
        return version("horovod")
    except PackageNotFoundError:
        return "not installed (needed only for training on several devices)"


def _one_dnn() -> bool:
    return os.environ.get("TF_ENABLE_ONEDNN_OPTS", "1") == "1"


def _parser() -> cli.Parser:
    parser = cli.Parser(prog="python -m lms3d.doctor", description=_DESCRIPTION)
    parser.add_argument(
        "--swap-dir", type=Path, metavar="DIR", help="folder to measure (default: the system's temporary folder)"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
