"""`python -m lms3d.predict` for brain scans: two label maps for each case, see `label_maps`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from data import split
from data.brats import augment, cache, layouts
from data.brats.cache import Cache
from data.brats.normalise import Normalisation
from data.brats.preprocess import to_native
from data.phantoms import brains
from lms3d.console import Report as Progress
from lms3d.errors import InputError
from lms3d.tasks.brats import label_maps
from lms3d.tasks.brats.label_maps import INDEX, Predictions
from lms3d.tasks.inference import Predictor
from lms3d.tasks.task import PredictRequest


def predict(request: PredictRequest) -> tuple[str, dict[str, str]]:
    """Segments the validation cases of the run, or every case of `request.data`."""
    cubes, target = _cases(request)
    normalisation = _normalisation(request)
    with request.network() as network:
        _segment(network, cubes, normalisation, target, request.progress)
    return f"{len(target.cases)} cases segmented", {
        "on the grid of the files": str(request.output / "native"),
        "in the cube": str(request.output / "cube"),
        "to score them": f"python -m lms3d.evaluate {request.output}",
    }


def _cases(request: PredictRequest) -> tuple[Cache, Predictions]:
    """The cubes, and the description of what will be written."""
    trained, run_dir = request.trained, request.run_dir
    folder = request.data or trained.data
    folder = folder or brains.write(
        brains.default_directory(), progress=request.progress
    )  # made again where it is gone
    cases, schema = layouts.find_cases(folder, labels=request.labels or trained.labels, require_truth=False)
    # All cases of the folder: for the run's own data this is the cache that training has built.
    cubes = cache.build(cases, schema, trained.resolution, n4=trained.n4, progress=request.progress)
    ids: Sequence[str] = cubes.ids if request.data else split.load(run_dir / "split.json").validation
    return cubes, Predictions(
        directory=request.output, label=run_dir.resolve().name, run=str(run_dir.resolve()), model=trained.model,
        resolution=trained.resolution, tta=request.tta, data=str(Path(folder).resolve()),
        fingerprint=cubes.fingerprint, schema=schema.name,
        cases={case_id: cubes.geometry(case_id).to_json() for case_id in ids},
    )  # fmt: skip


def _segment(
    network: Predictor, cubes: Cache, normalisation: Normalisation, target: Predictions, progress: Progress
) -> None:
    """Writes both label maps of every case, then predictions.json."""
    (target.directory / INDEX).unlink(missing_ok=True)  # until all are new, there is no finished set
    for done, case_id in enumerate(target.cases):
        progress(done, len(target.cases), "segmenting")
        found = probabilities(network, normalisation.apply(cubes.image(case_id)), target.tta)
        geometry = cubes.geometry(case_id)
        # Probabilities, not labels, go back to the fine grid: a linear edge is smoother than one in whole cube voxels.
        native = cubes.schema.from_channels(to_native(found, geometry))
        label_maps.write_labels(native, np.array(geometry.affine), target.native(case_id))
        to_mm = label_maps.cube_affine(geometry.to_json(), cubes.resolution)
        label_maps.write_labels(cubes.schema.from_channels(found), to_mm, target.cube(case_id))
    target.save()
    progress(len(target.cases), len(target.cases), "segmenting")


def probabilities(network: Predictor, image: np.ndarray, tta: bool) -> np.ndarray:
    """Normalised image (N, N, N, 4) -> probabilities (N, N, N, 3), with tta the mean over the 48 symmetries."""
    if not tta:
        return network(image)
    total = np.zeros((), np.float32)
    for k in range(len(augment.SYMMETRIES)):
        total = total + augment.apply(network(np.ascontiguousarray(augment.apply(image, k))), augment.inverse(k))
    return total / np.float32(len(augment.SYMMETRIES))


def _normalisation(request: PredictRequest) -> Normalisation:
    try:
        return Normalisation.from_json(request.content["normalisation"])
    except (KeyError, TypeError, ValueError):
        raise InputError(
            f"{request.run_dir / 'config.json'}: found no normalisation; expected mean and std of the training images; "
            "train again"
        ) from None
