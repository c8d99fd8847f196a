"""`python -m lms3d.predict` for volumes of any task: a label map for each case on the grid of its files, and one on the network's.

Of several runs (folds, seeds, resolutions) the probabilities are averaged on the grid of the files.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol

import numpy as np
from nibabel.affines import voxel_sizes

from lms3d.common.json_values import decoded
from lms3d.console import say
from lms3d.data import pseudonyms, split
from lms3d.data.volumes import cache, dicom, patches, symmetries
from lms3d.data.volumes.cache import Cache
from lms3d.data.volumes.data_set import DataSet
from lms3d.data.volumes.geometry import Geometry, Shape
from lms3d.data.volumes.labels import LabelSchema
from lms3d.data.volumes.normalise import Normalisation
from lms3d.data.volumes.planes import beyond, image_planes
from lms3d.data.volumes.preprocess import Preprocessing
from lms3d.data.volumes.targets import Targets
from lms3d.data.words import counted
from lms3d.errors import InputError
from lms3d.scoring.pair import DECIMALS, sizes_mm
from lms3d.tasks.streaming import entropy, nifti
from lms3d.tasks.streaming.components import without_small
from lms3d.tasks.streaming.segment import probabilities
from lms3d.tasks.streaming.volumes import Cropped, Mean, Placed, Resized, Volume
from lms3d.tasks.task import PredictRequest, TrainedRun
from lms3d.tasks.volumes import dicom_seg, label_maps
from lms3d.tasks.volumes.label_maps import INDEX, Predictions
from lms3d.tasks.volumes.material import shortened, tell_of_cut_off, tell_of_left_out, tell_of_unused

_ENTROPY = {"sigmoid": entropy.independent, "softmax": entropy.categorical}


class Reader(Protocol):
    """How a task reads the data that its networks are applied to, and what their outputs mean."""

    def require_alike(self, first: TrainedRun, other: TrainedRun) -> None:
        """InputError if the outputs of two runs mean different things."""

    def folder(self, request: PredictRequest) -> Path:
        """The folder of the data."""

    def cases(self, folder: Path, request: PredictRequest, run: TrainedRun) -> DataSet:
        """The cases of the folder, as a run reads them. InputError or DataError if they do not have what it has learnt from."""

    def preprocessing(self, run: TrainedRun) -> Preprocessing: ...

    def normalisation(self, run: TrainedRun) -> Normalisation: ...

    def targets(self, runs: Sequence[TrainedRun], of_data: LabelSchema) -> Targets:
        """What the outputs mean, for data with this schema."""

    def meaning(self, runs: Sequence[TrainedRun], targets: Targets) -> Mapping[str, Any]:
        """The labels of the maps as predictions.json describes them."""

    def tissues(self, targets: Targets) -> Sequence[Sequence[int]]:
        """The label values of the whole tumour, or of each organ, whose small parts --remove-below removes."""


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


def predict(request: PredictRequest, reader: Reader) -> tuple[str, dict[str, str]]:
    """Segments the validation cases of the run, or every case of `request.data`."""
    for other in request.runs[1:]:
        reader.require_alike(request.runs[0], other)
    request = _from_dicom(request)
    folder = reader.folder(request)
    members = [_member(run, folder, request, reader) for run in request.runs]
    learnt = reader.targets(request.runs, members[0].volumes.schema)
    meaning = reader.meaning(request.runs, learnt)
    target = _target(request, folder, members[0].volumes, learnt, meaning, _shared_ids(request, members))
    if request.data and request.cases is None:  # `_named` tells of a list; no run validates cases that were left out
        tell_of_left_out(members[0].volumes)
    _tell_of_seen(request.runs, target, members[0].patients, members[0].known_as)
    for volumes in {member.volumes.directory: member.volumes for member in members}.values():
        tell_of_cut_off(volumes, list(target.cases))
    with ExitStack() as stack:
        segmenters = [_segmenter(member, len(learnt.names), request, stack) for member in members]
        _write(segmenters, members, learnt, target, request, reader)
    uncertainty = {"uncertainty": str(request.output / "uncertainty")} if request.uncertainty else {}
    as_dicom = {"as DICOM-SEG": str(request.output / "dicom")} if request.form == dicom_seg.FORMAT else {}
    small = {} if target.shape is None else {"on the network's grid": str(request.output / "cube")}
    return f"{counted(len(target.cases), 'case')} segmented", {
        "on the grid of the files": str(request.output / "native"),
        **as_dicom,
        **uncertainty,
        **small,
        "to score them": f"python -m lms3d.evaluate {request.output}",
    }


def sample(run: TrainedRun, reader: Reader) -> tuple[str, np.ndarray]:
    """A validation case of a run as its network takes it, or the middle of it in a run on patches (`Task.sample`). It is prepared
    by itself, since the cache of the training may be gone."""
    request = PredictRequest(
        runs=(run,), data=None, labels=None, output=run.run_dir, tta=None, progress=lambda *_: None
    )
    cases, schema = reader.cases(reader.folder(request), request, run)
    parts = run.run_dir / "split.json"
    validated = split.load(parts).validation if parts.is_file() else ()
    case = next((case for case in cases if case.id in validated), cases[0])
    with TemporaryDirectory() as folder:
        volumes = cache.build([case], schema, reader.preprocessing(run), directory=folder, workers=1)
        normalisation, shape = reader.normalisation(run), volumes.shape_of(case.id)
        image = image_planes(normalisation, volumes, case.id)(0, shape[0])
        if patch := run.trained.patch_shape:
            image = _middle(image, patch, beyond(normalisation, volumes, case.id))
    return f"case {pseudonyms.of(case.id)}", image


def _middle(image: np.ndarray, patch: Shape, around: np.ndarray) -> np.ndarray:
    """The patch in the middle of an image (A, B, C, channels). around: the values (channels,) beside an image that is smaller."""
    box = patches.room(image.shape[:3], patch)
    whole = np.full((*box.shape, image.shape[3]), around, np.float32)
    whole[tuple(slice(-low, size - low) for low, size in zip(box.lower, image.shape, strict=False))] = image
    starts = [(have - size) // 2 for have, size in zip(box.shape, patch, strict=True)]
    return whole[tuple(slice(start, start + size) for start, size in zip(starts, patch, strict=True))]


def _from_dicom(request: PredictRequest) -> PredictRequest:
    """The request, with the manifest of its DICOM series if its data are such. InputError if it asks for DICOM-SEG of others."""
    manifest = None
    if request.data is not None and dicom.is_dicom(request.data):
        manifest = dicom.manifest_of(request.data, request.progress)
    if request.form == dicom_seg.FORMAT:
        dicom_seg.require(manifest)
    return request if manifest is None else replace(request, data=manifest)


def _member(run: TrainedRun, folder: Path, request: PredictRequest, reader: Reader) -> Member:
    found = reader.cases(folder, request, run)
    cases, schema = found
    if request.data and run is request.runs[0]:
        tell_of_unused(found.unused)
    # All cases of the folder: for the run's own data that is the cache which training has built.
    volumes = cache.build(cases, schema, reader.preprocessing(run), progress=request.progress)
    return Member(
        run=run,
        volumes=volumes,
        files={case.id: case.files[0] for case in cases},
        patients=found.patients,
        known_as=found.known_as,
        normalisation=reader.normalisation(run),
    )


def _shared_ids(request: PredictRequest, members: Sequence[Member]) -> Sequence[str]:
    """The cases to segment: those asked for, else the given folder's, else the cases that every run has validated."""
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
    """The cases that a file names, except any that data.prepare has left out. InputError for a case that is missing."""
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


