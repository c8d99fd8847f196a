"""Scores label maps by a plan; makes tables, figures and one page: `python -m lms3d.evaluate` for volumes of any task."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from pathlib import Path

import pandas as pd

from lms3d.common import program
from lms3d.console import ProgressReport, progress
from lms3d.data.workers import worker_count
from lms3d.errors import InputError
from lms3d.scoring import scores
from lms3d.scoring.rules import described
from lms3d.scoring.tables import printable
from lms3d.tasks.claimed_folder import claimed
from lms3d.tasks.task import EvaluateRequest, Evaluation
from lms3d.tasks.volumes import inputs, job, report
from lms3d.tasks.volumes.inputs import Folder, Pools, ScoringPlan
from lms3d.tasks.volumes.report import ScoreReport

_FEW = 12
"""The number of cases that one process scores before others have started."""
_MARGIN, _WORST = 0.01, 6  # if the user names none


def folders_of(request: EvaluateRequest) -> list[Folder]:
    """All predictions of a request: first without a group or a pool, then group by group, then pool by pool."""
    pools = _pools_of(request)
    grouped = (path for _, paths in request.groups for path in paths if printable(str(path)) not in pools)
    named = [*grouped, *(path for _, paths in request.pools for path in paths)]
    return inputs.load_all([*request.predictions, *named])


def evaluate(
    request: EvaluateRequest, folders: Sequence[Folder],
    plan_of: Callable[[EvaluateRequest, Sequence[Folder], Pools], ScoringPlan],
) -> Evaluation:  # fmt: skip
    """Scores the cases that all folders have; writes all files, and removes files that an earlier call has left there."""
    with claimed(request.output or _output_of(folders), "--output") as output:
        groups, pools = _named(request, folders)
        plan = plan_of(request, folders, pools)
        with progress() as bar:
            found = shown(score(plan, progress=bar))
        note = described(plan.rules, chosen=request.scoring is not None)
        made = ScoreReport(
            found=found, groups=groups, seeds=inputs.seeds_of(folders, pools), rules=plan.rules.name,
            margin=_MARGIN if request.margin is None else request.margin,
            note=" ".join([note, *(f"{note}." for note in plan.notes)]), origin=_origin(request.command),
        )  # fmt: skip
        written = report.write(made, output, plan=plan, worst=_WORST if request.worst is None else request.worst)
        report.remove_others(output, written)
        return Evaluation(table=scores.to_markdown(made.summary, made.note), written=written)


def _origin(command: Sequence[str]) -> str:
    """What has made the scores, when, and the command without the folders of this machine, if that may be shown."""
    typed = f": {command[0]} {shlex.join(program.without_folders(command[1:]))}" if command else ""
    return printable(f"{program.version()}, {time.strftime('%F')}{typed}")


def _named(request: EvaluateRequest, folders: Sequence[Folder]) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """(groups, pools): name -> labels of its predictions. In `folders`, predictions without a name come first."""
    pools = _pools_of(request)
    named = [one.label for one in folders[len(request.predictions) :]]
    alone = {one.label for one in folders[: len(request.predictions)]}
    labels = iter(named)
    groups = _by_name("group", request.groups, labels, alone, pools)
    members = [label for of_group in groups.values() for label in of_group]
    if twice := [name for name in pools if members.count(name) > 1]:
        raise InputError(f"--group: found the pool {twice[0]} twice; expected it in one group; name it once")
    left = list(labels)
    grouped = named[: len(named) - len(left)]
    return groups, _by_name("pool", request.pools, iter(left), {*alone, *groups, *grouped})


def _pools_of(request: EvaluateRequest) -> set[str]:
    return {printable(name) for name, _ in request.pools}


def _by_name(
    option: str, given: Iterable[tuple[str, Sequence[Path]]], labels: Iterator[str], taken: Set[str], pools: Set[str] = frozenset()
) -> dict[str, list[str]]:  # fmt: skip
    """Name -> the next of the labels, as many as it has folders, and the pools among its members. InputError for a name that is
    taken."""
    found: dict[str, list[str]] = {}
    for name, paths in ((printable(name), paths) for name, paths in given):
        if name in found or name in taken:
            raise InputError(f"--{option} {name}: found the name twice; expected one for each {option}; choose another")
        members = (printable(str(path)) for path in paths)
        found[name] = [member if member in pools else next(labels) for member in members]
    return found


def score(plan: ScoringPlan, *, progress: ProgressReport) -> pd.DataFrame:
    """The rows of all jobs, in the order of the predictions, then of the cases."""
    rows: list[job.Row] = []
    progress(0, len(plan.jobs), "scoring")
    for done, of_case in enumerate(_in_parallel(plan.jobs), start=1):
        rows += of_case
        progress(done, len(plan.jobs), "scoring")
    return scores.frame(sorted(rows, key=lambda row: plan.labels.index(row["predictions"])))


def shown(found: pd.DataFrame) -> pd.DataFrame:
    """The scores with cases named as tables and figures name them."""
    return found.assign(case=[inputs.shown(case) for case in found["case"]])


def _in_parallel(jobs: Sequence[job.ScoringJob]) -> Iterable[list[job.Row]]:
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


def _output_of(folders: Sequence[Folder]) -> Path:
    return folders[0].directory / "evaluation" if len(folders) == 1 else Path("evaluation")
