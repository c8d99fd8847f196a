"""Which run a command means."""

import errno
import fcntl
import json
import os
from dataclasses import replace
from functools import partial
from pathlib import Path
from socket import gethostname
from types import SimpleNamespace

import pytest

from lms3d import tasks, train
from lms3d.atomic_files import write_json
from lms3d.errors import InputError, Interrupted
from lms3d.ranks import elastic
from lms3d.ranks.world import World
from lms3d.tasks import chosen
from lms3d.training import checkpoint, run_folder, session, stages
from lms3d.training.run_lock import RunLock
from lms3d.training.session import Session, Training

choose = partial(run_folder.choose_run, tasks=tasks)


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def finished(name: str, **given):
    folder = run_folder.DEFAULT_PARENT / name
    write_json(folder / "config.json", {"options": chosen(given).to_json()})
    checkpoint.save(checkpoint.path_in(folder), {}, {})
    return folder


def test_a_bare_resume_takes_the_latest_run_whatever_it_is():
    finished("isensee2017-128")
    latest = finished("unet3d-64", model="unet3d", resolution=64)
    options, run_dir, resuming = choose({}, None, True, RunLock())
    assert (run_dir, options.model, options.resolution, resuming) == (latest, "unet3d", 64, True)


def test_a_resolution_is_not_the_beginning_of_another():
    wanted = finished("isensee2017-64-2", resolution=64)
    finished("isensee2017-640", resolution=640)
    assert choose({"resolution": 64}, None, True, RunLock())[1] == wanted


def test_a_resume_of_nothing_says_that_it_starts_anew(capsys):
    _, _, resuming = choose({"resolution": 64}, None, True, RunLock())
    assert not resuming
    assert "there is no run in runs to go on with" in capsys.readouterr().out


def test_a_checkpoint_without_options_is_not_overwritten(tmp_path):
    run_dir = finished("run")
    (run_dir / "config.json").unlink()
    with pytest.raises(InputError, match=r"runs/run holds weights but no config\.json; restore that"):
        choose({}, run_dir, True, RunLock())


@pytest.mark.parametrize(("epochs", "goes_on"), [(0, True), (1, True), (2, False)])
def test_a_run_that_has_lost_its_checkpoints_does_not_begin_again(epochs, goes_on):
    """With one epoch in the table it may have been killed in the midst of saving its first."""
    run_dir = finished("run")
    checkpoint.path_in(run_dir).unlink()
    (run_dir / "history.csv").write_text("epoch,loss\n" + "".join(f"{n + 1},0.5\n" for n in range(epochs)))
    if goes_on:
        assert choose({}, run_dir, True, RunLock())[2] is False
    else:
        with pytest.raises(InputError, match=r"checkpoint\.npz is missing after 2 epochs; restore it"):
            choose({}, run_dir, True, RunLock())


@pytest.mark.parametrize("before", [False, True])
def test_after_a_lost_rank_the_split_is_not_drawn_again(before, tmp_path):
    """Cases that the first world trained on would validate in the second."""
    asked = []

    class Task:
        def prepare(self, options, run_dir, resuming, world, progress):
            asked.append(resuming)
            raise InputError("asked")

    began = Session(
        options=chosen({}), run_dir=tmp_path, resuming=False, profile=None, arguments=(), stats_average=None
    )
    with pytest.raises(InputError, match="asked"):
        session.train(began, Task(), World(), SimpleNamespace(resuming=before))
    assert asked == [before]


@pytest.mark.parametrize("option", ["weights", "start_from"])
def test_a_run_with_a_checkpoint_starts_from_nothing_else(option, tmp_path):
    lock = RunLock()
    run_dir = finished("run", resolution=64, weights=tmp_path / "mine")
    with pytest.raises(InputError, match="goes on from its own checkpoint; leave --"):
        choose({option: tmp_path / "others"}, run_dir, True, lock)
    assert choose({"weights": tmp_path / "mine"}, run_dir, True, lock)[2] is True
    assert choose({}, run_dir, True, lock)[2] is True


