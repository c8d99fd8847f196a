"""Preprocessed cases on disk. They are made once per (data, labels, preprocessing), and read whole.

    <cache root>/cubes/<fingerprint>-<schema>-<preprocessing>-v2/
        index.json                  written last, when every entry exists
        skipped.csv                 cases that could not be used, and why; only if the user had them left out
        <case id>/image.npy         (A, B, C, channels) float16, divided by a power of two per channel so that it fits
        <case id>/truth.npy         (A, B, C) uint8, absent for a case without truth
        <case id>/entry.json        geometry, scale, statistics, size and checksum of both files

It follows rules CACHE-1, -2 and -3 of `lms3d.data.files`.
"""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from lms3d.common.disk import cache_directory
from lms3d.data import files
from lms3d.data.errors import DataError
from lms3d.data.files import Progress
from lms3d.data.volumes import entries
from lms3d.data.volumes.case import Case, require_usable
from lms3d.data.volumes.checksums import data_fingerprint
from lms3d.data.volumes.entries import BAD, REPAIR
from lms3d.data.volumes.geometry import Geometry
from lms3d.data.volumes.labels import LabelSchema
from lms3d.data.volumes.preprocess import Preprocessing
from lms3d.data.workers import run_all

_FORMAT = 2  # raise it when a change of the preprocessing changes the stored arrays
_REPAIR_INDEX = "delete it and run again"
_INDEX, _SKIPPED = "index.json", "skipped.csv"


