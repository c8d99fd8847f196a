"""What the torture of two ranks draws, judges and keeps. Real jobs: `make torture`, tests/lms3d/ranks/test_failure.py."""

import random
from dataclasses import replace

import pytest

from experiments import torture
from experiments.torture import Outcome

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
    words = ["--kills", "4", "--output", str(tmp_path)]
    assert torture.main(words) == 130
    assert torture.main(words) == 1
    assert tried == [0, 1, 2, 1, 2, 3]  # what failed is tried again
    told = capsys.readouterr()
    assert "jobs 2 of 4 failed" in told.err
    assert "| SIGTERM | yes | 1 | 1 |" in told.out
    assert torture.main(words) == 0
    assert tried[6:] == [1]
    assert "| SIGTERM | yes | 1 | 0 |" in capsys.readouterr().out


def test_undisturbed_jobs_are_compared_with_the_first(tmp_path, monkeypatch, capsys):
    trained = []

    def finish(folder, name, data, training):
        trained.append((name, "--no-lms" in training))
        (folder / name).mkdir()
        return 1.0

    monkeypatch.setattr(torture, "_undisturbed", lambda *_: 30.0)
    monkeypatch.setattr(torture, "finish", finish)
    monkeypatch.setattr(torture, "same", lambda first, other: other.name != "undisturbed-2")
    words = ["--kills", "0", "--output", str(tmp_path), "--undisturbed"]
    assert torture.main([*words, "1"]) == 0
    assert torture.main([*words, "3"]) == 1
    assert trained == [("undisturbed-1", False), ("undisturbed-2", True), ("undisturbed-3", False)]
    assert "undisturbed jobs 2 of 3 ended with other weights" in capsys.readouterr().err
    assert [path.name for path in sorted(tmp_path.glob("undisturbed-*"))] == ["undisturbed-2"]
