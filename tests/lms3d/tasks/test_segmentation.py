"""`--task segmentation` up to the training: options, what a run knows of its data, and a training that needs LMS."""

import json
import os
import shutil

import numpy as np
import pytest

from lms3d import models, package
from lms3d.data import workers
from lms3d.data.errors import DataError
from lms3d.data.phantoms import abdomens
from lms3d.data.segmentation import layouts
from lms3d.data.volumes import patches
from lms3d.data.volumes.case import load_images, load_truth
from lms3d.device import startup
from lms3d.errors import InputError
from lms3d.ranks.world import World
from lms3d.tasks import chosen
from lms3d.tasks.segmentation import facts, material
from lms3d.tasks.segmentation.options import SegmentationConfig
from tests.caches import private_cache
from tests.data.small_data import random_case, write_case
from tests.data.small_radiographs import many, write_set
from tests.data.small_volumes import CT, write_nnunet

TASK = {"task": "segmentation"}


@pytest.mark.parametrize(
    ("given", "sample", "size", "folder"),
    [
        ({"resolution": 64}, (64, 64, 64), "64^3", "isensee2017-64"),
        ({"box": (64, 48, 20)}, (64, 48, 20), "64x48x20", "isensee2017-64x48x20"),
        (
            {"spacing": "1x1x3", "patch": (64, 64, 16)}, (64, 64, 16), "64x64x16 of volumes of 1x1x3 mm",
            "isensee2017-1x1x3-patch64x64x16",
        ),
        (
            {"spacing": "median", "patch": 32}, (32, 32, 32), "32^3 of volumes of median spacing",
            "isensee2017-median-patch32x32x32",
        ),
    ],
)  # fmt: skip
def test_three_kinds_of_grid(given, sample, size, folder):
    options = chosen({**TASK, **given})
    assert options.sample_shape() == sample
    assert options.size_text() == size
    assert options.folder_name() == folder
    assert SegmentationConfig.from_json(json.loads(json.dumps(options.to_json()))) == options


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"spacing": "median"}, "--spacing median: every case then has a shape of its own; add --box"),
        ({"spacing": "1x1x1", "resolution": 64}, "--spacing: not allowed with argument --resolution"),
        ({"box": (64, 48, 7)}, "--box: 7 is too small; the nearest that work are 8 and 10"),
        ({"box": (64, 48, 9)}, "--box: 9 is not a multiple of 2"),
        ({"box": (64, 48, 20), "patch": (64, 64, 16)}, "--patch 64x64x16: expected at most the volume, 64x48x20"),
        ({"labels": "brats2021"}, "--labels is not for --task segmentation"),
        ({"spacing": "median", "patch": 32, "stages": ((16, 1),)}, "--stages trains whole cubes"),
    ],
)
def test_options_that_contradict_each_other(given, told):
    with pytest.raises(InputError) as caught:
        chosen({**TASK, **given})
    assert told in str(caught.value)


def test_brain_scans_need_sides_that_can_be_halved_four_times():
    with pytest.raises(InputError, match="--box: 20 is not a multiple of 16"):
        chosen({"box": (64, 48, 20)})


def test_data_say_what_they_are_for(root, tmp_path):
    assert chosen({"data": root}).task == chosen({"data": root, "model": "isensee2017"}).task == "segmentation"
    assert chosen({"data": root, "task": "brats"}).task == "brats"
    write_case(tmp_path / "brains" / "BraTS2021_00001", random_case(0))
    for data in (tmp_path / "brains", tmp_path / "nothing", tmp_path / ("x" * 300)):
        assert chosen({"data": data}).task == "brats"
    assert chosen({"data": write_set(tmp_path / "chests", many(1))}).task == "chexnet"
    assert chosen({"data": tmp_path / "nothing", "model": "densenet121"}).task == "chexnet"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everywhere")
def test_a_folder_that_may_not_be_read_is_told_later(root, tmp_path):
    (tmp_path / "closed").mkdir(mode=0)
    assert chosen({"data": tmp_path / "closed"}).task == "brats"


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    about = {**CT, "labels": {**CT["labels"], "ignore": 3}, "channel_names": {"0": "CT", "1": "PET"}}
    return write_nnunet(tmp_path_factory.mktemp("organs") / "Dataset007_X", about, cases=4, values=(1, 2, 3))


def test_a_plan_needs_headers_alone(root):
    known = facts.facts(chosen({**TASK, "data": root, "box": (32, 32, 16)}))
    assert known.description.channels == ("CT", "PET")
    assert known.spacing_mm == (1, 1, 2)
    stretched = facts.facts(chosen({**TASK, "data": root, "resolution": 32}))
    assert stretched.spacing_mm == (20 / 32, 16 / 32, 12 * 2 / 32)
    assert facts.facts(chosen(TASK)).description.channels == ("CT",)


def test_a_run_is_not_resumed_on_labels_with_another_meaning(root, tmp_path, monkeypatch):
    """The files are the same, so the fingerprint is: only dataset.json tells."""
    monkeypatch.setenv("LMS3D_CACHE", str(tmp_path / "caches"))
    monkeypatch.setattr(workers, "cpu_count", lambda: 1)
    data, run = shutil.copytree(root, tmp_path / "set"), tmp_path / "run"
    run.mkdir()
    options = chosen({**TASK, "data": data, "resolution": 16})
    made = material.prepare(options, run, False, World(), lambda *_: None)
    (run / "config.json").write_text(json.dumps({"options": options.to_json(), **made.described}))
    assert material.prepare(options, run, True, World(), lambda *_: None).split == made.split
    about = json.loads((data / "dataset.json").read_text())
    about["labels"] |= {"liver": 2, "spleen": 1}
    (data / "dataset.json").write_text(json.dumps(about))
    with pytest.raises(InputError, match="--resume: the data set now has other labels"):
        material.prepare(options, run, True, World(), lambda *_: None)


