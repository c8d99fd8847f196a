"""Intervals and paired tests of scores over cases.

Intervals are percentiles of the bootstrap (Efron and Tibshirani, 1993) over cases, and over the seeds of a group of models: both
are drawn, with replacement, so that neither averages the other's spread away.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

DRAWS = 2000
CONFIDENCE = 0.95
LEAST_CASES = 3
"""Of an interval. The percentiles of draws from two cases are these cases, whatever the population is like."""


def interval_of_mean(values: np.ndarray, *, seed: int = 0) -> tuple[float, float]:
    """values (cases,) or (cases, seeds), NaN left out -> ends of the interval of the mean; NaN for fewer than LEAST_CASES."""
    table = _by_seed(values)
    table = table[np.isfinite(table).any(axis=1)]
    if len(table) < LEAST_CASES:
        return float("nan"), float("nan")
    times, of_seeds = (_draws(size, seed + axis) for axis, size in enumerate(table.shape))
    known, filled = np.isfinite(table), np.nan_to_num(table)
    counts = ((times @ known) * of_seeds).sum(axis=1)
    means = ((times @ filled) * of_seeds).sum(axis=1)[counts > 0] / counts[counts > 0]
    low, high = _percentiles(means, [CONFIDENCE])
    return low, high


def _by_seed(values: np.ndarray) -> np.ndarray:
    """(cases,) or (cases, seeds), of which either may be none -> (cases, seeds)."""
    table = np.asarray(values, float)
    return table if table.ndim == 2 else table[:, None]


@lru_cache(maxsize=8)  # all metrics of a table have about as many cases
def _draws(size: int, seed: int) -> np.ndarray:
    """(DRAWS, size): how often each is drawn. The mean of a draw is then a product of matrices."""
    return np.random.default_rng((seed, size)).multinomial(size, np.full(size, 1 / size), DRAWS).astype(float)


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Of the same cases in two predictions: second minus first."""

    cases: int
    difference: float
    """Mean."""
    low: float
    high: float
    """The 95 % interval of the mean, over cases and over the seeds of either side."""
    seeds: int
    """Of the side that has fewer."""
    ranks: float
    """Which side the signed ranks favour, as a share of their sum: 1 if the second is never worse, -1 if the first is. It may
    contradict the mean: many cases a little better, one much worse. NaN for no case."""
    p: float
    """Wilcoxon's signed-rank test, two-sided, of the means over seeds: it knows nothing of how these differ. NaN for no case."""
    p_equal: float
    """Two one-sided tests: how likely a mean lies beyond the nearer end of the margin. NaN for fewer than LEAST_CASES."""


def smallest_p(cases: int) -> float:
    """The smallest p of the two-sided signed-rank test that so many cases can give: 2 to the power of 1 - n."""
    return min(1.0, 2.0 ** (1 - cases))


def compare(first: np.ndarray, second: np.ndarray, *, margin: float) -> Comparison:
    """first, second: (cases,), or (cases, seeds) of which the mean over seeds is compared; NaN leaves a case out."""
    tables = [_by_seed(values) for values in (first, second)]
    one, other = (_over_seeds(table) for table in tables)
    both = np.isfinite(other - one)
    difference, n = (other - one)[both], int(both.sum())
    drawn = _drawn_differences(*(table[both] for table in tables))
    low, high = _percentiles(drawn, [CONFIDENCE])
    return Comparison(
        cases=n, difference=float(difference.mean()) if n else float("nan"), low=low, high=high,
        seeds=min(table.shape[1] for table in tables), ranks=_favoured(difference), p=_wilcoxon(difference),
        p_equal=_beyond(drawn, n, margin),
    )  # fmt: skip


def _beyond(drawn: np.ndarray, cases: int, margin: float) -> float:
    """p of two one-sided tests (Schuirmann, 1987): the share of draws (DRAWS,) on or beyond one end of the margin, or what
    Student's law gives with their spread, if that is more.

    No share lies between 0 and 1 / DRAWS, so none is small enough for a hundred tests and more. The law has a tail without an end.
    """
    from scipy.stats import t

    if not len(drawn):
        return float("nan")
    share = max(np.mean(drawn >= margin), np.mean(drawn <= -margin))
    error = drawn.std() * np.sqrt(cases / (cases - 1))  # draws spread less than means of new cases do
    nearer = margin - abs(drawn.mean())
    return float(max(share, t.sf(nearer / error, cases - 1))) if error else float(share)


def _drawn_differences(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """(cases, seeds) each, the same cases -> (DRAWS,) mean differences: the cases are drawn once for both sides, the seeds of each
    side by themselves. Empty for fewer than LEAST_CASES."""
    if len(first) < LEAST_CASES:
        return np.empty(0)
    one, other = (
        _over_drawn_seeds(table, _draws(table.shape[1], side)) for side, table in enumerate((first, second), 1)
    )
    known = np.isfinite(other - one)  # a draw of seeds may miss the only one that has a case
    times = _draws(len(first), 0).T * known
    total = times.sum(axis=0)
    return (times * np.where(known, other - one, 0)).sum(axis=0)[total > 0] / total[total > 0]


def _over_drawn_seeds(table: np.ndarray, of_seeds: np.ndarray) -> np.ndarray:
    """(cases, seeds), (DRAWS, seeds) -> (cases, DRAWS): means over the seeds of a draw, NaN left out."""
    known = np.isfinite(table)
    total = known @ of_seeds.T
    return np.where(total > 0, np.where(known, table, 0) @ of_seeds.T / np.maximum(total, 1), np.nan)


def _percentiles(means: np.ndarray, confidences: Sequence[float]) -> list[float]:
    """Ends of the intervals, lower and upper of each; NaN for no draw."""
    shares = [50 * (1 + sign * one) for one in confidences for sign in (-1, 1)]
    return [float(one) for one in np.percentile(means, shares)] if len(means) else [float("nan")] * len(shares)


def holm(p: Sequence[float]) -> list[float]:
    """p values of a family of tests, corrected (Holm, 1979); NaN stays, and does not count."""
    known = [at for at in np.argsort(p, kind="stable") if not np.isnan(p[at])]
    corrected, largest = [float("nan")] * len(p), 0.0
    for rank, at in enumerate(known):
        largest = max(largest, min(1.0, (len(known) - rank) * p[at]))
        corrected[at] = largest
    return corrected


def _wilcoxon(difference: np.ndarray) -> float:
    from scipy.stats import wilcoxon

    if not len(difference):
        return float("nan")
    return float(wilcoxon(difference).pvalue) if difference.any() else 1.0


def _favoured(difference: np.ndarray) -> float:
    """(sum of the positive signed ranks - sum of the negative ones) / sum of all, ties at their mean rank, zeros left out."""
    from scipy.stats import rankdata

    moved = difference[difference != 0]
    if not len(moved):
        return 0.0 if len(difference) else float("nan")
    ranks = rankdata(np.abs(moved))
    return float((np.sign(moved) * ranks).sum() / ranks.sum())


def _over_seeds(table: np.ndarray) -> np.ndarray:
    """(cases, seeds) -> (cases,), NaN left out."""
    known = np.isfinite(table)
    total = known.sum(axis=1)
    return np.where(total > 0, np.where(known, table, 0).sum(axis=1) / np.maximum(total, 1), np.nan)
