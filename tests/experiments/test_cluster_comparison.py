"""`experiments.cluster_comparison` on two result files, as the benchmark writes them."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from experiments import cluster_comparison
from experiments.feeding import accepted

SETTINGS = {"model": "resnet50", "resolution": 224, "batch_size": 64, "precision": "float32"}


def write(path: Path, label: str, speeds: dict[int, float], data: str = "synthetic", **settings: object) -> str:
    """A result whose laps are 1 % apart from their mean."""
    machine = {"architecture": "x86_64", "processor": "", "cores": 8, "gpu": "V100", "ranks": 1}
    parts = [
        {
            "name": f"{data}-{ranks}", "data": data, "ranks": ranks, "machines": [machine], "busy": 0.0,
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
    assert "| data | ranks | bare metal, images/s | Kubernetes, images/s | bare metal is faster by |" in text
    assert "| synthetic | 8 | 1512 ± 13 | 1400 ± 12 | +8.0 ± 0.9 % |  |" in text
    assert "| synthetic | 1 | 200 ± 1.7 | 200 ± 1.7 | +0.0 ± 0.9 % | not told apart |" in text
    assert "bare metal trains 8.0% more images/s than Kubernetes with 8 ranks on synthetic data." in text
    assert (tmp_path / "out/comparison.png").stat().st_size > 10_000


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
