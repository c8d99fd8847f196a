"""`experiments.input_pipeline` with ranks that only state measurements; one run with real ones."""

from __future__ import annotations

import csv
import json
import os
import sys
import textwrap
import time
from pathlib import Path

import psutil
import pytest

from lms3d.data.chest_xray import shards
from lms3d.data.phantoms import chests
from lms3d.device.machine import processor
from lms3d.experiments import input_pipeline
from lms3d.experiments.feeding import alone, images, results
from lms3d.experiments.harness.ranks import Launcher, RunFailed
from lms3d.experiments.harness.store import Records

# A rank of the pipeline alone. Per window of 1 s: old 100 images, new 250, best 400; each uses half a core.
RANK = """\
    import json, sys, time
    asked = json.loads(sys.argv[1])
    if asked["order"] == "{broken}":
        sys.exit("lms3d: error: a damaged shard")
    print(json.dumps({{"ready": True}}), flush=True)
    for line in sys.stdin:
        with open("{calls}", "a") as file:
            print(asked["order"], asked["rank"], file=file)
        images = {{"old": 100, "new": 250, "best": 400}}[asked["order"]] * float(line)
        print(json.dumps({{"images": images, "seconds": float(line), "cpu_seconds": float(line) / 2,
                          "waited_seconds": float(line) * (0.25 if asked["device_speed"] else 1)}}), flush=True)
"""
# A launcher of training: the old order waits half of the time, the best one 1 %.
LAUNCHER = """\
    #!{python}
    import json, sys
    ranks, asked = int(sys.argv[1]), json.loads(sys.argv[-1])
    with open("{calls}", "a") as file:
        print("training", ranks, file=file)
    waiting = {{"old": 0.5, "new": 0.03, "best": 0.01}}
    one = {{o: {{"images_per_second": 10.0 * ranks * (1 - waiting[o]), "waiting": waiting[o], "waiting_most": waiting[o],
                 "cores": 1.0}} for o in asked["orders"]}}
    with open(asked["output"], "w") as file:
        json.dump({{"ranks": ranks, "rounds": [one] * asked["rounds"]}}, file)
"""


@pytest.fixture
def fakes(tmp_path, monkeypatch):
    """Puts the fakes in place; `fakes(broken=ORDER)` breaks one. Returns a function that reads the calls."""
    calls = tmp_path / "calls.txt"
    shard_index = type("Index", (), {"directory": tmp_path})

    def make(broken: str = "") -> None:
        fill = {"broken": broken, "calls": calls, "python": sys.executable}
        (tmp_path / "rank.py").write_text(textwrap.dedent(RANK).format(**fill))
        (tmp_path / "launch").write_text(textwrap.dedent(LAUNCHER).format(**fill))
        (tmp_path / "launch").chmod(0o755)

    make()
    monkeypatch.setattr(alone, "PROGRAM", (sys.executable, str(tmp_path / "rank.py")))
    monkeypatch.setattr(images, "shards_of", lambda *_: shard_index)
    make.calls = lambda: calls.read_text().split("\n")[:-1] if calls.exists() else []  # type: ignore[attr-defined]
    return make


def run(tmp_path: Path, *words: str) -> int:
    launcher = f"{tmp_path / 'launch'} {{ranks}}"
    small = ["--runs", "1", "--rounds", "3", "--window", "0.1", "--training-rounds", "1"]
    return input_pipeline.main(["--launcher", launcher, *small, "--output", str(tmp_path / "out"), *words])


def rows(tmp_path: Path) -> dict[tuple[str, int, str], dict[str, str]]:
    with open(tmp_path / "out/input_pipeline.csv", newline="") as file:
        return {(row["kind"], int(row["ranks"]), row["order"]): row for row in csv.DictReader(file)}


