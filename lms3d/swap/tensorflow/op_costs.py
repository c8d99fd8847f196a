"""Seconds and workspace of single ops, measured on this machine and kept in the cache folder.

A roofline is far off for single ops, such as a convolution of few channels or a reduction over the wrong axis. So the ops that
make up most of a step are run alone, one of each kind (`ir.Op.signature`), on random numbers.

PROBE-1  The kinds that matter most by the roofline come first, until the rest is `REST` of the step or the time is up.
PROBE-2  An op that would take too long or too much memory runs at 1/2, 1/4, .. of its size along the first axis that can be cut,
         and counts 2, 4, .. times. A part of a convolution has the planes around it that its window reads (`_cuts`). A part
         would lie in the processor's caches, where the whole does not: what it reads is driven out of them before each run. Under
         a tight limit parts are small, and slow together: who has more memory measures such an op again.
PROBE-3  Outputs are allocated and freed in each run, as in a step. The lower quartile of the runs counts: noise only adds, but the
         fastest run finds its tensors in the caches, as no step does. Time in which threads waited for a processor that another
         process had is subtracted, where it is much and the system reports it (Linux); threads of one process wait for each
         other, as they do in a step.
PROBE-4  An op that fails alone, or that other work held up, keeps its roofline.
PROBE-5  On a CPU the processor time of an op tells how much of this process's cores it keeps busy; unordered ops can use the rest
         (`cost.step_seconds`). A GPU runs one op after the other.
PROBE-6  The machine of today is not that of the day on which ops were measured. Where the step takes long enough to be worth it,
         the most important kinds are measured again, once per process and by one process for all that start soon after it (ranks).
         Where they take another time, all known ops count as so much longer or shorter (`_pace`), in rough steps: small
         differences shall not make other plans.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import platform
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from lms3d.device import memory
from lms3d.files import cache_directory
from lms3d.swap import tuning
from lms3d.swap.cost import Machine, OpCost, moved_bytes, op_seconds, step_seconds
from lms3d.swap.ir import Op, StepGraph
from lms3d.swap.tensorflow import speeds, surgery
from lms3d.swap.tensorflow.capture import argument, is_argument, is_reserve

log = logging.getLogger("lms3d")

_VERSION = 7


@dataclass(frozen=True)
class Cost:
    """Of one op alone. share: of the cores of this process, or of the GPU, that it keeps busy. workspace_bytes: besides inputs and
    outputs. parts: into how many it was cut to be measured."""

    seconds: float
    share: float = 1.0
    workspace_bytes: int = 0
    parts: int = 1


Known = dict[str, Cost | None]
"""Signature -> cost; None for an op that cannot be measured, which is not tried again."""

_paces: dict[tuple[Path, str], float] = {}
"""What `_pace` said in this process, by the file of the known costs and `_key`."""


def with_ops(
    graph: StepGraph,
    machine: Machine,
    function: tf.types.experimental.ConcreteFunction,
    *,
    device: str = "CPU:0",
    free_bytes: int = 1 << 62,
    budget_seconds: float = tuning.PROBE_BUDGET_SECONDS,
) -> tuple[StepGraph, Machine]:
    """`graph` with the workspace, and `machine` with the seconds, of the ops that matter in the step behind `function`.

    free_bytes: unused memory of the device.
    """
    store = cache_directory() / "ops.json"
    key = _key(device)
    known = _load(store).get(key, {})
    most_bytes = min(tuning.MOST_BYTES[device.partition(":")[0]], free_bytes // tuning.FREE_SHARE)
    pace = _paces.get((store, key))
    if pace is None and most_bytes > 0 and _takes_long(graph, machine, known):
        with speeds.one_at_a_time(store):
            pace = _paces[store, key] = _pace(graph, known, function.graph, machine, device, most_bytes)
    pace = pace or 1.0
    wanted = _unknown(graph, _kinds(graph, machine), machine, known, most_bytes)
    if wanted and most_bytes > 0:
        with speeds.one_at_a_time(store):
            known = _load(store).get(key, {})  # another rank may have measured meanwhile
            if wanted := _unknown(graph, wanted, machine, known, most_bytes):
                found = _measure(graph, wanted, function.graph, machine, device, most_bytes, budget_seconds)
                # As they would have been on the day of the others.
                found = {name: cost and replace(cost, seconds=cost.seconds / pace) for name, cost in found.items()}
                for name, cost in found.items():
                    if cost is None and (before := known.get(name)):  # it can only be measured in more parts
                        found[name] = replace(before, parts=1)
                if not known:
                    _keep_pace(key, 1.0)
                known = {**known, **found}
                _save(store, key, found)
    costs = {signature: cost for signature, cost in known.items() if cost is not None}
    table = _table(known, pace)
    ops = tuple(
        replace(op, workspace_bytes=costs[op.signature].workspace_bytes) if op.signature in costs else op
        for op in graph.ops
    )
    return graph.with_ops(ops), replace(machine, op_table=table)


def _kinds(graph: StepGraph, machine: Machine) -> list[Op]:
    """PROBE-1: one op of each kind that matters, the most important first."""
    seconds: dict[str, float] = defaultdict(float)
    first: dict[str, Op] = {}
    for op in graph.ops:
        if op.signature and not op.inserted:
            seconds[op.signature] += op_seconds(graph, op, machine)
            first.setdefault(op.signature, op)
    left = step_seconds(graph, machine)
    enough = left * tuning.REST
    chosen = []
    for signature, total in sorted(seconds.items(), key=lambda item: -item[1]):
        if left <= enough or total < tuning.WORTH_SECONDS:
            break
        chosen.append(first[signature])
        left -= total
    return chosen


def _unknown(graph: StepGraph, ops: Sequence[Op], machine: Machine, known: Known, most_bytes: int) -> list[Op]:
    """Those that were not measured yet, or only in more parts than they need here."""
    wanted = []
    for op in ops:
        cost = known.get(op.signature)
        parts = _parts(op_seconds(graph, op, machine), moved_bytes(graph, op), max(1, most_bytes))
        if op.signature not in known or (cost is not None and cost.parts > parts):
            wanted.append(op)
    return wanted


def _table(known: Known, pace: float = 1.0) -> dict[str, OpCost]:
    return {name: OpCost(cost.seconds * pace, cost.share) for name, cost in known.items() if cost is not None}


def _takes_long(graph: StepGraph, machine: Machine, known: Known) -> bool:
    """Whether a step is worth a look at the machine of today; not where next to nothing is known of it."""
    measured = replace(machine, op_table=_table(known))
    some = [op for op in _kinds(graph, measured) if op.signature in measured.op_table]
    return bool(some) and step_seconds(graph, measured) >= tuning.PACED_STEP_SECONDS


def _pace(graph: StepGraph, known: Known, traced: tf.Graph, machine: Machine, device: str, most_bytes: int) -> float:
    """PROBE-6: how many times as long as once an op takes today, a power of `tuning.PACE`; a known one while that is new."""
    last, at = _last_pace(key := _key(device))
    if abs(time.time() - at) < tuning.PACE_LASTS_SECONDS:
        return last
    again = _paced(graph, known, machine, most_bytes)
    found = _measure(graph, again, traced, machine, device, most_bytes, tuning.PACED_SECONDS)
    pairs = [(cost, known[name]) for name, cost in found.items()]
    ratios = [now.seconds / then.seconds for now, then in pairs if now and then and now.seconds > 0]
    if not ratios:
        return last
    steps = math.log(statistics.median(ratios)) / math.log(tuning.PACE)
    same = abs(steps - math.log(last) / math.log(tuning.PACE)) <= tuning.SAME_PACE
    pace = last if same else float(tuning.PACE ** round(steps))
    _keep_pace(key, pace)
    if pace != 1.0:
        log.info("lms: ops take %.2f times as long as when they were measured", pace)
    return pace


def _paced(graph: StepGraph, known: Known, machine: Machine, most_bytes: int) -> list[Op]:
    """The ops to measure again: known ones, and in as many parts as then."""
    chosen = []
    for op in _kinds(graph, replace(machine, op_table=_table(known))):
        cost = known.get(op.signature)
        if cost is not None and cost.seconds > 0:
            parts = _parts(op_seconds(graph, op, machine), moved_bytes(graph, op), most_bytes)
            if parts == cost.parts:
                chosen.append(op)
    return chosen[: tuning.PACED_OPS]


def _last_pace(key: str) -> tuple[float, float]:
    """A pace of this machine and when it was found; 1 and long ago where there is none, or none that a machine can have."""
    try:
        pace, at = map(float, speeds.read_store(cache_directory() / "pace.json")[f"{platform.node()} {key}"])
    except (LookupError, TypeError, ValueError):
        return 1.0, -math.inf
    return (pace, at) if 0.01 < pace < 100 and math.isfinite(at) else (1.0, -math.inf)


def _keep_pace(key: str, pace: float) -> None:
    store = cache_directory() / "pace.json"
    speeds.write_store(store, speeds.read_store(store) | {f"{platform.node()} {key}": [pace, time.time()]})


def _measure(
    graph: StepGraph,
    wanted: Sequence[Op],
    traced: tf.Graph,
    machine: Machine,
    device: str,
    most_bytes: int,
    budget_seconds: float,
) -> Known:
    started = time.monotonic()
    found: Known = {}
    call_seconds = _call_seconds(device)
    for op in wanted:
        if time.monotonic() - started > budget_seconds:
            break
        seconds = op_seconds(graph, op, machine)
        parts = _parts(seconds, moved_bytes(graph, op), most_bytes)
        times = min(tuning.MOST_TIMES, max(1, round(tuning.SHORT_SECONDS / seconds)))
        cost = probe(traced.get_operation_by_name(op.name), parts, times, device=device, call_seconds=call_seconds)
        found[op.signature] = cost
    log.info("lms: measured %d of %d kinds of ops in %.0f s", len(found), len(wanted), time.monotonic() - started)
    return found


def _parts(seconds: float, moved_bytes: int, most_bytes: int) -> int:
    """PROBE-2: into how many parts an op is cut, a power of two."""
    parts = 1
    while seconds > tuning.RUN_SECONDS * parts or moved_bytes > most_bytes * parts:
        parts *= 2
    return parts


def probe(
    op: tf.Operation, parts: int = 1, times: int = 1, *, device: str = "CPU:0", call_seconds: float = 0.0
) -> Cost | None:
    """The cost of `op` alone, run at 1/parts of its size, `times` times in a row; None where that cannot be run.

    call_seconds: the cost of calling a function that does nothing.
    """
    for axis, sizes in _cuts(op, parts):
        try:
            function, specs = _alone(op, axis, sizes, times)
            whole = _run(function, specs, device, cold=bool(sizes) and device.startswith("CPU"))
        except (ValueError, TypeError, tf.errors.OpError):  # this axis cannot be cut, or memory is short (PROBE-4)
            continue
        if whole.share * speeds.cores() < tuning.LEAST_CORES:
            return None
        seconds = max(0.0, whole.seconds - call_seconds) * parts / times
        return Cost(seconds, whole.share, whole.workspace_bytes * parts, parts)
    return None


def _large(op: tf.Operation) -> set[tuple[int, ...]]:
    """Shapes of the tensors that make `op` large: not weights, masks or arguments."""
    sizes = {tuple(t.shape): t.shape.num_elements() for t in (*op.inputs, *op.outputs) if not is_reserve(t)}
    return {shape for shape, size in sizes.items() if size * 64 >= max(sizes.values())}


def _cuts(op: tf.Operation, parts: int) -> Iterator[tuple[int, dict[int, int]]]:
    """(axis, size of a large tensor along it -> size of a part), where `op` can be cut: first where all sizes divide, then where
    only the shortest does and the others are longer by little more than a window.

    A convolution of stride 1 that makes 32 of 34 planes makes 16 of 18; one of stride 2 that makes 32 of 65 makes 16 of 33.
    """
    if parts == 1:
        yield 0, {}
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
    """A function of a smaller `op`, and the specs of its arguments. ValueError where its result is no part of the whole.

    sizes: of large tensors along `axis` -> of the part; empty for the whole op.
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
    function = surgery.alone(op, inputs, times)
    for made, whole in zip(function.graph.outputs, op.outputs, strict=True):
        if not is_reserve(whole) and not made.shape.is_compatible_with(cut(tuple(whole.shape))):
            raise ValueError(f"{op.type}: {made.shape} is not {whole.shape} cut along axis {axis}")
    return function, [i for i in inputs if isinstance(i, tf.TensorSpec)]


