"""`--tracker`: a run and its resumption are one tracked run with the numbers of history.csv; a tracker that fails ends nothing."""

from __future__ import annotations

import csv
import importlib.util
import json
import struct
import subprocess
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import lms3d
from lms3d import cli, command_options, train
from lms3d.errors import InputError
from lms3d.tasks.brats.options import BratsConfig
from lms3d.training import trackers, trainer
from lms3d.training.callbacks.order import Place, with_place
from lms3d.training.run import Data, Job, TrainingSchedule
from lms3d.training.session import Session
from lms3d.training.trackers import TRACKERS, Tracker

OPTIONS = {"model": "unet3d", "resolution": 16, "learning_rate": 0.01}


class Stop(keras.callbacks.Callback):
    """Ends the run in the first step of an epoch, from 0."""

    def __init__(self, epoch: int) -> None:
        super().__init__()
        self.last = epoch

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        if epoch == self.last:
            raise RuntimeError("a defect")


def fit(run_dir, *callbacks, epochs=2, resume=False, followed=("toy",), name="brain"):
    keras.utils.set_random_seed(3)
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.01), "mse", jit_compile=False)
    model.optimizer.build(model.trainable_variables)
    batch = tf.data.Dataset.from_tensors((np.ones((1, 2), np.float32), np.ones((1, 1), np.float32)))
    data = Data(training=lambda first: batch.repeat(), validation=batch)
    job = Job(run_dir=run_dir, resume=resume, trackers=followed, name=name, options=OPTIONS)
    trainer.train(model, data, TrainingSchedule(epochs=epochs, steps_per_epoch=2), job, callbacks)


def history_of(run_dir) -> list[dict[str, float]]:
    rows = csv.DictReader((run_dir / "history.csv").read_text().splitlines())
    return [{name: float(value) for name, value in row.items()} for row in rows]


def assert_has_history(run_dir, rows) -> None:
    """rows: one per epoch, with the names and values of history.csv, and perhaps more."""
    expected = history_of(run_dir)
    assert len(rows) == len(expected)
    for found, row in zip(rows, expected, strict=True):
        assert {name: found[name] for name in row} == pytest.approx(row, rel=1e-6)


@pytest.fixture
def toy():
    """All that it takes to add a tracker. `toy.runs` has what each tracked run was told; `toy.broken` is a method that fails."""
    told = SimpleNamespace(runs={}, broken="")

    @TRACKERS.register("toy")
    class Toy(Tracker):
        def __init__(self, run):
            self.id = run.id or f"run-{len(told.runs)}"
            self.told = told.runs.setdefault(self.id, SimpleNamespace(first=run, rows=[], endings=[]))
            self.fail_in("begin")

        def log(self, row):
            self.fail_in("log")
            self.told.rows.append(row)

        def close(self, ending):
            self.fail_in("close")
            self.told.endings.append(ending)

        def fail_in(self, method):
            if told.broken == method:
                raise ConnectionError(f"no network\nin {method}")

    yield told
    TRACKERS.remove("toy")


def test_a_resumed_run_is_the_same_tracked_run(tmp_path, toy):
    fit(tmp_path)
    fit(tmp_path, epochs=3, resume=True)
    (run,) = toy.runs.values()
    assert_has_history(tmp_path, run.rows)
    assert (run.first.name, run.first.options, run.endings) == ("brain", OPTIONS, ["finished"] * 2)


def test_a_tracker_that_is_new_to_a_run_gets_its_earlier_epochs(tmp_path, toy):
    fit(tmp_path, followed=())
    fit(tmp_path, epochs=3, resume=True)
    (run,) = toy.runs.values()
    assert_has_history(tmp_path, run.rows)


def test_a_new_run_in_the_folder_of_one_that_came_to_nothing_is_another(tmp_path, toy):
    for stop in (Stop(0), Stop(9)):
        keras.backend.clear_session()
        try:
            fit(tmp_path, stop)
        except RuntimeError:
            continue
    first, second = toy.runs.values()
    assert (first.rows, first.endings) == ([], ["failed"])
    assert_has_history(tmp_path, second.rows)


@pytest.mark.parametrize("method", ["begin", "log", "close"])
def test_a_tracker_that_fails_ends_nothing(tmp_path, toy, capsys, method):
    toy.broken = method
    fit(tmp_path, followed=("toy", "tensorboard"))
    assert len(history_of(tmp_path)) == 2
    assert list(tmp_path.glob("tensorboard/events*"))
    assert capsys.readouterr().err == f"lms3d: --tracker toy: no network in {method}; training goes on without it\n"


def test_ids_that_are_damaged_begin_a_new_tracked_run(tmp_path, toy):
    fit(tmp_path)
    (tmp_path / "trackers.json").write_text("[")
    fit(tmp_path, epochs=3, resume=True)
    assert_has_history(tmp_path, list(toy.runs.values())[1].rows)


def test_the_peak_and_the_step_time_of_the_report(tmp_path, toy):
    lms = lms3d.LMS()
    fit(tmp_path, with_place(Place.LMS, lms))
    (run,) = toy.runs.values()
    assert run.rows[-1]["step_seconds"] == pytest.approx(lms.report.measured_step_seconds)
    assert run.rows[-1]["predicted_peak_bytes"] == lms.report.predicted_peak_bytes
    assert run.rows[-1].get("peak_bytes") == lms.report.measured_peak_bytes
    lms.close()


