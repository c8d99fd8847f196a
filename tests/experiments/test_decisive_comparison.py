"""The comparison's own logic with commands replaced, and once as a whole, with real ones."""

from __future__ import annotations

import csv
import json
import os
import re
import shlex
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest

from lms3d.data import split
from lms3d.data.brats import layouts
from lms3d.experiments import decisive_comparison as decisive
from lms3d.experiments.arms import pace, plan, report, rounds, runs
from lms3d.experiments.harness.commands import CommandFailed
from lms3d.scoring import comparisons, scores
from lms3d.tasks.volumes.report import ScoreReport
from lms3d.training import checkpoint
from tests.caches import private_cache
from tests.data.small_data import LATE, random_case, write_case
from tests.lms3d.ranks.started import LAUNCHER
from tests.one_pixel import RENDERED

SECONDS = {"A": 1.0, "B": 3.0, "C": 2.0, "D": 0.5, "AE": 1.0, "CE": 2.0}
"""Arm -> seconds of its step."""

DICE = {"C": 0.5, "D": 0.6}
"""Arm -> Dice of the first seed's model; others have 0.8. The second seed's model is better by 0.05, half of D's lead over C."""


def scored(folders, labels, data, schema):
    """A table as `rounds._scored` makes it: two cases and their ceilings."""
    rows = [
        {"predictions": label, "case": case, "space": "native", "region": "WT", "both_empty": 0.0,
         "dice": DICE.get(label[0], 0.8) + 0.05 * (label[-1] == "2") + 0.1 * (case == "late"), "ceiling_dice": 0.95}
        for label in labels for case in ("early", "late")
    ]  # fmt: skip
    return scores.frame(rows), {"rules": "brats2017", "note": "Rules: brats2017."}


@pytest.fixture
def brains(tmp_path):
    for number in range(1, 13):
        write_case(tmp_path / "set" / f"BraTS20_Training_{number:03d}", random_case(number))
    return tmp_path / "set"


@pytest.fixture
def called(monkeypatch):
    """The commands that were run; training writes as many epochs as it was asked for, prediction its index."""

    class Called(list):
        fail = -1
        slower = 0.0  # for each step of the first turn of short trainings

        def step_seconds(self, command):
            words = " ".join(command)
            arms = {"A": "--resolution 16", "B": "--resolution 32", "C": "--box 32x48x32", "D": "--patch 16"}
            name = next(n for n in ("D", "C", "B", "A") if arms[n] in words)
            first = sum(arms[name] in " ".join(c) for c in self) == 1
            return SECONDS[name] + (self.slower if first else 0)

        def run(self, command):
            self.append(command)
            if len(self) == self.fail:
                raise CommandFailed(command, 3)
            where = Path(command[command.index("--output") + 1])
            where.mkdir(parents=True, exist_ok=True)
            if "lms3d.train" in command:
                epochs = range(1, int(command[command.index("--epochs") + 1]) + 1)
                losses = "".join(f"{n},{abs(n - 9)}\n" for n in epochs)  # the ninth epoch is the best
                (where / "history.csv").write_text(f"epoch,val_loss\n{losses}")
                rows = "".join(f"train,{n},{self.step_seconds(command) + 40 * (n < 3)},2147483648\n" for n in epochs)
                (where / "lms_stats.csv").write_text(f"kind,epoch,seconds,peak_bytes\n{rows}")
            else:
                (where / "predictions.json").write_text("{}")

    made = Called()
    monkeypatch.setattr(runs.commands, "run", made.run)
    monkeypatch.setattr(rounds, "_scored", scored)
    monkeypatch.setattr(ScoreReport, "figures", lambda *_: [])  # they take most of the time
    return made


def arguments(brains, tmp_path, *more):
    words = ["--low", "16", "--high", "32", "--box", "32x48x32", "--patch", "16", "--epochs", "12", "--of-folds", "3"]
    return [*words, "--data", str(brains), "--output", str(tmp_path / "out"), *more]


