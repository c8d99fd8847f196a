"""Finds the cases of a data set of brain tumours, in any known layout. A new layout is a module and a line in LAYOUTS.

Folders are searched to any depth, because grade folders (HGG, LGG), nested archives and mirrors all add levels. A manifest
describes a data set in any other layout.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Protocol

from lms3d.data import pseudonyms
from lms3d.data.brats import folders, manifest, msd, nnunet, published
from lms3d.data.brats.schema import SCHEMAS, schema_named
from lms3d.data.errors import DataError, NoCaseError
from lms3d.data.files import readable_directory
from lms3d.data.volumes import dicom, patients
from lms3d.data.volumes.case import Case, require_id, require_usable
from lms3d.data.volumes.data_set import DataSet
from lms3d.data.volumes.labels import LabelSchema
from lms3d.data.volumes.manifest import is_manifest

log = logging.getLogger("data")


class Layout(Protocol):
    """A layout of a data set. files: the names of the NIfTI files in `folder`, sorted."""

    @property
    def title(self) -> str:
        """The name of the data set; if `schema` is empty, with the schemas that it may have."""

    @property
    def schema(self) -> str:
        """The name of its label schema; "" if only the user knows it."""

    def stems(self, folder: Path, files: Sequence[str]) -> Sequence[str]:
        """The beginnings of the file names of the cases in this folder; none if the folder has another layout."""

    def case_of(self, folder: Path, stem: str, files: Sequence[str]) -> Case:
        """The case of a stem. If one of its images is missing, that is its `problem`."""


LAYOUTS: tuple[Layout, ...] = (*published.PUBLISHED, msd.Task01())

_LAST: tuple[Layout, ...] = published.OWN
_UNKNOWN = "names of no known data set"


def find_cases(
    root: str | Path, *, labels: str | None = None, require_truth: bool = True, require_complete: bool = True
) -> DataSet:
    """The cases below `root`, sorted by id, and the meaning of their labels. Reads no voxels.

    root: a folder, or a manifest (see `lms3d.data.brats.manifest`).
    labels: the name of a schema in SCHEMAS. It is needed only if the data set is not recognised by its names and path.
    require_truth: whether a case without a label map cannot be used, which is its `Case.problem`; it is an error if none has one.
        If not, its `truth` is None.
    require_complete: whether a case without one of the modalities is an error. If not, reading it is one (`Case.problem`).
    DataError for a missing or empty folder, an incomplete case, or labels of unknown meaning.
    """
    root = Path(root).expanduser()
    data_set = _of_manifest(root, labels) if is_manifest(root) else _of_folder(readable_directory(root), labels)
    for case in data_set.cases:  # now with the names in the tables of patients, too
        pseudonyms.know_case(case, root)
        require_id(case.id, case.files[0])
    _require_different_ids(data_set.cases)
    if require_truth:
        _require_truth(data_set.cases)
        data_set = data_set.for_training()
    if require_complete:
        for case in data_set.cases:
            require_usable(case)
    return data_set


def _of_manifest(path: Path, labels: str | None) -> DataSet:
    cases, own_schema = manifest.read(path)
    schema = schema_named(labels) if labels else own_schema
    if schema is None:
        raise DataError(
            f'{path}: found no "labels"; expected to be told what the labels mean; add --labels with one of '
            f"{', '.join(SCHEMAS)}"
        )
    cases = patients.joined(cases, path)
    return DataSet(cases=sorted(cases, key=_id), schema=schema, layout=f"manifest {path.name}")


def _of_folder(root: Path, labels: str | None) -> DataSet:
    named = schema_named(labels) if labels else None
    seen: list[Path] = []
    pairs = list(_search(root, seen))
    if not pairs:
        if nnunet.is_raw(root):
            raise NoCaseError(
                f"{root}: found a raw folder of nnU-Net; expected folders of BraTS or MSD Task01; train on it with --task "
                "segmentation, or write a manifest for it: a .csv with the columns case,t1,t1ce,flair,t2,truth"
            )
        dicom.refuse(root)
        raise NoCaseError(
            f"{root}: found no case; expected folders with <case>_t1, _t1ce, _flair and _t2 as .nii.gz (BraTS), or "
            "imagesTr (MSD Task01); give the folder of the unpacked data set, or a manifest (.csv, .json) of your own"
        )
    layouts = list(dict.fromkeys(layout for _, layout in pairs))
    schema = named or _only_schema(root, pairs)
    _warn_of_other_meaning(schema, layouts)
    unwrapped = [(case, folders.unwrapped(case)) for case, _ in pairs]
    mirrored = " (mirrored, folders ending in .nii)" if any(case != inner for case, inner in unwrapped) else ""
    cases = sorted((inner for _, inner in unwrapped), key=_id)
    unused = _unused(seen, [case for case, _ in pairs])
    for case in cases:
        pseudonyms.know_case(case, root)
    for path in unused:
        pseudonyms.know_path(path, root)
    _require_different_ids(cases)
    return DataSet(
        cases=patients.joined(cases, root),
        schema=schema,
        layout=" and ".join(layout.title for layout in layouts) + mirrored,
        unused=unused,
    )


def _unused(seen: Sequence[Path], cases: Sequence[Case]) -> tuple[Path, ...]:
    """The files that belong to no case, sorted. The second copy of a file, compressed or uncompressed, counts as used."""
    used = {_without_ending(path) for case in cases for path in (*case.files, *case.other_truths)}
    return tuple(sorted(path for path in seen if _without_ending(path) not in used))


def _without_ending(path: Path) -> Path:
    return path.with_name(path.name.partition(".nii")[0])


def _warn_of_other_meaning(schema: LabelSchema, layouts: Sequence[Layout]) -> None:
    """Warns if the schema, which --labels has named, gives the labels of a known data set another meaning."""
    for layout in layouts:
        own = SCHEMAS.get(layout.schema)
        if own is not None and not own.labels.items() <= schema.labels.items():
            log.warning(
                f"--labels {schema.name}: found names of {layout.title}, whose labels are {_meaning(own)}; expected labels of that "
                f"set; they are taken as {_meaning(schema)}; leave --labels out if the files are as published"
            )


def _meaning(schema: LabelSchema) -> str:
    """The labels of a schema as text, such as "1 NCR, 2 ED, 4 ET"."""
    return ", ".join(f"{value} {name}" for name, value in sorted(schema.labels.items(), key=lambda item: item[1]))


def _search(root: Path, seen: list[Path]) -> Iterator[tuple[Case, Layout]]:
    """Yields all cases below `root`, each with the first layout that recognises it. Appends the NIfTI files to `seen`."""
    for folder, files, capitals in folders.walk(root):
        seen += [folder / name for name in (*files, *capitals)]
        layout_of: dict[str, Layout] = {}
        for layout in (*LAYOUTS, *_LAST):
            for stem in layout.stems(folder, files) if files else ():
                layout_of.setdefault(stem, layout)
        pseudonyms.know(layout_of)
        known = [stem for stem, layout in layout_of.items() if layout not in _LAST]
        for stem, layout in sorted(layout_of.items(), key=lambda item: item[0]):
            case = layout.case_of(folder, stem, files)
            if layout not in _LAST or not _is_stray(case, stem, known):
                yield case, layout


def _is_stray(case: Case, stem: str, known: Sequence[str]) -> bool:
    """Whether an incomplete case of a user's own layout is only a single file, or a copy of files of the published cases beside
    it."""
    return bool(case.problem and known) and (len(case.files) == 1 or any(name in stem for name in known))


def _only_schema(root: Path, pairs: Sequence[tuple[Case, Layout]]) -> LabelSchema:
    """The schema of all layouts, the last one if several years have the same labels. DataError if labels differ."""
    layouts = list(dict.fromkeys(layout for _, layout in pairs))
    unknown = [layout for layout in layouts if not layout.schema]
    schemas = [schema for schema in SCHEMAS.values() if schema.name in {layout.schema for layout in layouts}]
    if schemas and not unknown and all(replace(schema, name="") == replace(schemas[0], name="") for schema in schemas):
        return schemas[-1]
    if len(schemas) > 1:
        sets = ", ".join(f"{schema.name} as in {_first_of(schema.name, pairs)}" for schema in schemas)
        wide = next((s for s in schemas if all(own.labels.items() <= s.labels.items() for own in schemas)), None)
        advice = "give the folder of one of them" + (
            f", or add --labels {wide.name}, which has all labels" if wide else ""
        )
        raise DataError(
            f"{root}: found cases of several sets ({sets}); expected sets whose labels mean the same; {advice}"
        )
    title = next((layout.title for layout in unknown if layout not in _LAST), f"{_UNKNOWN} ({_first_of('', pairs)})")
    advice = f"add --labels with one of {', '.join(SCHEMAS)}"
    raise DataError(f"{root}: found {title}; expected a single known set, or to be told what the labels mean; {advice}")


def _first_of(schema: str, pairs: Sequence[tuple[Case, Layout]]) -> str:
    """The name of the first file of a case with that schema."""
    return next(case.files[0].name for case, layout in pairs if layout.schema == schema)


def _require_different_ids(cases: list[Case]) -> None:
    for first, second in pairwise(cases):
        if first.id == second.id:
            raise DataError(
                f"{second.files[0].parent}: found case {first.id}, which is also in {first.files[0].parent}; expected every "
                "case once; remove one copy, or give a folder further down"
            )


def _require_truth(cases: list[Case]) -> None:
    if all(case.truth is None for case in cases):
        raise DataError(
            f"{cases[0].files[0].parent}: found no label map, as of all {len(cases)} cases; expected one for every training case; "
            "give the folder of the training set"
        )


def _id(case: Case) -> str:
    return case.id
