"""Intervals and paired tests of scores over cases.

Intervals are percentiles of the bootstrap (Efron and Tibshirani, 1993) over cases, and over the seeds of a group of models. Both
are drawn with replacement, so that the interval covers the spread of both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

DRAWS = 2000
CONFIDENCE = 0.95
LEAST_CASES = 3
"""The fewest cases for an interval. The percentiles of draws from two cases are these two cases, whatever the population is
like."""
DECIMALS = 12
"""The decimals of a difference of scores. Otherwise 0.3 - 0.2 and 0.2 - 0.1 had different ranks, and scores that differ by the last
bit of a sum would count as better."""
MOST_EXACT = 500
"""The most cases with the exact null distribution of signed ranks. It takes 0.1 s; for more, the normal law is as good."""


def interval_of_mean(values: np.ndarray, *, seed: int = 0) -> tuple[float, float]:
    """(low, high) end of the interval of the mean; NaN for fewer than LEAST_CASES. values: (cases,) or (cases, seeds); NaNs are
    left out."""
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
    """The values as (cases, seeds), of (cases,) or (cases, seeds); either number may be 0."""
    table = np.asarray(values, float)
    return table if table.ndim == 2 else table[:, None]


@lru_cache(maxsize=8)  # the metrics of a table have few different numbers of cases
def _draws(size: int, seed: int) -> np.ndarray:
    """The number of times that each item is drawn, (DRAWS, size). The mean of a draw is then a product of matrices."""
    return np.random.default_rng((seed, size)).multinomial(size, np.full(size, 1 / size), DRAWS).astype(float)


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The comparison of two predictions of the same cases: the second minus the first."""

    cases: int
    differing: int
    """The cases whose difference is not 0. Only these count in the signed-rank test."""
    difference: float
    """The mean difference."""
    low: float
    high: float
    """The 95 % interval of the mean, over cases and over the seeds of either side."""
    ranks: float
    """The side that the signed ranks favour, as a share of their sum: 1 if the second is never worse, -1 if the first never is. It
    may contradict the mean, if many cases are a little better and one is much worse. NaN without cases."""
    p: float
    """The p of Wilcoxon's two-sided signed-rank test of the means over seeds, exact with ties and zeros, too. The test ignores the
    spread between seeds. NaN without cases."""
    p_equal: float
    """The p of two one-sided tests: how likely a mean lies beyond the nearer end of the margin. NaN for fewer than LEAST_CASES."""


def smallest_p(cases: int) -> float:
    """The smallest p that so many cases can give in the two-sided signed-rank test, if all of them differ: 2 to the power of
    1 - n."""
    return min(1.0, 2.0 ** (1 - cases))


def compare(first: np.ndarray, second: np.ndarray, *, margin: float) -> Comparison:
    """Compares the means over seeds of the same cases. first, second: (cases,) or (cases, seeds); a NaN leaves a case out."""
    tables = [_by_seed(values) for values in (first, second)]
    of_first, of_second = (_over_seeds(table) for table in tables)
    both = np.isfinite(of_second - of_first)
    difference, n = np.round((of_second - of_first)[both], DECIMALS), int(both.sum())
    drawn = np.round(_drawn_differences(*(table[both] for table in tables)), DECIMALS)
    low, high = _percentiles(drawn, [CONFIDENCE])
    return Comparison(
        cases=n, differing=int(np.count_nonzero(difference)), difference=float(difference.mean()) if n else float("nan"),
        low=low, high=high, ranks=_favoured(difference), p=_wilcoxon(difference), p_equal=_beyond(drawn, n, margin),
    )  # fmt: skip


def _beyond(drawn: np.ndarray, cases: int, margin: float) -> float:
    """The p of two one-sided tests (Schuirmann, 1987): the share of draws (DRAWS,) on or beyond one end of the margin, or the p of
    Student's t distribution with the draws' spread, if that is larger.

    The smallest share above 0 is 1 / DRAWS, which is too coarse for a hundred tests and more. The t distribution has an infinite
    tail.
    """
    from scipy.stats import t

    if not len(drawn):
        return float("nan")
    share = max(np.mean(drawn >= margin), np.mean(drawn <= -margin))
    error = drawn.std() * np.sqrt(cases / (cases - 1))  # draws spread less than the means of new cases would
    nearer = margin - abs(drawn.mean())
    return float(max(share, t.sf(nearer / error, cases - 1))) if error else float(share)


