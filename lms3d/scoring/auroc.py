"""Area under the ROC curve (AUROC) per class and its mean, with intervals.

Areas are scikit-learn's. Intervals are percentiles of the bootstrap (Efron and Tibshirani, 1993) over patients: images of
one patient resemble each other, so intervals over images would be too narrow. The mean's interval comes from the same
draws, which keeps the correlation between classes.
Everywhere: truth (N, C) 0 or 1, probabilities (N, C), names of the C classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

CONFIDENCE = 0.95
FEWEST = 2  # patients with each answer that an interval needs


@dataclass(frozen=True, kw_only=True)
class ClassScore:
    """The area of one class; NaN where it, or its interval, is undefined."""

    name: str
    positives: int
    """Images that show it."""
    negatives: int
    auroc: float
    low: float
    """Lower end of the 95 % interval."""
    high: float


@dataclass(frozen=True, kw_only=True)
class Scores:
    """The areas of all classes, and their mean."""

    classes: tuple[ClassScore, ...]
    mean: float
    """Over the classes that have an area."""
    low: float
    high: float
    images: int
    patients: int | None
    """What the bootstrap drew; None: single images."""
    draws: int

    @property
    def left_out(self) -> list[str]:
        """Classes of which all images have the same answer: no area, and no part in the mean."""
        return [one.name for one in self.classes if np.isnan(one.auroc)]


def score(
    truth: np.ndarray,
    probabilities: np.ndarray,
    names: Sequence[str],
    *,
    patients: Sequence[Any] | None = None,
    draws: int = 1000,
    seed: int = 0,
) -> Scores:
    """Areas and 95 % intervals. patients: of each of the N images; None: every image is of another patient."""
    from sklearn.metrics import roc_auc_score

    truth = _checked(truth, probabilities, names)
    has_both = truth.any(axis=0) & ~truth.all(axis=0)
    areas = np.full(len(names), np.nan)
    for k in np.flatnonzero(has_both):
        areas[k] = roc_auc_score(truth[:, k], probabilities[:, k])
    owners = np.arange(len(truth)) if patients is None else np.unique(np.asarray(patients), return_inverse=True)[1]
    if len(owners) != len(truth):
        raise ValueError(f"{len(owners)} patients for {len(truth)} images; expected one for each")
    drawn = _bootstrap(truth, probabilities, owners, np.flatnonzero(has_both), draws, seed)
    drawn[:, _too_few(truth, owners)] = np.nan
    low, high = _interval(drawn)
    # Means over the deviations of a draw: a rare class that the draw misses must not shift the mean.
    deviations = drawn[:, has_both] - areas[has_both]
    mean = float(areas[has_both].mean()) if has_both.any() else float("nan")
    mean_low, mean_high = _interval((mean + _nan_mean(deviations))[:, None])
    counts = truth.sum(axis=0)
    return Scores(
        classes=tuple(
            ClassScore(name=name, positives=int(counts[k]), negatives=int(len(truth) - counts[k]), auroc=float(areas[k]),
                       low=float(low[k]), high=float(high[k]))
            for k, name in enumerate(names)
        ),
        mean=mean, low=float(mean_low[0]), high=float(mean_high[0]), images=len(truth),
        patients=None if patients is None else int(owners.max()) + 1, draws=draws,
    )  # fmt: skip


def curves(
    truth: np.ndarray, probabilities: np.ndarray, names: Sequence[str]
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """False and true positive rates, (K,) each, of every class that has both answers."""
    from sklearn.metrics import roc_curve

    truth = _checked(truth, probabilities, names)
    both = np.flatnonzero(truth.any(axis=0) & ~truth.all(axis=0)).tolist()
    return {names[k]: roc_curve(truth[:, k], probabilities[:, k])[:2] for k in both}


def _checked(truth: np.ndarray, probabilities: np.ndarray, names: Sequence[str]) -> np.ndarray:
    """The truth as booleans; ValueError where shapes or values are wrong."""
    truth = np.asarray(truth)
    if truth.ndim != 2 or truth.shape != np.shape(probabilities) or truth.shape[1] != len(names) or not len(truth):
        raise ValueError(
            f"truth has shape {truth.shape}, probabilities {np.shape(probabilities)}; expected (N, {len(names)}) for both"
        )
    if not np.isin(truth, (0, 1)).all():
        raise ValueError(f"truth holds {truth[~np.isin(truth, (0, 1))][0]}; expected 0 and 1 alone")
    if not np.isfinite(probabilities).all():
        raise ValueError("probabilities hold values that are not finite; the network has diverged")
    return truth.astype(bool)


def _bootstrap(
    truth: np.ndarray, probabilities: np.ndarray, owners: np.ndarray, chosen: np.ndarray, draws: int, seed: int
) -> np.ndarray:
    """(draws, C): areas of resampled patients; NaN for classes that are not chosen."""
    random, patients = np.random.default_rng(seed), int(owners.max()) + 1
    ranks = {k: np.unique(probabilities[:, k], return_inverse=True)[1] for k in chosen}
    drawn = np.full((draws, truth.shape[1]), np.nan)
    for i in range(draws):
        times = np.bincount(random.integers(0, patients, patients), minlength=patients)[owners].astype(float)
        for k in chosen:
            drawn[i, k] = weighted_area(truth[:, k], ranks[k], times)
    return drawn


def weighted_area(truth: np.ndarray, ranks: np.ndarray, times: np.ndarray) -> float:
    """AUROC of images that count `times` each; NaN if only one answer is left. All (N,); ranks: 0, 1, ... by probability."""
    positives = np.bincount(ranks, times * truth)
    negatives = np.bincount(ranks, times * ~truth)
    pairs = positives.sum() * negatives.sum()
    below = np.cumsum(negatives) - negatives / 2  # an equal rank is half a win
    return float(positives @ below / pairs) if pairs else float("nan")


def _too_few(truth: np.ndarray, owners: np.ndarray) -> np.ndarray:
    """(C,): whether fewer than FEWEST patients have one of the answers."""
    return np.array([
        min(len(np.unique(owners[column])), len(np.unique(owners[~column]))) < FEWEST for column in truth.T
    ])  # fmt: skip


def _interval(drawn: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(draws, C) -> the ends (C,) and (C,) of the 95 % intervals; NaN for a column that has none."""
    ends = np.full((2, drawn.shape[1]), np.nan)
    for k, column in enumerate(drawn.T):
        if np.isfinite(column).any():
            ends[:, k] = np.nanpercentile(column, (50 * (1 - CONFIDENCE), 50 * (1 + CONFIDENCE)))
    return ends[0], ends[1]


def _nan_mean(values: np.ndarray) -> np.ndarray:
    """Mean of each row (draws, C) -> (draws,), NaN left out; NaN for a row that has nothing else."""
    known = np.isfinite(values)
    total = known.sum(axis=1)
    return np.where(total > 0, np.where(known, values, 0).sum(axis=1) / np.maximum(total, 1), np.nan)
