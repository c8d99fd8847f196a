"""Scores of any labels: by formulas of their own, of a hundred classes, of label maps of other programs."""

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from nibabel.affines import voxel_sizes
from scipy import ndimage

from lms3d import evaluate
from lms3d.data.segmentation import description
from lms3d.scoring.figures import box_plot
from lms3d.scoring.pair import CasePair
from lms3d.scoring.rules import GENERAL
from lms3d.tasks.volumes import job
from tests.data.small_data import save

AFFINE = np.diag([0.8, 0.8, 2.5, 1.0])
NAMED = {"background": 0, "liver": 1, "spleen": 2, "left kidney": 3}


def schema_of(labels, **more):
    return description.read({"channel_names": {"0": "CT"}, "labels": labels, **more}, name="d", where="w").schema


def organs(seed, count, shape=(24, 20, 16)):
    """A label map of boxes, some over others."""
    random, labels = np.random.default_rng(seed), np.zeros(shape, np.uint8)
    for value in range(1, count + 1):
        low = [int(random.integers(0, size - 6)) for size in shape]
        labels[tuple(slice(start, start + int(random.integers(3, 6))) for start in low)] = value
    return labels


def scored(found, truth, schema):
    rules = replace(GENERAL, regions=tuple(schema.regions))
    spacing = tuple(map(float, voxel_sizes(AFFINE)))
    pairs = job._pairs(found, schema, truth, schema, rules, spacing)
    return {region: of for pair in pairs for region, of in pair.regions.items()}, rules, spacing


def hausdorff_95(found, truth, spacing):
    """MONAI's HausdorffDistanceMetric(percentile=95, directed=False): distance transforms of surfaces."""
    edges = [mask & ~ndimage.binary_erosion(mask) for mask in (found, truth)]
    far = [ndimage.distance_transform_edt(~edge, sampling=spacing) for edge in edges]
    return max(np.percentile(far[1][edges[0]], 95), np.percentile(far[0][edges[1]], 95))


def test_each_class_is_scored_as_by_its_own_formula():
    schema = schema_of(NAMED | {"nowhere": 9})
    truth, found = organs(0, 3), np.roll(organs(0, 3), 1, axis=0)
    regions, _, spacing = scored(found, truth, schema)
    assert list(regions) == ["liver", "spleen", "left kidney", "nowhere"]
    for region, value in schema.labels.items():
        one, other, pair = found == value, truth == value, regions[region]
        if region == "nowhere":
            assert np.isnan([pair.hd95("directed"), pair.nothing(1.0)]).all()
            continue
        common, predicted, true = pair.counts
        assert 2 * common / (predicted + true) == 2 * (one & other).sum() / (one.sum() + other.sum())
        assert pair.hd95("directed") == pytest.approx(hausdorff_95(one, other, spacing))


def test_a_hundred_classes_have_the_scores_of_whole_masks():
    schema = schema_of({"background": 0} | {f"rib {value}": value for value in range(1, 101)})
    truth, found = organs(1, 100, (60, 50, 40)), np.roll(organs(1, 100, (60, 50, 40)), 1, axis=2)
    regions, rules, spacing = scored(found, truth, schema)
    assert len(regions) == 100
    for region in ("rib 1", "rib 57", "rib 100"):
        masks = ({region: labels == schema.labels[region]} for labels in (found, truth))
        whole = CasePair(*masks, spacing_mm=spacing, rules=rules).regions[region]
        for measure in (lambda one: one.counts, lambda one: one.hd95("area"), lambda one: one.nsd(1.0),
                        lambda one: one.other_voxels):  # fmt: skip
            assert measure(regions[region]) == measure(whole)


def test_regions_overlap_and_ignored_voxels_do_not_count():
    schema = schema_of({"background": 0, "whole": [1, 2], "core": [2], "ignore": 3}, regions_class_order=[1, 2])
    truth = organs(2, 2)
    truth[:, :, 8:] = 3
    found = organs(2, 2)
    regions, _, _ = scored(found, truth, schema)
    assert regions["whole"].counts == ((found[..., :8] > 0).sum(),) * 3
    assert regions["core"].counts == ((found[..., :8] == 2).sum(),) * 3


@pytest.fixture
def nnunet(tmp_path):
    """A raw folder of nnU-Net with two cases, and the output of two programs: one right, one shifted."""
    raw = tmp_path / "Dataset007_X"
    for seed, case in enumerate(("x_001", "x_002")):
        truth = organs(seed, 3)
        save(
            np.random.default_rng(seed).integers(-900, 900, truth.shape).astype(np.int16),
            raw / f"imagesTr/{case}_0000.nii.gz",
            AFFINE,
        )
        save(truth, raw / f"labelsTr/{case}.nii.gz", AFFINE)
        save(truth, tmp_path / f"right/{case}.nii.gz", AFFINE)
        save(np.roll(truth, 1, axis=0), tmp_path / f"shifted/{case}.nii.gz", AFFINE)
    content = {"channel_names": {"0": "CT"}, "labels": NAMED, "numTraining": 2, "file_ending": ".nii.gz"}
    (raw / "dataset.json").write_text(json.dumps(content))
    (tmp_path / "shifted/dataset.json").write_text(json.dumps(content))
    return tmp_path


def table_of(folder):
    found = pd.read_csv(folder / "scores.csv")
    return found.pivot_table(index="region", columns="predictions", values="dice", sort=False)


def test_two_programs_in_one_table_and_box_plot(nnunet, capsys):
    given = [
        str(nnunet / "right"),
        str(nnunet / "shifted"),
        "--truth",
        str(nnunet / "Dataset007_X"),
        "--output",
        str(nnunet / "out"),
    ]
    assert evaluate.main(given) == 0
    table = table_of(nnunet / "out")
    assert list(table.index) == ["liver", "spleen", "left kidney"]
    assert (table["right"] == 1).all()
    assert (table["shifted"] < 1).all()
    assert {"dice_native.png", "report.html", "worst.png"} <= {path.name for path in (nnunet / "out").iterdir()}
    assert "Rules: classes (of any labels)" in capsys.readouterr().out


def test_of_many_regions_the_worst_are_drawn():
    names = [f"r{number:02}" for number in range(30)]
    found = pd.DataFrame({
        "predictions": "p", "case": "c", "space": "native", "region": names, "dice": np.linspace(0, 1, 30),
    })  # fmt: skip
    assert box_plot._drawn(found.rename(columns={"dice": "value"}), True) == names[: box_plot.MOST]
    assert box_plot._drawn(found.rename(columns={"dice": "value"}), False) == names[-box_plot.MOST :]


@pytest.mark.parametrize(("removed", "names"), [(False, ["liver", "spleen", "left kidney"]), (True, ["1", "2", "3"])])
def test_label_maps_alone_have_the_names_of_a_dataset_json_or_their_values(nnunet, capsys, removed, names):
    truth = nnunet / "alone"
    (nnunet / "Dataset007_X/labelsTr").rename(truth)
    if removed:
        (nnunet / "shifted/dataset.json").unlink()
    assert evaluate.main([str(nnunet / "shifted"), "--truth", str(truth), "--output", str(nnunet / "out")]) == 0
    assert [str(region) for region in table_of(nnunet / "out").index] == names
    assert ("labels are called by their values" in capsys.readouterr().out) == removed


def test_an_unknown_label_is_told(nnunet, capsys):
    save(organs(0, 9), nnunet / "right/x_001.nii.gz", AFFINE)
    assert evaluate.main([str(nnunet / "right"), "--truth", str(nnunet / "Dataset007_X")]) == 2
    assert "x_001.nii.gz: found label" in capsys.readouterr().err