def test_speeds_waits_ratios_and_a_figure_from_one_command(fakes, tmp_path, capsys):
    assert run(tmp_path, "--runs", "2", "--rounds", "2") == 0, capsys.readouterr().err
    found = rows(tmp_path)
    assert len(found) == 3 * 2 * 3
    assert float(found["device", 2, "old"]["waiting"]) == pytest.approx(0.25)
    assert float(found["alone", 2, "new"]["images_per_second"]) == pytest.approx(500)  # of both ranks
    assert float(found["alone", 2, "new"]["images_per_cpu_second"]) == pytest.approx(500)
    assert float(found["alone", 2, "best"]["cores"]) == pytest.approx(1.0)
    assert float(found["training", 1, "old"]["waiting"]) == pytest.approx(0.5)
    report = (tmp_path / "out/report.md").read_text()
    assert "| new / old | 2 | 2.50 (2.50 to 2.50) | 2.50, 2.50 | 2.50 |" in report
    assert "| best / new | 2 | 1.60 (1.60 to 1.60) | 1.60, 1.60 | 1.60 |" in report
    assert "| 2 | best | 19.8 | 19.8 to 19.8 | 1.00% | 1.00% |" in report
    assert f"Machine: {os.cpu_count()} cores ({processor()}" in report
    assert (tmp_path / "out/input_pipeline.png").stat().st_size > 10_000


def test_orders_take_turns_and_each_round_begins_with_another(fakes, tmp_path):
    assert run(tmp_path, "--kinds", "alone", "--ranks", "1") == 0
    assert fakes.calls() == [
        f"{order} 0" for order in ("old", "new", "best", "new", "best", "old", "best", "old", "new")
    ]


def test_measured_parts_are_kept_and_others_added(fakes, tmp_path):
    assert run(tmp_path, "--ranks", "1", "--kinds", "alone", "training") == 0
    before = fakes.calls()
    more = ["--ranks", "1", "2", "--kinds", "alone", "training", "--cores-per-rank", _cores(tmp_path)]
    assert run(tmp_path, *more) == 0
    assert fakes.calls()[: len(before)] == before  # measurements of one rank are kept
    assert {call.split()[-1] for call in fakes.calls()[len(before) :]} == {"0", "1", "2"}
    assert "training 1" not in fakes.calls()[len(before) :]
    assert {ranks for kind, ranks, _ in rows(tmp_path) if kind == "training"} == {1, 2}


def _cores(tmp_path: Path) -> str:
    return str(json.loads((tmp_path / "out/settings.json").read_text())["cores_per_rank"])


def test_other_settings_do_not_mix_with_what_is_there(fakes, tmp_path, capsys):
    assert run(tmp_path, "--ranks", "1", "--kinds", "training") == 0
    assert run(tmp_path, "--ranks", "1", "--kinds", "training", "--batch-size", "64") == 2
    assert "--batch-size: found 64" in capsys.readouterr().err


def test_a_broken_rank_fails_its_part_and_leaves_the_others(fakes, tmp_path, capsys):
    fakes(broken="best")
    assert run(tmp_path, "--ranks", "1") == 1
    said = capsys.readouterr().err
    assert "alone-1: a rank ended: lms3d: error: a damaged shard" in said
    assert "- device-1: a rank ended" in (tmp_path / "out/report.md").read_text()
    assert {kind for kind, _, _ in rows(tmp_path)} == {"training"}


def test_no_part_begins_after_the_time(tmp_path):
    parts = Records(tmp_path, minutes=1e-9)
    assert parts.measure("alone-1", lambda _: pytest.fail("begun")) is None
    assert parts.skipped == ["alone-1 (0 ms left)"]


def test_a_part_whose_like_took_longer_than_what_is_left_is_skipped(tmp_path):
    Records(tmp_path).measure("alone-1", lambda _: {"ranks": 1, "rounds": []})
    path = tmp_path / "parts/alone-1.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "wall_seconds": 600}))
    parts = Records(tmp_path, minutes=5)
    assert parts.measure("alone-2", lambda _: pytest.fail("begun")) is None
    assert "needs about 10 min" in parts.skipped[0]