def test_a_dry_run_of_a_resumed_run_has_its_options(monkeypatch, capsys):
    run_dir = finished("run", model="unet3d", resolution=64)
    asked = []
    monkeypatch.setattr(session, "dry_run", lambda options, task: asked.append(options))
    words = ["--resume", "--output", str(run_dir), "--dry-run", "--memory-limit", "1GiB"]
    assert train.main(words) == 0
    assert (asked[0].model, asked[0].resolution, asked[0].memory_limit) == ("unet3d", 64, 2**30)
    assert train.main([*words, "--resolution", "96"]) == 2
    assert "--resolution 96 differs from the run" in capsys.readouterr().err
    assert not (run_dir / "lock").exists()


@pytest.mark.parametrize("data", ["/data", None])
def test_what_follows_from_the_number_of_ranks_is_not_kept(tmp_path, data):
    """A run of four ranks that goes on alone must pass over all its data. A demonstration has as much time as at first, and finds
    its best epoch on the same cases."""
    given = chosen({"data": data and Path(data)})
    run = a_run(given, tmp_path)
    filled = replace(given, epochs=9, steps_per_epoch=13, validation_steps=3)
    material = SimpleNamespace(described={"data": {}})
    training = Training(session=run, options=filled, task=None, material=material, world=World(), memory=None)
    training.describe(2**30)
    stored, _ = tasks.load(tmp_path)
    found = (stored.epochs, stored.steps_per_epoch, stored.validation_steps)
    assert found == (None, None, None if data else 3)


def test_the_epochs_of_a_cosine_are_kept(tmp_path):
    """It would else begin anew, or end at once, when a demonstration goes on."""
    given = chosen({"schedule": "cosine"})
    filled = replace(given, epochs=9, steps_per_epoch=13, validation_steps=3)
    material = SimpleNamespace(described={"data": {}})
    run = a_run(given, tmp_path)
    Training(session=run, options=filled, task=None, material=material, world=World(), memory=None).describe(2**30)
    stored, _ = tasks.load(tmp_path)
    assert (stored.epochs, stored.validation_steps) == (9, 3)


# -- two at once -------------------------------------------------------------------------------------------------------


@pytest.fixture
def holder():
    """The lock of a training that is under way."""
    with RunLock() as lock:
        yield lock


def test_two_trainings_without_output_get_folders_of_their_own(holder):
    _, first, _ = choose({"resolution": 64}, None, False, holder)
    _, second, _ = choose({"resolution": 64}, None, False, RunLock())
    assert (first.name, second.name) == ("isensee2017-64", "isensee2017-64-2")


def test_where_there_are_no_locks_two_get_folders_of_their_own_too(monkeypatch, tmp_path):
    """Only what one has made is surely not another's, whoever looks first."""

    def flock(*_):
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(fcntl, "flock", flock)
    (run_folder.DEFAULT_PARENT / "isensee2017-64").mkdir(parents=True)  # of one that has just begun
    names = [choose({"resolution": 64}, None, False, RunLock())[1].name for _ in range(2)]
    assert names == ["isensee2017-64-2", "isensee2017-64-3"]


def test_a_folder_without_results_is_used_again_when_its_run_has_ended(holder):
    _, first, _ = choose({"resolution": 64}, None, False, holder)
    holder.release()
    assert choose({"resolution": 64}, None, False, RunLock())[1] == first


def test_what_finishes_while_its_folder_is_looked_at_is_not_overwritten(monkeypatch):
    take, folder = RunLock.take, run_folder.DEFAULT_PARENT / "isensee2017-64"

    def finish_first(lock, run_dir, *wait):
        if not (folder / "last").exists():
            finished(folder.name, resolution=64)
        return take(lock, run_dir, *wait)

    monkeypatch.setattr(RunLock, "take", finish_first)
    assert choose({"resolution": 64}, None, False, RunLock())[1].name == "isensee2017-64-2"


