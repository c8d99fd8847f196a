"""Seconds and workspace of one op of a traced step, run alone on random numbers.

PROBE-1  An op that would take too long or too much memory runs at 1/2, 1/4, .. of its size along the first axis that can be cut,
         and its time counts 2, 4, .. times. A part of a convolution has the planes around it that its window reads (`_cuts`). A
         part would lie in the processor's caches, and the whole would not: so its inputs are driven out of the caches before each
         run.
PROBE-2  Outputs are allocated and freed in each run, as in a step. The lower quartile of the runs counts: noise only adds time, but
         the fastest run finds its tensors in the caches, as no step does. Time in which threads waited for a processor that another
         process had is subtracted, if it is much and the system reports it (Linux). Threads of one process wait for each other, as
         they do in a step.
         A GPU runs behind the host: ops are enqueued many times before one wait (`queued`). Copies in one call, and calls in the
         queue, reuse each other's outputs and workspace, in the order of the stream.
PROBE-3  An op that fails alone, or was held up by other work, is not measured.
         Nor is a convolution on a GPU of which a part has workspace that the whole would not be granted: a part then runs a faster
         kernel (`is_too_good`).
PROBE-4  On a CPU the processor time of an op shows which share of this process's cores it keeps busy. A GPU runs one op after the
         other, so that each has all of it.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from lms3d.device import memory, workspace
from lms3d.engine import tuning
from lms3d.engine.tensorflow import functions, queued, reading, speeds
from lms3d.engine.tensorflow.capture import argument, is_argument, is_reserve


@dataclass(frozen=True)
class Cost:
    """The cost of one op alone.

    share: the share of this process's cores, or of the GPU, that it keeps busy. workspace_bytes: memory besides inputs and outputs.
    parts: the number of parts that it was cut into to be measured.
    """

    seconds: float
    share: float = 1.0
    workspace_bytes: int = 0
    parts: int = 1


def parts_of(seconds: float, moved_bytes: int, most_bytes: int) -> int:
    """The number of parts that an op is cut into, a power of two (PROBE-1)."""
    parts = 1
    while seconds > tuning.RUN_SECONDS * parts or moved_bytes > most_bytes * parts:
        parts *= 2
    return parts


def probe(
    op: tf.Operation, parts: int = 1, times: int = 1, *, device: str = "CPU:0", call_seconds: float = 0.0
) -> Cost | None:
    """The cost of `op` alone, run at 1/parts of its size, `times` times in a row; None if it cannot be run so.

    call_seconds: the time of a call that does nothing; 0 on a GPU, where a call overlaps with the work of earlier ones.
    """
    for axis, sizes in _cuts(op, parts):
        try:
            function, specs = _alone(op, axis, sizes, times)
            whole = _run(function, specs, device, cold=bool(sizes))
        except (ValueError, TypeError, tf.errors.OpError):  # this axis cannot be cut, or memory is short (PROBE-3)
            continue
        if whole.share * speeds.cores() < tuning.LEAST_CORES:
            return None
        seconds = max(0.0, whole.seconds - call_seconds) * parts / times
        return Cost(seconds, whole.share, whole.workspace_bytes * parts, parts)
    return None


def is_too_good(cost: Cost, op_type: str, device: str) -> bool:
    """Whether the parts of a convolution had more workspace together than cuDNN may take for the whole (PROBE-3)."""
    by_cudnn = "Conv" in op_type and device.startswith("GPU")
    return by_cudnn and cost.parts > 1 and cost.workspace_bytes > workspace.in_force()


def _large(op: tf.Operation) -> set[tuple[int, ...]]:
    """The shapes of the tensors that make `op` large. Weights, masks and arguments do not."""
    sizes = {tuple(t.shape): t.shape.num_elements() for t in (*op.inputs, *op.outputs) if not is_reserve(t)}
    return {shape for shape, size in sizes.items() if size * 64 >= max(sizes.values())}


def _cuts(op: tf.Operation, parts: int) -> Iterator[tuple[int, dict[int, int]]]:
    """(axis, size of a large tensor along it -> size of a part) of the axes along which `op` can be cut.

    Axes along which all sizes can be divided come first. Then come those along which only the shortest can, if the others are
    longer by little more than a window.
    A convolution of stride 1 that makes 32 of 34 planes makes 16 of 18; one of stride 2 that makes 32 of 65 makes 16 of 33.
    """
    if parts == 1:
        yield 0, {}
        return
    if reading.is_program(op):  # it is compiled for these shapes
        return
    shapes = _large(op)
    along = [{shape[axis] for shape in shapes} for axis in range(min(map(len, shapes)))]
    for axis, sizes in enumerate(along):
        if all(size % parts == 0 for size in sizes):
            yield axis, {size: size // parts for size in sizes}
    for axis, sizes in enumerate(along):
        shortest = min(sizes)
        part = {size: size - size // shortest * (shortest - shortest // parts) for size in sizes}
        if shortest % parts == 0 and all(part[size] * parts <= tuning.MOST_HALO * size for size in sizes):
            yield axis, part


def _alone(op: tf.Operation, axis: int, sizes: Mapping[int, int], times: int) -> tuple[Any, list[tf.TensorSpec]]:
    """A function of a smaller `op`, and the specs of its arguments. ValueError if its result is no part of the whole.

    sizes: size of a large tensor along `axis` -> size of the part; empty for the whole op.
    """
    large = _large(op) if sizes else set()

    def cut(shape: tuple[int, ...]) -> tuple[int, ...]:
        return (*shape[:axis], sizes[shape[axis]], *shape[axis + 1 :]) if shape in large else shape

    inputs: list[tf.TensorSpec | np.ndarray] = []
    for tensor in op.inputs:
        value = argument(tensor) if is_argument(tensor) else None
        if value is not None:  # an argument may be the shape of a tensor
            inputs.append(np.asarray(cut(tuple(value.tolist())), value.dtype) if value.ndim == 1 else value)
        else:
            inputs.append(tf.TensorSpec((0,) if is_reserve(tensor) else cut(tuple(tensor.shape)), tensor.dtype))
    function = functions.alone(op, inputs, times)
    for made, whole in zip(function.graph.outputs, op.outputs, strict=True):
        if not is_reserve(whole) and not made.shape.is_compatible_with(cut(tuple(whole.shape))):
            raise ValueError(f"{op.type}: {made.shape} is not {whole.shape} cut along axis {axis}")
    return function, [i for i in inputs if isinstance(i, tf.TensorSpec)]


def cost_of(function: Any, specs: Sequence[tf.TensorSpec], device: str) -> Cost:
    """The cost of a call on random numbers, calling included."""
    return _run(function, specs, device)


def _run(function: Any, specs: Sequence[tf.TensorSpec], device: str, *, cold: bool = False) -> Cost:
    """The cost of a call (PROBE-2, PROBE-4). cold: its inputs are not in the processor's caches."""
    if device.startswith("CPU"):
        return _run_on_processor(function, specs, device, cold=cold)
    with tf.device(device):
        return _run_behind(function, [_made_on_device(spec) for spec in specs], device)


