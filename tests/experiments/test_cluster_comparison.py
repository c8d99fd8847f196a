"""`experiments.cluster_comparison` on two result files, as the benchmark writes them."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from lms3d.device import machine
from lms3d.experiments import cluster_comparison
from lms3d.experiments.feeding import accepted
from lms3d.experiments.scalability import measured
from lms3d.experiments.scalability.measured import Measurement

SETTINGS = {"model": "resnet50", "resolution": 224, "batch_size": 64, "precision": "float32"}


def write(path: Path, label: str, speeds: dict[int, float], data: str = "synthetic", **settings: object) -> str:
    """A result whose laps are 1 % apart from their mean."""
    gpu_machine = {"architecture": "x86_64", "processor": "", "cores": 8, "gpu": "V100", "ranks": 1}
    parts = [
        {
            "name": f"{data}-{ranks}", "data": data, "ranks": ranks, "machines": [gpu_machine], "busy": 0.0,
            "laps": [
                {"images_per_second": factor * speed, "waiting": 0.0, "cores": 1.0} for factor in (0.99, 1.0, 1.01) * 3
            ],
        }
        for ranks, speed in speeds.items()
    ]  # fmt: skip
    path.write_text(json.dumps(accepted.content(parts, label, {**SETTINGS, **settings}, "made by a test")))
    return str(path)


def run(tmp_path: Path, *words: str) -> int:
    return cluster_comparison.main([*words, "--output", str(tmp_path / "out")])


def rows(tmp_path: Path) -> list[dict[str, str]]:
    with open(tmp_path / "out/comparison.csv", newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture
def files(tmp_path) -> list[str]:
    """Article 4: bare metal is ahead by 8 % at 8 GPUs, and by nothing at one."""
    metal = write(tmp_path / "a.json", "bare metal", {1: 200, 2: 396, 4: 780, 8: 1512})
    return [metal, write(tmp_path / "b.json", "Kubernetes", {1: 200, 2: 390, 8: 1400, 3: 590})]


def test_article_4s_table(files, tmp_path, capsys):
    assert run(tmp_path, *files) == 0, capsys.readouterr().err
    found = rows(tmp_path)
    assert [int(row["ranks"]) for row in found] == [1, 2, 8]  # what both have
    assert float(found[-1]["difference"]) == pytest.approx(0.08)
    assert 0.005 < float(found[-1]["half_interval"]) < 0.02
    text = (tmp_path / "out/comparison.md").read_text()
    assert "# bare metal and Kubernetes" in text
    assert "|  | ranks | bare metal, images/s | Kubernetes, images/s | bare metal is faster by |" in text
    assert "| synthetic data | 8 | 1512 ± 13 | 1400 ± 12 | +8.0 ± 0.9 % |  |" in text
    assert "| synthetic data | 1 | 200 ± 1.7 | 200 ± 1.7 | +0.0 ± 0.9 % | not told apart |" in text
    assert "bare metal trains 8.0% more images/s than Kubernetes with 8 ranks, synthetic data." in text


def test_what_differs_besides_is_listed(files, tmp_path, capsys):
    assert run(tmp_path, *files) == 0
    assert "Machines and versions are the same in both." in capsys.readouterr().out
    other = json.loads(Path(files[1]).read_text())
    other["versions"]["tensorflow"] = "2.16.1"
    other["machines"][0] |= {"gpu": None, "kernel": "6.1"}
    Path(files[1]).write_text(json.dumps(other))
    assert run(tmp_path, *files) == 0
    said = capsys.readouterr().out
    now = json.loads(Path(files[0]).read_text())["versions"]["tensorflow"]
    table = said[said.index("They differ in:") :].split("\n\n")[1].splitlines()
    assert table == [
        "|  | bare metal | Kubernetes |",
        "| --- | --- | --- |",
        "| gpu | V100 | none |",
        "| kernel | none | 6.1 |",
        f"| tensorflow | {now} | 2.16.1 |",
    ]


def test_trainings_of_chexnet_on_two_clusters(tmp_path, capsys):
    """As `experiments.scaling` writes them; a lap is an epoch."""
    paths = []
    for label, seconds in (("metal", (4.0, 4.1, 3.9)), ("pods", (5.0, 5.1, 4.9))):
        found = [
            Measurement(
                scaling="strong", ranks=ranks, batch=16, steps=100 // ranks, epoch_seconds=tuple(s / ranks for s in seconds),
                model="densenet121", size="224", precision="float32",
                machine={**machine.description(), "processor": label}, versions={"horovod": "0.28.1"},
            )
            for ranks in (1, 2)
        ]  # fmt: skip
        paths.append(tmp_path / f"{label}.json")
        paths[-1].write_text(json.dumps(measured.content(found, label, "made by a test")))
    assert run(tmp_path, *map(str, paths)) == 0, capsys.readouterr().err
    said = capsys.readouterr().out
    assert "| strong scaling | 2 | 800.3 ± 20 | 640.2 ± 13 | +25.0" in said
    assert "metal trains 25.0% more images/s than pods with" in said
    assert "| processor | metal | pods |" in said
    assert "densenet121 at resolution 224, batches of 16 a rank, float32" in said
    assert [row["ranks"] for row in rows(tmp_path)] == ["1", "2"]
    benchmark = write(tmp_path / "c.json", "c", {1: 200})
    assert run(tmp_path, str(paths[0]), benchmark) == 2
    assert "model: found densenet121" in capsys.readouterr().err


def test_labels_and_the_other_way_round(files, tmp_path, capsys):
    assert run(tmp_path, *reversed(files), "--labels", "pods", "nodes") == 0
    said = capsys.readouterr().out
    assert "nodes trains 8.0% more images/s than pods with 8 ranks" in said
    assert float(rows(tmp_path)[-1]["difference"]) == pytest.approx(-0.0741, abs=1e-4)


def test_different_work_is_not_compared(files, tmp_path, capsys):
    other = write(tmp_path / "c.json", "other", {1: 100}, batch_size=32)
    assert run(tmp_path, files[0], other) == 2
    assert "batch_size: found 64 in" in capsys.readouterr().err


def test_equal_labels_are_told_apart_by_the_user(files, tmp_path, capsys):
    assert run(tmp_path, files[0], files[0]) == 2
    assert "--labels" in capsys.readouterr().err


def test_nothing_in_common(files, tmp_path, capsys):
    other = write(tmp_path / "c.json", "other", {1: 100}, data="real")
    assert run(tmp_path, files[0], other) == 2
    assert "has real 1; expected a number of ranks that both have" in capsys.readouterr().err


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"format": 99}', '{"format": 1, "results": [{}]}'])
def test_a_file_of_another_kind(files, tmp_path, capsys, content):
    (tmp_path / "c.json").write_text(content)
    assert run(tmp_path, files[0], str(tmp_path / "c.json")) == 2
    assert "expected a result.json of experiments.resnet50_benchmark" in capsys.readouterr().err


def test_a_missing_file(files, tmp_path, capsys):
    assert run(tmp_path, files[0], str(tmp_path / "nowhere.json")) == 2
    assert "nowhere.json: No such file" in capsys.readouterr().err
