"""Cubes on disk, made once per (data, labels, resolution, N4), and read whole.

    <cache root>/cubes/<fingerprint>-<schema>-<N>[-n4]/
        index.json                  written last: every entry is there
        <case id>/image.npy         (N, N, N, 4) float16, divided by a power of two per channel so that it fits
        <case id>/truth.npy         (N, N, N) uint8, absent for a case without truth
        <case id>/entry.json        geometry, scale, statistics, size and checksum of both files

Rules: CACHE-1, -2 and -3 of `data.files`.
"""

from __future__ import annotations

import contextlib
import hashlib
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from data import files
from data.brats.case import Case, check_frames, load_images, load_truth
from data.brats.preprocess import Geometry, check_resolution, to_cube
from data.brats.schema import LabelSchema
from data.errors import DataError
from data.files import Progress
from data.workers import run_all

_FORMAT = 1  # raise it when a change of the preprocessing changes what is stored
_SAMPLE_BYTES = 4096
_REPAIR = "delete the folder of this entry and run again"
_REPAIR_INDEX = "delete it and run again"


@dataclass(frozen=True, kw_only=True)
class Cache:
    """A finished cache, for reading."""

    directory: Path
    ids: tuple[str, ...]
    """Cases, sorted."""
    resolution: int
    fingerprint: str
    """Of the data set; independent of where it lies."""
    schema: LabelSchema
    n4: bool
    _entries: dict[str, dict[str, Any]] = field(default_factory=dict, repr=False, compare=False)
    _verified: set[Path] = field(default_factory=set, repr=False, compare=False)

    def geometry(self, case_id: str) -> Geometry:
        """The way from the cube back to the native grid."""
        return Geometry.from_json(self.entry(case_id)["geometry"])

    def image(self, case_id: str) -> np.ndarray:
        """The images (N, N, N, 4) float32, before normalisation."""
        stored, scale = self.stored_image(case_id)
        return np.multiply(stored, scale, dtype=np.float32)

    def stored_image(self, case_id: str) -> tuple[np.ndarray, np.ndarray]:
        """The images as they are stored, (N, N, N, 4) float16, and the scale (4,) to multiply with."""
        scale = np.asarray(self.entry(case_id)["scale"], np.float32)
        return self._load(case_id, "image.npy", (self.resolution,) * 3 + (4,), np.float16), scale

    def truth(self, case_id: str) -> np.ndarray | None:
        """The label map (N, N, N) uint8, or None for a case without truth."""
        if "truth.npy" not in self.entry(case_id)["files"]:
            return None
        return self._load(case_id, "truth.npy", (self.resolution,) * 3, np.uint8)

    def entry(self, case_id: str) -> dict[str, Any]:
        """entry.json of a case: geometry, scale, mean (4,), std (4,), files."""
        if case_id not in self._entries:
            if case_id not in self.ids:
                raise DataError(
                    f"{self.directory}: found no case {case_id!r}; expected one of {len(self.ids)} cases "
                    f"({self.ids[0]}, ...); check that the run belongs to this data set"
                )
            self._entries[case_id] = files.read_json(self.directory / case_id / "entry.json", advice=_REPAIR)
        return self._entries[case_id]

    def _load(self, case_id: str, name: str, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        path = self.directory / case_id / name
        try:
            # Not mapped: its page faults would be taken for those of lms3d's swap files, which call for a sync.
            array = np.load(path)
        except (OSError, ValueError, EOFError) as error:
            raise DataError(f"{path}: found a damaged cache entry ({error}); expected an array; {_REPAIR}") from None
        if array.shape != shape or array.dtype != dtype:
            raise DataError(
                f"{path}: found {array.dtype}{list(array.shape)}; expected {np.dtype(dtype)}{list(shape)}; {_REPAIR}"
            )
        if path not in self._verified:  # once per process: it costs a read of the file, which the caller needs anyway
            if zlib.crc32(array.data) != self.entry(case_id)["files"][name]["crc32"]:
                raise DataError(
                    f"{path}: found a damaged cache entry (wrong checksum); expected what was written; {_REPAIR}"
                )
            self._verified.add(path)
        return array


def build(
    cases: Sequence[Case],
    schema: LabelSchema,
    resolution: int,
    *,
    directory: str | Path | None = None,
    n4: bool = False,
    workers: int | None = None,
    progress: Progress | None = None,
) -> Cache:
    """The cache of `cases`; makes what is missing, in parallel processes, and returns at once when nothing is.

    directory: where caches lie (default: `cubes` under the cache root).
    Raises DataError for the first case that cannot be used, and for a folder or disk that cannot take the cubes.
    """
    check_resolution(resolution)
    if not cases:
        raise DataError("cases: found none; expected at least one; give the folder of a data set")
    root = Path(directory).expanduser() if directory else files.cache_root() / "cubes"
    fingerprint = data_fingerprint(cases)
    # CACHE-1
    name = f"{fingerprint[:16]}-{schema.name}-{resolution}{'-n4' if n4 else ''}"
    cache = Cache(
        directory=root / name,
        ids=tuple(sorted(case.id for case in cases)),
        resolution=resolution,
        fingerprint=fingerprint,
        schema=schema,
        n4=n4,
    )
    if _is_complete(cache):
        _check_older(cache, cases)
    fill = partial(_fill, cache, cases, workers, progress)
    files.build_once(cache.directory, lambda: _is_complete(cache), fill, progress, len(cases))
    return cache


def data_fingerprint(cases: Sequence[Case]) -> str:
    """A name for the content of a data set: hex, the same wherever the set lies and however it was copied.

    Per file: its name, its size and samples of its bytes. The last bytes of a gzip file are the checksum of all voxels,
    so these see every change; an uncompressed file has none, so its modification time counts as well.
    """
    digest = hashlib.sha256(f"format {_FORMAT}".encode())
    for case in sorted(cases, key=lambda case: case.id):
        digest.update(repr((case.id, sorted(case.volumes.items()) if case.volumes else None)).encode())
        for path in case.files:
            digest.update(_file_sample(path))
    return digest.hexdigest()


def _file_sample(path: Path) -> bytes:
    try:
        with path.open("rb") as stream:
            size = stream.seek(0, 2)
            pieces = [f"{path.name} {size}".encode()]
            for start in sorted({0, size // 2, max(0, size - _SAMPLE_BYTES)}):
                stream.seek(start)
                pieces.append(stream.read(_SAMPLE_BYTES))
        if path.suffix != ".gz":
            pieces.append(str(path.stat().st_mtime_ns).encode())
    except OSError as error:
        raise DataError(f"{path}: found {error.strerror}; expected a readable file; check the data set") from None
    return b"\0".join(pieces)


def _is_complete(cache: Cache) -> bool:
    return (cache.directory / "index.json").is_file() and all(_is_sound(cache.directory / name) for name in cache.ids)


def _is_sound(entry: Path) -> bool:
    """Whether an entry is whole, as far as file sizes tell (CACHE-3)."""
    try:
        stored = files.read_json(entry / "entry.json", advice=_REPAIR)["files"]
        return all((entry / name).stat().st_size == about["bytes"] for name, about in stored.items())
    except (DataError, OSError, KeyError, TypeError):
        return False


def _fill(cache: Cache, cases: Sequence[Case], workers: int | None, progress: Progress | None) -> None:
    """Make the missing entries, then the index. The lock is held."""
    missing = []
    for case in cases:
        if _is_sound(cache.directory / case.id):
            check_frames(case)  # an earlier version may have made it
        else:
            missing.append(case)
    files.require_space(cache.directory, len(missing) * 9 * cache.resolution**3)  # 4 float16 and 1 byte per voxel
    items = [(case, cache.schema, cache.resolution, cache.n4, cache.directory / case.id) for case in missing]
    what = f"cubes of {cache.resolution}^3" + (" with N4" if cache.n4 else "")
    run_all(make_entry, items, workers=workers, progress=progress, what=what)
    with files.reported_writes(cache.directory):
        _write_index(cache)


def _check_older(cache: Cache, cases: Sequence[Case]) -> None:
    """Compares the frames of all files where an older version made the cache, which did not; once, if it can be noted."""
    if files.read_json(cache.directory / "index.json", advice=_REPAIR_INDEX).get("frames_checked"):
        return
    for case in cases:
        check_frames(case)
    with contextlib.suppress(OSError):  # a cache that may only be read
        _write_index(cache)


def _write_index(cache: Cache) -> None:
    index = {
        "ids": cache.ids,
        "resolution": cache.resolution,
        "fingerprint": cache.fingerprint,
        "schema": cache.schema.name,
        "n4": cache.n4,
        "frames_checked": True,
    }
    files.write_json(cache.directory / "index.json", index)


def make_entry(case: Case, schema: LabelSchema, resolution: int, n4: bool, target: Path) -> None:
    """Read, check and preprocess one case and write its entry. Runs in a worker."""
    images, affine = load_images(case)
    truth = load_truth(case, schema, images.shape[:3], affine)
    cube, small_truth, geometry = to_cube(images, truth, affine, resolution, n4=n4)
    stored, scale = _to_float16(cube)
    restored = stored.astype(np.float64) * scale
    entry: dict[str, Any] = {
        "id": case.id,
        "geometry": geometry.to_json(),
        "scale": scale.tolist(),
        "mean": restored.mean(axis=(0, 1, 2)).tolist(),
        "std": restored.std(axis=(0, 1, 2)).tolist(),
        "files": {},
    }
    arrays = {"image.npy": stored} | ({} if small_truth is None else {"truth.npy": small_truth})
    with files.reported_writes(target), files.new_directory(target) as temporary:
        for name, array in arrays.items():
            np.save(temporary / name, array)
            size = (temporary / name).stat().st_size
            entry["files"][name] = {"bytes": size, "crc32": zlib.crc32(np.ascontiguousarray(array).data)}
        files.write_json(temporary / "entry.json", entry)


def _to_float16(cube: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Cube (N, N, N, 4) -> float16 of the same shape and the scale (4,) that undoes the division.

    A power of two per channel brings the largest value to 16,384-32,768: nothing overflows (float16 ends at 65,504),
    and the division itself is exact. The relative error of 2^-11 is a hundredth of the noise in such images.
    """
    largest = np.maximum(np.abs(cube).max(axis=(0, 1, 2)), np.finfo(np.float32).tiny)
    scale = np.exp2(np.ceil(np.log2(largest)) - 15)
    return (cube / scale.astype(np.float32)).astype(np.float16), scale
