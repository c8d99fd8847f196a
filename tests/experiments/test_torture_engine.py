"""The long run of random steps and functions: it goes on where it was stopped, and says what failed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from experiments import torture_engine
from experiments.fuzzing import batches
from experiments.fuzzing.batches import KINDS, Result


@pytest.fixture
def quick(monkeypatch):
    """Batches run here, and what each gives can be set."""
    ran: list[tuple[str, int]] = []
    failing: set[tuple[str, int]] = set()

    def apart(name: str, number: int) -> Result:
        ran.append((name, number))
        return Result(name, number, 9, 1, 2.0, "abc", "AssertionError: more" if (name, number) in failing else "")

    monkeypatch.setattr(torture_engine, "_apart", apart)
    return ran, failing


def test_it_goes_on_where_it_was_stopped(tmp_path, quick, capsys):
    ran, _ = quick
    arguments = ["--kind", "ledger", "--kind", "limits", "--output", str(tmp_path)]
    assert torture_engine.main([*arguments, "--cases", "1000"]) == 0
    assert ran == [("ledger", 0), ("limits", 0), *(("limits", n) for n in range(1, 10))]
    ran.clear()
    assert torture_engine.main([*arguments, "--cases", "1100"]) == 0
    assert ran == [("ledger", 1), ("limits", 10)]
    rows = capsys.readouterr().out.splitlines()
    assert rows[-2].split() == ["ledger", "20", "2", "0", "4"]
    assert rows[-1].split() == ["limits", "110", "11", "0", "22"]


def test_of_all_kinds_their_share(tmp_path, quick):
    ran, _ = quick
    assert torture_engine.main(["--cases", "100", "--output", str(tmp_path)]) == 0
    assert {name for name, _ in ran} == {*torture_engine.KINDS}


def test_a_failure_is_kept_and_tried_again(tmp_path, quick, capsys):
    ran, failing = quick
    failing.add(("slabs", 7))
    arguments = ["--kind", "slabs", "--cases", "40", "--seed", "7", "--output", str(tmp_path)]
    for expected in ([("slabs", 7), ("slabs", 8)], [("slabs", 7)]):
        ran.clear()
        assert torture_engine.main(arguments) == 1
        assert ran == expected
        assert "1 of 2 batches failed" in capsys.readouterr().err
        assert (tmp_path / "failed-slabs-7.txt").read_text() == "AssertionError: more"
    failing.clear()
    for expected in ([("slabs", 7)], []):
        ran.clear()
        assert torture_engine.main(arguments) == 0
        assert ran == expected
    assert not (tmp_path / "failed-slabs-7.txt").exists()


def test_a_batch_repeats_itself_and_stops_at_a_failure(monkeypatch):
    assert replace(batches.run("ledger", 3, 20), seconds=0) == replace(batches.run("ledger", 3, 20), seconds=0)

    def never(**drawn):
        raise RuntimeError("broken")

    monkeypatch.setitem(KINDS, "ledger", replace(KINDS["ledger"], check=never))
    result = batches.run("ledger", 3, 20)
    assert "RuntimeError: broken" in result.failure
    assert result.cases == 0


def test_plans_of_two_processes_are_compared(monkeypatch):
    told = {"1": "abc", "2": "abd"}

    def in_process(name: str, number: int, hash_seed: str) -> Result:
        return Result(name, number, 5, 0, 1.0, told[hash_seed])

    monkeypatch.setattr(torture_engine, "_in_process", in_process)
    assert torture_engine._apart("limits", 0).failure == "another process made other plans"
    assert not torture_engine._apart("ledger", 0).failure
    told["2"] = "abc"
    assert not torture_engine._apart("limits", 0).failure


def _dies(there, name, number):
    import os

    os._exit(9)


def test_a_process_that_dies_is_a_failure(monkeypatch):
    monkeypatch.setattr(torture_engine, "_send", _dies)
    assert torture_engine._in_process("ledger", 0, "1").failure == "the process ended with code 9"


def test_a_real_batch_in_a_process_of_its_own():
    result = torture_engine._in_process("ledger", 0, "1")
    assert (result.failure, result.cases) == ("", KINDS["ledger"].size)
