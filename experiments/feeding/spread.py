"""Mean and spread of a few measurements."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Spread:
    """The mean and spread of `count` values; std and interval are None for a single one."""

    count: int
    mean: float
    std: float | None
    """The standard deviation of the values (divided by count - 1)."""
    low: float | None
    high: float | None
    """95 % interval of the mean, by Student's t: few values, whose spread is known by themselves alone."""

    @property
    def interval(self) -> str:
        """The interval in words; "" for a single value."""
        return "" if self.low is None or self.high is None else f"{self.low:.4g} to {self.high:.4g}"


def spread(values: Sequence[float]) -> Spread:
    count, mean = len(values), statistics.fmean(values)
    if count < 2:
        return Spread(count=count, mean=mean, std=None, low=None, high=None)
    from scipy import stats

    std = statistics.stdev(values)
    half = float(stats.t.ppf(0.975, count - 1)) * std / count**0.5
    return Spread(count=count, mean=mean, std=std, low=mean - half, high=mean + half)


def difference(a: Spread, b: Spread) -> tuple[float, float | None]:
    """a / b - 1 and half of its 95 % interval, by Welch's t and the first order of the ratio; None if one has a single value."""
    share = a.mean / b.mean - 1
    if a.std is None or b.std is None:
        return share, None
    from scipy import stats

    parts = [(one.std or 0.0) ** 2 / one.count / one.mean**2 for one in (a, b)]  # squared relative errors
    total = sum(parts)
    if not total:
        return share, 0.0
    freedom = total**2 / sum(p**2 / (one.count - 1) for p, one in zip(parts, (a, b), strict=True))
    return share, float(stats.t.ppf(0.975, freedom)) * (1 + share) * total**0.5
