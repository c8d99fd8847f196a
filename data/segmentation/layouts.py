"""Finds the cases of a data set in nnU-Net's raw layout, in that of the Medical Segmentation Decathlon, or in a manifest.

    Dataset017_X/dataset.json                        channels and labels (see `description`)
                 imagesTr/CASE_0000.nii.gz           nnU-Net: one file per channel
                 imagesTr/CASE.nii.gz                the Decathlon: one file per case, with the channels on a fourth axis
                 labelsTr/CASE.nii.gz
                 imagesTs/..., labelsTs/...          test cases

    Dataset017_X/dataset.json                        nnU-Net's list of files anywhere
                 {"dataset": {"CASE": {"images": ["../a.nii.gz"], "label": "../b.nii.gz"}}}

Files of an operating system (`._*`, `.DS_Store`, `__MACOSX`) are passed over. Every mistake is a DataError that names the file.
"""

from __future__ import annotations

import logging
import os
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lms3d.data import pseudonyms
from lms3d.data.errors import DataError, NoCaseError
from lms3d.data.files import read_json, readable_directory
from lms3d.data.segmentation import description, manifest
from lms3d.data.segmentation.description import Description
from lms3d.data.volumes import dicom, patients
from lms3d.data.volumes.case import LEAVE_OUT, Case, require_id, require_usable
from lms3d.data.volumes.data_set import DataSet
from lms3d.data.volumes.header import ENDINGS
from lms3d.data.volumes.manifest import is_manifest

DESCRIPTION = "dataset.json"
TRAINING, TEST = ("imagesTr", "labelsTr"), ("imagesTs", "labelsTs")
_CHANNEL = re.compile(r"(?P<case>.+)_(?P<channel>\d{4})$")
_TASK01 = re.compile(r"BRATS_\d+\.nii(\.gz)?$")
_DEPTH = 2  # folders between the one that the user names and the data set, such as an archive's
_IGNORED = ("overwrite_image_reader_writer",)  # keys of dataset.json that choose among nnU-Net's readers

log = logging.getLogger("data")


@dataclass(frozen=True, kw_only=True)
class Found:
    """A data set on disk, and what it says of itself."""

    data_set: DataSet
    description: Description


def find(
    root: str | Path, *, like: Description | None = None, part: str = "training", require_truth: bool = True
) -> Found:
    """The cases below `root`, sorted by id, and their description. Reads no voxels.

    root: the folder of a data set, one of its imagesTr and imagesTs, or a manifest (see `manifest`). like: the description of
    another data set; then a folder that has none of its own may hold images alone.
    part: "training"; "test"; "all"; a folder with test cases alone has these in any case.
    require_truth: whether a case without a label map cannot be used, which is its `Case.problem`; it is an error if none has one.
    """
    root = Path(root).expanduser()
    if is_manifest(root):
        cases, described = manifest.read(root, _beside(root), like)
        found = _found(cases, described, root, f"manifest {root.name}")
    else:
        found = _in_folder(readable_directory(root), like, part)
    if require_truth:
        _require_truth(found.data_set.cases)
        return replace(found, data_set=found.data_set.for_training())
    return found


def is_data_set(root: Path) -> bool:
    """Whether `root` is a data set that says what its channels are: a folder with a dataset.json, or a manifest.

    Task01 of the Decathlon is left to `lms3d.data.brats`, which knows its four modalities.
    """
    if is_manifest(root):
        return (root.parent / DESCRIPTION).is_file() or manifest.describes(root)
    if not os.path.isdir(root):  # not Path.is_dir, which raises for a name that is too long
        return False
    try:
        home = _home(root)
    except DataError:  # several; `find` says so
        return True
    images = home / TRAINING[0] if home else root
    return home is not None and not any(_TASK01.match(path.name) for path in images.glob("BRATS_*.nii*"))


def _beside(path: Path) -> Any:
    """The content of the dataset.json beside a manifest; None if there is none."""
    return _content(path.parent) if (path.parent / DESCRIPTION).is_file() else None


def _in_folder(root: Path, like: Description | None, part: str) -> Found:
    folder = _home(root)
    if folder is None and like is None:
        dicom.refuse(root)
        raise NoCaseError(
            f"{root}: found no {DESCRIPTION}; expected a raw folder of nnU-Net or a task of the Segmentation Decathlon, with "
            f"{DESCRIPTION}, imagesTr and labelsTr; give such a folder, or a manifest (.csv, .json)"
        )
    if folder is None:
        assert like is not None
        cases, unused = _scanned(root, None, like.channels)
        return _found(cases, like, root, "images alone", unused)
    content = _content(folder)
    described = description.read(content, name=folder.resolve().name, where=str(folder / DESCRIPTION))
    _require_nifti(folder, content)
    if isinstance(listed := content.get("dataset"), dict):
        cases, unused, layout = _listed(folder, listed, described.channels), [], "nnU-Net, listed"
    else:
        cases, unused, named = _of_parts(folder, _parts(root, folder, part), described.channels)
        layout = "nnU-Net" if named else "Medical Segmentation Decathlon"
    return _found(cases, described, folder, f"{described.name} ({layout})", unused)