@dataclass(frozen=True, kw_only=True)
class Cache:
    """A finished cache, for reading."""

    directory: Path
    ids: tuple[str, ...]
    """The ids of the cases, sorted."""
    channels: tuple[str, ...]
    """The channels of the images, in order."""
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
        """The shape of every case, (A, B, C). ValueError if each has its own."""
        if self.preprocessing.shape is None:
            raise ValueError(f"{self.directory}: every case has a shape of its own")
        return self.preprocessing.shape

    def shape_of(self, case_id: str) -> tuple[int, int, int]:
        """The shape of a case, (A, B, C)."""
        if self.preprocessing.shape is not None:
            return self.preprocessing.shape
        a, b, c = self.entry(case_id)["shape"]
        return a, b, c

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
        """The images (A, B, C, channels) float32, before normalisation."""
        stored, scale = self.stored_image(case_id)
        return np.multiply(stored, scale, dtype=np.float32)

    def stored_image(self, case_id: str) -> tuple[np.ndarray, np.ndarray]:
        """The stored images, (A, B, C, channels) float16, and the scale (channels,) to multiply them with."""
        scale = np.asarray(self.entry(case_id)["scale"], np.float32)
        return self._load(case_id, "image.npy", (*self.shape_of(case_id), len(self.channels)), np.float16), scale

    def truth(self, case_id: str) -> np.ndarray | None:
        """The label map (A, B, C) uint8; None for a case without truth."""
        if "truth.npy" not in self.entry(case_id)["files"]:
            return None
        return self._load(case_id, "truth.npy", self.shape_of(case_id), np.uint8)

    def array(self, case_id: str, name: str, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        """Another array of a case, as `Preprocessing.facts` made it."""
        return self._load(case_id, name, shape, dtype)

    def entry(self, case_id: str) -> dict[str, Any]:
        """The entry.json of a case: geometry, scale, mean and std (channels,), both also of the brain alone, files, and what
        `Preprocessing.facts` says."""
        if case_id not in self._entries:
            if case_id not in self.ids:
                raise DataError(
                    f"{self.directory}: found no case {case_id!r}; expected one of {len(self.ids)} cases "
                    f"({self.ids[0]}, ...); check that the run belongs to this data set"
                )
            path = self.directory / case_id / entries.NAME
            self._entries[case_id] = entries.read(path, len(self.channels))
        return self._entries[case_id]

    def _load(self, case_id: str, name: str, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        path = self.directory / case_id / name
        try:
            # Not memory-mapped: its page faults would look like a swap file's, which call for a sync.
            array = np.load(path, allow_pickle=False)
        except Exception as error:  # NumPy raises many kinds, and MemoryError if a damaged header claims a huge array
            raise DataError(f"{path}: found a damaged cache entry ({error}); expected an array; {REPAIR}") from None
        if array.shape != shape or array.dtype != dtype:
            raise DataError(
                f"{path}: found {array.dtype}{list(array.shape)}; expected {np.dtype(dtype)}{list(shape)}; {REPAIR}"
            )
        if path not in self._verified:  # once per process
            if zlib.crc32(np.ascontiguousarray(array).data) != self.entry(case_id)["files"][name]["crc32"]:
                raise DataError(
                    f"{path}: found a damaged cache entry (wrong checksum); expected what was written; {REPAIR}"
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
    require_free_names(cases)
    root = Path(directory).expanduser() if directory else cache_directory() / "cubes"
    fingerprint = data_fingerprint(cases)
    # CACHE-1
    name = f"{fingerprint[:16]}-{schema.name}-{preprocessing.name}-v{_FORMAT}"
    cache = Cache(
        directory=root / name,
        ids=tuple(sorted(case.id for case in cases)),
        channels=cases[0].channels,
        preprocessing=preprocessing,
        fingerprint=fingerprint,
        schema=schema,
    )
    fill = partial(_fill, cache, cases, skip_bad, workers, progress)
    files.build_once(cache.directory, lambda: _is_complete(cache, cases), fill, progress, len(cases))
    return _without_skipped(cache)


def require_free_names(cases: Sequence[Case]) -> None:
    """DataError for a case with the name of one of the cache's own files beside the entries."""
    taken = {_INDEX, _SKIPPED, *(f"{case.id}{BAD}" for case in cases)}
    if case := next((case for case in cases if case.id in taken), None):
        raise DataError(
            f"{case.files[0]}: found a case called {case.id}, as a file of the cache is; expected another name; give the case one"
        )


def _is_complete(cache: Cache, cases: Sequence[Case]) -> bool:
    """Whether every case that is not left out has a sound entry. Not if one has a problem: predictions may have made an entry of a
    case without a label map, which cannot train."""
    index = cache.directory / _INDEX
    if not index.is_file():
        return False
    skipped = _skipped(index)
    needed = [case for case in cases if case.id not in skipped]
    return all(not case.problem and entries.is_sound(cache.directory / case.id) for case in needed)


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


def _fill(cache: Cache, cases: Sequence[Case], skip_bad: bool, workers: int | None, progress: Progress | None) -> None:
    """Makes the missing entries, then the index. The lock is held."""
    index = cache.directory / _INDEX
    earlier = _skipped(index) if index.is_file() else _skipped_on_other_grids(cache)
    needed = [case for case in cases if case.id not in earlier]
    missing = [case for case in needed if case.problem or not entries.is_sound(cache.directory / case.id)]
    for case in missing if not skip_bad else ():  # before an hour is spent on other cases
        require_usable(case)
    voxel_bytes = 2 * len(cache.channels) + 1  # float16 per channel, and the truth
    files.require_space(
        cache.directory, voxel_bytes * sum(entries.voxels(cache.preprocessing, case) for case in missing)
    )
    items = [(case, cache.schema, cache.preprocessing, cache.directory / case.id, skip_bad) for case in missing]
    what = f"preprocessing to {cache.preprocessing.in_words}"
    run_all(entries.make, items, workers=workers, progress=progress, what=what)
    skipped = earlier | {
        case.id: (cache.directory / f"{case.id}{BAD}").read_text(encoding="utf-8")
        for case in missing
        if (cache.directory / f"{case.id}{BAD}").is_file()
    }
    with files.reported_writes(cache.directory):
        if skipped:
            files.write_table(cache.directory / _SKIPPED, [("case", "reason"), *sorted(skipped.items())])
        for case_id in skipped:  # before the index is written, since a finished cache is not cleaned
            (cache.directory / f"{case_id}{BAD}").unlink(missing_ok=True)
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
        "preprocessing": cache.preprocessing.to_json(),
        "fingerprint": cache.fingerprint,
        "schema": cache.schema.name,
        "skipped": skipped,
    }
    files.write_json(cache.directory / _INDEX, index)
