"""What is kept of a round that has been tested: its scores, and what the report says about its models.

A comparison may take weeks, and a cluster's scratch disk does not last as long: with FOLDER of a round its runs may be deleted, and
the comparison goes on elsewhere with the settings, the splits, the paces and FOLDER alone.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lms3d.atomic_files import write_json
from lms3d.console import progress
from lms3d.experiments.arms import plan, runs
from lms3d.experiments.arms.plan import BUDGETS, Arm
from lms3d.experiments.harness import page, table
from lms3d.experiments.harness.runs import epochs as finished_epochs

if TYPE_CHECKING:
    import pandas as pd

FOLDER = "rounds"
Record = dict[str, Any]
"""machine: a sentence. rules, note: of the scores. models: name of an arm -> peak_bytes (0 if unknown), and val_loss, epoch by
epoch."""


def record_of(fold: int, seed: int, output: Path) -> Path:
    """The file with the record of a round. It is written last: without it the round is not finished."""
    return output / FOLDER / f"fold{fold}-seed{seed}.json"


def scores_of(fold: int, seed: int, output: Path) -> Path:
    """The table with the scores of a round, as from `lms3d.evaluate`, and the column "budget"."""
    return record_of(fold, seed, output).with_suffix(".csv")


def label_of(arm: Arm, fold: int, seed: int) -> str:
    """The name of a model among the predictions of a table."""
    return f"{arm.name}-fold{fold}-seed{seed}"


def run(
    arms: Sequence[Arm], fold: int, seed: int, within: dict[str, int], data: Path, options: argparse.Namespace, output: Path
) -> None:  # fmt: skip
    """Trains, tests and scores the missing arms of a round. within: see `runs.train_round`."""
    if record_of(fold, seed, output).exists():
        print(f"[fold {fold}, seed {seed}] scored before", flush=True)
        return
    runs.train_round(arms, within, fold, seed, data, options, output)
    _score(arms, fold, seed, data, options, output)


def load(found: Sequence[tuple[int, int]], output: Path) -> tuple[pd.DataFrame, list[Record]]:
    """The scores of these rounds, in the order of the arms, then of the rounds, and their records."""
    import pandas as pd

    from lms3d.scoring import scores

    parts = [pd.read_csv(scores_of(*one, output), dtype={"case": str}) for one in found]
    rows = pd.concat(parts, ignore_index=True)
    arm = rows["predictions"].str.partition("-")[0].map(plan.NAMES.index)
    rows = rows.iloc[arm.argsort(kind="stable")].reset_index(drop=True)
    known = scores.frame(rows.drop(columns="budget").to_dict("records")).assign(budget=rows["budget"])
    return known, [json.loads(record_of(*one, output).read_text(encoding="utf-8")) for one in found]


def _score(arms: Sequence[Arm], fold: int, seed: int, data: Path, options: argparse.Namespace, output: Path) -> None:
    """Writes the table and the record of a round."""
    import pandas as pd

    from lms3d.scoring import tables

    run_dirs = {arm: runs.directory_of(arm, fold, seed, output) for arm in arms}
    parts: list[pd.DataFrame] = []
    known: dict[str, str] = {}
    for budget in BUDGETS:
        folders = [runs.predictions_of(run_dir, budget) for run_dir in run_dirs.values()]
        labels = [label_of(arm, fold, seed) for arm in arms]
        scored, known = _scored(folders, labels, data, options.labels)
        parts.append(scored.assign(budget=budget))
    target = record_of(fold, seed, output)
    target.parent.mkdir(exist_ok=True)
    tables.write_csv(pd.concat(parts), scores_of(fold, seed, output))
    models = {arm.name: _model(run_dir) for arm, run_dir in run_dirs.items()}
    write_json(target, {"machine": page.machine(), **known, "models": models})


def _scored(
    folders: Sequence[Path], labels: Sequence[str], data: Path, schema: str | None
) -> tuple[pd.DataFrame, dict[str, str]]:
    """The scores of these predictions under other labels, and the rules with a note on them."""
    from lms3d.scoring.rules import described
    from lms3d.tasks.brats import inputs
    from lms3d.tasks.volumes import evaluate, label_maps

    loaded = label_maps.load_all(folders)
    found = inputs.plan(loaded, truth=str(data), labels=schema)
    with progress() as bar:
        scored = evaluate.score(found, progress=bar)
    named = dict(zip([one.label for one in loaded], labels, strict=True))
    notes = [described(found.rules, chosen=False), *(f"{one}." for one in found.notes)]
    return scored.assign(predictions=scored["predictions"].map(named)), {
        "rules": found.rules.name,
        "note": " ".join(notes),
    }


def _model(run_dir: Path) -> Record:
    losses = [float(row["val_loss"]) for row in finished_epochs(run_dir)]
    return {"peak_bytes": _peak_bytes(run_dir), "val_loss": losses}


def _peak_bytes(run_dir: Path) -> float:
    try:
        return max(float(row["peak_bytes"] or 0) for row in table.read_csv(run_dir / "lms_stats.csv"))
    except (OSError, KeyError, ValueError):
        return 0.0
