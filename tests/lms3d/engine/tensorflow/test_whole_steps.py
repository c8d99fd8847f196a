"""Seconds of whole steps beside the sum of their ops: toy steps, and measurements that are planted."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest

from lms3d.common import disk
from lms3d.engine import engine, tuning
from lms3d.engine.cost import Machine, OpCost, scale_of, step_seconds
from lms3d.engine.ir import StepGraph
from lms3d.engine.planning import make_plan
from lms3d.engine.request import OnDevice, Settings
from lms3d.engine.tensorflow import functions, op_costs, whole_steps
from tests.lms3d.engine.toy_graphs import training
from tests.lms3d.engine.traced import IMAGE, convolution_step

DEVICE = "CPU:0"


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("LMS3D_CACHE", str(tmp_path))


@pytest.fixture
def graph() -> StepGraph:
    made = training(8, mib=4)
    return made.with_ops(tuple(replace(op, signature=op.type) for op in made.ops))


@pytest.fixture
def machine(graph) -> Machine:
    """That takes 10 ms for each op that is measured."""
    return Machine(op_table={op.signature: OpCost(0.01, 1.0) for op in graph.ops[::2]})


def scaled(graph: StepGraph, machine: Machine) -> float:
    return whole_steps.with_scale(graph, machine, DEVICE).ops_scale


def test_all_ops_count_as_so_much_slower(graph, machine):
    """The measured ops and the others."""
    slower = replace(machine, ops_scale=1.31)
    assert step_seconds(graph, slower) == pytest.approx(1.31 * step_seconds(graph, machine))
    request = Settings(limit_bytes=1 << 40).request(graph, slower, with_floor=False)
    assert make_plan(request)[1].unedited_step_seconds == pytest.approx(1.31 * step_seconds(graph, machine))


@pytest.mark.parametrize(
    ("measured", "expected", "before", "scale"),
    [
        (1.31, 1.0, 1.0, 1.31), (1.0, 1.31, 1.0, 0.763), (1.09, 1.0, 1.0, 1.0), (1.0, 1.09, 1.0, 1.0),
        (1.3, 1.0, 1.31, 1.7), (1.09, 1.0, 1.31, 1.31), (0.0, 1.0, 1.2, 1.2), (1.0, 0.0, 1.2, 1.2),
        (1.23456, 1.0, 1.0, 1.23),
    ],
)  # fmt: skip
def test_a_scale_of_three_digits_from_ten_percent_on(measured, expected, before, scale):
    assert scale_of(measured, expected, before) == scale


def test_nothing_is_known_at_first(graph, machine):
    assert scaled(graph, machine) == 1.0
    assert whole_steps.load(whole_steps.name(graph, DEVICE)) == whole_steps.Known()


def test_a_step_without_a_plan_is_what_its_ops_must_sum_to(graph, machine):
    name, alone = whole_steps.name(graph, DEVICE), step_seconds(graph, machine)
    whole_steps.keep_unplanned(name, 1.5 * alone, DEVICE)
    assert whole_steps.load(name).unplanned_seconds == 1.5 * alone
    assert scaled(graph, machine) == 1.5
    assert scaled(graph, replace(machine, ops_scale=7.0)) == 1.5  # whatever it was
    whole_steps.keep_unplanned(name, 1.6 * alone, DEVICE)  # 7 % more: the same plan, from the cache
    assert scaled(graph, machine) == 1.5
    whole_steps.keep_unplanned(name, 1.05 * alone, DEVICE)
    assert scaled(graph, machine) == 1.0


def test_what_a_step_under_a_plan_told_comes_first_until_the_step_changes(graph, machine):
    name, alone = whole_steps.name(graph, DEVICE), step_seconds(graph, machine)
    whole_steps.keep_unplanned(name, 1.5 * alone, DEVICE)
    whole_steps.keep_scale(name, 1.8)
    assert scaled(graph, machine) == 1.8
    whole_steps.keep_unplanned(name, 1.52 * alone, DEVICE)  # as before: runs with and without LMS may take turns
    assert scaled(graph, machine) == 1.8
    whole_steps.keep_unplanned(name, 3 * alone, DEVICE)
    assert scaled(graph, machine) == 3.0


def test_a_sliced_step_of_which_nothing_is_known_has_the_scale_of_the_whole(graph, machine, monkeypatch):
    assert whole_steps.with_scale(graph, machine, DEVICE, 1.4).ops_scale == 1.4
    whole_steps.keep_scale(whole_steps.name(graph, DEVICE), 1.8)
    assert whole_steps.with_scale(graph, machine, DEVICE, 1.4).ops_scale == 1.8

    def with_scale(graph, machine, device, otherwise):
        return replace(machine, ops_scale=2 * otherwise)

    monkeypatch.setattr(whole_steps, "with_scale", with_scale)
    scales: list[float] = []

    def choose(forms, **_):
        asked = [forms.as_traced() for _ in "abc"]
        scales.extend(form.request.machine.ops_scale for form in asked)
        return SimpleNamespace(form=asked[-1])

    monkeypatch.setattr(engine.choosing, "choose_form", choose)
    tight = engine.Engine(Settings(limit_bytes=1 << 20), compute_device=DEVICE)
    function = functions.trace(convolution_step, IMAGE)
    tight.choose(function, "train", OnDevice())
    assert scales == [2.0, 4.0, 8.0]


def test_a_slow_day_is_the_business_of_the_pace(graph, machine, monkeypatch):
    """The whole step and its ops are twice as slow: the scale is that of other days."""
    machine = replace(machine, op_table={op.signature: OpCost(0.01, 1.0) for op in graph.ops})
    slow = replace(machine, op_table={op.signature: OpCost(0.02, 1.0) for op in graph.ops})
    name, alone = whole_steps.name(graph, DEVICE), step_seconds(graph, machine)
    monkeypatch.setattr(op_costs, "pace_of", lambda device: 2.0)
    whole_steps.keep_unplanned(name, 2 * 1.5 * alone, DEVICE)
    assert scaled(graph, slow) == 1.5
    monkeypatch.setattr(op_costs, "pace_of", lambda device: 1.0)
    assert scaled(graph, machine) == 1.5


def test_another_step_is_known_by_itself(graph, machine):
    whole_steps.keep_scale(whole_steps.name(graph, DEVICE), 1.4)
    larger = training(9, mib=4)
    larger = larger.with_ops(tuple(replace(op, signature=op.type) for op in larger.ops))
    assert scaled(larger, machine) == 1.0
    assert whole_steps.with_scale(graph, machine, "GPU:0").ops_scale == 1.0
    measured = graph.with_ops(tuple(replace(op, workspace_bytes=7) for op in graph.ops))
    assert scaled(measured, machine) == 1.4  # the same step


def test_the_newest_steps_are_kept(monkeypatch):
    monkeypatch.setattr(tuning, "MOST_WHOLE_STEPS", 3)
    for name in "abcda":
        whole_steps.keep_scale(name, 1.4)
    assert list(json.loads((disk.cache_directory() / "steps.json").read_text())) == ["c", "d", "a"]


@pytest.mark.parametrize("entry", ["1", "[1]", "[-1, 0]", '["a", true]', "[1e999, NaN]", "{}", "null", "[[1], [2]]"])
def test_what_no_step_has_counts_as_unknown(graph, machine, entry):
    name, store = whole_steps.name(graph, DEVICE), disk.cache_directory() / "steps.json"
    store.write_text(f"{{{json.dumps(name)}: {entry}}}")
    assert whole_steps.load(name) == whole_steps.Known()
    assert scaled(graph, machine) == 1.0
    whole_steps.keep_scale(name, 1.4)
    assert scaled(graph, machine) == 1.4


def test_a_store_that_cannot_be_written_does_no_harm(graph, machine, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("LMS3D_CACHE", str(tmp_path / "file" / "folder"))
    whole_steps.keep_scale(whole_steps.name(graph, DEVICE), 1.4)
    assert scaled(graph, machine) == 1.0
