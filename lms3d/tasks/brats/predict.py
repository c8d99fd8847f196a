"""`python -m lms3d.predict` for brain scans: two label maps for each case, see `label_maps`.

Of several runs (folds, seeds, resolutions) the probabilities are averaged on the grid of the files.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from nibabel.affines import voxel_sizes

from lms3d.common.json_values import decoded
from lms3d.console import say
from lms3d.data import pseudonyms, split
from lms3d.data.brats import cache, normalise, symmetries
from lms3d.data.brats.cache import Cache
from lms3d.data.brats.definition import described
from lms3d.data.brats.normalise import Normalisation
from lms3d.data.brats.preprocess import to_native
from lms3d.data.brats.resample import resize
from lms3d.data.brats.schema import CHANNELS
from lms3d.data.brats.targets import Targets, targets_of
from lms3d.data.phantoms import brains
from lms3d.data.words import counted
from lms3d.errors import InputError
from lms3d.tasks.brats import coding, label_maps, segment
from lms3d.tasks.brats.components import without_small
from lms3d.tasks.brats.label_maps import INDEX, Predictions
from lms3d.tasks.brats.material import preprocessing, shortened, tell_of_cut_off, tell_of_left_out
from lms3d.tasks.brats.package import normalisation
from lms3d.tasks.task import PredictRequest, TrainedRun


@dataclass(frozen=True, kw_only=True)
class Member:
    """One run of the ensemble, with the cases prepared as its network needs them."""

    run: TrainedRun
    volumes: Cache
    files: Mapping[str, Path]
    """Case -> its first image."""
    patients: Mapping[str, str]
    """Case -> the patient."""
    known_as: Mapping[str, Sequence[str]]
    """Case -> every name of that patient."""
    normalisation: Normalisation


def predict(request: PredictRequest) -> tuple[str, dict[str, str]]:
    """Segments the validation cases of the run, or every case of `request.data`."""
    _require_alike(request.runs)
    folder = _folder(request)
    members = [_member(run, folder, request) for run in request.runs]
    learnt = targets_of(request.trained.targets, coding.written(request.runs, members[0].volumes.schema))
    target = _target(request, folder, members[0].volumes, learnt, _shared_ids(request, members))
    if request.data and request.cases is None:  # `_named` tells of a list; no run validates cases that were left out
        tell_of_left_out(members[0].volumes)
    _tell_of_seen(request.runs, target, members[0].patients, members[0].known_as)
    for volumes in {member.volumes.directory: member.volumes for member in members}.values():
        tell_of_cut_off(volumes, list(target.cases))
    with ExitStack() as stack:
        segmenters = [_segmenter(member, len(learnt.names), request.tta, stack) for member in members]
        _write(segmenters, members, learnt, target, request)
    return f"{counted(len(target.cases), 'case')} segmented", {
        "on the grid of the files": str(request.output / "native"),
        "on the network's grid": str(request.output / "cube"),
        "to score them": f"python -m lms3d.evaluate {request.output}",
    }


def _require_alike(runs: Sequence[TrainedRun]) -> None:
    """InputError if the outputs of two runs mean different things."""
    first = runs[0]
    for other in runs[1:]:
        for name in ("task", "targets", "labels"):
            one, another = getattr(first.trained, name), getattr(other.trained, name)
            if one != another:
                raise InputError(
                    f"{other.run_dir}: found --{name} {another}; expected {one} as in {first.run_dir}; average runs that learned "
                    "the same"
                )


def _folder(request: PredictRequest) -> Path:
    folder = request.data or request.trained.data
    return folder or brains.write(brains.default_directory(), progress=request.progress)  # made again if it is gone


def _member(run: TrainedRun, folder: Path, request: PredictRequest) -> Member:
    found = coding.find_cases(folder, request.labels or run.trained.labels, run)
    cases, schema = found
    learnt = tuple(run.content.get("data", {}).get("modalities", CHANNELS))
    if found.modalities != learnt:
        raise InputError(
            f"{folder}: found {', '.join(found.modalities)}; expected {', '.join(learnt)} as {run.name} has learnt from; give data "
            "with these modalities, such as a manifest that leaves the others empty in every row"
        )
    # All cases of the folder: for the run's own data that is the cache which training has built.
    volumes = cache.build(cases, schema, preprocessing(run.trained), progress=request.progress)
    files = {case.id: case.files[0] for case in cases}
    return Member(
        run=run,
        volumes=volumes,
        files=files,
        patients=found.patients,
        known_as=found.known_as,
        normalisation=_normalisation(run),
    )


def _shared_ids(request: PredictRequest, members: Sequence[Member]) -> Sequence[str]:
    """The cases to segment: those of the folder that was given, or else those that every run has validated."""
    if request.data and request.cases is None:
        return members[0].volumes.ids
    if request.cases is not None:
        return _named(request.cases, members[0].volumes)
    validated = [split.load(member.run.run_dir / "split.json").validation for member in members]
    for member, ids in zip(members[1:], validated[1:], strict=True):
        if ids != validated[0]:
            raise InputError(
                f"{member.run.run_dir}: found another validation split than in {request.run_dir}; expected one that no run has "
                "trained on; name cases with --data, or give runs of one split"
            )
    return validated[0]


def _tell_of_seen(
    runs: Sequence[TrainedRun], target: Predictions, patients: Mapping[str, str], known_as: Mapping[str, Sequence[str]]
) -> None:
    """Says how many of the cases are of patients on whom a run was trained: their scores say little."""
    paths = [path for run in runs if (path := run.run_dir / "split.json").is_file()]
    splits = [split.load(path) for path in paths]
    trained = [case_id for one in splits for case_id in one.training]
    names = set[str]().union(*(one.trained for one in splits))
    if seen := split.seen(target.cases, trained, patients, known_as=known_as, names=names):
        say(
            f"note: {len(seen)} of {len(target.cases)} cases, or other scans of their patients, have trained the network, such as "
            f"{seen[0]}: do not score these"
        )


def _named(path: Path, volumes: Cache) -> Sequence[str]:
    """The cases that a file names, without those that data.prepare has left out. InputError for a case that is missing."""
    try:
        names = [name for line in decoded(path.read_bytes()).splitlines() if (name := _name_in(line))]
    except (OSError, ValueError) as error:
        raise InputError(
            f"--cases {path}: found a file that cannot be read ({error}); expected a case on each line"
        ) from None
    pseudonyms.know(names)
    if left_out := [name for name in names if name in volumes.skipped]:
        say(
            f"note: {counted(len(left_out), 'case')} of {path} cannot be used: {shortened(left_out)}; "
            f"{volumes.directory / 'skipped.csv'}"
        )
    names = [name for name in names if name not in volumes.skipped]
    unknown = [name for name in names if name not in volumes.ids]
    if unknown or not names:
        found = f"case {unknown[0]}, which is not in the data" if unknown else "no name"
        raise InputError(f"--cases {path}: found {found}; expected names such as {volumes.ids[0]}, one a line")
    return names


def _name_in(line: str) -> str:
    """The case that a line of a list names: quoted, as a file's name, or with a folder before it."""
    name = Path(line.strip().rstrip(",;").strip("\"' \t")).name
    return re.sub(r"(_seg|-seg)?\.nii(\.gz)?$", "", name)


