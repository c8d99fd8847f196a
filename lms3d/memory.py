"""How much memory there is to compute in, and a hard limit on it.

A GPU gets a logical device with a memory limit. On a CPU TensorFlow's own BFC allocator takes the place of malloc: it
has a hard limit too, and going over it raises `ResourceExhaustedError` as on a GPU. Both must be arranged before
TensorFlow creates its devices, at the first operation; the import may come earlier (tried with TensorFlow 2.21).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from lms3d.units import parse_size

if TYPE_CHECKING:
    import tensorflow as tf

_MIB = 2**20
_USE_BFC = "TF_CPU_ALLOCATOR_USE_BFC"
_BFC_LIMIT_MIB = "TF_CPU_BFC_MEM_LIMIT_IN_MB"
_gpu_limit_bytes: int | None = None
_crumb_holes: list[tf.Tensor] = []  # nobody else is to have these yet
_crumb_fences: list[tf.Tensor] = []
_regions: list[tuple[int, int]] = []  # addresses of a CPU's pool, the large region last
_in_pieces = False  # the free bytes of a CPU's pool
_processes = 1


def limit_memory(limit: str | int) -> int:
    """Makes `limit` ("6GiB" or bytes) the most memory that TensorFlow can have on each GPU, or on the CPU without one.

    Call it before the first operation. Returns the limit in bytes, rounded down to whole MiB. Raises InputError for
    what is not a size of at least 1 MiB and RuntimeError when TensorFlow has its devices already.
    """
    global _gpu_limit_bytes
    limit_mib = parse_size(limit) // _MIB
    if limit_mib == 0:
        from lms3d.errors import InputError

        raise InputError(f"a memory limit of {limit} is less than 1 MiB")
    import tensorflow as tf

    _require_no_devices_yet(limit)
    gpus = tf.config.get_visible_devices("GPU")
    for gpu in gpus:
        tf.config.set_logical_device_configuration(gpu, [tf.config.LogicalDeviceConfiguration(memory_limit=limit_mib)])
    if gpus:
        _gpu_limit_bytes = limit_mib * _MIB
    else:
        os.environ[_USE_BFC] = "1"
        os.environ[_BFC_LIMIT_MIB] = str(limit_mib)
        _claim_pool(limit_mib)
    return limit_mib * _MIB


def share_host(processes: int) -> None:
    """Says that so many processes like this one compute on this machine: each has its part of the host's memory."""
    global _processes
    _processes = processes


def _claim_pool(limit_mib: int) -> None:
    """Take the CPU's whole pool from the system in regions and give them back to the pool: nothing is touched yet.

    Left alone, the pool grows by regions of doubled size, and no tensor can span two of them: half of the limit may be out
    of reach for a large tensor. Of these regions the best-fit rule keeps weights and other small tensors in the second, and the
    large one stays in one piece for activations. The first is for crumbs (`bfc`); until `open_crumb_holes` nobody gets in,
    or the variables of a model would fill it.
    """
    import tensorflow as tf

    from lms3d.swap import bfc

    small = bfc.small_region_bytes(limit_mib * _MIB)
    sizes = [bfc.CRUMB_REGION_BYTES, small, limit_mib * _MIB - small - bfc.FIRST_REGIONS_BYTES]
    if sizes[-1] < sizes[0]:  # a tiny limit: it works all the same, only less well
        return
    try:
        crumbs, *others = [_empty(size) for size in sizes if size > 0]
        starts = [_address(piece) for piece in others]
        del crumbs
        _make_crumb_holes(bfc.FIRST_REGIONS_BYTES, bfc.CRUMB_BYTES)
    except tf.errors.ResourceExhaustedError:  # the system has less: the same
        _crumb_holes.clear()
        return
    _regions[:] = [(start, start + size) for start, size in zip(starts, sizes[-len(starts) :], strict=True)]


