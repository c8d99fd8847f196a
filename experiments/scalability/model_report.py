"""The model's own tables: check against Table 7, up to 1024 ranks, accounting, sensitivity. Markdown and CSV."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from lms3d.experiments.harness.table import markdown, write_csv
from lms3d.experiments.scalability import case_study, shares
from lms3d.experiments.scalability.case_study import INDEPENDENT, JOB
from lms3d.experiments.scalability.model import STRONG, WEAK, Cluster, RankTimes, predict

RANKS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
WITHIN, OURS_AT_16 = 0.03, 0.97
COLUMNS = (
    "scaling", "distribution", "ranks", "steps_per_epoch", "passes_per_epoch", "steps_per_pass", "step_seconds",
    "pass_seconds", "speed_up", "efficiency", "contention", "straggler", "communication_seconds", "exposed_seconds",
)  # fmt: skip


def report() -> str:
    """All tables as one text."""
    fitted = case_study.fitted()
    parts = [
        "# The model: Table 7, and up to 1024 ranks",
        _checked(fitted),
        _promises(),
        "## Strong scaling: the 228 subjects over more and more ranks\n\n" + strong_table(fitted),
        _STRONG_NOTES,
        "## Weak scaling: 228 subjects for each rank\n\n" + weak_table(fitted),
        "## Accounting of 228 subjects\n\n" + accounting_table(),
        _ACCOUNTING_NOTES,
        "## What the uncertain parameters change\n\n" + sensitivity_table(fitted),
        _PARAMETERS,
    ]
    return "\n\n".join(parts) + "\n"


def _checked(fitted: Cluster) -> str:
    head = (
        "GPUs",
        "Table 7",
        "nothing fitted",
        "cv fitted",
        "left out",
        "one order, nothing fitted",
        "one order, fitted",
    )
    rows = []
    for one in case_study.check():
        fixed = [f"{_percent(p)} ({one.error(p):+.1%})" for p in (one.independent, one.fitted, one.left_out)]
        ours = [_percent(one.ours_independent), _percent(one.ours_fitted)]
        rows.append([str(one.ranks), _percent(one.measured), *fixed, *ours])
    note = (
        f"Efficiency, and the model's relative error. Nothing fitted: cv {INDEPENDENT.cv:.2%}, the spread of four independent "
        "models side by side. cv fitted: one free parameter, least squares over the three rows; it comes to "
        f"{fitted.cv:.2%}. Left out: fitted to the two other rows. The first three have the case study's fixed shares."
    )
    return "## Check against Table 7\n\n" + markdown(head, rows) + "\n\n" + note


def _promises() -> str:
    rows = case_study.check()
    last = rows[-1]
    lines = []
    for name, values in (
        ("nothing fitted", [one.error(one.independent) for one in rows]),
        ("one parameter fitted", [one.error(one.fitted) for one in rows]),
        ("each row left out of its fit", [one.error(one.left_out) for one in rows]),
    ):
        worst = max(values, key=abs)
        lines.append(f"- Table 7 within {WITHIN:.0%}, {name}: worst {worst:+.1%} - {_verdict(abs(worst) <= WITHIN)}")
    for name, value in (
        ("one parameter fitted", last.ours_fitted),
        ("nothing fitted", last.ours_independent),
        ("Table 7's own 92.19 % / the 95 % of fixed shares, no model", last.measured / (228 / 240)),
    ):
        lines.append(
            f"- one order at 16 ranks at least {OURS_AT_16:.0%}, {name}: {_percent(value)} - {_verdict(value >= OURS_AT_16)}"
        )
    return "\n".join(lines)


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


def accounting_table(
    samples: int = case_study.SUBJECTS, ranks: Iterable[int] = (4, 8, 12, 16, 24, 32, 64, 228, 1024)
) -> str:
    head = (
        "GPUs", "steps needed", "fixed: steps", "of which used", "one order: steps an epoch", "passes an epoch",
        "300 passes, fixed: steps", "300 passes, one order: steps",
    )  # fmt: skip
    rows = []
    for n in ranks:
        fixed, ours = shares.fixed_shares(samples, n), shares.one_order(samples, n)
        cells = [f"{fixed.needed_steps:.2f}", str(fixed.steps), _percent(fixed.efficiency), str(ours.steps)]
        cells += [f"{ours.passes_per_epoch:.3f}", f"{fixed.steps_of(300):,}", f"{ours.steps_of(300):,}"]
        rows.append([str(n), *cells])
    return markdown(head, rows)


def sensitivity_table(machine: Cluster) -> str:
    """How the efficiency of one order at 16 and at 1024 ranks depends on each parameter."""
    slower = {name: replace(link, bytes_per_second=link.bytes_per_second / 2) for name, link in _links(machine)}
    later = {name: replace(link, latency_seconds=10 * link.latency_seconds) for name, link in _links(machine)}
    changes = {
        "as calibrated": machine,
        "half the bandwidth in a node": replace(machine, local=slower["local"]),
        "half the bandwidth between nodes": replace(machine, network=slower["network"]),
        "10 times the latency": replace(machine, local=later["local"], network=later["network"]),
        f"cv {INDEPENDENT.cv:.2%} (nothing fitted)": INDEPENDENT,
        "cv 2%": replace(machine, cv=0.02),
        "no contention in a node": replace(machine, contention=((1, 1.0),)),
        "a plain ring over all ranks, as slow as the network": replace(
            machine, ranks_per_node=1, contention=((1, dict(machine.contention)[4]),)
        ),
    }
    cases = [(name, JOB, changed) for name, changed in changes.items()]
    cases.append(("all-reduce hidden behind the backward pass", replace(JOB, overlap=1.0), machine))
    rows = [[name, *(_percent(predict(job, on, n).efficiency) for n in (16, 1024))] for name, job, on in cases]
    return markdown(("changed", "16 GPUs", "1024 GPUs"), rows)


def _links(machine: Cluster) -> list[tuple[str, case_study.Link]]:
    return [("local", machine.local), ("network", machine.network)]


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


def _verdict(met: bool) -> str:
    return "met" if met else "missed"


_STRONG_NOTES = """\
s: seconds for 228 samples of the stream, by samples per second. Lost to: what each adds to a step, in % of one rank's step.
Beyond 228 ranks fixed shares leave ranks without a subject; one order goes on, but then a single step holds a subject more
than once, which is throughput and not more learning: 1024 samples a step are 4.5 passes. What such batches do to
convergence is not modelled."""

_ACCOUNTING_NOTES = """\
One order: an epoch, as counted, has the nearest whole number of steps; the stream goes on where it stopped, so that a counted epoch
is a little more or less than a pass and no place of a batch is wasted. Compare by samples per second (or by steps for 300
passes), not by seconds per counted epoch: those flatter 16 ranks by 1.8 % and wrong 1024 by a factor of 4.5."""

_PARAMETERS = """\
Parameters and their sources: the head of `experiments/scalability/case_study.py`. Not modelled: validation, saving, the rounding of
Table 7 to whole seconds (40 s is +-1.3 %), a network that others use, ranks that wait for their data, failures."""
