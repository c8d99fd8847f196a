"""From the folders that `lms3d.evaluate` is given to a plan: which cases are scored, and a job for each."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from lms3d.data import pseudonyms, split
from lms3d.data.volumes.case import Case
from lms3d.data.volumes.geometry import Geometry, Shape
from lms3d.data.volumes.labels import LabelSchema
from lms3d.data.words import counted
from lms3d.errors import InputError, say
from lms3d.scoring import tables
from lms3d.scoring.rules import Rules
from lms3d.tasks.volumes import label_maps, plain_folders
from lms3d.tasks.volumes.job import ScoringJob, Source
from lms3d.tasks.volumes.label_maps import Predictions
from lms3d.tasks.volumes.material import shortened
from lms3d.tasks.volumes.plain_folders import PlainFolder
from lms3d.training import config_file

Folder = Predictions | PlainFolder

Pools = Mapping[str, Sequence[str]]
"""Name of a pool -> the labels of its folders: the folds of a cross-validation, which are scored as one prediction."""


@dataclass(frozen=True, kw_only=True)
class Truth:
    """The data set that predictions are compared with."""

    root: str
    """Its folder."""
    cases: Mapping[str, Case]
    """Case id -> the case, if it has a true label map."""
    schema: LabelSchema


@dataclass(frozen=True, kw_only=True)
class ScoringPlan:
    """The cases to score, and how."""

    rules: Rules
    schema: LabelSchema
    """The schema of the truth."""
    jobs: tuple[ScoringJob, ...]
    labels: tuple[str, ...]
    """The labels of the predictions, in the order in which these were given."""
    channel: str
    """The channel of the images that pictures of the worst cases show."""
    drawn: tuple[str, ...]
    """The regions that they outline."""
    notes: tuple[str, ...] = ()
    """How the rules were guessed, and which of their regions the labels of the truth or of a prediction lack: a sentence each."""


def load_all(paths: Sequence[Path]) -> list[Folder]:
    """Run directories, predictions folders and plain folders, with labels that tell them apart."""
    found = [_load(path) for path in paths]
    labels = [one.label for one in found]
    if len(set(labels)) < len(labels):  # the same run twice, with and without --tta for example: use the folders
        labels = [str(path) for path in paths]
    if len(set(labels)) < len(labels):
        twice = next(label for label in labels if labels.count(label) > 1)
        raise InputError(f"PREDICTIONS: found {twice} twice; expected different folders; name each once")
    return [replace(one, label=tables.printable(label)) for one, label in zip(found, labels, strict=True)]


def shown(case: str) -> str:
    """The name of a case in tables and figures."""
    return tables.printable(pseudonyms.of(case))


def _load(path: Path) -> Folder:
    is_ours = label_maps.folder_in(path) is not None or (path / "config.json").is_file()
    plain = plain_folders.load(path) if path.is_dir() and not is_ours else None
    return plain or label_maps.load(path)


def plan(
    folders: Sequence[Folder], truth: Truth, codings: Sequence[LabelSchema], rules: Rules, *, channel: str, drawn: Sequence[str],
    notes: Sequence[str] = (), pools: Pools | None = None,
) -> ScoringPlan:  # fmt: skip
    """A job for every case that all `folders` have predicted, or one folder of each pool, and that has a truth.

    codings: the schema of each folder's label maps. channel, drawn, notes: see `ScoringPlan`. Cube space is the finest grid of
    `folders`, if all grids cover the same part of the volume (all cubes do; boxes do if they are equal); predictions on a coarser
    grid are resized to it, nearest neighbour. Otherwise there is native space alone.
    """
    found = [cases_of(one, truth.cases) for one in folders]
    pools = pools or {}
    units = _units(list(map(_Part, folders, found, codings)), pools)
    scored = _scored(folders, {name: _cases_in(parts) for name, parts in units.items()}, truth.cases, truth.root, rules)
    grid = _common_grid(folders)
    ours = [one for one in folders if isinstance(one, Predictions)]
    jobs = []
    for case in scored:
        sources = tuple(
            _source(name, _part_with(case, parts), case, grid, name in pools) for name, parts in units.items()
        )
        geometry = next((Geometry.from_json(one.cases[case]) for one in ours if case in one.cases), None)
        jobs.append(ScoringJob(
            case=truth.cases[case], schema=truth.schema, rules=rules, sources=sources, geometry=geometry, grid=grid,
        ))  # fmt: skip
    of_pools = (note for name in pools for note in (_pooled(name, units[name]), *map(_trained, units[name])))
    notes = [note for note in (*notes, *of_pools) if note]
    for note in notes:
        say(f"note: {note}")
    return ScoringPlan(
        rules=rules, schema=truth.schema, jobs=tuple(jobs), labels=tuple(units),
        channel=channel, drawn=tuple(drawn), notes=tuple(notes),
    )  # fmt: skip


def label_maps_alone(root: str) -> dict[str, Case]:
    """Case id -> case, of a truth without images such as labelsTr of nnU-Net. The id is the name of the file or, if all files have
    one name such as seg.nii.gz, that of its folder. InputError if two files have the same."""
    path = Path(root).expanduser()
    found = plain_folders.load(path) if path.is_dir() else None
    ids: dict[str, Path] = {}
    for case, file in _named_by_case(found.files if found else (), path):
        if (other := ids.setdefault(case, file)) != file:
            raise InputError(
                f"{file}: found a second label map of case {case}, beside {other.relative_to(path)}; expected one for each case; "
                "name the folder with one of them, or call the files by their cases"
            )
    return {case: Case(id=case, images={}, truth=file) for case, file in ids.items()}


def _named_by_case(files: Sequence[Path], root: Path) -> Iterator[tuple[str, Path]]:
    """The id of each label map, and the map. A name with a digit may be that of a case which two readers have marked."""
    names = {_without_ending(file.name) for file in files}
    in_folders = len(files) > 1 and root not in {file.parent for file in files}
    by_folder = in_folders and len(names) == 1 and not any(letter.isdigit() for letter in names.pop())
    for file in files:
        yield _without_ending((file.parent if by_folder else file).name), file


def _without_ending(name: str) -> str:
    return name.split(".nii")[0].removesuffix("_seg").removesuffix("-seg")


def cases_of(folder: Folder, cases: Mapping[str, Case]) -> Mapping[str, Path]:
    """Case -> its label map on the grid of the files."""
    if isinstance(folder, PlainFolder):
        found = folder.matched(cases)
        if not found:
            raise InputError(
                f"{folder.files[0]}: found a name with none of {len(cases)} cases in it ({min(cases, default='no truth')}, "
                "...); expected <case>.nii.gz; name the data set that they belong to with --truth"
            )
        return found
    return {case: folder.native(case) for case in folder.cases}


@dataclass(frozen=True)
class _Part:
    """A folder of predictions."""

    folder: Folder
    files: Mapping[str, Path]
    """Case -> its label map on the grid of the files."""
    coding: LabelSchema


def _units(parts: Sequence[_Part], pools: Pools) -> dict[str, list[_Part]]:
    """Label in the tables -> its folders: one, or the folds of a pool. InputError if folds have a case in common."""
    pool_of = {label: name for name, labels in pools.items() for label in labels}
    units: dict[str, list[_Part]] = {}
    for part in parts:
        label = part.folder.label
        unit = units.setdefault(pool_of.get(label, label), [])
        for other in unit:
            if both := sorted(set(part.files) & set(other.files)):
                raise InputError(
                    f"--pool {pool_of[label]}: found {counted(len(both), 'case')} in {other.folder.label} and in {label}, such as "
                    f"{shown(both[0])}; expected each case in one fold; leave a folder out, or name them without --pool to compare "
                    "them"
                )
        unit.append(part)
    return units


def _cases_in(parts: Sequence[_Part]) -> set[str]:
    return set[str]().union(*(part.files for part in parts))


def _part_with(case: str, parts: Sequence[_Part]) -> _Part:
    """The part that has predicted a case; the first one if none has."""
    return next((part for part in parts if case in part.files), parts[0])


def _pooled(name: str, parts: Sequence[_Part]) -> str:
    """A note on the models of a pool."""
    folds = counted(len(parts), "fold")
    return f"{name} pools {folds}, each with a model of its own: a case has the score of its fold's model (fold in scores.csv)"


def _trained(part: _Part) -> str:
    """A note on cases that have trained the network of their own fold; "" if none is known to have."""
    if isinstance(part.folder, PlainFolder):
        return ""
    path = _of_run(part.folder, "split.json")
    if path is None:
        return ""
    known = split.load(path)
    seen = split.seen(part.files, known.training, {}, names=known.trained)
    if not seen:
        return ""
    return (
        f"{len(seen)} of {counted(len(part.files), 'case')} of {part.folder.label}, or other scans of their patients, have trained "
        f"its network, such as {shown(seen[0])}: these are no scores of a cross-validation"
    )


def _of_run(folder: Predictions, name: str) -> Path | None:
    """A file of the run that made these predictions; None if there is none."""
    beside = (Path(folder.run), folder.directory.parent)  # the second, if the run was moved, predictions and all
    return next((run / name for run in beside if (run / name).is_file()), None)


def seeds_of(folders: Sequence[Folder], pools: Pools | None = None) -> dict[str, int]:
    """Label of predictions -> the seed of the run that made them, or of all folds of a pool. Left out: predictions of other
    programs and of several runs, runs whose config.json is missing or damaged, and pools of several seeds."""
    found = {one.label: _seed_of(one) for one in folders if isinstance(one, Predictions)}
    for name, labels in (pools or {}).items():
        of_folds = {found.get(label) for label in labels}
        found[name] = of_folds.pop() if len(of_folds) == 1 else None
    return {label: seed for label, seed in found.items() if seed is not None}


def _seed_of(folder: Predictions) -> int | None:
    path = _of_run(folder, config_file.NAME)
    try:
        seed = config_file.read(path.parent)["options"]["seed"] if path else None
    except (InputError, KeyError, TypeError):
        return None
    return seed if isinstance(seed, int) else None


def _scored(
    folders: Sequence[Folder], found: Mapping[str, set[str]], cases: Mapping[str, Case], root: str, rules: Rules
) -> list[str]:
    """The cases to score, sorted. Messages say which cases are left out or missing. found: label in the tables -> its cases."""
    shared = set.intersection(*found.values())
    if not shared:
        raise InputError(
            f"PREDICTIONS: found no case that is in all of {', '.join(found)}; expected the same cases in each; predict with the "
            "same --data and split, or score the folds of a cross-validation as one with --pool NAME=RUN,RUN"
        )
    plain = all(isinstance(one, PlainFolder) for one in folders)
    if plain and rules.missing_case == "penalised":
        _tell_missing(cases, shared, f"scored 0 and {rules.penalty_mm} mm, as {rules.name} says")
        return sorted(cases)
    scored = sorted(shared & set(cases))
    if not scored:
        raise InputError(
            f"{root}: found no label map for any of {len(shared)} predicted cases ({min(shared)}, ...); expected the "
            "data set that they belong to; name it with --truth"
        )
    if plain:
        _tell_missing(cases, shared, "left out")
    if left_out := set.union(*found.values()) - set(scored):
        number = counted(len(left_out), "predicted case is", "predicted cases are")
        say(f"note: {number} left out, for want of a truth or of a file in every folder: {shortened(left_out)}")
    if unusable := {case for one in folders if isinstance(one, Predictions) for case in one.left_out} - set(scored):
        number = counted(len(unusable), "case")
        say(f"note: {number} could not be predicted, because of files that cannot be used: {shortened(unusable)}")
    return scored


def _tell_missing(cases: Mapping[str, Case], shared: set[str], fate: str) -> None:
    missing = sorted(set(cases) - shared)
    if missing:
        alone = len(missing) == 1
        verb = "has no prediction and is" if alone else "have no prediction and are"
        say(f"note: {counted(len(missing), 'case')} of the truth {verb} {fate}: {shortened(missing)}")


def _common_grid(folders: Sequence[Folder]) -> Shape | None:
    """The finest of the networks' grids; None unless all of them cover the same part of the head."""
    ours = [one for one in folders if isinstance(one, Predictions)]
    if len(ours) < len(folders) or len({(one.stretched, one.stretched or one.shape) for one in ours}) > 1:
        return None
    return max((one.shape for one in ours if one.shape is not None), key=math.prod, default=None)


def _source(label: str, part: _Part, case: str, grid: Shape | None, pooled: bool) -> Source:
    """A case of a part. label: that of the tables. pooled: whether the part is a fold of a pool."""
    folder, native = part.folder, part.files.get(case)
    fold = folder.label if pooled and native is not None else ""
    if isinstance(folder, PlainFolder):
        return Source(label=label, fold=fold, coding=part.coding, native=native)
    return Source(
        label=label, fold=fold, coding=part.coding, native=native, cube=folder.cube(case) if grid else None,
        geometry=Geometry.from_json(folder.cases[case]), shape=folder.shape, targets=folder.targets,
    )  # fmt: skip
