"""What all experiments stand on: tables, pages, promises, stores, and children that answer once."""

from __future__ import annotations

import csv
import json
import re
import sys
import textwrap
import threading

import pytest

from docs import list_commands
from lms3d.experiments.harness import child, command, commands, page, part, runs, store, table
from lms3d.experiments.harness.part import MIB, PartResult, StudyPart
from lms3d.experiments.harness.store import Records

EXPERIMENTS = [name for name in list_commands.commands() if name.startswith("experiments.")]


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_the_help_of_an_experiment_says_why_it_is_there_and_how_it_ends(name):
    shown = list_commands.module_of(name)._parser().format_help()
    assert re.search(r"^exit codes: 0 done.*2 \w.*130 interrupted", shown, re.MULTILINE | re.DOTALL)
    assert len(re.findall("exit codes:", shown)) == 1
    assert "`python -m" not in shown


def test_the_help_is_the_docstring_of_the_module_and_what_follows_from_its_kind():
    docstring = "`python -m experiments.e FILE`: how much? Little.\n\n1. So it is.\n"
    given = ("e", lambda options, typed: None, lambda parser: None, docstring)
    parser = command.of(*given, "examples: none", exits={1: "a run failed"}, resumed=True)[1]()
    assert parser.description.startswith("How much? Little.\n\n1. So it is.\n\nWhat is finished is kept")
    assert parser.epilog == (
        "examples: none\nexit codes: 0 done, 1 a run failed, 2 wrong option or input, 130 interrupted (run again to go on)"
    )
    assert command.of(*given)[1]().epilog == "exit codes: 0 done, 2 wrong option or input, 130 interrupted"


def test_a_table_for_people_and_the_same_for_programs(tmp_path):
    assert table.markdown(("a", "b"), [("1", "2")]) == "| a | b |\n| --- | --- |\n| 1 | 2 |"
    assert table.filled(("a", "b"), [("", "2"), ("", "3")]) == "| b |\n| --- |\n| 2 |\n| 3 |"
    assert table.filled(("a",), []) == ""
    assert [table.cell(None, ".2f"), table.cell(0.125, ".0%"), table.cell(3, "{} x".format)] == ["", "12%", "3 x"]
    table.write_csv(tmp_path / "t.csv", ("name", "value"), [{"name": "x", "value": 1 / 3, "more": 1}, {"value": None}])
    assert table.read_csv(tmp_path / "t.csv") == [{"name": "x", "value": "0.333333"}, {"name": "", "value": ""}]


def test_a_page_leaves_out_what_is_empty_and_lists_what_is_missing(tmp_path):
    known = Records(tmp_path, say=lambda text: None)
    known.skip("b-2 (no time)")
    found = [{"name": "a-1", "busy": 0.4}, {"name": "a-2", "busy": 0.1}]
    gaps = page.gaps(known, found)
    assert gaps == ["The machine was not idle:\n- a-1: 40% of the cores in use by others", "Skipped:\n- b-2 (no time)"]
    assert page.write(tmp_path / "report.md", ["# Title", "", *gaps[1:]]) == "# Title\n\nSkipped:\n- b-2 (no time)\n"
    assert (tmp_path / "report.md").read_text().endswith("(no time)\n")


def test_other_settings_are_refused_and_the_same_are_not(tmp_path):
    store.remember({"batch_size": 2, "sides": (1, 2)}, tmp_path)
    store.remember({"batch_size": 2, "sides": (1, 2)}, tmp_path)
    with pytest.raises(store.InputError, match=r"--batch-size: found 3, but .* was begun with 2"):
        store.remember({"batch_size": 3, "sides": (1, 2)}, tmp_path)


def test_a_record_that_no_measurement_wrote_is_refused(tmp_path):
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts/a-1.json").write_text('{"ranks": 1}')
    with pytest.raises(store.InputError, match=r"KeyError.*delete it and run again"):
        Records(tmp_path).found("a")


