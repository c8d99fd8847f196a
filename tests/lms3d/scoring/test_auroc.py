"""Areas are compared with scikit-learn's, and intervals with DeLong's closed form. Tables and figures are checked for their
text."""

from __future__ import annotations

import csv

import numpy as np
import pytest
from sklearn.metrics import auc, roc_auc_score

from lms3d.scoring import auroc, tables
from lms3d.scoring.figures import roc
from lms3d.scoring.tables import PUBLISHED

NAMES = ["Atelectasis", "Mass", "Hernia"]


def images(n: int = 300, seed: int = 0, ties: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Truth and probabilities of three classes, the third shown by no image."""
    random = np.random.default_rng(seed)
    truth = (random.random((n, 3)) < (0.3, 0.1, 0)).astype(np.uint8)
    probabilities = 1 / (1 + np.exp(-(random.normal(size=(n, 3)) + 1.2 * truth - 1)))
    return truth, probabilities.round(1) if ties else probabilities


@pytest.mark.parametrize("ties", [False, True])
def test_areas_are_those_of_scikit_learn(ties):
    truth, probabilities = images(ties=ties)
    found = auroc.score(truth, probabilities, NAMES, draws=20)
    expected = [roc_auc_score(truth[:, k], probabilities[:, k]) for k in (0, 1)]
    assert [one.auroc for one in found.classes[:2]] == expected
    assert found.mean == pytest.approx(np.mean(expected))
    assert [one.positives + one.negatives for one in found.classes] == [300, 300, 300]


def test_a_class_with_one_answer_has_no_area_and_no_part_in_the_mean():
    truth, probabilities = images()
    truth[:, 1] = 1
    found = auroc.score(truth, probabilities, NAMES, draws=50)
    assert found.left_out == ["Mass", "Hernia"]
    assert np.isnan([[one.auroc, one.low, one.high] for one in found.classes[1:]]).all()
    assert found.mean == found.classes[0].auroc
    assert (found.low, found.high) == (found.classes[0].low, found.classes[0].high)


def test_without_any_class_that_has_both_there_is_no_mean():
    found = auroc.score(np.zeros((4, 1)), np.full((4, 1), 0.5), ["Mass"], draws=5)
    assert np.isnan([found.mean, found.low, found.high]).all()


@pytest.mark.parametrize("ties", [False, True])
def test_weighted_area_is_that_of_scikit_learn(ties):
    truth, probabilities = images(ties=ties)
    times = np.random.default_rng(1).integers(0, 4, len(truth)).astype(float)
    ranks = np.unique(probabilities[:, 0], return_inverse=True)[1]
    expected = roc_auc_score(truth[:, 0], probabilities[:, 0], sample_weight=times)
    assert auroc.weighted_area(truth[:, 0].astype(bool), ranks, times) == pytest.approx(expected, abs=1e-12)


def delong_deviation(truth: np.ndarray, probabilities: np.ndarray) -> float:
    """Standard deviation of the area after DeLong et al., Biometrics 44 (1988) 837-845."""
    positive, negative = probabilities[truth == 1], probabilities[truth == 0]
    wins = (positive[:, None] > negative) + 0.5 * (positive[:, None] == negative)
    by_positive, by_negative = wins.mean(axis=1), wins.mean(axis=0)
    return float(np.sqrt(by_positive.var(ddof=1) / len(positive) + by_negative.var(ddof=1) / len(negative)))


def test_intervals_of_single_images_agree_with_delong():
    truth, probabilities = images(1500)
    for k, one in enumerate(auroc.score(truth, probabilities, NAMES, draws=2000).classes[:2]):
        deviation = delong_deviation(truth[:, k], probabilities[:, k])
        assert one.high - one.low == pytest.approx(2 * 1.96 * deviation, rel=0.1)
        assert one.low < one.auroc < one.high


def test_patients_with_many_like_images_widen_the_interval():
    """Nine copies of each image hold no more information than one, so the interval is that of the patients."""
    truth, probabilities = images(200)
    alone = auroc.score(truth, probabilities, NAMES, draws=500)
    copies = np.repeat(truth, 9, axis=0), np.repeat(probabilities, 9, axis=0)
    by_patient = auroc.score(*copies, NAMES, patients=np.repeat([f"p{i:03d}" for i in range(200)], 9), draws=500)
    by_image = auroc.score(*copies, NAMES, draws=500)
    assert by_patient.patients == 200
    widths = [one.high - one.low for one in (alone, by_patient, by_image)]
    assert widths[1] == pytest.approx(widths[0])
    assert widths[2] == pytest.approx(widths[0] / 3, rel=0.15)


def test_one_positive_patient_gives_an_area_but_no_interval():
    truth = np.zeros((40, 1), int)
    truth[:2] = 1  # both images of patient 0
    found = auroc.score(truth, np.linspace(1, 0, 40)[:, None], ["Hernia"], patients=np.arange(40) // 2, draws=50)
    assert found.classes[0].auroc == 1
    assert np.isnan([found.classes[0].low, found.classes[0].high]).all()
    assert "1.000 (unknown)" in tables.auroc_markdown(found)


def test_the_same_seed_draws_the_same():
    assert repr(auroc.score(*images(), NAMES, draws=30)) == repr(auroc.score(*images(), NAMES, draws=30))


@pytest.mark.parametrize(
    ("truth", "probabilities", "says"),
    [
        (np.zeros((4, 3)), np.zeros((4, 2)), r"probabilities \(4, 2\); expected \(N, 3\) for both"),
        (np.full((4, 3), 2), np.zeros((4, 3)), "truth holds 2; expected 0 and 1 alone"),
        (np.zeros((4, 3)), np.full((4, 3), np.nan), "not finite"),
    ],
)
def test_what_does_not_belong_together_is_told(truth, probabilities, says):
    with pytest.raises(ValueError, match=says):
        auroc.score(truth, probabilities, NAMES)
    with pytest.raises(ValueError, match="3 patients for 4 images"):
        auroc.score(np.zeros((4, 3)), np.zeros((4, 3)), NAMES, patients=[1, 2, 3])


def test_published_means_are_those_of_the_papers():
    assert {source: round(areas["mean"], 3) for source, areas in PUBLISHED.items()} == {
        "CheXNet paper": 0.841, "Dell": 0.804,
    }  # fmt: skip


def test_tables_stand_beside_the_published(tmp_path):
    found = auroc.score(*images(), NAMES, patients=np.arange(300) // 2, draws=100)
    text = tables.auroc_markdown(found, remark="Artificial images.")
    lines = text.splitlines()
    mass = found.classes[1]
    assert (
        lines[3] == f"| Mass | {mass.positives} | {mass.auroc:.3f} ({mass.low:.3f}-{mass.high:.3f}) | 0.868 | 0.823 |"
    )
    assert lines[4] == "| Hernia | 0 | - | 0.916 | 0.833 |"
    assert lines[5].startswith(f"| mean |  | {found.mean:.3f} ({found.low:.3f}-{found.high:.3f}) | 0.841 | 0.804 |")
    assert "100 bootstrap draws of 150 patients" in text
    assert "Left out of the mean, because all images have the same answer: Hernia." in text
    assert lines[-1] == "Artificial images."
    tables.write_csv(tables.auroc_table(found), tmp_path / "new/auroc.csv")
    with open(tmp_path / "new/auroc.csv", newline="") as file:
        rows = {row["name"]: row for row in csv.DictReader(file)}
    assert list(rows) == [*NAMES, "mean"]
    assert rows["Mass"]["auroc"] == f"{mass.auroc:.6f}"
    assert (rows["Hernia"]["auroc"], rows["Hernia"]["CheXNet paper"]) == ("", "0.916400")
    assert rows["mean"]["Dell"] == "0.803857"


def test_curves_enclose_their_areas():
    truth, probabilities = images()
    found = auroc.curves(truth, probabilities, NAMES)
    assert list(found) == ["Atelectasis", "Mass"]
    for k, (false_rate, true_rate) in enumerate(found.values()):
        assert auc(false_rate, true_rate) == pytest.approx(roc_auc_score(truth[:, k], probabilities[:, k]))


def test_roc_figure_has_a_panel_for_each_class(tmp_path, drawn):
    truth, probabilities = images()
    found = auroc.score(truth, probabilities, NAMES, draws=50)
    path = roc.roc_curves(found, auroc.curves(truth, probabilities, NAMES), tmp_path / "roc.png", title="t")
    assert path.stat().st_size > 10_000
    first, _, third, *empty = drawn[0].axes
    assert first.get_title() == "Atelectasis"
    assert first.texts[0].get_text().startswith(f"{found.classes[0].auroc:.3f}\n")
    assert third.texts[0].get_text() == "no area: 0 of\n300 positive"
    assert len(first.lines) == 3  # the other class, chance, its own
    assert len(third.lines) == 3  # the two others, chance
    assert all(axis.get_xlabel() == "false positive rate" for axis in (first, third))
    assert not any(axis.get_visible() for axis in empty)
    assert f"{found.mean:.3f}" in drawn[0].get_suptitle()


def test_areas_figure_has_all_rows(tmp_path, drawn):
    found = auroc.score(*images(), NAMES, draws=50)
    roc.areas(found, tmp_path / "areas.png", title="t")
    axis = drawn[0].axes[0]
    assert [label.get_text() for label in axis.get_yticklabels()] == [*NAMES, "mean"]
    lines = {line.get_label(): line for line in axis.lines}
    np.testing.assert_allclose(
        lines["this run (95 % interval)"].get_xdata(), [one.auroc for one in found.classes] + [found.mean]
    )
    np.testing.assert_allclose(lines["Dell, ChestX-ray14"].get_xdata(), [0.816, 0.823, 0.833, 0.803857], atol=1e-6)
