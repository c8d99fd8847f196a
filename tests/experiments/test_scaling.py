"""`experiments.scaling` with a launcher that only writes what a run would write; one real run is in test_scaling_ranks."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
import textwrap
import time
from dataclasses import asdict
from pathlib import Path

import pytest

from lms3d.experiments import scaling
from lms3d.experiments.feeding import accepted
from lms3d.experiments.harness import ranks
from lms3d.experiments.scalability import measured, probe
from lms3d.experiments.scalability.model import RingLink, ring_seconds

ROOT = Path(__file__).parents[2]
# Strong: 20 samples; a step takes 1 s on one rank and 1.25 s on two; every epoch 2 s of validation and saving.
LAUNCHER = """\
    #!{python}
    import json, os, sys, time
    from pathlib import Path

    ranks, words = int(sys.argv[1]), sys.argv[2:]
    given = dict(zip(words, words[1:]))
    with open("{calls}", "a") as file:
        print(json.dumps([ranks, sorted(os.sched_getaffinity(0)), words]), file=file)
    if ranks == {broken}:
        print("[0]<stderr>:lms3d: error: --data nowhere: no case was found")
        print("Process 0 exit with status code 2.")
        sys.exit(1)
    if ranks == {hanging}:
        time.sleep(60)
    out, epochs = Path(given["--output"]), int(given["--epochs"])
    steps = int(given.get("--steps-per-epoch", 20 // ranks))
    step = 1.0 if ranks == 1 else 1.25
    out.mkdir(parents=True)
    options = {{"model": "isensee2017", "batch_size": 1, "steps_per_epoch": steps}}
    (out / "config.json").write_text(json.dumps({{"options": options}}))
    seconds = [100.0] + (epochs - 1) * [steps * step + 2]
    lines = ["epoch,loss,seconds", *(f"{{n + 1}},-0.5,{{s}}" for n, s in enumerate(seconds))]
    (out / "history.csv").write_text("\\n".join(lines) + "\\n")
    rows = ["step,kind,seconds"]
    for epoch in range(epochs):
        rows += [f"0,train,{{step + 9 * (epoch == 0)}}" for _ in range(steps)] + ["0,test,0.5"]
    (out / "lms_stats.csv").write_text("\\n".join(rows) + "\\n")
"""


class Fake:
    """A launcher, and the programs that it was asked to start."""

    def __init__(self, folder: Path, broken: int = 0, hanging: int = 0) -> None:
        self.path, self.calls_file = folder / "launch", folder / "calls.jsonl"
        text = textwrap.dedent(LAUNCHER).format(
            python=sys.executable, calls=self.calls_file, broken=broken, hanging=hanging
        )
        self.path.write_text(text)
        self.path.chmod(0o755)

    @property
    def calls(self) -> list[list]:
        return (
            [json.loads(line) for line in self.calls_file.read_text().splitlines()] if self.calls_file.exists() else []
        )


def run(tmp_path: Path, fake: Fake, *words: str) -> int:
    return scaling.main(["--launcher", f"{fake.path} {{ranks}}", "--output", str(tmp_path / "out"), *words])


def rows(tmp_path: Path) -> dict[tuple[str, int], dict[str, str]]:
    with open(tmp_path / "out/scaling.csv", newline="") as file:
        return {(row["scaling"], int(row["ranks"])): row for row in csv.DictReader(file)}


def test_the_table_has_the_form_of_table_7(tmp_path, capsys):
    assert run(tmp_path, Fake(tmp_path), "--ranks", "1", "2") == 0
    text = (tmp_path / "out/report.md").read_text()
    assert "| 1 | 20 | 22.00 | 0.909 |  |  | 1.000 |  |  |" in text
    assert "| 2 | 10 | 14.50 | 1.38 | 1.52 | 75.86% | 1.250 | 80.00% |  |" in text  # 22 / 14.5 / 2, and 1 / 1.25
    assert "| 2 | 8 | 12.00 | 1.33 | 1.67 | 83.33% | 1.250 | 80.00% |  |" in text  # weak: 10 s against 12
    assert "98.33 %" in text  # the model's part
    assert "75.86%" in capsys.readouterr().out
    assert (tmp_path / "out/model.csv").exists()


def test_the_result_can_be_compared_with_another_clusters(tmp_path):
    assert run(tmp_path, Fake(tmp_path), "--ranks", "1", "2", "--label", "metal") == 0
    found = accepted.read(tmp_path / "out/result.json")
    assert found.label == "metal"
    assert found.settings == {"model": "isensee2017", "resolution": "", "batch_size": 1, "precision": ""}
    speeds = {(point.data, point.ranks): point.speed for point in found.points}
    assert speeds["strong", 1].mean == pytest.approx(20 / 22)
    assert speeds["strong", 2].mean == pytest.approx(20 / 14.5)
    assert [point.efficiency for point in found.points] == [
        None,
        pytest.approx(0.7586, abs=1e-4),
        None,
        pytest.approx(0.833, abs=1e-3),
    ]
    assert speeds["weak", 2].count == 2


def test_the_first_epoch_and_its_steps_are_left_out(tmp_path):
    assert run(tmp_path, Fake(tmp_path), "--scaling", "strong") == 0
    row = rows(tmp_path)["strong", 1]
    assert (float(row["epoch_seconds"]), float(row["step_seconds"]), int(row["epochs"])) == (22.0, 1.0, 2)


def test_all_ranks_train_the_same_and_have_the_same_cores(tmp_path):
    fake = Fake(tmp_path)
    words = [
        "--task",
        "brats",
        "--data",
        str(tmp_path),
        "--resolution",
        "32",
        "--cores-per-rank",
        "1",
        "--weak-steps",
        "3",
    ]
    assert run(tmp_path, fake, *words, "--", "--no-lms", "--batch-size", "1") == 0
    assert [call[0] for call in fake.calls] == [1, 2, 1, 2]
    most = len(os.sched_getaffinity(0))
    assert [len(call[1]) for call in fake.calls] == [min(n, most) for n in (1, 2, 1, 2)]
    programs = [call[2][:-2] for call in fake.calls]  # without --output
    assert programs[0] == programs[1]
    shared = ["-m", "lms3d.train", "--task", "brats", "--data", str(tmp_path), "--resolution", "32", "--epochs", "3"]
    assert programs[0][1:] == [*shared, "--no-lms", "--batch-size", "1"]
    assert programs[2] == programs[3] == [*programs[0], "--steps-per-epoch", "3", "--validation-steps", "1"]
    assert fake.calls[1][2][-1].endswith("out/runs/strong-2")


def test_finished_runs_are_kept_and_only_missing_ones_run(tmp_path):
    fake = Fake(tmp_path)
    assert run(tmp_path, fake, "--scaling", "strong", "--ranks", "1") == 0
    assert run(tmp_path, fake, "--scaling", "strong", "--ranks", "1", "2") == 2  # it would have other cores per rank
    same = ["--scaling", "strong", "--cores-per-rank", "1", "--output", str(tmp_path / "other")]
    assert run(tmp_path, fake, *same, "--ranks", "1") == 0
    (tmp_path / "other/runs/strong-2").mkdir()  # left by a run that was stopped
    assert run(tmp_path, fake, *same, "--ranks", "1", "2") == 0
    assert [call[0] for call in fake.calls] == [1, 1, 2]
    assert run(tmp_path, fake, *same, "--ranks", "1", "--again") == 0
    assert [call[0] for call in fake.calls] == [1, 1, 2, 1]


def test_other_options_in_the_same_folder_are_refused(tmp_path, capsys):
    fake = Fake(tmp_path)
    assert run(tmp_path, fake, "--scaling", "strong", "--ranks", "1") == 0
    assert run(tmp_path, fake, "--scaling", "strong", "--ranks", "1", "--epochs", "4") == 2
    assert "was begun with" in capsys.readouterr().err


def test_a_failed_run_is_told_with_its_own_words_and_the_others_are_kept(tmp_path, capsys):
    fake = Fake(tmp_path, broken=2)
    assert run(tmp_path, fake, "--scaling", "strong", "--ranks", "1", "2", "4", "--cores-per-rank", "1") == 1
    assert (
        "strong-2: exit code 1: [0]<stderr>:lms3d: error: --data nowhere: no case was found" in capsys.readouterr().err
    )
    assert sorted(rows(tmp_path)) == [("strong", 1), ("strong", 4)]
    assert "Failed:\n- strong-2" in (tmp_path / "out/report.md").read_text()


def test_a_run_is_ended_when_the_time_is_over_and_later_ones_are_skipped(tmp_path):
    fake, started = Fake(tmp_path, hanging=2), time.monotonic()
    words = ("--scaling", "strong", "--ranks", "2", "4", "--cores-per-rank", "1", "--minutes", "0.02")
    assert run(tmp_path, fake, *words) == 0
    assert time.monotonic() - started < 40  # it would have slept for 60
    text = (tmp_path / "out/report.md").read_text()
    assert "Skipped:\n- strong-2: ended: its time was over\n- strong-4 (" in text
    assert "Failed:" not in text
    assert not subprocess.run(["pgrep", "-f", str(fake.path)], capture_output=True).stdout


def test_what_is_skipped_is_in_the_report(tmp_path):
    assert run(tmp_path, Fake(tmp_path), "--scaling", "strong", "--ranks", "1", "--minutes", "0.000001") == 0
    assert "Skipped:\n- strong-1" in (tmp_path / "out/report.md").read_text()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["--launcher", "no-such-launcher {ranks}"],
            "no-such-launcher was not found; install Horovod with `make horovod`",
        ),
        (["--launcher", "horovodrun -np {n}"], "expected a command with {ranks}"),
        (["--epochs", "1"], "expected at least 2, since the first epoch is warm-up"),
        (["--ranks", "0"], "0 is too small"),
    ],
)
def test_wrong_options_are_one_line(tmp_path, capsys, words, said):
    fake = Fake(tmp_path)
    assert run(tmp_path, fake, *words) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
    assert not fake.calls


def test_a_run_without_statistics_of_steps_is_measured_by_its_epochs(tmp_path):
    (tmp_path / "history.csv").write_text("epoch,seconds\n1,9\n2,4\n3,6\n")
    (tmp_path / "config.json").write_text(json.dumps({"options": {"batch_size": 8, "steps_per_epoch": 5}}))
    one = measured.read(tmp_path, scaling="strong", ranks=2)
    assert (one.samples, one.epoch, one.step, one.images_per_second) == (80, 5.0, None, 16.0)
    assert measured.Measurement.of(json.loads(json.dumps({**asdict(one), "name": "strong-2"}))) == one


def test_a_run_that_is_too_short_says_so(tmp_path):
    (tmp_path / "history.csv").write_text("epoch,seconds\n1,9\n")
    with pytest.raises(ValueError, match="found 1 epochs, expected at least 2"):
        measured.read(tmp_path, scaling="strong", ranks=2)


def test_efficiency_is_by_samples_per_second(tmp_path):
    one = measured.Measurement(scaling="strong", ranks=1, batch=1, steps=228, epoch_seconds=(590.0,))
    many = measured.Measurement(scaling="strong", ranks=16, batch=1, steps=14, epoch_seconds=(37.0,))
    assert measured.efficiency(many, one) == pytest.approx(590 / 228 * 14 / 37)  # and not 590 / 37 / 16
    assert measured.baseline([many, one], "strong") == one


def test_the_probe_finds_the_link_and_the_model_uses_it(tmp_path):
    fake = Fake(tmp_path)
    link = RingLink(bytes_per_second=2e9, latency_seconds=3e-4)
    (tmp_path / "out").mkdir()
    pairs = [[size, ring_seconds(2, size, link)] for size in (1 << 10, 1 << 16, 1 << 20, 1 << 25)]
    (tmp_path / "out/probe.json").write_text(json.dumps({"ranks": 2, "all_reduces": pairs}))
    found = probe.load(tmp_path / "out/probe.json").link
    assert found.bytes_per_second == pytest.approx(2e9)
    assert found.latency_seconds == pytest.approx(3e-4)
    assert run(tmp_path, fake) == 0
    text = (tmp_path / "out/report.md").read_text()
    assert "## Links of this machine" in text
    assert rows(tmp_path)["strong", 2]["predicted_efficiency"] == ""  # it does not know how much is averaged


def test_a_broken_probe_file_is_named(tmp_path):
    (tmp_path / "probe.json").write_text('{"ranks": 2}')
    with pytest.raises(ValueError, match=r"probe\.json: .*expected what --probe writes"):
        probe.load(tmp_path / "probe.json")


def test_parameters_are_counted_in_the_weights_that_a_run_kept(tmp_path):
    import io
    import zipfile

    import h5py

    stream = io.BytesIO()
    with h5py.File(stream, "w") as file:
        file["layers/conv/vars/0"] = [[0.0] * 5] * 7
        file["layers/conv/vars/1"] = [0.0] * 5
    with zipfile.ZipFile(tmp_path / "best.keras", "w") as parts:
        parts.writestr("model.weights.h5", stream.getvalue())
    (tmp_path / "history.csv").write_text("epoch,seconds\n1,9\n2,4\n")
    (tmp_path / "lms_stats.csv").write_text("kind,seconds\n" + "train,2.5\n" * 4 + "test,1\n")
    one = measured.read(tmp_path, scaling="weak", ranks=1)
    assert (one.parameters, one.steps, one.step_seconds) == (40, 2, (2.5, 2.5))


def test_the_model_alone_answers_at_once_and_runs_nothing(tmp_path):
    command = [sys.executable, "-m", "lms3d.experiments.scaling", "--model-only", "--output", str(tmp_path / "out")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "| 16 | 92.19 % |" in done.stdout
    with open(tmp_path / "out/model.csv", newline="") as file:
        found = {(row["scaling"], row["distribution"], int(row["ranks"])) for row in csv.DictReader(file)}
    assert {("strong", "fixed shares", 16), ("strong", "one order", 1024), ("weak", "", 1024)} <= found
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["model.csv"]


def test_the_model_needs_no_tensorflow(tmp_path):
    code = "import sys, lms3d.experiments.scaling as s; s.main(['--model-only', '--output', sys.argv[1]]); assert 'tensorflow' not in sys.modules and 'keras' not in sys.modules"  # noqa: E501
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], cwd=ROOT, check=True, capture_output=True, timeout=60)


def test_horovods_launcher_is_found_beside_the_interpreter(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "horovodrun").write_text("#!/bin/sh\n")
    (tmp_path / "horovodrun").chmod(0o755)
    monkeypatch.setattr(ranks.sys, "executable", str(tmp_path / "python"))
    assert ranks.Launcher().command(3, ["x"]) == [str(tmp_path / "horovodrun"), "-np", "3", "x"]


def test_a_rank_s_exception_is_told_and_not_the_launcher_s(tmp_path):
    log = tmp_path / "log.txt"
    log.write_text(
        "[0]<stderr>:Traceback:\n[0]<stderr>:AttributeError: no barrier\nTraceback\nRuntimeError: Horovod detected\n1\n"
    )
    assert ranks.last_words(log) == "[0]<stderr>:AttributeError: no barrier"


@pytest.mark.parametrize(("percent", "said"), [(97.0, True), (4.0, False)])
def test_the_report_tells_which_runs_a_busy_machine_disturbed(tmp_path, monkeypatch, percent, said):
    monkeypatch.setattr("lms3d.experiments.harness.store.psutil.cpu_percent", lambda _: percent)
    assert run(tmp_path, Fake(tmp_path), "--scaling", "strong", "--ranks", "1") == 0
    text = (tmp_path / "out/report.md").read_text()
    assert ("do not trust these times:\n- strong-1: 97% of the cores" in text) == said
