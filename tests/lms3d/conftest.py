"""A tiny data set in BraTS 2020 layout, and a run that "was trained" on it."""

from __future__ import annotations

from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
from matplotlib.figure import Figure

from tests import one_pixel
from tests.caches import private_cache

SHAPE = (26, 30, 22)
AFFINE = np.array([[-2.0, 0, 0, 50], [0, -2.0, 0, 60], [0, 0, 3.0, -10], [0, 0, 0, 1]])


def tiny_truth(seed: int) -> np.ndarray:
    """A ball of oedema with a core inside; case 2 has no enhancing tumour."""
    centre = np.array([13, 15, 11]) + np.random.default_rng(seed).integers(-2, 3, 3)
    distance = np.linalg.norm(np.indices(SHAPE).transpose(1, 2, 3, 0) - centre, axis=-1)
    return np.select([distance < 2, distance < 4, distance < 6], [1, 1 if seed == 2 else 4, 2], 0).astype(np.uint8)


@pytest.fixture(scope="session")
def tiny_brats(tmp_path_factory) -> Path:
    """Four cases of 26x30x22 voxels of 2x2x3 mm, with truth."""
    root = tmp_path_factory.mktemp("tiny_brats")
    for number in range(1, 5):
        truth = tiny_truth(number)
        brain = np.zeros(SHAPE, bool)
        brain[3:-3, 2:-2, 2:-3] = True
        random = np.random.default_rng(number)
        name = f"BraTS20_Training_{number:03d}"
        (root / name).mkdir()
        volumes = {
            suffix: np.where(brain, 100 + 20 * weight * truth + random.normal(0, 5, SHAPE), 0).astype(np.int16)
            for weight, suffix in enumerate(("t1", "t1ce", "flair", "t2"))
        }
        for suffix, array in {**volumes, "seg": truth}.items():
            nib.save(nib.Nifti1Image(array, AFFINE), root / name / f"{name}_{suffix}.nii.gz")
    return root


@pytest.fixture
def own_cache(tmp_path, monkeypatch) -> Path:
    """Caches of this test lie in its own folder."""
    monkeypatch.setenv("LMS3D_CACHE", str(private_cache(tmp_path / "cache")))
    return tmp_path / "cache"


@pytest.fixture
def rendered() -> None:
    """In this test figures are rendered, though not in the others of its module."""


@pytest.fixture
def unrendered(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures are made, but their files show one pixel (see `tests.one_pixel`)."""
    if "rendered" not in request.fixturenames:
        monkeypatch.setattr(Figure, "savefig", one_pixel.save)
