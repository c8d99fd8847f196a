"""The speeds of this machine, measured once and kept in the cache folder: what `cost.Machine` needs.

Convolution and memory speed on the compute device take about half a second; the swap tier as much again.
"""

from __future__ import annotations

import json
import os
import platform
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import fields
from functools import partial
from pathlib import Path

import numpy as np
import tensorflow as tf
from filelock import FileLock

from lms3d.errors import StorageError
from lms3d.files import cache_directory
from lms3d.swap.cost import Machine
from lms3d.swap.tiers.swap_file import SwapFile, writes_in_place

SPEEDS = tuple(field.name for field in fields(Machine) if field.name not in ("op_table", "mapped"))
_VERSION = 6
COPYING_SHARE = 2.0  # see `Machine.swap_share`
_PROBE_BYTES = 16 << 20
_PROBE_FILES = 8  # together more than a processor's caches hold


def machine(device: str, tier: str, swap_dir: Path | None, *, mapped: bool = True) -> Machine:
    """The speeds of `device` ("CPU:0", "GPU:0") and of a swap tier ("host", "disk"). mapped: where that is possible."""
    folder = Path(swap_dir or tempfile.gettempdir()).resolve()
    place = f"{platform.node()} {folder}" if tier == "disk" else ""  # many machines may share a home
    threads = tf.config.threading.get_intra_op_parallelism_threads()  # a rank has a part of the cores
    key = f"{_VERSION} {tf.__version__} {threads} of {os.cpu_count()} {device_name(device)} {tier} {place}"
    store = cache_directory() / "machine.json"
    known = _load(store)
    if key not in known:
        with one_at_a_time(store):  # ranks that measure beside each other would measure each other
            known = _load(store)
            if key not in known:
                found = _measure(device, tier, folder)
                known[key] = {name: getattr(found, name) for name in SPEEDS}
                _save(store, known)
    mapped = mapped and tier == "disk" and device.startswith("CPU") and writes_in_place(folder)
    return Machine(mapped=mapped, **{name: known[key][name] for name in SPEEDS})  # type: ignore[arg-type]


@contextmanager
def one_at_a_time(store: Path) -> Iterator[None]:
    """Waits until no other process measures for the same store; without a lock where none can be had."""
    with ExitStack() as stack:
        with suppress(OSError, NotImplementedError):
            store.parent.mkdir(parents=True, exist_ok=True)
            stack.enter_context(FileLock(f"{store}.lock"))
        yield


def device_name(device: str) -> str:
    """The model of a processor or GPU."""
    if device.startswith("CPU"):
        try:
            lines = Path("/proc/cpuinfo").read_text().splitlines()
        except OSError:
            lines = []
        models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
        return models[0] if models else platform.processor() or platform.machine()
    details = tf.config.experimental.get_device_details(tf.config.list_physical_devices("GPU")[0])
    return str(details.get("device_name", device))


def _load(store: Path) -> dict[str, dict[str, float]]:
    try:
        loaded: dict[str, dict[str, float]] = json.loads(store.read_text())
        return loaded
    except (OSError, ValueError):
        return {}


def _save(store: Path, known: dict[str, dict[str, float]]) -> None:
    """A cache that cannot be written costs a second per run and nothing else."""
    try:
        store.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=store.parent, delete=False) as file:
            json.dump(known, file, indent=1)
        os.replace(file.name, store)
    except OSError:
        pass


def _best_seconds(work: Callable[[], object], repeats: int = 4) -> float:
    """The fastest of some runs: what the machine can do when nothing disturbs it."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def _measure(device: str, tier: str, folder: Path) -> Machine:
    with tf.device(device):
        image = tf.ones((1, 32, 32, 32, 32))
        kernel = tf.ones((3, 3, 3, 32, 32)) / 1000
        flat = tf.ones((_PROBE_BYTES // 4,))
        convolution = _best_seconds(lambda: tf.reduce_sum(tf.nn.conv3d(image, kernel, [1] * 5, "SAME")).numpy())
        addition = _best_seconds(lambda: (flat + 1.0)[:1].numpy())
    out_seconds, in_seconds = _host_seconds(device, flat) if tier == "host" else _disk_seconds(folder)
    return Machine(
        flops_per_second=2 * 32**3 * 27 * 32 * 32 / convolution,
        bytes_per_second=2 * _PROBE_BYTES / addition,
        swap_out_bytes_per_second=_PROBE_BYTES / out_seconds,
        swap_in_bytes_per_second=_PROBE_BYTES / in_seconds,
        swap_share=COPYING_SHARE if tier == "disk" and device.startswith("CPU") else 0.0,
    )


def _host_seconds(device: str, there: tf.Tensor) -> tuple[float, float]:
    """Device to host, host to device. On a CPU both are the same memory: the time of a view."""
    with tf.device("CPU:0"):
        here = tf.identity(there)
        out_seconds = _best_seconds(
            lambda: tf.identity(there).numpy() if not device.startswith("CPU") else tf.identity(there)
        )

    def back() -> object:
        with tf.device(device):
            return tf.identity(here)[:1].numpy()

    return out_seconds, _best_seconds(back)


def _disk_seconds(swap_dir: Path) -> tuple[float, float]:
    """Write and read some files in turn, as swap files are: mostly the page cache's speed. Seconds per _PROBE_BYTES.

    Several, of tensors of their own: one alone would stay in the processor's own caches, which a step does not leave to it.
    """
    tensors = [np.ones(_PROBE_BYTES, np.uint8) for _ in range(_PROBE_FILES)]
    try:
        with tempfile.TemporaryDirectory(dir=swap_dir) as folder:
            files = [SwapFile(Path(folder) / str(number)) for number in range(_PROBE_FILES)]
            for file, data in zip(files, tensors, strict=True):
                file.write(data)  # the first time, which finds a full disk, also finds the blocks
            out_seconds, in_seconds = (_best_seconds(partial(_each, files, way, tensors)) for way in ("write", "read"))
    except OSError as error:
        raise StorageError(
            f"swap folder {str(swap_dir)!r}: {error.strerror} while measuring its speed; "
            "free space there or choose another folder with --swap-dir"
        ) from None
    return out_seconds / _PROBE_FILES, in_seconds / _PROBE_FILES


def _each(files: list[SwapFile], way: str, tensors: list[np.ndarray]) -> None:
    for file, data in zip(files, tensors, strict=True):
        getattr(file, way)(data)
