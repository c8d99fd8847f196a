"""A predictions folder: what `lms3d.predict` writes and `lms3d.evaluate` reads.

native/<case>.nii.gz     label map on the grid of the case's files, with the header of the first
cube/<case>.nii.gz       label map on the cube of the network, uint8; its affine puts it over the same brain
predictions.json         the origin of the maps; it is written last: a folder without it is unfinished
"""

from __future__ import annotations

import gzip
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from lms3d.common import json_values
from lms3d.data import pseudonyms
from lms3d.data.brats import definition, targets, volume
from lms3d.data.brats.case import nearness
from lms3d.data.brats.geometry import Geometry
from lms3d.data.brats.header import nifti_image, read_header
from lms3d.data.errors import DataError
from lms3d.errors import InputError
from lms3d.files import replacing, write_json

INDEX = "predictions.json"
_FREE_TEXT = ("data_type", "db_name", "intent_name", "descrip", "aux_file")
"""The fields of a header for free text: programs have written names and dates of birth there."""


@dataclass(frozen=True, kw_only=True)
class Predictions:
    """The content of predictions.json, and the folder in which it lies."""

    directory: Path
    label: str
    """A short name for tables and figures: the name of the run."""
    run: str
    """The run directory that made them."""
    model: str
    shape: tuple[int, int, int]
    """The shape of the network's grid."""
    stretched: bool
    """Whether the brain fills that grid; otherwise its voxels are 1 mm."""
    tta: str | None
    """The symmetries over which predictions were averaged, one of `lms3d.data.brats.symmetries.SETS`; None: none."""
    data: str
    """The folder of the data set."""
    fingerprint: str
    """The fingerprint of the data set."""
    schema: str
    """The name of the label schema of the maps."""
    meaning: Mapping[str, Any] = field(default_factory=dict)
    """That schema, as `lms3d.data.brats.definition` describes it; empty if an earlier version wrote the file."""
    targets: str = "labels"
    """What the network has learnt: a name in `lms3d.data.brats.targets.KINDS`."""
    schema_of_data: str = ""
    """The name of the data set's own schema, if the network does not know its labels; empty: it is `schema`."""
    left_out: list[str] = field(default_factory=list)
    """The cases of the data set that could not be used."""
    cases: Mapping[str, Any]
    """Case id -> its geometry as JSON: native shape, affine and the box that the cube covers."""

    def native(self, case: str) -> Path:
        return self.directory / "native" / f"{case}.nii.gz"

    def cube(self, case: str) -> Path:
        return self.directory / "cube" / f"{case}.nii.gz"

    @property
    def schema_of_truth(self) -> str:
        """The name of the label schema with which the data set was read."""
        return self.schema_of_data or self.schema

    def save(self) -> None:
        """Writes predictions.json, without the folder: that may be moved."""
        values = {name: value for name, value in asdict(self).items() if name != "directory"}
        write_json(self.directory / INDEX, values)


def folder_in(path: Path) -> Path | None:
    """The finished predictions folder: `path` itself, or the one in it if `path` is a run directory; None if there is none."""
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
            f"{path}: found {'a run without predictions' if is_run else f'no {INDEX} and no label map'}; expected finished "
            "predictions, or <case>.nii.gz of any program; "
            f"run `python -m lms3d.predict {path if is_run else 'RUN_DIR'}` first"
        )
    return _read(directory)


def load_all(paths: Sequence[Path]) -> list[Predictions]:
    """Several predictions folders, with different labels."""
    found = [load(path) for path in paths]
    labels = [one.label for one in found]
    if len(set(labels)) < len(labels):  # the same run twice, with and without --tta for example: use the folders
        labels = [str(path) for path in paths]
    if len(set(labels)) < len(labels):
        raise InputError(f"PREDICTIONS: found {paths[0]} twice; expected different folders; name each once")
    return [replace(one, label=label) for one, label in zip(found, labels, strict=True)]


