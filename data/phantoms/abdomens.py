"""Artificial abdomens in nnU-Net's raw layout: a CT, and a PET if asked for, of ellipsoid organs.

    <root>/dataset.json   imagesTr/abdomen_001_0000.nii.gz   [imagesTr/abdomen_001_0001.nii.gz]   labelsTr/abdomen_001.nii.gz

The Hounsfield units of the organs overlap, so a network has to learn where organs lie and what shape they have. Slices are
thicker than pixels, and the spacing differs between cases. Case i of seed s does not depend on the number of cases.

The data set is made to exercise a pipeline and to be learnt. No claim about real patients follows from it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import nibabel as nib
import numpy as np
from scipy import ndimage

from lms3d.common.disk import cache_directory
from lms3d.data import files
from lms3d.data.errors import DataError
from lms3d.data.files import Progress
from lms3d.data.workers import run_all

LABELS = {"background": 0, "liver": 1, "spleen": 2, "left kidney": 3, "right kidney": 4, "tumour": 5}
CHANNELS = ("CT", "PET")
SHAPE = (160, 128, 64)
"""The usual shape of a case, in voxels."""
EXTENT_MM = (360.0, 288.0, 256.0)
"""What a case covers, but for some percent: x runs to the left, y to the back, z up."""

_VERSION = 1  # raise it when a change here changes the voxels
_AIR, _FAT, _MUSCLE, _BONE = -1000.0, -95.0, 55.0, 380.0
_NOISE_HU = 22.0
_VOXEL_BYTES = 4  # of a compressed file, at most


@dataclass(frozen=True, kw_only=True)
class Organ:
    """An ellipsoid with a label."""

    label: int
    centre: tuple[float, float, float]
    """As shares of EXTENT_MM, from the middle."""
    radii_mm: tuple[float, float, float]
    hu: float
    uptake: float
    """In the PET."""


ORGANS = (
    Organ(label=1, centre=(-0.17, -0.05, 0.14), radii_mm=(78, 62, 60), hu=105, uptake=2.2),
    Organ(label=2, centre=(0.27, 0.12, 0.2), radii_mm=(34, 30, 42), hu=112, uptake=1.9),
    Organ(label=3, centre=(0.16, 0.2, -0.08), radii_mm=(25, 23, 48), hu=128, uptake=4.0),
    Organ(label=4, centre=(-0.16, 0.2, -0.12), radii_mm=(25, 23, 48), hu=128, uptake=4.0),
)
"""The organs in the order in which they are painted."""


def default_directory() -> Path:
    """The folder of phantoms by default."""
    return cache_directory() / "phantom"


def content(channels: int) -> dict[str, object]:
    """The content of dataset.json, but for the number of cases."""
    return {
        "name": "Abdomen phantom",
        "channel_names": {str(index): name for index, name in enumerate(CHANNELS[:channels])},
        "labels": LABELS,
        "file_ending": ".nii.gz",
    }


def write(
    directory: str | Path, *, cases: int = 12, channels: int = 1, shape: tuple[int, int, int] = SHAPE, seed: int = 0,
    workers: int | None = None, progress: Progress | None = None,
) -> Path:  # fmt: skip
    """The folder of the phantoms, for `lms3d.data.segmentation.layouts.find`. They are made in the first call; later calls find them.

    channels: 1, a CT, or 2, with a PET. shape: of a case, in voxels; the extent stays.
    """
    if cases < 1 or seed < 0 or channels not in (1, 2):
        raise DataError(
            f"phantom: found {cases} cases, {channels} channels, seed {seed}; expected at least 1 case, 1 or 2 channels and a seed "
            "of 0 or more; choose others"
        )
    sides = "x".join(map(str, shape))
    root = (
        Path(directory).expanduser() / f"Dataset901_AbdomenPhantom_v{_VERSION}_seed{seed}_{cases}_{sides}_{channels}ch"
    )

    def fill() -> None:
        files.require_space(root, cases * (channels + 1) * _VOXEL_BYTES * math.prod(shape))
        for folder in ("imagesTr", "labelsTr"):
            files.writable_directory(root / folder)
        items = [(root, seed, index, channels, shape) for index in range(cases)]
        run_all(write_case, items, workers=workers, progress=progress, what="phantom abdomens")
        with files.reported_writes(root):
            files.write_json(root / "dataset.json", {**content(channels), "numTraining": cases})

    files.build_once(root, (root / "dataset.json").is_file, fill, progress, cases)
    return root


def write_case(root: Path, seed: int, index: int, channels: int, shape: tuple[int, int, int]) -> None:
    """Makes one case and writes its files. Runs in a worker."""
    images, labels, affine = make_case(seed, index, shape)
    name = f"abdomen_{index + 1:03d}"
    with files.reported_writes(root):
        for channel in range(channels):
            _save(images[channel], affine, root / "imagesTr" / f"{name}_{channel:04d}.nii.gz")
        _save(labels, affine, root / "labelsTr" / f"{name}.nii.gz")


def make_case(
    seed: int, index: int, shape: tuple[int, int, int] = SHAPE
) -> tuple[tuple[np.ndarray, np.ndarray], np.ndarray, np.ndarray]:
    """((CT int16 in HU, PET float32), labels uint8, all (X, Y, Z), affine (4, 4)) of case `index` of `seed`."""
    random = np.random.default_rng([seed, index])
    spacing = np.array(EXTENT_MM) / np.array(shape) * random.uniform(0.94, 1.06, 3)
    axes = np.meshgrid(
        *((np.arange(n) - (n - 1) / 2) * mm for n, mm in zip(shape, spacing, strict=True)), indexing="ij"
    )
    place = np.stack(axes)
    ct = _body(place, random)
    pet = np.where(ct > _FAT - 50, 0.8, 0.02)
    labels = np.zeros(shape, np.uint8)
    for organ in ORGANS:
        _paint(organ, place, random, ct, pet, labels)
    _paint(_tumour(random), place, random, ct, pet, labels, within=1)
    blur = 1.2 / spacing  # in mm; the borders of organs are not sharper than that
    ct = ndimage.gaussian_filter(ct, blur) + random.normal(0, _NOISE_HU, shape)
    pet = ndimage.gaussian_filter(pet, 4 / spacing) * random.lognormal(0, 0.08, shape)
    affine = np.diag([-spacing[0], -spacing[1], spacing[2], 1.0])
    return (np.clip(np.rint(ct), -1024, 3071).astype(np.int16), pet.astype(np.float32)), labels, affine


def _body(place: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Air, fat, muscle and a spine, in HU, (X, Y, Z) float64."""
    x, y, _ = place
    wide, deep = random.uniform(145, 170), random.uniform(105, 125)
    depth = np.sqrt((x / wide) ** 2 + (y / deep) ** 2)
    ct = np.where(depth < 1, _FAT, _AIR)
    ct[depth < random.uniform(0.84, 0.9)] = _MUSCLE
    ct[(x / 18) ** 2 + ((y - 0.62 * deep) / 18) ** 2 < 1] = _BONE
    return np.asarray(ct)


