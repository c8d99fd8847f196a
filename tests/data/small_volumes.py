"""Small volumes of any organ on disk, in nnU-Net's layout or in that of the Decathlon."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tests.data.small_data import save

SHAPE = (20, 16, 12)
CT = {"channel_names": {"0": "CT"}, "labels": {"background": 0, "liver": 1, "spleen": 2}, "file_ending": ".nii.gz"}


def affine(spacing: Sequence[float] = (1.0, 1.0, 2.0)) -> np.ndarray:
    """An affine (4, 4) of voxels of this size in mm."""
    return np.diag([*spacing, 1.0])


def images_of(seed: int, channels: int, shape: Sequence[int] = SHAPE) -> np.ndarray:
    """Noise, (*shape, channels) int16, about 40."""
    return np.random.default_rng(seed).normal(40, 30, (*shape, channels)).astype(np.int16)


def labels_of(values: Sequence[int], shape: Sequence[int] = SHAPE) -> np.ndarray:
    """A label map in which each value has a slab of its own, (X, Y, Z) uint8."""
    labels = np.zeros(shape, np.uint8)
    for index, value in enumerate(values):
        labels[2 + 3 * index : 5 + 3 * index, 4:10, 3:9] = value
    return labels


def write_nnunet(
    root: Path, about: Mapping[str, Any] = CT, *, cases: int = 3, values: Sequence[int] = (1, 2), part: str = "Tr",
    spacing: Sequence[float] = (1.0, 1.0, 2.0), shape: Sequence[int] = SHAPE,
) -> Path:  # fmt: skip
    """A raw folder of nnU-Net with random cases."""
    channels = len(about["channel_names"])
    for index in range(cases):
        images = images_of(index, channels, shape)
        for channel in range(channels):
            save(images[..., channel], root / f"images{part}" / f"case_{index}_{channel:04}.nii.gz", affine(spacing))
        save(labels_of(values, shape), root / f"labels{part}" / f"case_{index}.nii.gz", affine(spacing))
    return described(root, about)


def described(root: Path, about: Mapping[str, Any]) -> Path:
    """The folder, with a dataset.json."""
    root.mkdir(parents=True, exist_ok=True)
    (root / "dataset.json").write_text(json.dumps(about))
    return root
