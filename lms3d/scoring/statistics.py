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
_EQUIVALENCE = 0.90  # the interval of two one-sided tests at 5 % (Schuirmann, 1987)


def interval_of_mean(values: np.ndarray, *, confidence: float = CONFIDENCE, seed: int = 0) -> tuple[float, float]:
    """values (cases,) or (cases, seeds), NaN left out -> ends of the interval of the mean; NaN for fewer than two cases."""
    table = np.asarray(values, float).reshape(len(values), -1)
    table = table[np.isfinite(table).any(axis=1)]
    if len(table) < 2:
        return float("nan"), float("nan")
    times, of_seeds = (_draws(size, seed + axis) for axis, size in enumerate(table.shape))
    known, filled = np.isfinite(table), np.nan_to_num(table)
    counts = ((times @ known) * of_seeds).sum(axis=1)
    means = ((times @ filled) * of_seeds).sum(axis=1)[counts > 0] / counts[counts > 0]
    low, high = np.percentile(means, (50 * (1 - confidence), 50 * (1 + confidence)))
    return float(low), float(high)


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
    """The 95 % interval of the mean."""
    p: float
    """Wilcoxon's signed-rank test, two-sided; NaN for no case."""
    smallest_p: float
    """The smallest that so many cases can give: 2 to the power of 1 - n."""
    equivalent: bool
    """Whether the 90 % interval lies within the margin: two one-sided tests at 5 %."""


def compare(first: np.ndarray, second: np.ndarray, *, margin: float) -> Comparison:
    """first, second: (cases,), or (cases, seeds) of which the mean over seeds is compared; NaN leaves a case out."""
    one, other = (_over_seeds(np.asarray(values, float)) for values in (first, second))
    difference = (other - one)[np.isfinite(other - one)]
    n = len(difference)
    low, high = interval_of_mean(difference)
    within = interval_of_mean(difference, confidence=_EQUIVALENCE)
    return Comparison(
        cases=n, difference=float(difference.mean()) if n else float("nan"), low=low, high=high, p=_wilcoxon(difference),
        smallest_p=min(1.0, 2.0 ** (1 - n)), equivalent=bool(-margin < within[0] and within[1] < margin),
    )  # fmt: skip


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


def _over_seeds(values: np.ndarray) -> np.ndarray:
    """(cases,) or (cases, seeds) -> (cases,), NaN left out."""
    table = values.reshape(len(values), -1)
    known = np.isfinite(table)
    total = known.sum(axis=1)
    return np.where(total > 0, np.where(known, table, 0).sum(axis=1) / np.maximum(total, 1), np.nan)
