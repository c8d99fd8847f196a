"""What the comparison writes: scores of both budgets by `lms3d.evaluate`, and report.md beside them."""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from lms3d.experiments.arms import plan, runs
from lms3d.experiments.arms.plan import Arm
from lms3d.experiments.harness import commands, page, table
from lms3d.experiments.harness.child import of_module
from lms3d.experiments.harness.runs import epoch_seconds

BUDGETS = {
    "updates": "After equal updates: {epochs} epochs of every arm",
    "time": "Within equal time: what the first arm of a fold and seed took for all its updates, without start-up",
}


def write(arms: Sequence[Arm], options: argparse.Namespace, data: Path, typed: str, output: Path) -> None:
    """Writes updates/, time/ and report.md in `output`."""
    rounds = list(plan.rounds(options))
    head = ["arm", "", "epochs within equal time", "seconds an epoch", "peak memory GiB"]
    sections = [
        "# Whole volumes at full resolution, against what fits without",
        table.markdown(head, _costs(arms, rounds, output)),
    ]
    for budget in BUDGETS:
        _score(arms, rounds, budget, data, options, output)
    compared = _compared(output)
    for budget, title in BUDGETS.items():
        tables = _tables(output / budget, compared.get(budget, []))
        sections += [f"## {title.format(epochs=options.epochs)}", *tables]
    page.write(output / "report.md", [*sections, _conditions(options, output), f"Made by `{typed}`."])


def _score(
    arms: Sequence[Arm],
    rounds: Sequence[tuple[int, int]],
    budget: str,
    data: Path,
    options: argparse.Namespace,
    output: Path,
) -> None:
    """Scores by the command, which also writes report.html, figures and tables."""
    command = [*of_module("lms3d.evaluate"), "--truth", str(data), "--margin", str(options.margin)]
    for arm in sorted(arms, key=lambda arm: plan.NAMES.index(arm.name)):
        folders = (runs.predictions_of(runs.directory_of(arm, *one, output), budget) for one in rounds)
        command += ["--group", f"{arm.name}={','.join(map(str, folders))}"]
    command += ["--labels", options.labels] if options.labels else []
    commands.run([*command, "--output", str(output / budget)])


def _tables(folder: Path, compared: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Means with intervals and ceilings on the files' grid, and the pairs."""
    shown = ("predictions", "region", "n", "mean", "low", "high", "mean_ceiling_dice")
    rows = [row for row in table.read_csv(folder / "summary.csv") if row["space"] == "native"]
    head = ["arm", "region", "cases", "Dice", "95 % from", "to", "ceiling"]
    yield table.markdown(head, [[_rounded(row[name]) for name in shown] for row in rows])
    if compared:
        names = ("first", "second", "region", "difference", "low", "high", "p_holm", "verdict")
        head = ["first", "second", "region", "second - first", "95 % from", "to", "p (Holm)", ""]
        pairs = [{**row, "p_holm": _probability(str(row["p_holm"]))} for row in compared]
        yield table.markdown(head, [[_rounded(str(row[name])) for name in names] for row in pairs])


def _compared(output: Path) -> dict[str, list[dict[str, Any]]]:
    """Budget -> its pairs in native space, if it has any. The tests of both budgets stand on one page and are one family."""
    import pandas as pd

    from lms3d.scoring import comparisons

    files = {budget: output / budget / "comparison.csv" for budget in BUDGETS}
    tables = [pd.read_csv(path).assign(budget=budget) for budget, path in files.items() if path.exists()]
    if not tables:
        return {}
    rows = pd.concat(tables, ignore_index=True)
    page = comparisons.corrected(rows[rows["space"] == "native"].reset_index(drop=True)).astype(object)
    page = page.where(page.notna(), "")
    return {str(budget): of_budget.to_dict("records") for budget, of_budget in page.groupby("budget")}


def _costs(arms: Sequence[Arm], rounds: Sequence[tuple[int, int]], output: Path) -> Iterator[list[str]]:
    """The row of each arm: name, title, and medians over the rounds."""
    for arm in sorted(arms, key=lambda arm: plan.NAMES.index(arm.name)):
        folders = {one: runs.directory_of(arm, *one, output) for one in rounds}
        each = statistics.median(runs.usual(epoch_seconds(folder)) for folder in folders.values())
        found = [runs.noted(folder) for folder in folders.values()]
        epochs = f"{statistics.median(epochs for epochs, _ in found):.0f}"
        epochs += "" if all(within for _, within in found) else " (more than its time)"
        peak = max(map(_peak_bytes, folders.values()))
        memory = f"{peak / 2**30:.2f}" if peak else "not measured"
        yield [arm.name, arm.title, epochs, f"{each:.1f}", memory]


def _peak_bytes(run_dir: Path) -> float:
    try:
        return max(float(row["peak_bytes"] or 0) for row in table.read_csv(run_dir / "lms_stats.csv"))
    except (OSError, KeyError, ValueError):
        return 0.0


def _conditions(options: argparse.Namespace, output: Path) -> str:
    cases = len(plan.tested(output).read_text(encoding="utf-8").split())
    return "\n".join([
        f"{cases} test cases that no choice has seen; {options.folds} of {options.of_folds} folds, seeds: {options.seeds}.",
        "p: Wilcoxon's signed-rank test, corrected after Holm over all tests of this page. "
        "With one seed the verdicts are about these cases alone.",
        "Intervals: bootstrap over cases and models. Ceiling: what the truth itself scores on the arm's grid and back.",
        f"{page.machine()} Seconds are those of this machine, whatever else it did.",
    ])  # fmt: skip


def _probability(text: str) -> str:
    return "< 0.001" if text and float(text) < 0.001 else text


def _rounded(text: str) -> str:
    try:
        value = float(text)
    except ValueError:
        return text
    return f"{value:.0f}" if value == int(value) and abs(value) > 1 else f"{value:.3f}"
