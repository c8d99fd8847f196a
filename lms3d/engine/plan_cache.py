"""`planning.make_plan` with a memory: one file per plan in the cache folder. No TensorFlow here.

A plan takes seconds to make, and the same step comes again: in the next run, or after `--resume`. Rules:
- PLAN-CACHE-1: The key hashes everything that the answer depends on: each op of the step, the settings, the speeds of the machine
  (with the measured ops that the step has), and the planner itself: the sources of the engine, the source of a planner that is
  registered from elsewhere, and the versions of the libraries. A planner whose source cannot be found is not cached.
- PLAN-CACHE-2: An answer that is read equals the one that was stored, to the last bit. A value that JSON does not keep is not
  stored. A file holds the SHA-256 of its key and its content. A file that is not as it was written, or whose plan cannot be applied
  to the step, counts as absent: a flipped bit could make another plan that is as sound, but slower.
- PLAN-CACHE-3: That no plan fits is an answer, too. It is stored, and raised again.
- PLAN-CACHE-4: The folder holds `tuning.MOST_PLANS` plans; the least recently used go first. A folder that cannot be written
  costs the time to plan again and nothing else.
"""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import json
import os
from dataclasses import fields, replace
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from lms3d import atomic_files
from lms3d.common import json_values
from lms3d.common.disk import cache_directory
from lms3d.engine import edit, planning, tuning
from lms3d.engine.ir import StepGraph
from lms3d.engine.plan import Plan
from lms3d.engine.planners import PLANNERS
from lms3d.engine.prediction import Prediction
from lms3d.engine.request import StepRequest
from lms3d.errors import DoesNotFit, StorageError

Answer = tuple[Plan, Prediction] | DoesNotFit


def cached_plan(request: StepRequest) -> tuple[Plan, Prediction]:
    """As `planning.make_plan`, from the cache if the same was asked before (`prediction.from_cache`)."""
    name = key(request)
    if name is None:
        return planning.make_plan(request)
    path = directory() / f"{name}.json"
    answer = _load(path, request.graph)
    if answer is None:
        try:
            answer = planning.make_plan(request)
        except DoesNotFit as error:
            answer = error
        _save(path, answer)
    if isinstance(answer, DoesNotFit):
        raise answer
    return answer


def directory() -> Path:
    """The folder of the plans."""
    return cache_directory() / "plans"


def key(request: StepRequest) -> str | None:
    """The name of an answer (PLAN-CACHE-1); None if it cannot be cached. Dataclasses print all their fields, so a new field of the
    request counts at once."""
    source = _planner_source(PLANNERS[request.settings.planner])
    if source is None:
        return None
    graph = request.graph
    others = [(f.name, getattr(request, f.name)) for f in fields(request) if f.name not in ("graph", "machine")]
    parts = (_engine(), others, _speeds(request), graph.resident_bytes, graph.batches, sorted(graph.returned))
    digest = hashlib.sha256(source)
    for part in (*parts, *graph.ops):
        digest.update(repr(part).encode() + b"\n")
    return digest.hexdigest()[:40]


def _speeds(request: StepRequest) -> list[tuple[str, Any]]:
    """(name, value) of the machine's fields, with only the measured ops that this step has."""
    machine, table = request.machine, request.machine.op_table
    measured = sorted({(op.signature, table[op.signature]) for op in request.graph.ops if op.signature in table})
    plain = [(f.name, getattr(machine, f.name)) for f in fields(machine) if f.name != "op_table"]
    return [*plain, ("op_table", measured)]


@cache
def _engine() -> str:
    """A hash of the engine's sources, which stands for a version number, and of its libraries' versions."""
    digest = hashlib.sha256(f"numpy {version('numpy')} scipy {version('scipy')}".encode())
    for source in sorted(Path(__file__).parent.rglob("*.py")):
        digest.update(source.read_bytes())
    return digest.hexdigest()


def _planner_source(planner: type) -> bytes | None:
    """The source file that defines a planner; None if there is none, as for one that was typed in."""
    with contextlib.suppress(OSError, TypeError):
        return Path(inspect.getsourcefile(planner) or "").read_bytes()
    return None


def _load(path: Path, graph: StepGraph) -> Answer | None:
    """The stored answer, or None (PLAN-CACHE-2)."""
    try:
        answer = _from_json(_opened(path.stem, path.read_text()))
        if not isinstance(answer, DoesNotFit):
            edit.apply(graph, answer[0])
            answer = (answer[0], replace(answer[1], from_cache=True))
    except (OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError):
        return None
    with contextlib.suppress(OSError):
        os.utime(path)  # PLAN-CACHE-4
    return answer


def _save(path: Path, answer: Answer) -> None:
    with contextlib.suppress(StorageError, OSError, TypeError, ValueError):  # PLAN-CACHE-4
        text = _to_json(answer)
        if not _same(_from_json(text), answer):  # PLAN-CACHE-2
            return
        atomic_files.write_text(path, _sealed(path.stem, text))
        kept = sorted(path.parent.glob("*.json"), key=lambda file: file.stat().st_mtime)
        for old in kept[: -tuning.MOST_PLANS]:
            old.unlink(missing_ok=True)


def _sealed(name: str, text: str) -> str:
    """JSON, with its digest (PLAN-CACHE-2)."""
    digest = hashlib.sha256(f"{name} {text}".encode()).hexdigest()
    return f'{{"sha256": "{digest}", "outcome": {text}}}'


def _opened(name: str, content: str) -> str:
    """The text that `_sealed` was given. ValueError if the content is anything else."""
    text = content[len(_sealed(name, "")) - 1 : -1]
    if _sealed(name, text) != content:
        raise ValueError("not as it was written")
    return text


def _to_json(answer: Answer) -> str:
    if isinstance(answer, DoesNotFit):
        return json.dumps({"does not fit": str(answer), "smallest_limit_bytes": answer.smallest_limit_bytes})
    plan, prediction = answer
    return json.dumps({"plan": plan.to_dict(), "prediction": prediction.to_dict()})


def _from_json(text: str) -> Answer:
    values = json_values.parse(text)
    if "does not fit" in values:
        return DoesNotFit(values["does not fit"], values["smallest_limit_bytes"])
    return Plan.from_dict(values["plan"]), Prediction.from_dict(values["prediction"])


def _same(answer: Answer, other: Answer) -> bool:
    if isinstance(answer, DoesNotFit) and isinstance(other, DoesNotFit):
        return (str(answer), vars(answer)) == (str(other), vars(other))
    return answer == other
