"""Starts TensorFlow for every entry point: quietly, under the memory limit, with a seed and a precision."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Any

from lms3d import collector, keras_backend
from lms3d.console import quiet_native_log, say
from lms3d.device import circumstances, containers
from lms3d.errors import InputError
from lms3d.ranks.world import World

INTER_OP_THREADS = 4  # a swap node waits for the disk or the bus; it must not hold a thread that could compute


def start_tensorflow(
    *,
    limit_bytes: int | None = None,
    seed: int | None = None,
    precision: str = "float32",
    world: World | None = None,
    elastic_restart: bool = False,
    without_gpu: bool = False,
    cudnn_workspace_bytes: int | None = None,
    planned_limit_bytes: int | None = None,
) -> None:
    """Imports TensorFlow and creates its devices. TensorFlow's log is hidden unless TF_CPP_MIN_LOG_LEVEL is set.

    seed: the seed of all random numbers of Python, NumPy and Keras. precision: a Keras policy such as "mixed_bfloat16".
    world: the ranks that share the machine. Each has a GPU to itself, or its part of the cores and of the memory.
    elastic_restart: whether this is a later world of an elastic job, in which the devices stay as they are.
    without_gpu: leaves GPUs to other processes.
    cudnn_workspace_bytes: the limit of cuDNN's workspace. None: it follows from the memory limit, or from `planned_limit_bytes` if
    that limit is only planned for and not set.
    """
    world = world or World()
    keras_backend.use_tensorflow()
    own = circumstances.threads() if elastic_restart else cores_per_process(world.local_size)
    fewest = max(1, world.smallest(own))
    if not elastic_restart:
        _make_devices(world, limit_bytes, without_gpu, own=own, fewest=fewest)
        _limit_workspace(cudnn_workspace_bytes, planned_limit_bytes)
    world.devices_exist()
    of_ranks = world.everyone(own)
    if not elastic_restart:
        _report_idle_cores(of_ranks, fewest)
    circumstances.require_alike(world, restarted=elastic_restart)
    keras = _keras_with_its_defaults()
    if seed is not None:
        keras.utils.set_random_seed(seed)
    keras.mixed_precision.set_dtype_policy(precision)


def _keras_with_its_defaults() -> Any:
    """Keras as the commands need it, whatever the user's keras.json says. InputError if Keras was imported with another backend."""
    import keras

    if keras.backend.backend() != "tensorflow":
        raise InputError(
            f"KERAS_BACKEND: found {keras.backend.backend()!r}, with which Keras was imported; expected 'tensorflow'; set it before"
        )
    keras.config.set_image_data_format("channels_last")
    keras.config.set_floatx("float32")
    keras.config.set_epsilon(1e-7)
    return keras


def _make_devices(world: World, limit_bytes: int | None, without_gpu: bool, *, own: int, fewest: int) -> None:
    """Imports TensorFlow, configures it, and lets it create its devices. own, fewest: cores of this rank, and of the rank that has
    the fewest."""
    with quiet_native_log():
        with collector.kept_from_imports(), keras_backend.without_optional_packages():
            import tensorflow as tf

        from lms3d.device.memory import limit_memory, share_host

        with suppress(RuntimeError):  # TensorFlow runs already, and its threads stay as they are
            tf.config.threading.set_inter_op_parallelism_threads(INTER_OP_THREADS)
            if world.size > 1:
                on_gpu = not without_gpu and tf.config.list_physical_devices("GPU")
                tf.config.threading.set_intra_op_parallelism_threads(own if on_gpu else fewest)
            if without_gpu:
                tf.config.set_visible_devices([], "GPU")
        if world.size > 1:
            share_host(world.local_size)
            _pin_gpu(tf, world)
        if limit_bytes is not None:
            limit_memory(limit_bytes)
        tf.config.list_logical_devices()


def _report_idle_cores(cores_of_ranks: list[int], used: int) -> None:
    """Says which rank leaves cores idle. On processors all ranks use the same number of threads, so that they round alike."""
    from lms3d.device import memory

    most = max(cores_of_ranks)
    if most > used and memory.gpu_name() is None:
        say(
            f"Rank {cores_of_ranks.index(most)} has {most} cores and uses {used} threads per operation, as all ranks do: the rank "
            f"with the fewest cores has {used}"
        )


def _limit_workspace(asked_bytes: int | None, planned_limit_bytes: int | None) -> None:
    """Limits the workspace of cuDNN's convolutions, with LMS and without."""
    from lms3d.device import memory, workspace

    card = memory.gpu_name()
    if card is None:
        if asked_bytes is not None:
            say("--cudnn-workspace: TensorFlow sees no GPU here; there is nothing to limit")
    elif asked_bytes is not None:
        workspace.set_limit(asked_bytes)
    else:
        workspace.put_in_force(planned_limit_bytes or memory.device_memory_bytes(), card)


def cores_per_process(processes: int, *, allowed: int | None = None, all_cores: int | None = None) -> int:
    """The number of cores for each of `processes` processes on this machine. At least one.

    A launcher that binds processes has divided the cores already. That is so if `allowed` cores for each process fit into the
    machine. A limit on processor time (`docker run --cpus`) is shared by all processes.
    """
    most = containers.allowed_cores(processes) if allowed is None else allowed
    allowed = allowed or len(os.sched_getaffinity(0))
    all_cores = all_cores or os.cpu_count() or allowed
    bound = allowed < all_cores and allowed * processes <= all_cores
    return min(most, allowed if bound else max(1, allowed // processes))


def _pin_gpu(tf: Any, world: World) -> None:
    """Hides all GPUs but this rank's from TensorFlow."""
    gpus = tf.config.list_physical_devices("GPU")
    if len(gpus) < 2:  # there is none, or the launcher has shown each process its own
        return
    if world.local_rank >= len(gpus):
        raise InputError(
            f"{world.local_size} ranks were started on this machine, which has {len(gpus)} GPUs; start one per GPU"
        )
    tf.config.set_visible_devices(gpus[world.local_rank], "GPU")
