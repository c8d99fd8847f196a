"""A task with an option of its own, and a network, that somebody adds, through all three commands."""

import json
from dataclasses import dataclass
from typing import ClassVar

import keras
import numpy as np
import pytest
import tensorflow as tf

from lms3d import cli, evaluate, models, predict, train
from lms3d.config import TrainConfig, option
from lms3d.device import startup
from lms3d.models import registry
from lms3d.ranks import messages
from lms3d.tasks import TASKS
from lms3d.tasks.task import Evaluation, Task

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(8, 32, 32, 3)).astype(np.float32)
Y = X.mean(axis=(1, 2), keepdims=False)[:, :1]


class Material:
    training_count, validation_count, described = 6, 2, {"data": {"fingerprint": "0"}}

    def training(self, first_sample, world):
        return tf.data.Dataset.from_tensor_slices((X[:6], Y[:6])).repeat().batch(2, drop_remainder=True)

    def validation(self, world):
        return tf.data.Dataset.from_tensor_slices((X[6:], Y[6:])).batch(2, drop_remainder=True)


@dataclass(frozen=True, kw_only=True)
class BrightnessConfig(TrainConfig):
    task: str = "brightness"
    model: str = "mean"
    loss: str = "mse"
    resolution: int = 32
    batch_size: int = 2
    gain: float = option(1.0, "multiply the brightness (default: 1)", type=cli.number(0), metavar="X")

    summary: ClassVar[str] = "how bright an image is"
    models: ClassVar[tuple[str, ...]] = ("mean",)
    losses: ClassVar[tuple[str, ...]] = ("mse",)


class Brightness(Task):
    axes, target_dtype, shown, plateau = 2, "float32", ("loss",), (0.5, 10)
    options = BrightnessConfig

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
            found = [request.trained.gain * float(network(x)[0]) for x in X]
            (request.output / "bright.json").write_text(json.dumps(found))
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


def test_it_has_an_option_of_its_own(added, tmp_path, capsys):
    run = tmp_path / "run"
    words = ["--data", str(tmp_path), "--epochs", "1", "--no-lms", "--output", str(run)]
    assert train.main(["--task", "brightness", "--gain", "3", *words]) == 0
    assert json.loads((run / "config.json").read_text())["options"]["gain"] == 3
    assert predict.main([str(run)]) == 0
    thrice = json.loads((run / "predictions/bright.json").read_text())
    change_option(run, gain=1.0)
    assert predict.main([str(run)]) == 0
    assert thrice == [3 * one for one in json.loads((run / "predictions/bright.json").read_text())]
    capsys.readouterr()
    assert messages.unpacked(messages.packed(BrightnessConfig(gain=3.0))) == BrightnessConfig(
        gain=3.0
    )  # to other ranks
    assert train.main(["--gain", "2", "--resume", *words]) == 2
    assert "--gain 2.0 differs from the run" in capsys.readouterr().err


def change_option(run, **changed):
    content = json.loads((run / "config.json").read_text())
    content["options"] |= changed
    (run / "config.json").write_text(json.dumps(content))


def test_options_of_tasks_are_told_apart(added, tmp_path, capsys):
    for task, option_of_another in (("brats", ["--gain", "2"]), ("chexnet", ["--gain", "2"]), ("brightness", ["--n4"])):
        assert train.main(["--task", task, *option_of_another, "--output", str(tmp_path / "run")]) == 2
        assert f"{option_of_another[0]} is not for --task {task}, where" in capsys.readouterr().err

    @dataclass(frozen=True, kw_only=True)
    class Confusing(BrightnessConfig):
        n4: int = option(0, "not the bias fields of brats")

    TASKS.register("confusing")(type("Other", (Brightness,), {"options": Confusing})())
    try:
        with pytest.raises(ValueError, match="--n4 is an option of another task"):
            train.main([])
    finally:
        TASKS.remove("confusing")


def test_its_choices_are_on_the_command_line(added, tmp_path, capsys):
    with pytest.raises(SystemExit):
        train.main(["--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert "or brightness, how bright an image is" in text
    assert "for brightness mean" in text
    assert "task brightness (how bright an image is): --gain X multiply the brightness" in text
    assert train.main(["--task", "brightness", "--loss", "dice", "--output", str(tmp_path / "run")]) == 2
    assert "expected one of mse" in capsys.readouterr().err
