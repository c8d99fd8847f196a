"""Random brains on disk in milliseconds, in the layout of any data set."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import nibabel as nib
import numpy as np

from lms3d.data.brats.cache import Cache
from lms3d.data.brats.case import Case, load_images, load_truth
from lms3d.data.brats.schema import CHANNELS, LabelSchema

SHAPE = (20, 24, 18)
AFFINE = np.array([[-1.0, 0, 0, 0], [0, -1, 0, 239], [0, 0, 1, 0], [0, 0, 0, 1]])
EARLY = {"t1": "_t1", "t1ce": "_t1ce", "flair": "_flair", "t2": "_t2", "truth": "_seg"}
LATE = {"t1": "-t1n", "t1ce": "-t1c", "flair": "-t2f", "t2": "-t2w", "truth": "-seg"}


def save(array: np.ndarray, path: Path, affine: np.ndarray = AFFINE) -> Path:
    """Write a NIfTI file and the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    nib.save(nib.Nifti1Image(array, affine), path)
    return path


def random_case(seed: int, labels: tuple[int, ...] = (1, 2, 4), shape: tuple[int, int, int] = SHAPE) -> dict:
    """A box of noise with a tumour in nested boxes: {channel: int16 array, "truth": uint8 array}."""
    rng = np.random.default_rng(seed)
    brain = np.zeros(shape, bool)
    brain[3:-2, 4:-3, 2:-4] = True
    arrays = {name: np.where(brain, rng.integers(50, 900, shape), 0).astype(np.int16) for name in CHANNELS}
    truth = np.zeros(shape, np.uint8)
    for margin, label in zip((5, 7, 8), (labels[1], labels[-1], labels[0]), strict=True):
        truth[margin:-margin, margin:-margin, margin:-margin] = label
    return {**arrays, "truth": truth}


def write_case(folder: Path, arrays: dict, names: dict = EARLY, *, stem: str = "", ending: str = ".nii.gz") -> Path:
    """Write the arrays as `<folder>/<stem><suffix><ending>`; the stem is the folder's name unless given."""
    for name, array in arrays.items():
        save(array, folder / f"{stem or folder.name}{names[name]}{ending}")
    return folder


def check_case(case: Case, schema: LabelSchema) -> None:
    """Reads every file of a case; DataError for the first that cannot be used."""
    images, affine = load_images(case)
    load_truth(case, schema, images.shape[:3], affine)


def reopened(cache: Cache) -> Cache:
    """The same cache, before anything is read from it."""
    return replace(cache, _entries={}, _verified=set())
