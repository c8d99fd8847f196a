"""One case in a cache: how its entry is made, written and read. `cache` says what lies in which file.

Besides the images, as float32, one channel at a time is in memory as float32: resampled, then divided by a power of two and kept as
float16.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from lms3d.data import files
from lms3d.data.errors import DataError
from lms3d.data.volumes.case import LEAVE_OUT, Case, header_of, load_images, load_truth
from lms3d.data.volumes.geometry import Geometry, foreground_box
from lms3d.data.volumes.labels import LabelSchema
from lms3d.data.volumes.preprocess import Preprocessing, to_grid

NAME, BAD = "entry.json", ".bad"
REPAIR = "delete the folder of this entry and run again"
_LEAST_STD = 1e-4  # a share of the mean; a modality with one value everywhere must not become infinite
_FIGURES = ("scale", "mean", "std", "brain_mean", "brain_std")
_KEYS = ("geometry", *_FIGURES, "files")


def read(path: Path, channels: int) -> dict[str, Any]:
    """The content of an entry.json. DataError if its values are not such as `make` writes."""
    entry: dict[str, Any] = files.read_json(path, advice=REPAIR, keys=_KEYS)
    try:
        Geometry.from_json(entry["geometry"])
        figures = np.array([entry[name] for name in _FIGURES], float)
        checksums = [about["crc32"] for about in entry["files"].values()]
        corners = np.array(entry.get("brain", np.zeros((2, 3))), int)
        right = figures.shape == (len(_FIGURES), channels) and np.isfinite(figures).all() and corners.shape == (2, 3)
        if not (right and "image.npy" in entry["files"] and all(isinstance(crc32, int) for crc32 in checksums)):
            raise ValueError("figures of another kind")
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
        raise DataError(f"{path}: found a damaged cache entry ({error}); expected what was written; {REPAIR}") from None
    return entry


def is_sound(folder: Path) -> bool:
    """Whether the files of an entry have the right sizes (CACHE-3)."""
    try:
        stored = files.read_json(folder / NAME, advice=REPAIR)["files"]
        return all((folder / name).stat().st_size == about["bytes"] for name, about in stored.items())
    except (DataError, OSError, KeyError, TypeError, AttributeError, ValueError):
        return False


def voxels(how: Preprocessing, case: Case) -> int:
    """The voxels of a case on the network's grid, at most."""
    if how.shape is not None:
        return math.prod(how.shape)
    try:
        header = header_of(case)
    except DataError:  # it is reported when the case is read
        return 0
    return math.prod(how.grid_shape(header.shape[:3], header.affine))


def make(case: Case, schema: LabelSchema, how: Preprocessing, target: Path, skip_bad: bool = False) -> None:
    """Reads, checks and preprocesses one case, and writes its entry. Runs in a worker.

    skip_bad: if the case cannot be used, write the reason to a file beside `target`.
    """
    try:
        entry, arrays = _content(case, schema, how)
    except DataError as error:
        if not skip_bad:
            advice = "" if LEAVE_OUT in str(error) else f", or leave the case out ({LEAVE_OUT})"
            raise DataError(f"{error}{advice}") from None
        with files.reported_writes(target.parent), files.new_file(target.with_name(target.name + BAD)) as temporary:
            temporary.write_text(str(error), encoding="utf-8", errors="backslashreplace")
        return
    with files.reported_writes(target), files.new_directory(target) as temporary:
        for name, array in arrays.items():
            np.save(temporary / name, array)
            size = (temporary / name).stat().st_size
            entry["files"][name] = {"bytes": size, "crc32": zlib.crc32(np.ascontiguousarray(array).data)}
        files.write_json(temporary / NAME, entry)


def _content(case: Case, schema: LabelSchema, how: Preprocessing) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """(entry.json of a case without its files, file name -> array)."""
    images, affine = load_images(case)
    how.require_room(images.shape, affine, case.files[0])
    truth = load_truth(case, schema, images.shape[:3], affine)
    channels, small_truth, geometry = to_grid(images, truth, affine, how)
    target = how.grid_shape(geometry.box.shape, affine)
    stored = np.empty((*target, images.shape[3]), np.float16)
    scale = np.array([_to_float16(channel, stored[..., index]) for index, channel in enumerate(channels)])
    facts, more = how.facts(images, truth, stored, scale, schema)
    brain_box = foreground_box(images)
    mean, std = (figure * scale for figure in _figures(stored))
    brain_mean, brain_std = (figure * scale for figure in _figures(stored, inside=True))
    entry: dict[str, Any] = {
        "id": case.id,
        "geometry": geometry.to_json(),
        "brain": [list(brain_box.lower), list(brain_box.upper)],
        "scale": scale.tolist(),
        "mean": mean.tolist(),
        "std": _or_one(std, mean, std).tolist(),
        "brain_mean": brain_mean.tolist(),
        "brain_std": _or_one(np.maximum(brain_std, _LEAST_STD * np.abs(brain_mean)), brain_mean, brain_std).tolist(),
        "files": {},
        **facts,
    }
    return entry, {"image.npy": stored} | ({} if small_truth is None else {"truth.npy": small_truth}) | more


def _to_float16(channel: np.ndarray, stored: np.ndarray) -> float:
    """Writes a channel (A, B, C) float32, divided by its scale, to `stored`, float16. Returns the scale. The channel is changed.

    The scale is a power of two that brings the largest value to 16,384-32,768. So nothing overflows (float16 ends at 65,504), and
    the division itself is exact. The relative error of 2^-11 is a hundredth of the noise in such images.
    """
    largest = max(float(channel.max()), -float(channel.min())) or 1.0
    scale = 2.0 ** (math.ceil(math.log2(max(largest, float(np.finfo(np.float32).tiny)))) - 15)
    channel /= np.float32(scale)
    stored[...] = channel
    return scale


def _figures(stored: np.ndarray, *, inside: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """The means and the standard deviations (C,) of stored images (A, B, C, channels). inside: only of voxels in which any channel
    differs from 0.

    They are summed in float64 plane by plane: a whole volume in float64 would be four times as large as the stored one.
    """

    def planes() -> Iterator[np.ndarray]:
        for plane in stored:
            values = plane.reshape(-1, plane.shape[-1])
            yield (values[(values != 0).any(axis=-1)] if inside else values).astype(np.float64)

    counts, sums = zip(*((len(plane), plane.sum(axis=0)) for plane in planes()), strict=True)
    count = max(1, sum(counts))
    mean = np.sum(sums, axis=0) / count
    squares = np.sum([np.square(plane - mean).sum(axis=0) for plane in planes()], axis=0)
    return mean, np.sqrt(squares / count)


def _or_one(figure: np.ndarray, mean: np.ndarray, std: np.ndarray) -> np.ndarray:
    """The deviations (C,) to divide by: 1 for an absent channel, whose voxels are all 0."""
    return np.where((mean != 0) | (std != 0), figure, 1.0)
