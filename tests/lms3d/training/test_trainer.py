"""A run that was interrupted and resumed must end with the bits of one that was not."""

import csv
import json
import math
import os
import shutil
import signal
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from lms3d import atomic_files
from lms3d.errors import Diverged, Interrupted
from lms3d.keras_step.callback import LMS
from lms3d.ranks import variables
from lms3d.training import checkpoint, trainer
from lms3d.training.callbacks import progress, validation
from lms3d.training.callbacks.order import Place
from lms3d.training.run import Data, Job, TrainingSchedule
from lms3d.training.validation import OwnValidation
from tests.power_cut import PowerCut

STEPS = 4


def make_model() -> keras.Model:
    keras.utils.set_random_seed(3)
    inputs = keras.Input((4, 4, 4, 2))
    x = keras.layers.Conv3D(3, 3, padding="same", activation="relu")(inputs)
    x = keras.layers.SpatialDropout3D(0.5)(x)
    model = keras.Model(inputs, keras.layers.Conv3D(1, 1)(x))
    model.compile(keras.optimizers.Adam(1e-2), "mse", metrics=["mae"], jit_compile=False)
    model.optimizer.build(model.trainable_variables)
    return model


def batch(step: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(int(step))
    return rng.random((1, 4, 4, 4, 2), np.float32), rng.random((1, 4, 4, 4, 1), np.float32)


def dataset(steps: tf.data.Dataset) -> tf.data.Dataset:
    def load(step: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        x, y = tf.numpy_function(batch, [step], (tf.float32, tf.float32))
        return tf.ensure_shape(x, (1, 4, 4, 4, 2)), tf.ensure_shape(y, (1, 4, 4, 4, 1))

    return steps.map(load)


class InWindows(OwnValidation):
    """The samples of the usual validation, each a window, and the same loss and metric."""

    batches, in_words = 3, ""

    def scores(self, predict):
        found = {"loss": [], "mae": []}
        for number in range(900, 903):
            (x,), (y,) = batch(number)
            wrong = predict(x) - y
            found["loss"].append(float((wrong**2).mean()))
            found["mae"].append(float(np.abs(wrong).mean()))
        return {name: float(np.mean(each)) for name, each in found.items()}


def run(run_dir, *callbacks, epochs=4, resume=False, model=None, on_interrupt=lambda: None, own=None, **options):
    model = model or make_model()
    data = Data(
        training=lambda first: dataset(tf.data.Dataset.range(first, 10**6)),
        validation=own or dataset(tf.data.Dataset.range(900, 903)),
    )
    schedule = TrainingSchedule(epochs=epochs, steps_per_epoch=STEPS, **options)
    job = Job(run_dir=run_dir, resume=resume, on_interrupt=on_interrupt)
    return model, trainer.train(model, data, schedule, job, callbacks)


class CtrlC(keras.callbacks.Callback):
    """Sends SIGINT to this process at the given (epoch, step) of training, or validation step of an epoch."""

    def __init__(self, epoch: int, step: int, hook: str = "train") -> None:
        super().__init__()
        self.where, self.hook, self.epoch = (epoch, step), hook, 0

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_begin(self, batch, logs=None):
        self.fire("train", batch)

    def on_test_batch_begin(self, batch, logs=None):
        self.fire("test", batch)

    def fire(self, hook: str, batch: int) -> None:
        if hook == self.hook and (self.epoch, batch) == self.where:
            os.kill(os.getpid(), signal.SIGINT)


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    run_dir = tmp_path_factory.mktemp("straight")
    model, history = run(run_dir)
    return run_dir, model, history


def assert_same(model, run_dir, straight):
    straight_dir, straight_model, _ = straight
    for (name, mine), (other, theirs) in zip(
        variables.variables(model).items(), variables.variables(straight_model).items(), strict=True
    ):
        np.testing.assert_array_equal(np.asarray(mine), np.asarray(theirs), err_msg=f"{name} / {other}")
    assert without_seconds(run_dir) == without_seconds(straight_dir)


def without_seconds(run_dir):
    return [{k: v for k, v in row.items() if k != "seconds"} for row in history_of(run_dir)]


def history_of(run_dir):
    return list(csv.DictReader((run_dir / "history.csv").read_text().splitlines()))


def test_resumed_after_two_epochs(tmp_path, straight):
    run(tmp_path, epochs=2)
    model, history = run(tmp_path, resume=True)
    assert history.resumed_at == trainer.Position(2, 0)
    assert_same(model, tmp_path, straight)


@pytest.mark.parametrize(
    ("where", "position"),
    [
        (CtrlC(0, 1), (0, 2)),
        (CtrlC(2, 2), (2, 3)),
        (CtrlC(1, 3), (1, 4)),  # in the last step: validation is due
        (CtrlC(1, 1, "test"), (1, 4)),
    ],
    ids=["first epoch", "mid-epoch", "last step", "validation"],
)
def test_resumed_after_interrupt(tmp_path, straight, where, position):
    announced = []
    with pytest.raises(Interrupted, match=f"epoch {position[0] + 1}"):
        run(tmp_path, where, on_interrupt=lambda: announced.append(True))
    assert announced == [True]
    model, history = run(tmp_path, resume=True)
    assert history.resumed_at == trainer.Position(*position)
    assert_same(model, tmp_path, straight)


@pytest.fixture(scope="module")
def straight_in_windows(tmp_path_factory):
    run_dir = tmp_path_factory.mktemp("windows")
    model, history = run(run_dir, own=InWindows())
    return run_dir, model, history


def test_a_validation_of_its_own_says_what_keras_would(straight, straight_in_windows):
    for mine, theirs in zip(history_of(straight_in_windows[0]), history_of(straight[0]), strict=True):
        assert list(mine) == list(theirs)
        for name in mine.keys() - {"seconds"}:
            assert float(mine[name]) == pytest.approx(float(theirs[name]), rel=1e-5), name


@pytest.mark.parametrize(
    ("where", "position"),
    [(CtrlC(2, 2), (2, 3)), (CtrlC(1, 1, "test"), (1, 4))],
    ids=["mid-epoch", "validation"],
)
def test_a_validation_of_its_own_is_interrupted_and_repeated(tmp_path, straight_in_windows, where, position):
    with pytest.raises(Interrupted):
        run(tmp_path, where, LMS(), own=InWindows())
    model, history = run(tmp_path, LMS(), resume=True, own=InWindows())
    assert history.resumed_at == trainer.Position(*position)
    assert_same(model, tmp_path, straight_in_windows)


def test_a_validation_that_takes_longer_than_training_is_told_once(tmp_path, monkeypatch, capsys):
    clock = Clock(validation_seconds=6.0)
    monkeypatch.setattr(validation, "time", clock)
    run(tmp_path, clock, epochs=2, own=InWindows())
    (told,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("note: validating")]
    assert "took 6.0 s, longer than training, 4.0 s; --validation-steps N" in told


def test_a_run_that_was_validated_otherwise_chooses_its_best_epoch_anew(tmp_path, capsys):
    """A patch around the foreground was easier than the whole volume."""

    class Harder(InWindows):
        def scores(self, predict):
            return {name: 1000 + value for name, value in super().scores(predict).items()}

    run(tmp_path, epochs=2, patience=2)
    before = best_of(tmp_path)
    _, history = run(tmp_path, epochs=4, patience=2, resume=True, own=Harder())
    assert capsys.readouterr().out.count("the best epoch is chosen anew") == 1
    assert len(history.rows) == 4
    assert any((mine != theirs).any() for mine, theirs in zip(best_of(tmp_path), before, strict=True))
    run(tmp_path, epochs=5, resume=True, own=Harder())
    assert "chosen anew" not in capsys.readouterr().out


def test_lms_runs_the_windows(tmp_path):
    lms, seen = LMS(), []

    class Seen(keras.callbacks.Callback):
        def on_test_batch_end(self, batch, logs=None):
            seen.append((batch, "predict" in lms.reports))

    model, _ = run(tmp_path, lms, Seen(), epochs=2, own=InWindows())
    assert seen == [(0, True), (1, True), (2, True)] * 2
    assert "test" not in lms.reports
    assert model.predict_function is None, "Keras makes its own again"


def test_interrupted_twice_in_one_epoch(tmp_path, straight):
    with pytest.raises(Interrupted):
        run(tmp_path, CtrlC(1, 0))
    with pytest.raises(Interrupted):
        run(tmp_path, CtrlC(1, 1), resume=True)  # the second step after the resume
    model, history = run(tmp_path, resume=True)
    assert history.resumed_at == trainer.Position(1, 3)
    assert_same(model, tmp_path, straight)


def test_finished_run_stays_as_it_is(tmp_path, straight):
    run(tmp_path)
    model, history = run(tmp_path, resume=True)
    assert len(history.rows) == 4
    assert_same(model, tmp_path, straight)


def test_early_stopping_counts_across_a_resume(tmp_path):
    """With a rate of 0 nothing gets better: patience 2 ends the run after epoch 3, resumed or not."""

    def frozen():
        model = make_model()
        model.optimizer.learning_rate = 0.0
        return model

    run(tmp_path, epochs=2, patience=2, model=frozen())
    _, history = run(tmp_path, epochs=9, patience=2, resume=True, model=frozen())
    assert len(history.rows) == 3
    assert history.stopped_early
    _, again = run(tmp_path, epochs=9, patience=2, resume=True, model=frozen())
    assert len(again.rows) == 3


class Clock(keras.callbacks.Callback):
    """Tells the time that steps and validations are said to take, in seconds; runs before the guard."""

    place = Place.LMS

    def __init__(self, step_seconds=lambda step: 1.0, validation_seconds=3.0) -> None:
        super().__init__()
        self.now, self.steps, self.each, self.validation = 0.0, 0, step_seconds, validation_seconds

    def monotonic(self) -> float:
        return self.now

    def on_train_batch_end(self, batch, logs=None):
        self.steps += 1
        self.now += self.each(self.steps)

    def on_test_batch_end(self, batch, logs=None):
        self.now += self.validation / 3


@pytest.fixture
def timed(tmp_path, monkeypatch):
    """`timed(clock, seconds)`: a run that ends by that clock -> its steps, its history, the time at its end."""

    def train(clock, seconds, **options):
        monkeypatch.setattr(progress, "time", clock)
        _, history = run(tmp_path, clock, progress.TimeGuard(seconds, 3.0), epochs=500, **options)
        return clock.steps, history, clock.now

    return train


def test_a_demonstration_trains_until_its_time_is_over(timed):
    steps, history, end = timed(Clock(), 26)
    assert (steps, end) == (13, 25)  # three epochs of 4 steps and 3 seconds more; the last has one step
    assert history.out_of_time
    assert len(history.rows) == 4
    assert all("val_loss" in row for row in history.rows)


def test_what_slows_the_beginning_of_a_demonstration_does_not_shorten_its_rest(timed):
    steps, _, end = timed(Clock(lambda step: 5.0 if step <= 4 else 1.0), 43)
    assert (steps, end) == (14, 42)  # 4 in 23 seconds, then 4, 4 and 2


def test_a_demonstration_ends_after_a_first_step_that_takes_all_its_time(timed):
    assert timed(Clock(lambda step: 30.0), 20)[0] == 1


def test_a_first_step_leaves_too_little_time_for_a_second(timed):
    """It took 180 seconds without tracing."""
    assert timed(Clock(lambda step: 200.0), 300)[0] == 1


def test_a_demonstration_goes_on_after_a_first_step_that_is_traced(timed):
    assert timed(Clock(lambda step: 12.0 if step == 1 else 1.0), 20)[0] > 2


def test_a_demonstration_that_has_ended_is_not_trained_longer_without_epochs(timed, tmp_path):
    _, before, _ = timed(Clock(), 20)
    steps, history, _ = timed(Clock(), 20, resume=True)
    assert (steps, history.rows) == (0, before.rows)
    _, longer = run(tmp_path, epochs=6, resume=True)
    assert (len(longer.rows), longer.out_of_time) == (6, False)


def test_files(straight):
    run_dir, _, history = straight
    rows = history_of(run_dir)
    assert list(rows[0]) == ["epoch", "loss", "val_loss", "learning_rate", "seconds", "mae", "val_mae"]
    assert [row["epoch"] for row in rows] == ["1", "2", "3", "4"]
    assert float(rows[0]["learning_rate"]) == pytest.approx(1e-2)
    best = min(history.rows, key=lambda row: row["val_loss"])
    kept = keras.models.load_model(run_dir / "best.keras", compile=False)
    kept.compile(loss="mse", jit_compile=False)
    loss = kept.evaluate(dataset(tf.data.Dataset.range(900, 903)), verbose=0)
    assert loss == pytest.approx(best["val_loss"], rel=1e-6)
    assert list(run_dir.glob("tensorboard/events*"))
    assert not list(run_dir.rglob("*.partial*"))


def test_a_loss_that_is_not_a_number_stops_the_run(tmp_path):
    model = make_model()
    model.trainable_variables[-1].assign(np.full(model.trainable_variables[-1].shape, np.nan, np.float32))
    with pytest.raises(Diverged, match="--learning-rate"):
        run(tmp_path, model=model)


def test_callbacks_end_when_fit_fails(tmp_path):
    class Faulty(keras.callbacks.Callback):
        ended = False

        def on_train_batch_end(self, batch, logs=None):
            raise OSError("disk on fire")

        def on_train_end(self, logs=None):
            self.ended = True

    faulty = Faulty()
    with pytest.raises(OSError, match="disk on fire"):
        run(tmp_path, faulty)
    assert faulty.ended


# -- what a crash leaves -----------------------------------------------------------------------------------------------


@pytest.fixture
def copied(tmp_path, straight):
    """A copy of the run of four epochs, of which the second and the fourth were the best so far; the fifth is again."""
    return Path(shutil.copytree(straight[0], tmp_path / "run"))


def test_resumed_from_a_checkpoint_of_an_earlier_version(copied, straight):
    """Without digests; see test_run_state for those before them."""
    path = checkpoint.path_in(copied)
    arrays, state = checkpoint.load(path)
    del state["best"]
    np.savez(path, **{"state.json": np.frombuffer(json.dumps(state).encode(), np.uint8)}, **arrays)
    model, history = run(copied, resume=True)
    assert history.resumed_at == trainer.Position(4, 0)
    assert_same(model, copied, straight)
    assert atomic_files.digest(copied / "best.keras") == atomic_files.digest(straight[0] / "best.keras")


class Killed(BaseException):
    """What no handler handles."""


def test_resumed_from_the_older_generation(copied, straight, capsys):
    path = checkpoint.path_in(copied)
    path.write_bytes(path.read_bytes()[:-1000])  # see test_checkpoint for other damage
    model, history = run(copied, resume=True)
    assert history.resumed_at == trainer.Position(3, 0)
    (told,) = [line for line in capsys.readouterr().out.splitlines() if str(path) in line]
    assert "is damaged" in told
    assert "going on from the one before it, saved after epoch 3" in told
    assert_same(model, copied, straight)
    for mine, theirs in zip(best_of(copied), best_of(straight[0]), strict=True):
        np.testing.assert_array_equal(mine, theirs)


def best_of(run_dir):
    return keras.models.load_model(run_dir / "best.keras", compile=False).get_weights()


def test_best_weights_later_than_the_checkpoint_are_taken_back(copied, straight, monkeypatch):
    """Else a run that goes on in another way (other ranks, other limits) might keep best weights that it never had."""

    def killed(*_):
        raise Killed

    save = checkpoint.save
    monkeypatch.setattr(checkpoint, "save", killed)
    with pytest.raises(Killed):
        run(copied, epochs=5, resume=True)
    monkeypatch.setattr(checkpoint, "save", save)
    assert atomic_files.digest(copied / "best.keras") != atomic_files.digest(straight[0] / "best.keras")
    assert len(history_of(copied)) == 5
    run(copied, resume=True)
    assert atomic_files.digest(copied / "best.keras") == atomic_files.digest(straight[0] / "best.keras")
    assert without_seconds(copied) == without_seconds(straight[0])

    checkpoint.path_in(copied).write_bytes(b"")
    older = atomic_files.digest(copied / "last" / "best.older.keras")
    run(copied, epochs=3, resume=True)
    assert atomic_files.digest(copied / "best.keras") == older
    assert without_seconds(copied) == without_seconds(straight[0])[:3]


def test_best_weights_that_are_lost_are_replaced_soon(tmp_path, capsys):
    """The best loss of a file that is gone would keep all others out: the third epoch is no better than the second."""
    run(tmp_path, epochs=2)
    (tmp_path / "best.keras").write_bytes(b"")
    run(tmp_path, epochs=3, resume=True)
    assert "best.keras is not what this run wrote" in capsys.readouterr().out
    best_of(tmp_path)


def test_a_power_cut_at_any_moment(tmp_path, monkeypatch):
    """The checkpoint that is left is whole, and the best weights that it speaks of are there."""
    (tmp_path / "disk").mkdir()
    with monkeypatch.context() as patched:
        disk = PowerCut(tmp_path / "disk", patched)
        run(tmp_path / "disk" / "run", epochs=2)
    found = []
    for root in disk.each(tmp_path / "every"):
        run_dir = root / "run"
        if checkpoint.generations(run_dir):
            _, state, _ = checkpoint.latest(checkpoint.path_in(run_dir))
            assert state["best"] in [atomic_files.digest(path) for path in run_dir.rglob("best*.keras")]
            found.append(len(state["rows"]))
        else:
            assert not found
    assert set(found) == {1, 2}
    assert len(found) > 10


def test_without_tensorboard_training_goes_on(tmp_path, capsys):
    """Its files repeat what history.csv says. The error comes from TensorFlow, which is no OSError."""
    (tmp_path / "tensorboard").touch()
    run(tmp_path, epochs=2)
    assert len(checkpoint.latest(checkpoint.path_in(tmp_path))[1]["rows"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert f"{tmp_path / 'tensorboard'}" in said
    assert "training goes on" in said


class Overflow(keras.callbacks.Callback):
    """An update that makes weights infinite, after a loss that was finite: in the given step of the fifth epoch."""

    def __init__(self, step: int) -> None:
        super().__init__()
        self.step, self.epoch = step, 0

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_begin(self, batch, logs=None):
        if (self.epoch, batch) == (4, self.step):
            self.model.optimizer.learning_rate = math.inf


@pytest.mark.parametrize(
    "callbacks", [[Overflow(STEPS - 1)], [Overflow(1), CtrlC(4, 1)]], ids=["last step", "interrupted"]
)
def test_weights_that_are_not_finite_are_not_saved(copied, straight, callbacks):
    with pytest.raises(Diverged, match=r"not finite after epoch 5, step \d; last/ .* after epoch 4; .*--learning-rate"):
        run(copied, *callbacks, epochs=6, resume=True)
    assert atomic_files.digest(copied / "best.keras") == atomic_files.digest(straight[0] / "best.keras")
    model, history = run(copied, resume=True)
    assert history.resumed_at == trainer.Position(4, 0)
    assert_same(model, copied, straight)
