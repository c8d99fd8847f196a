"""Find the cases of a BraTS data set. What differs between the years is in the table LAYOUTS, not in the code.

Any folder depth is searched, because grade folders (HGG, LGG), nested archives and mirrors all add levels of their own.
"""

from __future__ import annotations

import fnmatch
import os
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from data.brats import msd
from data.brats.case import Case, check_case
from data.brats.schema import CHANNELS, REGIONS, SCHEMAS, LabelSchema, schema_named
from data.errors import DataError, data_error
from data.files import readable_directory

__all__ = ["CHANNELS", "LAYOUTS", "REGIONS", "SCHEMAS", "Case", "LabelSchema", "Layout", "check_case", "find_cases"]

_ENDINGS = (".nii.gz", ".nii")  # in order of preference; mirrors unpack, and some keep both


@dataclass(frozen=True, kw_only=True)
class Layout:
    """How one data set names its files: `<stem><suffix>.nii[.gz]` in a folder per case."""

    schema: str
    """Name of its label schema."""
    case: str
    """Regular expression that the name of a case matches from its start."""
    images: tuple[str, str, str, str]
    """Suffixes of t1, t1ce, flair, t2 (the order of CHANNELS)."""
    truth: tuple[str, ...]
    """Suffixes of the label map, in order of preference."""
    odd_truth: tuple[str, ...] = ()
    """File name patterns of label maps whose stem is not that of the images."""
    path: str = ""
    """Regular expression that must be found in the folder's path, where names alone do not tell two sets apart."""


_EARLY = ("_t1", "_t1ce", "_flair", "_t2")
_LATE = ("-t1n", "-t1c", "-t2f", "-t2w")

LAYOUTS = (
    Layout(
        schema="tcia",
        case=r"TCGA-",
        images=("_t1", "_t1Gd", "_flair", "_t2"),
        truth=("_GlistrBoost_ManuallyCorrected", "_GlistrBoost"),
    ),
    Layout(schema="brats2017", case=r"Brats17_", images=_EARLY, truth=("_seg",)),
    Layout(schema="brats2018", case=r"Brats18_", images=_EARLY, truth=("_seg",)),
    Layout(schema="brats2019", case=r"BraTS19_", images=_EARLY, truth=("_seg",)),
    Layout(
        schema="brats2020",
        case=r"BraTS20_",
        images=_EARLY,
        truth=("_seg",),
        odd_truth=("*_Segm.nii*",),  # training case 355 ships W39_1998.09.19_Segm.nii
    ),
    Layout(schema="brats2021", case=r"BraTS2021_", images=_EARLY, truth=("_seg",)),
    Layout(
        schema="brats2024",
        case=r"BraTS-GLI-",
        images=_LATE,
        truth=("-seg",),
        path=r"BraTS-?2024|training_data1|training_data_additional",
    ),
    Layout(schema="brats2023", case=r"BraTS-(GLI|SSA|MEN|MET|PED)-", images=_LATE, truth=("-seg",)),
    # Own data with the file names of BraTS: the labels could mean anything, so --labels must say.
    Layout(schema="", case=r"", images=_EARLY, truth=("_seg",)),
    Layout(schema="", case=r"", images=_LATE, truth=("-seg",)),
)


def find_cases(
    root: str | Path, *, labels: str | None = None, require_truth: bool = True
) -> tuple[list[Case], LabelSchema]:
    """The cases below `root`, sorted by id, and what their labels mean. Reads no voxels (see `check_case`).

    labels: name of a schema in SCHEMAS; needed only where the data set is not recognised by its names.
    require_truth: a case without a label map is an error. Otherwise its `truth` is None.
    Raises DataError for a missing or empty folder, an incomplete case, or labels that nobody has named.
    """
    root = readable_directory(root)
    named = schema_named(labels) if labels else None
    if msd.is_task01(root):
        cases, schemas = msd.find(root), {"msd"}
    else:
        cases, schemas = _search(root)
    if not cases:
        raise data_error(
            root,
            found="no case",
            expected="folders with <case>_t1, _t1ce, _flair and _t2 as .nii.gz (BraTS), or imagesTr (MSD Task01)",
            advice="give the folder of the unpacked data set",
        )
    _require_different_ids(cases)
    if require_truth:
        _require_truth(cases)
    return sorted(cases, key=lambda case: case.id), named or _only_schema(root, schemas)