def of_arm(called, name, module="lms3d.train"):
    """The commands of an arm's models; its short trainings are left out."""
    return [c for c in called if module in c and Path(c[c.index("--output") + 1]).as_posix().find(f"/{name}-fold") >= 0]


def test_test_cases_are_in_no_split_and_every_other_case_validates_once(brains, tmp_path, called):
    assert decisive.main(arguments(brains, tmp_path, "--arms", "A")) == 0
    out = tmp_path / "out"
    tested = set((out / "test.txt").read_text().split())
    splits = [json.loads(plan.split_of(out, fold).read_text()) for fold in range(3)]
    ids = {case.id for case in layouts.find_cases(brains).cases}
    assert len(tested) == 4
    for one in splits:
        assert set(one["training"]) | set(one["validation"]) == ids - tested
    assert sorted(case for one in splits for case in one["validation"]) == sorted(ids - tested)


def test_every_arm_has_its_options_and_the_same_split_seed_and_limit(brains, tmp_path, called):
    assert (
        decisive.main(arguments(brains, tmp_path, "--memory-limit", "700MiB", "--train-options", "--distort all")) == 0
    )
    special = {"A": "--resolution 16", "B": "--resolution 32", "C": "--box 32x48x32", "D": "--box 32x48x32 --patch 16",
               "AE": "--resolution 16 --precision mixed_bfloat16", "CE": "--box 32x48x32 --precision mixed_bfloat16"}  # fmt: skip
    for name, options in special.items():
        for command in of_arm(called, name):
            words = " ".join(command)
            assert f" {options} " in words
            assert "--memory-limit 734003200" in words
            assert "--seed 1 " in words
            assert f"--split {tmp_path / 'out/split-fold0.json'}" in words
            assert words.endswith("--distort all")


def test_equal_time_is_a_prefix_of_equal_updates(brains, tmp_path, called):
    """D is the first: 12 epochs at 0.5 s a step are 3 epochs of C and 2 of B."""
    assert decisive.main(arguments(brains, tmp_path, "--arms", "B", "C", "D")) == 0
    epochs = {name: [int(c[c.index("--epochs") + 1]) for c in of_arm(called, name)] for name in "BCD"}
    assert epochs == {"D": [12], "C": [3, 12], "B": [2, 12]}
    budgets = [Path(c[c.index("--output") + 1]).name for c in of_arm(called, "C", "lms3d.predict")]
    assert budgets == ["test-time", "test-updates"]
    text = (tmp_path / "out/report.md").read_text()
    assert "| C | 32x48x32 at 1 mm | 2 | 3 | 9 | 2.00 |" in text
    assert re.search(r"\| B \| WT \| 2 \| 0\.850 \| .* \| 0\.950 \| 0\.895 \|", text)
    assert text.count("| intensities alone | WT | 4 | 0.") == 2
    assert "standard deviation" not in text  # of one model
    assert "Made by `python -m experiments.decisive_comparison --low 16" in text


def test_the_time_of_an_arm_is_measured_before_and_once(brains, tmp_path, called, monkeypatch):
    """Two turns of the arms, of which the faster counts: other work makes a step slower."""
    monkeypatch.setattr(pace.psutil, "cpu_percent", lambda seconds: 70.0)
    called.slower = 5.0
    assert decisive.main(arguments(brains, tmp_path, "--arms", "B", "D")) == 0
    short = [Path(c[c.index("--output") + 1]).parent.name for c in called[:4]]
    assert short == ["pace"] * 4
    assert ["--patch" in c for c in called[:4]] == [True, False, True, False]
    found = json.loads((tmp_path / "out/pace.json").read_text())
    assert {name: one["step_seconds"] for name, one in found.items()} == {"B": 3.0, "D": 0.5}
    training = len(json.loads(plan.split_of(tmp_path / "out", 0).read_text())["training"])
    assert found["B"]["epoch_seconds"] == 3.0 * training / 4
    assert "was not idle then: D (70% of the cores), B (70%" in (tmp_path / "out/report.md").read_text()
    assert not (tmp_path / "out/pace").exists()
    called.clear()
    assert decisive.main(arguments(brains, tmp_path, "--arms", "B", "D")) == 0
    assert not [c for c in called if "lms3d.train" in c]


