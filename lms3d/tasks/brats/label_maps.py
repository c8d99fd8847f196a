"""A predictions folder: what `lms3d.predict` writes and `lms3d.evaluate` reads.

native/<case>.nii.gz     label map on the grid of the case's files, with their affine, uint8
cube/<case>.nii.gz       label map on the cube of the network, uint8; its affine puts it over the same brain
predictions.json         where they come from; written last: a folder without it is unfinished
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from lms3d.errors import InputError
from lms3d.files import replacing, write_json

INDEX = "predictions.json"


@dataclass(frozen=True, kw_only=True)
class Predictions:
    """predictions.json, and the folder that it lies in."""

    directory: Path
    label: str
    """Short name for tables and figures; the name of the run."""
    run: str
    """The run directory that made them."""
    model: str
    resolution: int
    tta: bool
    """Whether each is the mean over the 48 symmetries of the cube."""
    data: str
    """Folder of the data set."""
    fingerprint: str
    """Of the data set."""
    schema: str
    """Name of the label schema."""
    cases: Mapping[str, Any]
    """Case id -> its geometry as JSON: native shape, affine and the box that the cube covers."""

    def native(self, case: str) -> Path:
        return self.directory / "native" / f"{case}.nii.gz"

    def cube(self, case: str) -> Path:
        return self.directory / "cube" / f"{case}.nii.gz"

    def save(self) -> None:
        """Write predictions.json. The folder is left out: it may be moved."""
        values = {name: value for name, value in asdict(self).items() if name != "directory"}
        write_json(self.directory / INDEX, values)


def folder_in(path: Path) -> Path | None:
    """The finished predictions folder that `path` is, or has in it as a run directory does."""
    return next((place for place in (path, path / "predictions") if (place / INDEX).is_file()), None)


def load(path: Path) -> Predictions:
    """The predictions in `path`: a predictions folder, or a run directory that has one. InputError otherwise."""
    if not path.is_dir():
        raise InputError(
            f"{path}: found {'a file' if path.exists() else 'nothing'}; expected a folder that lms3d.predict made, "
            "or a run directory; check the path"
        )
    directory = folder_in(path)
    if directory is None:
        is_run = (path / "config.json").is_file()
        raise InputError(
            f"{path}: found {'a run without predictions' if is_run else f'no {INDEX}'}; expected finished predictions; "
            f"run `python -m lms3d.predict {path if is_run else 'RUN_DIR'}` first"
        )
    return _read(directory)


def load_all(paths: Sequence[Path]) -> list[Predictions]:
    """Several predictions folders, with labels that tell them apart."""
    found = [load(path) for path in paths]
    labels = [one.label for one in found]
    if len(set(labels)) < len(labels):  # the same run twice, with and without --tta for example: use the folders
        labels = [str(path) for path in paths]
    if len(set(labels)) < len(labels):
        raise InputError(f"PREDICTIONS: found {paths[0]} twice; expected different folders; name each once")
    return [replace(one, label=label) for one, label in zip(found, labels, strict=True)]


def _read(directory: Path) -> Predictions:
    try:
        values = json.loads((directory / INDEX).read_text(encoding="utf-8"))
        return Predictions(directory=directory, **values)
    except (OSError, ValueError, TypeError) as error:
        raise InputError(
            f"{directory / INDEX}: found a file that cannot be used ({error}); expected what lms3d.predict writes; "
            "predict again"
        ) from None


def write_labels(labels: np.ndarray, affine: np.ndarray, path: Path) -> None:
    """Label map (X, Y, Z) -> compressed NIfTI of uint8, in millimetres."""
    import nibabel as nib

    image = nib.Nifti1Image(labels.astype(np.uint8), affine)
    image.header.set_xyzt_units("mm")
    with replacing(path) as partial:
        partial.write_bytes(gzip.compress(image.to_bytes(), compresslevel=6, mtime=0))  # the same bytes every time


def read_labels(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Label map (X, Y, Z) uint8 and affine (4, 4). InputError for a missing or damaged file."""
    import nibabel as nib

    try:
        image: Any = nib.load(path)
        return np.asarray(image.dataobj).astype(np.uint8), np.asarray(image.affine)
    except Exception as error:  # nibabel, zlib and gzip raise many kinds
        raise InputError(
            f"{path}: found {'nothing' if not path.exists() else f'an unreadable file ({error})'}; expected a label "
            "map; predict again"
        ) from None


def cube_affine(geometry: Mapping[str, Any], resolution: int) -> np.ndarray:
    """Cube voxel indices -> millimetres (4, 4): a viewer lays the cube over the native images."""
    lower, upper = (np.array(corner, float) for corner in geometry["box"])
    scale = (upper - lower) / resolution
    to_native = np.eye(4)
    to_native[:3, :3] = np.diag(scale)
    to_native[:3, 3] = lower - 0.5 + scale / 2  # edges of both grids coincide
    return np.array(geometry["affine"], float) @ to_native
