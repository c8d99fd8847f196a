"""Intervals against closed forms, tests against scipy and textbook numbers."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from lms3d.scoring import comparisons, statistics, strata


def test_the_interval_of_a_mean_is_about_that_of_the_normal_law():
    values = np.random.default_rng(0).normal(3, 2, 400)
    low, high = statistics.interval_of_mean(values)
    half = 1.96 * values.std() / 20
    assert (low, high) == pytest.approx((values.mean() - half, values.mean() + half), abs=0.1 * half)
    assert statistics.interval_of_mean(values) == (low, high)


def test_what_is_missing_is_left_out():
    values = np.array([1.0, np.nan, 2.0, 3.0])
    low, high = statistics.interval_of_mean(values)
    assert 1 <= low < 2 < high <= 3
    assert np.isnan(statistics.interval_of_mean(np.array([1.0, np.nan]))).all()


def test_seeds_that_differ_widen_the_interval():
    cases = np.random.default_rng(0).normal(0, 1, (200, 1))
    alike = np.repeat(cases, 4, axis=1)
    shifted = alike + np.array([-1.0, -0.5, 0.5, 1.0])
    narrow, wide = (np.diff(statistics.interval_of_mean(table))[0] for table in (alike, shifted))
    assert narrow == pytest.approx(2 * 1.96 / np.sqrt(200), rel=0.15)
    of_seeds = 2 * 1.96 * np.sqrt(0.625 / 4)  # variance of the four shifts, as the bootstrap sees it
    assert wide == pytest.approx(np.hypot(narrow, of_seeds), rel=0.15)


def test_comparisons_are_those_of_scipy():
    random = np.random.default_rng(1)
    one = random.random(30)
    other = one + random.normal(0.05, 0.05, 30)
    found = statistics.compare(one, other, margin=0.01)
    assert found.p == stats.wilcoxon(other - one).pvalue < 0.01
    assert (found.cases, found.equivalent) == (30, False)
    assert found.low < found.difference < found.high
    same = statistics.compare(one, one, margin=0.01)
    assert (same.p, same.difference, same.equivalent) == (1, 0, True)


def test_holm_is_that_of_the_paper():
    assert statistics.holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    corrected = statistics.holm([0.01, float("nan"), 0.9])
    assert corrected[0] == 0.02
    assert np.isnan(corrected[1])


def table(labels, cases, region="WT", shift=0.0):
    random = np.random.default_rng(2)
    values = random.random(cases)
    return pd.DataFrame([
        {"predictions": label, "case": str(i), "space": "native", "region": region, "dice": values[i] + number * shift}
        for number, label in enumerate(labels) for i in range(cases)
    ])  # fmt: skip


@pytest.mark.parametrize(
    ("cases", "shift", "verdict"),
    [
        (5, 0.1, "too few cases: 1 regions need 6"),
        (30, 0.1, "second is better"),
        (30, -0.1, "first is better"),
        (30, 0.001, "equal within 0.01"),
    ],
)
def test_verdicts(cases, shift, verdict):
    found = comparisons.table(table(["a", "b"], cases, shift=shift), {"a": ["a"], "b": ["b"]}, margin=0.01)
    assert found["verdict"].tolist() == [verdict]


def test_three_regions_need_seven_cases():
    parts = [table(["a", "b"], 6, region, shift=0.1) for region in ("WT", "TC", "ET")]
    found = comparisons.table(pd.concat(parts), {"a": ["a"], "b": ["b"]}, margin=0.01)
    assert set(found["verdict"]) == {"too few cases: 3 regions need 7"}


def test_strata_are_thirds_by_volume_and_those_without():
    rows = [{"space": "native", "region": "ET", "case": str(i), "truth_ml": float(i)} for i in range(10)]
    of_case = strata.of_cases(pd.DataFrame(rows))
    assert of_case["0"] == "no ET"
    counts = pd.Series(of_case).value_counts()
    assert counts.tolist() == [3, 3, 3, 1]
    assert strata.of_cases(pd.DataFrame(rows[:3])) == {}
