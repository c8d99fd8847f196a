"""What the torture of two ranks draws, judges and keeps. Real jobs: `make torture`, tests/lms3d/ranks/test_failure.py."""

import json
import random
import subprocess
from dataclasses import replace

import pytest

from experiments import rank_jobs, torture
from experiments.torture import Outcome
from lms3d.files import write_json

GOOD = Outcome(
    number=0, signal="SIGKILL", rank=1, swaps=True, struck_after=9.0, ended_after=2.0, code=1, lines=1, left="", same=True
)  # fmt: skip


@pytest.mark.parametrize(
    ("change", "good"),
    [
        ({}, True),
        ({"code": 0}, False),
        ({"code": 0, "signal": "SIGTERM"}, True),  # it had just finished
        ({"ended_after": 61.0}, False),
        ({"lines": 2}, False),
        ({"left": "process 7"}, False),
        ({"same": False}, False),
    ],
)
def test_what_counts_as_good(change, good):
    assert replace(GOOD, **change).good is good


def test_all_signals_with_swapping_and_without():
    drawn = [torture._drawn(number, 30.0, random.Random(number)) for number in range(12)]
    assert {(one.signal, one.swaps) for one in drawn} == {
        (signal, swaps) for signal in ("SIGKILL", "SIGTERM", "SIGINT") for swaps in (True, False)
    }
    assert all("--no-lms" in one.training or "disk" in one.training for one in drawn)
    assert all(1 <= one.at_seconds <= 30 for one in drawn)


def test_it_goes_on_where_it_stopped(tmp_path, monkeypatch, capsys):
    tried = []

    def struck(folder, strike, data):
        tried.append(strike.number)
        if len(tried) == 3:
            raise KeyboardInterrupt
        return replace(GOOD, number=strike.number, signal=strike.signal, same=strike.number != 1 or tried.count(1) == 3)

    monkeypatch.setattr(torture, "_undisturbed", lambda *_: 30.0)
    monkeypatch.setattr(torture, "_struck", struck)
    words = ["--kills", "4", "--repeats", "0", "--output", str(tmp_path)]
    assert torture.main(words) == 130
    assert torture.main(words) == 1
    assert tried == [0, 1, 2, 1, 2, 3]  # what failed is tried again
    told = capsys.readouterr()
    assert "jobs 2 of 4 failed" in told.err
    assert "| SIGTERM | yes | 1 | 1 |" in told.out
    assert torture.main(words) == 0
    assert tried[6:] == [1]
    assert "| SIGTERM | yes | 1 | 0 |" in capsys.readouterr().out


@pytest.fixture
def repeated(tmp_path, monkeypatch):
    """Names of the jobs that were trained, in folders that `same` tells apart by `other`; of `damaged` it can read nothing."""
    trained, other, failing, damaged = [], set(), set(), set()

    def finish(folder, name, data, training):
        number = len(trained)
        trained.append(name)
        drawn = torture._drawn(3 * number, 30.0, random.Random(0)).training
        assert (data, training) == ("scans", [*drawn, "--record-bits", str(folder / "bits")])
        (folder / name).mkdir()
        if name in failing:
            raise rank_jobs.Failed(name)
        return 1.0

    monkeypatch.setattr(torture, "_undisturbed", lambda *_: 30.0)
    monkeypatch.setattr(rank_jobs, "finish", finish)

    def same(reference, run):
        if run.name in damaged:
            raise torture.checkpoint.Damaged(run.name)
        return run.name not in other

    monkeypatch.setattr(rank_jobs, "same", same)
    return trained, other, failing, damaged


def repeat(folder, count):
    return torture.main(["--kills", "0", "--data", "scans", "--output", str(folder), "--repeats", str(count)])