def test_a_result_is_one_record_by_the_names_of_the_csv_files():
    report = {
        "planner": "hybrid",
        "predicted_step_seconds": 2.2,
        "unedited_step_seconds": 2.0,
        "slabs": ((0, 16), (1, 8)),
    }
    one = StudyPart(method="LMS", model="unet3d", resolution=32, limit_mib=100)
    result = PartResult(
        part=one, outcome="trained", seconds=(2.0, 2.0), baseline_seconds=(2.0, 1.0), report=report,
        traffic={"swapped_out_bytes": 10.0, "swap_out_seconds": 2.0},
    )  # fmt: skip
    record = result.record()
    assert (record["ratio"], record["slabs"], record["limit_mib"]) == (1.5, "16/8", 100)
    assert record["predicted_ratio"] == pytest.approx(1.1)
    assert (result.bytes_per_second("out"), result.bytes_per_second("in")) == (5.0, None)
    assert one.limit_bytes == 100 * MIB
    tried = [
        result,
        PartResult(part=StudyPart(method="LMS", model="unet3d", resolution=32, limit_mib=50), outcome="out of memory"),
    ]
    assert part.smallest_mib(tried, "LMS") == 100


@pytest.fixture
def program(tmp_path, monkeypatch):
    """Makes a program of some lines stand in the place of every child."""

    def make(lines: str) -> None:
        script = tmp_path / "child.py"
        script.write_text(f"import sys, time\nasked = sys.argv[1]\n{textwrap.dedent(lines)}")
        monkeypatch.setattr(child, "of_module", lambda name: [sys.executable, str(script)])

    return make


def test_a_child_that_answers_once(program, tmp_path):
    program("print(asked)")
    assert child.only_answer("any", {"x": 1}, tmp_path / "log.txt", 60) == {"x": 1}
    program("print('why', file=sys.stderr); sys.exit(3)")
    with pytest.raises(child.ChildFailed, match="failed: exit code 3; its last lines: why"):
        child.only_answer("any", {}, tmp_path / "log.txt", 60)
    program("time.sleep(60)")
    with pytest.raises(child.ChildFailed, match="out of time"):
        child.only_answer("any", {}, tmp_path / "log.txt", 0.2)


def test_a_child_that_another_thread_ends_has_no_result(tmp_path, monkeypatch):
    """It has not run out of memory, and is run again."""
    script = tmp_path / "child.sh"
    script.write_text("#!/bin/sh\necho '{\"ready\": true}'\nexec sleep 60\n")
    script.chmod(0o755)
    monkeypatch.setattr(child.sys, "executable", str(script))
    trainer = child.Child(StudyPart(method="LMS", model="unet3d", resolution=16, limit_mib=9), tmp_path / "log.txt", 60)
    threading.Timer(0.2, trainer.kill).start()
    with pytest.raises(child.ChildFailed, match="out of time: ended before its answer"):
        trainer.step()


def test_a_command_that_fails_hands_on_its_exit_code(tmp_path):
    with pytest.raises(commands.CommandFailed, match="exit code 3") as failure:
        commands.run([sys.executable, "-c", "raise SystemExit(3)"])
    assert failure.value.exit_code == 3
    with (tmp_path / "log.txt").open("w") as log:
        assert commands.exit_code([sys.executable, "-c", "print('said')"], log) == 0
    assert (tmp_path / "log.txt").read_text() == "said\n"


def test_what_the_files_of_a_run_say(tmp_path):
    assert (runs.epochs(tmp_path), runs.training_steps(tmp_path), runs.written(tmp_path)) == ([], [], {})
    assert runs.weight_count(tmp_path) is None
    with (tmp_path / "lms_stats.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("kind", "seconds"), ("train", 1), ("test", 2)])
    (tmp_path / "history.csv").write_text("epoch,seconds\n1,9\n2,4.5\n")
    (tmp_path / "config.json").write_text(json.dumps({"options": {}}))
    assert runs.epoch_seconds(tmp_path) == [9.0, 4.5]
    assert [row["seconds"] for row in runs.training_steps(tmp_path)] == ["1"]
    assert runs.written(tmp_path) == {"options": {}}
