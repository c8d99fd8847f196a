"""`experiments.scaling` with real ranks: all-reduces and training on one rank and on two, on a coarse phantom at 16^3, of a
small network (`tests.small`)."""

from __future__ import annotations

import csv
import json
import os
import shlex

from lms3d.data.phantoms import brains
from lms3d.experiments import scaling
from lms3d.experiments.scalability import probe
from tests.lms3d.ranks.started import HOROVODRUN


def test_one_rank_and_two_train_and_are_measured(tmp_path, capsys, monkeypatch, commands):
    monkeypatch.setattr(scaling, "of_module", lambda name: [*commands.python(), "-m", "tests.small", name])
    data = brains.write(tmp_path / "phantom", cases=5, spacing_mm=8, workers=1)  # 4 train
    words = ["--ranks", "1", "2", "--epochs", "2", "--resolution", "16", "--data", str(data), "--cores-per-rank", "1"]
    out = tmp_path / "out"
    words += ["--scaling", "strong", "--probe", "--output", str(out)]
    words += ["--launcher", shlex.join([*HOROVODRUN, "--gloo", "-np"]) + " {ranks}"]
    assert scaling.main([*words, "--", "--no-lms", "--model", "unet3d"]) == 0, capsys.readouterr().err
    with open(out / "scaling.csv", newline="") as file:
        found = {(row["scaling"], int(row["ranks"])): row for row in csv.DictReader(file)}
    assert sorted(found) == [("strong", 1), ("strong", 2)]
    assert [(int(row["steps"]), int(row["samples"])) for row in found.values()] == [(4, 4), (2, 4)]
    assert all(float(row["epoch_seconds"]) > float(row["step_seconds"]) > 0 for row in found.values())
    assert 0 < float(found["strong", 2]["predicted_efficiency"]) < 1  # many gradients against a short step
    compared = json.loads((out / "result.json").read_text())
    assert compared["settings"] == {"model": "unet3d", "resolution": "16", "batch_size": 1, "precision": "float32"}
    assert compared["machines"][0]["cores"] == os.cpu_count()
    assert compared["versions"]["tensorflow"]
    link = probe.load(out / "probe.json").link
    assert 1e7 < link.bytes_per_second < 1e12
    assert 0 < link.latency_seconds < 1
