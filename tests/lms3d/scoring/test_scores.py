"""Records, their means and tables."""

from __future__ import annotations

import csv

import numpy as np
import pytest

from lms3d.scoring import scores
from lms3d.scoring.scores import Record


def record(label: str, case: str, dice: float, hd95_mm: float | None = None) -> Record:
    return Record(
        predictions=label, case=case, space="native", region="WT", dice=dice, sensitivity=dice, specificity=1.0,
        hd95_mm=hd95_mm,
    )  # fmt: skip


def test_score_has_a_record_per_region():
    truth = {"WT": np.array([[[True, True]]]), "ET": np.array([[[False, False]]])}
    found = {"WT": np.array([[[True, False]]]), "ET": np.array([[[False, False]]])}
    records = scores.score(found, truth, predictions="p", case="c", space="cube", spacing_mm=(1, 1, 2))
    assert [(r.region, r.dice, r.sensitivity, r.hd95_mm) for r in records] == [
        ("WT", pytest.approx(2 / 3), 0.5, pytest.approx(1.9)),
        ("ET", 1, 1, 0),
    ]


def test_summary_of_five_cases():
    (summary,) = scores.summarise([record("p", str(i), dice, dice) for i, dice in enumerate((0.5, 0.1, 0.4, 0.2, 0.3))])
    assert (summary.cases, summary.mean, summary.median) == (5, pytest.approx(0.3), 0.3)
    assert (summary.minimum, summary.lower_quartile, summary.upper_quartile, summary.maximum) == (0.1, 0.2, 0.4, 0.5)
    assert summary.mean_hd95_mm == pytest.approx(0.3)


def test_average_over_models_is_per_case():
    records = [record("a1", "x", 0.2), record("a2", "x", 0.4), record("a1", "y", 0.6), record("b", "x", 1.0)]
    found = scores.average_over_models(records, {"a1": "a", "a2": "a", "b": "b"})
    assert [(r.predictions, r.case, r.dice) for r in found] == [
        ("a", "x", pytest.approx(0.3)), ("a", "y", 0.6), ("b", "x", 1.0),
    ]  # fmt: skip


def test_tables(tmp_path):
    records = [record("p", "x", 0.25, 3.0), record("p", "y", 0.75, 5.0)]
    scores.write_csv(records, tmp_path / "new" / "scores.csv")
    with open(tmp_path / "new" / "scores.csv", newline="") as file:
        assert [row["dice"] for row in csv.DictReader(file)] == ["0.250000", "0.750000"]
    table = scores.to_markdown(scores.summarise(records))
    row = "| p | native | WT | 2 | 0.500 ± 0.250 | 0.500 (0.375-0.625) | 0.500 | 1.0000 | 4.0 |"
    assert row in table.splitlines()
