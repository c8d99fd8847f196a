"""The benchmark's own logic: schedule, smallest limits, time limit, report. Children are replaced, but for one real run."""

from __future__ import annotations

import csv
import json
import threading

import pytest

from lms3d.experiments import lms_overhead
from lms3d.experiments.harness import bench, methods
from lms3d.experiments.harness import child as process
from lms3d.experiments.harness.bench import Trainer
from lms3d.experiments.harness.figure import MOST
from lms3d.experiments.harness.part import MIB, PartResult, StudyPart
from lms3d.experiments.overhead import figure, over_resolution, schedule
from lms3d.experiments.overhead.results import MethodComparison
from lms3d.scoring.figures.style import plt

WITHOUT, WITH = 1000, 290  # MiB: the smallest limits of the imitated machine
PEAK = 900 * MIB
RATIOS = {methods.NONE: 1.0, methods.LMS: 1.05, methods.TFLMS: 1.5, methods.SWAP_ALL: 2.0, methods.TORCH: 1.4}


class Imitation:
    """A child that trains at WITH MiB and above with LMS, at WITHOUT and above without."""

    made: list[StudyPart]
    lock: threading.Lock
    crash = ""

    def __init__(self, part: StudyPart, log, patience_seconds: float) -> None:
        self.part, self.steps = part, 0
        with self.lock:
            self.made.append(part)
        least = {methods.NONE: WITHOUT, methods.LMS: WITH, methods.TFLMS: 400}.get(part.method, 0)
        if part.method == self.crash:
            raise process.ChildFailed("out of memory", "ended by SIGSEGV")
        if part.limit_mib is not None and part.limit_mib < least:
            raise process.ChildFailed("out of memory", "ResourceExhaustedError", {"smallest_limit_bytes": None})
        self.ready = {"ready": True, "device": "CPU", "parameters": 8269561}

    def step(self) -> dict:
        self.steps += 1
        peak = min(PEAK, (self.part.limit_mib or 1 << 20) * MIB)
        seconds = 2.0 * RATIOS.get(self.part.method, 3.0)
        counted = {} if self.part.method in methods.TORCH_METHODS else {"peak_bytes": peak}
        return {"seconds": seconds, "resident_bytes": peak + MIB, "loss": -0.5, **counted}

    def finish(self) -> dict:
        report = {"planner": "hybrid", "predicted_peak_bytes": int(0.97 * (self.part.limit_mib or 900) * MIB)}
        report |= {"predicted_step_seconds": 2.2, "unedited_step_seconds": 2.1}
        if self.part.method == methods.PREDICTION:
            report = {"unedited_limit_bytes": 1100 * MIB, "unedited_peak_bytes": PEAK, "floor_bytes": 310 * MIB}
        same = self.part.method in methods.SAME_NUMBERS and self.steps >= 3
        return {"finished": True, "recoveries": 0, "digest": "abc" if same else "", "report": report}

    def kill(self) -> None:
        pass


@pytest.fixture
def child(monkeypatch):
    """The kind of child that is started; `child.made`: for which parts, in order."""
    kind = type("Child", (Imitation,), {"made": [], "lock": threading.Lock()})
    monkeypatch.setattr(bench, "Child", kind)
    find = schedule.importlib.util.find_spec
    monkeypatch.setattr(schedule.importlib.util, "find_spec", lambda name: object() if name == "torch" else find(name))
    return kind


def run(tmp_path, *words: str) -> int:
    return lms_overhead.main(["--resolutions", "96", "--output", str(tmp_path / "out"), *words])


def report(tmp_path) -> str:
    return (tmp_path / "out/report.md").read_text()


def test_the_report_has_ratios_smallest_limits_and_the_same_bits(tmp_path, child, capsys):
    assert run(tmp_path) == 0
    text = report(tmp_path)
    assert text in capsys.readouterr().out
    line = next(line for line in text.splitlines() if line.startswith("Smallest limits that trained"))
    other, own = (
        int(line.split(what)[1].split(" MiB")[0].replace(",", "")) for what in ("without LMS ", "read in place ")
    )
    assert 0 <= own / WITH - 1 <= schedule.TOLERANCE
    assert 0 <= other / WITHOUT - 1 <= schedule.TOLERANCE
    assert " fails" in line
    half = next(line for line in text.splitlines() if "| 50% | LMS | trained |" in line)
    assert "| 2.1 s | 1.05 | 1.05 | 2.2 s (+5%) |" in half
    assert "| torch.utils.checkpoint per block | trained |" in text
    assert "Weights after three steps: the same bits in all" in text
    assert "Made by `python -m experiments.lms_overhead --resolutions 96" in text
    assert (tmp_path / "out/overhead.png").stat().st_size > 10_000


