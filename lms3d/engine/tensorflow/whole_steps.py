"""Measured times of whole steps, to correct the sum of the costs of single ops. Kept in the cache folder.

    op alone (`probing`) -> x pace of today (`op_costs`) -> x scale of this step (here) -> seconds that plans are made with

WHOLE-1  A step is known by its device, its kinds of ops, and the number of ops of each kind: the same network at the same size.
WHOLE-2  A step without a plan waits for nothing, so that its ops make up all its seconds. They are stored as on a day whose pace
         is 1. When its ops have been measured, too, the scale is the ratio of the two (`cost.scale_of`).
WHOLE-3  A step under a plan has a scale, too, relative to the costs that it was planned with (ADAPT-6). The newest scale is used,
         until the step without a plan takes another time.
"""

from __future__ import annotations

import hashlib
import math
import platform
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lms3d.common.disk import cache_directory
from lms3d.engine import tuning
from lms3d.engine.cost import Machine, scale_of, step_seconds
from lms3d.engine.ir import StepGraph
from lms3d.engine.tensorflow import op_costs, speeds


@dataclass(frozen=True, kw_only=True)
class Known:
    """The facts about one step; None: not measured. unplanned_seconds: its time without a plan, at pace 1. ops_scale: see
    `cost.Machine`."""

    unplanned_seconds: float | None = None
    ops_scale: float | None = None


def name(graph: StepGraph, device: str) -> str:
    """The name of a step in the store (WHOLE-1)."""
    kinds = Counter(op.signature for op in graph.ops if op.signature and not op.inserted)
    digest = hashlib.sha256(repr(sorted(kinds.items())).encode()).hexdigest()
    return f"{platform.node()} {op_costs.conditions(device)} {digest[:16]}"


def with_scale(graph: StepGraph, machine: Machine, device: str, otherwise: float = 1.0) -> Machine:
    """`machine`, whose ops were measured alone, with the scale that they have in this step (WHOLE-2, WHOLE-3).

    otherwise: the scale if nothing is known of this step, such as that of the whole step if this one is sliced.
    """
    known, alone = load(name(graph, device)), replace(machine, ops_scale=1.0)
    if known.ops_scale is not None:
        return replace(alone, ops_scale=known.ops_scale)
    if known.unplanned_seconds is None:
        return replace(alone, ops_scale=otherwise)
    measured = known.unplanned_seconds * op_costs.pace_of(device)
    return replace(alone, ops_scale=scale_of(measured, step_seconds(graph, alone)))


def keep_unplanned(step: str, seconds: float, device: str) -> None:
    """Stores the time of a step without a plan (WHOLE-2). step: see `name`. seconds: as measured today."""
    before, today = load(step).unplanned_seconds, seconds / op_costs.pace_of(device)
    if before is None or scale_of(today, before) != 1.0:
        _keep(step, Known(unplanned_seconds=today))


def keep_scale(step: str, ops_scale: float) -> None:
    """Stores the scale of a step under a plan (WHOLE-3). step: see `name`."""
    _keep(step, replace(load(step), ops_scale=ops_scale))


def load(step: str) -> Known:
    """The facts about the step of this `name`; empty if they cannot be read, or if no step can have them."""
    entry = speeds.read_store(_store()).get(step)
    values = entry if isinstance(entry, list) and len(entry) == 2 else [None, None]
    return Known(unplanned_seconds=_positive(values[0]), ops_scale=_positive(values[1]))


def _positive(value: Any) -> float | None:
    return value if type(value) in (int, float) and math.isfinite(value) and value > 0 else None


def _keep(step: str, known: Known) -> None:
    """Stores the facts about a step. The newest come last, and only the newest are kept."""
    with speeds.one_at_a_time(_store()):
        others = {key: entry for key, entry in speeds.read_store(_store()).items() if key != step}
        entries = {**others, step: [known.unplanned_seconds, known.ops_scale]}
        speeds.write_store(_store(), dict(list(entries.items())[-tuning.MOST_WHOLE_STEPS :]))


def _store() -> Path:
    return cache_directory() / "steps.json"
