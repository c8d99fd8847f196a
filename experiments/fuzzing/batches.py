"""Batches of random cases: what is drawn, what is checked, and one batch run to the end."""

from __future__ import annotations

import hashlib
import io
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from experiments.fuzzing import steps
from lms3d.engine.planners import tflms
from lms3d.engine.request import Settings
from lms3d.engine.step_model.ledger import Block
from lms3d.engine.step_model.study import Study

shares = st.lists(st.floats(-0.1, 1.1), min_size=2, max_size=5, unique=True)
efforts = st.sampled_from([None, 0.375, 3.0])
parameters = st.builds(
    tflms.Parameters,
    swapout_threshold=st.integers(1, 8),
    swapin_ahead=st.integers(1, 12),
    swapin_groupby=st.integers(-1, 6),
    sync_mode=st.integers(0, 3),
    serialization=st.lists(st.one_of(st.integers(-3, 9), st.sampled_from(["3:5", "::2", "4:"]))).map(tuple),
)
Tell = Callable[[str], None]


@dataclass(frozen=True)
class Kind:
    """drawn: what a case consists of, by name. check: takes these and `tell`, which notes text that must not depend on the process;
    it returns False for a case that says nothing. size: cases of a batch. tensorflow: takes a process of its own."""

    drawn: Callable[[], Mapping[str, st.SearchStrategy[Any]]]
    check: Callable[..., object]
    size: int
    tensorflow: bool = False


@dataclass(frozen=True)
class Result:
    """A batch that has run: cases that were checked, those that said nothing, and why one failed. digest: of what was told."""

    kind: str
    seed: int
    cases: int
    silent: int
    seconds: float
    digest: str = ""
    failure: str = ""


def run(name: str, number: int, size: int | None = None) -> Result:
    """Batch `number` of a kind: the same cases each time. size: cases, in place of the kind's own number."""
    kind, started = KINDS[name], time.monotonic()
    count, told = {True: 0, False: 0}, hashlib.sha256()

    def checked(**drawn: Any) -> None:
        said = kind.check(**drawn, tell=lambda text: told.update(text.encode()))
        count[said is not False] += 1

    every = settings(
        max_examples=size or kind.size,
        database=None,
        deadline=None,
        derandomize=False,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )
    failure = ""
    try:
        seed(number)(every(given(st.fixed_dictionaries(dict(kind.drawn())))(lambda drawn: checked(**drawn))))()
    except Exception:  # whatever it is: the batch is over, the others go on
        failure = _text()
    seconds = time.monotonic() - started
    return Result(name, number, count[True], count[False], round(seconds, 1), told.hexdigest()[:16], failure)


def _text() -> str:
    text = io.StringIO()
    traceback.print_exc(file=text, limit=-6)
    return text.getvalue()


def _limits(graph: Any, machine: Any, pool: str, shares: Any, effort: float | None, tell: Tell) -> bool:
    from experiments.fuzzing import step_checks

    found = step_checks.check_limits(graph, machine, pool, shares, effort)
    tell(step_checks.digest(found))
    return any(a.plan is not None and not a.plan.empty for a in found)


def _simulated(graph: Any, machine: Any, parameters: Any, tell: Tell) -> None:
    from experiments.fuzzing import step_checks

    step_checks.check_simulator(graph, machine, parameters)


def _ledger(spans: Any, tell: Tell) -> None:
    from experiments.fuzzing import step_checks

    step_checks.check_ledger([Block(size, min(a, b), max(a, b)) for size, a, b in spans], 12)


def _other_planners(graph: Any, machine: Any, name: str, share: float, tell: Tell) -> bool:
    from experiments.fuzzing import step_checks
    from experiments.fuzzing.plan_checks import check_plan

    peak = Study(Settings(limit_bytes=1).request(graph, machine)).unedited_schedule.peak_bytes
    limits = [max(1, int(peak * s)) for s in (share, 2 * share)]
    request = Settings(limit_bytes=1, planner=name).request(graph, machine, with_floor=False)
    found = step_checks.answers(request, limits)
    assert found[0].plan is None or found[1].plan is not None
    for answer in found:
        if answer.plan is not None:
            check_plan(graph, answer.plan)
    tell(step_checks.digest(found))
    return any(a.plan is not None and not a.plan.empty for a in found)


def _functions(recipe: Any, ways: Any, tell: Tell) -> bool:
    from experiments.fuzzing import function_checks

    used: list[bool] = []
    try:
        function_checks.check(recipe, ways, lambda way, plan: used.append(not plan.empty))
    except function_checks.Refused:
        return False
    return any(used)


def _drawn_functions() -> Mapping[str, st.SearchStrategy[Any]]:
    from experiments.fuzzing import functions, ways

    return {"recipe": functions.recipes(), "ways": st.lists(ways.ways, min_size=2, max_size=3)}


def _drawn_slabs() -> Mapping[str, st.SearchStrategy[Any]]:
    from experiments.fuzzing import functions, ways

    return {"recipe": functions.recipes(10, smooth=True), "ways": st.lists(ways.sliced_ways, min_size=1, max_size=2)}


_STEP = {"graph": steps.steps, "machine": steps.machines}
KINDS = {
    "ledger": Kind(
        lambda: {"spans": st.lists(st.tuples(st.integers(0, 1 << 41), st.integers(0, 11), st.integers(0, 11)))},
        _ledger,
        500,
    ),
    "simulator": Kind(lambda: {**_STEP, "parameters": parameters}, _simulated, 100),
    "other planners": Kind(
        lambda: {
            **_STEP,
            "name": st.sampled_from(
                ["tflms", "swap_everything", "recompute_everything", "recompute_all_but_convolutions"]
            ),
            "share": st.floats(0.5, 1.1),
        },
        _other_planners,
        100,
    ),
    "limits": Kind(lambda: {**_STEP, "pool": steps.pools, "shares": shares, "effort": efforts}, _limits, 50),
    "functions": Kind(_drawn_functions, _functions, 40, tensorflow=True),
    "slabs": Kind(_drawn_slabs, _functions, 20, tensorflow=True),
}