def test_models_of_one_arm_are_set_beside_each_other(brains, tmp_path, called):
    assert decisive.main(arguments(brains, tmp_path, "--arms", "C", "D", "--seeds", "2")) == 0
    text = (tmp_path / "out/report.md").read_text()
    assert "| C | WT | 2 | 0.550 | 0.600 | 0.035 | 0.035 |" in text
    assert "| D | WT | 2 | 0.650 | 0.700 | 0.035 | 0.035 |" in text


def test_seeds_are_told_apart_from_folds():
    """All models of a fold are alike, or all seeds differ by as much in either fold."""
    done = [(fold, seed) for fold in (0, 1) for seed in (1, 2, 3)]
    for seeds, within in (((0.0, 0.0, 0.0), "0.000"), ((-0.02, 0.0, 0.02), "0.020")):
        rows = [
            {"predictions": f"A-fold{fold}-seed{seed}", "space": "native", "region": "WT", "case": case,
             "dice": 0.7 + 0.1 * fold + seeds[seed - 1]}
            for fold, seed in done for case in range(3)
        ]  # fmt: skip
        (row,) = report._spread([SimpleNamespace(name="A")], pd.DataFrame(rows), done)
        assert row[-1] == within
        assert float(row[-2]) > 0.05
    (row,) = report._spread([SimpleNamespace(name="A")], pd.DataFrame(rows), [(0, 1), (1, 1)])
    assert row[-2:] == ["0.071", "-"]


def test_the_end_of_an_interval_that_decides_is_not_0():
    assert [report._end(text) for text in ("0.0002", "-0.00449", "")] == ["0.0002", "-0.0045", ""]


@pytest.mark.parametrize(("folds", "seeds"), [("2", "1"), ("1", "2")])
def test_folds_of_one_seed_are_no_seeds(brains, tmp_path, called, monkeypatch, folds, seeds):
    def of_more_cases(folders, labels, data, schema):
        found, known = scored(folders, labels, data, schema)
        return pd.concat([found.assign(case=found["case"] + str(number)) for number in range(4)]), known

    monkeypatch.setattr(rounds, "_scored", of_more_cases)
    monkeypatch.setitem(DICE, "D", 0.7)  # a difference that no seed turns round
    assert decisive.main(arguments(brains, tmp_path, "--arms", "C", "D", "--folds", folds, "--seeds", seeds)) == 0
    assert pd.read_csv(tmp_path / "out/updates/comparison.csv")["seeds"].tolist() == [int(seeds)]
    said = "second is better" if seeds == "2" else f"second is better {comparisons.ONE_SEED}"
    assert (tmp_path / "out/report.md").read_text().count(f"| {said} |") == 2


def test_the_page_on_version_5_has_the_tables_of_its_rounds(tmp_path, monkeypatch):
    """They are computed again from what is kept beside the page."""
    page = Path(__file__).parents[2] / "docs/history/decisive_version_5.md"
    shutil.copytree(page.with_suffix(""), tmp_path / "out")
    monkeypatch.setattr(ScoreReport, "figures", lambda *_: [])
    typed = re.search(r"-m experiments\.decisive_comparison (.+) --output", page.read_text())[1]
    options = decisive._parser().parse_args(shlex.split(typed.replace("--seeds 3", "--seeds 1")))
    arms, no_data = plan.arms(options), tmp_path / "no_data"
    paces = pace.measured(arms, no_data, options, tmp_path / "out")
    within = {arm.name: pace.epochs_within(paces, arm, arms, options.epochs) for arm in arms}
    report.write(arms, paces, within, options, no_data, "", tmp_path / "out")
    made, written = (
        [line for line in text.splitlines() if line.startswith("|")]
        for text in ((tmp_path / "out/report.md").read_text(), page.read_text())
    )
    assert len(made) > 40
    assert made == written


