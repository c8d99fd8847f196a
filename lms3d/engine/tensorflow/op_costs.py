"""Seconds and workspace of single ops, measured on this machine and kept in the cache folder.

A roofline is far off for single ops, such as a convolution of few channels or a reduction over the wrong axis. So the ops that
make up most of a step are run alone, one of each kind (`ir.Op.signature`; `probing`).

OPS-1  The kinds that matter most by the roofline come first, until the rest is `REST` of the step or the time is up.
OPS-2  An op that cannot be measured keeps its roofline.
OPS-3  Under a tight limit an op is measured in small parts, which together take longer than the whole. A process with more memory
       measures it again. If a measurement in parts says nothing of the whole (`probing.is_too_good`), this process takes the
       roofline and the largest workspace there can be, and the next one tries again.
OPS-4  If an op leaves cores of this process idle, ops that no order holds back can use them (`cost.step_seconds`).
OPS-5  The machine may be faster or slower today than on the day of the measurements. If the step takes long enough to be worth it,
       the most important kinds are measured again: once per process, and by one process for all that start soon after it (ranks).
       If they take another time, the times of all known ops are scaled (`_pace`), in rough steps: small differences shall not make
       other plans.
OPS-6  An op alone has the machine to itself, so the sum of all ops is not yet the step: `whole_steps` compares the two.
"""

from __future__ import annotations

import logging
import math
import os
import platform
import statistics
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import tensorflow as tf

from lms3d.common.disk import cache_directory
from lms3d.device import workspace
from lms3d.engine import tuning
from lms3d.engine.cost import Machine, OpCost, moved_bytes, op_seconds, step_seconds
from lms3d.engine.ir import PROGRAM_TYPE, Op, StepGraph
from lms3d.engine.tensorflow import probing, speeds
from lms3d.engine.tensorflow.probing import Cost

log = logging.getLogger("lms3d")

_VERSION = 8

Known = dict[str, Cost | None]
"""Signature -> cost; None for an op that cannot be measured, which is not tried again."""

_supposed: dict[str, Known] = {}
"""`conditions` -> the costs that this process supposes (OPS-3)."""

_paces: dict[tuple[Path, str], float] = {}
"""(file of the known costs, `conditions`) -> the pace that this process found."""


