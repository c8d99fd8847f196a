"""Intervals are compared with closed forms, and tests with scipy and numbers of a textbook."""

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
    assert found.p == pytest.approx(stats.wilcoxon(other - one, method="exact").pvalue, rel=1e-12)
    assert found.p < 0.01
    assert found.cases == 30
    assert found.p_equal > 0.9
    assert found.low < found.difference < found.high
    same = statistics.compare(one, one, margin=0.01)
    assert (same.p, same.difference, same.ranks) == (1, 0, 0)
    assert same.p_equal < 0.001


@pytest.mark.parametrize("equal", [0, 4, 18])
def test_the_p_of_ties_and_zeros_is_exact(equal):
    """scipy's permutation test counts every assignment of signs. With ties or zeros its default from 14 cases on is normal."""
    changed = np.array([1, 1, 2, -1, 3, 3, 2, 1, 1, -2, 4, 1]) / 10
    every = stats.wilcoxon(changed, method=stats.PermutationMethod(n_resamples=2**12)).pvalue
    found = statistics.compare(np.zeros(12 + equal), np.append(changed, np.zeros(equal)), margin=0.01)
    assert found.p == pytest.approx(every, rel=1e-12)
    assert (found.cases, found.differing) == (12 + equal, 12)


def test_many_cases_have_the_normal_law():
    difference = np.random.default_rng(0).normal(0.05, 1, statistics.MOST_EXACT + 1)
    exact, normal = (statistics.compare(0 * part, part, margin=0.01).p for part in (difference[:-1], difference))
    assert normal == stats.wilcoxon(difference, method="asymptotic").pvalue
    assert exact == pytest.approx(stats.wilcoxon(difference[:-1], method="exact").pvalue, rel=1e-9)


def test_the_last_bit_of_a_sum_makes_no_difference():
    """0.3 - 0.2 and 0.2 - 0.1 are ties, and scores that differ by 1e-16 are equal, whatever the margin is."""
    one, other = np.array([0.2, 0.1, 0.4, 0.2, 0.3, 0.6]), np.array([0.3, 0.2, 0.5, 0.1, 0.2, 0.4])
    assert statistics.compare(one, other, margin=0.01).ranks == pytest.approx((3 * 3 - 2 * 3 - 6) / 21)
    base = np.random.default_rng(0).uniform(0.5, 0.9, 20)
    found = scores_of(a=base, b=base + 1e-16 * np.arange(1, 21))
    (row,) = comparisons.table(found, {"a": ["a"], "b": ["b"]}, margin=0.0).to_dict("records")
    assert (row["p"], row["difference"], row["low"], row["high"]) == (1, 0, 0, 0)
    assert "better" not in row["verdict"]


@pytest.mark.parametrize("seeds", [1, 2, 3])
def test_the_verdict_does_not_hang_on_the_order_of_the_sides(seeds):
    """Half of these pairs are near the limit of 5 %."""
    for number in range(40):
        random = np.random.default_rng(number)
        base = random.uniform(0.5, 0.9, (int(random.integers(8, 30)), 1))
        one, other = (
            base + random.normal(0, 0.03, (len(base), many)) + random.normal(shift, 0.01, many)
            for shift, many in ((0.0, 3), (0.015, seeds))
        )
        there, back = (statistics.compare(*pair, margin=0.005) for pair in ((one, other), (other, one)))
        assert (back.low, back.high) == pytest.approx((-there.high, -there.low), abs=1e-12)
        assert (back.p, back.p_equal) == pytest.approx((there.p, there.p_equal), rel=1e-9)


def test_two_one_sided_tests_are_those_of_the_normal_law():
    random = np.random.default_rng(4)
    one, moved = random.random(400), random.normal(0.004, 0.05, 400)
    found = statistics.compare(one, one + moved, margin=0.01)
    error = moved.std() / 20
    beyond = max(stats.norm.sf((0.01 - moved.mean()) / error), stats.norm.sf((0.01 + moved.mean()) / error))
    assert found.p_equal == pytest.approx(beyond, abs=0.01)


def test_ranks_are_those_of_the_signed_rank_test():
    one = np.array([1.0, 2.0, -3.0, 0.0, 4.0])
    assert statistics.compare(np.zeros(5), one, margin=0.01).ranks == pytest.approx((1 + 2 - 3 + 4) / 10)
    assert statistics.compare(np.zeros(5), -one, margin=0.01).ranks == pytest.approx(-0.4)
    assert statistics.compare(np.zeros(5), np.abs(one), margin=0.01).ranks == 1


