"""Writes radiographs as TFRecord shards, which `records` reads.

It follows rules CACHE-1, -2 and -3 of `lms3d.data.files`. A bad image shortens its own shard, and moves no other image.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from lms3d.common.disk import cache_directory
from lms3d.data import files
from lms3d.data.chest_xray import collection as chest_xray
from lms3d.data.chest_xray import patient_split, png, tfrecord
from lms3d.data.chest_xray.collection import FINDINGS, Collection, Radiograph
from lms3d.data.chest_xray.records import REPAIR, Index, open_index, read_contents
from lms3d.data.errors import DataError
from lms3d.data.files import Progress
from lms3d.data.workers import run_all

SHARD_IMAGES = 256
"""The number of images in a shard, as in the case study."""

_FORMAT = 1  # raise it when the content of shards changes
_RECORD_BYTES = 200  # of a record without its pixels, about
_SMALLEST, _LARGEST = 32, 1024


def check_resolution(resolution: int) -> None:
    """DataError unless images of this size can be made."""
    if not _SMALLEST <= resolution <= _LARGEST:
        raise DataError(
            f"--resolution: found {resolution}; expected {_SMALLEST} to {_LARGEST}; 224 is the size of CheXNet"
        )


def build(
    collection: Collection,
    resolution: int,
    *,
    directory: str | Path | None = None,
    skip_bad: bool = False,
    seed: int = 0,
    workers: int | None = None,
    progress: Progress | None = None,
) -> Index:
    """The shards of a collection. Missing ones are made in parallel processes; if none is missing, it returns at once.

    directory: the folder of shard folders (default: `images` in the cache folder). seed: that of the split.
    skip_bad: whether to leave out images with a problem (`Index.skipped`); if not, the first one raises DataError. Finished shards
    are taken as they are, with the images that they leave out.
    """
    check_resolution(resolution)
    fingerprint = hashlib.sha256(repr((_FORMAT, collection.fingerprint, seed)).encode()).hexdigest()
    root = Path(directory).expanduser() if directory else cache_directory() / "images"
    target = root / f"{fingerprint[:16]}-{resolution}"  # CACHE-1
    if not (skip_bad or _is_complete(target)):
        chest_xray.require_sound(collection.problems)
    fill = partial(_fill, target, collection, resolution, fingerprint, seed, skip_bad, workers, progress)
    files.build_once(target, lambda: _is_complete(target), fill, progress)
    return open_index(target)


def _is_complete(directory: Path) -> bool:
    try:
        shards = files.read_json(directory / "index.json", advice=REPAIR)["parts"].values()
        return all(_is_sound(directory / file) for part in shards for file in part)
    except (DataError, KeyError, TypeError, AttributeError):
        return False


def _is_sound(shard: Path) -> bool:
    """Whether a shard has the right size (CACHE-3)."""
    try:
        return shard.stat().st_size == read_contents(shard).size_bytes
    except (DataError, OSError, KeyError, TypeError, ValueError):
        return False


def _fill(
    target: Path, collection: Collection, resolution: int, fingerprint: str, seed: int, skip_bad: bool,
    workers: int | None, progress: Progress | None,
) -> None:  # fmt: skip
    """Makes the missing shards, then the index. The lock is held."""
    shards = {
        part: _deal(target, part, [collection.images[name] for name in names], seed)
        for part, names in patient_split.parts(collection, seed=seed).items()
    }
    missing = [(path, images) for part in shards.values() for path, images in part if not _is_sound(path)]
    files.require_space(target, sum(len(images) for _, images in missing) * (resolution**2 + _RECORD_BYTES))
    items = [(path, images, resolution, skip_bad) for path, images in missing]
    run_all(write_shard, items, workers=workers, progress=progress, what=f"shards of {resolution}^2 images")
    written = {part: [read_contents(path) for path, _ in dealt] for part, dealt in shards.items()}
    left_out = [p for part in written.values() for shard in part for p in shard.skipped]
    problems = sorted({(p.image, p.line) for p in (*collection.problems, *left_out)})
    for part, contents in written.items():
        if not any(shard.names for shard in contents):
            raise DataError(f"{collection.root}: found no sound image for {part}; expected one; mend some")
    about = {
        "resolution": resolution,
        "fingerprint": hashlib.sha256(repr((fingerprint, problems)).encode()).hexdigest(),
        "findings": FINDINGS,
        "parts": {part: [shard.path.name for shard in contents] for part, contents in written.items()},
        "skipped": problems,
    }
    with files.reported_writes(target):
        if problems:
            files.write_table(target / "skipped.csv", [("image", "problem"), *problems])
        files.write_json(target / "index.json", about)


def _deal(target: Path, part: str, images: Sequence[Radiograph], seed: int) -> list[tuple[Path, list[Radiograph]]]:
    """The shard files of a part, each with its images.

    Training images are dealt in random order, because tf.data shuffles only within its buffer, and the images of a patient must not
    come together. The other images keep the order of their names.
    """
    if part == "training":
        images = [images[i] for i in np.random.default_rng([abs(seed), len(images)]).permutation(len(images))]
    count = -(-len(images) // SHARD_IMAGES)
    return [
        (target / f"{part}-{k:05d}-of-{count:05d}.tfrecord", list(images[k * SHARD_IMAGES : (k + 1) * SHARD_IMAGES]))
        for k in range(count)
    ]


def write_shard(path: Path, images: Sequence[Radiograph], resolution: int, skip_bad: bool) -> None:
    """Reads, checks and resizes the images, and writes the shard and its contents. Runs in a worker."""
    about: dict[str, Any] = {"names": [], "patients": [], "labels": [], "offsets": [], "skipped": []}
    position, crc32 = 0, 0
    with files.reported_writes(path.parent), files.new_file(path) as temporary, temporary.open("wb") as stream:
        for image in images:
            try:
                pixels = png.read_grey(image.path, resolution).tobytes()
            except DataError as error:
                if not skip_bad:
                    raise
                about["skipped"].append((image.name, str(error)))
                continue
            record = tfrecord.record(_example(image, pixels))
            stream.write(record)
            crc32, position = zlib.crc32(record, crc32), position + len(record)
            about["names"].append(image.name)
            about["patients"].append(image.patient)
            about["labels"].append([FINDINGS.index(finding) for finding in image.findings])
            about["offsets"].append(position - tfrecord.FOOTER_BYTES - len(pixels))
    with files.reported_writes(path.parent):
        files.write_json(path.with_suffix(".json"), {"bytes": position, "crc32": crc32, **about})


def _example(image: Radiograph, pixels: bytes) -> bytes:
    return tfrecord.example({
        "name": image.name.encode(),
        "patient": image.patient.encode(),
        "labels": [int(finding in image.findings) for finding in FINDINGS],
        "image": pixels,  # last, so that the position of the pixels in the file is known
    })  # fmt: skip
