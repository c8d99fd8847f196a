"""The speeds of this machine for `cost.Machine`, measured once for each number of cores and kept in the cache folder.

Convolution and memory speed on the compute device take about half a second; the swap tier as much again. On a GPU they are measured
at sizes that fill it, with many ops before one wait (`queued`), and refused if no such card has them (`cards`).
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import tensorflow as tf
from filelock import FileLock, Timeout

from lms3d import atomic_files
from lms3d.common import json_values
from lms3d.common.disk import cache_directory
from lms3d.device import circumstances, containers, memory, workspace
from lms3d.device.machine import nvidia_driver, processor
from lms3d.engine import tuning
from lms3d.engine.cost import Machine
from lms3d.engine.tensorflow import cards, functions, queued, reading
from lms3d.engine.tiers import TIERS
from lms3d.engine.tiers.base import TierSpeed, best_seconds
from lms3d.engine.tuning import CARD_BUDGET_SECONDS, PROBE_BYTES
from lms3d.errors import StorageError

SPEEDS = tuple(
    field.name
    for field in fields(Machine)
    if field.name not in ("op_table", "ops_scale", "mapped", "rates", "workspaces")
)
_VERSION = 10
_LAYOUT = "as traced"
"""A part of the key: the graph optimiser leaves the layout of convolutions as it is (`functions.execution`)."""
PATIENCE_SECONDS = 5 * CARD_BUDGET_SECONDS
"""How long to wait for other processes that measure first: the ranks of one machine take turns."""

log = logging.getLogger("lms3d")


def machine(device: str, tier: str, swap_dir: Path | None, *, mapped: bool = True) -> Machine:
    """The speeds of `device` ("CPU:0", "GPU:0") and of a swap tier, by its name. mapped: read in place, if that is possible."""
    kind = TIERS[tier].beside(device)
    measured = f"{device_name(device)} {tier} {kind.place(swap_dir)}{kernel_settings(device)}"
    if not device.startswith("CPU"):
        measured += f" workspace {workspace.in_force()}"
    key = f"{_VERSION} {tf.__version__} {cores()} of {os.cpu_count()} {measured}"
    store = cache_directory() / "machine.json"
    found = _stored(read_store(store), key)
    if found is None:
        with one_at_a_time(store):  # ranks that measure side by side would measure each other
            known = read_store(store)
            found = _stored(known, key)
            if found is None:
                found = _measure(device, kind.speed(device, swap_dir))
                log.info("lms: measured %s: %s", measured, {name: f"{getattr(found, name):.3g}" for name in SPEEDS})
                write_store(store, known | {key: {name: getattr(found, name) for name in SPEEDS}})
    return replace(found, mapped=mapped and kind.can_map(device, swap_dir))


def cores() -> int:
    """The number of cores that an op can keep busy: that of TensorFlow's threads, or that of this process's cores if it is
    smaller."""
    given = os.environ.get("TF_NUM_INTRAOP_THREADS", "")
    threads = tf.config.threading.get_intra_op_parallelism_threads() or (int(given) if given.isdecimal() else 0)
    allowed = containers.allowed_cores()
    return min(threads or allowed, allowed)


def _stored(known: dict[str, Any], key: str) -> Machine | None:
    """The speeds under a key; None if there are none, or if no machine can have them."""
    entry = known.get(key)
    if not isinstance(entry, dict) or entry.keys() != set(SPEEDS):
        return None
    if not all(type(value) in (int, float) and math.isfinite(value) and value >= 0 for value in entry.values()):
        return None
    if not all(value > 0 for name, value in entry.items() if name.endswith("_per_second")):
        return None
    return Machine(**entry)


@contextmanager
def one_at_a_time(store: Path) -> Iterator[None]:
    """In the block no other process measures for the same store. It does not wait for ever for a process that hangs, and does
    without a lock if none can be had."""
    with ExitStack() as stack:
        try:
            store.parent.mkdir(parents=True, exist_ok=True)
            stack.enter_context(FileLock(f"{store}.lock", timeout=PATIENCE_SECONDS, fallback_to_soft=False))
        except Timeout:
            log.warning(
                "lms: another process has held %s.lock for %.0f s; measuring beside it, which may disturb both",
                store,
                PATIENCE_SECONDS,
            )
        except (OSError, NotImplementedError):
            pass
        yield


def read_store(store: Path) -> dict[str, Any]:
    """The entries of a store; none if the file cannot be read."""
    try:
        known = json_values.parse(store.read_text())
    except (OSError, ValueError):
        return {}
    return known if isinstance(known, dict) else {}


def write_store(store: Path, known: dict[str, Any]) -> None:
    """Writes a store. One that cannot be written costs each run some seconds, and nothing else."""
    with suppress(StorageError, OSError):
        atomic_files.write_json(store, known)


def device_name(device: str) -> str:
    """The model of a processor or GPU."""
    return processor() if device.startswith("CPU") else memory.gpu_name() or device


def kernel_settings(device: str) -> str:
    """What decides the kernels of a device and their speed, besides its model and cuDNN's workspace."""
    if device.startswith("CPU"):
        return f"; {circumstances.kernels_of_processor()}"
    parts = [
        f"TF32 {tf.config.experimental.tensor_float_32_execution_enabled()}",
        f"deterministic {reading.is_deterministic()}",
        f"layout {_LAYOUT}",
        f"driver {nvidia_driver()}",
    ]
    return "".join(f"; {part}" for part in parts)