def _run(function: Any, specs: Sequence[tf.TensorSpec], device: str, *, cold: bool = False) -> Cost:
    """The cost of a call (PROBE-3, PROBE-5). cold: nothing that it reads is in the processor's caches."""
    with tf.device(device):
        passed = [_numbers(spec) for spec in specs]
        others = np.zeros(tuning.CACHES_BYTES // 8 if cold else 0)

        def seconds() -> float:
            """Of one call; on a GPU until it is done."""
            if cold:
                _read(others)
            start = time.perf_counter()
            function(*passed)
            if not device.startswith("CPU"):
                tf.test.experimental.sync_devices()
            return time.perf_counter() - start

        seconds()  # compiles the function; kernels choose their algorithm
        workspace = _workspace_bytes(lambda: function(*passed), device)
        worked, waited = _processor_seconds()
        runs = [seconds(), seconds()]
        while len(runs) < tuning.RUNS and sum(runs) < tuning.ENOUGH_SECONDS:
            runs.append(seconds())
    usual = float(np.quantile(runs, 0.25))
    if not device.startswith("CPU"):
        return Cost(usual, 1.0, workspace)
    worked, waited = (now - then for now, then in zip(_processor_seconds(), (worked, waited), strict=True))
    if worked <= 0:
        return Cost(usual, 1.0, workspace)
    cores, mean = speeds.cores(), sum(runs) / len(runs)
    busy = worked / sum(runs) / cores  # 1 where the threads had all cores: they waited for each other
    had = max(worked / (worked + waited), busy)
    undisturbed = usual if had >= tuning.UNDISTURBED else min(usual, mean * had)
    return Cost(undisturbed, min(1.0, worked / len(runs) / undisturbed / cores), workspace)


def _read(others: np.ndarray) -> None:
    """Drives out of the processor's caches what they hold."""
    others.sum()


def _workspace_bytes(call: Callable[[], Any], device: str) -> int:
    """Bytes that a call takes and gives back. 0 where TensorFlow does not count; then there is no hard limit either."""
    if memory.bytes_in_use("peak", device) is None:
        return 0
    tf.config.experimental.reset_memory_stats(device)
    outputs = call()
    after = tf.config.experimental.get_memory_info(device)
    del outputs
    return max(0, int(after["peak"]) - int(after["current"]))


def _processor_seconds() -> tuple[float, float]:
    """Seconds that the threads of this process have run, and seconds that they have waited for a processor."""
    ran = waited = 0
    for task in Path("/proc/self/task").glob("*/schedstat"):
        with contextlib.suppress(OSError, ValueError):  # a thread that has just ended
            running, waiting, _ = task.read_text().split()
            ran, waited = ran + int(running), waited + int(waiting)
    return (ran * 1e-9, waited * 1e-9) if ran else (time.process_time(), 0.0)


def _call_seconds(device: str) -> float:
    @tf.function(jit_compile=False)
    def nothing(x: tf.Tensor) -> tf.Tensor:
        return tf.identity(x)

    function = surgery.make_function(nothing.get_concrete_function(tf.TensorSpec((), tf.float32)))
    return _run(function, [tf.TensorSpec((), tf.float32)], device).seconds


def _numbers(spec: tf.TensorSpec) -> tf.Tensor:
    """Random numbers; zeros where an integer might be an index."""
    count = spec.shape.num_elements()
    if spec.dtype.is_floating or spec.dtype.is_complex:
        some = np.random.default_rng(0).standard_normal(min(count, 1 << 16), np.float32)
        return tf.cast(tf.constant(np.resize(some, spec.shape.as_list())), spec.dtype)
    return tf.zeros(spec.shape, spec.dtype)


def _key(device: str) -> str:
    """Everything that the seconds of an op depend on, except the op."""
    parts = [
        _VERSION,
        tf.__version__,
        speeds.device_name(device),
        os.cpu_count(),
        speeds.cores() if device.startswith("CPU") else "",
        tf.config.threading.get_inter_op_parallelism_threads(),
        # With its own pool, TensorFlow takes no fresh pages from the system in each step.
        os.environ.get("TF_CPU_ALLOCATOR_USE_BFC", "").lower() in ("1", "true"),
        os.environ.get("TF_ENABLE_ONEDNN_OPTS", ""),
    ]
    return " ".join(map(str, parts))


def _load(store: Any) -> dict[str, Known]:
    """Key -> signature -> cost; nothing where that cannot be read."""
    try:
        return {
            key: {
                signature: cost and _checked(Cost(float(cost[0]), float(cost[1]), int(cost[2]), int(cost[3])))
                for signature, cost in ops.items()
            }
            for key, ops in speeds.read_store(store).items()
        }
    except (ValueError, TypeError, AttributeError, LookupError, OverflowError):
        return {}


def _checked(cost: Cost) -> Cost:
    """ValueError for what no op has taken."""
    if not (0 <= cost.seconds < math.inf and 0 <= cost.share <= 1 and cost.workspace_bytes >= 0 and cost.parts >= 1):
        raise ValueError(f"found {cost}")
    return cost


def _save(store: Any, key: str, found: Known) -> None:
    """Adds to what is there."""
    known = _load(store)
    known[key] = {**known.get(key, {}), **found}
    content = {
        k: {s: c and [c.seconds, c.share, c.workspace_bytes, c.parts] for s, c in ops.items()}
        for k, ops in known.items()
    }
    speeds.write_store(store, content)
