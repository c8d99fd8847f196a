"""The memory that training can compute in, and a hard limit on it.

A GPU gets a logical device with a memory limit. On a CPU, TensorFlow's own BFC allocator replaces malloc; it has a hard limit too,
and raises `ResourceExhaustedError` above it as on a GPU. Both must be set up before TensorFlow creates its devices, which it does
at the first operation. TensorFlow may be imported earlier (tried with TensorFlow 2.21).
"""

from __future__ import annotations

import os

from lms3d.device import containers, cpu_pool, gpu_pool, workspace
from lms3d.errors import InputError
from lms3d.units import parse_size

_MIB = 2**20
_USE_BFC = "TF_CPU_ALLOCATOR_USE_BFC"
_BFC_LIMIT_MIB = "TF_CPU_BFC_MEM_LIMIT_IN_MB"
_PINNED_LIMIT_MIB = "TF_GPU_HOST_MEM_LIMIT_IN_MB"
PINNED_BYTES = 64 << 30
"""The most host memory that TensorFlow pins unless the variable above says otherwise (gpu_process_state.cc)."""
_gpu_limit_bytes: int | None = None
_processes = 1


def limit_memory(limit: str | int) -> int:
    """Limits TensorFlow to `limit` ("6GiB", or bytes) of memory on each GPU, or on the CPU if there is no GPU.

    On a GPU it also limits cuDNN's workspace, unless that has a limit already (`workspace`).
    Call it before the first operation. Returns the limit in bytes, rounded down to whole MiB. Raises InputError for a size below
    1 MiB, and RuntimeError if TensorFlow has created its devices already.
    """
    global _gpu_limit_bytes
    limit_mib = parse_size(limit) // _MIB
    if limit_mib == 0:
        raise InputError(f"a memory limit of {limit} is less than 1 MiB")
    import tensorflow as tf

    _require_no_devices_yet(limit)
    gpus = tf.config.get_visible_devices("GPU")
    for gpu in gpus:
        tf.config.set_logical_device_configuration(gpu, [tf.config.LogicalDeviceConfiguration(memory_limit=limit_mib)])
    if gpus:
        gpu_pool.split_closely(limit_mib * _MIB)
        _gpu_limit_bytes = limit_mib * _MIB
        workspace.put_in_force(_gpu_limit_bytes, gpu_name())
    else:
        os.environ[_USE_BFC] = "1"
        os.environ[_BFC_LIMIT_MIB] = str(limit_mib)
        cpu_pool.claim(limit_mib * _MIB)
    return limit_mib * _MIB


def share_host(processes: int) -> None:
    """Gives this process one part of the host's memory. processes: the number of processes of this job on the machine."""
    global _processes
    _processes = processes


def current_limit() -> int | None:
    """The bytes of the hard limit in force, set here or by TensorFlow's environment variables; None without one."""
    if _gpu_limit_bytes is not None:
        return _gpu_limit_bytes
    limit_mib = os.environ.get(_BFC_LIMIT_MIB, "")
    if os.environ.get(_USE_BFC, "").lower() in ("1", "true") and limit_mib.isdecimal():
        return int(limit_mib) * _MIB
    return None


def splits_closely() -> bool:
    """Whether `limit_memory` has limited a GPU, whose allocator then wastes little (`gpu_pool`)."""
    return _gpu_limit_bytes is not None


def device_memory_bytes() -> int:
    """The bytes that training can have: the hard limit, else the GPU's pool, else this process's part of the free host memory."""
    limit = current_limit()
    if limit is not None:
        return limit
    return _gpu_memory_bytes() if compute_device() == "GPU:0" else free_host_bytes() // _processes


def compute_device() -> str:
    """ "GPU:0" if TensorFlow sees a GPU, else "CPU:0"."""
    import tensorflow as tf

    return "GPU:0" if tf.config.get_visible_devices("GPU") else "CPU:0"


def gpu_name() -> str | None:
    """The model of the first GPU that TensorFlow sees; None without one."""
    import tensorflow as tf

    gpus = tf.config.get_visible_devices("GPU")
    return str(tf.config.experimental.get_device_details(gpus[0]).get("device_name", "GPU")) if gpus else None


def gpu_capability() -> tuple[int, int]:
    """The compute capability of the first GPU that TensorFlow sees; (0, 0) if that is unknown."""
    import tensorflow as tf

    gpus = tf.config.get_visible_devices("GPU")
    capability = tf.config.experimental.get_device_details(gpus[0]).get("compute_capability") if gpus else None
    return (int(capability[0]), int(capability[1])) if capability else (0, 0)


def bytes_in_use(key: str, device: str | None = None) -> int | None:
    """The bytes in use by the device's own count. key: "current" or "peak". None if TensorFlow does not count, which is so on a CPU
    with neither oneDNN's kernels nor a hard limit."""
    import tensorflow as tf

    try:
        return int(tf.config.experimental.get_memory_info(device or compute_device())[key])
    except ValueError:
        return None


def free_host_bytes() -> int:
    """The free bytes of the machine, or of the container around this process if that has less."""
    import psutil

    available: int = psutil.virtual_memory().available
    return min([available, *containers.headrooms()])


def pinned_limit_bytes() -> int:
    """The most bytes of host memory that TensorFlow pins in this process, for swaps from a GPU."""
    limit_mib = os.environ.get(_PINNED_LIMIT_MIB, "")
    return int(limit_mib) * _MIB if limit_mib.isdecimal() else PINNED_BYTES


def _require_no_devices_yet(limit: str | int) -> None:
    import tensorflow as tf

    threads = tf.config.threading.get_inter_op_parallelism_threads()
    try:  # the setter refuses once devices exist, but ignores an unchanged value: hence two changes
        tf.config.threading.set_inter_op_parallelism_threads(threads + 1)
        tf.config.threading.set_inter_op_parallelism_threads(threads)
    except RuntimeError:
        raise RuntimeError(
            f"lms3d.limit_memory({limit!r}) came too late: TensorFlow has created its devices already; "
            "call it before the first tensor, variable, layer or list of logical devices"
        ) from None


def _gpu_memory_bytes() -> int:
    """The size of TensorFlow's pool on the first GPU. It is less than the card's memory, of which the driver takes a part."""
    import tensorflow as tf

    with tf.compat.v1.Session(graph=tf.Graph()) as session:  # no other public call gives the size of the pool
        return next(int(d.memory_limit_bytes) for d in session.list_devices() if d.device_type == "GPU")