def test_other_bits_are_told(tmp_path, child, monkeypatch):
    finish = child.finish
    monkeypatch.setattr(child, "finish", lambda self: {**finish(self), "digest": self.part.method})
    assert run(tmp_path, "--only", "times") == 0
    assert "Weights after three steps: 2 different ones in" in report(tmp_path)


def test_every_part_is_a_row_of_the_table_file(tmp_path, child):
    assert run(tmp_path) == 0
    with open(tmp_path / "out/overhead.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    measured = [part for part in child.made if part.method != methods.PREDICTION and part.steps]
    assert len(rows) == len(measured)
    half = [
        r for r in rows if r["method"] == methods.LMS and r["limit_share"] and 0.495 < float(r["limit_share"]) < 0.505
    ]
    assert [(row["ratio"], row["first_seconds"]) for row in half if row["ratio"]] == [("1.05", "2.1")]


def test_each_measured_step_has_a_neighbour(tmp_path, child):
    assert run(tmp_path, "--only", "limits", "times", "--steps", "4") == 0
    timed = [PartResult.load(path) for path in (tmp_path / "out/parts").glob("*.json")]
    assert {len(r.baseline_seconds) for r in timed if r.part.timed} == {4}
    assert not any(r.baseline_seconds for r in timed if not r.part.timed)
    assert (
        sum(part.steps == 0 and part.method == methods.NONE for part in child.made) == 1
    )  # one neighbour serves them all


def test_a_short_time_gives_step_times_before_the_smallest_limits(tmp_path, child):
    assert run(tmp_path, "--only", "limits", "times") == 0
    made = [part for part in child.made if part.steps]
    last_timed = max(i for i, part in enumerate(made) if part.timed)
    searched = [i for i, part in enumerate(made) if not part.timed and part.method in (methods.LMS, methods.COPIED)]
    assert last_timed < min(searched)


def test_a_neighbour_that_fills_the_machine_runs_before_and_after(tmp_path, child, monkeypatch):
    alive: list[Trainer] = []

    class Lonely(child):
        def __init__(self, part, log, patience_seconds):
            super().__init__(part, log, patience_seconds)
            alive.append(self)
            assert not part.timed or len(alive) == 1, "something runs beside a part that is timed"

        def finish(self):
            alive.remove(self)
            return super().finish()

        def kill(self):
            if self in alive:
                alive.remove(self)

    monkeypatch.setattr(bench, "CROWDED_SHARE", 0.0)
    monkeypatch.setattr(bench, "Child", Lonely)
    assert run(tmp_path, "--only", "times", "--limits", "600MiB", "--steps", "4") == 0
    timed = [PartResult.load(path) for path in (tmp_path / "out/parts").glob("*.json")]
    timed = [r for r in timed if r.part.timed]
    assert {r.ratio for r in timed if r.part.method == methods.LMS} == {1.05}
    assert {len(r.baseline_seconds) for r in timed} == {4}
    neighbours = sum(part.steps == 0 and part.method == methods.NONE for part in child.made)
    assert neighbours == len(timed) + 1  # what ran after one part ran before the next


def test_single_limits_are_tried_with_and_without_copying_back(tmp_path, child):
    assert run(tmp_path, "--only", "tries", "--limits", "280MiB", "600MiB") == 0
    tried = {(part.method, part.limit_mib, part.timed) for part in child.made}
    assert tried == {(method, limit, False) for method in (methods.LMS, methods.COPIED) for limit in (280, 600)}
    outcomes = {r.part.limit_mib: r.outcome for r in map(PartResult.load, (tmp_path / "out/parts").glob("*-LMS-*"))}
    assert outcomes == {280: "out of memory", 600: "trained"}


def test_it_goes_on_where_it_stopped(tmp_path, child):
    assert run(tmp_path, "--only", "limits", "times") == 0
    first = len(child.made)
    assert run(tmp_path, "--only", "limits", "times") == 0
    assert len(child.made) == first
    removed = next(iter((tmp_path / "out/parts").glob("*-LMS-*MiB.json")))
    removed.unlink()
    assert run(tmp_path, "--only", "limits", "times") == 0
    assert [part.name for part in child.made[first:] if part.steps] == [removed.stem]
    assert run(tmp_path, "--only", "limits", "times", "--again") == 0
    assert len(child.made) == 2 * first + 2


def test_the_report_has_what_earlier_runs_found(tmp_path, child):
    assert run(tmp_path, "--only", "limits", "times") == 0
    assert run(tmp_path, "--only", "torch") == 0
    assert f"| {methods.TORCH_CHECKPOINT} |" in report(tmp_path)
    assert "| 50% | LMS | trained |" in report(tmp_path)


def test_a_part_that_failed_is_tried_again(tmp_path, child):
    part = StudyPart(method=methods.NONE, model="isensee2017", resolution=96)
    PartResult(part=part, outcome="failed", detail="a defect").save(tmp_path / "parts")
    assert bench.Bench(tmp_path, start=child).measure(part).trained


def test_settings_must_stay(tmp_path, child, capsys):
    assert run(tmp_path, "--only", "limits", "times") == 0
    assert run(tmp_path, "--steps", "7") == 2
    assert "--steps: found 7, but" in capsys.readouterr().err


def test_parts_that_no_longer_fit_into_the_time_are_skipped_and_listed(tmp_path, child, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(bench.time, "monotonic", lambda: now[0])

    class Slow(child):
        def finish(self):
            now[0] += 60.0
            return super().finish()

    monkeypatch.setattr(bench, "Child", Slow)
    assert run(tmp_path, "--minutes", "6") == 0
    text = report(tmp_path)
    assert "Skipped:" in text
    assert "at 96, PyTorch (needs about" in text
    assert now[0] <= 6 * 60 + 60
    assert run(tmp_path, "--minutes", "600") == 0
    assert "Skipped:" not in report(tmp_path)


def test_a_child_that_crashes_is_a_result(tmp_path, child):
    child.crash = methods.SWAP_ALL
    assert run(tmp_path, "--only", "times", "others") == 0
    assert f"| {methods.SWAP_ALL} | out of memory |" in report(tmp_path)


def test_recoveries_are_not_hidden(tmp_path, child, monkeypatch):
    finish = child.finish
    monkeypatch.setattr(child, "finish", lambda self: {**finish(self), "recoveries": 2})
    assert run(tmp_path, "--only", "times") == 0
    assert "| LMS | trained, 2 recoveries |" in report(tmp_path)


def test_smallest_limit_is_found_within_the_tolerance():
    tried = []

    def trains(limit: int) -> bool:
        tried.append(limit)
        return limit >= 777

    for guess, bad in ((900, 700), (780, 500), (700, 300), (900, 800)):
        tried.clear()
        found = schedule.smallest(trains, guess, bad)
        assert found is not None
        assert 0 <= found / 777 - 1 <= schedule.TOLERANCE
        assert any(limit < 777 for limit in tried)
    assert schedule.smallest(lambda limit: None, 900, 700) is None


def test_a_dead_process_says_what_ended_it(tmp_path, monkeypatch):
    part = StudyPart(method=methods.LMS, model="isensee2017", resolution=96, limit_mib=100)

    def child(code: str, part: StudyPart) -> process.ChildFailed:
        monkeypatch.setattr(process.sys, "executable", str(script(tmp_path, code)))
        with pytest.raises(process.ChildFailed) as caught:
            process.Child(part, tmp_path / "log.txt", 30)
        return caught.value

    assert child("kill -SEGV $$", part).outcome == "out of memory"
    assert "SIGSEGV" in child("kill -SEGV $$", part).detail
    assert child("kill -SEGV $$", part.baseline()).outcome == "failed"
    assert child("exit 3", part).outcome == "failed"
    answer = json.dumps({"error": "does not fit", "detail": "too small"})
    assert child(f"echo '{answer}'", part).outcome == "does not fit"


def script(tmp_path, code: str):
    path = tmp_path / "child.sh"
    path.write_text(f"#!/bin/sh\n{code}\n")
    path.chmod(0o755)
    return path


def test_no_figure_without_data(tmp_path):
    nothing = MethodComparison([], "isensee2017", 96)
    assert figure.draw([nothing], tmp_path / "x.png") is None
    assert (nothing.table(), nothing.same_bits()) == ("", "")
    assert nothing.smallest_limits().count("not measured") == 3


def test_a_step_that_is_too_slow_for_the_figure_has_its_ratio_beside_it():
    axis = plt.subplots()[1]
    figure.draw_ratios(axis, [(40.0, 10.48), (50.0, 1.1)], "slow", methods.RECOMPUTE_ALL)
    assert axis.lines[0].get_ydata().tolist() == [MOST, 1.1]
    assert [text.get_text() for text in axis.texts] == ["10.5 x \N{UPWARDS ARROW}"]


def test_a_real_child_trains_under_a_hard_limit(tmp_path):
    part = StudyPart(method=methods.LMS, model="unet3d", resolution=16, limit_mib=2000, warm_up=1, steps=2, timed=False)
    result = bench.Bench(tmp_path).measure(part)
    assert result is not None
    assert result.trained, result.detail
    assert len(result.seconds) == 2
    assert 0 < result.peak_bytes < 2000 * MIB
    assert result.digest
    assert PartResult.load(tmp_path / "parts" / f"{part.name}.json") == result


def test_the_whole_step_under_xla_trains():
    """The model of the child: of TensorFlow's own operations, as XLA knows no others. Without dropout both take the same step."""
    import keras

    from lms3d.experiments.harness import batches, steps_tensorflow
    from lms3d.models.layers import ChannelDropout

    def loss(method: str) -> float:
        keras.utils.set_random_seed(0)
        part = StudyPart(method=method, model="isensee2017", resolution=16, filters=(2, 2))
        model = steps_tensorflow.build(part)
        assert model.jit_compile == (method == methods.XLA)
        for layer in model.layers:
            if isinstance(layer, ChannelDropout):
                layer.rate = 0.0
        return float(model.train_on_batch(*batches.volumes(16)))

    assert loss(methods.XLA) == pytest.approx(loss(methods.NONE), rel=1e-4)


@pytest.mark.parametrize("method", methods.UNIFORM)
def test_one_decision_for_every_tensor_is_a_planner_of_lms(method):
    from lms3d.engine.planners import PLANNERS
    from lms3d.experiments.harness import steps_tensorflow

    lms = steps_tensorflow._callback(method)
    assert lms.planner == PLANNERS[methods.UNIFORM[method]].name
    assert not lms.adapt


@pytest.mark.parametrize("method", [methods.KERAS_REMAT, methods.RECOMPUTE_GRAD])
def test_every_block_of_the_network_is_recomputed(method):
    from lms3d.experiments.harness import variants

    names = {type(layer).__name__ for layer in variants.build(method, "isensee2017", (16, 16, 16, 4)).layers}
    assert names & {"LayerBlock", "RecomputedBlock"}
    assert not names & {"InstanceNormalization", "JoinedConv3D", "LeakyReLU"}


def rising(tmp_path, *words: str) -> int:
    return lms_overhead.main(["--over-resolution", "--output", str(tmp_path / "out"), *words])


def test_one_limit_over_rising_resolutions(tmp_path, child, capsys):
    words = ("--resolutions", "96", "64", "--limits", "400MiB")
    assert rising(tmp_path, *words) == 0
    assert {part.limit_mib for part in child.made if part.steps} == {400}
    assert {(part.method, part.limit_mib) for part in child.made if not part.steps} == {
        (methods.NONE, 6400)
    }  # the neighbours
    with open(tmp_path / "out/over_resolution.csv", newline="") as file:
        rows = {(row["method"], row["resolution"]): row for row in csv.DictReader(file)}
    assert set(rows) == {(method, side) for method in over_resolution.METHODS for side in ("64", "96")}
    far = rows[methods.LMS, "96"]
    assert (far["resolution_factor"], far["ratio"], far["without_seconds"]) == ("3.375", "1.05", "2.0")
    assert float(far["per_voxel"]) == pytest.approx(
        1.05 / 3.375, abs=1e-6
    )  # the imitation takes as long for any volume
    text = (tmp_path / "out/over_resolution.md").read_text()
    assert text in capsys.readouterr().out
    assert "| LMS | 96³ | 3.38 |" in text
    assert "| case study: TFLMS, V100, PCIe Gen3 | 192³ | 2.37 |  |  |  |  |  | 2.87 |" in text
    assert "| case study: TFLMS, V100, NVLink 2.0 | 192³ | 2.37 |  |  |  |  |  | 1.26 |" in text
    made = len(child.made)
    assert rising(tmp_path, *words, "80") == 2  # a second limit
    assert "--limits" in capsys.readouterr().err
    assert rising(tmp_path, *words) == 0
    assert len(child.made) == made  # all is there


def test_where_nothing_fits_there_is_a_row_and_no_point(tmp_path, child):
    assert rising(tmp_path, "--resolutions", "64", "--limits", "300MiB") == 0
    with open(tmp_path / "out/over_resolution.csv", newline="") as file:
        found = {row["method"]: (row["outcome"], row["ratio"]) for row in csv.DictReader(file)}
    assert found[methods.TFLMS] == ("out of memory", "")
    assert found[methods.LMS] == ("trained", "1.05")


def test_the_slabs_of_a_child_are_told(tmp_path):
    part = StudyPart(method=methods.LMS, model="isensee2017", resolution=96, limit_mib=139)
    PartResult(part=part, outcome="trained", report={"slabs": ((0, 16), (1, 8))}).save(tmp_path)
    found = PartResult.load(tmp_path / f"{part.name}.json")
    assert MethodComparison([found], "isensee2017", 96).table().endswith("| 139 MiB | LMS | trained | 16/8 |")
