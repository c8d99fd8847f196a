"""`python -m lms3d.plan --task T --data DIR` plans the network that `lms3d.train` trains with the same options."""

from __future__ import annotations

import subprocess
import sys

import pytest
import tensorflow as tf

from lms3d import plan, tasks, train
from lms3d.data import workers
from lms3d.data.phantoms import chests
from lms3d.ranks.world import World
from lms3d.training import compilation, needs
from tests.data.small_data import LATE, random_case, write_case
from tests.data.small_volumes import CT, write_nnunet

ORGANS = {**CT, "channel_names": {"0": "CT", "1": "PET"}, "labels": {"background": 0, "liver": 1, "spleen": 2}}
CASES = {
    "segmentation": "--task segmentation --model resenc --preset S --levels 3 --box 32x32x16 --spacing median --loss dice",
    "brats": "--box 16x32x16 --targets regions",
}


def write(task: str, folder):
    """A data set whose labels, channels and voxels differ from what a task assumes without data."""
    if task == "segmentation":
        return write_nnunet(folder / "Dataset007_X", ORGANS, cases=4, spacing=(1.0, 1.0, 3.0))
    for number in range(4):
        name = f"BraTS-GLI-{number:05}-100"  # after treatment: four labels
        write_case(folder / "brains" / name, random_case(number, labels=(1, 2, 3)), LATE)
    return folder / "brains"


def step(options, model, task) -> tuple:
    """What decides the cost of a step."""
    layers = [
        (layer.name, layer.get_config().get("kernel_size"), layer.get_config().get("strides")) for layer in model.layers
    ]
    return model.input_shape, model.count_params(), layers, task.target_shape(options, model), model.loss


@pytest.mark.parametrize("task", CASES)
def test_the_network_of_a_plan_is_the_one_that_is_trained(task, tmp_path, monkeypatch):
    monkeypatch.setattr(workers, "cpu_count", lambda: 1)
    line = [*CASES[task].split(), "--data", str(write(task, tmp_path))]
    planned = []

    def plan_training_step(options, of_task, model, **_):
        planned.append(step(options, model, of_task))
        raise KeyboardInterrupt  # the plan itself is tested elsewhere

    monkeypatch.setattr(needs, "plan_training_step", plan_training_step)
    monkeypatch.setattr(plan, "_start_tensorflow", lambda *_: None)
    assert plan.main([*line, "--memory-limit", "8GiB"]) == 130

    options = tasks.chosen(train._parsed(line))
    (tmp_path / "run").mkdir()
    material = tasks.task_of(options).prepare(options, tmp_path / "run", False, World(), lambda *_: None)
    trained = compilation.compiled_model(options, tasks.task_of(options), material=material)
    (image, target), *_ = material.training(0, World()).take(1)
    (found,) = planned
    expected = step(options, trained, tasks.task_of(options))
    assert found[:4] == expected[:4]
    assert (found[0][1:], found[3]) == (image.shape[1:], target.shape[1:])
    assert found[0][1:] == {"segmentation": (32, 32, 16, 2), "brats": (16, 32, 16, 4)}[task]


def operations(loss) -> list[tuple]:
    """The type and the shape of every operation of a loss, and of its gradient."""

    @tf.function
    def of_batch(truth, probabilities):
        value = loss(truth, probabilities)
        return value, tf.gradients(value, probabilities)

    traced = of_batch.get_concrete_function(tf.TensorSpec((4, 14)), tf.TensorSpec((4, 14)))
    return [(op.type, [one.shape.as_list() for one in op.outputs]) for op in traced.graph.get_operations()]


def test_a_weighted_loss_is_planned_as_it_is_trained(tmp_path, own_cache):
    """Only the values of the weights differ."""
    folder = chests.write(tmp_path / "chests", images=20, size=48, workers=1)
    given = {"task": "chexnet", "data": folder, "resolution": 32, "loss": "weighted"}
    options = tasks.chosen(given)
    task = tasks.task_of(options)
    (tmp_path / "run").mkdir()
    material = task.prepare(options, tmp_path / "run", False, World(), lambda *_: None)
    planned, plain = (task.loss(one, None) for one in (options, tasks.chosen(given | {"loss": "binary_cross_entropy"})))
    trained = task.loss(options, material)
    assert operations(planned) == operations(trained) != operations(plain)
    assert planned.positive_weights != trained.positive_weights


@pytest.mark.parametrize("task", CASES)
def test_data_that_are_not_there_are_told_before_tensorflow_is_loaded(task, tmp_path):
    line = [*CASES[task].split(), "--data", str(tmp_path / "nowhere"), "--memory-limit", "8GiB"]
    code = f"import sys; from lms3d import plan; print(plan.main({line}), 'tensorflow' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.split() == ["2", "False"]
    assert str(tmp_path / "nowhere") in done.stderr
    assert done.stderr.count("\n") == 1
