"""Artificial radiographs: the layout of ChestX-ray14, the same every time, and a look that follows from the labels."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image
from scipy import ndimage

from lms3d.data.chest_xray import collection, patient_split
from lms3d.data.chest_xray.collection import FINDINGS
from lms3d.data.errors import DataError
from lms3d.data.phantoms import chests
from lms3d.data.phantoms.chest_anatomy import Chest, draw_chest, draw_patient
from lms3d.data.phantoms.chest_fields import grid
from lms3d.data.phantoms.chest_findings import DRAW, RESHAPE, reshape
from lms3d.data.phantoms.chest_patients import draw_visits

SIZE = 96


@pytest.fixture(scope="module")
def small_set(tmp_path_factory):
    return chests.write(tmp_path_factory.mktemp("radiographs"), images=130, size=32, seed=3, workers=1)


def healthy(patient: int = 0) -> tuple[np.random.Generator, Chest]:
    rng = np.random.default_rng([7, patient])
    return rng, draw_chest(rng, draw_patient(rng, 50, False), *grid(SIZE, (0.0, 0.0), 1.0, 0.0))


def test_it_lies_on_disk_as_the_real_set_does(small_set):
    lines = (small_set / "Data_Entry_2017.csv").read_text().splitlines()
    assert lines[0].endswith("View Position,OriginalImage[Width,Height],OriginalImagePixelSpacing[x,y],")
    assert all(line.count(",") == 11 and line.endswith(",") for line in lines)
    folders = {path.relative_to(small_set).parent.as_posix() for path in small_set.rglob("*.png")}
    assert folders == {f"images_{k:03d}/images" for k in range(1, 13)}
    modes = Counter(Image.open(path).mode for path in small_set.rglob("*.png"))
    assert modes == {"L": 129, "RGBA": 1}
    found = collection.find_images(small_set)
    assert (len(found.images), found.problems) == (130, ())
    parts = patient_split.parts(found)
    assert set(parts["test"]) == found.test
    assert all(parts.values())


def test_the_same_seed_gives_the_same_images_whatever_their_number_and_the_workers(small_set, tmp_path):
    again = chests.write(tmp_path, images=60, size=32, seed=3, workers=2)
    other = chests.write(tmp_path, images=60, size=32, seed=4, workers=1)
    differing = 0
    for path in again.rglob("*.png"):
        (same,) = small_set.rglob(path.name)
        first, second = (np.asarray(Image.open(file).convert("L")) for file in (path, same))
        np.testing.assert_array_equal(first, second)
        differing += not any(
            np.array_equal(first, np.asarray(Image.open(p).convert("L"))) for p in other.rglob(path.name)
        )
    assert differing == 60


def test_a_second_call_makes_nothing_and_a_killed_one_is_finished(small_set, tmp_path, monkeypatch):
    root = chests.write(tmp_path, images=60, size=32, seed=3, workers=1)
    (root / "Data_Entry_2017.csv").unlink()
    lost = sorted(root.rglob("*.png"))[4]
    content = lost.read_bytes()
    lost.unlink()
    made: list[str] = []
    write = chests.write_images
    monkeypatch.setattr(chests, "write_images", lambda *a: (made.extend(path.name for path, *_ in a[0]), write(*a)))
    for _ in range(2):
        assert chests.write(tmp_path, images=60, size=32, seed=3, workers=1) == root
    assert made == [lost.name]
    assert lost.read_bytes() == content


def test_findings_are_unbalanced_come_together_and_suffice_to_measure_auroc():
    visits = draw_visits(0, 1800)
    assert len({visit.name for visit in visits}) == 1800
    counts = Counter(finding for visit in visits for finding in visit.findings)
    assert min(counts[finding] for finding in FINDINGS) >= 60
    assert max(counts.values()) > 2.5 * min(counts.values())
    tested = Counter(finding for visit in visits if visit.patient % 5 == 0 for finding in visit.findings)
    assert min(tested[finding] for finding in FINDINGS) >= 8
    assert 0.4 < sum(not visit.findings for visit in visits) / 1800 < 0.6
    assert sum(len(visit.findings) > 1 for visit in visits) > 400
    assert max(visit.number for visit in visits) >= 5
    assert {visit.view for visit in visits} == {"PA", "AP"}
    assert {visit.female for visit in visits} == {True, False}
    assert min(visit.age for visit in visits) < 20 < 80 < max(visit.age for visit in visits)


def test_a_chest_is_a_chest():
    image = chests.make_image(replace(draw_visits(0, 1)[0], findings=(), view="PA"), 0, 256).astype(float)
    lungs = [image[80:140, 60:85].mean(), image[80:140, 171:196].mean()]
    assert max(lungs) < 0.75 * image[140:170, 128:150].mean()  # the heart, left of the middle for the patient
    assert max(lungs) < 0.75 * image[225:250, 100:156].mean()  # below the diaphragm
    assert image[:6, :20].mean() < 40  # air beside the neck


def where(field: np.ndarray, weight: np.ndarray) -> float:
    """The mean of `field` over the finding."""
    return float((field * weight).sum() / weight.sum())


# Finding -> promises about its change of attenuation, its part that is added, and the chest.
PLACES = {
    "Atelectasis": lambda c, d, p: where(c.height, p) < 0.35 and where(c.y, p) > 0.1,
    "Effusion": lambda c, d, p: where(c.height, p) < 0.3 and where(c.y, p) > 0.25 and p.max() > 0.4,
    "Infiltration": lambda c, d, p: abs(where(c.y, p)) < 0.25 and 0.2 < where(c.u, p) < 0.55,
    "Mass": lambda c, d, p: ndimage.label(p > 0.1)[1] == 1 and (p > 0.1).mean() > 0.006,
    "Nodule": lambda c, d, p: 1 <= ndimage.label(p > 0.1)[1] <= 4 and (p > 0.1).mean() < 0.012,
    "Pneumonia": lambda c, d, p: where(c.y, p) > 0.12,
    "Pneumothorax": lambda c, d, p: d.min() < -0.12 and where(c.wall, np.clip(-d - 0.08, 0, 1)) < 0.2,
    "Consolidation": lambda c, d, p: where(c.y, p) < -0.1 and p.max() > 0.35,
    "Edema": lambda c, d, p: 0.5 < p[:, : SIZE // 2].sum() / p[:, SIZE // 2 :].sum() < 2,
    "Fibrosis": lambda c, d, p: (p[c.lung > 0.5] > 0.12).mean() > 0.15,
    "Pleural_Thickening": lambda c, d, p: where(c.wall, p) < 0.1,
    "Hernia": lambda c, d, p: d.min() < -0.3 and abs(where(c.x, np.clip(-d, 0, 1))) < 0.2,
}


@pytest.mark.parametrize("finding", sorted(DRAW))
@pytest.mark.parametrize("patient", range(6))
def test_every_finding_looks_as_it_should_and_where_it_should(finding, patient):
    rng, chest = healthy(patient)
    change = DRAW[finding](rng, chest)
    assert PLACES[finding](chest, change, np.clip(change, 0, None))


def test_every_finding_changes_something():
    assert set(DRAW) | set(RESHAPE) == set(FINDINGS)


def test_measures_follow_the_labels():
    for patient in range(6):
        rng = np.random.default_rng(patient)
        shape = draw_patient(rng, 60, bool(patient % 2))
        assert shape.heart_ratio < 0.5
        large, inflated = replace(shape), replace(shape)
        reshape(rng, large, ["Cardiomegaly"])
        reshape(rng, inflated, ["Emphysema"])
        assert large.heart_ratio > 0.55
        assert min(inflated.dome) > max(shape.dome)
        assert inflated.dome_height < 0.4 * shape.dome_height
        x, y = grid(SIZE, (0.0, 0.0), 1.0, 0.0)
        usual, dark = (draw_chest(np.random.default_rng(1), s, x, y) for s in (shape, inflated))
        deep = (usual.lung > 0.9) & (dark.lung > 0.9)
        assert dark.attenuation[deep].mean() < 0.85 * usual.attenuation[deep].mean()
        assert dark.lung.sum() > usual.lung.sum()
        wide = draw_chest(np.random.default_rng(1), large, x, y)
        assert wide.lung.sum() < 0.95 * usual.lung.sum()


@pytest.mark.parametrize("options", [{"images": 0}, {"seed": -1}, {"size": 16}])
def test_wrong_input(tmp_path, options):
    with pytest.raises(DataError, match=r"^radiographs: found"):
        chests.write(tmp_path, **options)
