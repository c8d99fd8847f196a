"""Normalisation by the names of the channels, against the formulas of nnU-Net."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from lms3d.data.segmentation import intensities, layouts
from lms3d.data.segmentation.grid import Grid
from lms3d.data.segmentation.intensities import ByChannel
from lms3d.data.volumes import cache, normalise, planes
from lms3d.data.volumes.case import load_images, load_truth
from lms3d.data.volumes.distortions import DISTORTIONS
from lms3d.data.volumes.pipeline import training_dataset
from lms3d.data.volumes.presentation import Presentation
from lms3d.data.volumes.targets import Classes
from lms3d.tasks.streaming.segment import probabilities
from tests.data.small_data import save
from tests.data.small_volumes import CT, affine, images_of, write_nnunet

NAMES = ("CT", "T1", "noNorm", "rescale_to_0_1", "rgb_to_0_1")
GRID = Grid(shape=None, stretched=False, spacing_mm=(1.0, 1.0, 2.0))


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    root = tmp_path_factory.mktemp("intensities")
    about = {**CT, "channel_names": {str(i): name for i, name in enumerate(NAMES)}}
    found = layouts.find(write_nnunet(root / "set", about)).data_set
    return found, cache.build(found.cases, found.schema, GRID, directory=root / "cache", workers=1)


def test_each_channel_by_its_name(data):
    found, volumes = data
    fitted = intensities.fit(volumes, ["case_0", "case_1"])
    foreground = np.concatenate([
        load_images(case)[0][load_truth(case, found.schema) > 0][:, 0] for case in found.cases[:2]
    ])  # fmt: skip
    ct, t1, plain, scaled, rgb = np.moveaxis(load_images(found.cases[2])[0], -1, 0)
    low, high = np.percentile(foreground, (0.5, 99.5))
    expected = [
        (np.clip(ct, low, high) - foreground.mean()) / foreground.std(),
        (t1 - t1.mean()) / t1.std(),
        plain,
        (scaled - scaled.min()) / (scaled.max() - scaled.min()),
        rgb / 255,
    ]
    normalised = normalise.image(fitted, volumes, "case_2")
    for index, channel in enumerate(expected):
        np.testing.assert_allclose(normalised[..., index], channel, rtol=2e-3, atol=2e-3 * np.abs(channel).max())
    assert ByChannel.from_json(fitted.to_json()) == fitted


def test_statistics_are_those_of_the_training_cases(data):
    assert intensities.fit(data[1], ["case_0"]) != intensities.fit(data[1], ["case_1"])


@pytest.fixture
def half_empty(tmp_path):
    """A magnetic resonance image with a background of zeros: (its data set, its cache, its normalisation)."""
    root = write_nnunet(tmp_path / "set", {**CT, "channel_names": {"0": "T1"}}, cases=1)
    image = images_of(0, 1)[..., 0] + 200
    image[10:] = image[:, 10:] = 0
    save(image, root / "imagesTr" / "case_0_0000.nii.gz", affine())
    found = layouts.find(root).data_set
    volumes = cache.build(found.cases, found.schema, GRID, directory=tmp_path / "cache", workers=1)
    return found, volumes, intensities.fit(volumes, ["case_0"])


def test_z_scores_lie_inside_the_head_if_the_crop_removes_much(half_empty):
    _, volumes, fitted = half_empty
    assert fitted.inside_brain
    normalised = normalise.image(fitted, volumes, "case_0")
    assert normalised[-1, -1, 0, 0] == 0
    assert normalised[:10, :10].mean() == pytest.approx(0, abs=0.02)


@pytest.mark.parametrize("kind", ["half empty", "many channels"])
def test_a_prediction_pads_a_small_case_as_training_does(kind, data, half_empty, tmp_path):
    """What lies around it is background, not the darkest voxel of the head."""
    found, volumes, fitted = half_empty if kind == "half empty" else (*data, intensities.fit(data[1], ["case_0"]))
    patch, shown = (24, 20, 16), []

    def network(image: np.ndarray) -> np.ndarray:
        shown.append(image)
        return image

    targets = Classes(found.schema)
    unturned = Presentation(symmetries="none", patch=patch)
    ((image, _),) = training_dataset(volumes, targets, ["case_0"], fitted, batch_size=1, seed=0, shown=unturned).take(1)
    read, around = planes.image_planes(fitted, volumes, "case_0"), partial(planes.beyond, fitted, volumes, "case_0")
    shape = volumes.shape_of("case_0")
    probabilities(network, read, shape, channels=1, scratch=tmp_path, patch=patch, beyond=around).close()
    np.testing.assert_allclose(shown[0], image[0], rtol=1e-6)


def test_a_ct_needs_foreground(tmp_path):
    found = layouts.find(write_nnunet(tmp_path / "set", cases=1, values=())).data_set
    volumes = cache.build(found.cases, found.schema, GRID, directory=tmp_path / "cache", workers=1)
    with pytest.raises(Exception, match="found no foreground in 1 training cases"):
        intensities.fit(volumes, ["case_0"])


@pytest.mark.parametrize("name", ["scale", "elastic"])
def test_beside_a_distorted_body_lies_air(tmp_path, name, monkeypatch):
    """0 is water in a CT."""
    monkeypatch.setitem(DISTORTIONS, name, replace(DISTORTIONS[name], chance=1.0))
    root = write_nnunet(tmp_path / "set", cases=1)
    image = images_of(0, 1)[..., 0]
    image[:, :4] = -1000
    save(image, root / "imagesTr" / "case_0_0000.nii.gz", affine())
    found = layouts.find(root).data_set
    volumes = cache.build(found.cases, found.schema, GRID, directory=tmp_path / "cache", workers=1)
    fitted = intensities.fit(volumes, ["case_0"])
    air = normalise.background(fitted, volumes.entry("case_0"))
    assert normalise.image(fitted, volumes, "case_0").min() == air
    shown = Presentation(symmetries="none", distortions=(name,), patch=volumes.shape_of("case_0"))
    batches = training_dataset(volumes, Classes(found.schema), ["case_0"], fitted, batch_size=1, seed=0, shown=shown)
    for distorted, _ in batches.take(6):
        assert (distorted.numpy()[0, :, 0] == air).all()
        assert distorted.numpy()[0, 0, 0, 0] == distorted.numpy().min()


@pytest.mark.parametrize("value", [None, {}, {"kind": "channels", "inside": False, "channels": []},
                                   {"kind": "channels", "inside": 1, "channels": [{}]}])  # fmt: skip
def test_damaged_figures_are_refused(value):
    with pytest.raises(ValueError, match="found normalisation"):
        ByChannel.from_json(value)
