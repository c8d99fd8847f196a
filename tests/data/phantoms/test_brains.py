"""The embedded data set: BraTS layout, published volumes, the same every time, and no gift to a threshold."""

import json

import nibabel as nib
import numpy as np
import pytest
from scipy import ndimage

from lms3d.data.brats import layouts
from lms3d.data.brats.schema import CHANNELS
from lms3d.data.errors import DataError
from lms3d.data.phantoms import brain_anatomy, brain_tumour, brains
from lms3d.tasks.brats import intensity_baseline
from tests.data.small_data import check_case


def dice(a: np.ndarray, b: np.ndarray) -> float:
    return 2 * np.count_nonzero(a & b) / max(1, np.count_nonzero(a) + np.count_nonzero(b))


def test_one_case_on_the_full_grid(tmp_path):
    root = brains.write(tmp_path, cases=1, seed=3, workers=1)
    (case,), schema = layouts.find_cases(root)
    check_case(case, schema)
    assert (case.id, schema.name) == ("BraTS20_Training_001", "brats2020")
    arrays = {}
    for name, path in {**case.images, "seg": case.truth}.items():
        image = nib.load(path)
        assert path.name == f"BraTS20_Training_001_{name}.nii.gz"
        assert image.shape == (240, 240, 155)
        assert image.get_data_dtype() == (np.uint8 if name == "seg" else np.int16)
        assert image.header.get_zooms() == (1, 1, 1)
        assert image.header.get_xyzt_units()[0] == "mm"
        np.testing.assert_array_equal(image.affine, [[-1, 0, 0, 0], [0, -1, 0, 239], [0, 0, 1, 0], [0, 0, 0, 1]])
        arrays[name] = np.asarray(image.dataobj)
    brain = arrays["t1"] > 0
    for channel in CHANNELS:
        np.testing.assert_array_equal(arrays[channel] > 0, brain)  # zero outside, positive inside, in all four
    assert 1.0e6 < np.count_nonzero(brain) < 2.2e6  # mm^3
    assert not arrays["seg"][~brain].any()
    planned = planned_volumes(3, 0)
    for label, volume in planned.items():
        assert np.count_nonzero(arrays["seg"] == label) == pytest.approx(volume, abs=1)


def planned_volumes(seed: int, index: int) -> dict[int, float]:
    rng = np.random.default_rng([seed, index])
    pose = brains.draw_pose(rng)
    coarse = brains.warp(pose, brains._box_shape(4.0), 4.0)
    return brains.draw_plan(rng, coarse, 4.0).volumes_mm3


def test_contrasts_follow_the_rules(coarse_phantom):
    cases, _ = layouts.find_cases(coarse_phantom)
    for case in cases:
        images = {channel: np.asarray(nib.load(path).dataobj, float) for channel, path in case.images.items()}
        labels = np.asarray(nib.load(case.truth).dataobj)
        healthy = {channel: np.median(image[(image > 0) & (labels == 0)]) for channel, image in images.items()}
        mean = {
            (c, v): np.median(images[c][labels == v]) / healthy[c]
            for c in images
            for v in (1, 2, 4)
            if (labels == v).any()
        }
        assert mean["flair", 2] > 1.1
        if ("t1ce", 4) in mean:
            assert mean["t1ce", 4] > 1.3 * mean["t1", 4]
            assert mean["t1ce", 4] > 1.5 * mean["t1ce", 1]
        assert mean["t1ce", 1] < 0.9


def test_the_same_seed_gives_the_same_bytes_whatever_the_workers(coarse_phantom, tmp_path):
    again = brains.write(tmp_path, cases=3, seed=5, workers=2, spacing_mm=4.0)
    paths = sorted(coarse_phantom.rglob("*.nii.gz"))
    assert len(paths) == 15
    for path in paths:
        assert (again / path.relative_to(coarse_phantom)).read_bytes() == path.read_bytes()


