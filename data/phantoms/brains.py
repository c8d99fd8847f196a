"""The embedded brain data set: phantoms on disk in the layout of BraTS 2020, so that everything reads them like real data.

    <root>/BraTS20_Training_001/BraTS20_Training_001_{flair,t1,t1ce,t2,seg}.nii.gz

Volumes have 240x240x155 voxels of 1 mm, in int16 (labels in uint8). They are skull-stripped, and the background is exactly zero.
Case i of seed s does not depend on the number of cases or workers, since everything random in it comes from (s, i).

It is the same on every x86-64 machine. `exact` says how; keep its rules in `brain_*`.

The data set is made to exercise a pipeline and to be learnt, not to study disease. No claim about real patients follows from it.
"""

from __future__ import annotations

from pathlib import Path

import nibabel as nib
import numpy as np

from lms3d.common.disk import cache_directory
from lms3d.data import files
from lms3d.data.brats.schema import CHANNELS
from lms3d.data.errors import DataError
from lms3d.data.files import Progress
from lms3d.data.phantoms.brain_anatomy import draw_pose, warp
from lms3d.data.phantoms.brain_contrast import render
from lms3d.data.phantoms.brain_tumour import draw_plan, grow
from lms3d.data.workers import run_all

SHAPE = (240, 240, 155)
"""The shape of a BraTS volume, at 1 mm."""

_VERSION = 5  # raise it when a change here changes the voxels
_CENTRE = (119.5, 126.0, 73.5)  # of the brain, in voxels of 1 mm
_BOX_MM = (176, 212, 172)  # around the brain; only this box is computed
_COARSE_MM = 4.0
_CASE_BYTES = 16 * 2**20


def default_directory() -> Path:
    """The folder of phantoms by default."""
    return cache_directory() / "phantom"


def write(
    directory: str | Path,
    *,
    cases: int = 25,
    seed: int = 0,
    workers: int | None = None,
    progress: Progress | None = None,
    spacing_mm: float = 1.0,
) -> Path:
    """The folder of the phantoms, for `layouts.find_cases`. They are made in the first call; later calls find them.

    directory: it gets one sub-folder for each (seed, cases, spacing). spacing_mm: a coarser grid, for tests.
    DataError if the folder cannot be written to, or the disk is too full.
    """
    if cases < 1 or seed < 0:
        raise DataError(
            f"phantom: found {cases} cases, seed {seed}; expected at least 1 case and a seed of 0 or more; "
            "choose others"
        )
    name = f"BraTS2020_phantom_v{_VERSION}_seed{seed}_{cases}" + (f"_{spacing_mm:g}mm" if spacing_mm != 1 else "")
    root = Path(directory).expanduser() / name

    def fill() -> None:
        missing = [index for index in range(cases) if not (root / case_id(index)).is_dir()]
        files.require_space(root, int(len(missing) * _CASE_BYTES / (spacing_mm * spacing_mm * spacing_mm)))
        items = [(root / case_id(index), seed, index, spacing_mm) for index in missing]
        run_all(write_case, items, workers=workers, progress=progress, what="phantom brains")
        about = {"version": _VERSION, "seed": seed, "cases": cases, "spacing_mm": spacing_mm}
        with files.reported_writes(root):
            files.write_json(root / "phantom.json", about)

    files.build_once(root, lambda: _is_complete(root, cases), fill, progress, cases)
    return root


def _is_complete(root: Path, cases: int) -> bool:
    return (root / "phantom.json").is_file() and all((root / case_id(index)).is_dir() for index in range(cases))


def case_id(index: int) -> str:
    """The name of case `index`, counted from 0."""
    return f"BraTS20_Training_{index + 1:03d}"


def write_case(target: Path, seed: int, index: int, spacing_mm: float) -> None:
    """Makes one case and writes its five files. Runs in a worker."""
    images, labels = make_case(seed, index, spacing_mm)
    with files.reported_writes(target), files.new_directory(target) as temporary:
        for channel, image in zip(CHANNELS, images, strict=True):
            _save(image, temporary / f"{target.name}_{channel}.nii.gz", spacing_mm)
        _save(labels, temporary / f"{target.name}_seg.nii.gz", spacing_mm)


def make_case(seed: int, index: int, spacing_mm: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """The images, (4, X, Y, Z) int16 in the order of CHANNELS, and the labels as a rater draws them, (X, Y, Z) uint8.

    Both belong to case `index` of `seed`.
    """
    rng = np.random.default_rng([seed, index])
    pose = draw_pose(rng)
    plan = draw_plan(rng, warp(pose, _box_shape(_COARSE_MM), _COARSE_MM), _COARSE_MM)
    push = (plan.centre_mm, 2.2 * plan.core_radius_mm, plan.push)
    brain = warp(pose, _box_shape(spacing_mm), spacing_mm, push)
    inside, part = _placement(brain.mask.shape, spacing_mm)
    brain.mask[_outside(part, brain.mask.shape)] = False
    tissue, labels = grow(rng, plan, brain, spacing_mm)
    images = render(rng, brain, tissue, spacing_mm)
    shape = _grid_shape(spacing_mm)
    all_images, all_labels = np.zeros((len(CHANNELS), *shape), np.int16), np.zeros(shape, np.uint8)
    all_images[(slice(None), *inside)] = images[(slice(None), *part)]
    all_labels[inside] = labels[part]
    return all_images, all_labels


def affine(spacing_mm: float = 1.0) -> np.ndarray:
    """The affine (4, 4) of a BraTS file: x runs to the left, y to the back, z up."""
    matrix = np.diag([-spacing_mm, -spacing_mm, spacing_mm, 1.0])
    matrix[1, 3] = 239.0
    return matrix


def _save(array: np.ndarray, path: Path, spacing_mm: float) -> None:
    image = nib.Nifti1Image(array, affine(spacing_mm))
    image.header.set_xyzt_units("mm", "sec")
    nib.save(image, path)


def _box_shape(spacing_mm: float) -> tuple[int, int, int]:
    a, b, c = (round(size / spacing_mm) for size in _BOX_MM)
    return a, b, c


def _grid_shape(spacing_mm: float) -> tuple[int, int, int]:
    a, b, c = (round(size / spacing_mm) for size in SHAPE)
    return a, b, c


def _placement(box: tuple[int, ...], spacing_mm: float) -> tuple[tuple[slice, ...], tuple[slice, ...]]:
    """(position of the box around the brain in the volume, part of the box inside the volume)."""
    inside, part = [], []
    for size, total, centre in zip(box, _grid_shape(spacing_mm), _CENTRE, strict=True):
        start = round(centre / spacing_mm - (size - 1) / 2)
        low, high = max(0, start), min(total, start + size)
        inside.append(slice(low, high))
        part.append(slice(low - start, high - start))
    return tuple(inside), tuple(part)


def _outside(part: tuple[slice, ...], shape: tuple[int, ...]) -> np.ndarray:
    outside = np.ones(shape, bool)
    outside[part] = False
    return outside