def test_ranks_rest_while_others_are_measured_and_are_gone_afterwards(fakes, tmp_path):
    with alone.started(tmp_path, ["old", "new"], tmp_path / "log.txt", 1, None, 8, None, float("inf")) as teams:
        processes = [psutil.Process(team[0].process.pid) for team in teams.values()]
        deadline = time.monotonic() + 5
        while {one.status() for one in processes} != {psutil.STATUS_STOPPED} and time.monotonic() < deadline:
            time.sleep(0.01)
        assert [one.status() for one in processes] == [psutil.STATUS_STOPPED] * 2
        assert alone.window(teams["new"], 0.1, float("inf"))["images_per_second"] == pytest.approx(250)
    assert not any(one.is_running() for one in processes)


def test_a_rank_that_hangs_is_late(tmp_path, monkeypatch):
    monkeypatch.setattr(alone, "PROGRAM", (sys.executable, "-c", "import time; time.sleep(60)"))
    with pytest.raises(RunFailed, match="said nothing") as failure:
        alone.measure(
            tmp_path, ["old"], tmp_path / "log.txt", ranks=1, cores=None, batch_size=8, rounds=1, window_seconds=1,
            seconds_left=0.2,
        )  # fmt: skip
    assert failure.value.late


def test_ratios_are_taken_within_rounds():
    """The machine was half as fast in the second round; the ratio of medians would be 1.5."""
    rounds = [
        {"old": {"images_per_second": a}, "new": {"images_per_second": b}} for a, b in ((10, 20), (5, 10), (10, 20))
    ]
    assert results.ratios({"rounds": rounds}, "new", "old") == [2, 2, 2]


def test_a_ratio_is_the_median_of_the_runs():
    """Ranks started anew may be slower for a whole run; the median of all rounds would be 2.75."""
    pairs = ((0, 2), (0, 2), (1, 3), (1, 3), (1, 9), (2, 2), (2, 2.5), (2, 4))
    rounds = [{"run": run, "old": {"images_per_second": 1}, "new": {"images_per_second": new}} for run, new in pairs]
    assert results.run_ratios({"rounds": rounds}, "new", "old") == [2, 3, 2.5]


def test_the_table_says_what_others_took_meanwhile():
    def speed(value):
        return {"images_per_second": value, "images_per_cpu_second": value, "cores": 1.0, "others": 1.5}

    part = {"name": "alone-2", "ranks": 2, "rounds": [{"old": speed(10.0), "new": speed(20.0)}]}
    assert "| new / old | 2 | 2.00 (2.00 to 2.00) | 2.00 | 2.00 | 1.5 cores |" in results.tables([part])


def test_the_wait_is_what_the_iterator_takes():
    import tensorflow as tf

    from lms3d.experiments.feeding import loop

    def slowly(x):
        time.sleep(0.02)
        return x

    options = tf.data.Options()
    options.autotune.enabled = False  # would prefetch by itself
    data = tf.data.Dataset.range(1000).map(lambda x: tf.numpy_function(slowly, [x], tf.int64)).with_options(options)

    def step(batch):
        time.sleep(0.02)

    batches = iter(data)
    next(batches)
    lap = loop.lap(batches, step, 10)
    assert lap.steps == 10
    assert lap.waited_seconds / lap.seconds == pytest.approx(0.5, abs=0.15)
    assert lap.cpu_seconds < lap.seconds
    ahead = iter(data.prefetch(4))  # is made while the step goes on
    loop.lap(ahead, lambda _: time.sleep(0.04), 4)
    assert loop.lap(ahead, lambda _: time.sleep(0.04), 10).waited_seconds < 0.1


