"""Rows, their means and tables; a column that somebody adds."""

from __future__ import annotations

import csv

import numpy as np
import pytest

from lms3d.scoring import columns, scores, tables
from lms3d.scoring.pair import CasePair
from lms3d.scoring.rules import RULES
from lms3d.tasks.volumes import report


def row(label: str, case: str, dice: float, hd95_mm: float | None = None) -> dict:
    return {"predictions": label, "case": case, "space": "native", "region": "WT", "dice": dice, "sensitivity": dice,
            "specificity": 1.0, "hd95_directed_mm": hd95_mm, "both_empty": 0}  # fmt: skip


TRUTH = {"WT": np.array([[[True, True]]]), "ET": np.array([[[False, False]]])}
FOUND = {"WT": np.array([[[True, False]]]), "ET": np.array([[[False, False]]])}


def measured(space: str, rules: str = "brats2017") -> list[dict]:
    pair = CasePair(FOUND, TRUTH, spacing_mm=(1, 1, 2), rules=RULES[rules])
    return scores.score(pair, predictions="p", case="c", space=space)


def test_score_has_a_row_per_region():
    rows = scores.frame(measured("native"))
    assert list(rows["region"]) == ["WT", "ET"]
    assert rows["dice"].tolist() == [pytest.approx(2 / 3), 1]
    assert rows["sensitivity"].tolist() == [0.5, 1]
    assert rows["hd95_directed_mm"].tolist() == [pytest.approx(1.9), 0]


def test_what_is_in_millimetres_is_not_measured_in_the_cube():
    assert "hd95_pooled_mm" not in measured("cube")[0]
    assert scores.frame(measured("cube"))["nsd_half_mm"].isna().all()


def test_empty_regions_are_counted_both_ways():
    for rules, by_rules in (("brats2023-gli", 1.0), ("brats2026-gli", None)):
        found = scores.summarise(scores.frame(measured("native", rules)))
        (row,) = found[found["region"] == "ET"].to_dict("records")
        assert (row["cases"], row["both_empty"]) == (1, 1)
        assert row["mean"] == by_rules if by_rules else np.isnan(row["mean"])
        assert row["mean_empty_counted"] == 1
        assert np.isnan(row["mean_empty_left_out"])
    wide = scores.spread_of_all(scores.frame(measured("native", "brats2026-gli")))
    rows = {(r.region, r.metric, r.empty): r for r in wide.itertuples()}
    assert ("ET", "dice", "rules") not in rows
    assert (rows["ET", "hd95_pooled_mm", "counted"].mean, rows["ET", "hd95_pooled_mm", "counted"].both_empty) == (0, 1)
    assert rows["WT", "dice", "left out"].n == 1


def test_summary_of_five_cases():
    rows = [row("p", str(i), dice, dice) for i, dice in enumerate((0.5, 0.1, 0.4, 0.2, 0.3))]
    (summary,) = scores.summarise(scores.frame(rows)).itertuples()
    assert (summary.cases, summary.mean, summary.median) == (5, pytest.approx(0.3), 0.3)
    assert summary.std == pytest.approx(np.std([0.5, 0.1, 0.4, 0.2, 0.3]))
    assert (summary.minimum, summary.lower_quartile, summary.upper_quartile, summary.maximum) == (0.1, 0.2, 0.4, 0.5)
    assert summary.mean_hd95_directed_mm == pytest.approx(0.3)
    assert 0.1 < summary.low < 0.3 < summary.high < 0.5


def test_average_over_models_is_per_case():
    rows = [row("b", "x", 1.0), row("a1", "x", 0.2), row("a2", "x", 0.4), row("a1", "y", 0.6)]
    found = scores.average_over_models(scores.frame(rows), {"a1": "a", "a2": "a", "b": "b"})
    assert [(r.predictions, r.case, r.dice) for r in found.itertuples()] == [
        ("a", "x", pytest.approx(0.3)), ("a", "y", 0.6), ("b", "x", 1.0),
    ]  # fmt: skip