def test_tests_of_both_budgets_are_one_family(tmp_path):
    """Each table alone would leave 3 * 2**-7: all three regions differ, as far as 8 cases can show."""
    from lms3d.scoring import tables

    rows = [
        {"predictions": label, "case": str(case), "space": "native", "region": region, "dice": 0.5 + case / 100 + better}
        for label, better in (("A", 0.0), ("B", 0.1)) for case in range(8) for region in ("WT", "TC", "ET")
    ]  # fmt: skip
    one = comparisons.table(pd.DataFrame(rows), {"A": ["A"], "B": ["B"]}, margin=0.01)
    assert set(one["verdict"]) == {f"second is better {comparisons.ONE_SEED}"}
    for budget in ("updates", "time"):
        (tmp_path / budget).mkdir()
        tables.write_csv(one, tmp_path / budget / "comparison.csv")
    found = report._compared(tmp_path)
    assert list(found) == ["time", "updates"]
    corrected = [row["p_holm"] for of_budget in found.values() for row in of_budget]
    assert corrected == pytest.approx([6 * 2**-7] * 6, abs=1e-5)
    (tmp_path / "time/comparison.csv").unlink()
    alone = [row["p_holm"] for row in report._compared(tmp_path)["updates"]]
    assert alone == pytest.approx([3 * 2**-7] * 3, abs=1e-5)


def test_it_goes_on_where_it_stopped_and_takes_more_seeds(brains, tmp_path, called, capsys):
    called.fail = 6
    assert decisive.main(arguments(brains, tmp_path, "--arms", "C", "D")) == 3
    assert "run the same command again to go on" in capsys.readouterr().err
    done = len(called)
    assert decisive.main(arguments(brains, tmp_path, "--arms", "C", "D")) == 0
    repeated = [c for c in called[done:] if c in called[: done - 1]]
    assert not repeated
    before = len([c for c in called if "lms3d.train" in c])
    assert decisive.main(arguments(brains, tmp_path, "--arms", "C", "D", "--seeds", "2")) == 0
    assert all("--seed 2" in " ".join(c) for c in [c for c in called if "lms3d.train" in c][before:])
    assert decisive.main(arguments(brains, tmp_path, "--arms", "C", "D", "--low", "48")) == 2


def test_a_round_that_was_scored_needs_its_runs_no_longer(brains, tmp_path, called, monkeypatch, capsys):
    """Another machine goes on from the small files alone."""
    words = arguments(brains, tmp_path, "--arms", "C", "D")
    assert decisive.main(words) == 0
    alone = (tmp_path / "out/report.md").read_text()
    shutil.rmtree(tmp_path / "out/runs")
    called.clear()
    assert decisive.main(words) == 0
    assert called == []
    assert (tmp_path / "out/report.md").read_text() == alone
    monkeypatch.setattr(rounds.page, "machine", lambda: "Machine: another.")
    assert decisive.main([*words, "--seeds", "2"]) == 0
    assert called
    assert all("fold0-seed2" in " ".join(command) for command in called)
    text = (tmp_path / "out/report.md").read_text()
    assert "- fold 0, seed 2: Machine: another." in text
    assert "| C | WT | 2 | 0.550 | 0.600 |" in text
    assert "[fold 0, seed 1] scored before" in capsys.readouterr().out


def test_a_round_whose_scores_were_not_all_written_is_scored_again(brains, tmp_path, called):
    assert decisive.main(arguments(brains, tmp_path, "--arms", "C", "D")) == 0
    rounds.record_of(0, 1, tmp_path / "out").unlink()
    rounds.scores_of(0, 1, tmp_path / "out").write_text("half a line")
    called.clear()
    assert decisive.main(arguments(brains, tmp_path, "--arms", "C", "D")) == 0
    assert called == []
    assert set(pd.read_csv(rounds.scores_of(0, 1, tmp_path / "out"))["budget"]) == set(plan.BUDGETS)