def _tumour(random: np.random.Generator) -> Organ:
    """A tumour somewhere in the liver."""
    liver = ORGANS[0]
    inside = random.uniform(-0.45, 0.45, 3) * np.array(liver.radii_mm) / np.array(EXTENT_MM)
    a, b, c = (float(at + by) for at, by in zip(liver.centre, inside, strict=True))
    radius = float(random.uniform(14, 26))
    return Organ(label=5, centre=(a, b, c), radii_mm=(radius,) * 3, hu=72, uptake=6.0)


def _paint(
    organ: Organ, place: np.ndarray, random: np.random.Generator, ct: np.ndarray, pet: np.ndarray, labels: np.ndarray,
    within: int = 0,
) -> None:  # fmt: skip
    """Paints an organ, a little moved and resized, where no other one is. within: the label under it."""
    centre = np.array(organ.centre) * np.array(EXTENT_MM) + random.normal(0, 5, 3)
    radii = np.array(organ.radii_mm) * random.uniform(0.85, 1.15, 3)
    distance = np.sqrt((((place - centre[:, None, None, None]) / radii[:, None, None, None]) ** 2).sum(axis=0))
    bumps = ndimage.gaussian_filter(random.normal(0, 1, labels.shape), [n / 12 for n in labels.shape])
    mask = (distance + 0.08 * bumps / (bumps.std() + 1e-9) < 1) & (labels == within)
    labels[mask], ct[mask], pet[mask] = (
        organ.label,
        organ.hu + random.normal(0, 9),
        organ.uptake * random.uniform(0.8, 1.2),
    )


def _save(array: np.ndarray, affine: np.ndarray, path: Path) -> None:
    image = nib.Nifti1Image(array, affine)
    image.header.set_xyzt_units("mm", "sec")
    with files.new_file(path) as temporary:
        nib.save(image, temporary)
