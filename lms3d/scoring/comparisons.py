"""Two predictions of the same cases: is one better, or are they equal?

Per region: mean difference with its bootstrap interval, Wilcoxon's signed-rank test (corrected over the regions after Holm), and
whether the difference lies within a margin (two one-sided tests). Few cases cannot show anything: n of them give no p below
2 to the power of 1 - n, so over three regions at 5 % at least seven are needed. The test is of cases alone; the interval is of the
models of a group, too, so between groups one is better only where the interval leaves out 0 as well.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations

import numpy as np
import pandas as pd

from lms3d.scoring import statistics
from lms3d.scoring.columns import HEADLINE

LEVEL = 0.05

Units = Mapping[str, Sequence[str]]
"""Name in tables -> labels of predictions: one, or those of the models of a group."""


def matrix(
    scores: pd.DataFrame, labels: Sequence[str], *, space: str, region: str, column: str = HEADLINE
) -> pd.DataFrame:
    """(cases, models) of one region."""
    chosen = scores[(scores["space"] == space) & (scores["region"] == region) & scores["predictions"].isin(labels)]
    return chosen.pivot(index="case", columns="predictions", values=column)


def table(scores: pd.DataFrame, units: Units, *, margin: float, space: str = "native") -> pd.DataFrame:
    """A row for each pair of units and each region that both have: second minus first, of the headline column."""
    rows = []
    for first, second in combinations(units, 2):
        regions = _shared_regions(scores[scores["space"] == space], units[first], units[second])
        found = []
        for region in regions:
            one, other = (matrix(scores, units[unit], space=space, region=region) for unit in (first, second))
            cases = one.index.intersection(other.index)
            found.append(statistics.compare(one.loc[cases].to_numpy(), other.loc[cases].to_numpy(), margin=margin))
        corrected = statistics.holm([one.p for one in found])
        for region, one, p in zip(regions, found, corrected, strict=True):
            equal = one.equivalent and _enough(one, len(regions))
            rows.append({
                "first": first, "second": second, "space": space, "region": region, "metric": HEADLINE, "cases": one.cases,
                "difference": one.difference, "low": one.low, "high": one.high, "p": one.p, "p_holm": p,
                "margin": margin, "equivalent": equal, "verdict": _verdict(one, p, len(regions), margin),
            })  # fmt: skip
    return pd.DataFrame(rows)


def _shared_regions(scores: pd.DataFrame, first: Sequence[str], second: Sequence[str]) -> list[str]:
    """In the order of the scores."""
    one, other = (set(scores.loc[scores["predictions"].isin(labels), "region"]) for labels in (first, second))
    return [region for region in scores["region"].unique() if region in one & other]


def _enough(one: statistics.Comparison, regions: int) -> bool:
    return one.smallest_p * regions <= LEVEL


def _verdict(one: statistics.Comparison, p: float, regions: int, margin: float) -> str:
    if not _enough(one, regions):  # nor for equality: intervals of a few cases are far too narrow
        return f"too few cases: {regions} regions need {int(np.ceil(1 - np.log2(LEVEL / regions)))}"
    if one.equivalent:
        return f"equal within {margin:g}"
    if np.isnan(p):
        return "no difference shown"
    if p > LEVEL or (one.seeds > 1 and one.low <= 0 <= one.high):
        return "no difference shown"
    return "second is better" if one.difference > 0 else "first is better"