def with_ops(
    graph: StepGraph,
    machine: Machine,
    function: tf.types.experimental.ConcreteFunction,
    *,
    device: str = "CPU:0",
    free_bytes: int = 1 << 62,
    budget_seconds: float | None = None,
) -> tuple[StepGraph, Machine]:
    """`graph` with the workspace, and `machine` with the seconds, of the ops that matter in the step behind `function`.

    free_bytes: unused memory of the device. budget_seconds: the time for measuring; None: the usual time.
    """
    scale, machine = machine.ops_scale, replace(machine, ops_scale=1.0)  # ops run alone here
    store = cache_directory() / "ops.json"
    key = conditions(device)
    known = _known(store, key)
    most_bytes = min(tuning.MOST_BYTES[_kind(device)], free_bytes // tuning.FREE_SHARE)
    pace = _paces.get((store, key))
    if pace is None and most_bytes > 0 and _takes_long(graph, machine, known, device):
        with speeds.one_at_a_time(store):
            pace = _paces[store, key] = _pace(graph, known, function.graph, machine, device, most_bytes)
    pace = pace or 1.0
    wanted = _unknown(graph, _kinds(graph, machine, device), machine, known, most_bytes)
    if wanted and most_bytes > 0:
        with speeds.one_at_a_time(store):
            known = _known(store, key)  # another rank may have measured meanwhile
            if wanted := _unknown(graph, wanted, machine, known, most_bytes):
                seconds = _budget_seconds(device) if budget_seconds is None else budget_seconds
                found = _measure(graph, wanted, function.graph, machine, device, most_bytes, seconds)
                new = _not_believed(graph, found, machine, device)
                found = {name: cost for name, cost in found.items() if name not in new}
                earlier = {name: cost for name, cost in _supposed.get(key, {}).items() if name not in found}
                supposed = _supposed[key] = {**earlier, **new}
                # As on the day on which the others were measured.
                found = {name: cost and replace(cost, seconds=cost.seconds / pace) for name, cost in found.items()}
                for name, cost in found.items():
                    before = None if name in supposed else known.get(name)
                    if cost is None and before:  # it can only be measured in more parts
                        found[name] = replace(before, parts=1)
                if not known:
                    _keep_pace(key, 1.0)
                known = {**supposed, **known, **found}
                _save(store, key, found)
    costs = {signature: cost for signature, cost in known.items() if cost is not None}
    table = _table(known, pace)
    ops = tuple(
        replace(op, workspace_bytes=costs[op.signature].workspace_bytes) if op.signature in costs else op
        for op in graph.ops
    )
    return graph.with_ops(ops), replace(machine, op_table=table, ops_scale=scale)


def _known(store: Path, key: str) -> Known:
    """The costs in a store, and the costs that this process supposes."""
    return {**_supposed.get(key, {}), **_load(store).get(key, {})}


def _not_believed(graph: StepGraph, found: Known, machine: Machine, device: str) -> Known:
    """What this process takes in place of measurements that say nothing of the whole (OPS-3)."""
    supposed: Known = {}
    for op in graph.ops:
        cost = found.get(op.signature)
        if cost is not None and probing.is_too_good(cost, op.type, device):
            seconds = op_seconds(graph, op, replace(machine, op_table={}))
            supposed[op.signature] = Cost(seconds, 1.0, workspace.in_force(), cost.parts)
    return supposed


def _kind(device: str) -> str:
    """ "CPU" or "GPU"."""
    return device.partition(":")[0]


def _budget_seconds(device: str) -> float:
    return tuning.PROBE_BUDGET_SECONDS if device.startswith("CPU") else tuning.CARD_BUDGET_SECONDS


def _worth_seconds(step: float, device: str) -> float:
    """Seconds per step below which a kind of op may stay unmeasured."""
    if device.startswith("CPU"):
        return tuning.WORTH_SECONDS
    return min(tuning.WORTH_SECONDS, max(tuning.LEAST_WORTH_SECONDS, tuning.WORTH_SHARE * step))


def _kinds(graph: StepGraph, machine: Machine, device: str) -> list[Op]:
    """One op of each kind that matters, the most important first (OPS-1)."""
    seconds: dict[str, float] = defaultdict(float)
    first: dict[str, Op] = {}
    for op in graph.ops:
        if op.signature and not op.inserted:
            seconds[op.signature] += op_seconds(graph, op, machine)
            first.setdefault(op.signature, op)
    left = step_seconds(graph, machine)
    enough, worth = left * tuning.REST, _worth_seconds(left, device)
    chosen = []
    for signature, total in sorted(seconds.items(), key=lambda item: -item[1]):
        if left <= enough or total < worth:
            break
        chosen.append(first[signature])
        left -= total
    return chosen


def _unknown(graph: StepGraph, ops: Sequence[Op], machine: Machine, known: Known, most_bytes: int) -> list[Op]:
    """The ops that were not measured yet, or only in more parts than they need here."""
    wanted = []
    for op in ops:
        cost = known.get(op.signature)
        parts = _parts(graph, op, machine, max(1, most_bytes))
        if op.type == PROGRAM_TYPE and moved_bytes(graph, op) > most_bytes:
            continue  # where there is more memory, it may be measured
        if op.signature not in known or (cost is not None and cost.parts > parts):
            wanted.append(op)
    return wanted


def _parts(graph: StepGraph, op: Op, machine: Machine, most_bytes: int) -> int:
    """The number of parts that an op is cut into to be measured. A compiled program is not cut, nor measured if memory is short."""
    if op.type == PROGRAM_TYPE:
        return 1
    return probing.parts_of(op_seconds(graph, op, machine), moved_bytes(graph, op), most_bytes)


def _table(known: Known, pace: float = 1.0) -> dict[str, OpCost]:
    return {name: OpCost(cost.seconds * pace, cost.share) for name, cost in known.items() if cost is not None}


def _takes_long(graph: StepGraph, machine: Machine, known: Known, device: str) -> bool:
    """Whether a step takes long enough to measure today's pace (OPS-5). False if next to nothing is known of the step."""
    measured = replace(machine, op_table=_table(known))
    some = [op for op in _kinds(graph, measured, device) if op.signature in measured.op_table]
    return bool(some) and step_seconds(graph, measured) >= tuning.LONG_STEP_SECONDS[_kind(device)]


def pace_of(device: str) -> float:
    """The pace that this process plans with (OPS-5): the one that it found itself, or else the last one found."""
    store, key = cache_directory() / "ops.json", conditions(device)
    return _paces.get((store, key)) or _last_pace(key)[0]


def _pace(graph: StepGraph, known: Known, traced: tf.Graph, machine: Machine, device: str, most_bytes: int) -> float:
    """Today's seconds of an op / its seconds on the day of the measurement, a power of `tuning.PACE` (OPS-5).

    A pace that was found a short time ago is taken as it is.
    """
    last, at = _last_pace(key := conditions(device))
    if abs(time.time() - at) < tuning.PACE_LASTS_SECONDS:
        return last
    again = _paced(graph, known, machine, device, most_bytes)
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


def _paced(graph: StepGraph, known: Known, machine: Machine, device: str, most_bytes: int) -> list[Op]:
    """The known ops to measure again, in as many parts as they were measured in."""
    chosen = []
    for op in _kinds(graph, replace(machine, op_table=_table(known)), device):
        cost = known.get(op.signature)
        if cost is not None and cost.seconds > 0:
            parts = _parts(graph, op, machine, most_bytes)
            if parts == cost.parts:
                chosen.append(op)
    return chosen[: tuning.PACED_OPS]


def _last_pace(key: str) -> tuple[float, float]:
    """The last pace of this machine, and when it was found; 1 and long ago if there is none, or none that a machine can have."""
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
    call_seconds = probing.call_seconds(device) if device.startswith("CPU") else 0.0
    for op in wanted:
        if time.monotonic() - started > budget_seconds:
            break
        seconds = op_seconds(graph, op, machine)
        parts = _parts(graph, op, machine, most_bytes)
        times = min(tuning.MOST_TIMES, max(1, round(tuning.SHORT_SECONDS / seconds)))
        cost = probing.probe(
            traced.get_operation_by_name(op.name), parts, times, device=device, call_seconds=call_seconds
        )
        found[op.signature] = cost
        log.debug("lms: %s %s, estimated %.3g s, in %d parts: %s", op.type, op.name, seconds, parts, cost)
    log.info("lms: measured %d of %d kinds of ops in %.0f s", len(found), len(wanted), time.monotonic() - started)
    return found


def conditions(device: str) -> str:
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
    ]
    return " ".join(map(str, parts)) + speeds.kernel_settings(device)


