"""Rows, their means and tables; a column that somebody adds."""

from __future__ import annotations

import csv

import numpy as np
import pytest

from lms3d.scoring import columns, scores, tables
from lms3d.tasks.brats import evaluate


def row(label: str, case: str, dice: float, hd95_mm: float | None = None) -> dict:
    return {"predictions": label, "case": case, "space": "native", "region": "WT", "dice": dice, "sensitivity": dice,
            "specificity": 1.0, "hd95_mm": hd95_mm}  # fmt: skip


TRUTH = {"WT": np.array([[[True, True]]]), "ET": np.array([[[False, False]]])}
FOUND = {"WT": np.array([[[True, False]]]), "ET": np.array([[[False, False]]])}


def measured(space: str, **more) -> list[dict]:
    return scores.score(FOUND, TRUTH, predictions="p", case="c", space=space, spacing_mm=(1, 1, 2), **more)


def test_score_has_a_row_per_region():
    rows = scores.frame(measured("native", requested=("hd95_mm",)))
    assert list(rows["region"]) == ["WT", "ET"]
    assert rows["dice"].tolist() == [pytest.approx(2 / 3), 1]
    assert rows["sensitivity"].tolist() == [0.5, 1]
    assert rows["hd95_mm"].tolist() == [pytest.approx(1.9), 0]


def test_a_slow_column_is_measured_on_request_and_where_it_has_a_meaning():
    assert "hd95_mm" not in measured("native")[0]
    assert "hd95_mm" not in measured("cube", requested=("hd95_mm",))[0]
    assert scores.frame(measured("cube"))["hd95_mm"].isna().all()


def test_summary_of_five_cases():
    rows = [row("p", str(i), dice, dice) for i, dice in enumerate((0.5, 0.1, 0.4, 0.2, 0.3))]
    (summary,) = scores.summarise(scores.frame(rows)).itertuples()
    assert (summary.cases, summary.mean, summary.median) == (5, pytest.approx(0.3), 0.3)
    assert summary.std == pytest.approx(np.std([0.5, 0.1, 0.4, 0.2, 0.3]))
    assert (summary.minimum, summary.lower_quartile, summary.upper_quartile, summary.maximum) == (0.1, 0.2, 0.4, 0.5)
    assert summary.mean_hd95_mm == pytest.approx(0.3)


def test_average_over_models_is_per_case():
    rows = [row("b", "x", 1.0), row("a1", "x", 0.2), row("a2", "x", 0.4), row("a1", "y", 0.6)]
    found = scores.average_over_models(scores.frame(rows), {"a1": "a", "a2": "a", "b": "b"})
    assert [(r.predictions, r.case, r.dice) for r in found.itertuples()] == [
        ("a", "x", pytest.approx(0.3)), ("a", "y", 0.6), ("b", "x", 1.0),
    ]  # fmt: skip


def test_tables(tmp_path):
    found = scores.frame([row("p", "x", 0.25, 3.0), row("p", "y", 0.75)])
    tables.write_csv(found, tmp_path / "new" / "scores.csv")
    assert (tmp_path / "new" / "scores.csv").read_bytes() == (
        b"predictions,case,space,region,dice,sensitivity,specificity,hd95_mm\r\n"
        b"p,x,native,WT,0.250000,0.250000,1.000000,3.000000\r\n"
        b"p,y,native,WT,0.750000,0.750000,1.000000,\r\n"
    )
    table = scores.to_markdown(scores.summarise(found))
    expected = "| p | native | WT | 2 | 0.500 ± 0.250 | 0.500 (0.375-0.625) | 0.500 | 1.0000 | 3.0 |"
    assert expected in table.splitlines()
    assert "HD95" not in scores.to_markdown(scores.summarise(scores.frame([row("p", "x", 0.5)])))


def test_a_column_with_a_unit_is_not_measured_in_the_cube():
    with pytest.raises(ValueError, match="only in native space"):
        columns.column("depth_mm", title="depth", unit="mm", spaces=columns.SPACES)(lambda *_: 0.0)
    assert "depth_mm" not in columns.COLUMNS


def test_a_column_that_somebody_adds_is_in_every_table_and_has_its_box_plot(tmp_path):
    @columns.column("volume_error_ml", title="volume error ml", unit="ml", larger_is_better=False, box_plot=True)
    def volume_error(prediction, truth, spacing_mm):
        return abs(int(prediction.sum()) - int(truth.sum())) * float(np.prod(spacing_mm)) / 1000

    try:
        found = scores.frame(measured("native") + measured("cube"))
        evaluate.write_report(found, tmp_path)
    finally:
        columns.COLUMNS.remove("volume_error_ml")
    # A cube's voxels are no millimetres.
    np.testing.assert_equal(found["volume_error_ml"].to_numpy(), [0.002, 0, np.nan, np.nan])
    with open(tmp_path / "scores.csv", newline="") as file:
        assert next(csv.DictReader(file))["volume_error_ml"] == "0.002000"
    assert "mean_volume_error_ml" in (tmp_path / "summary.csv").read_text().splitlines()[0]
    assert "| volume error ml |" in (tmp_path / "summary.md").read_text()
    names = {path.name for path in tmp_path.iterdir()}
    assert {"dice_native.png", "dice_cube.png", "volume_error_ml_native.png", "volume_error_ml_native.pdf"} <= names
    assert "volume_error_ml_cube.pdf" not in names
