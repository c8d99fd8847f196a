"""Random steps and functions, in batches: planned, rewritten, run and compared.

1. Steps without TensorFlow: the simulator and the ledger against a second, plain one; every planner; many limits of the same step.
2. TensorFlow functions of all sorts of layers, with state: not a bit may change, and if they are sliced in float64, no more than
   rounding.
3. Plans are made in two processes with other hash seeds, and must be equal.
"""

from __future__ import annotations

import hashlib
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import ceil
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from lms3d.engine.step_model.ledger import Block
from tests.stress import step_checks, steps
from tests.stress.harness import Child, Options, Part, Result

Drawn = Mapping[str, st.SearchStrategy[Any]]


@dataclass(frozen=True)
class Kind:
    """One kind of case."""

    share: float
    """The share of all cases."""
    size: int
    """Cases of a batch."""
    drawn: Callable[[], Drawn]
    """What a case consists of: the arguments of the check."""
    check: Callable[..., str]
    """Raises the fault. Returns the case's words; "" counts as silent."""
    compared: bool = False
    """Whether another process must be told the same."""


def batch(name: str, number: int, size: int | None = None) -> tuple[Result, str]:
    """Tries the cases of a batch: the same ones each time. Also returns a digest of all that was said.

    size: the number of cases, in place of the kind's own.
    """
    kind, counts, said = KINDS[name], {"cases": 0, "silent": 0}, hashlib.sha256()

    def check(drawn: Mapping[str, Any]) -> None:
        told = kind.check(**drawn)
        said.update(told.encode())
        counts["cases" if told else "silent"] += 1

    every = settings(
        max_examples=size or kind.size,
        database=None,
        deadline=None,
        derandomize=False,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )
    wrong = ""
    try:
        seed(number)(every(given(st.fixed_dictionaries(dict(kind.drawn())))(check)))()
    except Exception:  # whatever it is: the batch is over, the others go on
        wrong = traceback.format_exc(limit=-6)
    return Result(wrong=wrong, counts=counts), said.hexdigest()[:16]


def _ledger(spans: list[tuple[int, int, int]]) -> str:
    step_checks.check_ledger([Block(size, min(a, b), max(a, b)) for size, a, b in spans], 12)
    return "checked"


def _functions(recipe: Any, ways: Any) -> str:
    from tests.stress import function_checks

    try:
        plans = function_checks.check(recipe, ways)
    except function_checks.Refused:
        return ""
    return "checked" if any(not plan.empty for plan in plans) else ""


def _drawn_functions() -> Drawn:
    from tests.stress import function_checks, functions

    return {"recipe": functions.recipes(), "ways": st.lists(function_checks.ways, min_size=2, max_size=3)}


def _drawn_slabs() -> Drawn:
    from tests.stress import function_checks, functions

    ways = st.lists(function_checks.sliced_ways, min_size=1, max_size=2)
    return {"recipe": functions.recipes(10, smooth=True), "ways": ways}


_STEP = {"graph": steps.steps, "machine": steps.machines}
_SPANS = st.lists(st.tuples(st.integers(0, 1 << 41), st.integers(0, 11), st.integers(0, 11)))
_PLANNERS = st.sampled_from(["tflms", "swap_everything", "recompute_everything", "recompute_all_but_convolutions"])
_LIMITS = {
    "pool": steps.pools,
    "shares": st.lists(st.floats(-0.1, 1.1), min_size=2, max_size=5, unique=True),
    "effort_seconds": st.sampled_from([None, 0.375, 3.0]),
}
KINDS = {
    "ledger": Kind(0.2, 500, lambda: {"spans": _SPANS}, _ledger),
    "simulator": Kind(0.25, 100, lambda: _STEP | {"parameters": steps.parameters}, step_checks.check_simulator),
    "other planners": Kind(
        0.2,
        100,
        lambda: _STEP | {"planner": _PLANNERS, "share": st.floats(0.5, 1.1)},
        step_checks.check_planner,
        compared=True,
    ),
    "limits": Kind(
        0.2, 50, lambda: _STEP | _LIMITS, lambda **drawn: step_checks.said(step_checks.check_limits(**drawn)), compared=True
    ),
    "functions": Kind(0.1, 40, _drawn_functions, _functions),
    "slabs": Kind(0.05, 20, _drawn_slabs, _functions),
}  # fmt: skip


def _cases(options: Options, group: str) -> list[str]:
    kind = KINDS[group]
    return [str(options.first + number) for number in range(ceil(options.graphs * kind.share / kind.size))]


def _run(options: Options, group: str, case: str) -> Result:
    """A batch in this process, and, if its plans are compared, once more under another hash seed."""
    result, said = batch(group, int(case))
    if result.wrong or not KINDS[group].compared:
        return result
    with Child(PYTHONHASHSEED="2") as child:
        other, said_there = child.call(batch, group, int(case))
    if said_there != said:
        return replace(result, wrong=other.wrong or "another process made other plans")
    return result


GRAPHS = Part(groups=tuple(KINDS), cases=_cases, run=_run, fresh=True, environment={"PYTHONHASHSEED": "1"})
