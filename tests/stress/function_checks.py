"""A recipe, planned in several ways, against the recipe as it is: not a bit of three steps may differ, state included."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf
from hypothesis import strategies as st

from lms3d.engine.cost import Machine
from lms3d.engine.ir import StepGraph
from lms3d.engine.passes import assignments, identities, joins, manager, shapes, slicing, updates
from lms3d.engine.passes.base import was_rewritten
from lms3d.engine.passes.guard import Guard
from lms3d.engine.passes.rewrite import Rewrite
from lms3d.engine.plan import Plan
from lms3d.engine.planners import tflms
from lms3d.engine.planning import make_plan
from lms3d.engine.request import Settings
from lms3d.engine.step_model.pool import POOLS
from lms3d.engine.step_model.study import Study
from lms3d.engine.tensorflow import functions
from lms3d.engine.tensorflow.capture import capture
from lms3d.engine.tiers.base import Tier
from lms3d.engine.tiers.disk import DiskTier
from lms3d.engine.tiers.host import HostTier
from lms3d.errors import DoesNotFit
from tests.stress.functions import SEED, SHAPE, Recipe, Weights, function_of
from tests.stress.plan_checks import check_plan
from tests.stress.steps import parameters

STEPS = 3
EXACT = 1e-10
Function: TypeAlias = tf.types.experimental.ConcreteFunction


@dataclass(frozen=True)
class Way:
    """How to plan a function. share: the limit, as a share of the peak without a plan. parameters: of TFLMS.

    slabs: level -> number. guarded: with the guards of a full pool. twice: the rewritten function is rewritten once more.
    """

    planner: str
    tier: str = "host"
    share: float = 1.0
    parameters: tflms.Parameters | None = None
    pool: str = "none"
    link: float = 1e9
    effort_seconds: float | None = None
    slabs: tuple[tuple[int, int], ...] = ()
    guarded: bool = False
    twice: bool = False


@dataclass(frozen=True)
class Ran:
    """The results of all steps, and all variables after them."""

    results: list[np.ndarray]

    def differs(self, other: Ran) -> bool:
        pairs = zip(self.results, other.results, strict=True)
        return any(a.tobytes() != b.tobytes() or a.shape != b.shape for a, b in pairs)


class Refused(Exception):
    """TensorFlow itself cannot run the recipe."""


class Bench:
    """One recipe with its variables. `plain` is what the unedited function gives."""

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        wide = "float64" if recipe.dtype == "float64" else "float32"
        self.weights = Weights(wide)
        self.spec = tf.TensorSpec(SHAPE, recipe.dtype)
        self.batches = [tf.cast(tf.random.stateless_normal(SHAPE, (SEED, i)), recipe.dtype) for i in range(2)]
        try:
            self.plain = self._unedited()
        except (tf.errors.OpError, ValueError, TypeError, LookupError) as error:
            raise Refused(str(error)) from error

    def _unedited(self) -> Ran:
        return self.run(functions.make_function(self.traced(edited=False)))

    def traced(self, *, edited: bool = True) -> Function:
        """The function, traced anew. edited: as the engine does before it plans."""
        tf.random.set_seed(SEED)
        function = functions.trace(function_of(self.recipe, self.weights), self.spec)
        joins.keep_apart(function.graph)
        if edited:
            shapes.fix_shapes(function.graph)
            identities.pass_identities(function.graph)
            assignments.write_in_place(function.graph, larger_than=0)
            updates.hold_back(function.graph)
        return function

    def run(self, function: Function) -> Ran:
        """Runs the steps from the first values of all variables."""
        self.weights.reset()
        results: list[Any] = []
        for step in range(STEPS):
            results += function(self.batches[step % len(self.batches)])
        return Ran([np.asarray(r) for r in results] + [np.asarray(v) for v in self.weights.values()])

    def check(self, way: Way) -> Plan:
        """The plan that the function runs under. AssertionError if a result differs."""
        with tempfile.TemporaryDirectory() as folder:
            tier = HostTier() if way.tier == "host" else DiskTier(folder)
            try:
                return self._check(way, tier)
            finally:
                tier.close()

    def _check(self, way: Way, tier: Tier) -> Plan:
        function = self.traced()
        expected = self._sliced(function, way) if way.slabs else self.plain
        graph = capture(function)
        plan = planned(graph, way)
        check_plan(graph, plan)
        made = moved(function, graph, plan, tier)
        assert was_rewritten(made.graph) == bool(plan.swap_outs or plan.recomputes)
        if way.guarded:
            manager.run(made, [Guard(planned=not plan.empty)])
            made = functions.make_function(made)
        self.expect(expected, made)
        if way.twice and not plan.empty:
            self._twice(expected, made, tier)
        return plan

    def expect(self, expected: Ran, made: Function) -> None:
        """AssertionError if `made` gives other bits, unless the unedited function does not even repeat itself."""
        if self.run(made).differs(expected):
            assert self._unedited().differs(self.plain), "other bits"

    def _sliced(self, function: Function, way: Way) -> Ran:
        """Slices the function. Its results are equal up to rounding; under a plan they must be equal to these to the last bit."""
        twin = self.traced()
        for one in (function, twin):
            slicing.slice_function(one, dict(way.slabs))
        sliced = self.run(functions.make_function(twin))
        for a, b in zip(self.plain.results, sliced.results, strict=True):
            largest = max(1.0, float(np.abs(a.astype(np.float64)).max(initial=0.0)))
            np.testing.assert_allclose(b, a, rtol=0, atol=EXACT * largest)
        return sliced

    def _twice(self, expected: Ran, made: Function, tier: Tier) -> None:
        """Rewrites a rewritten function: that is refused with one line, or right."""
        graph = capture(made)
        plan = tflms.build(graph, tflms.Parameters(swapout_threshold=1, swapin_ahead=2, swapin_groupby=0, sync_mode=0))
        try:
            again = moved(made, graph, plan, tier)
        except (RuntimeError, ValueError):
            return
        self.expect(expected, functions.make_function(again))  # drawing from the first number on


def moved(function: Function, graph: StepGraph, plan: Plan, tier: Tier) -> Function:
    """The function with the plan's nodes."""
    manager.run(function, [Rewrite(graph, plan, tier)])
    return functions.make_function(function)


