"""What the parts of two ranks draw and judge. Real jobs: `make torture`, tests/lms3d/ranks/test_failure.py."""

from __future__ import annotations

import argparse
import random
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from lms3d.atomic_files import write_json
from lms3d.errors import InputError
from tests.lms3d.ranks import started
from tests.stress import ranks
from tests.stress.ranks import Ended

GOOD = Ended(code=1, lines=["lms3d: error: rank 1 is gone"])


@pytest.mark.parametrize(
    ("change", "of_a_signal", "of_a_file"),
    [
        ({}, "", ""),
        ({"code": 0}, "", "the job ended with code 0"),  # after a signal it had just finished
        ({"code": None}, "the job hangs", "the job hangs"),
        ({"lines": []}, "", "0 lines of lms3d"),
        ({"lines": ["a", "b"]}, "2 lines of lms3d: a | b", "2 lines of lms3d: a | b"),
        ({"names": ["swap/a"]}, "left behind: swap/a", "left behind: swap/a"),
    ],
)
def test_what_counts_as_wrong(change, of_a_signal, of_a_file):
    ended = replace(GOOD, **change)
    assert ended.wrong(must_fail=False, must_tell=False).startswith(of_a_signal)
    assert bool(ended.wrong(must_fail=False, must_tell=False)) == bool(of_a_signal)
    assert ended.wrong(must_fail=True, must_tell=True).startswith(of_a_file)
    assert bool(ended.wrong(must_fail=True, must_tell=True)) == bool(of_a_file)


def test_a_process_that_is_left_is_wrong():
    assert "left behind: process" in replace(GOOD, left=[psutil.Process()]).wrong(must_fail=True, must_tell=True)


def options(folder: Path, **more) -> argparse.Namespace:
    return argparse.Namespace(output=folder, data=None, seed=0, kills=12, repeats=4, **more)


def test_all_signals_with_swapping_and_without(tmp_path):
    groups = ranks.KILLS.groups
    assert len(groups) == 6
    cases = [case for group in groups for case in ranks.KILLS.cases(options(tmp_path), group)]
    assert sorted(map(int, cases)) == list(range(12))
    assert ranks.KILLS.cases(options(tmp_path), "SIGTERM, without LMS") == ["4", "10"]
    assert [ranks.REPEATS.cases(options(tmp_path), how) for how in ranks.REPEATS.groups] == [["0", "2"], ["1", "3"]]
    assert len([case for rank in ranks.FILES.groups for case in ranks.FILES.cases(options(tmp_path), rank)]) == 12


@pytest.fixture
def jobs(monkeypatch):
    """Jobs that are no processes: name of the folder -> what becomes of it, "same" by default."""
    becomes, trained = {}, []

    def finish(folder, data, training):
        trained.append((folder.name, data, training))
        (folder / "run").mkdir(parents=True)
        (folder / "swap").mkdir()
        if becomes.get(folder.name) == "fails":
            raise ranks.Failed("it ended with code 1")
        if becomes.get(folder.name) == "slips":
            found = {"epoch": 2, "step": 3, "differ": ["model/kernel", "model/bias"]}
            write_json(folder.parent / "bits" / "rank-1-of-2-differs-1.json", found)
        return 30.0

    def same(reference, run):
        if becomes.get(run.parent.name) == "damaged":
            raise ranks.checkpoint.DamagedCheckpoint("it cannot be read")
        return becomes.get(run.parent.name) != "other"

    monkeypatch.setattr(ranks, "finish", finish)
    monkeypatch.setattr(ranks, "same", same)
    monkeypatch.setattr(ranks.checkpoint, "load", lambda path: ({}, {}))
    return becomes, trained


@pytest.mark.parametrize(
    ("becomes", "wrong"),
    [
        ("same", ""),
        ("other", "other weights than the reference"),
        ("fails", "it ended with code 1"),
        ("damaged", "it cannot be read"),
        ("slips", "rank 1: step 3 of epoch 2 is the first with other bits, in model/kernel, model/bias; see"),
    ],
)
def test_an_undisturbed_job_is_compared_with_the_reference(tmp_path, jobs, becomes, wrong):
    (tmp_path / "ranks" / "bits").mkdir(parents=True)
    jobs[0]["repeat-1"] = becomes
    jobs[0]["reference"] = "same"
    result = ranks.REPEATS.run(options(tmp_path), "without LMS", "1")
    assert wrong in result.wrong
    assert bool(result.wrong) == (tmp_path / "ranks" / "repeat-1").exists() == bool(wrong)
    name, _, training = jobs[1][-1]
    assert name == "repeat-1"
    assert "--no-lms" in training
    assert training[-2:] == ["--record-bits", str(tmp_path / "ranks" / "bits")]


def test_the_reference_is_made_once_and_of_one_data_set(tmp_path, jobs):
    assert ranks._reference(options(tmp_path)) == ranks._reference(options(tmp_path)) == 30.0
    assert len(jobs[1]) == 2  # the first makes caches
    other = options(tmp_path)
    other.data = "scans"
    with pytest.raises(InputError, match="--data none, this call with scans"):
        ranks._reference(other)


@pytest.fixture
def launcher(monkeypatch, tmp_path):
    """The command in the place of horovodrun: `launcher("exit 3")`."""

    def launcher(script: str) -> None:
        (tmp_path / "launcher").write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "launcher").chmod(0o755)
        monkeypatch.setattr(started, "HOROVODRUN", [str(tmp_path / "launcher")])

    return launcher


def test_a_rank_that_had_ended_is_not_struck(tmp_path, launcher):
    launcher("true")
    assert ranks._killed(options(tmp_path), "SIGKILL, swapping", tmp_path / "job", 1.1, random.Random(0)) is None


def test_a_job_that_hangs_or_fails_is_told(tmp_path, launcher, monkeypatch):
    monkeypatch.setattr(ranks, "HUNG_SECONDS", 0.5)
    launcher("sleep 60")
    with pytest.raises(ranks.Failed, match="has not ended"):
        ranks.finish(tmp_path, None, [])
    monkeypatch.setattr(ranks, "HUNG_SECONDS", 60.0)
    launcher("exit 3")
    with pytest.raises(ranks.Failed, match="ended with code 3"):
        ranks.finish(tmp_path, None, [])


def test_what_a_job_leaves_is_seen(tmp_path, launcher, monkeypatch):
    monkeypatch.setattr(ranks, "SETTLED_SECONDS", 0.2)
    launcher(f"echo lms3d: error: gone; touch {tmp_path}/swap/a; setsid sleep 60 & sleep 1; exit 1")
    with ranks.job(tmp_path, None, []) as running:
        running.until(lambda: len(running.alive()) > 1)
        ended = ranks._ended(running, tmp_path, 5)
    assert (ended.code, ended.lines, ended.names) == (1, ["lms3d: error: gone"], ["swap/a"])
    assert "left behind: process" in ended.wrong(must_fail=True, must_tell=True)
