"""`experiments.resnet50_benchmark` with a launcher that writes what ranks would have found; one run with a real rank."""

from __future__ import annotations

import json
import sys
import textwrap
from pathlib import Path

import pytest

from lms3d.data.chest_xray import shards
from lms3d.data.phantoms import chests
from lms3d.experiments import resnet50_benchmark
from lms3d.experiments.feeding import accepted, images
from lms3d.experiments.feeding.accepted import difference, spread
from lms3d.experiments.harness.ranks import Launcher
from tests.caches import private_cache

# One rank: 90, 100, 110 images/s; two: twice that, less 10 %. Real data: a tenth less, since the device waits.
LAP = {"images_per_second": 100.0, "waiting": 0.0, "cores": 1.0}
LAUNCHER = """\
    #!{python}
    import json, sys
    ranks, asked = int(sys.argv[1]), json.loads(sys.argv[-1])
    with open("{calls}", "a") as file:
        print(asked["data"], ranks, file=file)
    if ranks == {broken}:
        sys.exit("lms3d: error: rank 1 was lost")
    real = asked["data"] == "real"
    factor = ranks * (0.9 if ranks > 1 else 1) * (0.9 if real else 1)
    laps = [{{"images_per_second": speed * factor, "waiting": 0.1 * real, "cores": 1.0 * ranks}} for speed in (90, 100, 110)]
    machine = {{"architecture": "x86_64", "processor": "A fast one", "cores": 8, "memory_gib": 64, "kernel": "6",
                "gpu": None, "ranks": ranks}}
    with open(asked["output"], "w") as file:
        json.dump({{"ranks": ranks, "laps": laps, "machines": [machine]}}, file)
"""


@pytest.fixture
def fake(tmp_path, monkeypatch):
    """Writes the launcher; `fake(broken=RANKS)` breaks one. Returns what reads the calls."""
    calls = tmp_path / "calls.txt"

    def make(broken: int = 0) -> None:
        text = textwrap.dedent(LAUNCHER).format(python=sys.executable, calls=calls, broken=broken)
        (tmp_path / "launch").write_text(text)
        (tmp_path / "launch").chmod(0o755)

    make()
    monkeypatch.setattr(images, "shards_of", lambda *_: type("Index", (), {"directory": tmp_path}))
    make.calls = lambda: calls.read_text().split("\n")[:-1]  # type: ignore[attr-defined]
    return make


def run(tmp_path: Path, *words: str) -> int:
    launcher = f"{tmp_path / 'launch'} {{ranks}}"
    return resnet50_benchmark.main(["--launcher", launcher, "--output", str(tmp_path / "out"), *words])


def result(tmp_path: Path) -> dict:
    return json.loads((tmp_path / "out/result.json").read_text())


def test_the_file_tells_speed_spread_efficiency_machine_and_versions(fake, tmp_path, capsys):
    assert run(tmp_path, "--label", "bare metal") == 0, capsys.readouterr().err
    found = result(tmp_path)
    assert found["label"] == "bare metal"
    assert [(row["data"], row["ranks"]) for row in found["results"]] == [
        ("synthetic", 1), ("synthetic", 2), ("real", 1), ("real", 2),
    ]  # fmt: skip
    one, two, real, _ = found["results"]
    assert one["images_per_second"]["mean"] == pytest.approx(100)
    assert one["images_per_second"]["std"] == pytest.approx(10)
    # Student's t for 3 values: 4.303 * 10 / sqrt(3)
    assert one["images_per_second"]["high"] - 100 == pytest.approx(24.84, abs=0.01)
    assert one["efficiency"] is None
    assert two["efficiency"] == pytest.approx(0.9)
    assert real["waiting"] == pytest.approx(0.1)
    assert [machine["processor"] for machine in found["machines"]] == ["A fast one"] * 2
    assert {"python", "tensorflow", "keras", "numpy"} <= set(found["versions"])
    assert found["settings"]["batch_size"] in (32, 64)
    assert "| synthetic | 2 | 180 | 18 | 135.3 to 224.7 | 90.0% |" in (tmp_path / "out/report.md").read_text()


def test_the_file_is_read_back(fake, tmp_path):
    assert run(tmp_path) == 0
    read = accepted.read(tmp_path / "out/result.json")
    assert [point.ranks for point in read.points] == [1, 2, 1, 2]
    assert read.points[1].efficiency == pytest.approx(0.9)


def test_a_fast_cluster_is_accepted(fake, tmp_path, capsys):
    assert run(tmp_path, "--expect", "150") == 0
    assert "Accepted: 162 images/s with 2 ranks on real data; expected at least 150" in capsys.readouterr().out


