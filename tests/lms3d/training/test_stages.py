"""When a stage of a run counts as done."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from lms3d.tasks.brats.options import BratsConfig
from lms3d.training import demo, session, stages, summary


@pytest.fixture
def stage(tmp_path, monkeypatch) -> SimpleNamespace:
    """All of its two epochs are in the checkpoint."""
    state = SimpleNamespace(stopped_early=False, out_of_time=False, position=SimpleNamespace(epoch=2))
    monkeypatch.setattr(stages.run_state, "read", lambda run_dir: (SimpleNamespace(state=state), ""))
    return SimpleNamespace(
        resuming=True, run_dir=tmp_path, options=SimpleNamespace(epochs=2), demonstrating=False, state=state
    )


def draw(run_dir: Path) -> None:
    (run_dir / "figures").mkdir()
    (run_dir / "figures" / "memory.png").touch()


def test_a_stage_that_was_killed_before_its_figures_is_not_done(stage):
    """python -m tests.stress files, "train in stages", fsync:run/stages/16:8:kill: they were never drawn."""
    assert not stages._done(stage)
    draw(stage.run_dir)
    assert stages._done(stage)
    stage.options.epochs = 3
    assert not stages._done(stage)


def test_a_stage_of_a_demonstration_is_done_when_its_time_is_over(stage):
    """Its epochs are as many as the time allowed; --epochs asks for more."""
    draw(stage.run_dir)
    stage.options.epochs, stage.demonstrating, stage.state.out_of_time = 500, True, True
    assert stages._done(stage)
    stage.demonstrating = False
    assert not stages._done(stage)


def test_a_demonstration_that_has_ended_says_why_and_how_to_train_longer(stage, capsys):
    given = session.Session(options=BratsConfig(), run_dir=stage.run_dir, resuming=True, profile=None, arguments=())
    stage.state.out_of_time = True
    draw(stage.run_dir)
    (stage.run_dir / "lms_report.md").touch()
    assert not list(stages._parts(given, None))
    said = capsys.readouterr().out
    assert "ended after epoch 2, when the time of a demonstration was over" in said
    assert "--resume --epochs N" in said


@pytest.mark.parametrize(("epochs", "left"), [(2, 0), (3, 1)])
def test_a_run_that_has_ended_is_not_planned_again(stage, monkeypatch, capsys, epochs, left):
    options = BratsConfig(epochs=epochs)
    given = session.Session(options=options, run_dir=stage.run_dir, resuming=True, profile=None, arguments=())
    assert len(list(stages._parts(given, None))) == 1  # neither figures nor a report
    draw(stage.run_dir)
    (stage.run_dir / "lms_report.md").touch()
    assert len(list(stages._parts(given, None))) == left
    assert ("nothing is left to train: epoch 2 of 2 is done" in capsys.readouterr().out) == (left == 0)


def test_weights_start_the_first_stage_alone(tmp_path, monkeypatch):
    """Values from a file would else take the place of what each stage has learnt."""
    monkeypatch.setattr(stages.run_folder, "claim", lambda *_: None)
    monkeypatch.setattr(stages.run_folder, "announce", lambda *_: None)
    options = BratsConfig(data=tmp_path, weights=tmp_path / "w.keras", resolution=48, stages=((16, 1), (32, 1)))
    given = session.Session(options=options, run_dir=tmp_path, resuming=False, profile=None, arguments=())
    parts = [part.options for part in stages._parts(given, SimpleNamespace(release=lambda: None))]
    assert [one.resolution for one in parts] == [16, 32, 48]
    assert [one.weights for one in parts] == [tmp_path / "w.keras", None, None]
    assert [one.start_from for one in parts] == [None, tmp_path / "stages/16", tmp_path / "stages/32"]
    assert [one.stages for one in parts] == [(), (), options.stages]


def test_the_parts_of_a_demonstration_share_its_time(tmp_path, monkeypatch):
    monkeypatch.setattr(stages.run_folder, "claim", lambda *_: None)
    monkeypatch.setattr(stages.run_folder, "announce", lambda *_: None)
    options = BratsConfig(resolution=192)
    given = session.Session(options=options, run_dir=tmp_path, resuming=False, profile=None, arguments=())
    parts = list(stages._parts(given, SimpleNamespace(release=lambda: None)))
    assert [part.options.resolution for part in parts] == [64, 96, 192]
    assert [part.time_share for part in parts] == [demo.STAGES[64], demo.STAGES[96], 1.0]


def test_memory_png_is_the_last_that_a_run_writes(tmp_path, monkeypatch):
    order = []
    monkeypatch.setattr(summary, "draw", lambda *_, **__: order.append("draw"))
    monkeypatch.setattr(summary, "summarise", lambda *_, **__: order.append("summarise"))
    lms = SimpleNamespace(report=object(), close=lambda: None)
    monkeypatch.setattr(session.needs, "lms_for", lambda options, stats_file: lms)
    training = SimpleNamespace(
        session=SimpleNamespace(run_dir=tmp_path),
        world=SimpleNamespace(is_chief=True),
        options=SimpleNamespace(model="unet3d", size_text=lambda axes: "16^3"),
        task=SimpleNamespace(axes=3, finish=lambda *_: order.append("finish"), results=lambda *_: {}),
        material=None,
        _fit=lambda model, lms: None,
    )
    session.Training.run(training, None)
    assert order == ["finish", "draw", "summarise"]