def _run_behind(function: Any, passed: Sequence[tf.Tensor], device: str) -> Cost:
    """The cost of a call on a device that runs behind the host."""
    function(*passed)  # cuDNN's trials take extra memory
    workspace = _workspace_bytes(lambda: function(*passed), device)
    return Cost(queued.seconds_each(lambda: function(*passed), speeds.synchronise), 1.0, workspace)


def _run_on_processor(function: Any, specs: Sequence[tf.TensorSpec], device: str, *, cold: bool) -> Cost:
    with tf.device(device):
        passed = [_numbers(spec) for spec in specs]
        others = np.zeros(tuning.CACHES_BYTES // 8 if cold else 0)

        def seconds() -> float:
            """The seconds and the processor time of one call."""
            if cold:
                _read(others)
            start = time.perf_counter()
            function(*passed)
            return time.perf_counter() - start

        seconds()  # compiles the function; kernels choose their algorithm
        workspace = _workspace_bytes(lambda: function(*passed), device)
        worked, waited = _processor_seconds()
        runs = [seconds(), seconds()]
        while len(runs) < tuning.RUNS and sum(runs) < tuning.ENOUGH_SECONDS:
            runs.append(seconds())
    usual = float(np.quantile(runs, 0.25))
    worked, waited = (now - then for now, then in zip(_processor_seconds(), (worked, waited), strict=True))
    if worked <= 0:
        return Cost(usual, 1.0, workspace)
    cores, mean = speeds.cores(), sum(runs) / len(runs)
    busy = worked / sum(runs) / cores  # 1 if the threads had all cores: they waited for each other
    had = max(worked / (worked + waited), busy)
    undisturbed = usual if had >= tuning.UNDISTURBED else min(usual, mean * had)
    return Cost(undisturbed, min(1.0, worked / len(runs) / undisturbed / cores), workspace)


def _read(others: np.ndarray) -> None:
    """Empties the processor's caches."""
    others.sum()


def _workspace_bytes(call: Callable[[], Any], device: str) -> int:
    """The bytes that a call takes and gives back; 0 if TensorFlow does not count. Then there is no hard limit either."""
    if memory.bytes_in_use("peak", device) is None:
        return 0
    tf.config.experimental.reset_memory_stats(device)
    outputs = call()
    after = tf.config.experimental.get_memory_info(device)
    del outputs
    return max(0, int(after["peak"]) - int(after["current"]))


def _processor_seconds() -> tuple[float, float]:
    """The seconds that the threads of this process have run, and have waited for a processor."""
    ran = waited = 0
    for task in Path("/proc/self/task").glob("*/schedstat"):
        with contextlib.suppress(OSError, ValueError):  # a thread that has just ended
            running, waiting, _ = task.read_text().split()
            ran, waited = ran + int(running), waited + int(waiting)
    return (ran * 1e-9, waited * 1e-9) if ran else (time.process_time(), 0.0)


def call_seconds(device: str) -> float:
    """The seconds of a call of a function that does nothing."""

    @tf.function(autograph=False, jit_compile=False)
    def nothing(x: tf.Tensor) -> tf.Tensor:
        return tf.identity(x)

    function = functions.make_function(nothing.get_concrete_function(tf.TensorSpec((), tf.float32)))
    return _run(function, [tf.TensorSpec((), tf.float32)], device).seconds


def _numbers(spec: tf.TensorSpec) -> tf.Tensor:
    """Random numbers; zeros for integers, which might be indices."""
    count = spec.shape.num_elements()
    if spec.dtype.is_floating or spec.dtype.is_complex:
        some = np.random.default_rng(0).standard_normal(min(count, 1 << 16), np.float32)
        return tf.cast(tf.constant(np.resize(some, spec.shape.as_list())), spec.dtype)
    return tf.zeros(spec.shape, spec.dtype)


def _made_on_device(spec: tf.TensorSpec) -> tf.Tensor:
    """The same as `_numbers`, made by the device: to send a tensor of 450 MB from the host takes a second."""
    if spec.dtype.is_floating:
        return tf.random.stateless_normal(spec.shape, seed=(0, 0), dtype=spec.dtype)
    return tf.zeros(spec.shape, spec.dtype) if not spec.dtype.is_complex else _numbers(spec)