def _target(
    request: PredictRequest,
    folder: Path,
    volumes: Cache,
    learnt: Targets,
    meaning: Mapping[str, Any],
    ids: Sequence[str],
) -> Predictions:
    """The description of the predictions that will be written."""
    runs = [run.run_dir.resolve() for run in request.runs]
    return Predictions(
        directory=request.output, label=request.runs[0].name if len(runs) == 1 else request.output.resolve().name,
        run=", ".join(map(str, runs)), model=request.trained.model, shape=volumes.preprocessing.shape, task=request.trained.task,
        stretched=volumes.preprocessing.stretched, tta=request.tta, data=str(Path(folder).resolve()),
        fingerprint=volumes.fingerprint, schema=learnt.schema.name, meaning=meaning,
        schema_of_data=volumes.schema.name, targets=learnt.kind,
        cases={case_id: volumes.geometry(case_id).to_json() for case_id in ids},
        left_out=sorted(volumes.skipped) if request.data and request.cases is None else [],
    )  # fmt: skip


Segmenter = Callable[[str], AbstractContextManager[Volume]]
"""Case -> its probabilities on the run's own grid, which the end of the context forgets."""


def _segmenter(member: Member, channels: int, request: PredictRequest, stack: ExitStack) -> Segmenter:
    """Opens the network of a run."""
    patch = member.run.trained.patch_shape
    network = stack.enter_context(member.run.network(streamed=patch is None))
    numbers = symmetries.allowed(patch or member.volumes.shape, request.tta or "none")

    def segmented(case_id: str) -> AbstractContextManager[Volume]:
        read = image_planes(member.normalisation, member.volumes, case_id)
        return probabilities(
            network, read, member.volumes.shape_of(case_id), channels=channels, patch=patch, numbers=numbers,
            scratch=request.output, beyond=partial(beyond, member.normalisation, member.volumes, case_id),
        )  # fmt: skip

    return segmented