def test_names_that_trackers_are_told(tmp_path):
    options = BratsConfig(data=tmp_path / "Mueller", weights=tmp_path / "Nakamura.h5", tracker=("wandb",))
    assert "Mueller" not in str(options.without_paths())
    assert {"data", "weights", "tracker"}.isdisjoint(options.without_paths())
    whole = Session(options=options, run_dir=tmp_path / "192", resuming=False, profile=None, arguments=())
    assert whole.tracked_name == "192"
    stage = Session(**{**vars(whole), "run_dir": tmp_path / "192/stages/64", "whole": tmp_path / "192"})
    assert stage.tracked_name == "192/64"
    assert Session(**{**vars(whole), "named": False}).tracked_name is None


def test_the_option():
    parser = cli.Parser(prog="train")
    command_options.add_run_options(parser)
    assert parser.parse_args(["--tracker", "wandb, mlflow,wandb"]).tracker == ("wandb", "mlflow")
    assert BratsConfig().tracker == ("tensorboard",)
    for text in ("", "comet"):
        with pytest.raises(
            InputError, match=f"'{text}' is no tracker; expected tensorboard, wandb, mlflow, or several"
        ):
            parser.parse_args(["--tracker", text])


def test_a_missing_package_is_one_line_before_anything_is_read(tmp_path, capsys, monkeypatch):
    """A folder `wandb`, such as offline runs leave, is no package."""
    (tmp_path / "no_such_tracker").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    for package in ("no_such_tracker", "no_such_package"):
        monkeypatch.setattr(TRACKERS["wandb"], "package", package)
        assert train.main(["--tracker", "tensorboard,wandb", "--output", str(tmp_path / "run")]) == 2
        assert capsys.readouterr().err == (
            f"lms3d: error: --tracker wandb: the package {package} is not installed; pip install {package}, or choose other "
            "trackers\n"
        )
    assert not (tmp_path / "run").exists()
    trackers.require_installed(["tensorboard"])


# -- the packages themselves, without a network


def installed(*packages):
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    return pytest.mark.skipif(bool(missing), reason=f"pip install {' '.join(packages)}")


@installed("mlflow")
@pytest.mark.slow
def test_files_of_mlflow(tmp_path, monkeypatch):
    from mlflow.tracking import MlflowClient

    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"file:{tmp_path / 'store'}")
    for name in ("MLFLOW_HTTP_REQUEST_TIMEOUT", "MLFLOW_HTTP_REQUEST_MAX_RETRIES"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # no longer allowed unless it is asked for
    fit(tmp_path / "run", followed=("mlflow",), name=None)
    fit(tmp_path / "run", epochs=3, resume=True, followed=("mlflow",), name=None)
    client = MlflowClient()
    (run,) = client.search_runs([client.get_experiment_by_name("lms3d").experiment_id])
    names = history_of(tmp_path / "run")[0]
    columns = {name: client.get_metric_history(run.info.run_id, name) for name in names}
    rows = [{name: found[epoch].value for name, found in columns.items()} for epoch in range(3)]
    assert_has_history(tmp_path / "run", rows)
    assert [one.step for one in columns["loss"]] == [1, 2, 3]
    assert run.data.params == {name: str(value) for name, value in OPTIONS.items()}
    assert run.info.status == "FINISHED"
    assert not any(name.startswith(("mlflow.user", "mlflow.source")) for name in run.data.tags)


@installed("wandb")
@pytest.mark.slow
def test_files_of_wandb(tmp_path, monkeypatch):
    import wandb

    for name in ("WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_DATA_DIR"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.setenv("WANDB_MODE", "offline")
    try:
        fit(tmp_path / "run", followed=("wandb",))
        fit(tmp_path / "run", epochs=3, resume=True, followed=("wandb",))
    finally:
        wandb.teardown()
    parts = sorted(tmp_path.glob("run/wandb/offline-run-*/*.wandb"), key=lambda path: path.stat().st_mtime)
    assert len({path.name for path in parts}) == 1  # `wandb sync` joins them by this name
    found = [wandb_run(path) for path in parts]
    assert_has_history(tmp_path / "run", [row for rows, _ in found for row in rows])
    for path, (_, config) in zip(parts, found, strict=True):
        assert {name: config[name] for name in OPTIONS} == OPTIONS
        assert sys.executable.encode() not in path.read_bytes()  # the command, with all its folders, would be beside it
        assert {file.name for file in (path.parent / "files").iterdir()} <= {"config.yaml", "requirements.txt"}


def wandb_run(path):
    """Rows and config of a file that wandb keeps for `wandb sync`."""
    from wandb.proto import wandb_internal_pb2

    rows, config = [], {}
    for content in wandb_records(path.read_bytes()):
        record = wandb_internal_pb2.Record.FromString(content)
        values = {(item.key or item.nested_key[0]): json.loads(item.value_json) for item in record.history.item}
        rows += [values] if values else []
        config |= {item.key: json.loads(item.value_json) for item in record.run.config.update}
    return rows, config


def wandb_records(content: bytes) -> Iterator[bytes]:
    """The records of a log of LevelDB: 7 bytes of header; then blocks of 32 KiB with pieces of records. Each piece has a checksum,
    its length, and whether it is whole (1), the first (2), another (3) or the last one (4)."""
    at, record = 7, b""
    while at + 7 <= len(content):
        if 32768 - at % 32768 < 7:  # no room for a header
            at += 32768 - at % 32768
            continue
        _, length, kind = struct.unpack_from("<IHB", content, at)
        record += content[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):
            yield record
            record = b""


def test_trackers_are_checked_before_tensorflow_is_there():
    """What imports it before `startup` prints its log, and takes away the choice of its pool."""
    code = (
        "import sys; from lms3d.training import trackers; trackers.require_installed(['tensorboard']); "
        "sys.exit('tensorflow' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=120).returncode == 0
