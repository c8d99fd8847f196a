"""A run on patches validates on whole volumes, and chooses its best epoch by them."""

import keras
import numpy as np
import pytest

from lms3d import tasks
from lms3d.data import workers
from lms3d.ranks.world import World
from lms3d.tasks import chosen
from lms3d.tasks.segmentation import material
from lms3d.training import trainer
from lms3d.training.run import Data, Job, TrainingSchedule
from tests.data.small_data import save
from tests.data.small_volumes import affine, described, write_nnunet

SHAPE, PATCH = (24, 8, 8), (8, 8, 8)
ABOUT = {"channel_names": {"0": "noNorm"}, "labels": {"background": 0, "organ": 1}, "file_ending": ".nii.gz"}
ORGAN, FAR = slice(2, 6), slice(18, 22)


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("LMS3D_CACHE", str(tmp_path / "caches"))
    monkeypatch.setattr(workers, "cpu_count", lambda: 1)


@pytest.fixture
def organs(tmp_path):
    """Five volumes of which the organ has the value 9, something far away 5, and the rest 1."""
    root = tmp_path / "Dataset001_X"
    for index in range(5):
        image, truth = np.ones(SHAPE, np.int16), np.zeros(SHAPE, np.uint8)
        image[FAR, 2:6, 2:6], image[ORGAN, 2:6, 2:6], truth[ORGAN, 2:6, 2:6] = 5, 9, 1
        image[0, 0, 0] = index + 1  # copies of one patient would not be divided
        save(image, root / "imagesTr" / f"case_{index}_0000.nii.gz", affine((1, 1, 1)))
        save(truth, root / "labelsTr" / f"case_{index}.nii.gz", affine((1, 1, 1)))
    return described(root, ABOUT)


def prepared(root, tmp_path, **options):
    """(task, options, material) of a run."""
    asked = chosen({"task": "segmentation", "data": root, **options})
    run = tmp_path / "prepared"
    run.mkdir(exist_ok=True)
    made = material.prepare(asked, run, False, World(), lambda *_: None)
    return tasks.task_of(asked), asked, made


def network(task, options, made, shape):
    """One convolution of a voxel; `threshold` below says what it finds."""
    inputs = keras.Input((*shape, 1))
    model = keras.Model(inputs, keras.layers.Conv3D(2, 1, activation="softmax")(inputs))
    metrics = task.metrics(options, made)
    model.compile(keras.optimizers.SGD(0.0), task.loss(options, made), metrics=metrics, jit_compile=False)
    model.optimizer.build(model.trainable_variables)
    return model


def finds_above(model, least, sureness):
    """Lets the network find the organ in voxels above `least`."""
    model.set_weights([
        np.array([[0, sureness]], np.float32).reshape(1, 1, 1, 1, 2), np.array([0, -sureness * least], np.float32)
    ])  # fmt: skip


def test_what_is_found_far_from_the_organ_counts(organs, tmp_path):
    task, options, made = prepared(organs, tmp_path, spacing="1x1x1", patch=PATCH)
    model = network(task, options, made, PATCH)
    validation = task.validation(options, made, World(), tmp_path)
    assert validation.batches == 5
    assert validation.in_words == "Each epoch ends with a validation of 1 whole volume, in 5 windows of 8x8x8"
    scores = {}
    for least in (7, 3):
        finds_above(model, least, 4)
        scores[least] = validation.scores(lambda window: np.asarray(model(window[None]))[0])
    assert scores[7]["dice"] == scores[7]["dice_organ"] == 1
    assert scores[3]["dice"] == pytest.approx(2 / 3), "it has found as much far away as there is"
    assert scores[7]["loss"] < scores[3]["loss"]


def set_as_in(model, epoch):
    """In the first epoch the network knows the organ; in the second it is surer, and finds more far away."""
    finds_above(model, *[(7, 4), (3, 40)][epoch])


class Weights(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        set_as_in(self.model, epoch)


def test_the_best_epoch_is_the_one_that_finds_nothing_elsewhere(organs, tmp_path):
    task, options, made = prepared(organs, tmp_path, spacing="1x1x1", patch=PATCH)
    model = network(task, options, made, PATCH)
    validation = task.validation(options, made, World(), tmp_path)
    data = Data(training=lambda first: made.training(first, World()), validation=validation)
    run = tmp_path / "run"
    run.mkdir()
    history = trainer.train(model, data, TrainingSchedule(epochs=2, steps_per_epoch=1), Job(run_dir=run), [Weights()])
    assert [row["val_dice"] for row in history.rows] == [1, pytest.approx(2 / 3)]
    assert list(history.rows[0])[:3] == ["epoch", "loss", "val_loss"]
    kept = keras.models.load_model(run / "best.keras", compile=False)
    assert kept.get_weights()[1][1] == -7 * 4
    (case_id,), loss = made.split.validation, task.loss(options, made)
    around = made.cache.image(case_id)[None, :8], made.targets.to_channels(made.cache.truth(case_id))[None, :8]
    of_patch = []
    for epoch in (0, 1):
        set_as_in(model, epoch)
        of_patch.append(float(loss(around[1], model(around[0]))))
    assert of_patch[1] < of_patch[0], "a patch around the organ would choose the other"


@pytest.mark.parametrize("about", [ABOUT, ABOUT | {"labels": {"background": 0, "organ": 1, "ignore": 2}}])
def test_one_window_scores_as_the_whole_volume_does(tmp_path, about):
    root = write_nnunet(tmp_path / "Dataset002_X", about, cases=5, values=tuple(about["labels"].values())[1:])
    task, options, made = prepared(root, tmp_path, resolution=16, validation_fraction=0.4)
    model = network(task, options, made, (16, 16, 16))
    whole = model.evaluate(made.validation(World()), return_dict=True, verbose=0)
    task, options, made = prepared(root, tmp_path, resolution=16, patch=16, validation_fraction=0.4)
    validation = task.validation(options, made, World(), tmp_path)
    assert validation.batches == len(made.split.validation) == 2
    found = validation.scores(lambda window: np.asarray(model(window[None]))[0])
    assert found.keys() == whole.keys()
    for name in whole:
        assert found[name] == pytest.approx(whole[name], rel=1e-5), name


def test_ranks_share_the_cases_and_validation_steps_are_of_cases(organs, tmp_path):
    task, options, made = prepared(organs, tmp_path, spacing="1x1x1", patch=PATCH, validation_fraction=0.6)
    shares = [task.validation(options, made, World(rank=rank, size=2), tmp_path) for rank in (0, 1)]
    assert [one.batches for one in shares] == [10, 5]
    assert "2 whole volumes a rank, in 10 windows" in shares[0].in_words
    assert sorted(case for one in shares for case in one.case_ids) == sorted(made.split.validation)
    fewer = chosen({
        "task": "segmentation", "data": organs, "spacing": "1x1x1", "patch": PATCH, "validation_steps": 1
    })  # fmt: skip
    assert len(task.validation(fewer, made, World(), tmp_path).case_ids) == 1
    assert task.validation_cost(options, made) == 5
