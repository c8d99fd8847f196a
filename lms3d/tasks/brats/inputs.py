"""From the arguments of `lms3d.evaluate` to a plan: which folders, which cases, which rules, and a job for each case."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from lms3d.data import pseudonyms
from lms3d.data.brats.case import Case
from lms3d.data.brats.geometry import Geometry, Shape
from lms3d.data.brats.layouts import find_cases
from lms3d.data.brats.schema import LabelSchema, schema_named
from lms3d.data.errors import NoCaseError
from lms3d.data.words import counted
from lms3d.errors import InputError, say
from lms3d.scoring import rules as challenge
from lms3d.scoring import tables
from lms3d.scoring.rules import Rules
from lms3d.tasks.brats import codings, label_maps, plain_folders
from lms3d.tasks.brats.job import Job, Source
from lms3d.tasks.brats.label_maps import Predictions
from lms3d.tasks.brats.material import shortened
from lms3d.tasks.brats.plain_folders import PlainFolder

Folder = Predictions | PlainFolder


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The cases to score, and how."""

    rules: Rules
    schema: LabelSchema
    """The schema of the truth."""
    jobs: tuple[Job, ...]
    labels: tuple[str, ...]
    """The labels of the predictions, in the order in which these were given."""
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
    folders: Sequence[Folder],
    *,
    truth: str | None = None,
    labels: str | None = None,
    scoring: str | None = None,
    prediction_labels: str | None = None,
) -> Plan:
    """A job for every case that all `folders` have predicted and that has a truth.

    truth: the folder of the data set; None takes the one that was predicted from. labels: the name of its schema, if file names do
    not tell. scoring: the rules; None takes those of the labels. prediction_labels: the coding of plain folders; None takes that of
    the truth. Cube space is the finest grid of `folders`, if all grids cover the same part of the head (all cubes do; boxes do if
    they are equal); predictions on a coarser grid are resized to it, nearest neighbour. Otherwise there is native space alone.
    """
    root, cases, schema = _truth(folders, truth, labels)
    own = codings.coding(prediction_labels) if prediction_labels else schema
    known = [own if isinstance(one, PlainFolder) else schema_named(one.schema) for one in folders]
    found = [_cases_of(one, cases) for one in folders]
    chosen = challenge.select(scoring, schema.name, cases)
    scored = _scored(folders, found, cases, root, chosen)
    grid = _common_grid(folders)
    parts = list(zip(folders, found, known, strict=True))
    first = next((one for one in folders if isinstance(one, Predictions)), None)
    jobs = []
    for case in scored:
        sources = tuple(_source(*part, case, grid) for part in parts)
        geometry = Geometry.from_json(first.cases[case]) if first is not None and case in first.cases else None
        jobs.append(Job(
            case=cases[case], schema=schema, rules=chosen.name, sources=sources, geometry=geometry, grid=grid,
        ))  # fmt: skip
    notes = [
        challenge.guessed(chosen, scoring, schema.name, cases), _left_out(schema, chosen),
        *(_unmarked(one.label, coding, schema, chosen) for one, _, coding in parts),
    ]  # fmt: skip
    notes = [note for note in notes if note]
    for note in notes:
        say(f"note: {note}")
    return Plan(
        rules=chosen, schema=schema, jobs=tuple(jobs), labels=tuple(one.label for one in folders), notes=tuple(notes)
    )


def _truth(
    folders: Sequence[Folder], truth: str | None, labels: str | None
) -> tuple[str, dict[str, Case], LabelSchema]:
    """The folder of the data set, its cases with a truth by id, and its schema."""
    ours = next((one for one in folders if isinstance(one, Predictions)), None)
    if truth is None and ours is None:
        raise InputError(
            f"--truth: found none, and {folders[0].directory} does not tell where its images come from; expected the data "
            "set with the true label maps; name its folder"
        )
    root = truth or (ours.data if ours else "")
    known = labels or (None if truth or ours is None else ours.schema_of_truth)
    try:
        cases, schema = find_cases(root, labels=known, require_truth=False, require_complete=False)
    except NoCaseError as error:
        bare = _label_maps_alone(root) if ours is None else {}
        if bare and not labels:
            raise InputError(f"{error}; of label maps alone, say with --labels what their values mean") from None
        if not (bare and labels):
            raise
        return root, bare, schema_named(str(labels))
    return root, {case.id: case for case in cases if case.truth is not None}, schema


def _label_maps_alone(root: str) -> dict[str, Case]:
    """Case id -> case, of a truth without images such as labelsTr of nnU-Net. The id is the name of the file."""
    path = Path(root).expanduser()
    found = plain_folders.load(path) if path.is_dir() else None
    names = {one: one.name.split(".nii")[0] for one in (found.files if found else ())}
    ids = {name.removesuffix("_seg").removesuffix("-seg"): one for one, name in names.items()}
    return {case: Case(id=case, images={}, truth=file) for case, file in ids.items()}


def _cases_of(folder: Folder, cases: Mapping[str, Case]) -> Mapping[str, Path]:
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


def _scored(
    folders: Sequence[Folder], found: Sequence[Mapping[str, Path]], cases: Mapping[str, Case], root: str, rules: Rules
) -> list[str]:
    """The cases to score, sorted. Messages say which cases are left out or missing."""
    shared = set.intersection(*(set(one) for one in found))
    if not shared:
        raise InputError(
            f"PREDICTIONS: found no case that is in all of {', '.join(one.label for one in folders)}; expected the "
            "same cases in each; predict with the same --data and split"
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
    if left_out := set.union(*(set(one) for one in found)) - set(scored):
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
    return max((one.shape for one in ours), key=math.prod)


def _source(folder: Folder, found: Mapping[str, Path], coding: LabelSchema, case: str, grid: Shape | None) -> Source:
    if isinstance(folder, PlainFolder):
        return Source(label=folder.label, coding=coding, native=found.get(case))
    return Source(
        label=folder.label, coding=coding, native=found[case], cube=folder.cube(case) if grid else None,
        geometry=Geometry.from_json(folder.cases[case]), shape=folder.shape, targets=folder.targets,
    )  # fmt: skip


def _left_out(schema: LabelSchema, rules: Rules) -> str:
    """A note on the regions that the labels do not have: they are not scored, and join no lesions; "" if there are none."""
    without = [region for region in rules.needed if codings.values_of(schema, region) is None]
    joining = {other for names in rules.merge_touching.values() for other in names}
    joins = [region for region in without if region in joining]
    if not without:
        return ""
    merges = f", and no lesions are joined because they touch {' or '.join(joins)}" if joins else ""
    return f"{', '.join(without)} of {rules.name} left out{merges}: the labels of {schema.name} do not have them"


def _unmarked(label: str, coding: LabelSchema, schema: LabelSchema, rules: Rules) -> str:
    """A note on the regions of the truth that a prediction has no labels for: they count as empty, as the challenge counts them."""
    of_truth, own = (codings.regions_of(one, rules.needed) for one in (schema, coding))
    without = [region for region in of_truth if region not in own]
    if not without:
        return ""
    return f"{label} has labels of {coding.name}, without {', '.join(without)}: scored as if nothing were marked there"
