"""Two predictions of the same cases: is one better, or are they equal?

Per region: mean difference with its bootstrap interval, Wilcoxon's signed-rank test, and whether the difference lies within a
margin (two one-sided tests). All tests of a page are one family: both kinds are corrected after Holm over every pair of
predictions and every region of its tables (`corrected`).

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
from typing import Any

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
    return corrected(pd.DataFrame([
        {
            "first": first, "second": second, "space": space, "region": region, "metric": HEADLINE, "cases": one.cases,
            "seeds": one.seeds, "difference": one.difference, "low": one.low, "high": one.high, "ranks": one.ranks, "p": one.p,
            "p_equal": one.p_equal, "margin": margin,
        }
        for first, second, region, one in _compared(scores, units, margin, space)
    ]))  # fmt: skip


def corrected(rows: pd.DataFrame) -> pd.DataFrame:
    """`rows`, of one table or of all tables of a page, with what follows from their being one family: tests, p_holm, equivalent,
    verdict."""
    if not len(rows):
        return rows
    tests = int(rows["p"].notna().sum())
    found = rows.assign(tests=tests, p_holm=statistics.holm(rows["p"].tolist()))
    equal = np.array(statistics.holm(rows["p_equal"].tolist())) <= LEVEL
    found["equivalent"] = equal & [_enough(cases, tests) for cases in rows["cases"]]
    found["verdict"] = [_verdict(row) for row in found.to_dict("records")]
    return found


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


def _enough(cases: int, tests: int) -> bool:
    """VERDICT-3."""
    return statistics.smallest_p(cases) * tests <= LEVEL


def _verdict(row: Mapping[str, Any]) -> str:
    tests, favoured = row["tests"], _favoured(row)
    if not _enough(row["cases"], tests):  # nor for equality: intervals of a few cases are far too narrow
        family = "1 test needs" if tests == 1 else f"{tests} tests need"
        return f"too few cases: {family} {int(np.ceil(1 - np.log2(LEVEL / tests)))}"
    if row["equivalent"]:
        found = f"equal within {row['margin']:g}"
    elif row["p_holm"] <= LEVEL and favoured:  # VERDICT-1
        found = f"{favoured} is better"
    else:
        found = "no difference shown"
    return found if row["seeds"] > 1 else f"{found} {ONE_SEED}"  # VERDICT-2


def _favoured(row: Mapping[str, Any]) -> str:
    """ "first" or "second", if the interval lies on one side of 0 and the ranks point to the same side; else ""."""
    if row["low"] > 0 and row["ranks"] > 0:
        return "second"
    return "first" if row["high"] < 0 and row["ranks"] < 0 else ""
