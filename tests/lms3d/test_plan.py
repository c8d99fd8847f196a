"""`python -m lms3d.plan` on a toy step: what it prints and writes, how it refuses."""

from __future__ import annotations

import csv
import json
import re
from dataclasses import replace

import pytest

from lms3d import plan
from lms3d.engine import plan_cache, sweep
from lms3d.engine.cost import Machine
from lms3d.engine.planners import tflms
from lms3d.engine.request import Settings
from lms3d.errors import DoesNotFit
from lms3d.keras_step.estimate import Planned
from lms3d.plan_display import summary
from lms3d.units import format_size
from tests.lms3d.engine.toy_graphs import MIB, training

GRAPH, MACHINE = training(5, mib=4, resident_mib=3), Machine(flops_per_second=1e10)
SLOWER = replace(MACHINE, swap_in_bytes_per_second=1e6)
"""Stands for one to which swapped tensors are copied back."""


@pytest.fixture
def toy(monkeypatch):
    """The command plans for a toy step, and the memory limit that it is given."""

    def planned(options, hard_limit, asked):
        machines = {True: MACHINE, False: SLOWER}
        machine = machines[asked["mapped"]]
        names = ("swapout_threshold", "swapin_ahead", "swapin_groupby", "sync_mode")
        given = tflms.Parameters(**{name: getattr(options, name) for name in names})
        planner = "tflms" if given.fixed else "hybrid"
        settings = Settings(limit_bytes=options.memory_limit or 1 << 40, planner=planner, parameters=given)
        request = settings.request(GRAPH, machine)
        try:
            made, prediction = plan_cache.make_plan(request)
        except DoesNotFit as error:
            made, prediction = plan_cache.make_plan(request.under(limit_bytes=error.smallest_limit_bytes))
        return Planned(request=request, plan=made, prediction=prediction)

    monkeypatch.setattr(plan, "_planned", planned)


def run(capsys, *arguments: str) -> tuple[int, str, str]:
    code = plan.main(arguments)
    return code, *capsys.readouterr()


def test_decisions_and_figures(toy, capsys, tmp_path):
    code, out, err = run(capsys, "--memory-limit", "36MiB", "--output", str(tmp_path))
    assert (code, err) == (0, "")
    for part in ("What happens to the large tensors", "stays in memory until its last use", "In memory at the peak",
                 "memory limit", "36.0 MiB", "waiting for swaps", "lower bound", "times that"):  # fmt: skip
        assert part in out
    assert {p.name for p in tmp_path.iterdir()} == {
        "lms_plan.json", "lms_report.md", "memory_timeline.png", "timeline.png"
    }  # fmt: skip
    assert "from the cache" not in out
    assert "from the cache" in run(capsys, "--memory-limit", "36MiB")[1]


def test_sweep(toy, capsys, tmp_path):
    code, out, _ = run(capsys, "--memory-limit", "1GiB", "--sweep", "3", "--output", str(tmp_path))
    assert code == 0
    for part in ("Step time under a memory limit", "TFLMS auto-tune", "swap everything", "recompute everything"):
        assert part in out
    assert (tmp_path / "sweep.png").stat().st_size > 10_000
    rows = list(csv.DictReader((tmp_path / "sweep.csv").open()))
    assert [row["method"] for row in rows].count("lms3d") == 3
    assert rows[-1]["method"] == "without LMS"
    assert float(rows[-1]["relative_step_time"]) == 1
    assert not [p for p in tmp_path.iterdir() if "partial" in p.name]
    assert "Step time under a memory limit" in run(capsys, "--sweep", "2")[1]  # a table alone