def test_names_are_hidden_in_what_people_read(brains, tmp_path, called, names_hidden_here):
    assert decisive.main(arguments(brains, tmp_path, "--arms", "C", "D")) == 0
    assert decisive.main(arguments(brains, tmp_path, "--arms", "C", "D", "--anonymous")) == 0
    cases = [
        set(pd.read_csv(tmp_path / "out" / name)["case"]) for name in ("rounds/fold0-seed1.csv", "time/scores.csv")
    ]
    assert cases[0] == {"early", "late"}
    assert all(case.startswith("case-") for case in cases[1])


def test_all_arms_start_from_a_run_that_has_not_seen_the_test_set(brains, tmp_path, called, capsys):
    assert decisive.main(arguments(brains, tmp_path, "--arms", "A")) == 0
    tested = (tmp_path / "out/test.txt").read_text().split()
    other = sorted({case.id for case in layouts.find_cases(brains).cases} - {*tested})
    begun = tmp_path / "begun"
    begun.mkdir()
    called.clear()
    again = [
        *arguments(brains, tmp_path, "--arms", "A", "B"),
        "--start-from",
        str(begun),
        "--output",
        str(tmp_path / "two"),
    ]
    assert decisive.main(again) == 2
    assert "found no split.json there" in capsys.readouterr().err
    split.save(split.Split(training=other[:3], validation=[*other[3:], tested[1]]), begun / "split.json")
    assert decisive.main(again) == 2
    assert f"its run has seen {tested[1]} (1 cases in all) of the test set" in capsys.readouterr().err
    split.save(split.Split(training=other[:3], validation=other[3:]), begun / "split.json")
    assert decisive.main(again) == 0
    trained = [" ".join(command) for command in called if "lms3d.train" in command]
    assert trained
    assert all(f"--start-from {begun}" in words for words in trained)


def test_no_arm_starts_from_a_run_that_has_seen_another_visit_of_a_tested_patient(tmp_path, called, capsys):
    for patient in range(6):
        write_case(tmp_path / "set" / f"BraTS-GLI-{patient:05d}-001", random_case(patient, labels=(1, 2, 3)), LATE)
    assert decisive.main(arguments(tmp_path / "set", tmp_path, "--arms", "A")) == 0
    tested = (tmp_path / "out/test.txt").read_text().split()
    begun = split.Split(training=["BraTS-GLI-00009-000"], validation=[tested[0].replace("-001", "-000")])
    (tmp_path / "begun").mkdir()
    split.save(begun, tmp_path / "begun/split.json")
    more = ("--arms", "A", "--start-from", str(tmp_path / "begun"), "--output", str(tmp_path / "two"))
    assert decisive.main(arguments(tmp_path / "set", tmp_path, *more)) == 2
    assert f"its run has seen {tested[0]} (1 cases in all)" in capsys.readouterr().err


def test_what_cannot_be_within_the_time_is_told(brains, tmp_path, called, monkeypatch):
    monkeypatch.setitem(SECONDS, "B", 7.0)  # and D's twelve epochs take 6 a step
    assert decisive.main(arguments(brains, tmp_path, "--arms", "B", "D")) == 0
    assert "| B | 32^3 | 7 | 1 (more than its time) |" in (tmp_path / "out/report.md").read_text()


OWNED = ["--weights run/best.keras", "--schedule cosine", "--seed=3", "--epochs 4", "--resolution 32", "--patch 16"]


@pytest.mark.parametrize("owned", OWNED)
def test_options_that_the_comparison_sets_are_refused(brains, tmp_path, called, capsys, owned):
    assert decisive.main(arguments(brains, tmp_path, f"--train-options={owned}")) == 2
    assert "which the comparison sets itself" in capsys.readouterr().err


def test_an_open_quote_is_one_line(brains, tmp_path, called, capsys):
    assert decisive.main(arguments(brains, tmp_path, "--train-options", "--loss 'dice")) == 2
    assert "--train-options: No closing quotation" in capsys.readouterr().err


