"""`python -m experiments.machine_models`: the calibration finds what made synthetic figures, and the command ends with a report."""

from __future__ import annotations

import csv
from dataclasses import replace

import pytest

from lms3d.engine.cost import step_seconds
from lms3d.engine.planners.tflms.rules import build
from lms3d.errors import InputError
from lms3d.experiments import machine_models
from lms3d.experiments.harness import published
from lms3d.experiments.harness.store import UpToDate
from lms3d.experiments.machines import calibration, ours, predictions, report
from lms3d.experiments.machines.calibration import Tried
from lms3d.experiments.machines.ours import PlannedCase
from lms3d.experiments.machines.predictions import PredictedFigure
from lms3d.experiments.machines.steps import TracedStep
from lms3d.machines import machine_files, outlook
from tests.lms3d.engine.toy_graphs import training

GRAPH = training(8, mib=512)
MACHINES = {name: machine_files.load(name) for name in machine_files.names()}
X86 = MACHINES[published.X86]


@pytest.mark.parametrize("true", [0.25, 1.0, 3.0])
def test_the_factor_is_found_again(true):
    epoch = 100 * step_seconds(GRAPH, X86.faster(true, "test").speeds())
    assert calibration.factor(GRAPH, X86, epoch, subjects=100) == pytest.approx(true)


def test_the_gap_is_found_again():
    seconds = step_seconds(GRAPH, X86.speeds())
    found = calibration.with_gap(GRAPH, X86, 100 * (seconds + 0.125), 10**9, subjects=100)
    assert found.gap_seconds(10**9) == pytest.approx(0.125)


def test_figures_that_nothing_explains_are_refused():
    with pytest.raises(ValueError, match="launching the ops of 100 steps takes longer"):
        calibration.factor(GRAPH, X86, 1e-6, subjects=100)
    with pytest.raises(ValueError, match="between two batches; expected more than 0"):
        calibration.with_gap(GRAPH, X86, 1e-6, 10**9, subjects=100)


@pytest.mark.parametrize(("mode", "threshold"), [(0, 2), (3, 4)])
def test_the_parameters_are_found_again(mode, threshold):
    true = Tried(sync_mode=mode, threshold=threshold, epoch_seconds=0.0)
    step = outlook.of(GRAPH, build(GRAPH, true.parameters), X86.speeds(), gap_seconds=X86.gap_seconds(10**8))
    found = calibration.nearest(calibration.tried(GRAPH, X86, 10**8, subjects=7), 7 * step.step_seconds)
    assert found.epoch_seconds == pytest.approx(7 * step.step_seconds)


def test_only_three_figures_are_calibrated():
    assert len(published.CALIBRATED) == 3
    rows = predictions.rows(_model())
    epochs = [row for row in rows if row.quantity == "epoch"]
    assert [row.published for row in epochs if row.calibrated] == [216, 197, 1467]
    assert len(epochs) == 12  # each row of its tables, the one with both kinds of GPU as two
    assert len([row for row in rows if row.quantity == "GPU utilisation"]) == 4
    assert len([row for row in rows if row.unit == "GB/s"]) == 8


def test_a_prediction_lies_between_its_bounds():
    for row in predictions.rows(_model()):
        assert row.least is None or row.most is None or row.least <= row.predicted <= row.most * (1 + 1e-9)


def test_an_error_is_told():
    row = PredictedFigure(quantity="epoch", title="x", unit="s", published=100, predicted=112)
    near = replace(row, predicted=95)
    assert row.error == pytest.approx(0.12)
    assert predictions.within([row, near, replace(row, calibrated=True)], 0.1) == (1, 2)
    text = report.figures_table([row, near])
    assert "+12.0% **missed**" in text
    assert "-5.0% |" in text


def test_ours_is_compared_at_the_share_of_the_case_study():
    assert pytest.approx(0.42, abs=0.005) == ours.SHARE
    step = TracedStep(graph=GRAPH, needed_bytes=10 << 30)
    case = PlannedCase(network="ours", side=192, machine=published.X86, method="lms3d")
    found = ours.compare(case, step, X86)
    assert found["limit_bytes"] == int((10 << 30) * ours.SHARE)
    assert found["fits"]
    assert found["ratio"] >= 1
    assert found["least_seconds"] <= found["step_seconds"] <= found["most_seconds"] * (1 + 1e-9)
    assert not ours.compare(replace(case, limit_bytes=1), step, X86)["fits"]


def test_a_part_is_made_once(tmp_path, monkeypatch):
    made: list[int] = []

    def make() -> dict[str, int]:
        made.append(1)
        return {"value": len(made)}

    assert [UpToDate(tmp_path, again=False).get("a", make)["value"] for _ in range(2)] == [1, 1]
    assert UpToDate(tmp_path, again=True).get("a", make) == {"value": 2}
    monkeypatch.setattr("lms3d.experiments.harness.store.digest", lambda: "other code")
    assert UpToDate(tmp_path, again=False).get("a", make) == {"value": 3}
    (tmp_path / "parts/a.json").write_text("[]")
    with pytest.raises(InputError, match="delete it and run again"):
        UpToDate(tmp_path, again=False).get("a", make)


def test_the_command_goes_on_where_it_was_stopped(tmp_path, monkeypatch, capsys):
    traced: list[tuple[str, int]] = []

    def toy(network: str, side: int) -> TracedStep:
        traced.append((network, side))
        return TracedStep(graph=training(6 if side < 60 else 8, mib=64), needed_bytes=1 << 30)

    monkeypatch.setattr(machine_models.steps, "traced", toy)
    monkeypatch.setattr(machine_models, "_machines", lambda: {n: MACHINES[n] for n in (published.AC922, published.X86,
                                                                                    published.AC922_6)})  # fmt: skip
    command = ["--side", "64", "--output", str(tmp_path)]
    assert machine_models.main([*command, "--only", "published"]) == 0
    assert traced == [("article", 48), ("article", 48), ("article", 64)]
    assert machine_models.main(command) == 0
    assert traced[3:]
    assert ("article", 48) not in traced[3:]
    assert {side for network, side in traced if network == "ours"} == {64, 80}
    written = {path.name for path in tmp_path.iterdir()}
    assert written == {"parts", "published.csv", "ours.csv", "report.md", "machines.png"}
    rows = list(csv.DictReader((tmp_path / "published.csv").open()))
    assert sum(row["calibrated"] == "True" for row in rows) == 4  # 1467 s is also the time per voxel
    before = len(traced)
    assert machine_models.main(command) == 0
    assert len(traced) == before
    assert "figures that were not calibrated are predicted within 10%" in capsys.readouterr().out


def _model() -> predictions.Model:
    graphs = {published.LOW: training(6, mib=256), published.HIGH: GRAPH}
    return predictions.Model(graphs, MACHINES, Tried(sync_mode=1, threshold=2, epoch_seconds=0.0))
