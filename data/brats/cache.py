"""Preprocessed cases on disk. They are made once per (data, labels, preprocessing), and read whole.

    <cache root>/cubes/<fingerprint>-<schema>-<preprocessing>-v2/
        index.json                  written last, when every entry exists
        skipped.csv                 cases that could not be used, and why; only if the user had them left out
        <case id>/image.npy         (A, B, C, 4) float16, divided by a power of two per channel so that it fits
        <case id>/truth.npy         (A, B, C) uint8, absent for a case without truth
        <case id>/entry.json        geometry, scale, statistics, size and checksum of both files

It follows rules CACHE-1, -2 and -3 of `lms3d.data.files`.
"""

from __future__ import annotations

import errno
import hashlib
import math
import zlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from lms3d.common.disk import cache_directory
from lms3d.data import files
from lms3d.data.brats.case import Case, load_images, load_truth, require_usable
from lms3d.data.brats.geometry import Geometry, foreground_box
from lms3d.data.brats.header import GZIP
from lms3d.data.brats.preprocess import Preprocessing, to_grid
from lms3d.data.brats.schema import LabelSchema
from lms3d.data.errors import DataError
from lms3d.data.files import Progress
from lms3d.data.workers import run_all

_FORMAT = 2  # raise it when a change of the preprocessing changes the stored arrays
_SAMPLE_BYTES = 4096
_NOTHING = (errno.ENOENT, errno.ELOOP)  # a link to nothing, or to itself
_LEAST_STD = 1e-4  # a share of the mean; a modality with one value everywhere must not become infinite
_REPAIR = "delete the folder of this entry and run again"
_REPAIR_INDEX = "delete it and run again"
LEAVE_OUT = "python -m lms3d.data.prepare DATA --skip-bad"
_INDEX, _SKIPPED, _BAD = "index.json", "skipped.csv", ".bad"