def test_a_case_does_not_depend_on_the_number_of_cases():
    images, labels = brains.make_case(5, 1, 6.0)
    again, _ = brains.make_case(5, 1, 6.0)
    np.testing.assert_array_equal(images, again)
    other, _ = brains.make_case(6, 1, 6.0)
    assert (images != other).any()
    assert images.shape == (4, 40, 40, 26)
    assert set(np.unique(labels)) <= {0, 1, 2, 4}


def test_it_is_made_once_and_a_lost_case_is_made_again(coarse_phantom, record):
    calls, progress = record
    options = {"cases": 3, "seed": 5, "workers": 1, "spacing_mm": 4.0, "progress": progress}
    assert brains.write(coarse_phantom.parent, **options) == coarse_phantom
    assert not calls
    assert json.loads((coarse_phantom / "phantom.json").read_text())["seed"] == 5
    lost = coarse_phantom / brains.case_id(1)
    content = {path.name: path.read_bytes() for path in lost.iterdir()}
    for path in lost.iterdir():
        path.unlink()
    lost.rmdir()
    brains.write(coarse_phantom.parent, **options)
    assert calls == [(0, 1, "phantom brains"), (1, 1, "phantom brains")]
    assert {path.name: path.read_bytes() for path in lost.iterdir()} == content


def test_volumes_follow_the_published_distribution():
    volumes = [brain_tumour.draw_volumes(np.random.default_rng([0, index])) for index in range(2000)]
    cm3 = np.array([[volume[label] / 1000 for label in (1, 2, 4)] for volume in volumes])
    necrosis, oedema, enhancing = cm3.T
    assert np.median(necrosis) == pytest.approx(10.8, rel=0.12)
    assert np.median(oedema) == pytest.approx(46.9, rel=0.12)
    assert np.median(enhancing[enhancing > 0]) == pytest.approx(14.6, rel=0.12)
    assert np.mean(enhancing == 0) == pytest.approx(0.1, abs=0.02)
    assert np.median(cm3.sum(1)) == pytest.approx(75, rel=0.15)
    assert cm3.sum(1).max() <= 240.001
    assert np.log(oedema).std() > 0.5


def planned(volumes: dict[int, float]) -> tuple[brain_tumour.TumourPlan, brain_anatomy.Brain]:
    """A tumour of these volumes to grow, and the brain for it, on a grid of 2 mm."""
    rng = np.random.default_rng(0)
    brain = brains.warp(brains.draw_pose(rng), brains._box_shape(2.0), 2.0)
    plan = brain_tumour.TumourPlan(
        volumes_mm3=volumes, centre_mm=np.array([30.0, 10, 20]), core_radius_mm=16.8, push=0.2
    )
    return plan, brain


def test_some_tumours_have_small_satellites_beside_the_core(monkeypatch):
    """The components of 50 to 4,000 mm^3. Gaps in a rim leave smaller ones, and a second core is larger."""
    volumes = {1: 5e3, 2: 4e4, 4: 1.5e4}
    plan, brain = planned(volumes)

    def shells(seed: int) -> list[float]:
        """The share of oedema around each satellite."""
        labels, _ = brain_tumour.grow(np.random.default_rng(seed), plan, brain, 2.0)
        found = [8 * np.count_nonzero(labels == label) for label in volumes]
        assert found == pytest.approx(list(volumes.values()), abs=8)
        cores, count = ndimage.label(np.isin(labels, (1, 4)))
        small = [cores == i for i in range(1, count + 1) if 50 < 8 * np.count_nonzero(cores == i) < 4000]
        return [np.mean(labels[ndimage.binary_dilation(one) & ~one & brain.mask] == 2) for one in small]

    oedema = [shells(seed) for seed in range(20)]
    assert 3 <= sum(map(bool, oedema)) <= 11
    assert np.mean([share for one in oedema for share in one]) > 0.4
    monkeypatch.setattr(brain_tumour, "SATELLITES", 0)
    assert sum(bool(shells(seed)) for seed in range(20)) < 3


