"""Which arms there are, and how the cases are divided among training, choosing and testing."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from lms3d.atomic_files import write_text
from lms3d.data import split
from lms3d.data.brats import layouts
from lms3d.data.split import Split
from lms3d.errors import InputError

NAMES = ("A", "B", "C", "D", "AE", "CE")
TEST = "test.txt"
BUDGETS = ("updates", "time")
"""The quantities that are equal for all arms when they are compared."""
DIVISION_SEED = 0
"""The seed of the test set and the folds, which runs of all seeds share."""


@dataclass(frozen=True, kw_only=True)
class Arm:
    """One way to train the network."""

    name: str
    title: str
    options: tuple[str, ...]
    """Options of `lms3d.train`."""
    voxels: int
    """The voxels of a training sample; the arm with the fewest is trained first."""


def arms(options: argparse.Namespace) -> list[Arm]:
    """The arms that were asked for, the one with the smallest samples first."""
    a, b, c = options.box
    box = f"{a}x{b}x{c}"
    low, high = (("--resolution", str(side)) for side in (options.low, options.high))
    whole, half = ("--box", box), ("--precision", "mixed_bfloat16")
    whole_voxels, part = a * b * c, ("--patch", str(options.patch))
    every = [
        Arm(name="A", title=f"{options.low}^3", options=low, voxels=options.low**3),
        Arm(name="B", title=f"{options.high}^3", options=high, voxels=options.high**3),
        Arm(name="C", title=f"{box} at 1 mm", options=whole, voxels=whole_voxels),
        Arm(name="D", title=f"patches of {options.patch}^3", options=(*whole, *part), voxels=options.patch**3),
        Arm(name="AE", title=f"{options.low}^3, bfloat16", options=(*low, *half), voxels=options.low**3),
        Arm(name="CE", title=f"{box} at 1 mm, bfloat16", options=(*whole, *half), voxels=whole_voxels),
    ]
    chosen = [arm for arm in every if arm.name in options.arms]
    return sorted(chosen, key=lambda arm: (arm.voxels, arm.name))


def rounds(options: argparse.Namespace) -> Iterator[tuple[int, int]]:
    """(fold, seed): all arms are trained for one before the next, so that an early stop leaves a comparison of fewer."""
    if options.folds > options.of_folds:
        raise InputError(f"--folds {options.folds}: expected at most --of-folds, which is {options.of_folds}")
    for seed, fold in product(range(1, options.seeds + 1), range(options.folds)):
        yield fold, seed


def split_of(output: Path, fold: int) -> Path:
    """The file with the split of a fold."""
    return output / f"split-fold{fold}.json"


def tested(output: Path) -> Path:
    """The list of the cases that are tested on."""
    return output / TEST


def require_unseen(run_dir: str | None, data: Path, options: argparse.Namespace, output: Path) -> None:
    """InputError if the run whose weights all arms begin with has trained on a patient of the test set, or chosen by one."""
    if run_dir is None:
        return
    path = Path(run_dir).expanduser() / "split.json"
    if not path.is_file():
        raise InputError(f"--start-from {run_dir}: found no split.json there; expected the folder of a run")
    known, found = split.load(path), layouts.find_cases(data, labels=options.labels, require_complete=False)
    test = tested(output).read_text(encoding="utf-8").split()
    looked_at = [*known.training, *known.validation]
    names = known.trained | split.names_of(looked_at, {}, known.known_as)
    if seen := split.seen(test, looked_at, found.patients, known_as=found.known_as, names=names):
        raise InputError(
            f"--start-from {run_dir}: its run has seen {seen[0]} ({len(seen)} cases in all) of the test set {tested(output)}, or "
            "another scan of this patient; expected none; start from a run on other patients"
        )


def divide(data: Path, options: argparse.Namespace, output: Path) -> None:
    """Writes the test set and the splits of all folds, once. Patients stay together; grades are spread over the folds."""
    if tested(output).exists() and split_of(output, options.of_folds - 1).exists():
        return
    found = layouts.find_cases(data, labels=options.labels, require_complete=False)
    first = split.make(found.complete, DIVISION_SEED, options.test_share, patients=found.patients)
    rest = {case_id: found.patients[case_id] for case_id in first.training}
    for number, one in enumerate(split.folds(rest, found.grades, options.of_folds, DIVISION_SEED)):
        split.save(Split(training=one.training, validation=one.validation), split_of(output, number))
    write_text(tested(output), "".join(f"{case_id}\n" for case_id in first.validation))