def _load(store: Any) -> dict[str, Known]:
    """Key -> signature -> cost; empty if the file cannot be read."""
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
    """The cost in an entry. ValueError if no op can have it."""
    if not (0 <= cost.seconds < math.inf and 0 <= cost.share <= 1 and cost.workspace_bytes >= 0 and cost.parts >= 1):
        raise ValueError(f"found {cost}")
    return cost


def keep(costs: Known, device: str) -> None:
    """Stores costs that were measured elsewhere, today."""
    pace, store = pace_of(device), cache_directory() / "ops.json"
    found = {name: cost and replace(cost, seconds=cost.seconds / pace) for name, cost in costs.items()}
    with speeds.one_at_a_time(store):
        _save(store, conditions(device), found)


def keep_unknown(costs: Known, device: str) -> None:
    """Stores those costs whose op has none here yet."""
    known = _load(cache_directory() / "ops.json").get(conditions(device), {})
    if missing := {name: cost for name, cost in costs.items() if known.get(name) is None}:
        keep(missing, device)


def _save(store: Any, key: str, found: Known) -> None:
    """Adds costs to the store."""
    known = _load(store)
    known[key] = {**known.get(key, {}), **found}
    content = {
        k: {s: c and [c.seconds, c.share, c.workspace_bytes, c.parts] for s, c in ops.items()}
        for k, ops in known.items()
    }
    speeds.write_store(store, content)