@pytest.mark.parametrize(
    "grid", [{"resolution": 16}, {"box": (32, 16, 16)}, {"spacing": "1x1x2", "patch": (32, 16, 8)}]
)
def test_batches_of_each_kind_of_grid(root, tmp_path, monkeypatch, grid):
    monkeypatch.setenv("LMS3D_CACHE", str(tmp_path / "caches"))
    monkeypatch.setattr(workers, "cpu_count", lambda: 1)  # a process of its own takes longer than these cases
    options = chosen({**TASK, "data": root, **grid})
    (tmp_path / "run").mkdir()
    made = material.prepare(options, tmp_path / "run", False, World(), lambda *_: None)
    (image, target), *_ = made.training(0, World()).take(1)
    assert image.shape == (1, *options.sample_shape(), 2)
    assert target.shape == (1, *options.sample_shape(), 3)
    assert set(np.unique(target)) <= {0, 1, 255}
    known = target.numpy()[target.numpy()[..., 0] != 255]
    assert (known.sum(-1) == 1).all(), "each known voxel has one class"
    if options.patch is None:
        assert 255 in next(iter(made.validation(World())))[1].numpy()
    again = facts.restored(json.loads(json.dumps(made.described)), "config.json")
    assert again == facts.facts(options, made)
    assert again.description.targets == made.targets


@pytest.mark.parametrize("grid", [{"resolution": 16}, {"spacing": "1x1x2", "patch": (32, 16, 16)}])
def test_a_run_is_exported_without_a_package_in_between(root, tmp_path, monkeypatch, capsys, grid):
    """Once its tuples were no lists, and no run of this task could be exported. It is compared on a validation case."""
    monkeypatch.setenv("LMS3D_CACHE", str(private_cache(tmp_path / "caches")))
    monkeypatch.setattr(workers, "cpu_count", lambda: 1)
    monkeypatch.setattr(startup, "start_tensorflow", lambda **_: None)
    options, run = chosen({**TASK, "data": root, "model": "unet3d", **grid}), tmp_path / "run"
    run.mkdir()
    made = material.prepare(options, run, False, World(), lambda *_: None)
    (run / "config.json").write_text(json.dumps({"options": options.to_json(), **made.described}))
    shape = (*options.sample_shape(), 2)
    spacing_mm = made.described["spacing_mm"]
    network = models.build(
        "unet3d", input_shape=shape, outputs=3, filters=(2, 4), activation="softmax", spacing_mm=spacing_mm
    )
    network.save(run / "best.keras")
    assert package.main([str(run), "--format", "savedmodel"]) == 0
    assert (run / "run-savedmodel" / "saved_model.pb").is_file()
    assert f"on case {made.split.validation[0]} with the network itself" in capsys.readouterr().out


def test_facts_of_a_damaged_run_are_refused(root):
    described = facts.facts(chosen({**TASK, "data": root})).description.to_json()
    with pytest.raises(DataError, match=r"config\.json: found no spacing_mm"):
        facts.restored({"description": described, "spacing_mm": [1, 2]}, "config.json")


def test_a_third_of_the_patches_hold_a_label_each_with_the_same_chance():
    truth = np.zeros((64, 64, 8), np.uint8)
    truth[:8, :8] = 1
    truth[-1, -1, -1] = 2
    random = np.random.default_rng(0)
    drawn = [patches.random_patch(truth, (4, 4, 4), random, evenly=True).crop(truth) for _ in range(1500)]
    share = {label: np.mean([(patch == label).any() for patch in drawn]) for label in (1, 2)}
    assert share[2] == pytest.approx(1 / 6, abs=0.04)
    assert share[1] == pytest.approx(1 / 6 + 5 / 6 * 0.03, abs=0.05)


def test_a_patch_that_is_larger_than_the_volume_lies_around_it():
    truth = np.ones((4, 20, 4), np.uint8)
    box = patches.random_patch(truth, (8, 8, 8), np.random.default_rng(0))
    assert (box.lower[0], box.upper[0]) == (-2, 6)
    assert box.crop(truth).sum() == 4 * 8 * 4


def test_an_abdomen_is_read_as_it_was_made(tmp_path):
    folder = abdomens.write(tmp_path, cases=1, channels=2, shape=(40, 32, 16), workers=1)
    found = layouts.find(folder)
    (case,) = found.data_set.cases
    (ct, pet), labels, _ = abdomens.make_case(0, 0, (40, 32, 16))
    images, _ = load_images(case)
    np.testing.assert_array_equal(images[..., 0], ct)
    np.testing.assert_allclose(images[..., 1], pet)
    np.testing.assert_array_equal(load_truth(case, found.data_set.schema), labels)
    assert set(np.unique(labels)) == {0, 1, 2, 3, 4, 5}
    assert ct.min() < -900
    organs = [ct[labels == value] for value in (1, 2)]
    assert abs(organs[0].mean() - organs[1].mean()) < organs[0].std(), "Hounsfield units do not tell liver from spleen"