def models(shifts, cases=40):
    """(cases, models) whose means differ by `shifts`, and hardly from case to case."""
    random = np.random.default_rng(3)
    return random.random((cases, 1)) + np.array(shifts) + random.normal(0, 0.001, (cases, len(shifts)))


def test_the_interval_of_a_difference_is_over_models_too():
    found = statistics.compare(models([0.0, 0.0]), models([-0.05, 0.07]), margin=0.02)
    assert found.difference == pytest.approx(0.01, abs=1e-3)
    assert found.low < -0.04  # both draws may be the worse model
    assert found.high > 0.06
    assert found.p_equal > 0.05
    alike = statistics.compare(models([0.0, 0.0]), models([0.01, 0.01]), margin=0.02)
    assert alike.p_equal < 0.05
    assert alike.high - alike.low < 0.002


def test_a_difference_of_single_models_has_the_interval_of_its_mean():
    one, other = models([0.0]), models([0.02])[::-1]
    found = statistics.compare(one, other, margin=0.01)
    assert (found.low, found.high) == pytest.approx(statistics.interval_of_mean(other - one))


def test_a_case_that_only_one_model_has_is_compared_by_it():
    one, other = models([0.0, 0.0], 8), models([0.1, 0.1], 8)
    other[0, 1] = one[1] = np.nan
    found = statistics.compare(one, other, margin=0.01)
    assert found.cases == 7
    assert 0.09 < found.low < found.difference < found.high < 0.11
    assert np.isnan(statistics.compare(one[:2], other[:2], margin=0.01).low)


def test_models_that_disagree_show_no_difference():
    values = {"a1": models([0.0]), "a2": models([0.0]), "b1": models([-0.05]), "b2": models([0.2])}
    rows = [
        {"predictions": label, "case": str(i), "space": "native", "region": "WT", "dice": float(value[0])}
        for label, of_cases in values.items() for i, value in enumerate(of_cases)
    ]  # fmt: skip
    seeds = {label: int(label[-1]) for label in values}
    found = comparisons.table(pd.DataFrame(rows), {"a": ["a1", "a2"], "b": ["b1", "b2"]}, margin=0.01, seeds=seeds)
    assert found["p_holm"].item() < 0.001
    assert found["verdict"].item() == "no difference shown"


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
        (5, 0.1, "too few cases: 1 test needs 6"),
        (2, 0.001, "too few cases: 1 test needs 6"),
        (30, 0.1, f"second is better {comparisons.ONE_SEED}"),
        (30, -0.1, f"first is better {comparisons.ONE_SEED}"),
        (30, 0.001, f"equal within 0.01 {comparisons.ONE_SEED}"),
    ],
)
def test_verdicts(cases, shift, verdict):
    found = comparisons.table(table(["a", "b"], cases, shift=shift), {"a": ["a"], "b": ["b"]}, margin=0.01)
    assert found["verdict"].tolist() == [verdict]
    assert found["equivalent"].tolist() == [verdict.startswith("equal")]


def scores_of(**values):
    """Label -> differences from the first, case by case."""
    return pd.concat([
        pd.DataFrame({"predictions": label, "case": map(str, range(len(of))), "space": "native", "region": "WT", "dice": of})
        for label, of in values.items()
    ])  # fmt: skip


def verdict_of(found, **units):
    """The verdict on models whose labels end in their seeds."""
    seeds = {label: int(label[-1]) for labels in units.values() for label in labels if label[-1].isdigit()}
    return comparisons.table(found, units, margin=0.01, seeds=seeds)["verdict"].item()


@pytest.mark.parametrize(
    ("changed", "p", "verdict"),
    [
        (6, 2**-5, "second is better"),
        (5, 2**-4, "too few cases differ: 1 test needs 6"),
        (1, 1, "too few cases differ: 1 test needs 6"),
    ],
)
def test_cases_without_a_difference_show_none(changed, p, verdict):
    """24 cases of which a few change from 0 to 1. The normal law would say 0.014 for six."""
    found = scores_of(a=np.zeros(24), b=np.repeat([1.0, 0.0], [changed, 24 - changed]))
    (row,) = comparisons.table(found, {"a": ["a"], "b": ["b"]}, margin=0.01).to_dict("records")
    assert (row["p"], row["differing"]) == (p, changed)
    assert row["verdict"] == f"{verdict} {comparisons.ONE_SEED}"