@dataclass(frozen=True, kw_only=True)
class Cache:
    """A finished cache, for reading."""

    directory: Path
    ids: tuple[str, ...]
    """The ids of the cases, sorted."""
    preprocessing: Preprocessing
    fingerprint: str
    """The fingerprint of the data set. It does not depend on where the data set lies."""
    schema: LabelSchema
    skipped: Mapping[str, str] = field(default_factory=dict)
    """Case that was left out because it could not be used -> the reason."""
    _entries: dict[str, dict[str, Any]] = field(default_factory=dict, repr=False, compare=False)
    _verified: set[Path] = field(default_factory=set, repr=False, compare=False)

    @property
    def shape(self) -> tuple[int, int, int]:
        """The shape of every case, (A, B, C)."""
        return self.preprocessing.shape

    def geometry(self, case_id: str) -> Geometry:
        """The geometry that leads back to the native grid."""
        return Geometry.from_json(self.entry(case_id)["geometry"])

    def cut_off(self, ids: Sequence[str] | None = None) -> list[str]:
        """The cases among `ids` (default: all) whose brain reaches beyond the kept part of the native grid."""
        cut = []
        for case_id in self.ids if ids is None else ids:
            box = self.geometry(case_id).box
            lower, upper = self.entry(case_id).get("brain", (box.lower, box.upper))
            within = all(a <= b for a, b in zip(box.lower, lower, strict=True))
            if not (within and all(a >= b for a, b in zip(box.upper, upper, strict=True))):
                cut.append(case_id)
        return cut

    def alike(self) -> list[list[str]]:
        """Groups of cases whose images are equal in every voxel of this grid: copies, perhaps with another header."""
        groups: dict[int, list[str]] = defaultdict(list)
        for case_id in self.ids:
            groups[self.entry(case_id)["files"]["image.npy"]["crc32"]].append(case_id)
        return [ids for ids in groups.values() if len(ids) > 1]

    def image(self, case_id: str) -> np.ndarray:
        """The images (A, B, C, 4) float32, before normalisation."""
        stored, scale = self.stored_image(case_id)
        return np.multiply(stored, scale, dtype=np.float32)

    def stored_image(self, case_id: str) -> tuple[np.ndarray, np.ndarray]:
        """The stored images, (A, B, C, 4) float16, and the scale (4,) to multiply them with."""
        scale = np.asarray(self.entry(case_id)["scale"], np.float32)
        return self._load(case_id, "image.npy", (*self.shape, 4), np.float16), scale

    def truth(self, case_id: str) -> np.ndarray | None:
        """The label map (A, B, C) uint8; None for a case without truth."""
        if "truth.npy" not in self.entry(case_id)["files"]:
            return None
        return self._load(case_id, "truth.npy", self.shape, np.uint8)

    def entry(self, case_id: str) -> dict[str, Any]:
        """The entry.json of a case: geometry, scale, mean (4,), std (4,), both also of the brain alone, and files."""
        if case_id not in self._entries:
            if case_id not in self.ids:
                raise DataError(
                    f"{self.directory}: found no case {case_id!r}; expected one of {len(self.ids)} cases "
                    f"({self.ids[0]}, ...); check that the run belongs to this data set"
                )
            path = self.directory / case_id / "entry.json"
            self._entries[case_id] = _checked(path, files.read_json(path, advice=_REPAIR, keys=_ENTRY))
        return self._entries[case_id]

    def _load(self, case_id: str, name: str, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        path = self.directory / case_id / name
        try:
            # Not memory-mapped: its page faults would look like those of lms3d's swap files, which call for a sync.
            array = np.load(path, allow_pickle=False)
        except Exception as error:  # NumPy raises many kinds, and MemoryError if a damaged header claims a huge array
            raise DataError(f"{path}: found a damaged cache entry ({error}); expected an array; {_REPAIR}") from None
        if array.shape != shape or array.dtype != dtype:
            raise DataError(
                f"{path}: found {array.dtype}{list(array.shape)}; expected {np.dtype(dtype)}{list(shape)}; {_REPAIR}"
            )
        if path not in self._verified:  # once per process
            if zlib.crc32(np.ascontiguousarray(array).data) != self.entry(case_id)["files"][name]["crc32"]:
                raise DataError(
                    f"{path}: found a damaged cache entry (wrong checksum); expected what was written; {_REPAIR}"
                )
            self._verified.add(path)
        return array


def build(
    cases: Sequence[Case],
    schema: LabelSchema,
    preprocessing: Preprocessing,
    *,
    directory: str | Path | None = None,
    skip_bad: bool = False,
    workers: int | None = None,
    progress: Progress | None = None,
) -> Cache:
    """The cache of some cases. Missing entries are made in parallel processes; if none is missing, it returns at once.

    directory: the folder of caches (default: `cubes` in the cache folder).
    skip_bad: whether to leave out cases that cannot be used (`Cache.skipped`). They stay left out, also on other grids, until their
        files change.
    DataError for the first case that cannot be used, unless it is to be left out, and if the folder cannot be written to or the
    disk is too full.
    """
    if not cases:
        raise DataError("cases: found none; expected at least one; give the folder of a data set")
    _require_free_names(cases)
    root = Path(directory).expanduser() if directory else cache_directory() / "cubes"
    fingerprint = data_fingerprint(cases)
    # CACHE-1
    name = f"{fingerprint[:16]}-{schema.name}-{preprocessing.name}-v{_FORMAT}"
    cache = Cache(
        directory=root / name,
        ids=tuple(sorted(case.id for case in cases)),
        preprocessing=preprocessing,
        fingerprint=fingerprint,
        schema=schema,
    )
    fill = partial(_fill, cache, cases, skip_bad, workers, progress)
    files.build_once(cache.directory, lambda: _is_complete(cache), fill, progress, len(cases))
    return _without_skipped(cache)


def _require_free_names(cases: Sequence[Case]) -> None:
    """DataError for a case with the name of one of the cache's own files beside the entries."""
    taken = {_INDEX, _SKIPPED, *(f"{case.id}{_BAD}" for case in cases)}
    if case := next((case for case in cases if case.id in taken), None):
        raise DataError(
            f"{case.files[0]}: found a case called {case.id}, as a file of the cache is; expected another name; give the case one"
        )


def data_fingerprint(cases: Sequence[Case]) -> str:
    """A digest of the content of a data set, in hexadecimal. It is the same wherever the set lies and however it was copied.

    It covers each file's name, its size and samples of its bytes. The last bytes of a gzip file are the checksum of all voxels, so
    they show every change; an uncompressed file has none, so its modification time counts as well. A link to nothing counts as
    such, and is reported when the case is read. DataError for a file that cannot be read now: if it could be tomorrow, the digest
    would differ.
    """
    digest = hashlib.sha256(b"format 1")
    for case in sorted(cases, key=lambda case: case.id):
        digest.update(repr((case.id, sorted(case.volumes.items()) if case.volumes else None, *case.absent)).encode())
        for path in case.files:
            digest.update(_file_sample(path))
    return digest.hexdigest()


def _file_sample(path: Path) -> bytes:
    try:
        with path.open("rb") as stream:
            size = stream.seek(0, 2)
            pieces = [f"{path.name} {size}".encode(errors="surrogateescape")]
            for start in sorted({0, size // 2, max(0, size - _SAMPLE_BYTES)}):
                stream.seek(start)
                pieces.append(stream.read(_SAMPLE_BYTES))
        if not pieces[1].startswith(GZIP):
            pieces.append(str(path.stat().st_mtime_ns).encode())
    except OSError as error:
        if error.errno not in _NOTHING:
            raise DataError(
                f"{path}: found {error.strerror}; expected a readable file; check its permissions and the disk"
            ) from None
        pieces = [f"{path.name} {error.strerror}".encode(errors="surrogateescape")]
    return b"\0".join(pieces)


def _is_complete(cache: Cache) -> bool:
    index = cache.directory / _INDEX
    if not index.is_file():
        return False
    return all(_is_sound(cache.directory / name) for name in set(cache.ids) - set(_skipped(index)))


def _skipped(index: Path) -> dict[str, str]:
    """Case -> the reason why it was left out."""
    skipped = files.read_json(index, advice=_REPAIR_INDEX, keys=("ids",)).get("skipped", {})
    if not (isinstance(skipped, dict) and all(isinstance(reason, str) for reason in skipped.values())):
        raise DataError(
            f"{index}: found no table of cases that are left out; expected case and reason; {_REPAIR_INDEX}"
        )
    return skipped


def _without_skipped(cache: Cache) -> Cache:
    skipped = _skipped(cache.directory / _INDEX)
    ids = tuple(case_id for case_id in cache.ids if case_id not in skipped)
    if not ids:
        raise DataError(
            f"{cache.directory / _SKIPPED}: found every case left out; expected at least one that can be used; mend the files"
        )
    return replace(cache, ids=ids, skipped=skipped)


_FIGURES = ("scale", "mean", "std", "brain_mean", "brain_std")
_ENTRY = ("geometry", *_FIGURES, "files")


def _checked(path: Path, entry: dict[str, Any]) -> dict[str, Any]:
    """The entry. DataError if its values are not such as `_content` writes."""
    try:
        Geometry.from_json(entry["geometry"])
        figures = np.array([entry[name] for name in _FIGURES], float)
        checksums = [about["crc32"] for about in entry["files"].values()]
        corners = np.array(entry.get("brain", np.zeros((2, 3))), int)
        right = figures.shape == (len(_FIGURES), 4) and np.isfinite(figures).all() and corners.shape == (2, 3)
        if not (right and "image.npy" in entry["files"] and all(isinstance(crc32, int) for crc32 in checksums)):
            raise ValueError("figures of another kind")
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
        raise DataError(
            f"{path}: found a damaged cache entry ({error}); expected what was written; {_REPAIR}"
        ) from None
    return entry


def _is_sound(entry: Path) -> bool:
    """Whether the files of an entry have the right sizes (CACHE-3)."""
    try:
        stored = files.read_json(entry / "entry.json", advice=_REPAIR)["files"]
        return all((entry / name).stat().st_size == about["bytes"] for name, about in stored.items())
    except (DataError, OSError, KeyError, TypeError, AttributeError, ValueError):
        return False


def _fill(cache: Cache, cases: Sequence[Case], skip_bad: bool, workers: int | None, progress: Progress | None) -> None:
    """Makes the missing entries, then the index. The lock is held."""
    index = cache.directory / _INDEX
    earlier = _skipped(index) if index.is_file() else _skipped_on_other_grids(cache)
    missing = [case for case in cases if case.id not in earlier and not _is_sound(cache.directory / case.id)]
    for case in missing if not skip_bad else ():  # before an hour is spent on other cases
        require_usable(case)
    files.require_space(cache.directory, len(missing) * 9 * math.prod(cache.shape))  # 4 float16 and 1 byte per voxel
    items = [(case, cache.schema, cache.preprocessing, cache.directory / case.id, skip_bad) for case in missing]
    what = f"preprocessing to {'x'.join(map(str, cache.shape))}" + (" with N4" if cache.preprocessing.n4 else "")
    run_all(make_entry, items, workers=workers, progress=progress, what=what)
    skipped = earlier | {
        case.id: (cache.directory / f"{case.id}{_BAD}").read_text(encoding="utf-8")
        for case in missing
        if (cache.directory / f"{case.id}{_BAD}").is_file()
    }
    with files.reported_writes(cache.directory):
        if skipped:
            files.write_table(cache.directory / _SKIPPED, [("case", "reason"), *sorted(skipped.items())])
        for case_id in skipped:  # before the index is written, since a finished cache is not cleaned
            (cache.directory / f"{case_id}{_BAD}").unlink(missing_ok=True)
        _write_index(cache, skipped)


def _skipped_on_other_grids(cache: Cache) -> dict[str, str]:
    """Case -> the reason why it was left out of a cache of the same files and labels. A fault of a file affects every grid."""
    skipped: dict[str, str] = {}
    for index in sorted(cache.directory.parent.glob(f"{cache.fingerprint[:16]}-*-v{_FORMAT}/{_INDEX}")):
        try:
            schema = files.read_json(index, advice=_REPAIR_INDEX, keys=("schema",))["schema"]
            skipped |= _skipped(index) if schema == cache.schema.name else {}
        except DataError:  # it is reported when that grid is needed
            continue
    return {case_id: reason for case_id, reason in skipped.items() if case_id in cache.ids}


def _write_index(cache: Cache, skipped: Mapping[str, str]) -> None:
    index = {
        "ids": cache.ids,
        "preprocessing": asdict(cache.preprocessing),
        "fingerprint": cache.fingerprint,
        "schema": cache.schema.name,
        "skipped": skipped,
    }
    files.write_json(cache.directory / _INDEX, index)


def make_entry(case: Case, schema: LabelSchema, how: Preprocessing, target: Path, skip_bad: bool = False) -> None:
    """Reads, checks and preprocesses one case, and writes its entry. Runs in a worker.

    skip_bad: if the case cannot be used, write the reason to a file beside `target`.
    """
    try:
        entry, arrays = _content(case, schema, how)
    except DataError as error:
        if not skip_bad:
            advice = "" if LEAVE_OUT in str(error) else f", or leave the case out ({LEAVE_OUT})"
            raise DataError(f"{error}{advice}") from None
        with files.reported_writes(target.parent), files.new_file(target.with_name(target.name + _BAD)) as temporary:
            temporary.write_text(str(error), encoding="utf-8", errors="backslashreplace")
        return
    with files.reported_writes(target), files.new_directory(target) as temporary:
        for name, array in arrays.items():
            np.save(temporary / name, array)
            size = (temporary / name).stat().st_size
            entry["files"][name] = {"bytes": size, "crc32": zlib.crc32(np.ascontiguousarray(array).data)}
        files.write_json(temporary / "entry.json", entry)


def _content(case: Case, schema: LabelSchema, how: Preprocessing) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """(entry.json of a case without its files, file name -> array)."""
    images, affine = load_images(case)
    how.require_room(affine, case.files[0])
    truth = load_truth(case, schema, images.shape[:3], affine)
    grid, small_truth, geometry = to_grid(images, truth, affine, how)
    brain_box = foreground_box(images)
    stored, scale = _to_float16(grid)
    restored = stored.astype(np.float64) * scale
    brain = restored[stored.any(axis=-1)]
    entry: dict[str, Any] = {
        "id": case.id,
        "geometry": geometry.to_json(),
        "brain": [list(brain_box.lower), list(brain_box.upper)],
        "scale": scale.tolist(),
        "mean": restored.mean(axis=(0, 1, 2)).tolist(),
        "std": np.where(stored.any(axis=(0, 1, 2)), restored.std(axis=(0, 1, 2)), 1.0).tolist(),
        "brain_mean": brain.mean(axis=0).tolist(),
        "brain_std": _deviation(brain).tolist(),
        "files": {},
    }
    return entry, {"image.npy": stored} | ({} if small_truth is None else {"truth.npy": small_truth})


def _deviation(brain: np.ndarray) -> np.ndarray:
    """The standard deviations (4,) of voxels (n, 4), to divide by. 1 for an absent modality, whose voxels are all 0."""
    least = _LEAST_STD * np.abs(brain.mean(axis=0))
    return np.where(brain.any(axis=0), np.maximum(brain.std(axis=0), least), 1.0)


def _to_float16(grid: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A grid (A, B, C, 4) divided by the scale, in float16, and the scale (4,).

    The scale is a power of two per channel that brings the largest value to 16,384-32,768. So nothing overflows (float16 ends at
    65,504), and the division itself is exact. The relative error of 2^-11 is a hundredth of the noise in such images.
    """
    largest = np.abs(grid).max(axis=(0, 1, 2))
    largest = np.maximum(np.where(largest > 0, largest, 1), np.finfo(np.float32).tiny)
    scale = np.exp2(np.ceil(np.log2(largest)) - 15)
    return (grid / scale.astype(np.float32)).astype(np.float16), scale
