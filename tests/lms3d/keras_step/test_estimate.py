"""`lms3d.plan_step` and `lms3d.estimate` for models of one's own, and `python -m lms3d.plan --keras-model` for saved ones."""

from __future__ import annotations

import json
import re
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

import lms3d
from lms3d import plan
from lms3d.device import memory
from lms3d.engine.step_model.pool import CPU_POOL, NO_POOL

BATCH = (tf.TensorSpec((2, 16, 16, 8)), tf.TensorSpec((2, 16, 16, 2)))


def network(size: int | None = 16, channels: int = 40) -> keras.Model:
    inputs = y = keras.Input((size, size, 8), name="image")
    for _ in range(3):
        y = keras.layers.Conv2D(channels, 3, padding="same", activation="relu")(y)
    return keras.Model(inputs, keras.layers.Conv2D(2, 1)(y))


class Unbuilt(keras.Model):
    def __init__(self, **options: object) -> None:
        super().__init__(**options)
        self.first, self.second = keras.layers.Conv2D(40, 3, padding="same"), keras.layers.Conv2D(2, 1)

    def call(self, x: tf.Tensor) -> tf.Tensor:
        return self.second(keras.ops.relu(self.first(x)))


@keras.saving.register_keras_serializable("here")
class Registered(Unbuilt):
    """Can be loaded, but has no inputs to look at."""


def compiled(model: keras.Model, loss: str = "mse") -> keras.Model:
    model.compile("adam", loss, jit_compile=False)
    return model


# -- the functions


def test_what_a_step_needs_with_and_without_lms():
    model = compiled(network())
    report = lms3d.estimate(model, BATCH, memory_limit="1GiB")
    assert 0 < report.floor_bytes <= report.unedited_limit_bytes < 1 << 30
    assert 0 < report.unedited_step_seconds <= report.predicted_step_seconds
    planned = lms3d.plan_step(model, BATCH, memory_limit=report.floor_bytes, with_floor=False)
    assert planned.report.predicted_peak_bytes <= report.floor_bytes == planned.report.limit_bytes


@pytest.mark.parametrize(
    ("hard", "told"), [(True, "a hard one, as lms3d.limit"), (False, "not a hard one: TensorFlow")]
)
def test_the_kind_of_limit_that_was_assumed_is_printed(hard, told):
    report = lms3d.estimate(compiled(network()), BATCH, memory_limit="1GiB", hard_limit=hard, with_floor=False)
    assert f"1.00 GiB, {told}" in str(report)


@pytest.mark.parametrize("make", [Unbuilt, lambda: keras.Sequential([keras.layers.Conv2D(2, 1)])])
def test_what_is_not_built_gets_built(make):
    model = compiled(make())
    report = lms3d.estimate(model, BATCH, with_floor=False)
    assert model.built
    assert model.optimizer.built
    assert report.unedited_peak_bytes > 2 * 16 * 16 * 10 * 4
    before = model.get_weights()
    model.fit(np.ones(BATCH[0].shape), np.ones(BATCH[1].shape), batch_size=2, verbose=0, callbacks=[lms3d.LMS()])
    assert not np.array_equal(before[0], model.get_weights()[0])


def test_a_batch_and_a_dataset_say_the_same_as_their_shapes():
    model = compiled(network())
    arrays = tuple(np.zeros(part.shape) for part in BATCH)  # float64, as `fit` takes them
    singles = tf.data.Dataset.from_tensor_slices(tuple(a.astype(np.float32) for a in arrays))
    dataset = singles.batch(2)  # the last batch may be smaller: of no fixed size
    peaks = [lms3d.estimate(model, given, with_floor=False).unedited_peak_bytes for given in (BATCH, arrays, dataset)]
    assert len(set(peaks)) == 1


