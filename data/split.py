"""Which cases train and which validate: drawn once by seed, saved with the run, used again by every later step."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from data.errors import DataError
from data.files import read_json, reported_writes, write_json

_VISIT = re.compile(r"^(BraTS-[A-Z]+-\d+)-\d+$")  # from 2023 on, the last number of a case id counts visits


@dataclass(frozen=True, kw_only=True)
class Split:
    """Case ids, sorted; the two parts share no patient."""

    training: tuple[str, ...]
    validation: tuple[str, ...]


def make(ids: Iterable[str], seed: int, validation_fraction: float = 0.2) -> Split:
    """Draw a split. It depends on the set of ids and the seed alone, not on their order or the machine.

    Visits of one patient stay together: a network that has seen a brain knows it again.
    """
    patients: dict[str, list[str]] = defaultdict(list)
    for case_id in sorted(set(ids)):
        visit = _VISIT.match(case_id)
        patients[visit.group(1) if visit else case_id].append(case_id)
    if len(patients) < 2:
        raise DataError(
            f"cases: found {len(patients)} patient; expected at least 2, one to train and one to validate; add cases"
        )
    if not 0 < validation_fraction < 1:
        raise DataError(f"validation fraction: found {validation_fraction}; expected between 0 and 1; 0.2 is usual")
    order = np.random.default_rng([abs(seed), len(patients)]).permutation(sorted(patients))
    held_out = min(max(1, round(validation_fraction * len(patients))), len(patients) - 1)
    return Split(
        training=tuple(sorted(case_id for name in order[held_out:] for case_id in patients[name])),
        validation=tuple(sorted(case_id for name in order[:held_out] for case_id in patients[name])),
    )


def save(split: Split, path: str | Path) -> None:
    """Write `split` as JSON."""
    with reported_writes(Path(path).parent):
        write_json(Path(path), {"training": split.training, "validation": split.validation})


def load(path: str | Path) -> Split:
    """Read a split; DataError when the file is damaged or a case is in both parts."""
    path = Path(path)
    value = read_json(path, advice="start a new run, or restore the file")
    if not isinstance(value, dict) or not all(_is_ids(value.get(part)) for part in ("training", "validation")):
        raise DataError(
            f'{path}: found no lists of case ids; expected "training" and "validation"; start a new run, or '
            "restore the file"
        )
    both = set(value["training"]) & set(value["validation"])
    if both:
        raise DataError(
            f"{path}: found {min(both)} in both parts; expected every case in one part; take it out of one of them"
        )
    return Split(training=tuple(value["training"]), validation=tuple(value["validation"]))


def _is_ids(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(case_id, str) for case_id in value)
