"""`python -m lms3d.evaluate` for brain tumours: by a challenge's rules, or as a challenge wants label maps."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lms3d.console import progress
from lms3d.errors import InputError
from lms3d.tasks.brats import inputs, submission
from lms3d.tasks.task import EvaluateRequest, Evaluation, refuse
from lms3d.tasks.volumes import evaluate as volumes
from lms3d.tasks.volumes.inputs import Folder, Pools, ScoringPlan, load_all
from lms3d.tasks.volumes.plain_folders import PlainFolder


def evaluate(request: EvaluateRequest) -> Evaluation:
    """Scores the cases that all `request.predictions` have; writes tables and box plots."""
    if request.submission is not None:
        return _submit(request, request.submission)
    folders = volumes.folders_of(request)
    if not any(isinstance(one, PlainFolder) for one in folders):
        refuse(
            {"--prediction-labels": request.prediction_labels},
            f"is for label maps of other programs, and {folders[0].directory} tells what its own mean",
        )
    return volumes.evaluate(request, folders, _plan)


def _plan(request: EvaluateRequest, folders: Sequence[Folder], pools: Pools) -> ScoringPlan:
    return inputs.plan(
        folders, truth=request.truth, labels=request.labels, scoring=request.scoring,
        prediction_labels=request.prediction_labels, pools=pools,
    )  # fmt: skip


def _submit(request: EvaluateRequest, directory: Path) -> Evaluation:
    if len(request.predictions) != 1 or request.groups or request.pools:
        raise InputError("--submission: found several predictions; expected those of one run; name one")
    options = {
        "--labels": request.labels, "--scoring": request.scoring, "--prediction-labels": request.prediction_labels,
        "--margin": request.margin, "--worst": request.worst, "--output": request.output,
    }  # fmt: skip
    refuse(options, "is for scores, and --submission only writes label maps")
    (predictions,) = load_all(request.predictions)
    if isinstance(predictions, PlainFolder):
        raise InputError(
            f"--submission: found label maps of another program in {predictions.directory}; expected what lms3d.predict wrote; "
            "name a run, or upload them as they are"
        )
    with progress() as bar:
        written = submission.write(predictions, directory, data=request.truth, progress=bar)
    return Evaluation(table=f"{len(written)} cases of {predictions.label}", written=[directory])
