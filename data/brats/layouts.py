"""Find the cases of a data set of brain tumours, whatever its layout. A new layout is a module and a line in LAYOUTS.

Any folder depth is searched, because grade folders (HGG, LGG), nested archives and mirrors all add levels of their own.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Protocol

from data.brats import msd, naming
from data.brats.case import Case
from data.brats.naming import ENDINGS
from data.brats.schema import SCHEMAS, LabelSchema, schema_named
from data.errors import DataError
from data.files import readable_directory


class Layout(Protocol):
    """How a data set lays out its files. `files`: names of the NIfTI files of `folder`, sorted."""

    @property
    def schema(self) -> str:
        """Name of its label schema; "" where only the user knows."""

    def stems(self, folder: Path, files: Sequence[str]) -> Sequence[str]:
        """What the names of the cases in this folder begin with; none where it is of another layout."""

    def case_of(self, folder: Path, stem: str, files: Sequence[str]) -> Case:
        """The case of a stem. DataError where one of its images is missing."""


LAYOUTS: tuple[Layout, ...] = (*naming.PUBLISHED, msd.Task01())

_LAST: tuple[Layout, ...] = naming.OWN


def find_cases(
    root: str | Path, *, labels: str | None = None, require_truth: bool = True
) -> tuple[list[Case], LabelSchema]:
    """The cases below `root`, sorted by id, and what their labels mean. Reads no voxels.

    labels: name of a schema in SCHEMAS; needed only where the data set is not recognised by its names.
    require_truth: a case without a label map is an error. Otherwise its `truth` is None.
    Raises DataError for a missing or empty folder, an incomplete case, or labels that nobody has named.
    """
    root = readable_directory(root)
    named = schema_named(labels) if labels else None
    found = list(_search(root))
    cases = sorted((case for case, _ in found), key=lambda case: case.id)
    if not cases:
        raise DataError(
            f"{root}: found no case; expected folders with <case>_t1, _t1ce, _flair and _t2 as .nii.gz (BraTS), or "
            "imagesTr (MSD Task01); give the folder of the unpacked data set"
        )
    _require_different_ids(cases)
    if require_truth:
        _require_truth(cases)
    return cases, named or _only_schema(root, {layout.schema for _, layout in found})


def _search(root: Path) -> Iterator[tuple[Case, Layout]]:
    """All cases below `root`, each with the first layout that knows it."""
    for folder, files in _folders(root):
        layout_of: dict[str, Layout] = {}
        for layout in (*LAYOUTS, *_LAST):
            for stem in layout.stems(folder, files):
                layout_of.setdefault(stem, layout)
        for stem, layout in sorted(layout_of.items(), key=lambda item: item[0]):
            yield layout.case_of(folder, stem, files), layout


def _folders(root: Path) -> Iterator[tuple[Path, list[str]]]:
    """Folders below `root` that hold NIfTI files, with the names of those files. Links are followed once."""
    seen: set[str] = set()
    for folder, below, names in os.walk(root, followlinks=True, onerror=_unreadable):
        real = os.path.realpath(folder)
        if real in seen:
            below.clear()
            continue
        seen.add(real)
        below[:] = sorted(name for name in below if not name.startswith("."))
        nifti = sorted(name for name in names if name.endswith(ENDINGS) and not name.startswith("."))
        if nifti:
            yield Path(os.path.abspath(folder)), nifti


def _only_schema(root: Path, schemas: set[str]) -> LabelSchema:
    if len(schemas) == 1 and "" not in schemas:
        return SCHEMAS[next(iter(schemas))]
    known = ", ".join(sorted(schemas - {""}))
    found = f"cases of several sets ({known})" if len(schemas - {""}) > 1 else "names of no known data set"
    raise DataError(
        f"{root}: found {found}; expected a single known set, or to be told what the labels mean; add --labels with "
        f"one of {', '.join(SCHEMAS)}"
    )


def _require_different_ids(cases: list[Case]) -> None:
    for one, other in pairwise(cases):
        if one.id == other.id:
            raise DataError(
                f"{other.files[0].parent}: found case {one.id}, which is also in {one.files[0].parent}; expected every "
                "case once; remove one copy, or give a folder further down"
            )


def _require_truth(cases: list[Case]) -> None:
    without = [case for case in cases if case.truth is None]
    if without:
        raise DataError(
            f"{without[0].files[0].parent}: found no label map ({len(without)} of {len(cases)} cases have none); "
            "expected a label map for every training case; give the folder of the training set alone"
        )


def _unreadable(error: OSError) -> None:
    raise DataError(f"{error.filename}: found {error.strerror}; expected a readable folder; check its permissions")