def _read(directory: Path) -> Predictions:
    try:
        values = _as_now(json_values.parse((directory / INDEX).read_text(encoding="utf-8")))
        pseudonyms.know([*values["cases"], *values.get("left_out", [])])
        json_values.require_types(values, Predictions)
        for case, geometry in values["cases"].items():
            if Path(case).name != case:
                raise ValueError(f"found case {case!r}, which names no file")
            Geometry.from_json(geometry)
        if values.get("meaning") and definition.restored(values["meaning"], where="meaning").name != values["schema"]:
            raise ValueError(f"found the meaning of other labels than {values['schema']!r}")
        if values.get("targets", "labels") not in targets.KINDS:
            raise ValueError(f"found targets {values['targets']!r}; expected {' or '.join(targets.KINDS)}")
        return Predictions(directory=directory, **values)
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise InputError(
            f"{directory / INDEX}: found a file that cannot be used ({error}); expected what lms3d.predict writes; "
            "predict again"
        ) from None


def _as_now(values: dict[str, Any]) -> dict[str, Any]:
    """What an earlier version wrote, with today's keys."""
    if "resolution" in values:
        values["shape"], values["stretched"] = (values.pop("resolution"),) * 3, True
        values["tta"] = "all" if values["tta"] else None
    return {**values, "shape": tuple(values["shape"])}


def write_labels(labels: np.ndarray, affine: np.ndarray, path: Path) -> None:
    """Writes a label map (X, Y, Z) as a compressed NIfTI file of uint8, in millimetres."""
    import nibabel as nib

    image = nib.Nifti1Image(labels.astype(np.uint8), affine)
    image.header.set_xyzt_units("mm")
    with replacing(path) as partial:
        partial.write_bytes(gzip.compress(image.to_bytes(), compresslevel=6, mtime=0))  # the same bytes every time


def write_like(labels: np.ndarray, image: Path, path: Path) -> None:
    """Writes a label map (X, Y, Z) as a compressed NIfTI file with the header of `image`.

    The free text and the extensions of that header are left out, and so is a damaged qform beside a sound sform. The type is that
    of the image, too, or uint8 if that is a floating-point type: labels are whole numbers.
    """
    import nibabel as nib

    like: Any = nifti_image(image)
    said = read_header(image)
    if labels.shape != like.shape[:3]:
        raise InputError(
            f"{image}: found shape {like.shape[:3]}; expected {labels.shape} as was predicted; predict again"
        )
    header = nib.Nifti1Header.from_header(like.header, check=False)
    header.extensions.clear()  # DICOM headers may stand there, with names
    for text in _FREE_TEXT:
        header[text] = b""
    stored = like.get_data_dtype()
    stored = stored if stored.kind in "iu" else np.dtype(np.uint8)
    header.set_data_dtype(stored)
    header.set_data_shape(labels.shape)
    header.set_slope_inter(1, 0)
    header["cal_min"], header["cal_max"] = 0, 0  # the window of a scan would hide labels
    if said.qform_code and said.qform is None:
        header["quatern_b"], header["quatern_c"], header["quatern_d"] = 0, 0, 0
    written = nib.Nifti1Image(labels.astype(stored), like.affine, header)
    # Nifti1Image sets codes of its own.
    written.set_qform(said.qform, 0 if said.qform is None else said.qform_code)
    matrix, code = like.get_sform(coded=True)
    written.set_sform(matrix, int(code))
    with replacing(path) as partial:
        partial.write_bytes(gzip.compress(written.to_bytes(), compresslevel=6, mtime=0))


def read_labels(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """The label map (X, Y, Z) uint8 and the affine (4, 4) of a file. InputError if it is missing, damaged or holds no labels.

    Another program may have changed the file: some write 0.99999994, which a plain conversion would turn into 0.
    """
    try:
        labels, header = volume.read_volume(path)
    except DataError as error:
        found = str(error).partition("; expected")[0]
        raise InputError(f"{found}; expected a label map; predict again") from None
    whole = np.rint(labels) if labels.dtype.kind == "f" else labels
    if np.abs(whole - labels).max(initial=0) > nearness(header.scale) or not (
        whole.min(initial=0) >= 0 and whole.max(initial=0) <= 255
    ):
        raise InputError(
            f"{path}: found values that are no whole numbers from 0 to 255; expected a label map; save labels, or predict again"
        )
    return whole.astype(np.uint8), header.affine