def _write(
    segmenters: Sequence[Segmenter], members: Sequence[Member], learnt: Targets, target: Predictions,
    request: PredictRequest, reader: Reader,
) -> None:  # fmt: skip
    """Writes the maps of every case, then predictions.json."""
    (target.directory / INDEX).unlink(missing_ok=True)  # until all are new, there is no finished set
    for done, case_id in enumerate(target.cases):
        request.progress(done, len(target.cases), "segmenting")
        with ExitStack() as opened:
            found = [opened.enter_context(segmented(case_id)) for segmented in segmenters]
            _write_case(case_id, found, members, learnt, target, request, reader)
    target.save()
    request.progress(len(target.cases), len(target.cases), "segmenting")


def _write_case(
    case_id: str, found: Sequence[Volume], members: Sequence[Member], learnt: Targets, target: Predictions,
    request: PredictRequest, reader: Reader,
) -> None:  # fmt: skip
    """Writes both label maps of a case and, if asked for, the map of its uncertainty."""
    image, geometry = members[0].files[case_id], members[0].volumes.geometry(case_id)
    # Probabilities, not labels, go back to the fine grid: a linear edge is smoother than one in whole coarse voxels.
    native = Mean([
        _on_grid_of_files(one, member.volumes.geometry(case_id)) for one, member in zip(found, members, strict=True)
    ])  # fmt: skip
    header = label_maps.header_like(image, native.shape)
    if request.remove_below_ml:
        least = least_voxels(request.remove_below_ml, np.array(geometry.affine))
        kept = partial(without_small, tissues=reader.tissues(learnt), least_voxels=least)
        with kept(native, learnt.from_channels, scratch=target.directory) as labels:
            nifti.write(labels, target.native(case_id), header, lambda planes: planes[..., 0])
    else:
        nifti.write(native, target.native(case_id), header, learnt.from_channels)
    if request.uncertainty:
        header = label_maps.header_like(image, native.shape, kind=np.float32)
        nifti.write(native, target.uncertainty(case_id), header, _ENTROPY[learnt.activation])
    if request.form == dicom_seg.FORMAT and request.data is not None:
        path = target.directory / "dicom" / f"{case_id}.dcm"
        dicom_seg.write(target.native(case_id), request.data, case_id, learnt.schema, path)
    if target.shape is None:
        return
    # One run: what its network said. Several runs may have as many grids.
    small = found[0] if len(found) == 1 else Resized(Cropped(native, geometry.box), target.shape)
    header = label_maps.header_at(geometry.network_affine(target.shape), target.shape)
    nifti.write(small, target.cube(case_id), header, learnt.from_channels)


def least_voxels(least_ml: float, affine: np.ndarray) -> float:
    """The voxels in a volume. Rounded, for neither the rotation in a header nor the last bit of a quotient should decide whether a
    part of exactly this volume stays."""
    voxel_mm3 = float(np.prod(sizes_mm(voxel_sizes(affine))))
    return round(1000 * least_ml / voxel_mm3, DECIMALS)


def _on_grid_of_files(found: Volume, geometry: Geometry) -> Volume:
    return Placed(Resized(found, geometry.box.shape), geometry.box, geometry.shape)
