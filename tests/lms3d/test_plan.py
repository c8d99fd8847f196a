"""`python -m lms3d.plan` on a toy step: its output, its files, its refusals."""

from __future__ import annotations

import csv
import json
import re
from dataclasses import replace

import pytest

from lms3d import plan
from lms3d.engine import plan_cache, sweep
from lms3d.engine.cost import Machine
from lms3d.engine.plan import Plan, SwapIn, SwapOut
from lms3d.engine.planners import tflms
from lms3d.engine.prediction import Decision, Figures
from lms3d.engine.request import Settings
from lms3d.engine.step_model import alternatives
from lms3d.engine.step_model.planned_step import PlannedStep
from lms3d.engine.step_model.problem import reduce
from lms3d.errors import DoesNotFit, InputError
from lms3d.keras_step import report
from lms3d.keras_step.estimate import Planned
from lms3d.plan_display import summary, why
from lms3d.units import format_size
from tests.lms3d.engine.toy_graphs import MIB, op, placeholder, step, training

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
            made, prediction = plan_cache.cached_plan(request)
        except DoesNotFit as error:
            made, prediction = plan_cache.cached_plan(request.under(limit_bytes=error.smallest_limit_bytes))
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


def test_the_table_of_what_leaves_shows_the_costs_of_the_alternatives(toy, capsys):
    _, out, _ = run(capsys, "--memory-limit", "36MiB")
    assert re.search(r"tensor +decision .+ to swap +hidden +to recompute +links idle +at the peak\n", out)
    assert re.search(r"r\d:0 +swap +1 +4.00 MiB +6.3 ms +6.3 ms +1.1 ms +\d[\d.]* ms +4.00 MiB", out)
    assert "`--why TENSOR` says what these costs are" in out


def test_why(toy, capsys):
    """`c1` is recomputed, as the planner finds it cheapest; only that is printed."""
    code, out, err = run(capsys, "--memory-limit", "36MiB", "--why", "c1")
    assert (code, err) == (0, "")
    said = dict(re.findall(r"^  (\w[\w ]+?)  +(.+)$", out, re.MULTILINE))
    assert "c1:0 is recomputed" in out
    assert said["why"] == (
        "recomputed: computing it again takes 1.1 ms; moving it out and back would take 6.3 ms, all of which idle links could "
        "hide; moving it looks cheaper, but takes the links from other tensors, and on a CPU cores from the step"
    )
    assert said["size"] == "4.00 MiB"
    assert said["made by"].startswith("c1 (Conv3D), from ")
    assert re.fullmatch(r"r1 \(LeakyRelu\), from .+; gr1 \(LeakyReluGrad\), from .+", said["read by"])
    assert said["copies"] == "1: computed again for gr1"
    assert said["in memory"].count("from") == 2
    assert said["links idle"].endswith("of the longest time that nobody uses it")
    assert said["to swap"] == "6.3 ms of transfers, out and back"
    assert said["of that hidden"] == "6.3 ms"
    assert re.fullmatch(r"1.1 ms of Conv3D, which reads r0:0 \(\w+\)", said["to recompute"])
    assert (
        said["at the peak"]
        == "4.00 MiB more if it were kept: 35.0 MiB instead of 31.0 MiB, if all else went as planned"
    )
    assert set(said) - {"made by", "read by", "in memory"} <= set(report.DECISION_COLUMNS)
    assert "What happens to the large tensors" not in out


def test_why_of_a_tensor_that_stays(toy, capsys):
    _, out, _ = run(capsys, "--memory-limit", "1GiB", "--why", "loss:0")
    assert "loss:0 is kept" in out
    assert re.search("why +kept: the step fits in the limit as it is\n", out)
    assert re.search("at the peak +4.00 MiB of the predicted 47.0 MiB\n", out)


def test_why_of_a_part_of_several_names_lists_them(toy, capsys):
    code, out, _ = run(capsys, "--memory-limit", "36MiB", "--why", "GC")
    assert code == 0
    assert "5 large tensors are called so; --why explains one" in out
    assert re.search(r"gc4:0 +keep +4.00 MiB", out)


