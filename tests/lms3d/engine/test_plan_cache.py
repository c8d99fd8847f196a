"""The same question gets the same answer without planning again; another question does not."""

from __future__ import annotations

import contextlib
import os
from dataclasses import replace
from types import SimpleNamespace

import pytest

from lms3d.engine import plan_cache, planning, tuning
from lms3d.engine.cost import Machine
from lms3d.engine.plan import Plan
from lms3d.engine.planners import tflms
from lms3d.engine.request import Settings, StepRequest
from lms3d.engine.step_model.pool import GPU_POOL
from lms3d.errors import DoesNotFit
from lms3d.keras_step import report as reports
from tests.lms3d.engine.toy_graphs import MIB, training

MACHINE = Machine(flops_per_second=1e10)
GRAPH = training(8, mib=4, resident_mib=3)
SETTINGS = Settings(limit_bytes=60 * MIB)
REQUEST = SETTINGS.request(GRAPH, MACHINE)


@pytest.fixture(autouse=True)
def planned(monkeypatch) -> list[StepRequest]:
    """The requests that were really planned, in order."""
    asked, make_plan = [], planning.make_plan
    monkeypatch.setattr(planning, "make_plan", lambda request: asked.append(request) or make_plan(request))
    return asked


def stored() -> list:
    return list(plan_cache.directory().glob("*"))


@pytest.mark.parametrize("settings", [
    SETTINGS, replace(SETTINGS, planner="tflms"), replace(SETTINGS, planner="off"), replace(SETTINGS, limit_bytes=1 << 40),
])  # fmt: skip
def test_what_comes_back_is_what_was_planned(settings, planned):
    plan, report = plan_cache.cached_plan(settings.request(GRAPH, MACHINE))
    again, report_again = plan_cache.cached_plan(settings.request(GRAPH, MACHINE))
    assert len(planned) == 1
    assert (plan, report) == (again, replace(report_again, from_cache=False))
    assert (report.from_cache, report_again.from_cache) == (False, True)
    assert repr(again) == repr(plan)
    assert "from the cache" in reports.describe(report_again).to_markdown()
    assert "from the cache" not in reports.describe(report).to_markdown()


def changed_op(**changes):
    first = next(op for op in GRAPH.ops if op.type == "Conv3D")
    return replace(GRAPH, ops=tuple(replace(op, **changes) if op is first else op for op in GRAPH.ops))


@pytest.mark.parametrize("question", [
    {"graph": changed_op(flops=7)},
    {"graph": changed_op(workspace_bytes=7)},
    {"graph": changed_op(stateful=True)},
    {"graph": replace(GRAPH, resident_bytes=4 * MIB)},
    {"graph": replace(GRAPH, returned=frozenset())},
    {"settings": replace(SETTINGS, limit_bytes=SETTINGS.limit_bytes + 1)},
    {"settings": replace(SETTINGS, pool=GPU_POOL)},
    {"settings": replace(SETTINGS, planner="tflms")},
    {"settings": replace(SETTINGS, parameters=tflms.Parameters(n_tensors=3))},
    {"machine": replace(MACHINE, swap_in_bytes_per_second=3e9)},
    {"step": "test"},
    {"effort_seconds": 3.0},
    {"with_floor": False},
])  # fmt: skip
def test_another_question_is_another_key(question):
    assert plan_cache.key(REQUEST) != plan_cache.key(replace(REQUEST, **question))


def test_only_the_measured_ops_of_the_step_count():
    graph = changed_op(signature="conv")

    def key(table):
        return plan_cache.key(SETTINGS.request(graph, replace(MACHINE, op_table=table)))

    assert key({"conv": 1.0}) != key({"conv": 2.0})
    assert key({"conv": 1.0}) == key({"other": 5.0, "conv": 1.0})


def test_another_engine_is_another_key(tmp_path, monkeypatch):
    """Subfolders count, too."""

    def key():
        plan_cache._engine.cache_clear()
        return plan_cache.key(REQUEST)

    before = key()
    assert key() == before
    monkeypatch.setattr(plan_cache, "__file__", str(tmp_path / "store.py"))
    (tmp_path / "planners").mkdir()
    (tmp_path / "planners" / "planner.py").write_text("RESERVE = 0.05\n")
    changed = key()
    assert changed != before
    (tmp_path / "planners" / "planner.py").write_text("RESERVE = 0.06\n")
    assert key() not in (before, changed)
    monkeypatch.undo()
    plan_cache._engine.cache_clear()


