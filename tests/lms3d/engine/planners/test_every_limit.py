"""Every limit between the floor and what a step needs without LMS has a plan that keeps it."""

from __future__ import annotations

from functools import cache

import keras
import pytest
import tensorflow as tf

from lms3d import models
from lms3d.engine.cost import Machine
from lms3d.engine.effort import Account
from lms3d.engine.ir import StepGraph
from lms3d.engine.passes import joins
from lms3d.engine.planners.hybrid import ladder, local_search
from lms3d.engine.planning import make_plan
from lms3d.engine.request import Settings
from lms3d.engine.step_model.order import branch_ends_first
from lms3d.engine.step_model.pool import CPU_POOL, NO_POOL
from lms3d.engine.step_model.problem import reduce
from lms3d.engine.step_model.schedule import build
from lms3d.engine.tensorflow.capture import capture
from lms3d.keras_step.attachment import trace_step
from tests.thorough import THOROUGH, also

LIMITS = 12 if THOROUGH else 4  # they take a third of a minute each, and between two of them little is new
MACHINE = Machine()
# A plan for more memory may be this much slower: a search that ends before it has seen all plans is not monotone.
TOLERANCE = 1.05


def _model(name: str) -> keras.Model:
    if name == "MobileNetV3Small":
        inner = keras.applications.MobileNetV3Small(
            input_shape=(32, 32, 3), weights=None, include_top=False, pooling="avg"
        )
        return keras.Sequential([inner, keras.layers.Dense(5)])
    return models.build(name, input_shape=(32, 32, 32, 4), filters=(16, 32, 64) if name == "isensee2017" else (16, 32))


@cache
def training_step(name: str, batch_size: int) -> StepGraph:
    """The traced training step, captured; no step runs."""
    model = _model(name)
    model.compile(optimizer="sgd", loss="mse", jit_compile=False)
    shapes = [(batch_size, *shape[1:]) for shape in (model.input_shape, model.output_shape)]
    function = trace_step(model, "train", tuple(tf.TensorSpec(s) for s in shapes))
    joins.keep_apart(function.graph)
    return capture(function)


@pytest.mark.parametrize(
    ("name", "batch_size", "pool"),
    [
        ("unet3d", 1, NO_POOL),
        *((name, size, CPU_POOL) for name, size in (("unet3d", 1), ("isensee2017", 1), ("MobileNetV3Small", 8))),
        *also(("isensee2017", 1, NO_POOL), ("MobileNetV3Small", 8, NO_POOL)),  # the pool is what makes limits hard
    ],
)
def test_every_limit_has_a_plan_that_keeps_it(name, batch_size, pool):
    graph = training_step(name, batch_size)
    _, known = make_plan(Settings(limit_bytes=1 << 40, pool=pool).request(graph, MACHINE))
    low, high = known.floor_bytes, known.unedited_limit_bytes
    assert low < high
    step = (high - low) // LIMITS
    fastest = float("inf")
    for limit in range(low, low + LIMITS * step, step):
        plan, report = make_plan(Settings(limit_bytes=limit, pool=pool).request(graph, MACHINE, with_floor=False))
        assert not plan.empty
        assert report.predicted_peak_bytes <= limit
        assert report.predicted_step_seconds <= TOLERANCE * fastest
        fastest = min(fastest, report.predicted_step_seconds)


def test_a_short_search_over_a_slow_link_costs_no_more_than_the_covering_program():
    link = Machine(swap_out_bytes_per_second=6e8, swap_in_bytes_per_second=6e8)
    problem = reduce(branch_ends_first(training_step("isensee2017", 1)), link)
    limit = int(build(problem, {}, link).peak_bytes * 0.5)
    covered = ladder.Ladder(problem, link, Account()).make_rung(NO_POOL.usable_bytes(limit)).plan
    found = local_search.solve(problem, limit, link, seconds=3.0)
    assert covered.schedule.peak_bytes <= NO_POOL.usable_bytes(limit)
    assert found.fits
    assert found.schedule.cost_seconds <= covered.schedule.cost_seconds