def _found(
    cases: Sequence[Case], described: Description, root: Path, layout: str, unused: Iterable[Path] = ()
) -> Found:
    if not cases:
        raise NoCaseError(
            f"{root}: found no image; expected imagesTr/CASE_0000.nii.gz or imagesTr/CASE.nii.gz; give the folder with "
            f"{DESCRIPTION}"
        )
    for case in cases:
        pseudonyms.know_case(case, root)
        require_id(case.id, case.files[0])
    joined = patients.joined(sorted(cases, key=lambda case: case.id), root)
    data_set = DataSet(cases=joined, schema=described.schema, layout=layout, unused=tuple(sorted(unused)))
    return Found(data_set=data_set, description=described)


def _home(root: Path) -> Path | None:
    """The folder with dataset.json: `root`, the one above, or the only one below. DataError if several lie below."""
    if (root / DESCRIPTION).is_file():
        return root
    if root.name in (*TRAINING, *TEST) and (root.parent / DESCRIPTION).is_file():
        return root.parent
    below = sorted(Path(folder) for folder in _folders(root) if (Path(folder) / DESCRIPTION).is_file())
    if len(below) > 1:
        names = ", ".join(folder.name for folder in below[:3])
        raise DataError(
            f"{root}: found {len(below)} data sets ({names}{', ...' if len(below) > 3 else ''}); expected one; give its folder"
        )
    return below[0] if below else None


def _folders(root: Path, depth: int = _DEPTH) -> Iterable[Path]:
    for entry in sorted(root.iterdir()) if depth else ():
        if entry.is_dir() and not _is_junk(entry.name) and entry.name not in (*TRAINING, *TEST):
            yield entry
            yield from _folders(entry, depth - 1)


def _is_junk(name: str) -> bool:
    """Whether an operating system has put a file or folder there."""
    return name.startswith(".") or name == "__MACOSX"


def _content(folder: Path) -> Any:
    return read_json(folder / DESCRIPTION, advice="restore it from the data set")


def _require_nifti(folder: Path, content: Mapping[str, Any]) -> None:
    ending = content.get("file_ending", ENDINGS[0])
    if ending not in ENDINGS:
        raise DataError(
            f"{folder / DESCRIPTION}: found file_ending {ending!r}; expected {' or '.join(ENDINGS)}; convert the images to NIfTI"
        )
    if ignored := [key for key in _IGNORED if key in content]:
        log.warning(f"{folder / DESCRIPTION}: {ignored[0]} is passed over: NIfTI is read here in one way")


def _parts(root: Path, folder: Path, part: str) -> list[tuple[str, str]]:
    """The (images, labels) folders of a part of the data set."""
    if root != folder and root.name in (*TRAINING, *TEST):
        return [one for one in (TRAINING, TEST) if root.name in one]
    wanted = {"training": [TRAINING], "test": [TEST], "all": [TRAINING, TEST]}[part]
    return wanted if any((folder / images).is_dir() for images, _ in wanted) else [TRAINING, TEST]


def _of_parts(
    folder: Path, parts: Sequence[tuple[str, str]], channels: tuple[str, ...]
) -> tuple[list[Case], list[Path], bool]:
    """(cases, files that belong to none, whether a channel has a file of its own)."""
    cases: list[Case] = []
    unused: list[Path] = []
    for images, labels in parts:
        if (folder / images).is_dir():
            more, stray = _scanned(folder / images, folder / labels, channels)
            cases, unused = cases + more, [*unused, *stray, *_without_image(folder / labels, more)]
    return cases, unused, bool(cases) and cases[0].volumes is None and len(channels) >= 1 and _named_so(cases[0])


def _without_image(labels: Path, cases: Sequence[Case]) -> list[Path]:
    """The files among label maps that belong to no case."""
    if not labels.is_dir():
        return []
    ids = {case.id for case in cases}
    return [path for path in _nifti_in(labels) if _stem(path.name) not in ids or not path.name.endswith(ENDINGS)]


def _nifti_in(folder: Path) -> list[Path]:
    """The NIfTI files in a folder, sorted. Endings in capitals count, too: nothing else reads such files, so they are unused."""
    names = sorted(os.listdir(readable_directory(folder)))
    return [folder / name for name in names if name.lower().endswith(ENDINGS) and not _is_junk(name)]


def _named_so(case: Case) -> bool:
    return any(_CHANNEL.match(_stem(path.name)) and _stem(path.name) != case.id for path in case.images.values())