def test_that_nothing_fits_is_kept_too(planned):
    settings = replace(SETTINGS, limit_bytes=MIB)
    errors = []
    for _ in range(2):
        with pytest.raises(DoesNotFit) as caught:
            plan_cache.cached_plan(settings.request(GRAPH, MACHINE))
        errors.append(caught.value)
    assert len(planned) == 1
    assert str(errors[0]) == str(errors[1])
    assert errors[0].smallest_limit_bytes == errors[1].smallest_limit_bytes > MIB


@pytest.mark.parametrize("damage", ["", "{", "[]", "{}", '{"plan": {}, "prediction": 3}', "\x00"])
def test_a_damaged_file_counts_as_none(damage, planned):
    plan, _ = plan_cache.cached_plan(REQUEST)
    (file,) = stored()
    file.write_text(damage)
    assert plan_cache.cached_plan(REQUEST)[0] == plan
    assert plan_cache.cached_plan(REQUEST)[1].from_cache  # and was replaced
    assert len(planned) == 2


@pytest.mark.parametrize("limit_bytes", [12 * MIB, 1])
def test_no_flipped_bit_makes_another_plan(limit_bytes):
    """Without the digest 28 of 16,504 made another plan that can be applied, and 2,778 other figures beside the same one."""
    request = Settings(limit_bytes=limit_bytes).request(training(2, mib=1), MACHINE)
    with contextlib.suppress(DoesNotFit):
        plan_cache.cached_plan(request)
    (file,) = stored()
    sound = bytearray(file.read_bytes())
    content = SimpleNamespace(stem=file.stem, read_text=lambda: sound.decode())  # a file would be written 16,504 times
    for at in range(8 * len(sound)):
        sound[at // 8] ^= 1 << at % 8
        assert plan_cache._load(content, request.graph) is None, f"bit {at % 8} of byte {at // 8}"
        sound[at // 8] ^= 1 << at % 8
    assert plan_cache._load(file, request.graph) is not None


def test_a_plan_under_the_name_of_another_is_not_believed(planned):
    """The other plan is one of the same step under another limit, and may not keep this one."""
    wide = replace(SETTINGS, limit_bytes=1 << 40).request(GRAPH, MACHINE)
    plan_cache.cached_plan(wide)
    (file,) = stored()
    file.rename(file.with_stem(plan_cache.key(REQUEST)))
    assert not plan_cache.cached_plan(REQUEST)[0].empty
    assert len(planned) == 2


def test_a_plan_for_another_step_is_not_believed(planned):
    plan, _ = plan_cache.cached_plan(REQUEST)
    (file,) = stored()
    other = training(12, mib=4)
    plan_cache.cached_plan(SETTINGS.request(other, MACHINE))
    (longer,) = set(stored()) - {file}
    file.write_text(longer.read_text())
    assert plan_cache.cached_plan(REQUEST)[0] == plan
    assert len(planned) == 3


def test_what_json_does_not_keep_is_not_stored(monkeypatch):
    plan = Plan(parameters={"levels": (1, 2), 3: 4})
    report = planning.make_plan(REQUEST)[1]
    monkeypatch.setattr(planning, "make_plan", lambda request: (plan, report))
    assert plan_cache.cached_plan(REQUEST) == (plan, report)
    assert not stored()


def test_the_plans_that_were_not_used_for_longest_go_first(monkeypatch):
    monkeypatch.setattr(tuning, "MOST_PLANS", 2)
    for number, mib in enumerate((50, 60)):
        plan_cache.cached_plan(replace(SETTINGS, limit_bytes=mib * MIB).request(GRAPH, MACHINE))
        for file in stored():
            os.utime(file, (1000 + number, 1000 + number))
    assert plan_cache.cached_plan(replace(SETTINGS, limit_bytes=50 * MIB).request(GRAPH, MACHINE))[
        1
    ].from_cache  # used just now
    plan_cache.cached_plan(replace(SETTINGS, limit_bytes=70 * MIB).request(GRAPH, MACHINE))
    assert len(stored()) == 2
    assert plan_cache.cached_plan(replace(SETTINGS, limit_bytes=50 * MIB).request(GRAPH, MACHINE))[1].from_cache
    assert not plan_cache.cached_plan(replace(SETTINGS, limit_bytes=60 * MIB).request(GRAPH, MACHINE))[1].from_cache


def test_a_cache_that_cannot_be_written_costs_only_time(tmp_path, monkeypatch, planned):
    (tmp_path / "file").touch()
    monkeypatch.setenv("LMS3D_CACHE", str(tmp_path / "file"))
    for _ in range(2):
        assert not plan_cache.cached_plan(REQUEST)[1].from_cache
    assert len(planned) == 2


def test_the_users_cache_is_left_alone(tmp_path_factory):
    assert tmp_path_factory.getbasetemp() in plan_cache.directory().parents
