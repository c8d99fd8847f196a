"""Radiographs as TFRecord shards of 256, made once per (data, split, resolution), for tf.data and for random access.

    <cache root>/images/<fingerprint>-<N>/
        index.json                              written last, when every shard exists
        training-00000-of-00004.tfrecord        records of {image: N*N bytes, labels: 14 x 0/1, name, patient}
        training-00000-of-00004.json            its contents: names, patients, labels, offsets of pixels, checksum
        skipped.csv                             images that were left out, and why; absent if there are none

Pixels are stored raw, in grey of 8 bits, at the size that the network takes. PNG would take about two thirds of the space, and 1-2
ms for each read at 224^2. Raw bytes are read at the speed of memory, by offset, from a memory-mapped file.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from lms3d.data import files, pseudonyms
from lms3d.data.chest_xray import patient_split
from lms3d.data.chest_xray.collection import FINDINGS, ImageProblem
from lms3d.data.errors import DataError

REPAIR = "delete this file and run again"
"""The advice for a damaged shard, which `shards.build` then makes again."""


@dataclass(frozen=True, kw_only=True)
class Shard:
    """One TFRecord file and its contents."""

    path: Path
    size_bytes: int
    crc32: int
    names: tuple[str, ...]
    patients: tuple[str, ...]
    labels: tuple[tuple[int, ...], ...]
    """The numbers of the findings of each image."""
    offsets: tuple[int, ...]
    """The position at which the pixels of each image start, in bytes."""
    skipped: tuple[ImageProblem, ...]

    @cached_property
    def content(self) -> np.ndarray:
        """The bytes of the file, (size,), memory-mapped. Their checksum is compared once per process."""
        try:
            content = np.memmap(self.path, np.uint8, "r").view(np.ndarray)
        except (OSError, ValueError) as error:
            raise DataError(
                f"{self.path}: found a shard that cannot be read ({error}); expected a TFRecord file; {REPAIR}"
            ) from None
        if len(content) != self.size_bytes or zlib.crc32(content.data) != self.crc32:
            raise DataError(f"{self.path}: found a damaged shard (wrong checksum); expected what was written; {REPAIR}")
        return content


@dataclass(frozen=True, kw_only=True)
class Part:
    """The training, validation or test part: the images of its shards, one after the other."""

    shards: tuple[Shard, ...]
    resolution: int
    names: tuple[str, ...]
    patients: tuple[str, ...]
    labels: np.ndarray = field(repr=False, compare=False)
    """(images, 14) uint8; 1 if the finding is present."""
    _places: tuple[tuple[Shard, int], ...] = field(repr=False, compare=False)

    @classmethod
    def of(cls, shards: Sequence[Shard], resolution: int) -> Part:
        """The part that consists of these shards."""
        numbers = [findings for shard in shards for findings in shard.labels]
        labels = np.zeros((len(numbers), len(FINDINGS)), np.uint8)
        for row, present in zip(labels, numbers, strict=True):
            row[list(present)] = 1
        return cls(
            shards=tuple(shards), resolution=resolution, labels=labels,
            names=tuple(name for shard in shards for name in shard.names),
            patients=tuple(patient for shard in shards for patient in shard.patients),
            _places=tuple((shard, offset) for shard in shards for offset in shard.offsets),
        )  # fmt: skip

    def __len__(self) -> int:
        return len(self._places)

    def image(self, number: int) -> np.ndarray:
        """Image `number`, (N, N) uint8, as a view of the shard. DataError for a damaged shard."""
        shard, offset = self._places[number]
        size = self.resolution
        pixels = shard.content[offset : offset + size * size]
        if len(pixels) < size * size:
            raise DataError(f"{shard.path}: found {len(pixels)} bytes of an image; expected {size}x{size}; {REPAIR}")
        return pixels.reshape(size, size)

    @property
    def files(self) -> list[str]:
        """The TFRecord files, in order."""
        return [str(shard.path) for shard in self.shards]


@dataclass(frozen=True, kw_only=True)
class Index:
    """Finished shards, for reading."""

    directory: Path
    resolution: int
    fingerprint: str
    """A digest of the data set, the split and the images left out. It does not depend on where the data set lies."""
    parts: Mapping[str, Part]
    """The parts `training`, `validation` and `test`. No patient is in two of them."""
    skipped: tuple[ImageProblem, ...]
    """The images that were left out."""


def open_index(directory: str | Path) -> Index:
    """The finished shards in a folder that `shards.build` made."""
    directory = files.readable_directory(directory)
    index = directory / "index.json"
    about = files.read_json(index, advice="build it with `python -m lms3d.data.prepare`", keys=_INDEX)
    with _reported_values(index):
        skipped = _problems(about["skipped"])
        resolution, fingerprint = int(about["resolution"]), str(about["fingerprint"])
        listed = {part: [_own_name(file) for file in about["parts"][part]] for part in patient_split.PARTS}
    shards = {part: [read_contents(directory / file) for file in names] for part, names in listed.items()}
    parts = {part: Part.of(of_part, resolution) for part, of_part in shards.items()}
    patient_split.require_disjoint({name: part.patients for name, part in parts.items()}, directory)
    return Index(
        directory=directory, resolution=resolution, fingerprint=fingerprint, parts=parts, skipped=skipped,
    )  # fmt: skip


def read_contents(file: Path) -> Shard:
    """A shard, as the JSON file beside its TFRecord file describes it."""
    path = file.with_suffix(".json")
    about = files.read_json(path, advice=REPAIR, keys=_CONTENTS)
    with _reported_values(path):
        shard = _shard(file, about)
    pseudonyms.know([Path(name).stem for name in shard.names], "image")
    pseudonyms.know(shard.patients, "patient")
    return shard


_INDEX = ("resolution", "fingerprint", "parts", "skipped")
_CONTENTS = ("bytes", "crc32", "names", "patients", "labels", "offsets", "skipped")


def _shard(path: Path, about: Mapping[str, Any]) -> Shard:
    shard = Shard(
        path=path, size_bytes=int(about["bytes"]), crc32=int(about["crc32"]), names=tuple(map(str, about["names"])),
        patients=tuple(map(str, about["patients"])), labels=tuple(map(tuple, about["labels"])),
        offsets=tuple(map(int, about["offsets"])), skipped=_problems(about["skipped"]),
    )  # fmt: skip
    if not len(shard.names) == len(shard.patients) == len(shard.labels) == len(shard.offsets):
        raise ValueError("lists of different lengths")
    if not all(label in range(len(FINDINGS)) for labels in shard.labels for label in labels):
        raise ValueError("an unknown finding")
    if not all(0 <= offset < shard.size_bytes for offset in shard.offsets):
        raise ValueError("an image beyond the end")
    return shard


def _problems(value: Sequence[Sequence[str]]) -> tuple[ImageProblem, ...]:
    return tuple(ImageProblem(image=str(image), line=str(line)) for image, line in value)


def _own_name(name: str) -> str:
    """The name of a file in the same folder. ValueError for a path that leads out of it."""
    if Path(name).name != name or name == "..":
        raise ValueError(f"file {name!r}")
    return name


@contextmanager
def _reported_values(path: Path) -> Iterator[None]:
    """A block in which an error about the values in a file becomes a DataError."""
    try:
        yield
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
        raise DataError(
            f"{path}: found values that cannot be used ({error}); expected what was written; {REPAIR}"
        ) from None
