"""A task and a network that somebody adds, through all three commands."""

import json

import keras
import numpy as np
import pytest
import tensorflow as tf

import models
from lms3d import evaluate, predict, train
from lms3d.device import startup
from lms3d.tasks import TASKS
from lms3d.tasks.choices import Choices
from lms3d.tasks.task import Evaluation, Task
from models import registry

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(8, 32, 32, 3)).astype(np.float32)
Y = X.mean(axis=(1, 2), keepdims=False)[:, :1]


class Material:
    training_count, validation_count, described = 6, 2, {"data": {"fingerprint": "0"}}

    def training(self, first_sample, world):
        return tf.data.Dataset.from_tensor_slices((X[:6], Y[:6])).repeat().batch(2, drop_remainder=True)

    def validation(self, world):
        return tf.data.Dataset.from_tensor_slices((X[6:], Y[6:])).batch(2, drop_remainder=True)


class Brightness(Task):
    axes, target_dtype, shown, plateau = 2, "float32", ("loss",), (0.5, 10)
    choices = Choices(summary="how bright an image is", models=("mean",), losses=("mse",), refused=("n4",),
                      defaults={"model": "mean", "loss": "mse", "resolution": 32, "batch_size": 2})  # fmt: skip

    def prepare(self, options, run_dir, resuming, world, progress):
        return Material()

    def network(self, options, material):
        return models.build(options.model, input_shape=(options.resolution, options.resolution, 3))

    def loss(self, options, material):
        return "mse"

    def metrics(self, options, material):
        return []

    def predict(self, request):
        with request.runs[0].network() as network:
            (request.output / "bright.json").write_text(json.dumps([float(network(x)[0]) for x in X]))
        return "done", {"images": str(len(X))}

    def recognises(self, path):
        return (path / "bright.json").is_file()

    def evaluate(self, request):
        found = json.loads((request.predictions[0] / "bright.json").read_text())
        return Evaluation(table=f"mean error {np.abs(np.array(found) - Y[:, 0]).mean():.3f}", written=[])


@pytest.fixture
def added(monkeypatch):
    monkeypatch.setattr(startup, "start_tensorflow", lambda **_: None)  # it runs already in this process
    monkeypatch.setattr(registry, "NETWORKS", dict(registry.NETWORKS))

    @models.register("mean", takes=models.IMAGES)
    def build(input_shape, outputs=1):
        inputs = keras.Input(input_shape)
        return keras.Model(inputs, keras.layers.Dense(outputs)(keras.layers.GlobalAveragePooling2D()(inputs)))

    TASKS.register("brightness")(Brightness())
    yield
    TASKS.remove("brightness")


def test_it_trains_predicts_and_evaluates(added, tmp_path, capsys):
    words = ["--data", str(tmp_path), "--epochs", "2", "--no-lms", "--output", str(tmp_path / "run")]
    assert train.main(["--model", "mean", *words]) == 0  # the network tells the task
    assert json.loads((tmp_path / "run/config.json").read_text())["options"]["task"] == "brightness"
    assert (tmp_path / "run/history.csv").read_text().count("\n") == 3
    assert predict.main([str(tmp_path / "run")]) == 0
    assert evaluate.main([str(tmp_path / "run/predictions")]) == 0
    assert "mean error 0." in capsys.readouterr().out


def test_its_choices_are_on_the_command_line(added, tmp_path, capsys):
    with pytest.raises(SystemExit):
        train.main(["--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert "or brightness, how bright an image is" in text
    assert "for brightness mean" in text
    assert train.main(["--task", "brightness", "--n4", "--output", str(tmp_path / "run")]) == 2
    assert "--n4 is not for --task brightness" in capsys.readouterr().err
    assert train.main(["--task", "brightness", "--loss", "dice", "--output", str(tmp_path / "run")]) == 2
    assert "expected one of mse" in capsys.readouterr().err