def test_a_rater_draws_the_planned_volumes_and_disagrees_at_the_borders():
    volumes = {1: 5e3, 2: 4e4, 4: 1.5e4}
    plan, brain = planned(volumes)
    tissue, labels = brain_tumour.grow(np.random.default_rng(1), plan, brain, 2.0)
    assert [8 * np.count_nonzero(labels == label) for label in volumes] == pytest.approx([*volumes.values()], abs=8)
    assert 0.7 < min(agreement(tissue, labels)) <= max(agreement(tissue, labels)) < 0.96


def agreement(one: np.ndarray, other: np.ndarray) -> list[float]:
    """Dice of WT, TC and ET; NaN for a region that neither has."""
    masks = [(np.isin(one, region), np.isin(other, region)) for region in ((1, 2, 4), (1, 4), (4,))]
    return [dice(first, second) if first.any() or second.any() else np.nan for first, second in masks]


def drawn_twice(index: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Three label maps on a grid of 4 mm: of a tumour's tissue, and of two raters."""
    rng = np.random.default_rng([0, index])
    brain = brains.warp(brains.draw_pose(rng), brains._box_shape(4.0), 4.0)
    plan = brain_tumour.draw_plan(rng, brain, 4.0)
    tissue, satellites = brain_tumour.tissue_fields(rng, plan, brain, 4.0)
    every = (tissue, *(brain_tumour.rater_fields(rng, tissue, 4.0) for _ in range(2)))
    first, second, third = (brain_tumour.labelled(one, plan, satellites, brain.mask, 4.0) for one in every)
    return first, second, third


def test_raters_agree_as_their_docstring_says():
    cases = [drawn_twice(index) for index in range(25)]
    with_tissue = np.nanmean([agreement(tissue, rater) for tissue, rater, _ in cases], axis=0)
    with_each_other = np.nanmean([agreement(first, second) for _, first, second in cases], axis=0)
    np.testing.assert_allclose(with_tissue, (0.91, 0.92, 0.81), atol=0.01)
    np.testing.assert_allclose(with_each_other, (0.87, 0.88, 0.75), atol=0.01)


def test_brains_have_the_size_of_cropped_brats_brains():
    boxes = []
    for index in range(6):
        images, _ = brains.make_case(0, index, 4.0)
        used = np.nonzero(images[0])
        boxes.append([4 * (axis.max() - axis.min() + 1) for axis in used])
    np.testing.assert_allclose(np.mean(boxes, axis=0), (140, 171, 140), atol=8)


def test_a_threshold_does_not_solve_it():
    """Even the best threshold for each case, chosen with the truth, is not enough."""
    scores = []
    for index in range(6):
        images, labels = brains.make_case(1, index, 4.0)
        inside = images[0] > 0
        flair, tumour = images[2][inside], labels[inside] > 0
        scores.append(max(dice(flair > level, tumour) for level in np.quantile(flair, np.linspace(0.5, 0.99, 50))))
    assert np.mean(scores) < 0.75


def test_intensities_alone_do_not_solve_it():
    """Not even with the cases that they were fitted to."""
    made = [brains.make_case(1, index, 4.0) for index in range(8)]
    cases = [(np.moveaxis(images, 0, -1), labels) for images, labels in made]
    found = intensity_baseline.scores(intensity_baseline.fit(cases), cases, {"WT": (1, 2, 4), "TC": (1, 4), "ET": (4,)})
    assert np.mean(found["WT"]) < 0.65
    assert np.mean(found["ET"]) < 0.55


def test_wrong_input(tmp_path):
    with pytest.raises(DataError, match="found 0 cases"):
        brains.write(tmp_path, cases=0)
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match="expected a folder that can be written to"):
        brains.write(tmp_path / "file", cases=1, spacing_mm=6.0)


def test_default_directory(monkeypatch, tmp_path):
    monkeypatch.setenv("LMS3D_CACHE", str(tmp_path))
    assert brains.default_directory() == tmp_path / "phantom"