def test_jobs_without_a_signal_are_compared_with_the_reference(tmp_path, repeated, capsys):
    trained, other, failing, damaged = repeated
    other.add("repeat-2")
    failing.add("repeat-3")
    damaged.add("repeat-4")
    assert repeat(tmp_path, 1) == 0
    assert repeat(tmp_path, 4) == 1
    told = capsys.readouterr()
    assert "repeat 2, without LMS: OTHER weights" in told.out
    assert "repeats 3, 4 of 4 failed; repeats 2 of 4 had other bits than the reference;" in told.err
    assert trained == ["repeat-1", "repeat-2", "repeat-3", "repeat-4"]
    assert repeat(tmp_path, 1) == 1  # what went wrong is told, but not tried again
    assert len(trained) == 4
    assert [path.name for path in sorted(tmp_path.glob("repeat-*"))] == ["repeat-2", "repeat-3", "repeat-4"]


def test_where_most_jobs_differ_the_reference_may_be_odd(tmp_path, repeated, capsys):
    repeated[1].update(("repeat-1", "repeat-2"))
    repeated[2].add("repeat-4")
    assert repeat(tmp_path, 4) == 1
    assert "repeats 1, 2 of 4 had other bits than the reference, so it may be the reference that is odd" in (
        capsys.readouterr().err
    )


def test_the_first_step_that_differs_is_told_whatever_the_weights_are_in_the_end(
    tmp_path, repeated, monkeypatch, capsys
):
    finish = rank_jobs.finish

    def slips(folder, name, data, training):
        seconds = finish(folder, name, data, training)
        if name == "repeat-2":
            found = {"epoch": 2, "step": 3, "differ": ["model/kernel", "model/bias"]}
            write_json(folder / "bits" / "rank-1-of-2-differs-1.json", found)
        return seconds

    monkeypatch.setattr(rank_jobs, "finish", slips)
    assert repeat(tmp_path, 3) == 1
    told = capsys.readouterr()
    assert (
        "repeat 2, without LMS: same weights; rank 1: step 3 of epoch 2 is the first with other bits, in model/kernel, model/bias;"
        in (told.out)
    )
    assert "repeats 2 of 3 had other bits" in told.err
    assert [path.name for path in tmp_path.glob("repeat-*")] == ["repeat-2"]
    lines = (tmp_path / "repeats.jsonl").read_text().splitlines()
    assert [bool(json.loads(line)["first"]) for line in lines] == [False, True, False]


def test_results_of_before_the_record_are_read(tmp_path, repeated):
    (tmp_path / "repeats.jsonl").write_text('{"number": 0, "swaps": true, "weights": "same"}\n')
    assert repeat(tmp_path, 1) == 0
    assert not repeated[0]


def test_jobs_on_other_scans_are_not_compared(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(rank_jobs, "finish", lambda folder, name, data, training: (folder / name).mkdir() or 30.0)
    monkeypatch.setattr(torture.checkpoint, "load", lambda path: ({}, {}))
    assert repeat(tmp_path, 1) == 0
    assert torture.main(["--kills", "0", "--output", str(tmp_path)]) == 2
    assert "--data" in capsys.readouterr().err


def test_a_reference_that_cannot_be_read_ends_the_torture(tmp_path, capsys):
    (tmp_path / "undisturbed.json").write_text('{"seconds": 30.0}')
    assert repeat(tmp_path, 1) == 2
    assert "undisturbed" in capsys.readouterr().err
    assert not (tmp_path / "repeats.jsonl").exists()


def test_no_job_at_all_is_refused(tmp_path, capsys):
    assert repeat(tmp_path / "new", 0) == 2
    assert "--kills 0 and --repeats 0" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


def test_a_job_that_hangs_is_ended(tmp_path, monkeypatch):
    monkeypatch.setattr(rank_jobs, "HUNG_SECONDS", 0.5)
    job = subprocess.Popen(["sleep", "60"])
    monkeypatch.setattr(rank_jobs, "start", lambda *_: job)
    with pytest.raises(rank_jobs.Failed, match="has not ended"):
        rank_jobs.finish(tmp_path, "hung", None, [])
    assert job.wait(10) == -9