def test_three_regions_need_more_than_six_changed_cases():
    parts = [
        scores_of(a=np.zeros(24), b=np.repeat([1.0, 0.0], [6, 18])).assign(region=region)
        for region in ("WT", "TC", "ET")
    ]
    found = comparisons.table(pd.concat(parts), {"a": ["a"], "b": ["b"]}, margin=0.01)
    assert set(found["verdict"]) == {f"too few cases differ: 3 tests need 7 {comparisons.ONE_SEED}"}


def test_without_cases_there_is_no_verdict():
    nothing = scores_of(a=np.full(5, np.nan), b=np.full(5, np.nan))
    units = {"a": ["a"], "b": ["b"]}
    assert comparisons.table(nothing, units, margin=0.01)["verdict"].tolist() == ["no cases"]
    both = pd.concat([nothing, table(["a", "b"], 30, "TC", shift=0.1)])
    assert comparisons.table(both, units, margin=0.01)["verdict"].tolist() == [
        "no cases", f"second is better {comparisons.ONE_SEED}",
    ]  # fmt: skip


def test_the_winner_of_ranks_is_not_the_loser_of_means():
    """17 of 18 cases a little better, one lost: the test says p < 0.01, the mean is worse. Neither side wins (VERDICT-1)."""
    difference = np.append(np.linspace(0.01, 0.03, 17), -1.0)
    found = statistics.compare(np.zeros(18), difference, margin=0.01)
    assert found.p < 0.01
    assert found.difference < 0 < found.ranks
    for seeds in (1, 2):
        labels = {side: [f"{side}{seed}" for seed in range(seeds)] for side in "ab"}
        values = {label: (difference if side == "b" else 0 * difference) for side in "ab" for label in labels[side]}
        assert verdict_of(scores_of(**values), **labels).startswith("no difference shown")


def test_an_interval_across_0_shows_no_difference_of_single_models_either():
    """The ranks and the mean agree, and p is small, but one case decides the mean."""
    difference = np.append(np.linspace(0.01, 0.02, 17), -0.2)
    found = statistics.compare(np.zeros(18), difference, margin=0.01)
    assert found.p < 0.05
    assert found.difference > 0 > found.low
    assert (
        verdict_of(scores_of(a=0 * difference, b=difference), a=["a"], b=["b"])
        == "no difference shown on these cases (one seed)"
    )


def test_a_verdict_needs_two_seeds_on_either_side_to_speak_of_more_than_these_cases():
    found = table(["a1", "a2", "b1", "b2"], 30, shift=0.1)
    said = {
        verdict_of(found, a=["a1"], b=["b1", "b2"]), verdict_of(found, a=["a1", "a2"], b=["b1"]),
        verdict_of(found, a=["a1"], b=["b1"]),
    }  # fmt: skip
    assert said == {"second is better on these cases (one seed)"}
    found.loc[found["predictions"] == "a2", "dice"] -= 0.1
    assert verdict_of(found, a=["a1", "a2"], b=["b1", "b2"]) == "second is better"


@pytest.mark.parametrize(
    ("seeds", "counted"),
    [
        ({"a1": 1, "a2": 1, "b1": 1, "b2": 2}, 1),  # two folds of one seed
        ({"a1": 1, "b1": 1, "b2": 2}, 1),
        ({}, 1),
        ({"a1": 1, "a2": 2, "b1": 1, "b2": 2}, 2),
    ],
)
def test_models_of_one_seed_or_of_unknown_seeds_say_nothing_about_other_seeds(seeds, counted):
    found = table(["a1", "a2", "b1", "b2"], 30, shift=0.1)
    found.loc[found["predictions"] == "a2", "dice"] -= 0.1
    (row,) = comparisons.table(found, {"a": ["a1", "a2"], "b": ["b1", "b2"]}, margin=0.01, seeds=seeds).to_dict(
        "records"
    )
    assert row["seeds"] == counted
    assert row["verdict"] == ("second is better" if counted > 1 else f"second is better {comparisons.ONE_SEED}")


def test_all_tests_of_a_page_are_one_family():
    parts = [table(["a", "b", "c"], 8, region, shift=0.1) for region in ("WT", "TC", "ET")]
    found = comparisons.table(pd.concat(parts), {"a": ["a"], "b": ["b"], "c": ["c"]}, margin=0.01)
    assert len(found) == 9
    assert found["p"].tolist() == pytest.approx([2**-7] * 9)
    assert found["p_holm"].tolist() == pytest.approx([9 * 2**-7] * 9)  # three regions alone would leave 3 * 2**-7
    assert set(found["verdict"]) == {"too few cases: 9 tests need 9"}