@pytest.mark.parametrize(("limit", "pool"), [(1 << 30, CPU_POOL), (None, NO_POOL)])
def test_a_limit_that_was_set_is_planned_for_as_it_is_trained_under(limit, pool, monkeypatch):
    monkeypatch.setattr(memory, "current_limit", lambda: limit)
    monkeypatch.setattr(memory, "compute_device", lambda: "CPU:0")
    planned = lms3d.plan_step(network(), BATCH[0], step="predict", with_floor=False)
    assert planned.settings.pool == pool == lms3d.LMS()._get_runner().engine.settings.pool


def test_a_model_that_is_not_compiled_predicts():
    report = lms3d.estimate(network(), BATCH[0], step="predict", with_floor=False)
    assert report.step == "predict"


@pytest.mark.parametrize(("given", "options", "message"), [
    (BATCH, {"step": "fit"}, "step 'fit': expected one of train, test, predict"),
    (BATCH[:1], {"step": "predict", "planner": "magic"}, "planner 'magic'"),
    (tf.TensorSpec((None, 16, 16, 8)), {"step": "predict"}, "needs all sizes of a batch"),
    (tf.data.Dataset.range(0).batch(2), {"step": "predict"}, "a dataset that is not empty"),
    (BATCH, {}, r"call model\.compile\(optimizer, loss\)"),
])  # fmt: skip
def test_what_cannot_be_planned_is_refused_in_one_line(given, options, message):
    with pytest.raises(lms3d.InputError, match=message) as refusal:
        lms3d.plan_step(network(), given, **options)
    assert "\n" not in str(refusal.value)


# -- the command


def run(capsys, *arguments: str | Path) -> tuple[int, str, str]:
    code = plan.main([str(a) for a in arguments])
    return code, *capsys.readouterr()


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("models") / "mine.keras"
    compiled(network()).save(path)
    return path


def test_a_saved_model_is_planned(saved, capsys, tmp_path):
    code, out, err = run(capsys, "--keras-model", saved, "--batch-size", "2", "--output", tmp_path)
    assert (code, err) == (0, "")
    assert "Tracing mine.keras, batch 2" in out
    assert "smallest limit" in out
    needed = json.loads((tmp_path / "lms_plan.json").read_text())
    assert needed["unedited_peak_bytes"] == lms3d.estimate(compiled(network()), BATCH).unedited_peak_bytes
    floors = re.compile(r"smallest limit +([\d.]+) MiB with LMS")
    named = [run(capsys, "--keras-model", saved, "--batch-size", "64", *words)[1] for words in ((), ("--copied",))]
    in_place, copied = (float(floors.search(one)[1]) for one in named)
    assert in_place < copied
    code, out, err = run(capsys, "--keras-model", saved, "--batch-size", "2", "--memory-limit", "2MiB", "--sweep", "2")
    assert code == 3
    assert "does not fit in 2.00 MiB, not even with LMS" in err
    assert "Step time under a memory limit" in out


def test_a_saved_model_says_why_a_tensor_leaves(saved, capsys):
    large = tuple(tf.TensorSpec((64, *part.shape[1:])) for part in BATCH)
    needed = lms3d.estimate(compiled(network()), large, mapped=False, slabs="off", memory_limit="1GiB")
    limit = needed.floor_bytes + (needed.unedited_limit_bytes - needed.floor_bytes) // 5
    named = ("--keras-model", saved, "--batch-size", "64", "--copied", "--slabs", "off", "--memory-limit", str(limit))
    listed = run(capsys, *named)[1].partition("largest that do not stay")[2]
    tensor, verdict = re.search(r"^ +(\S+:\d+) +(swap|recompute|both) ", listed, re.MULTILINE).groups()
    code, out, err = run(capsys, *named, "--why", tensor)
    assert (code, err) == (0, "")
    assert re.search(
        rf"why +{ {'swap': 'swapped', 'recompute': 'recomputed', 'both': 'swapped and recomputed'}[verdict] }: ", out
    )
    assert re.search(r"shape +\[64(, \d+)+\] float32\n", out)
    assert re.search(r"read by +\S+ \(\w+\), from ", out)
    assert re.search(r"at the peak +[\d.]+ MiB more if it were kept: [\d.]+ MiB instead of [\d.]+ MiB", out)


