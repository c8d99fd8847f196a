"""Compares two predictions of the same cases: is one better, or are they equal?

For each region there are the mean difference with its bootstrap interval, Wilcoxon's signed-rank test, and two one-sided tests of
whether the difference lies within a margin. The signed-rank tests of a page are one family and its tests of equality another. Each
family is corrected after Holm over every pair of predictions and every region of the page's tables (`corrected`).

VERDICT-1  "Better" needs three things: p below 5 %, the 95 % interval on one side of 0, and the signed ranks on the same side. The
           test looks at ranks, but the difference is a mean; each alone may name another winner.
VERDICT-2  If the models of either side have only one seed, the verdict says "one seed" and holds for these cases only: another seed
           of the same network may differ by as much. Folds are no seeds, and models whose seed is unknown count as one.
VERDICT-3  Few cases cannot show anything: n cases give no p below 2 to the power of 1 - n. So three tests at 5 % need at least
           seven cases. "Better" needs as many cases that differ, since equal ones do not count in the test.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd

from lms3d.scoring import statistics
from lms3d.scoring.columns import HEADLINE

LEVEL = 0.05
ONE_SEED = "on these cases (one seed)"

Units = Mapping[str, Sequence[str]]
"""Name in tables -> labels of predictions: one label, or one for each model of a group."""

Seeds = Mapping[str, int]
"""Label of predictions -> the seed of its model, if that is known."""


def matrix(
    scores: pd.DataFrame, labels: Sequence[str], *, space: str, region: str, column: str = HEADLINE
) -> pd.DataFrame:
    """The values of a column in one region: a row for each case, a column for each model."""
    chosen = scores[(scores["space"] == space) & (scores["region"] == region) & scores["predictions"].isin(labels)]
    return chosen.pivot(index="case", columns="predictions", values=column)


def table(
    scores: pd.DataFrame, units: Units, *, margin: float, space: str = "native", seeds: Seeds = MappingProxyType({})
) -> pd.DataFrame:
    """A row for each pair of units and each region that both have: the second minus the first, in the headline column."""
    return corrected(pd.DataFrame([
        {
            "first": first, "second": second, "space": space, "region": region, "metric": HEADLINE, "cases": result.cases,
            "differing": result.differing, "seeds": min(_count(seeds, units[first]), _count(seeds, units[second])),
            "difference": result.difference, "low": result.low, "high": result.high, "ranks": result.ranks,
            "p": result.p, "p_equal": result.p_equal, "margin": margin,
        }
        for first, second, region, result in _compared(scores, units, margin, space)
    ]))  # fmt: skip


def corrected(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows of one table, or of all tables of a page, corrected together: the tests of differences as one family, the tests of
    equality as another. Adds the columns tests, p_holm, equivalent and verdict."""
    if not len(rows):
        return rows
    tests = int(rows["p"].notna().sum())
    family = rows.assign(tests=tests, p_holm=statistics.holm(rows["p"].tolist()))
    equal = np.array(statistics.holm(rows["p_equal"].tolist())) <= LEVEL
    family["equivalent"] = equal & [_enough(cases, tests) for cases in rows["cases"]]
    family["verdict"] = [_verdict(row) for row in family.to_dict("records")]
    return family


def _compared(
    scores: pd.DataFrame, units: Units, margin: float, space: str
) -> Iterator[tuple[str, str, str, statistics.Comparison]]:
    """Yields (first, second, region, comparison) for each pair of units and each region that both have."""
    for first, second in combinations(units, 2):
        for region in _shared_regions(scores[scores["space"] == space], units[first], units[second]):
            sides = [matrix(scores, units[unit], space=space, region=region) for unit in (first, second)]
            cases = sides[0].index.intersection(sides[1].index)
            values = (side.loc[cases].to_numpy() for side in sides)
            yield first, second, region, statistics.compare(*values, margin=margin)


def _count(seeds: Seeds, labels: Sequence[str]) -> int:
    """The number of seeds of the models with these labels (VERDICT-2)."""
    return max(1, len({seeds[label] for label in labels if label in seeds}))


def _shared_regions(scores: pd.DataFrame, first: Sequence[str], second: Sequence[str]) -> list[str]:
    """The regions that both have, in the order of the scores."""
    of_first, of_second = (set(scores.loc[scores["predictions"].isin(labels), "region"]) for labels in (first, second))
    return [region for region in scores["region"].unique() if region in of_first & of_second]


def _enough(cases: int, tests: int) -> bool:
    """Whether so many cases can show a difference in so many tests (VERDICT-3)."""
    return statistics.smallest_p(cases) * tests <= LEVEL


def _verdict(row: Mapping[str, Any]) -> str:
    tests, favoured = row["tests"], _favoured(row)
    if not row["cases"]:
        return "no cases"
    family = f"{'1 test needs' if tests == 1 else f'{tests} tests need'} {int(np.ceil(1 - np.log2(LEVEL / tests)))}"
    if not _enough(row["cases"], tests):  # also for equality: intervals of a few cases are far too narrow
        return f"too few cases: {family}"
    if row["equivalent"]:
        verdict = f"equal within {row['margin']:g}"
    elif not _enough(row["differing"], tests):
        verdict = f"too few cases differ: {family}"
    elif row["p_holm"] <= LEVEL and favoured:  # VERDICT-1
        verdict = f"{favoured} is better"
    else:
        verdict = "no difference shown"
    return verdict if row["seeds"] > 1 else f"{verdict} {ONE_SEED}"  # VERDICT-2


def _favoured(row: Mapping[str, Any]) -> str:
    """ "first" or "second", if the interval lies on one side of 0 and the ranks favour the same side; else ""."""
    if row["low"] > 0 and row["ranks"] > 0:
        return "second"
    return "first" if row["high"] < 0 and row["ranks"] < 0 else ""
