"""What the comparison writes: scores of both budgets by `lms3d.evaluate`, and report.md beside them."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lms3d.experiments.arms import plan, rounds
from lms3d.experiments.arms.pace import Paces
from lms3d.experiments.arms.plan import BUDGETS, Arm
from lms3d.experiments.arms.rounds import Record
from lms3d.experiments.harness import baseline, page, table
from lms3d.tasks.brats.intensity_baseline import TITLE

if TYPE_CHECKING:
    import pandas as pd

TITLES = {
    "updates": "After equal updates: {epochs} epochs of every arm",
    "time": "Within equal time: what the first arm takes for all its updates on an idle machine",
}
_WITHIN = "between seeds, within a fold"
_ENDS = ("low", "high")


def write(
    arms: Sequence[Arm],
    paces: Paces,
    within: Mapping[str, int],
    options: argparse.Namespace,
    data: Path,
    typed: str,
    output: Path,
) -> None:
    """Writes updates/, time/ and report.md in `output`. within: the epochs of each arm within equal time."""
    done = list(plan.rounds(options))
    found, records = rounds.load(done, output)
    head = ["arm", "", "seconds a step", "epochs within equal time", "best epochs", "peak memory GiB"]
    sections = [
        "# Whole volumes at full resolution, against what fits without",
        table.markdown(head, _costs(_named(arms), paces, within, records)),
    ]
    for budget in BUDGETS:
        of_budget = found[found["budget"] == budget].drop(columns="budget").reset_index(drop=True)
        _tables_and_figures(_named(arms), done, of_budget, records[0], options.margin, output / budget)
    compared, alone = _compared(output), _intensities_alone(data, options, output)
    for budget in BUDGETS:
        spread = _spread(_named(arms), found[found["budget"] == budget], done)
        tables = _tables(output / budget, spread, compared.get(budget, []), alone)
        sections += [f"## {TITLES[budget].format(epochs=options.epochs)}", *tables]
    sections += [_conditions(paces, options, output), *_machines(done, records), f"Made by `{typed}`."]
    page.write(output / "report.md", sections)


def _named(arms: Sequence[Arm]) -> list[Arm]:
    """The arms in the order of their names."""
    return sorted(arms, key=lambda arm: plan.NAMES.index(arm.name))


def _tables_and_figures(
    arms: Sequence[Arm], done: Sequence[tuple[int, int]], found: pd.DataFrame, record: Record, margin: float, folder: Path
) -> None:  # fmt: skip
    """Writes into `folder` what `lms3d.evaluate` does of these scores, with the models of an arm as a group."""
    from lms3d.tasks.volumes import evaluate, report

    groups = {arm.name: [rounds.label_of(arm, *one) for one in done] for arm in arms}
    seeds = {rounds.label_of(arm, fold, seed): seed for arm in arms for fold, seed in done}
    made = report.ScoreReport(
        found=evaluate.shown(found),
        groups=groups,
        seeds=seeds,
        rules=record["rules"],
        note=record["note"],
        margin=margin,
    )
    folder.mkdir(exist_ok=True)
    report.remove_others(folder, report.write(made, folder))


def _intensities_alone(data: Path, options: argparse.Namespace, output: Path) -> list[list[str]]:
    """The rows of the baseline, fitted to the training cases of the first fold."""
    tested = plan.tested(output).read_text(encoding="utf-8").split()
    dice = baseline.of_split(data, options.labels, plan.split_of(output, 0), output, tested)
    return [[TITLE, *row.cells(), ""] for row in baseline.rows(dice)]


def _tables(
    folder: Path,
    spread: Sequence[Sequence[str]],
    compared: Sequence[Mapping[str, Any]],
    alone: Sequence[Sequence[str]],
) -> Iterator[str]:
    """Means with intervals and ceilings on the files' grid, how far the models of an arm differ, and the pairs. alone: the rows of
    the baseline."""
    shown = ("predictions", "region", "n", "mean", "low", "high", "mean_ceiling_dice", "share")
    rows = [{**row, "share": _share(row)} for row in table.read_csv(folder / "summary.csv") if row["space"] == "native"]
    head = ["arm", "region", "cases", "Dice", "95 % from", "to", "ceiling", "Dice / ceiling"]
    yield table.markdown(
        head, [*([_rounded(row[name]) for name in shown] for row in rows), *([*row, ""] for row in alone)]
    )
    if spread:
        yield table.markdown(
            ["arm", "region", "models", "Dice of the worst", "of the best", "standard deviation", _WITHIN], spread
        )
    if compared:
        names = ("first", "second", "region", "difference", "low", "high", "p_holm", "verdict")
        head = ["first", "second", "region", "second - first", "95 % from", "to", "p (Holm)", ""]
        pairs = [{**row, "p_holm": _probability(str(row["p_holm"]))} for row in compared]
        yield table.markdown(
            head, [[(_end if name in _ENDS else _rounded)(str(row[name])) for name in names] for row in pairs]
        )


def _spread(arms: Sequence[Arm], found: pd.DataFrame, done: Sequence[tuple[int, int]]) -> list[list[str]]:
    """Rows on how far the models of one arm differ; none if there is one model. done: the (fold, seed) of each model of an arm.

    Models of several folds differ in their training cases too, so that seeds alone are told apart in a column of their own: the
    standard deviation of seeds, pooled over folds.
    """
    if len(done) == 1:
        return []
    native = found[found["space"] == "native"]
    means = native.groupby(["predictions", "region"], sort=False)["dice"].mean().unstack(sort=False)
    rows = []
    for arm in arms:
        of_arm = means.loc[[rounds.label_of(arm, *one) for one in done]]
        for region, each in of_arm.items():
            of_seeds = each.groupby([fold for fold, _ in done]).var().mean() ** 0.5  # each fold has the same seeds
            figures = [*(f"{one:.3f}" for one in (each.min(), each.max(), each.std())), _figure(of_seeds)]
            rows.append([arm.name, str(region), str(len(done)), *figures])
    return rows


def _figure(value: float) -> str:
    return "-" if value != value else f"{value:.3f}"  # one seed


def _share(row: Mapping[str, str]) -> str:
    try:
        return f"{float(row['mean']) / float(row['mean_ceiling_dice']):.3f}"
    except (ValueError, ZeroDivisionError):
        return ""


def _compared(output: Path) -> dict[str, list[dict[str, Any]]]:
    """Budget -> its pairs in native space, if it has any. The tests of both budgets stand on one page and are corrected
    together."""
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


def _costs(
    arms: Sequence[Arm], paces: Paces, within: Mapping[str, int], records: Sequence[Record]
) -> Iterator[list[str]]:
    """The row of each arm: name, title, pace, the epoch with the best weights of each model, and the highest peak of its models."""
    for arm in arms:
        models = [record["models"][arm.name] for record in records]
        peak = max(float(model["peak_bytes"]) for model in models)
        memory = f"{peak / 2**30:.2f}" if peak else "not measured"
        epochs = str(within[arm.name] or "1 (more than its time)")
        best = ", ".join(str(1 + model["val_loss"].index(min(model["val_loss"]))) for model in models)
        yield [arm.name, arm.title, f"{paces[arm.name].step_seconds:.3g}", epochs, best, memory]


def _conditions(paces: Paces, options: argparse.Namespace, output: Path) -> str:
    cases = len(plan.tested(output).read_text(encoding="utf-8").split())
    return "\n".join([
        f"{cases} test cases that no choice has seen; {options.folds} of {options.of_folds} folds, seeds: {options.seeds}.",
        "p: Wilcoxon's signed-rank test, corrected after Holm over all such tests of this page. "
        "With one seed the verdicts are about these cases alone.",
        "Intervals: bootstrap over cases and models. Ceiling: what the truth itself scores on the arm's grid and back. "
        f"{TITLE.capitalize()}: a discriminant analysis without a network, which arms have to beat.",
        "Seconds: the median step of a short training, before the others; the faster of two, for which the arms took turns. "
        + _disturbance(paces),
        "Best epochs: those with the lowest validation loss, in the order of seeds, then of folds.",
    ])  # fmt: skip


def _machines(done: Sequence[tuple[int, int]], records: Sequence[Record]) -> list[str]:
    """The machine of all rounds, or a list if there were several."""
    machines = [record["machine"] for record in records]
    if len(set(machines)) == 1:
        return machines[:1]
    names = [f"fold {fold}, seed {seed}" for fold, seed in done]
    return page.lists({"Scored on": [f"{name}: {one}" for name, one in zip(names, machines, strict=True)]})


def _disturbance(paces: Paces) -> str:
    busy = [f"{name} ({one.busy:.0%} of the cores)" for name, one in paces.items() if one.disturbed]
    return f"The machine was not idle then: {', '.join(busy)}." if busy else "The machine was idle then."


def _probability(text: str) -> str:
    return "< 0.001" if text and float(text) < 0.001 else text


def _end(text: str) -> str:
    """The end of an interval with four decimals: three do not tell an end of 0.0002, which decides, from 0."""
    return f"{float(text):.4f}" if text else text


def _rounded(text: str) -> str:
    try:
        value = float(text)
    except ValueError:
        return text
    return f"{value:.0f}" if value == int(value) and abs(value) > 1 else f"{value:.3f}"