def planned(graph: StepGraph, way: Way) -> Plan:
    """The plan that a way gives; if nothing fits in its limit, the plan for the smallest one."""
    machine = Machine(
        swap_out_bytes_per_second=way.link, swap_in_bytes_per_second=way.link, mapped=way.tier == "mapped"
    )
    settings = Settings(limit_bytes=1, planner=way.planner, parameters=way.parameters, pool=POOLS[way.pool])
    peak = Study(settings.request(graph, machine)).unedited_schedule.peak_bytes

    def under(limit_bytes: int) -> Plan:
        request = settings.request(graph, machine, with_floor=False, effort_seconds=way.effort_seconds)
        plan, report = make_plan(request.under(limit_bytes=limit_bytes))
        if way.planner == "hybrid" and report.rewritten:
            assert report.predicted_peak_bytes <= limit_bytes
        return plan

    try:
        return under(max(1, int(peak * way.share)))
    except DoesNotFit as error:
        return Plan() if error.smallest_limit_bytes is None else under(error.smallest_limit_bytes)


def check(recipe: Recipe, ways: Sequence[Way]) -> list[Plan]:
    """The plans of all ways of one recipe. Refused if TensorFlow cannot run it."""
    bench = Bench(recipe)
    return [bench.check(way) for way in ways]


_tiers, _shares = st.sampled_from(["host", "disk", "mapped"]), st.floats(0.5, 1.1)
_limited = {"tier": _tiers, "share": _shares, "link": st.sampled_from([1e6, 1e8, 1e10])}
_searched = _limited | {"effort_seconds": st.just(0.375)}
_hybrid = st.builds(
    Way,
    st.just("hybrid"),
    pool=st.sampled_from(["none", "none", "none", "single", "split"]),
    guarded=st.booleans(),
    twice=st.booleans(),
    **_searched,
)
_uniform = st.sampled_from(["swap_everything", "recompute_everything", "recompute_all_but_convolutions"])
ways = st.one_of(
    st.builds(Way, st.just("tflms"), _tiers, parameters=parameters, twice=st.booleans()),
    st.builds(Way, st.just("tflms"), **_limited),
    st.builds(Way, _uniform, _tiers, twice=st.booleans()),
    _hybrid,
    _hybrid,
)
"""Every planner, with any parameters, limit, tier and effort."""
sliced_ways = st.builds(
    Way,
    st.sampled_from(["hybrid", "swap_everything", "off"]),
    slabs=st.sampled_from([((0, 2),), ((0, 4), (1, 2)), ((0, 3), (1, 2), (2, 2))]),
    **_searched,
)