def test_class_numbers_as_targets_and_sizes_that_the_file_leaves_open(capsys, tmp_path):
    path = tmp_path / "open.keras"
    compiled(network(None), "sparse_categorical_crossentropy").save(path)
    code, out, err = run(capsys, "--keras-model", path, "--resolution", "29")  # our own take multiples of 16
    assert (code, err) == (0, "")
    assert "peak without LMS" in out
    code, _, err = run(capsys, "--keras-model", path)
    assert code == 2
    assert f"--keras-model {path}: input 'image' leaves sizes open; give --resolution N" in err


def test_several_inputs_and_outputs(capsys, tmp_path):
    a, b = keras.Input((4,), name="a"), keras.Input((6,), name="b")
    hidden = keras.layers.Concatenate()([a, b])
    heads = {"class": keras.layers.Dense(3, name="class")(hidden), "size": keras.layers.Dense(1, name="size")(hidden)}
    model = keras.Model({"a": a, "b": b}, heads)
    model.compile("sgd", {"class": "sparse_categorical_crossentropy", "size": "mse"})
    model.save(tmp_path / "heads.keras")
    assert run(capsys, "--keras-model", tmp_path / "heads.keras", "--batch-size", "3")[::2] == (0, "")


@keras.saving.register_keras_serializable("here")
def own_loss(y: tf.Tensor, predicted: tf.Tensor) -> tf.Tensor:
    return keras.ops.mean(keras.ops.reshape(y, (-1, 7))) * keras.ops.mean(predicted)  # targets of another shape


def files_that_are_refused(folder: Path) -> dict[str, str]:
    """The name of a file -> the message about it."""
    (folder / "text.keras").write_text("not a model")
    network().save(folder / "uncompiled.keras")
    inputs = keras.Input((4,))
    compiled(keras.Model(inputs, keras.layers.Lambda(lambda x: x + 1)(inputs))).save(folder / "code.keras")
    for name, kind in (("unknown", Unbuilt), ("subclass", Registered)):
        model = compiled(kind())
        model(tf.zeros((1, 16, 16, 8)))
        model.save(folder / f"{name}.keras")
    odd = compiled(network(), loss=own_loss)
    odd.save(folder / "odd.keras")
    return {
        "none.keras": "there is no such file",
        "text.keras": "Keras cannot load it",
        "uncompiled.keras": "the model is not compiled",
        "code.keras": "Keras cannot load it",
        "unknown.keras": "Keras cannot load it (Could not locate class 'Unbuilt'",
        "subclass.keras": "the model does not say what it takes",
        "odd.keras": "its training step does not take the batch",
    }


def test_a_file_that_cannot_be_planned_is_refused_in_one_line(capsys, tmp_path):
    for name, message in files_that_are_refused(tmp_path).items():
        code, _, err = run(capsys, "--keras-model", tmp_path / name)
        assert (code, err.count("\n")) == (2, 1), err
        assert f"--keras-model {tmp_path / name}: " in err
        assert message in err


@pytest.mark.parametrize(("line", "message"), [
    ("--model unet3d", "--model describes another network"),
    ("--box 32x32x16", "--box describes another network"),
    ("--loss dice", "--loss is part of the saved model"),
    ("--precision mixed_bfloat16", "--precision is part of the saved model"),
    ("--resolution 32", "the file fixes all sizes"),
])  # fmt: skip
def test_options_that_contradict_a_saved_model(saved, line, message, capsys):
    code, _, err = run(capsys, "--keras-model", saved, *line.split())
    assert (code, err.count("\n")) == (2, 1)
    assert message in err