def _search(root: Path) -> tuple[list[Case], set[str]]:
    """All cases below `root`, and the names of the schemas that their names tell."""
    cases: list[Case] = []
    schemas: set[str] = set()
    for folder, names in _folders(root):
        stems = _stems(folder, names)
        for stem, (layout, files) in sorted(stems.items()):
            cases.append(_case(folder, stem, layout, files, names if len(stems) == 1 else ()))
            schemas.add(layout.schema)
    return cases, schemas


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
        nifti = sorted(name for name in names if name.endswith(_ENDINGS) and not name.startswith("."))
        if nifti:
            yield Path(os.path.abspath(folder)), nifti


def _stems(folder: Path, names: list[str]) -> dict[str, tuple[Layout, dict[str, str]]]:
    """Cases among the files of one folder: stem -> layout and {suffix: file name}."""
    found: dict[str, tuple[Layout, dict[str, str]]] = {}
    for layout in LAYOUTS:
        if not re.search(layout.path, str(folder), re.IGNORECASE):
            continue
        groups: dict[str, dict[str, str]] = defaultdict(dict)
        for ending in reversed(_ENDINGS):  # the preferred ending is written last and stays
            for name in names:
                for suffix in (*layout.images, *layout.truth):
                    if name.endswith(suffix + ending):
                        groups[name.removesuffix(suffix + ending)][suffix] = name
        for stem, files in groups.items():
            if stem not in found and re.match(layout.case, stem) and any(suffix in files for suffix in layout.images):
                found[stem] = (layout, files)
    return found


def _case(folder: Path, stem: str, layout: Layout, files: dict[str, str], alone: Iterable[str]) -> Case:
    """The case `stem` in `folder`; alone: all files of the folder if it holds no other case."""
    missing = [channel for channel, suffix in zip(CHANNELS, layout.images, strict=True) if suffix not in files]
    if missing:
        suffix = layout.images[CHANNELS.index(missing[0])]
        raise data_error(
            folder,
            found=f"no {missing[0]} image",
            expected=f"{stem}{suffix}.nii.gz",
            advice="add the file, or take the case out of the folder",
        )
    truths = [files[suffix] for suffix in layout.truth if suffix in files]
    truths += [name for pattern in layout.odd_truth for name in fnmatch.filter(alone, pattern)]
    return Case(
        id=folder.name if stem.startswith(folder.name) else stem,
        images={channel: folder / files[suffix] for channel, suffix in zip(CHANNELS, layout.images, strict=True)},
        truth=folder / truths[0] if truths else None,
    )


def _only_schema(root: Path, schemas: set[str]) -> LabelSchema:
    if len(schemas) == 1 and "" not in schemas:
        return SCHEMAS[next(iter(schemas))]
    known = sorted(schemas - {""})
    raise data_error(
        root,
        found=f"cases of several sets ({', '.join(known)})" if len(known) > 1 else "names of no known data set",
        expected="a single known set, or to be told what the labels mean",
        advice=f"add --labels with one of {', '.join(SCHEMAS)}",
    )


def _require_different_ids(cases: list[Case]) -> None:
    seen: dict[str, Case] = {}
    for case in cases:
        if case.id in seen:
            raise data_error(
                case.files[0].parent,
                found=f"case {case.id}, which is also in {seen[case.id].files[0].parent}",
                expected="every case once",
                advice="remove one copy, or give a folder further down",
            )
        seen[case.id] = case


def _require_truth(cases: list[Case]) -> None:
    without = [case for case in cases if case.truth is None]
    if without:
        raise data_error(
            without[0].files[0].parent,
            found=f"no label map ({len(without)} of {len(cases)} cases have none)",
            expected="a label map for every training case",
            advice="give the folder of the training set alone",
        )


def _unreadable(error: OSError) -> None:
    raise DataError(f"{error.filename}: found {error.strerror}; expected a readable folder; check its permissions")
