"""What intensities alone can tell: a segmentation without a network, which every network has to beat.

Quadratic discriminant analysis (Hastie, Tibshirani and Friedman, "The Elements of Statistical Learning", section 4.3) of the four
sequences, each smoothed and normalised per case, gives every voxel of the brain its most probable label. Of all voxels with a label
the largest connected component is kept. It knows nothing of places and shapes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from scipy import ndimage

from lms3d.atomic_files import write_json
from lms3d.errors import InputError
from lms3d.scoring import dice

if TYPE_CHECKING:
    from sklearn.discriminant_analysis import QuadraticDiscriminantAnalysis

    from lms3d.tasks.volumes.material import VolumeMaterial

TITLE = "intensities alone"
FILE = "intensity_baseline.json"
"""Region -> mean Dice of the validation cases of a run, on the grid of its network."""

_SMOOTHING = 1.0  # the standard deviation of the Gaussian, in voxels
_SAMPLES = 20_000  # voxels of each training case: enough for four means and ten covariances of each label
_LEAST_SAMPLES = 10
_REGULARISATION = 1e-3  # a label with few voxels, or an absent sequence, has no covariance that can be inverted


Volumes = tuple[np.ndarray, np.ndarray]
"""The images (X, Y, Z, 4) and the label map (X, Y, Z) of a case."""


def fit(cases: Iterable[Volumes]) -> QuadraticDiscriminantAnalysis:
    """The discriminant of training cases.

    Labels count as often as they occur; one with hardly a voxel is never given. InputError if the cases have no tumour.
    """
    from sklearn.discriminant_analysis import QuadraticDiscriminantAnalysis

    rng = np.random.default_rng(0)
    values, labels = [], []
    for image, truth in cases:
        brain, smoothed = _smoothed(image)
        chosen = rng.integers(0, len(smoothed), min(_SAMPLES, len(smoothed)))
        values.append(smoothed[chosen])
        labels.append(truth[brain][chosen])
    known, counts = np.unique(every := np.concatenate(labels), return_counts=True)
    if not (given := known[counts >= _LEAST_SAMPLES]).any():
        raise InputError(
            "training cases: found no tumour; expected label maps with one; check what the labels mean (--labels)"
        )
    kept = np.isin(every, given)
    return QuadraticDiscriminantAnalysis(reg_param=_REGULARISATION).fit(np.concatenate(values)[kept], every[kept])


def segment(analysis: QuadraticDiscriminantAnalysis, image: np.ndarray) -> np.ndarray:
    """The label map (X, Y, Z) uint8 of images (X, Y, Z, 4)."""
    brain, smoothed = _smoothed(image)
    labels = np.zeros(brain.shape, np.uint8)
    labels[brain] = analysis.predict(smoothed)
    components, count = ndimage.label(labels)
    if count > 1:
        sizes = np.bincount(components.ravel())
        labels[components != 1 + sizes[1:].argmax()] = 0
    return labels


def scores(
    analysis: QuadraticDiscriminantAnalysis,
    cases: Iterable[Volumes],
    regions: Mapping[str, Sequence[int]],
    *,
    both_empty: float = dice.PERFECT,
) -> dict[str, list[float]]:
    """Region -> Dice of each case, in the order of `cases`. regions: region -> its labels. both_empty: see `dice`."""
    found: dict[str, list[float]] = {region: [] for region in regions}
    for image, truth in cases:
        labels = segment(analysis, image)
        for region, values in regions.items():
            marked, true = np.isin(labels, values), np.isin(truth, values)
            found[region].append(dice.of_masks(marked, true, both_empty=both_empty))
    return found


def measure(run_dir: Path, material: VolumeMaterial) -> None:
    """Writes FILE, for the cases of a run."""
    analysis = fit(_volumes(material, material.split.training))
    found = scores(analysis, _volumes(material, material.split.validation), material.cache.schema.regions)
    write_json(run_dir / FILE, {region: float(np.mean(values)) for region, values in found.items()})


def results(run_dir: Path) -> dict[str, str]:
    """The row of a run's summary; none if the baseline was not measured."""
    path = run_dir / FILE
    if not path.is_file():
        return {}
    found = json.loads(path.read_text(encoding="utf-8"))
    means = "  ".join(f"{region} {mean:.3f}" for region, mean in found.items())
    return {TITLE: f"validation Dice {means}, without a network"}


def _volumes(material: VolumeMaterial, ids: Sequence[str]) -> Iterator[Volumes]:
    for case_id in ids:
        truth = material.cache.truth(case_id)
        assert truth is not None, "the pipeline refuses cases without truth"
        yield material.cache.image(case_id), truth


def _smoothed(image: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The brain (X, Y, Z) bool, and the smoothed z-scores of its voxels (V, 4). An absent sequence is 0 everywhere."""
    brain = np.asarray(image.any(axis=-1))
    inside = image[brain].astype(np.float32)
    inside = (inside - inside.mean(axis=0)) / np.maximum(inside.std(axis=0), 1e-6)
    smoothed = np.empty_like(inside)
    volume = np.zeros(brain.shape, np.float32)
    for channel in range(inside.shape[1]):
        volume[brain] = inside[:, channel]
        smoothed[:, channel] = ndimage.gaussian_filter(volume, _SMOOTHING)[brain]
    return brain, smoothed
