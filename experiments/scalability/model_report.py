"""The model's own tables: check against Table 7, and up to 1024 ranks. Markdown and CSV."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from lms3d.experiments.harness.table import markdown, write_csv
from lms3d.experiments.scalability import case_study, shares
from lms3d.experiments.scalability.case_study import EFFICIENCY, INDEPENDENT, JOB
from lms3d.experiments.scalability.model import STRONG, WEAK, Cluster, RankTimes, predict

RANKS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
COLUMNS = (
    "scaling", "distribution", "ranks", "steps_per_epoch", "passes_per_epoch", "steps_per_pass", "step_seconds",
    "pass_seconds", "speed_up", "efficiency", "contention", "straggler", "communication_seconds", "exposed_seconds",
)  # fmt: skip
NOTES = """\
s: seconds for 228 samples of the stream, by samples per second. Lost to: what each adds to a step, in % of one rank's step.
Beyond 228 ranks fixed shares leave ranks without a subject; one order goes on, but then a single step holds a subject more
than once, which is throughput and not more learning: 1024 samples a step are 4.5 passes. What such batches do to
convergence is not modelled. Nor are validation, saving, the rounding of Table 7 to whole seconds (40 s is +-1.3 %), a network that
others use, ranks that wait for their data, and failures.
Parameters and their sources: the head of `experiments/scalability/case_study.py`."""


def report() -> str:
    """All tables as one text."""
    fitted = case_study.fitted()
    parts = [
        "# The model: Table 7, and up to 1024 ranks",
        "## Check against Table 7\n\n" + check_table(fitted),
        "## Strong scaling: the 228 subjects over more and more ranks\n\n" + strong_table(fitted),
        "## Weak scaling: 228 subjects for each rank\n\n" + weak_table(fitted),
        NOTES,
    ]
    return "\n\n".join(parts) + "\n"


def check_table(fitted: Cluster) -> str:
    """Table 7 beside the model, with the case study's fixed shares and with one order."""
    rows = []
    for ranks, measured in EFFICIENCY.items():
        cells = [str(ranks), _percent(measured)]
        for machine in (INDEPENDENT, fitted):
            found = case_study.efficiency(machine, ranks)
            cells.append(f"{_percent(found)} ({found / measured - 1:+.1%})")
        cells += [
            _percent(case_study.efficiency(machine, ranks, shares.ONE_ORDER)) for machine in (INDEPENDENT, fitted)
        ]
        rows.append(cells)
    note = (
        f"Efficiency, and the model's relative error. Nothing fitted: cv {INDEPENDENT.cv:.2%}, the spread of four independent "
        "models side by side. cv fitted: one free parameter, least squares over the three rows; it comes to "
        f"{fitted.cv:.2%}."
    )
    head = ("GPUs", "Table 7", "nothing fitted", "cv fitted", "one order, nothing fitted", "one order, fitted")
    return f"{markdown(head, rows)}\n\n{note}"


def predictions(machine: Cluster, ranks: Iterable[int] = RANKS) -> list[RankTimes]:
    """Strong scaling with both distributions, and weak scaling."""
    wanted = [(STRONG, shares.FIXED), (STRONG, shares.ONE_ORDER), (WEAK, shares.ONE_ORDER)]
    numbers = list(ranks)
    return [predict(JOB, machine, n, scaling=scaling, distribution=deal) for scaling, deal in wanted for n in numbers]


def strong_table(machine: Cluster, ranks: Iterable[int] = RANKS) -> str:
    head = ("GPUs", "fixed shares: s", "speed-up", "efficiency", "one order: s", "speed-up", "efficiency", "lost to")
    rows = []
    for n in ranks:
        fixed, ours = (predict(JOB, machine, n, distribution=deal) for deal in (shares.FIXED, shares.ONE_ORDER))
        cells = [_time(fixed.pass_seconds), f"{fixed.speed_up:.2f}", _percent(fixed.efficiency)]
        cells += [_time(ours.pass_seconds), f"{ours.speed_up:.2f}", _percent(ours.efficiency), _losses(ours)]
        rows.append([str(n), *cells])
    return markdown(head, rows)


def weak_table(machine: Cluster, ranks: Iterable[int] = RANKS) -> str:
    head = ("GPUs", "epoch s", "images/s", "speed-up", "efficiency", "lost to")
    rows = []
    for n in ranks:
        one = predict(JOB, machine, n, scaling=WEAK)
        rate = n * JOB.batch / one.step_seconds
        cells = [_time(one.pass_seconds), f"{rate:.2f}", f"{one.speed_up:.2f}", _percent(one.efficiency), _losses(one)]
        rows.append([str(n), *cells])
    return markdown(head, rows)


def write_predictions(found: Sequence[RankTimes], path: Path) -> None:
    """Writes a row for each prediction."""
    write_csv(path, COLUMNS, map(_record, found))


def _record(one: RankTimes) -> dict[str, object]:
    values: dict[str, object] = {name: getattr(one, name) for name in COLUMNS if hasattr(one, name)}
    values |= {
        "distribution": one.account.distribution if one.scaling == STRONG else "", "steps_per_epoch": one.account.steps,
        "passes_per_epoch": one.account.passes_per_epoch, "steps_per_pass": one.account.steps_per_pass,
    }  # fmt: skip
    if one.scaling == WEAK:  # each rank has as many steps as one rank has in a pass
        values |= {"steps_per_epoch": JOB.samples // JOB.batch, "passes_per_epoch": one.ranks, "steps_per_pass": ""}
    return values


def _losses(one: RankTimes) -> str:
    """What makes a step longer than one rank's."""
    exposed = one.exposed_seconds / one.single_step_seconds
    parts = {"contention": one.contention - 1, "slowest rank": one.straggler - 1, "all-reduce": exposed}
    return ", ".join(f"{name} {100 * value:.2f}" for name, value in parts.items() if value > 5e-5)


def _percent(share: float) -> str:
    return f"{100 * share:.2f} %"


def _time(seconds: float) -> str:
    return f"{seconds:.0f}" if seconds >= 100 else f"{seconds:.1f}" if seconds >= 10 else f"{seconds:.2f}"
