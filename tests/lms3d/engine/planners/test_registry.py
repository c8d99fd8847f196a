"""A planner is a class in a file and a line: how to add one, and that everything else then knows it."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import lms3d
from lms3d.engine import plan_cache
from lms3d.engine.cost import Machine
from lms3d.engine.plan import Plan, SwapIn, SwapOut
from lms3d.engine.planners import PLANNERS, Outcome, Planner
from lms3d.engine.planning import floor_bytes, make_plan
from lms3d.engine.request import Settings
from lms3d.errors import DoesNotFit, InputError
from tests.lms3d.engine.toy_graphs import MIB, training

GRAPH, MACHINE = training(6, mib=4, resident_mib=3), Machine(flops_per_second=1e10)
UNIFORM = ("swap_everything", "recompute_everything", "recompute_all_but_convolutions")


class Toy(Planner):
    """Swaps the largest tensor that is read again."""

    def plan(self, study):
        problem = study.traced
        buffer = max((b for b in problem.buffers if b.swappable), key=lambda b: b.bytes)
        last = problem.anchors[buffer.reads[-1]]
        trigger = problem.anchors[buffer.reads[-1] - 1]
        back = SwapIn(tensor=buffer.root, copy=0, consumers=(last,), triggers=(trigger,))
        out = SwapOut(tensor=buffer.root, bytes=buffer.bytes)
        return Outcome(plan=Plan(swap_outs=(out,), swap_ins=(back,), planner="toy"))


@pytest.fixture
def toy():
    PLANNERS.register("toy")(Toy)
    yield
    PLANNERS.remove("toy")


def model() -> keras.Model:
    keras.utils.set_random_seed(3)
    inputs = y = keras.Input((32, 32, 8))
    for _ in range(4):
        y = keras.layers.Conv2D(16, 3, padding="same", activation="tanh")(y)
    made = keras.Model(inputs, keras.layers.Conv2D(2, 1)(y))
    made.compile("adam", "mse", jit_compile=False)
    return made


def test_a_planner_of_ones_own_trains(toy, tmp_path):
    x, y = (np.random.default_rng(c).normal(size=(4, 32, 32, c)).astype(np.float32) for c in (8, 2))
    losses = []
    for lms in (lms3d.LMS(enabled=False), lms3d.LMS(planner="toy", swap_dir=tmp_path)):
        history = model().fit(x, y, batch_size=2, epochs=2, shuffle=False, verbose=0, callbacks=[lms])
        losses.append(history.history["loss"])
        report, plan = lms.report, lms.plan
        lms.close()
    assert losses[0] == losses[1]
    assert len(plan.swap_outs) == len(plan.swap_ins) == 1
    assert (report.planner, report.rewritten) == ("toy", True)
    assert report.swapped_out_bytes == 2 * 32 * 32 * 16 * 4
    assert report.steps_measured == 4
    planned = lms3d.plan_step(model(), (tf.TensorSpec((2, 32, 32, 8)), tf.TensorSpec((2, 32, 32, 2))), planner="toy")
    assert planned.report.planner == "toy"
    assert planned.plan.swapped_out_bytes == plan.swapped_out_bytes


def test_it_takes_part_in_the_cache_with_its_own_source(toy, monkeypatch):
    request = Settings(limit_bytes=1 << 40, planner="toy").request(GRAPH, MACHINE)
    assert plan_cache.key(request) != plan_cache.key(request.under(planner="hybrid"))
    assert [plan_cache.cached_plan(request)[1].from_cache for _ in range(2)] == [False, True]
    before = plan_cache.key(request)
    source = plan_cache._planner_source
    monkeypatch.setattr(plan_cache, "_planner_source", lambda planner: source(planner) + b"# edited\n")
    assert plan_cache.key(request) != before
    assert b"class Toy(Planner)" in source(Toy)


@pytest.mark.parametrize("own", [True, False])
def test_the_floor_is_the_planners_own_if_it_has_one_else_the_default_planners(toy, monkeypatch, own):
    request = Settings(limit_bytes=1 << 40, planner="toy").request(GRAPH, MACHINE)
    default = floor_bytes(request.under(planner="hybrid"))
    if own:
        monkeypatch.setattr(Toy, "floor", lambda self, study: default - MIB)
    assert floor_bytes(request) == make_plan(request)[1].floor_bytes == default - MIB * own


def test_a_planner_without_a_file_is_not_cached(toy):
    PLANNERS.remove("toy")
    typed_in: dict = {"Toy": Toy, "__name__": "nowhere"}
    exec("class TypedIn(Toy):\n    pass\n", typed_in)
    PLANNERS.register("toy")(typed_in["TypedIn"])
    request = Settings(limit_bytes=1 << 40, planner="toy").request(GRAPH, MACHINE)
    assert plan_cache.key(request) is None
    assert not any(plan_cache.cached_plan(request)[1].from_cache for _ in range(2))


def test_an_unknown_planner_is_refused_with_the_names_that_there_are():
    with pytest.raises(InputError, match="planner 'magic': expected one of auto, hybrid, tflms, off, swap_everything"):
        lms3d.LMS(planner="magic")


@pytest.mark.parametrize("name", UNIFORM)
def test_one_decision_for_all_has_one_plan_and_names_the_limit_that_it_needs(name):
    request = Settings(limit_bytes=MIB, planner=name).request(GRAPH, MACHINE, with_floor=False)
    with pytest.raises(DoesNotFit, match=f"with the planner {name}, which needs") as caught:
        make_plan(request)
    needed = caught.value.smallest_limit_bytes
    plan, prediction = make_plan(request.under(limit_bytes=needed))
    assert plan == make_plan(request.under(limit_bytes=1 << 40))[0]
    assert plan.planner == prediction.planner == name
    assert prediction.predicted_peak_bytes <= needed
    assert {bool(plan.swap_outs), bool(plan.recomputes)} == {True, False}
    assert bool(plan.swap_outs) == (name == "swap_everything")


def test_all_but_convolutions():
    request = Settings(limit_bytes=1 << 40, planner="recompute_all_but_convolutions").request(GRAPH, MACHINE)
    cheap, _ = make_plan(request)
    everything, _ = make_plan(request.under(planner="recompute_everything"))
    types = {GRAPH.by_name[again.op].type for again in everything.recomputes}
    assert {GRAPH.by_name[again.op].type for again in cheap.recomputes} == {t for t in types if "Conv" not in t}
