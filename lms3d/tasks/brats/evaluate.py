"""`python -m lms3d.evaluate` for label maps: scores every case by a challenge's rules; makes tables, figures and one page."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import pandas as pd

from lms3d.console import Report as Progress
from lms3d.console import progress
from lms3d.data.workers import worker_count
from lms3d.errors import InputError
from lms3d.scoring import scores
from lms3d.scoring.rules import described
from lms3d.scoring.tables import printable
from lms3d.tasks.brats import inputs, job, report, submission
from lms3d.tasks.brats.inputs import Folder, Plan
from lms3d.tasks.brats.plain_folders import PlainFolder
from lms3d.tasks.brats.report import Report
from lms3d.tasks.claimed_folder import claimed
from lms3d.tasks.task import EvaluateRequest, Evaluation, refuse

_FEW = 12
"""The number of cases that one process scores before others have started."""
_MARGIN, _WORST = 0.01, 6  # if the user names none


def evaluate(request: EvaluateRequest) -> Evaluation:
    """Scores the cases that all `request.predictions` have; writes tables and box plots."""
    if request.submission is not None:
        return _submit(request, request.submission)
    paths = [*request.predictions, *(path for _, group in request.groups for path in group)]
    folders = inputs.load_all(paths)
    if not any(isinstance(one, PlainFolder) for one in folders):
        refuse(
            {"--prediction-labels": request.prediction_labels},
            f"is for label maps of other programs, and {folders[0].directory} tells what its own mean",
        )
    with claimed(request.output or _output_of(folders), "--output") as output:
        return _report(request, folders, output)


def _report(request: EvaluateRequest, folders: Sequence[Folder], output: Path) -> Evaluation:
    """Scores the cases, writes all files into `output`, and removes those that an earlier call has left there."""
    plan = inputs.plan(
        folders, truth=request.truth, labels=request.labels, scoring=request.scoring,
        prediction_labels=request.prediction_labels,
    )  # fmt: skip
    with progress() as bar:
        found = score(plan, progress=bar)
    made = Report(
        found=found, groups=_groups(request, folders), rules=plan.rules.name,
        margin=_MARGIN if request.margin is None else request.margin,
        note=" ".join([described(plan.rules, chosen=request.scoring is not None), *(f"{note}." for note in plan.notes)]),
    )  # fmt: skip
    written = report.write(made, output, plan=plan, worst=_WORST if request.worst is None else request.worst)
    report.remove_others(output, written)
    return Evaluation(table=scores.to_markdown(made.summary, made.note), written=written)


def _groups(request: EvaluateRequest, folders: Sequence[Folder]) -> dict[str, list[str]]:
    """Name of a group -> labels of its predictions, which follow those of predictions without a group."""
    labels = iter([one.label for one in folders[len(request.predictions) :]])
    alone = {one.label for one in folders[: len(request.predictions)]}
    groups: dict[str, list[str]] = {}
    for name, paths in ((printable(name), paths) for name, paths in request.groups):
        if name in groups or name in alone:
            raise InputError(f"--group {name}: found the name twice; expected one for each group; choose another")
        groups[name] = [next(labels) for _ in paths]
    return groups


def _submit(request: EvaluateRequest, directory: Path) -> Evaluation:
    if len(request.predictions) != 1 or request.groups:
        raise InputError("--submission: found several predictions; expected those of one run; name one")
    options = {
        "--labels": request.labels, "--scoring": request.scoring, "--prediction-labels": request.prediction_labels,
        "--margin": request.margin, "--worst": request.worst, "--output": request.output,
    }  # fmt: skip
    refuse(options, "is for scores, and --submission only writes label maps")
    (predictions,) = inputs.load_all(request.predictions)
    if isinstance(predictions, PlainFolder):
        raise InputError(
            f"--submission: found label maps of another program in {predictions.directory}; expected what lms3d.predict wrote; "
            "name a run, or upload them as they are"
        )
    with progress() as bar:
        written = submission.write(predictions, directory, data=request.truth, progress=bar)
    return Evaluation(table=f"{len(written)} cases of {predictions.label}", written=[directory])


def score_all(
    folders: Sequence[Folder],
    *,
    truth: str | None = None,
    labels: str | None = None,
    scoring: str | None = None,
    progress: Progress,
) -> pd.DataFrame:
    """The scores of every case that all `folders` have predicted and that has a truth; see `inputs.plan`."""
    return score(inputs.plan(folders, truth=truth, labels=labels, scoring=scoring), progress=progress)


def score(plan: Plan, *, progress: Progress) -> pd.DataFrame:
    """The rows of all jobs, in the order of the predictions, then of the cases."""
    rows: list[job.Row] = []
    progress(0, len(plan.jobs), "scoring")
    for done, of_case in enumerate(_in_parallel(plan.jobs), start=1):
        rows += [{**row, "case": inputs.shown(row["case"])} for row in of_case]
        progress(done, len(plan.jobs), "scoring")
    return scores.frame(sorted(rows, key=lambda row: plan.labels.index(row["predictions"])))


def _in_parallel(jobs: Sequence[job.Job]) -> Iterable[list[job.Row]]:
    """The results of `job.score_case`, in the order of the jobs; many jobs run on all cores."""
    workers = worker_count(len(jobs), None)
    if workers == 1 or len(jobs) <= _FEW:
        return map(job.score_case, jobs)
    from joblib import Parallel, delayed  # type: ignore[import-untyped]

    # Not lms3d.data.workers.run_all: it returns nothing. joblib's processes are not forked either.
    found: Iterable[list[job.Row]] = Parallel(n_jobs=workers, return_as="generator")(
        delayed(job.score_case)(one) for one in jobs
    )
    return found


def write_report(
    found: pd.DataFrame,
    output: Path,
    *,
    title: str = "",
    rules: str = "",
    note: str = "",
    ways: scores.Ways | None = None,
) -> list[Path]:
    """Writes the CSV files, figures and report.html of `found` into `output`; returns their paths. ways: see `scores.summarise`."""
    return report.write(Report(found=found, groups={}, rules=rules, note=note, title=title, known_ways=ways), output)


def _output_of(folders: Sequence[Folder]) -> Path:
    return folders[0].directory / "evaluation" if len(folders) == 1 else Path("evaluation")
