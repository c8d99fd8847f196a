"""One case: its files, and reading them with all checks.

All files are returned in the frame of the first image. A file whose axes are only reversed or exchanged is turned, without loss; a
file on another grid is refused. Every function raises DataError, which names the file, for a file that cannot be used.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lms3d.data.errors import DataError
from lms3d.data.volumes import frame, volume
from lms3d.data.volumes.header import Header, read_header, text, unusable
from lms3d.data.volumes.labels import LabelSchema
from lms3d.data.volumes.patients import patient_of

LEAVE_OUT = "python -m lms3d.data.prepare DATA --skip-bad"
"""What leaves out cases that cannot be used."""
_NEAR = 1e-3  # a label that went through a scale factor, such as 0.99999994, is this near to a whole number
_NO_NAME = re.compile(r"[/\\\x00-\x1f\x7f]|^\.")
_LONGEST_ID = 180  # bytes; endings and the token of a temporary file must fit into the 255 of a file's name
_FARTHEST = 0.25  # under any scale factor: true fractions (1.5) are no labels


@dataclass(frozen=True, kw_only=True)
class Case:
    """The files of a case."""

    id: str
    images: Mapping[str, Path]
    """Channel -> file, for each of `channels` except the absent ones (`absent`) and the missing ones (see `problem`)."""
    channels: tuple[str, ...] = ()
    """The channels in the order of the data set's images. By default the keys of `images`."""
    truth: Path | None = None
    """The label map; None for a case that is only to be predicted."""
    other_truths: tuple[Path, ...] = ()
    """Other label maps of the case. `truth` is preferred to them, and they are not read."""
    volumes: Mapping[str, int] | None = None
    """Channel -> index on the fourth axis, if all channels are in one file."""
    patient: str = ""
    """The patient, the same for several visits. By default the one in the id."""
    known_as: tuple[str, ...] = ()
    """Every name of the patient in the data set, and marks of the images, by which other data sets may know the patient; see
    `patients`."""
    absent: tuple[str, ...] = ()
    """The channels that no case of the data set has. They are filled with zeros."""
    blanks: bool = False
    """Whether a channel may hold nothing but zeros, as long as another holds more."""
    grade: str | None = None
    """"HGG" or "LGG", if the data set says."""
    problem: str = ""
    """The reason why the case cannot be used, if the names of its files show it: the message of the DataError that reading
    raises."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "patient", self.patient or patient_of(self.id))
        object.__setattr__(self, "channels", self.channels or tuple(self.images))

    @property
    def files(self) -> tuple[Path, ...]:
        """Every file of the case once, in a fixed order."""
        paths = [self.images[channel] for channel in self.channels if channel in self.images]
        paths += [self.truth] if self.truth else []
        return tuple(dict.fromkeys(paths))


def header_of(case: Case) -> Header:
    """The header of the first image. Its frame is that of the case, and files written for the case get this header."""
    require_usable(case)
    return read_header(case.files[0])


def require_usable(case: Case) -> None:
    """DataError if a channel is missing."""
    if case.problem:
        raise DataError(case.problem)


def require_id(case_id: str, where: Path) -> None:
    """DataError for an id that cannot name a file in the folders of a cache and of predictions, or would lie outside them.

    where: the file that states the id, or is called by it.
    """
    if not case_id.strip() or _NO_NAME.search(case_id) or len(os.fsencode(case_id)) > _LONGEST_ID:
        raise DataError(
            f"{where}: found case {case_id[:_LONGEST_ID]!r}; expected an id that can name a file: 1 to {_LONGEST_ID} bytes without "
            "/ and line breaks, and no dot at the beginning; rename the case"
        )


def load_images(case: Case) -> tuple[np.ndarray, np.ndarray]:
    """The images, (X, Y, Z, C) float32 in the order of `case.channels`, and the affine of the first, (4, 4) float64.

    In memory one channel lies behind the other, so that each can be taken out without a copy.
    """
    require_usable(case)
    if case.volumes is not None:
        return _load_stacked(case, [case.volumes[channel] for channel in case.channels])
    images: np.ndarray | None = None
    present = [channel for channel in case.channels if channel not in case.absent]
    for channel in present:
        path = case.images[channel]
        array, header = volume.read_volume(path, np.float32)
        if images is None:
            first = header
            images = np.moveaxis(np.zeros((len(case.channels), *first.shape), np.float32), 0, -1)
        placed = _as_in(path, array, header, first.affine, first.shape, present[0], first.oriented)
        images[..., case.channels.index(channel)] = placed
    assert images is not None
    _require_content(case.files[0].parent, images, case)
    return images, first.affine


def load_truth(
    case: Case, schema: LabelSchema, shape: tuple[int, ...] | None = None, affine: np.ndarray | None = None
) -> np.ndarray | None:
    """The label map (X, Y, Z) uint8; None for a case without one.

    shape, affine (4, 4): of the images, if the caller knows them. DataError for a value outside `schema`.
    """
    if case.truth is None:
        return None
    array, header = volume.read_volume(case.truth)
    expected = header.affine if affine is None else affine
    oriented = affine is None or _is_oriented(case)
    array = _as_in(case.truth, array, header, expected, shape or array.shape, "the images", oriented)
    return _labels(case.truth, array, schema, header.scale)


def _is_oriented(case: Case) -> bool:
    """Whether the header of the first image says where its voxels lie. True if the header cannot be read."""
    try:
        return read_header(case.files[0]).oriented
    except DataError:  # it is reported when the image is read
        return True


def _as_in(
    path: Path,
    array: np.ndarray,
    header: Header,
    affine: np.ndarray,
    shape: tuple[int, ...],
    like: str,
    like_oriented: bool,
) -> np.ndarray:
    """The array of a file, with its axes in the order and direction of another file, which has `shape` and `affine`.

    like: the name of the other file for messages. like_oriented: whether its header says where its voxels lie.
    """
    oriented = header.oriented and like_oriented
    orientation = _turn(path, header, affine, shape, like, oriented)
    if orientation is None:
        frame.require_same(path, header.affine, affine, like, oriented=oriented)
    return frame.turned(array, orientation)


def _turn(
    path: Path, header: Header, affine: np.ndarray, shape: tuple[int, ...], like: str, oriented: bool
) -> np.ndarray | None:
    """The turn of `frame.turn`; None unless both headers say where their voxels lie. DataError if the shapes differ."""
    orientation = frame.turn(header.affine, header.shape[:3], affine, shape) if oriented else None
    if orientation is None and header.shape[:3] != tuple(shape):
        raise unusable(
            path, f"shape {text(header.shape)}", f"{text(tuple(shape))} as in {like}",
            "register all files of the case to one grid",
        )  # fmt: skip
    return orientation


def _load_stacked(case: Case, order: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """The images and the affine of all channels in one file. order: the index on its fourth axis for each channel."""
    path = case.images[case.channels[0]]
    shape = read_header(path).shape
    if (len(shape) != 4 or shape[3] != len(order)) and not (len(shape) == 3 and len(order) == 1):
        raise unusable(
            path, f"shape {text(shape)}", f"four axes, {len(order)} modalities on the last",
            "check that the file belongs to this data set",
        )  # fmt: skip
    array, header = volume.read(path, np.float32)
    array = array.reshape(*shape[:3], len(order))
    images = array if order == list(range(len(order))) else array[..., order]
    _require_content(path, images, case)
    return images, header.affine


def _require_content(where: Path, images: np.ndarray, case: Case) -> None:
    """DataError for a channel without content; if `case.blanks`, only for a case without any."""
    blank = [
        channel
        for index, channel in enumerate(case.channels)
        if channel not in case.absent and not images[..., index].any()
    ]
    if blank and (not case.blanks or len(blank) == len(case.channels)):
        raise DataError(
            f"{where}: found modality {blank[0]} with nothing but zeros; expected an image; replace the file or "
            "take the case out"
        )


def _labels(path: Path, array: np.ndarray, schema: LabelSchema, scale: tuple[float, float]) -> np.ndarray:
    """The label map (X, Y, Z) uint8. DataError for a voxel that is not near a label. scale: that of the header."""
    outside = _values_outside(array, schema.values, nearness(scale))
    if outside:
        scaled = f" ({scaling_in_words(scale)})" if any(value % 1 for value in outside) and scale != (1, 0) else ""
        raise DataError(
            f"{path}: found label {', '.join(f'{value:g}' for value in outside)}{scaled}; expected only "
            f"{', '.join(map(str, schema.values))} (labels of {schema.name}); {schema.advice}, or repair the file"
        )
    return np.rint(array).astype(np.uint8) if array.dtype.kind == "f" else array.astype(np.uint8)


def nearness(scale: tuple[float, float]) -> float:
    """The distance from a label that a value may have. scale: slope and intercept of the header. A value that is stored as an
    integer under a slope may be off by half the slope."""
    return max(_NEAR, min(abs(scale[0]) / 2, _FARTHEST)) if scale != (1, 0) else _NEAR


def scaling_in_words(scale: tuple[float, float]) -> str:
    """The scaling of a header, for messages about values that are no labels."""
    return f"its header scales them: scl_slope {scale[0]:g}, scl_inter {scale[1]:g}"


def _values_outside(labels: np.ndarray, allowed: tuple[int, ...], near: float) -> list[float]:
    """Up to five values that are not allowed, sorted. One pass for each allowed value is faster than sorting all voxels."""
    unknown = np.ones(labels.shape, bool)
    for value in allowed:
        unknown &= labels != value if labels.dtype.kind in "iu" else np.abs(labels - value) > near
    return [float(value) for value in np.unique(labels[unknown])[:5]] if unknown.any() else []