class Clock:
    """In the place of `time`: seconds pass only while somebody sleeps."""

    def __init__(self) -> None:
        self.now = 0.0
        self.perf_counter = self.process_time = lambda: self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr(alone, "time", made)
    return made


def test_a_window_counts_whole_batches_and_nothing_of_what_lay_ready(clock):
    def batches():
        yield from range(10)  # buffered
        while True:
            clock.sleep(0.02)
            yield 0

    found = alone.take(batches(), 0.39, 8)
    assert found["images"] == 8 * 20  # of which the last began within the window
    assert found["images"] / found["seconds"] == pytest.approx(8 / 0.02)


def test_a_device_waits_for_a_pipeline_that_is_slower_and_not_for_one_that_is_not(clock):
    def batches(seconds):
        while True:
            clock.sleep(seconds)
            yield 0

    starved = alone.take(batches(0.03), 0.3, 8, device_speed=8 / 0.01)
    assert starved["waited_seconds"] / starved["seconds"] == pytest.approx(0.75)
    fed = alone.take(batches(0), 0.3, 8, device_speed=8 / 0.01)
    assert fed["waited_seconds"] == 0
    assert fed["images"] / fed["seconds"] == pytest.approx(800)


def test_fewer_shards_than_ranks_are_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(shards, "SHARD_IMAGES", 40)
    data = chests.write(tmp_path / "films", images=90, size=32, workers=1)
    monkeypatch.setenv("LMS3D_CACHE", str(tmp_path / "cache"))
    with pytest.raises(ValueError, match=r"--ranks 50: found . training shards"):
        images.shards_of(data, 32, 50)


def test_real_ranks_give_real_images(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(shards, "SHARD_IMAGES", 20)
    monkeypatch.setenv("LMS3D_CACHE", str(tmp_path / "cache"))
    data = chests.write(tmp_path / "films", images=90, size=32, workers=1)
    words = ["--kinds", "alone", "--ranks", "1", "--orders", "best", "--runs", "1", "--rounds", "2", "--window", "0.2"]
    words += ["--data", str(data), "--resolution", "32", "--batch-size", "8", "--output", str(tmp_path / "out")]
    assert input_pipeline.main(words) == 0, capsys.readouterr().err
    found = rows(tmp_path)["alone", 1, "best"]
    assert float(found["images_per_second"]) > 100
    assert 0 < float(found["cores"]) <= psutil.cpu_count() + 0.5


def test_a_real_rank_trains_and_waits(tmp_path, monkeypatch, capsys):
    """On a network of one layer, in this process: nearly all of the time is the wait for data."""
    pytest.importorskip("horovod", reason="the command looks for its launcher: make horovod")
    import keras

    from lms3d import models
    from lms3d.experiments.feeding import training_rank

    layers = [keras.layers.GlobalAveragePooling2D(), keras.layers.Dense(14, activation="sigmoid")]
    monkeypatch.setattr(models, "build", lambda _, input_shape: keras.Sequential([keras.Input(input_shape), *layers]))
    monkeypatch.setattr(
        Launcher,
        "run",
        lambda self, ranks, program, log, **_: training_rank.main([program[-1]]) and pytest.fail("rank"),
    )
    monkeypatch.setattr(shards, "SHARD_IMAGES", 40)
    monkeypatch.setenv("LMS3D_CACHE", str(tmp_path / "cache"))
    data = chests.write(tmp_path / "films", images=60, size=32, workers=1)
    words = ["--kinds", "training", "--ranks", "1", "--training-rounds", "1", "--steps", "4", "--data", str(data)]
    words += ["--training-resolution", "32", "--batch-size", "8", "--output", str(tmp_path / "out")]
    assert input_pipeline.main(words) == 0, capsys.readouterr().err
    found = rows(tmp_path)
    assert [order for _, _, order in found] == ["old", "new", "best"]
    for row in found.values():
        assert 0 < float(row["waiting"]) < 1
        assert float(row["images_per_second"]) > 1
