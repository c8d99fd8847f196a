"""Plans that were made before: `decide.decide` with a memory, one file per plan in the cache folder. No TensorFlow here.

A plan takes seconds to make and the same step comes again: in the next run, after `--resume`. Rules:
 1. The key is a hash of everything that the outcome depends on: each op of the step, the settings, the speeds of the
    machine (of measured ops only those that the step has), and the planner itself, that is, its sources and its libraries.
 2. What comes back equals what was stored, to the last bit. Where that is not so (a value that JSON does not keep), nothing
    is stored; a file that cannot be read, or whose plan cannot be applied to the step, counts as none.
 3. That no plan fits is an outcome like any other: it is kept, and raised again.
 4. The folder holds `MOST_PLANS` plans; those that were not used for longest go first. A folder that cannot be written
    costs the time to plan again and nothing else.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from dataclasses import fields, replace
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from lms3d import files
from lms3d.errors import DoesNotFit, StorageError
from lms3d.keras_step import report as report_module
from lms3d.keras_step.report import Report
from lms3d.swap import edit
from lms3d.swap import planning as planning
from lms3d.swap.cost import Machine
from lms3d.swap.ir import StepGraph
from lms3d.swap.plan import Plan
from lms3d.swap.planning import Settings

MOST_PLANS = 100

Outcome = tuple[Plan, Report] | DoesNotFit


def decide(
    graph: StepGraph, settings: Settings, machine: Machine, *, step: str = "train", with_floor: bool = True
) -> tuple[Plan, Report]:
    """As `decide.decide`, from the cache where the same question was asked before (`report.from_cache`).

    Raises DoesNotFit, with the smallest limit, where no plan fits.
    """
    path = directory() / f"{key(graph, settings, machine, step=step, with_floor=with_floor)}.json"
    outcome = _load(path, graph)
    if outcome is None:
        try:
            outcome = planning.decide(graph, settings, machine, step=step, with_floor=with_floor)
        except DoesNotFit as error:
            outcome = error
        _save(path, outcome)
    if isinstance(outcome, DoesNotFit):
        raise outcome
    return outcome


def directory() -> Path:
    """Where the plans lie."""
    return files.cache_directory() / "plans"


def key(graph: StepGraph, settings: Settings, machine: Machine, *, step: str, with_floor: bool) -> str:
    """The name of an outcome (rule 1). Dataclasses print all their fields, so a new field is part of it at once."""
    digest = hashlib.sha256()
    parts = (
        _planner(),
        step,
        with_floor,
        settings,
        _speeds(graph, machine),
        graph.resident_bytes,
        graph.batches,
        sorted(graph.returned),
    )
    for part in (*parts, *graph.ops):
        digest.update(repr(part).encode() + b"\n")
    return digest.hexdigest()[:40]


def _speeds(graph: StepGraph, machine: Machine) -> list[tuple[str, Any]]:
    """The machine, field by field; of the measured ops only those that this step has."""
    found: list[tuple[str, Any]] = []
    for field in fields(machine):
        value = getattr(machine, field.name)
        if field.name == "op_table":
            value = sorted({(op.signature, value[op.signature]) for op in graph.ops if op.signature in value})
        found.append((field.name, value))
    return found


@cache
def _planner() -> str:
    """What decides: a hash of the engine's sources, so that nobody has to raise a version number, and the libraries."""
    digest = hashlib.sha256(f"numpy {version('numpy')} scipy {version('scipy')}".encode())
    for source in (*sorted(Path(__file__).parent.rglob("*.py")), Path(report_module.__file__)):
        digest.update(source.read_bytes())
    return digest.hexdigest()


def _load(path: Path, graph: StepGraph) -> Outcome | None:
    """The stored outcome (rule 2), or None."""
    try:
        outcome = _from_json(path.read_text())
        if not isinstance(outcome, DoesNotFit):
            edit.apply(graph, outcome[0])
            outcome = (outcome[0], replace(outcome[1], from_cache=True))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    with contextlib.suppress(OSError):
        os.utime(path)  # used just now: rule 4
    return outcome


def _save(path: Path, outcome: Outcome) -> None:
    with contextlib.suppress(StorageError, OSError, TypeError, ValueError):  # what cannot be kept is made again: rule 4
        text = _to_json(outcome)
        if not _same(_from_json(text), outcome):  # rule 2
            return
        files.write_text(path, text)
        kept = sorted(path.parent.glob("*.json"), key=lambda file: file.stat().st_mtime)
        for old in kept[:-MOST_PLANS]:
            old.unlink(missing_ok=True)


def _to_json(outcome: Outcome) -> str:
    if isinstance(outcome, DoesNotFit):
        return json.dumps({"does not fit": str(outcome), "smallest_limit_bytes": outcome.smallest_limit_bytes})
    return json.dumps({"plan": outcome[0].to_dict(), "report": outcome[1].to_dict()})


def _from_json(text: str) -> Outcome:
    values = json.loads(text)
    if "does not fit" in values:
        return DoesNotFit(values["does not fit"], values["smallest_limit_bytes"])
    return Plan.from_dict(values["plan"]), Report.from_dict(values["report"])


def _same(one: Outcome, other: Outcome) -> bool:
    if isinstance(one, DoesNotFit) and isinstance(other, DoesNotFit):
        return (str(one), vars(one)) == (str(other), vars(other))
    return one == other
