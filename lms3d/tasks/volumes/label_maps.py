"""A predictions folder: what `lms3d.predict` writes and `lms3d.evaluate` reads.

native/<case>.nii.gz     label map on the grid of the case's files, with the header of the first
cube/<case>.nii.gz       label map on the cube of the network, uint8; its affine puts it over the same brain
uncertainty/<case>.nii.gz  with --uncertainty: the entropy of the probabilities in nats, float32, on the grid of the files
predictions.json         the origin of the maps; it is written last: a folder without it is unfinished
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from lms3d.atomic_files import write_json
from lms3d.common import json_values
from lms3d.data import pseudonyms
from lms3d.data.brats import definition
from lms3d.data.brats.schema import schema_named
from lms3d.data.errors import DataError
from lms3d.data.segmentation.description import MOST_LABEL, Description
from lms3d.data.volumes import targets, volume
from lms3d.data.volumes.case import nearness
from lms3d.data.volumes.geometry import Geometry
from lms3d.data.volumes.header import raw_header, read_header
from lms3d.data.volumes.labels import LabelSchema
from lms3d.errors import InputError
from lms3d.tasks.streaming import nifti
from lms3d.tasks.streaming.volumes import Array

INDEX = "predictions.json"
BRATS = "brats"  # the only task of earlier versions
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
    task: str = BRATS
    """The task that the network has learnt."""
    model: str
    shape: tuple[int, int, int] | None
    """The shape of the network's grid; None if each case has its own."""
    stretched: bool
    """Whether the brain fills that grid; otherwise its voxels are 1 mm."""
    tta: str | None
    """The symmetries over which predictions were averaged, one of `lms3d.data.volumes.symmetries.SETS`; None: none."""
    data: str
    """The folder of the data set."""
    fingerprint: str
    """The fingerprint of the data set."""
    schema: str
    """The name of the label schema of the maps."""
    meaning: Mapping[str, Any] = field(default_factory=dict)
    """That schema, as `lms3d.data.brats.definition` or `lms3d.data.segmentation.description` has it; empty if an earlier version
    wrote the file."""
    targets: str = "labels"
    """What the network has learnt: a name in `lms3d.data.volumes.targets.KINDS`."""
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

    def uncertainty(self, case: str) -> Path:
        return self.directory / "uncertainty" / f"{case}.nii.gz"

    @property
    def schema_of_truth(self) -> str:
        """The name of the label schema with which the data set was read."""
        return self.schema_of_data or self.schema

    @property
    def coding(self) -> LabelSchema:
        """The label schema of the maps."""
        return coding(self.task, self.schema, self.meaning, str(self.directory / INDEX))

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
        meaning = values.get("meaning")
        if meaning and coding(values.get("task", BRATS), "", meaning, "meaning").name != values["schema"]:
            raise ValueError(f"found the meaning of other labels than {values['schema']!r}")
        if values.get("targets", "labels") not in targets.KINDS:
            raise ValueError(f"found targets {values['targets']!r}; expected {' or '.join(targets.KINDS)}")
        return Predictions(directory=directory, **values)
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise InputError(
            f"{directory / INDEX}: found a file that cannot be used ({error}); expected what lms3d.predict writes; "
            "predict again"
        ) from None


def coding(task: str, name: str, meaning: Mapping[str, Any], where: str) -> LabelSchema:
    """The label schema that `meaning` describes; one of BraTS by its name, if there is no meaning. DataError if there is none."""
    if task != BRATS:
        return Description.from_json(meaning, where=where).schema
    return definition.restored(meaning, where=where) if meaning else schema_named(name)


def task_in(path: Path) -> str | None:
    """The task of the predictions in `path`, or of the run that is there; None if there is neither."""
    folder = folder_in(path)
    file = path / "config.json" if folder is None else folder / INDEX
    try:
        values = json_values.parse(file.read_text(encoding="utf-8"))
        return str((values if folder else values["options"]).get("task", BRATS))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None if folder is None else BRATS  # `load` says what is wrong with it


def _as_now(values: dict[str, Any]) -> dict[str, Any]:
    """What an earlier version wrote, with today's keys."""
    if "resolution" in values:
        values["shape"], values["stretched"] = (values.pop("resolution"),) * 3, True
        values["tta"] = "all" if values["tta"] else None
    return {**values, "shape": tuple(values["shape"]) if values["shape"] is not None else None}


def write_labels(labels: np.ndarray, affine: np.ndarray, path: Path) -> None:
    """Writes a label map (X, Y, Z) as a compressed NIfTI file of uint8, in millimetres."""
    _write(labels, header_at(affine, labels.shape), path)


def write_like(labels: np.ndarray, image: Path, path: Path) -> None:
    """Writes a label map (X, Y, Z) as a compressed NIfTI file with the header of `image`: see `header_like`."""
    _write(labels, header_like(image, labels.shape), path)


def _write(labels: np.ndarray, header: Any, path: Path) -> None:
    nifti.write(Array(labels[..., np.newaxis]), path, header, lambda planes: planes[..., 0])


def header_at(affine: np.ndarray, shape: Sequence[int]) -> Any:
    """The header of a NIfTI file of uint8 on this grid, in millimetres."""
    image = _without_voxels(shape, np.uint8, affine, None)
    image.header.set_xyzt_units("mm")
    return image.header


def header_like(image: Path, shape: Sequence[int], *, kind: Any = None) -> Any:
    """The header of `image`, for a file on its grid. InputError if that has another shape.

    The free text and the extensions of that header are left out, and so is a damaged qform beside a sound sform. The type is
    `kind`, or else that of the image, or uint8 if that is a floating-point type or int8: labels are whole numbers up to 255.
    """
    import nibabel as nib

    like, said = raw_header(image), read_header(image)
    found = tuple(int(size) for size in like.get_data_shape()[:3])
    if tuple(shape) != found:
        raise InputError(f"{image}: found shape {found}; expected {tuple(shape)} as was predicted; predict again")
    header = nib.Nifti1Header.from_header(like, check=False)
    header.extensions.clear()  # DICOM headers may stand there, with names
    for text in _FREE_TEXT:
        header[text] = b""
    stored = like.get_data_dtype()
    holds_labels = stored.kind in "iu" and np.iinfo(stored).max >= MOST_LABEL
    stored = np.dtype(kind) if kind is not None else stored if holds_labels else np.dtype(np.uint8)
    header.set_data_dtype(stored)
    header["cal_min"], header["cal_max"] = 0, 0  # the window of a scan would hide labels
    if said.qform_code and said.qform is None:
        header["quatern_b"], header["quatern_c"], header["quatern_d"] = 0, 0, 0
    written = _without_voxels(shape, stored, like.get_best_affine(), header)
    # Nifti1Image sets codes of its own.
    written.set_qform(said.qform, 0 if said.qform is None else said.qform_code)
    matrix, code = like.get_sform(coded=True)
    written.set_sform(matrix, int(code))
    return written.header


def _without_voxels(shape: Sequence[int], kind: Any, affine: np.ndarray, header: Any) -> Any:
    """nibabel's image of zeros, which take no memory."""
    import nibabel as nib

    return nib.Nifti1Image(np.broadcast_to(np.zeros((), kind), tuple(shape)), affine, header)


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