def test_of_models_of_which_one_predicts_nothing_each_counts_its_own_way():
    """If the truth is empty, too, the first model is right and the second is not."""

    def found(label: str, case: str, dice: float, empty: int) -> dict:
        return {**row(label, case, dice), "both_empty": empty}

    each = scores.frame([
        found("a1", "x", 0.5, 0), found("a2", "x", 0.5, 0),
        found("a1", "y", 1.0, 1), found("a2", "y", 0.0, 0),
        found("a1", "z", 1.0, 1), found("a2", "z", 1.0, 1),
    ])  # fmt: skip
    unit_of = {"a1": "a", "a2": "a"}
    means, ways = scores.average_over_models(each, unit_of), scores.each_way(each, unit_of)
    (summary,) = scores.summarise(means, ways).itertuples()
    assert summary.both_empty == 1  # z, in which all are
    assert summary.mean_empty_counted == pytest.approx((0.5 + 0.5 + 1) / 3)
    assert summary.mean_empty_left_out == pytest.approx((0.5 + 0) / 2)
    wide = {r.empty: r for r in scores.spread_of_all(means, ways).itertuples() if r.metric == "dice"}
    assert (wide["counted"].mean, wide["left out"].mean) == pytest.approx((2 / 3, 0.25))
    assert (wide["counted"].both_empty, wide["left out"].n) == (1, 2)


def test_tables(tmp_path):
    found = scores.frame([row("p", "x", 0.25, 3.0), row("p", "y", 0.75)])
    tables.write_csv(found, tmp_path / "new" / "scores.csv")
    with open(tmp_path / "new" / "scores.csv", newline="") as file:
        first, second = csv.DictReader(file)
    assert list(first) == [*scores.KEYS, *columns.COLUMNS.names]
    assert (first["dice"], first["hd95_directed_mm"], second["hd95_directed_mm"]) == ("0.250000", "3.000000", "")
    assert b",native,WT,0.250000,0.250000,1.000000," in (tmp_path / "new" / "scores.csv").read_bytes()
    table = scores.to_markdown(scores.summarise(found), "Rules: these.")
    expected = ["| 2 | 0 | 0.500 ± 0.250 | - | 0.500 (0.375-0.625) | 0.500 |", "| 0.500 | 1.0000 | 3.0 |"]
    assert [line for line in table.splitlines() if "WT" in line] == [f"| p | native | WT {row}" for row in expected]
    assert table.endswith("\nRules: these.\n")
    assert "HD95" not in scores.to_markdown(scores.summarise(scores.frame([row("p", "x", 0.5)])))


def test_what_is_not_known_is_a_dash():
    """All cases are empty, and the rules leave them out: there is no mean, no median and no interval."""
    found = scores.frame([row("p", case, float("nan")) | {"both_empty": 1} for case in "xy"])
    assert "| p | native | WT | 2 | 2 | - | - | - | - |" in scores.to_markdown(scores.summarise(found))


def test_a_table_that_is_too_wide_becomes_several():
    made = tables.side_by_side(["name"], [["x"], ["y"]], {"one": ["1", "2"], "two": ["3", "4"]}, width=14)
    assert made == [
        f"| name | {head} |\n| --- | --- |\n| x | {a} |\n| y | {b} |\n"
        for head, a, b in (("one", "1", "2"), ("two", "3", "4"))
    ]
    assert len(tables.side_by_side(["name"], [["x"], ["y"]], {"one": ["1", "2"], "two": ["3", "4"]})) == 1
    assert tables.side_by_side(["name"], [["x"], ["y"]], {"one": ["1", ""]}) == [
        "| name | one |\n| --- | --- |\n| x | 1 |\n"
    ]


def test_a_column_with_a_unit_is_not_measured_in_the_cube():
    with pytest.raises(ValueError, match="only in native space"):
        columns.column("depth_mm", title="depth", unit="mm", spaces=columns.SPACES)(lambda *_: 0.0)
    assert "depth_mm" not in columns.COLUMNS


def test_a_column_that_somebody_adds_is_in_every_table_and_has_its_box_plot(tmp_path):
    @columns.column("volume_error_ml", title="volume error ml", unit="ml", larger_is_better=False, box_plot=True)
    def volume_error(pair):
        return abs(pair.counts[1] - pair.counts[2]) * pair.voxel_ml

    try:
        found = scores.frame(measured("native") + measured("cube"))
        report.write(report.ScoreReport(found=found, groups={}), tmp_path)
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