def test_why_of_a_small_tensor_that_leaves_weighs_no_alternative(capsys):
    graph = step(
        placeholder(), op("s", "x", mib=1 / 32), op("a", "s", mib=4), op("big", "a", mib=4), op("z", "big", "s", mib=4)
    )
    back = SwapIn(tensor="s:0", copy=0, consumers=("z",), triggers=("big",), mapped=True)
    moved = Plan(swap_outs=(SwapOut(tensor="s:0", bytes=MIB // 32),), swap_ins=(back,))
    request = Settings(limit_bytes=100 * MIB).request(graph, MACHINE)
    figures, planned_step = Figures(peak_bytes=0, step_seconds=0), PlannedStep.simulated(graph, moved, MACHINE)
    decisions = alternatives.decisions(reduce(graph, MACHINE), MACHINE, figures, planned_step)
    prediction = replace(plan_cache.cached_plan(request)[1], decisions=decisions)
    why.show(Planned(request=request, plan=moved, prediction=prediction), "s")
    out, _ = capsys.readouterr()
    assert "links idle" not in out
    assert re.search("copies +1: read where it lies for z\n", out)
    assert re.search("to recompute +not weighed: it is small, or a view of a large tensor\n", out)


@pytest.mark.parametrize(("name", "message"), [
    ("lost", "--why lost: no large tensor of the step has that in its name; the nearest are loss:0"),
    ("q", "--why q: no large tensor of the step has that in its name; leave --why out to see the largest ones"),
    ("gw0:0", "--why gw0:0: LMS decides nothing about gw0:0, because it has only 10.2 KiB; name a large tensor"),
    ("x", "--why x: LMS decides nothing about x:0, because it lies outside the step (Placeholder); name a large tensor"),
])  # fmt: skip
def test_why_of_an_unknown_tensor_is_one_line(toy, capsys, name, message):
    code, _, err = run(capsys, "--memory-limit", "36MiB", "--why", name)
    assert (code, err.count("\n")) == (2, 1)
    assert message in err


def test_a_part_of_a_long_name_that_is_misspelt_finds_the_name():
    names = [f"network_1/{block}_conv_1/convolution:0" for block in ("encoder0", "decoder3")]
    decisions = tuple(Decision(tensor=name, bytes=MIB, action="keep") for name in names)
    prediction = replace(
        plan_cache.cached_plan(Settings(limit_bytes=1 << 40).request(GRAPH, MACHINE))[1], decisions=decisions
    )
    with pytest.raises(InputError, match=f"the nearest are {names[1]}, {names[0]}"):
        why.matching("decoder_conv_1", prediction, GRAPH)


@pytest.mark.parametrize("text", ["", "  "])
def test_why_of_no_name_is_refused(toy, capsys, text):
    """A variable of the shell that is not set."""
    code, _, err = run(capsys, "--memory-limit", "36MiB", "--why", text)
    assert (code, err.count("\n")) == (2, 1)
    assert "--why" in err
    assert "an empty name; name a tensor" in err


def test_blanks_around_the_name_of_a_tensor_do_not_matter(toy, capsys):
    assert "c1:0 is recomputed" in run(capsys, "--memory-limit", "36MiB", "--why", " c1:0 ")[1]


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
    ("--why conv --no-lms", "--why explains a plan and --no-lms makes none"),
    ("--why conv --sweep", "--why explains one plan and --sweep makes many"),
    ("--copied --no-lms", "--copied says how LMS swaps and --no-lms is without"),
    ("--task chexnet --data {file}", "--data: a step of --task chexnet is the same for any data; leave it out"),
    ("--task segmentation --spacing median", "every case then has a shape of its own; add --box XxYxZ"),
    ("--spacing 1x1x1 --box 32x32x32", "--spacing is not for --task brats"),
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
    assert plan_cache.cached_plan(Settings(limit_bytes=36 * MIB).request(GRAPH, MACHINE))[1].rewritten