def _target(request: PredictRequest, folder: Path, volumes: Cache, learnt: Targets, ids: Sequence[str]) -> Predictions:
    """The description of the predictions that will be written."""
    runs = [run.run_dir.resolve() for run in request.runs]
    return Predictions(
        directory=request.output, label=request.runs[0].name if len(runs) == 1 else request.output.resolve().name,
        run=", ".join(map(str, runs)), model=request.trained.model, shape=volumes.shape,
        stretched=volumes.preprocessing.stretched, tta=request.tta, data=str(Path(folder).resolve()),
        fingerprint=volumes.fingerprint, schema=learnt.schema.name, meaning=described(learnt.schema),
        schema_of_data=volumes.schema.name, targets=learnt.kind,
        cases={case_id: volumes.geometry(case_id).to_json() for case_id in ids},
        left_out=sorted(volumes.skipped) if request.data and request.cases is None else [],
    )  # fmt: skip


def _segmenter(member: Member, channels: int, tta: str | None, stack: ExitStack) -> Callable[[str], np.ndarray]:
    """Opens the network of a run. Returns a function: case -> probabilities (A, B, C, outputs) on the run's own grid."""
    network = stack.enter_context(member.run.network())
    trained = member.run.trained
    patch = (trained.patch,) * 3 if trained.patch else None
    numbers = symmetries.allowed(patch or member.volumes.shape, tta or "none")

    def segmented(case_id: str) -> np.ndarray:
        image = normalise.image(member.normalisation, member.volumes, case_id)
        return segment.probabilities(network, image, channels=channels, patch=patch, numbers=numbers)

    return segmented


def _write(
    segmenters: Sequence[Callable[[str], np.ndarray]], members: Sequence[Member], learnt: Targets, target: Predictions,
    request: PredictRequest,
) -> None:  # fmt: skip
    """Writes both label maps of every case, then predictions.json."""
    (target.directory / INDEX).unlink(missing_ok=True)  # until all are new, there is no finished set
    for done, case_id in enumerate(target.cases):
        request.progress(done, len(target.cases), "segmenting")
        geometry = members[0].volumes.geometry(case_id)
        found = [segmented(case_id) for segmented in segmenters]
        # Probabilities, not labels, go back to the fine grid: a linear edge is smoother than one in whole coarse voxels.
        native = _mean(
            to_native(one, member.volumes.geometry(case_id)) for one, member in zip(found, members, strict=True)
        )
        labels = learnt.from_channels(native)
        if request.remove_below_ml:
            voxel_ml = float(np.prod(voxel_sizes(np.array(geometry.affine)))) / 1000
            labels = without_small(labels, learnt.schema.values_of("WT"), request.remove_below_ml / voxel_ml)
        label_maps.write_like(labels, members[0].files[case_id], target.native(case_id))
        # One run: what its network said. Several runs may have as many grids.
        small = found[0] if len(found) == 1 else resize(geometry.box.crop(native), target.shape)
        label_maps.write_labels(
            learnt.from_channels(small), geometry.network_affine(target.shape), target.cube(case_id)
        )
    target.save()
    request.progress(len(target.cases), len(target.cases), "segmenting")


def _mean(arrays: Iterable[np.ndarray]) -> np.ndarray:
    total, count = np.zeros((), np.float32), 0
    for array in arrays:
        total, count = total + array, count + 1
    return total / np.float32(count) if count > 1 else total


def _normalisation(run: TrainedRun) -> Normalisation:
    try:
        return normalisation(run.content.get("normalisation"))
    except ValueError:
        raise InputError(
            f"{run.run_dir / 'config.json'}: found no normalisation; expected mean and std of the training images; "
            "train again"
        ) from None
