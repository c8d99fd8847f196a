"""How every entry point starts TensorFlow: quietly, under the memory limit, with its seed and precision."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Any

from lms3d.console import quiet_native_log
from lms3d.errors import InputError
from lms3d.ranks.world import World

INTER_OP_THREADS = 4  # a swap node waits for the disk or the bus; it must not hold a thread that could compute


def start_tensorflow(
    *,
    memory_limit_bytes: int | None = None,
    seed: int | None = None,
    precision: str = "float32",
    world: World | None = None,
    again: bool = False,
) -> None:
    """Imports TensorFlow and creates its devices. `precision` is a Keras policy such as "mixed_bfloat16".

    world: whose ranks share the machine. Each has one GPU to itself, or its part of the cores and of the memory.
    again: in a later world of an elastic job; the devices stay as they are.

    With `seed` all random numbers of Python, NumPy and Keras follow from it. TensorFlow's own remarks about drivers and
    CPU instructions are hidden unless TF_CPP_MIN_LOG_LEVEL is set.
    """
    world = world or World()
    if not again:
        _make_devices(world, memory_limit_bytes)
    world.devices_exist()
    import keras

    if seed is not None:
        keras.utils.set_random_seed(seed)
    keras.mixed_precision.set_dtype_policy(precision)


def _make_devices(world: World, memory_limit_bytes: int | None) -> None:
    """Imports TensorFlow and lets it create its devices: what must be said before that is said here."""
    with quiet_native_log():
        import tensorflow as tf

        from lms3d.device.memory import limit_memory, share_host

        with suppress(RuntimeError):  # where TensorFlow runs already its threads stay as they are
            tf.config.threading.set_inter_op_parallelism_threads(INTER_OP_THREADS)
            if world.local_size > 1:
                tf.config.threading.set_intra_op_parallelism_threads(cores(world.local_size))
        if world.size > 1:
            share_host(world.local_size)
            _pin_gpu(tf, world)
        if memory_limit_bytes is not None:
            limit_memory(memory_limit_bytes)
        tf.config.list_logical_devices()


def cores(processes: int, *, allowed: int | None = None, all_cores: int | None = None) -> int:
    """Cores for each of so many processes on this machine: its part of those that it may run on.

    A launcher that binds its processes has done the sharing: then these together use no more than the machine has.
    """
    allowed = allowed or len(os.sched_getaffinity(0))
    all_cores = all_cores or os.cpu_count() or allowed
    bound = allowed < all_cores and allowed * processes <= all_cores
    return allowed if bound else max(1, allowed // processes)


def _pin_gpu(tf: Any, world: World) -> None:
    """Lets TensorFlow see the GPU of this rank alone."""
    gpus = tf.config.list_physical_devices("GPU")
    if len(gpus) < 2:  # none, or the launcher has shown each process its own
        return
    if world.local_rank >= len(gpus):
        raise InputError(
            f"{world.local_size} ranks were started on this machine, which has {len(gpus)} GPUs; start one per GPU"
        )
    tf.config.set_visible_devices(gpus[world.local_rank], "GPU")