def test_too_small_a_limit(toy, capsys, tmp_path):
    code, out, err = run(capsys, "--memory-limit", "4MiB", "--sweep", "2", "--output", str(tmp_path))
    assert code == 3
    assert "Step time under a memory limit" in out
    assert "does not fit in 4.00 MiB, not even with LMS: the smallest memory limit that would do is" in err
    assert "largest at its peak: " in err
    made_for = json.loads((tmp_path / "lms_plan.json").read_text())["limit_bytes"]
    assert made_for > 4 * MIB
    assert f"The lowest plan there is, made for {format_size(made_for)}, not 4.00 MiB" in out
    assert "(weights, slots, batches and small tensors)" in out


FIXED = ("--swapout-threshold", "100", "--swapin-ahead", "1", "--swapin-groupby", "0", "--sync-mode", "0")


@pytest.mark.parametrize(("limit", "message"), [
    ("4MiB", "does not fit in 4.00 MiB, not even with LMS"),
    ("36MiB", "does not fit in 36.0 MiB with the TFLMS parameters that were given"),  # the planner's own choice fits
])  # fmt: skip
def test_given_parameters_that_do_not_fit(toy, capsys, limit, message):
    code, out, err = run(capsys, "--memory-limit", limit, *FIXED)
    assert (code, err.count("\n")) == (3, 1)
    assert message in err
    assert "The lowest plan there is" not in out  # they leave one plan
    assert "peak with this plan" in out


@pytest.mark.parametrize(("line", "message"), [
    ("--sweep 0", "0 is too small; the least is 2"),
    ("--sweep many", "'many' is not a whole number"),
    ("--resolution 100", "argument --resolution: 100 is not a multiple of 16; the nearest that work are 96 and 112"),
    ("--resolution 0 --keras-model my.keras", "argument --resolution: 0 is too small; the least is 1"),
    ("--sweep 3 --no-lms", "--sweep compares plans and --no-lms makes none"),
    ("--copied --no-lms", "--copied says how LMS swaps and --no-lms is without"),
    ("--sweep --output {file}", "give a folder that you can write to"),
])  # fmt: skip
def test_refusals_come_before_any_work(line, message, capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(plan, "_planned", None)
    (tmp_path / "file").touch()
    code, _, err = run(capsys, *line.format(file=tmp_path / "file").split())
    assert code == 2
    assert message in err
    assert err.count("\n") == 1


def test_the_peak_is_listed_to_its_last_row(toy, capsys, monkeypatch):
    monkeypatch.setattr(summary, "LARGEST", 1)
    _, out, _ = run(capsys, "--memory-limit", "36MiB")
    peak = out.split("In memory at the peak")[1].split("LMS takes")[0]
    assert re.search(r"and \d+ more", peak)
    assert "(weights, slots, batches and small tensors)" in peak


def test_copied_back_is_asked_for_and_told(toy, capsys):
    seconds = re.compile(r"step with this plan +(.+), of that")
    shown = [run(capsys, "--memory-limit", "36MiB", *words)[1] for words in ((), ("--copied",))]
    in_place, copied = (seconds.search(one)[1] for one in shown)
    assert in_place != copied
    assert ["swapped tensors copied back" in one for one in shown] == [False, True]


def test_a_sweep_with_given_parameters_is_named_after_them():
    request = Settings(limit_bytes=1 << 40).request(GRAPH, MACHINE)
    given = request.under(parameters=tflms.Parameters(swapout_threshold=1))
    assert sweep.run(given, limits=2).tflms == sweep.TFLMS_PART
    found = sweep.run(request, limits=3)
    limits = [point.limit_bytes for point in found.of(sweep.LMS)]
    assert limits[-1] == found.fit_bytes
    assert found.fit_bytes % MIB == 0


def test_without_lms_only_the_step_is_described(toy, capsys):
    code, out, _ = run(capsys, "--no-lms")
    assert code == 0
    assert "No plan: --no-lms" in out
    assert "with this plan" not in out


def test_the_sizes_of_the_toy():
    assert plan_cache.make_plan(Settings(limit_bytes=36 * MIB).request(GRAPH, MACHINE))[1].rewritten
