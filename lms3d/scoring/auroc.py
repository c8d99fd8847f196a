"""The area under the ROC curve (AUROC) of each class, and the mean of the areas, with intervals.

Areas are scikit-learn's. Intervals are percentiles of the bootstrap (Efron and Tibshirani, 1993) over patients: images of one
patient resemble each other, so that intervals over images would be too narrow. The interval of the mean comes from the same draws,
which keeps the correlation between classes. In all functions: truth (N, C), 0 or 1; probabilities (N, C); names: of the C
classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

CONFIDENCE = 0.95
FEWEST = 2  # an interval needs this many patients with each answer


@dataclass(frozen=True, kw_only=True)
class ClassScore:
    """The area of one class and its interval; NaN for what is undefined."""

    name: str
    positives: int
    """The images that show the class."""
    negatives: int
    auroc: float
    low: float
    """The lower end of the 95 % interval."""
    high: float


@dataclass(frozen=True, kw_only=True)
class Scores:
    """The areas of all classes, and their mean."""

    classes: tuple[ClassScore, ...]
    mean: float
    """The mean over the classes that have an area."""
    low: float
    high: float
    images: int
    patients: int | None
    """The number of patients, which the bootstrap drew; None if it drew single images."""
    draws: int

    @property
    def left_out(self) -> list[str]:
        """The classes of which all images have the same answer. They have no area, and no part in the mean."""
        return [score.name for score in self.classes if np.isnan(score.auroc)]


def score(
    truth: np.ndarray,
    probabilities: np.ndarray,
    names: Sequence[str],
    *,
    patients: Sequence[Any] | None = None,
    draws: int = 1000,
    seed: int = 0,
) -> Scores:
    """The areas and their 95 % intervals. patients: the patient of each of the N images; None if every image is of another
    patient."""
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
    # Average the deviations of a draw, not the areas: a rare class that the draw misses must not shift the mean.
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
    """Class -> (false positive rates, true positive rates), (K,) each, for every class that has both answers."""
    from sklearn.metrics import roc_curve

    truth = _checked(truth, probabilities, names)
    both = np.flatnonzero(truth.any(axis=0) & ~truth.all(axis=0)).tolist()
    return {names[k]: roc_curve(truth[:, k], probabilities[:, k])[:2] for k in both}


def _checked(truth: np.ndarray, probabilities: np.ndarray, names: Sequence[str]) -> np.ndarray:
    """The truth as booleans. ValueError if shapes or values are wrong."""
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
    """The areas of resampled patients, (draws, C); NaN for classes that are not chosen."""
    random, patients = np.random.default_rng(seed), int(owners.max()) + 1
    ranks = {k: np.unique(probabilities[:, k], return_inverse=True)[1] for k in chosen}
    drawn = np.full((draws, truth.shape[1]), np.nan)
    for i in range(draws):
        times = np.bincount(random.integers(0, patients, patients), minlength=patients)[owners].astype(float)
        for k in chosen:
            drawn[i, k] = weighted_area(truth[:, k], ranks[k], times)
    return drawn


def weighted_area(truth: np.ndarray, ranks: np.ndarray, times: np.ndarray) -> float:
    """The AUROC of images of which each counts `times`; NaN if only one answer is left. All arrays are (N,). ranks: 0, 1, ... by
    probability."""
    positives = np.bincount(ranks, times * truth)
    negatives = np.bincount(ranks, times * ~truth)
    pairs = positives.sum() * negatives.sum()
    below = np.cumsum(negatives) - negatives / 2  # an equal rank is half a win
    return float(positives @ below / pairs) if pairs else float("nan")


def _too_few(truth: np.ndarray, owners: np.ndarray) -> np.ndarray:
    """Whether fewer than FEWEST patients have one of the answers, (C,)."""
    return np.array([
        min(len(np.unique(owners[column])), len(np.unique(owners[~column]))) < FEWEST for column in truth.T
    ])  # fmt: skip


def _interval(drawn: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The lower and upper ends of the 95 % intervals, (draws, C) -> (C,) and (C,); NaN for a column without a finite value."""
    ends = np.full((2, drawn.shape[1]), np.nan)
    for k, column in enumerate(drawn.T):
        if np.isfinite(column).any():
            ends[:, k] = np.nanpercentile(column, (50 * (1 - CONFIDENCE), 50 * (1 + CONFIDENCE)))
    return ends[0], ends[1]


def _nan_mean(values: np.ndarray) -> np.ndarray:
    """The mean of each row without its NaNs, (draws, C) -> (draws,); NaN for a row without a finite value."""
    known = np.isfinite(values)
    total = known.sum(axis=1)
    return np.where(total > 0, np.where(known, values, 0).sum(axis=1) / np.maximum(total, 1), np.nan)