def test_a_case_without_a_modality_is_in_no_part(brains, tmp_path, called):
    """`data.prepare --skip-bad` leaves it out, and training goes on without it."""
    (left_out,) = brains.glob("*_005/*_t1ce.nii.gz")
    left_out.unlink()
    assert decisive.main(arguments(brains, tmp_path, "--arms", "A")) == 0
    written = [(tmp_path / "out/test.txt").read_text(), (tmp_path / "out/split-fold0.json").read_text()]
    assert "BraTS20_Training_005" not in "".join(written)
    assert "BraTS20_Training_006" in "".join(written)


def test_killed_while_dividing_it_divides_again(brains, tmp_path, called):
    assert decisive.main(arguments(brains, tmp_path, "--arms", "A")) == 0
    (tmp_path / "out/test.txt").unlink()
    assert decisive.main(arguments(brains, tmp_path, "--arms", "A")) == 0
    assert (tmp_path / "out/test.txt").exists()


def test_more_folds_than_there_are(brains, tmp_path, called, capsys):
    assert decisive.main(arguments(brains, tmp_path, "--folds", "4")) == 2
    assert "expected at most --of-folds, which is 3" in capsys.readouterr().err


def test_ranks_are_started_by_the_launcher(brains, tmp_path, called, capsys):
    words = ["--arms", "A", "--ranks", "3", "--launcher", "env RANKS={ranks}"]
    assert decisive.main(arguments(brains, tmp_path, *words)) == 0
    trained, tested = of_arm(called, "A"), of_arm(called, "A", "lms3d.predict")
    assert all(Path(c[0]).name == "env" and c[1:4] == ["RANKS=3", sys.executable, "-m"] for c in trained)
    assert all(c[:2] == [sys.executable, "-m"] for c in tested)
    words[-1] = "no-such-launcher {ranks}"
    assert decisive.main(arguments(brains, tmp_path, *words, "--output", str(tmp_path / "other"))) == 2
    assert "--launcher: no-such-launcher was not found" in capsys.readouterr().err
    assert not (tmp_path / "other/test.txt").exists()


@pytest.mark.skipif(not LAUNCHER.exists(), reason="Horovod is not installed: make horovod")
def test_two_real_ranks_train_an_arm(brains, tmp_path, monkeypatch, capfd):
    monkeypatch.setenv("LMS3D_CACHE", str(private_cache(tmp_path / "cache")))
    small = ["--epochs", "1", "--model", "unet3d", "--ranks", "2", "--launcher", "horovodrun --gloo -np {ranks}"]
    out = tmp_path / "out"
    out.mkdir()
    options = decisive._parser().parse_args(arguments(brains, tmp_path, "--arms", "A", *small))
    plan.divide(brains, options, out)
    run_dir = out / "runs/A-fold0-seed1"
    runs.train(plan.arms(options)[0], 1, 1, plan.split_of(out, 0), run_dir, brains, options)
    assert "  $ horovodrun --gloo -np 2 python -m lms3d.train" in capfd.readouterr().out
    _, state = checkpoint.load(checkpoint.path_in(run_dir))
    assert state["size"] == 2


def test_with_real_commands(brains, tmp_path, commands, monkeypatch):
    """Two arms of two epochs: scored on the test set, in both budgets, beside their ceilings."""
    environment = {**os.environ, **RENDERED, "LMS3D_CACHE": str(private_cache(tmp_path / "cache"))}

    def run(command):
        _, m, *words = command
        done = commands.run([m, *(["tests.small"] if words[0].startswith("lms3d.") else []), *words], env=environment)
        assert done.returncode == 0, done.stderr

    monkeypatch.setattr(runs.commands, "run", run)
    small = ["--epochs", "2", "--model", "unet3d"]
    assert decisive.main(arguments(brains, tmp_path, "--arms", "A", "D", *small)) == 0
    out = tmp_path / "out"
    tested = set((out / "test.txt").read_text().split())
    for budget in plan.BUDGETS:
        with open(out / budget / "scores.csv", newline="") as file:
            rows = list(csv.DictReader(file))
        assert {row["case"] for row in rows} == tested
        assert {row["space"] for row in rows} == {"native"}
        assert (out / budget / "report.html").stat().st_size > 10_000
    assert "| A | 16^3 |" in (out / "report.md").read_text()