def _drawn_differences(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """The mean differences of the draws, (DRAWS,); empty for fewer than LEAST_CASES. first, second: (cases, seeds) of the same
    cases. The cases are drawn once for both sides, and the seeds for each side separately."""
    if len(first) < LEAST_CASES:
        return np.empty(0)
    # Which side has which draws follows from the scores. Otherwise the verdict would depend on the order of the sides.
    streams = (1, 2) if first.tobytes() >= second.tobytes() else (2, 1)
    of_first, of_second = (
        _over_drawn_seeds(table, _draws(table.shape[1], stream))
        for stream, table in zip(streams, (first, second), strict=True)
    )
    known = np.isfinite(of_second - of_first)  # a draw of seeds may miss the only seed that has a case
    times = _draws(len(first), 0).T * known
    total = times.sum(axis=0)
    return (times * np.where(known, of_second - of_first, 0)).sum(axis=0)[total > 0] / total[total > 0]


def _over_drawn_seeds(table: np.ndarray, of_seeds: np.ndarray) -> np.ndarray:
    """The means over the seeds of each draw without NaNs, (cases, seeds), (DRAWS, seeds) -> (cases, DRAWS)."""
    known = np.isfinite(table)
    total = known @ of_seeds.T
    return np.where(total > 0, np.where(known, table, 0) @ of_seeds.T / np.maximum(total, 1), np.nan)


def _percentiles(means: np.ndarray, confidences: Sequence[float]) -> list[float]:
    """The ends of the intervals, the lower and the upper of each; NaN without draws."""
    shares = [50 * (1 + sign * confidence) for confidence in confidences for sign in (-1, 1)]
    return list(map(float, np.percentile(means, shares))) if len(means) else [float("nan")] * len(shares)


def holm(p: Sequence[float]) -> list[float]:
    """The p values of a family of tests, corrected (Holm, 1979). A NaN stays, and does not count as a test."""
    known = [at for at in np.argsort(p, kind="stable") if not np.isnan(p[at])]
    corrected, largest = [float("nan")] * len(p), 0.0
    for rank, at in enumerate(known):
        largest = max(largest, min(1.0, (len(known) - rank) * p[at]))
        corrected[at] = largest
    return corrected


def _wilcoxon(difference: np.ndarray) -> float:
    """The p of the two-sided signed-rank test: zeros are left out, and ties have their mean rank. It is exact up to MOST_EXACT
    cases. scipy's is exact without ties and zeros alone, and its normal law is too bold for a few changed cases."""
    from scipy.stats import rankdata, wilcoxon

    nonzero = difference[difference != 0]
    if not len(nonzero):
        return 1.0 if len(difference) else float("nan")
    if len(nonzero) > MOST_EXACT:
        return float(wilcoxon(nonzero, method="asymptotic").pvalue)
    halves = np.rint(2 * rankdata(np.abs(nonzero))).astype(int)  # mean ranks are whole or half numbers
    positive = int(halves[nonzero > 0].sum())
    nearer = min(positive, int(halves.sum()) - positive)
    return float(min(1.0, 2 * _chances(halves)[: nearer + 1].sum()))


def _chances(halves: np.ndarray) -> np.ndarray:
    """The probability of each sum of the ranks with a positive sign, if every sign is a coin's. halves: the ranks, in halves."""
    chances = np.zeros(halves.sum() + 1)
    chances[0], reached = 1.0, 1
    for rank in halves:
        chances[rank : rank + reached] += chances[:reached].copy()
        reached += rank
        chances[:reached] /= 2
    return chances


def _favoured(difference: np.ndarray) -> float:
    """(sum of the positive signed ranks - sum of the negative ones) / sum of all. Ties have their mean rank; zeros are left out."""
    from scipy.stats import rankdata

    nonzero = difference[difference != 0]
    if not len(nonzero):
        return 0.0 if len(difference) else float("nan")
    ranks = rankdata(np.abs(nonzero))
    return float((np.sign(nonzero) * ranks).sum() / ranks.sum())


def _over_seeds(table: np.ndarray) -> np.ndarray:
    """The means over seeds without NaNs, (cases, seeds) -> (cases,)."""
    known = np.isfinite(table)
    total = known.sum(axis=1)
    return np.where(total > 0, np.where(known, table, 0).sum(axis=1) / np.maximum(total, 1), np.nan)