def synchronise() -> None:
    """Waits until all devices have done their enqueued work."""
    tf.test.experimental.sync_devices()


def _measure(device: str, tier: TierSpeed) -> Machine:
    free = memory.device_memory_bytes() - (memory.bytes_in_use("current", device) or 0)
    if not device.startswith("CPU"):
        name, capability = device_name(device), memory.gpu_capability()
        return cards.checked(lambda: replace(_of_card(device, free // 8), **asdict(tier)), name, capability)
    probe_bytes = max(1 << 16, min(PROBE_BYTES, free // 8))  # a tight limit leaves little beside the weights
    with tf.device(device):
        image = tf.ones((1, 32, 32, 32, 32))
        kernel = tf.ones((3, 3, 3, 32, 32)) / 1000
        convolution = best_seconds(lambda: tf.reduce_sum(tf.nn.conv3d(image, kernel, [1] * 5, "SAME")).numpy())
        flat = tf.ones((probe_bytes // 4,))
        addition = best_seconds(lambda: (flat + 1.0)[:1].numpy())
    return Machine(
        flops_per_second=2 * 32**3 * 27 * 32 * 32 / convolution,
        bytes_per_second=2 * probe_bytes / addition,
        **asdict(tier),
    )


def _of_card(device: str, most_bytes: int) -> Machine:
    """The speeds of a device that runs behind the host, without the tier's part. most_bytes: of a tensor."""
    side = next((n for n in tuning.CARD_SIDES if _IMAGE_BYTES * n**3 <= most_bytes), tuning.CARD_SIDES[-1])
    count = max(1 << 14, min(tuning.CARD_BYTES, most_bytes) // 4)
    launches = _additions(tuning.SMALL_COPIES)
    with tf.device(device):
        image, kernel = tf.ones((1, side, side, side, 32)), tf.ones((3, 3, 3, 32, 32)) / 1000
        convolution = queued.seconds_each(lambda: tf.nn.conv3d(image, kernel, [1] * 5, "SAME"), synchronise)
        flat, one = tf.ones((count,)), tf.ones(())
        addition = queued.seconds_each(lambda: flat + one, synchronise)
        launched = queued.seconds_each(lambda: launches(one), synchronise)
    return Machine(
        flops_per_second=2 * side**3 * 27 * 32 * 32 / convolution,
        bytes_per_second=2 * 4 * count / addition,
        op_seconds=launched / tuning.SMALL_COPIES,
    )


_IMAGE_BYTES = 4 * 32  # of a voxel of 32 channels


def _additions(times: int) -> Any:
    """A function of so many additions of one number, one after the other in one call, as in a step."""

    def add(one: tf.Tensor) -> tf.Tensor:
        total = one
        for _ in range(times):
            total = total + one
        return total

    return functions.make_function(functions.trace(add, tf.TensorSpec((), tf.float32)))
