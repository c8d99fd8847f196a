"""Which run a command means."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from lms3d import checkpoint, config, runs, train
from lms3d.files import write_json


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def finished(name: str, **given):
    folder = runs.DEFAULT_PARENT / name
    write_json(folder / "config.json", {"options": config.chosen(given).to_json()})
    checkpoint.save(checkpoint.path_in(folder), {}, {})
    return folder


def test_a_bare_resume_takes_the_latest_run_whatever_it_is():
    finished("isensee2017-128")
    latest = finished("unet3d-64", model="unet3d", resolution=64)
    options, run_dir, resuming = runs.choose({}, None, True)
    assert (run_dir, options.model, options.resolution, resuming) == (latest, "unet3d", 64, True)


def test_a_resolution_is_not_the_beginning_of_another():
    wanted = finished("isensee2017-64-2", resolution=64)
    finished("isensee2017-640", resolution=640)
    assert runs.choose({"resolution": 64}, None, True)[1] == wanted


def test_a_resume_of_nothing_says_that_it_starts_anew(capsys):
    _, _, resuming = runs.choose({"resolution": 64}, None, True)
    assert not resuming
    assert "there is no run in runs to go on with" in capsys.readouterr().out


@pytest.mark.parametrize("data", ["/data", None])
def test_what_follows_from_the_number_of_ranks_is_not_kept(tmp_path, data):
    """A run of four ranks that goes on alone must pass over all its data. How long a demonstration is, is kept."""
    given = config.chosen({"data": data and Path(data)})
    run = train.Run(options=given, run_dir=tmp_path, resuming=False, profile=None, arguments=())
    filled = replace(given, epochs=9, steps_per_epoch=13, validation_steps=3)
    train._describe(run, filled, 2**30, SimpleNamespace(described={"data": {}}))
    stored, _ = config.load(tmp_path)
    found = (stored.epochs, stored.steps_per_epoch, stored.validation_steps)
    assert found == ((9, 13, 3) if data is None else (None, None, None))
