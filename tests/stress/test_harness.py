"""The command runs cases in a child, goes on after a stop, and names faults."""

from __future__ import annotations

import json
import os
import pickle
import time

import psutil
import pytest

from tests.stress import __main__ as stress
from tests.stress.harness import LEFT_OUT, Child, Died, Part, Result, alive

ENDS = {"good": "", "bad": "it broke", "dies": "the process ended with code 9", "hangs": "no end after 1 s"}


def cases(options, group):
    if group == "nothing":
        raise RuntimeError("no cases can be named")
    return [*ENDS, *map(str, range(options.graphs))]


def run(options, group, case):
    """What the case's name says, noted in a file; a file of the name `mended` heals all."""
    with (options.output / "tried").open("a") as tried:
        print(group, case, os.getpid(), file=tried)
    if (options.output / "mended").exists():
        return Result(counts={"good": 1})
    match case:
        case "bad":
            raise RuntimeError("it broke")
        case "dies":
            os._exit(9)
        case "hangs":
            time.sleep(60)
    return Result(note="a note", counts={"good": 1})


@pytest.fixture
def command(tmp_path, monkeypatch, capsys):
    """The command with parts of these cases: `command(words)` is its exit code, its output and the cases that it tried."""

    def command(*words, groups=("one",), **rules):
        monkeypatch.setattr(stress, "PARTS", {"toy": (f"{__name__}:PART", ""), "other": (f"{__name__}:PART", "")})
        part = Part(groups=groups, cases=cases, run=run, seconds=1, **rules)
        monkeypatch.setattr(stress.pkgutil, "resolve_name", lambda place: part)
        (tmp_path / "tried").write_text("")
        code = stress.main([*words, "--output", str(tmp_path), "--graphs", "2"])
        return code, capsys.readouterr(), [line.split() for line in (tmp_path / "tried").read_text().splitlines()]

    return command


def test_what_went_wrong_is_told_and_tried_again(command, tmp_path):
    code, told, tried = command("toy")
    assert code == 1
    assert [case for _, case, _ in tried] == [*ENDS, "0", "1"]
    assert "3 cases went wrong" in told.err
    assert "| toy | one | 6 | 3 |" in told.out
    assert "| good 3 |" in told.out
    lines = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    assert all(ENDS.get(one["case"], "") in one["wrong"] for one in lines)
    assert [bool(one["wrong"]) for one in lines] == [False, True, True, True, False, False]
    (tmp_path / "mended").touch()
    code, told, tried = command("toy")
    assert (code, [case for _, case, _ in tried]) == (0, ["bad", "dies", "hangs"])
    assert "| toy | one | 6 | 0 |" in told.out
    assert command("toy")[2] == []
    assert "| toy | one | 6 | 0 |" in (tmp_path / "table.md").read_text()


def test_what_is_tried_once_is_not_tried_again(command):
    assert command("toy", "--match", "bad", once=True)[0] == 1
    code, _, tried = command("toy", "--match", "bad", once=True)
    assert (code, tried) == (1, [])


def test_cases_are_chosen_by_group_name_and_number(command):
    def tried(*words):
        return [(group, case) for group, case, _ in command(*words, groups=("one", "two"))[2]]

    assert tried("toy", "--only", "t*", "--match", "[01]") == [("two", "0"), ("two", "1")]
    drawn = tried("other", "--only", "one", "--match", "[g01]*", "--most", "2")
    assert len(drawn) == 2
    assert tried("other", "--only", "one", "--match", "[g01]*", "--most", "2") == []  # the same are drawn


@pytest.mark.parametrize(("rules", "children"), [({}, 1), ({"fresh_groups": True}, 2), ({"fresh": True}, 4)])
def test_a_child_is_kept_or_not(command, rules, children):
    _, _, tried = command("toy", "--match", "[01]", groups=("one", "two"), **rules)
    assert len(tried) == 4
    assert len({pid for *_, pid in tried}) == children


def test_a_part_that_cannot_begin_leaves_the_others_alone(command):
    code, told, tried = command("toy", groups=("nothing", "one"))
    assert (code, tried) == (1, [])
    assert "no cases can be named" in told.out
    assert command("other", "--match", "good")[0] == 0
    assert command("toy", "--match", "good")[0] == 0  # it has begun


def test_nothing_to_do_and_an_unknown_part_are_told(command):
    code, told, _ = command("toy", "--only", "none")
    assert code == 2
    assert "no case of toy" in told.err
    code, told, _ = command("toys")
    assert code == 2
    assert "found 'toys'; expected some of toy, other" in told.err


def test_what_is_left_out_is_asked_for_again(tmp_path):
    store = stress.Store(tmp_path / "results")
    store.add("part", "group", "case", Result(counts={LEFT_OUT: 1}), 0)
    assert not store.done("part", "group", "case")
    assert stress.Store(tmp_path / "results").done("part", "group", "case", once=True)


def test_a_child_is_ended_with_its_family():
    with Child(ODD="1") as child:
        assert child.call(os.getenv, "ODD") == "1"
        assert os.getenv("ODD") is None
        sleeper = psutil.Process(child.call(start_a_sleeper))
        with pytest.raises(Died, match="no end"):
            child.call(time.sleep, 60, seconds=0.1)
        assert not alive(sleeper)
        assert child.call(os.getenv, "ODD") == "1"  # by a new one


def start_a_sleeper():
    return psutil.Popen(["sleep", "60"]).pid


def test_every_part_is_there():
    for place, _ in stress.PARTS.values():
        part = stress.pkgutil.resolve_name(place)
        assert isinstance(part, Part)
        pickle.dumps((part.cases, part.run))  # a child can be told to call them
