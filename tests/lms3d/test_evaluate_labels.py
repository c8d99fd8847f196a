"""Predictions whose labels do not have every region of the truth: a cavity that no label of 2023 names."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from lms3d.data.brats.definition import define
from lms3d.data.brats.schema import SCHEMAS
from lms3d.scoring import scores
from lms3d.tasks.brats import inputs
from lms3d.tasks.volumes import codings, evaluate, label_maps
from lms3d.tasks.volumes.inputs import load_all
from tests.data.small_data import LATE, random_case, save, write_case
from tests.lms3d.test_evaluate import write_predictions

pytestmark = pytest.mark.usefixtures("unrendered")

CASE = "BraTS-GLI-00001-100"


def silent(*_):
    """No progress."""


@pytest.fixture
def with_cavity(tmp_path):
    """GLI 2024, one case with a cavity beside the tumour; and predictions without a label for it, ours and a plain one."""
    arrays = random_case(1, (1, 2, 3))
    arrays["truth"][2:5, 8:14, 6:12] = 4
    root = tmp_path / "BraTS2024"
    write_case(root / CASE, arrays, LATE)
    without = np.array([0, 1, 2, 3, 0], np.uint8)
    write_predictions(root, tmp_path / "ours", 16, lambda labels: without[labels])
    replace(label_maps.load(tmp_path / "ours"), schema="brats2023", schema_of_data="brats2024").save()
    save(without[arrays["truth"]], tmp_path / "plain" / f"{CASE}.nii.gz")
    return root


def scored(root, tmp_path, *names, **options):
    plan = inputs.plan(load_all([tmp_path / name for name in names]), truth=str(root), **options)
    found = evaluate.score(plan, progress=silent)
    return plan, found[found["space"] == "native"].set_index(["predictions", "region"])


def test_a_region_without_a_label_is_scored_as_one_that_was_not_found(with_cavity, tmp_path, capsys):
    plan, found = scored(with_cavity, tmp_path, "ours", "plain", prediction_labels="brats2023", labels="brats2024")
    told = capsys.readouterr().err
    assert plan.rules.name == "brats2024-gli"
    for name in ("ours", "plain"):
        note = f"{name} has labels of brats2023, without RC: scored as if nothing were marked there"
        assert note in plan.notes
        assert told.count(f"note: {note}\n") == 1
        assert set(found.loc[name].index) == {"WT", "TC", "ET", "NETC", "SNFH", "RC"}
        assert found.loc[(name, "RC"), ["dice", "lesion_dice", "hd95_area_mm"]].tolist() == [0, 0, 337]
        assert found.loc[(name, "RC"), "truth_ml"] > 0
        assert found.loc[(name, "ET"), "dice"] == 1


def test_the_ceiling_is_that_of_the_labels_that_the_network_knows(with_cavity, tmp_path):
    """One that could not be taught a cavity does not miss it by its resolution."""
    _, found = scored(with_cavity, tmp_path, "ours")
    assert found.loc[("ours", "RC"), scores.CEILING + "dice"] == 0
    replace(label_maps.load(tmp_path / "ours"), schema="brats2024").save()
    _, of_all = scored(with_cavity, tmp_path, "ours")
    assert of_all.loc[("ours", "RC"), scores.CEILING + "dice"] > 0.5
    for region in ("WT", "TC", "ET"):
        ceilings = [one.loc[("ours", region), scores.CEILING + "dice"] for one in (found, of_all)]
        assert ceilings[0] == pytest.approx(ceilings[1], abs=0.02)
        assert ceilings[0] > 0.5


def own(labels, regions):
    return define({"labels": labels, "regions": regions}, where="here")


@pytest.mark.parametrize(
    ("schema", "coding", "expected"),
    [
        ("brats2024", "brats2023", {1: 1, 2: 2, 3: 3, 4: 0}),
        ("brats2024", "brats2021", {1: 1, 2: 2, 3: 4, 4: 0}),
        ("brats2024-ped", "brats2023", {1: 3, 2: 1, 3: 1, 4: 2}),
        ("brats2023", "msd", {1: 2, 2: 1, 3: 3}),
        ("brats2020", "whole", {1: 1, 2: 1, 4: 1}),
        ("brats2020", "core", {1: 2, 2: 1, 4: 2}),
    ],
)
def test_a_label_becomes_the_one_that_lies_in_the_same_regions(schema, coding, expected):
    known = {
        "whole": own({"all": 1}, {"WT": ["all"]}),
        "core": own({"rest": 1, "core": 2}, {"WT": ["rest", "core"], "TC": ["core"]}),
        **SCHEMAS,
    }
    labels = np.array([0, *expected], np.uint8)
    assert codings.expressed(labels, SCHEMAS[schema], known[coding]).tolist() == [0, *expected.values()]