def _scanned(images: Path, labels: Path | None, channels: tuple[str, ...]) -> tuple[list[Case], list[Path]]:
    """The cases whose images are in a folder, and its NIfTI files that belong to none."""
    paths = _nifti_in(images)
    cases, unused = _cases_of(images, [path.name for path in paths if path.name.endswith(ENDINGS)], labels, channels)
    return cases, unused + [path for path in paths if not path.name.endswith(ENDINGS)]


def _cases_of(
    images: Path, names: Sequence[str], labels: Path | None, channels: tuple[str, ...]
) -> tuple[list[Case], list[Path]]:
    stems = {_stem(name): name for name in reversed(names)}  # .nii.gz lies before .nii
    whole = [_whole(images / name, stem, labels, channels) for stem, name in stems.items()]
    if all(case.truth for case in whole):  # CASE_0000 may be the name of a case, if its label map is called so
        return whole, []
    by_channel = {stem: _CHANNEL.match(stem) for stem in stems}
    if stems and all(match and int(match["channel"]) < len(channels) for match in by_channel.values()):
        return _of_channels(images, labels, stems, channels)
    if any(match and match["channel"] == "0000" for match in by_channel.values()):  # files beside nnU-Net's
        known = {
            stem: stems[stem] for stem, match in by_channel.items() if match and int(match["channel"]) < len(channels)
        }
        cases, _ = _of_channels(images, labels, known, channels)
        return cases, [images / name for stem, name in stems.items() if stem not in known]
    return whole, []


def _of_channels(
    images: Path, labels: Path | None, stems: Mapping[str, str], channels: tuple[str, ...]
) -> tuple[list[Case], list[Path]]:
    files: dict[str, dict[str, Path]] = defaultdict(dict)
    for stem, name in stems.items():
        match = _CHANNEL.match(stem)
        assert match is not None
        files[match["case"]][channels[int(match["channel"])]] = images / name
    cases = []
    for case_id, of_case in files.items():
        missing = next((index for index, channel in enumerate(channels) if channel not in of_case), None)
        problem = "" if missing is None else (
            f"{images}: found no channel {missing} ({channels[missing]}); expected {case_id}_{missing:04}{ENDINGS[0]}; add the "
            f"file, or leave the case out ({LEAVE_OUT})"
        )  # fmt: skip
        ordered = {channel: of_case[channel] for channel in channels if channel in of_case}
        truth = _truth(labels, case_id)
        cases.append(Case(id=case_id, images=ordered, channels=channels, truth=truth, blanks=True, problem=problem))
    return cases, []


def _whole(path: Path, case_id: str, labels: Path | None, channels: tuple[str, ...]) -> Case:
    """The case of a file with all channels."""
    volumes = {channel: index for index, channel in enumerate(channels)} if len(channels) > 1 else None
    return Case(
        id=case_id, images=dict.fromkeys(channels, path), channels=channels, volumes=volumes, truth=_truth(labels, case_id),
        blanks=True,
    )  # fmt: skip


def _truth(labels: Path | None, case_id: str) -> Path | None:
    paths = [labels / f"{case_id}{ending}" for ending in ENDINGS] if labels else []
    return next((path for path in paths if path.is_file()), None)


def _listed(folder: Path, listed: Mapping[str, Any], channels: tuple[str, ...]) -> list[Case]:
    """The cases that dataset.json lists with their files, whose paths start at its folder."""
    cases = []
    pseudonyms.know(listed)
    for case_id, files in listed.items():
        require_id(case_id, folder / DESCRIPTION)
        images = files.get("images") if isinstance(files, dict) else None
        truth = files.get("label") if isinstance(files, dict) else None
        paths = [*(images if isinstance(images, list) else [None]), *([truth] if truth is not None else [])]
        if not all(isinstance(path, str) and path.endswith(ENDINGS) for path in paths):
            raise DataError(
                f"{folder / DESCRIPTION}: found case {case_id} without paths; expected images and label as NIfTI; correct this file"
            )
        assert isinstance(images, list)
        if len(images) != len(channels):
            raise DataError(
                f"{folder / DESCRIPTION}: found case {case_id} with {len(images)} images; expected {len(channels)}: "
                f"{', '.join(channels)}; correct this file"
            )
        at = {channel: folder / path for channel, path in zip(channels, images, strict=True)}
        cases.append(
            Case(id=case_id, images=at, channels=channels, truth=folder / truth if truth else None, blanks=True)
        )
    return cases


def _stem(name: str) -> str:
    return next(name[: -len(ending)] for ending in ENDINGS if name.lower().endswith(ending))


def _require_truth(cases: Sequence[Case]) -> None:
    if all(case.truth is None for case in cases):
        raise DataError(
            f"{cases[0].files[0]}: found no label map of case {cases[0].id}, nor of another of {len(cases)} cases; expected one in "
            "labelsTr for every training case; add them, or give the folder of the training set"
        )


def require_complete(cases: Sequence[Case]) -> None:
    """DataError for a case without one of its channels."""
    for case in cases:
        require_usable(case)