def test_tables_of_one_page_are_corrected_together():
    """Two tables of one page are corrected together: a difference that one table alone shows is not shown beside another table."""
    one = comparisons.table(table(["a", "b"], 6, shift=0.1), {"a": ["a"], "b": ["b"]}, margin=0.01)
    assert one["verdict"].tolist() == [f"second is better {comparisons.ONE_SEED}"]
    both = comparisons.corrected(pd.concat([one, one], ignore_index=True))
    assert both["p_holm"].tolist() == [2 * one["p"].item()] * 2
    assert set(both["verdict"]) == {"too few cases: 2 tests need 7"}


def test_equality_is_corrected_too():
    """One of two regions is equal at 5 %, which is not enough with two tests."""
    random = np.random.default_rng(0)
    difference = random.normal(0, 0.05, 100)
    margin = 1.9 * difference.std() / 10 + abs(difference.mean())
    one = statistics.compare(np.zeros(100), difference, margin=margin)
    assert 0.025 < one.p_equal < 0.05
    found = scores_of(a=0 * difference, b=difference)
    wide = found.assign(region="TC", dice=found["dice"] * 4)
    alone, both = (
        comparisons.table(one, {"a": ["a"], "b": ["b"]}, margin=margin) for one in (found, pd.concat([found, wide]))
    )
    assert (alone["equivalent"].tolist(), both["equivalent"].tolist()) == ([True], [False, False])


def test_many_tests_of_identical_predictions_find_all_equal():
    """168 tests need a p below 0.0003. The only share of 2,000 draws below that is 0."""
    labels = [str(number) for number in range(8)]
    parts = [table(labels, 14, region) for region in ("WT", "TC", "NETC", "SNFH", "ET", "RC")]
    found = comparisons.table(pd.concat(parts), {label: [label] for label in labels}, margin=0.01)
    assert len(found) == 168
    assert set(found["verdict"]) == {f"equal within 0.01 {comparisons.ONE_SEED}"}


@pytest.mark.parametrize(("cases", "spread"), [(14, 0.01), (30, 0.01), (100, 0.02)])
def test_a_rare_mean_beyond_the_margin_is_as_likely_as_students_law_says(cases, spread):
    moved = np.random.default_rng(5).normal(0, spread, cases)
    found = statistics.compare(np.zeros(cases), moved, margin=0.01)
    nearer = (0.01 - abs(moved.mean())) / stats.sem(moved)
    assert found.p_equal == pytest.approx(stats.t.sf(nearer, cases - 1), rel=0.2)
    assert found.p_equal < 0.0015


@pytest.mark.parametrize("other", [["b"], ["b1", "b2"]], ids=["run", "group"])
def test_a_region_that_one_side_has_not_is_not_compared(other):
    found = pd.concat([table(["a", *other], 6, "WT", shift=0.1), table(["a"], 6, "RC")])
    compared = comparisons.table(found, {"a": ["a"], "b": other}, margin=0.01)
    assert compared["region"].tolist() == ["WT"]
    assert compared["verdict"].tolist() == [
        f"second is better {comparisons.ONE_SEED}"
    ]  # of one region, for which six cases are enough
    nothing = found[(found["region"] == "RC") | (found["predictions"] != "a")]
    assert comparisons.table(nothing, {"a": ["a"], "b": other}, margin=0.01).empty


def test_of_nothing_there_is_no_interval_and_no_difference():
    nothing = statistics.compare(np.empty((0, 0)), np.empty((0, 2)), margin=0.01)
    assert nothing.cases == 0
    assert np.isnan([nothing.p, nothing.p_equal, nothing.ranks, nothing.difference, nothing.low]).all()
    assert np.isnan(statistics.compare(np.empty((3, 0)), np.ones(3), margin=0.01).difference)
    assert np.isnan(statistics.interval_of_mean(np.empty((3, 0)))).all()


def test_three_regions_need_seven_cases():
    parts = [table(["a", "b"], 6, region, shift=0.1) for region in ("WT", "TC", "ET")]
    found = comparisons.table(pd.concat(parts), {"a": ["a"], "b": ["b"]}, margin=0.01)
    assert set(found["verdict"]) == {"too few cases: 3 tests need 7"}


def test_strata_are_thirds_by_volume_and_those_without():
    rows = [{"space": "native", "region": "ET", "case": str(i), "truth_ml": float(i)} for i in range(10)]
    of_case = strata.of_cases(pd.DataFrame(rows))
    assert of_case["0"] == "no ET"
    counts = pd.Series(of_case).value_counts()
    assert counts.tolist() == [3, 3, 3, 1]
    assert strata.of_cases(pd.DataFrame(rows[:3])) == {}