def _empty(size_bytes: int) -> tf.Tensor:
    import tensorflow as tf

    across = min(_MIB, size_bytes)  # an axis ends at 2^31
    return tf.raw_ops.Empty(shape=[size_bytes // across, across], dtype=tf.uint8)


def _address(tensor: tf.Tensor) -> int:
    import numpy as np

    return int(np.from_dlpack(tensor).__array_interface__["data"][0])


def _make_crumb_holes(room_bytes: int, hole_bytes: int) -> None:
    """Fill the free regions with pieces of `hole_bytes`, and between them one byte each that stays for good."""
    from lms3d.swap import bfc

    smaller_gaps = []
    while room_bytes >= 5 * hole_bytes:  # the ends of two regions are lost, and what `smaller_gaps` takes
        hole = _empty(hole_bytes)
        for _ in range(hole_bytes // bfc.ALIGNMENT):
            fence = _empty(1)  # finds smaller gaps first; behind the last hole of a region it cannot be
            if _address(fence) == _address(hole) + hole_bytes:
                break
            smaller_gaps.append(fence)
        _crumb_holes.append(hole)
        _crumb_fences.append(fence)
        room_bytes -= hole_bytes + bfc.ALIGNMENT


def open_crumb_holes() -> None:
    """Let small tensors into the region that `limit_memory` has made for them; once the variables are there."""
    _crumb_holes.clear()


def gap_bytes(variables_bytes: int) -> int:
    """What the variables of a model leave unused between them in a CPU's limited pool, to be on the safe side (3 to 6 MiB were
    seen for 67 to 275 MiB); `taken_bytes` looks it up."""
    return 4 * _MIB + variables_bytes // 50


def counts(tensor: tf.Tensor) -> bool:
    """False for a tensor outside of the regions of a CPU's limited pool, as memory of numpy's that TensorFlow took over.

    Tensors among the crumbs do not count, either; bfloat16, which numpy does not know, always does.
    """
    if not _regions or not tensor.dtype.is_numpy_compatible or tensor.dtype.size == 0:
        return True
    try:
        address = _address(tensor)
    except (BufferError, RuntimeError, TypeError, ValueError):  # a type that DLPack does not know
        return True
    return any(start <= address < end for start, end in _regions)


def taken_bytes() -> int | None:
    """Bytes of a CPU's limited pool up to its largest free piece, gaps included; None where that cannot be told.

    Between steps: what is there counts as if it stayed, and the step has what follows. Where no piece has half of the free
    bytes, TensorFlow waits 10 s for one; that happens once.
    """
    global _in_pieces
    import tensorflow as tf

    limit = current_limit()
    if not _regions or limit is None or _in_pieces:
        return None
    from lms3d.swap import bfc

    in_use = int(tf.config.experimental.get_memory_info("CPU:0")["current"])
    free = limit - in_use - bfc.FIRST_REGIONS_BYTES
    try:
        first = _address(_empty(max(free // 2 // _MIB, 1) * _MIB))  # nothing else is that large
    except tf.errors.ResourceExhaustedError:
        _in_pieces = True
        return None
    (start, end), others = _regions[-1], _regions[:-1]
    if first == start:  # the others have room for all
        return in_use
    return first - start + sum(b - a for a, b in others) if start < first < end else None


def current_limit() -> int | None:
    """Bytes of the hard limit that is in force (set here or through TensorFlow's environment variables), or None."""
    if _gpu_limit_bytes is not None:
        return _gpu_limit_bytes
    limit_mib = os.environ.get(_BFC_LIMIT_MIB, "")
    if os.environ.get(_USE_BFC, "").lower() in ("1", "true") and limit_mib.isdecimal():
        return int(limit_mib) * _MIB
    return None


def device_memory_bytes() -> int:
    """Memory that training can have: the hard limit, else the GPU's, else this process's part of what machine and
    container have free."""
    limit = current_limit()
    if limit is not None:
        return limit
    return _gpu_memory_bytes() if compute_device() == "GPU:0" else free_host_bytes() // _processes


def compute_device() -> str:
    """ "GPU:0" where TensorFlow sees a GPU, else "CPU:0"."""
    import tensorflow as tf

    return "GPU:0" if tf.config.get_visible_devices("GPU") else "CPU:0"


def free_host_bytes() -> int:
    """Free memory of the machine or of the container that this process runs in, whichever is less."""
    import psutil

    available: int = psutil.virtual_memory().available
    return min([available, *_container_headrooms()])


def _require_no_devices_yet(limit: str | int) -> None:
    import tensorflow as tf

    threads = tf.config.threading.get_inter_op_parallelism_threads()
    try:  # the setter refuses once devices exist, and it does nothing for an unchanged value: hence the detour
        tf.config.threading.set_inter_op_parallelism_threads(threads + 1)
        tf.config.threading.set_inter_op_parallelism_threads(threads)
    except RuntimeError:
        raise RuntimeError(
            f"lms3d.limit_memory({limit!r}) came too late: TensorFlow has created its devices already; "
            "call it before the first tensor, variable, layer or list of logical devices"
        ) from None


def _gpu_memory_bytes() -> int:
    """Size of TensorFlow's memory pool on the first GPU: less than the board has, since the driver takes its part."""
    from tensorflow.python.client import device_lib  # no public call tells the size of the pool

    return next(int(d.memory_limit) for d in device_lib.list_local_devices() if d.device_type == "GPU")


def _container_headrooms(root: Path = Path("/sys/fs/cgroup"), table: Path = Path("/proc/self/cgroup")) -> list[int]:
    """Limit minus use, in bytes, of each control group (version 1 or 2) around this process that has a limit."""
    try:
        lines = table.read_text().splitlines()
    except OSError:
        return []
    headrooms = []
    for line in lines:  # "0::/user.slice/..." (version 2) or "7:memory:/docker/..." (version 1)
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            base, names = root, ("memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            base, names = root / "memory", ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        else:
            continue
        # Inside a container the path may name a group that is not mounted here: then the root is the container's own.
        group = base / path.lstrip("/")
        for folder in {base, group, *(p for p in group.parents if base in p.parents)}:
            headroom = _headroom(folder, *names)
            if headroom is not None:
                headrooms.append(headroom)
    return headrooms


def _headroom(folder: Path, limit_name: str, use_name: str, cache_key: str) -> int | None:
    """Limit - (use - file cache that the kernel gives back on demand); None without a limit."""
    try:
        limit = int((folder / limit_name).read_text())
        use = int((folder / use_name).read_text())
        statistics = dict(line.split()[:2] for line in (folder / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):  # no such group, or the word "max"
        return None
    return max(0, limit - use + int(statistics.get(cache_key, 0)))
