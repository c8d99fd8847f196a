"""The comparison's own logic; training and prediction are commands, and are replaced here."""

from __future__ import annotations

import json

import pytest

from lms3d.experiments import compare_resolutions as compare
from lms3d.experiments.harness.commands import CommandFailed
from lms3d.scoring import scores, tables


def row(label: str, case: str, dice: float, region: str = "WT", space: str = "cube") -> dict:
    return {"predictions": label, "case": case, "space": space, "region": region, "dice": dice, "sensitivity": dice,
            "specificity": 1.0}  # fmt: skip


def loss(command) -> float:
    """The model of seed 4 is the best."""
    return -0.9 if command[command.index("--seed") + 1] == "4" else -0.5


DICE = {"32-seed1": 0.5, "48-seed1": 0.6, "32-seed2": 0.7, "48-seed2": 0.8}
PLACES = [(region, space) for region in ("WT", "ET") for space in ("native", "cube")]


def score(command) -> None:
    """What `lms3d.evaluate` writes about groups: the scores of each of their models, one group after the other."""
    output = compare.Path(command[command.index("--output") + 1])
    groups = [command[at + 1].partition("=")[2].split(",") for at, word in enumerate(command) if word == "--group"]
    labels = [compare.Path(run).name for group in groups for run in group]
    rows = [
        row(label, case, DICE[label] + 0.1 * (case == "2"), *at) for label in labels for case in "12" for at in PLACES
    ]
    found = scores.frame(rows)
    tables.write_csv(found, output / "scores.csv")
    (output / "summary.md").write_text(f"summary of {len(groups)} groups\n")


@pytest.fixture
def commands(monkeypatch):
    """The commands that were run; `fail` makes the one with this number end with exit code 3."""

    class Commands(list):
        fail = -1

        def run(self, command):
            self.append(command)
            if len(self) == self.fail:
                raise CommandFailed(command, 3)
            if "lms3d.evaluate" in command:
                score(command)
                return
            if "lms3d.train" in command:
                directory = compare.Path(command[command.index("--output") + 1])
                directory.mkdir(parents=True)
                (directory / "split.json").write_text(directory.name)
                (directory / "history.csv").write_text(f"epoch,seconds,val_loss\n1,2.5,-0.1\n2,3.5,{loss(command)}\n")
            else:
                directory = compare.Path(command[-1])
                (directory / "predictions").mkdir()
                (directory / "predictions" / "predictions.json").write_text("{}")

    made = Commands()
    monkeypatch.setattr(compare.commands, "run", made.run)
    monkeypatch.setattr(compare, "_write_split", lambda *_: None)
    monkeypatch.setattr(compare.baseline, "of_split", lambda *_: {"WT": [0.25, 0.75]})
    return made


def arguments(tmp_path, *more: str) -> list[str]:
    words = ["--low", "32", "--high", "48", "--models", "2", "--epochs", "2"]
    return [*words, "--data", str(tmp_path), "--output", str(tmp_path / "out"), *more]


def test_every_model_shares_the_split_and_differs_in_its_seed(tmp_path, commands):
    assert compare.main(arguments(tmp_path, "--memory-limit", "700MiB")) == 0
    train = [" ".join(command[1:]) for command in commands if "lms3d.train" in command]
    assert [command.split("--resolution ")[1].split()[0] for command in train] == ["32", "48", "32", "48"]
    assert ["--no-lms" in command for command in train] == [True, False, True, False]
    assert [command.split("--seed ")[1].split()[0] for command in train] == ["1", "1", "2", "2"]
    assert all(f"--split {tmp_path / 'out/split.json'}" in command for command in train)
    assert all("--memory-limit 734003200" in command for command in train)


def test_the_report_has_the_mean_over_models(tmp_path, commands, capsys):
    assert compare.main(arguments(tmp_path)) == 0
    report = (tmp_path / "out/report.md").read_text()
    assert "| cube | WT | 0.650 | 0.750 | +0.100 | 2 of 2 cases |  |" in report
    assert "| native | WT | 0.650 | 0.750 | +0.100 | 2 of 2 cases | 0.500 |" in report
    assert "| 48-seed2 | 6 |" in report
    assert "summary of 2 groups" in report
    scored = " ".join(commands[-1])
    assert "--group 32³=" in scored
    assert scored.index("32-seed2") < scored.index("--group 48³=") < scored.index("48-seed1")
    assert "Made by `python -m experiments.compare_resolutions --low 32" in report
    assert report in capsys.readouterr().out
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert {"scores.csv", "scores_per_model.csv"} <= names
    assert (tmp_path / "out/scores.csv").read_text().count("\n") == 1 + 2 * 2 * 2 * 2


def test_it_goes_on_where_it_stopped(tmp_path, commands, capsys):
    commands.fail = 3  # the training of the second run
    assert compare.main(arguments(tmp_path)) == 3
    assert "run the same command again to go on" in capsys.readouterr().err
    done = list(commands)
    assert compare.main(arguments(tmp_path)) == 0
    assert [command for command in commands[3:] if command in done] == [done[2]]
    assert len(commands) == 8 + 1 + 1
    assert compare.main(arguments(tmp_path)) == 0
    assert len(commands) == 8 + 1 + 2  # scoring again


def test_more_models_may_be_added_but_other_settings_must_stay(tmp_path, commands, capsys):
    assert compare.main(arguments(tmp_path)) == 0
    assert compare.main(arguments(tmp_path, "--epochs", "3")) == 2
    assert "--epochs: found 3, but" in capsys.readouterr().err
    assert json.loads((tmp_path / "out/settings.json").read_text())["epochs"] == 2


def test_low_must_be_lower(tmp_path, capsys):
    assert compare.main(["--low", "48", "--high", "48", "--output", str(tmp_path)]) == 2
    assert "expected the low one to be smaller" in capsys.readouterr().err


def test_differences_are_paired():
    found = scores.frame([row("32³", "a", 0.2), row("32³", "b", 0.6), row("48³", "a", 0.5), row("48³", "b", 0.5)])
    assert compare.differences(found, "32³", "48³") == [("cube", "WT", 0.4, 0.5, 1, 2)]


def test_the_split_may_be_that_of_the_best_of_several_models(tmp_path, commands):
    assert compare.main(arguments(tmp_path, "--split-models", "3", "--split-seed", "3")) == 0
    searched = [command for command in commands if "--split" not in command and "lms3d.train" in command]
    assert [command[command.index("--seed") + 1] for command in searched] == ["3", "4", "5"]
    assert {command[command.index("--resolution") + 1] for command in searched} == {"32"}
    assert (tmp_path / "out/split.json").read_text() == "seed4"
    assert len([command for command in commands if "lms3d.train" in command]) == 3 + 4


def test_data_are_prepared_as_the_case_study_did(tmp_path, commands):
    assert compare.main(arguments(tmp_path)) == 0
    for command in commands:
        if "lms3d.train" in command:
            assert command[command.index("--normalisation") + 1] == "global"
            assert "--no-anti-alias" in command
