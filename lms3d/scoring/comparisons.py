"""Two predictions of the same cases: is one better, or are they equal?

Per region: mean difference with its bootstrap interval, Wilcoxon's signed-rank test, and whether the difference lies within a
margin (two one-sided tests). All tests of a table are one family: both kinds are corrected after Holm over every pair of
predictions and every region in it.

VERDICT-1  "Better" asks for three things: p below 5 %, the 95 % interval on one side of 0, the signed ranks on that same side. The
           test looks at ranks and the difference is a mean: alone, they may name different winners.
VERDICT-2  If either side has one model, the verdict says "one seed" and speaks of these cases alone: another seed of the same
           network may differ by as much.
VERDICT-3  Few cases cannot show anything: n of them give no p below 2 to the power of 1 - n, so three tests at 5 % need at
           least seven.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations

import numpy as np
import pandas as pd

from lms3d.scoring import statistics
from lms3d.scoring.columns import HEADLINE

LEVEL = 0.05
ONE_SEED = "on these cases (one seed)"

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
    compared = list(_compared(scores, units, margin, space))
    found = [one for *_, one in compared]
    different, equal = (statistics.holm(p) for p in ([one.p for one in found], [one.p_equal for one in found]))
    tests = sum(not np.isnan(one.p) for one in found)
    rows = []
    for (first, second, region, one), p, p_equal in zip(compared, different, equal, strict=True):
        equivalent = p_equal <= LEVEL and _enough(one, tests)
        rows.append({
            "first": first, "second": second, "space": space, "region": region, "metric": HEADLINE, "cases": one.cases,
            "seeds": one.seeds, "difference": one.difference, "low": one.low, "high": one.high, "ranks": one.ranks, "p": one.p,
            "p_holm": p, "tests": tests, "margin": margin, "equivalent": equivalent,
            "verdict": _verdict(one, p, tests, margin if equivalent else None),
        })  # fmt: skip
    return pd.DataFrame(rows)


def _compared(
    scores: pd.DataFrame, units: Units, margin: float, space: str
) -> Iterator[tuple[str, str, str, statistics.Comparison]]:
    """(first, second, region, comparison)."""
    for first, second in combinations(units, 2):
        for region in _shared_regions(scores[scores["space"] == space], units[first], units[second]):
            one, other = (matrix(scores, units[unit], space=space, region=region) for unit in (first, second))
            cases = one.index.intersection(other.index)
            values = (side.loc[cases].to_numpy() for side in (one, other))
            yield first, second, region, statistics.compare(*values, margin=margin)


def _shared_regions(scores: pd.DataFrame, first: Sequence[str], second: Sequence[str]) -> list[str]:
    """In the order of the scores."""
    one, other = (set(scores.loc[scores["predictions"].isin(labels), "region"]) for labels in (first, second))
    return [region for region in scores["region"].unique() if region in one & other]


def _enough(one: statistics.Comparison, tests: int) -> bool:
    """VERDICT-3."""
    return one.smallest_p * tests <= LEVEL


def _verdict(one: statistics.Comparison, p: float, tests: int, margin: float | None) -> str:
    """margin: within which both are equal; None if they are not. p: corrected."""
    if not _enough(one, tests):  # nor for equality: intervals of a few cases are far too narrow
        family = "1 test needs" if tests == 1 else f"{tests} tests need"
        return f"too few cases: {family} {int(np.ceil(1 - np.log2(LEVEL / tests)))}"
    if margin is not None:
        found = f"equal within {margin:g}"
    elif p <= LEVEL and one.favours:  # VERDICT-1
        found = f"{'second' if one.favours > 0 else 'first'} is better"
    else:
        found = "no difference shown"
    return found if one.seeds > 1 else f"{found} {ONE_SEED}"  # VERDICT-2