@pytest.mark.parametrize(("resume", "named"), [(True, True), (True, False), (False, True)])
def test_no_second_training_in_the_folder_of_one_that_lives(holder, resume, named):
    """Without --output a resumed run is the latest: it must not be another because that one is in use."""
    other, folder = finished("isensee2017-64-2", resolution=64), run_folder.DEFAULT_PARENT / "isensee2017-64"
    choose({"resolution": 64}, folder, False, holder)
    if resume:
        finished(folder.name, resolution=64)
        os.utime(checkpoint.path_in(other), (1, 1))
    with pytest.raises(InputError, match=rf"--output {folder} is in use by process {os.getpid()} on {gethostname()}, "):
        choose({"resolution": 64}, folder if named else None, resume, RunLock())
    holder.release()
    assert choose({"resolution": 64}, folder if named else None, resume, RunLock())[1:] == (folder, resume)


def test_the_command_says_in_one_line_who_has_the_folder(holder, capsys, tmp_path):
    choose({}, tmp_path / "run", False, holder)
    assert train.main(["--output", str(tmp_path / "run"), "--resume"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"process {os.getpid()} on {gethostname()}" in line


@pytest.mark.parametrize("becomes_rank_0", [False, True], ids=["from the start", "elastic, later"])
def test_the_command_holds_its_folder_while_it_trains(elastically, monkeypatch, tmp_path, becomes_rank_0):
    run_dir, held = tmp_path / "run", []
    monkeypatch.setattr(session, "train", lambda run, *_, **__: held.append(not RunLock().take(run.run_dir)))
    assert (
        elastically(World()) if becomes_rank_0 else train.main(["--resolution", "64", "--output", str(run_dir)])
    ) == 0
    assert held == [True]
    assert not list(run_dir.iterdir())


@pytest.fixture
def elastically(monkeypatch, tmp_path):
    """Calls the command in a later world of an elastic job: rank 0 of an earlier one had chosen the folder."""
    memory = elastic.Memory()
    memory.once(lambda: a_run(chosen({"memory_limit": 2**30}), tmp_path / "run"))

    def call(*worlds):
        monkeypatch.setattr(elastic, "run", lambda train_once: [train_once(world, memory) for world in worlds])
        return train.main(["--output", str(tmp_path / "run"), "--elastic"])

    return call


def test_an_elastic_job_outlives_the_lock_of_a_lost_machine(holder, elastically, monkeypatch, tmp_path, capsys):
    """A file server keeps it for a while; the job must not end of it."""
    assert run_folder.HANDOVER_SECONDS > 90
    monkeypatch.setattr(run_folder, "HANDOVER_SECONDS", 0.1)
    trained = []
    monkeypatch.setattr(session, "train", lambda run, *_: trained.append(run.run_dir))
    run_folder.claim(tmp_path / "run", holder)
    assert elastically(World()) == 0
    assert trained == [tmp_path / "run"]
    (line,) = capsys.readouterr().out.splitlines()
    assert f"run is still locked by process {os.getpid()} on " in line
    assert "goes on without the lock" in line


def test_who_is_rank_0_no_more_gives_the_lock_back(elastically, monkeypatch, tmp_path):
    free = []
    monkeypatch.setattr(session, "train", lambda run, *_: free.append(RunLock().take(run.run_dir)))
    monkeypatch.setattr(session.console, "silence", lambda _: None)  # it would last
    monkeypatch.setattr(World, "from_chief", lambda world, make: make() if world.is_chief else None)
    assert elastically(World(), World(rank=1, size=2)) == 0
    assert free == [False, True]


def a_run(options, run_dir):
    return Session(options=options, run_dir=run_dir, resuming=False, profile=None, arguments=())


def test_what_a_killed_run_left_half_written_is_removed(tmp_path):
    run_dir = finished("isensee2017-64", resolution=64)
    for leftover in (run_dir / ".best.host-1-00.partial.keras", run_dir / "last" / ".checkpoint.host-1-00.partial.npz"):
        leftover.touch()
    choose({}, run_dir, True, RunLock())
    assert not list(run_dir.rglob("*.partial*"))


# -- other versions ----------------------------------------------------------------------------------------------------


def describe(run_dir, *, resuming, **more):
    run_folder.describe(run_dir, chosen({}), ["--x"], resuming=resuming, limit_bytes=1, **{"device": "CPU:0", **more})


def test_a_resume_under_other_libraries_says_so_in_one_line(holder, monkeypatch, capsys):
    run_dir = finished("isensee2017-128")
    now = run_folder.versions()
    monkeypatch.setattr(run_folder, "versions", lambda: {**now, "tensorflow": "2.16.1", "platform": "elsewhere"})
    describe(run_dir, resuming=False)
    monkeypatch.setattr(run_folder, "versions", lambda: now)
    choose({}, run_dir, True, holder)
    (line,) = capsys.readouterr().out.splitlines()
    assert "trained with tensorflow 2.16.1; now it goes on with tensorflow " + now["tensorflow"] in line
    describe(run_dir, resuming=True)
    choose({}, run_dir, True, holder)
    assert capsys.readouterr().out == ""


def test_config_keeps_how_a_run_was_called_before(monkeypatch):
    run_dir = finished("isensee2017-128")
    describe(run_dir, resuming=False, device="GPU:0", data={"fingerprint": "1"})
    first = json.loads((run_dir / "config.json").read_text())
    assert "earlier_sessions" not in first
    for boot in ("1", "2"):  # a job that is queued again is called in the same way, on a machine that was started anew
        here = replace(run_folder.circumstances.here(), boot=boot)
        monkeypatch.setattr(run_folder.circumstances, "here", lambda here=here: here)
        describe(run_dir, resuming=True, data={"fingerprint": "1"})
    second = json.loads((run_dir / "config.json").read_text())
    del first["data"]
    assert (second["device"], second["earlier_sessions"]) == ("CPU:0", [first])
    describe(run_dir, resuming=True, device="GPU:1")
    assert [one["device"] for one in tasks.load(run_dir)[1]["earlier_sessions"]] == ["GPU:0", "CPU:0"]
    describe(run_dir, resuming=False)
    assert "earlier_sessions" not in tasks.load(run_dir)[1]


def test_before_the_first_stage_the_options_are_written(tmp_path, monkeypatch, capsys):
    """So that a run which is stopped there goes on with them."""
    run_dir = tmp_path / "run"

    def stop(part, *_, **__):
        raise Interrupted("stopped in a stage")

    monkeypatch.setattr(session, "train", stop)
    given = [
        "--data",
        str(tmp_path),
        "--resolution",
        "48",
        "--stages",
        "16:2,32:1",
        "--seed",
        "5",
        "--output",
        str(run_dir),
    ]
    assert train.main(given) == 130
    options, found, resuming = choose({}, run_dir, True, RunLock())
    assert (found, resuming) == (run_dir, False)
    assert (options.resolution, options.stages, options.seed) == (48, ((16, 2), (32, 1)), 5)


def test_a_stage_holds_its_folder_while_it_trains(tmp_path, monkeypatch, capsys):
    """Its folder is one that --output may name, too."""
    given = ["--data", str(tmp_path), "--resolution", "48", "--stages", "16:2", "--output", "run"]
    stage, seen = Path("run/stages/16"), []

    def trained(part, *_, **__):
        with RunLock() as other:
            seen.append((part.run_dir, other.take(part.run_dir), other.take(stage)))

    monkeypatch.setattr(session, "train", trained)
    monkeypatch.setattr(stages, "_forget", lambda: None)
    assert train.main(given) == 0
    assert seen == [(stage, False, False), (Path("run"), False, True)]
    assert not list(Path().rglob(".lock"))
    with RunLock() as other:
        assert other.take(stage)
        assert train.main(given) == 2
    assert f"{stage} is in use by process {os.getpid()}" in capsys.readouterr().err