def test_a_slow_cluster_is_refused_in_one_line(fake, tmp_path, capsys):
    assert run(tmp_path, "--expect", "170") == 2  # synthetic data reaches 180, real data does not
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1
    assert "--expect 170: found 162 images/s with 2 ranks on real data (95 % interval" in lines[0]
    assert "waits 10% of the time" in lines[0]
    assert (tmp_path / "out/result.json").exists()


def test_a_judgement_is_about_what_was_asked_for(fake, tmp_path):
    assert run(tmp_path) == 0
    assert run(tmp_path, "--kinds", "synthetic", "--expect", "170") == 0


def test_nothing_is_measured_twice_unless_asked(fake, tmp_path):
    assert run(tmp_path, "--kinds", "synthetic") == 0
    assert run(tmp_path, "--kinds", "synthetic") == 0
    assert fake.calls() == ["synthetic 1", "synthetic 2"]
    assert run(tmp_path, "--kinds", "synthetic", "--again") == 0
    assert len(fake.calls()) == 4


def test_what_fails_is_told_and_cannot_be_accepted(fake, tmp_path, capsys):
    fake(broken=2)
    assert run(tmp_path, "--kinds", "synthetic", "--expect", "1") == 1
    assert "synthetic-2: exit code 1: lms3d: error: rank 1 was lost" in capsys.readouterr().err
    assert [row["ranks"] for row in result(tmp_path)["results"]] == [1]


def test_what_was_skipped_cannot_be_accepted(fake, tmp_path, capsys):
    assert run(tmp_path, "--kinds", "synthetic", "--minutes", "1e-9", "--expect", "1") == 2
    assert "synthetic data was not measured with 2 ranks" in capsys.readouterr().err


def test_half_a_measurement_is_not_accepted():
    point = accepted.points([{"data": "synthetic", "ranks": 2, "busy": 0.0, "laps": [LAP]}])
    with pytest.raises(resnet50_benchmark.TooSlow, match="real data was not measured with 2 ranks"):
        resnet50_benchmark.judge(point, ["synthetic", "real"], 1, 2)


def test_two_results_differ_by_no_more_than_their_spread_allows():
    """Welch: equal spreads of 1 % and n = 10: t(18 degrees) * 1 % * sqrt(2 / 10)."""
    a, b = spread([99, 101] * 5), spread([109, 111] * 5)
    share, half = difference(b, a)
    assert share == pytest.approx(0.1)
    assert half is not None
    assert half == pytest.approx(2.10 * 1.1 * 1.054 * (1e-4 / 10 + (1 / 110) ** 2 / 10) ** 0.5, rel=0.02)
    assert difference(spread([1.0]), spread([2.0, 2.0])) == (-0.5, None)


def test_synthetic_images_are_those_of_the_shards_in_shape_and_kind():
    from lms3d.experiments.feeding import training_rank

    images_, labels = training_rank.synthetic(2, 32, 0)
    assert images_.shape == (2, 32, 32, 3)
    assert images_.dtype == labels.dtype == "float32"
    assert labels.shape == (2, 14)


@pytest.fixture
def in_this_process(monkeypatch):
    """The real rank, without a launcher, on a network of one layer: ResNet-50 takes half a minute to build and trace."""
    import keras

    from lms3d import models
    from lms3d.experiments.feeding import training_rank

    def tiny(name: str, *, input_shape: tuple[int, ...]) -> keras.Model:
        assert name == "resnet50"
        layers = [keras.layers.GlobalAveragePooling2D(), keras.layers.Dense(14, activation="sigmoid")]
        return keras.Sequential([keras.Input(input_shape), *layers])

    monkeypatch.setattr(models, "build", tiny)
    monkeypatch.setattr(
        Launcher,
        "run",
        lambda self, ranks, program, log, **_: training_rank.main([program[-1]]) and pytest.fail("rank"),
    )


@pytest.mark.parametrize("kind", ["synthetic", "real"])
def test_a_real_rank_trains(in_this_process, tmp_path, capsys, monkeypatch, kind):
    monkeypatch.setattr(shards, "SHARD_IMAGES", 40)
    monkeypatch.setenv("LMS3D_CACHE", str(private_cache(tmp_path / "cache")))
    data = chests.write(tmp_path / "films", images=60, size=32, workers=1)
    words = ["--kinds", kind, "--ranks", "1", "--resolution", "32", "--batch-size", "4", "--warmup", "2", "--laps", "3"]
    words += ["--steps", "5", "--data", str(data), "--output", str(tmp_path / "out")]
    assert resnet50_benchmark.main(words) == 0, capsys.readouterr().err
    found = result(tmp_path)
    assert found["results"][0]["images_per_second"]["count"] == 3
    assert found["results"][0]["images_per_second"]["mean"] > 1
    assert 0 <= found["results"][0]["waiting"] < 1
    assert found["machines"][0]["cores"] >= 1
