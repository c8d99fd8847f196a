"""Which cases train and which validate: drawn once by seed, saved with the run, used again by every later step.

No patient is in both parts. Who the patients are is told by a mapping (case id -> patient, as `DataSet.patients` has it);
where there is none, by the ids.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Container, Hashable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from data import pseudonyms
from data.brats.patients import patient_of
from data.errors import DataError
from data.files import read_json, reported_writes, write_json


@dataclass(frozen=True, kw_only=True)
class Split:
    """Case ids, sorted; the two parts share no patient."""

    training: tuple[str, ...]
    validation: tuple[str, ...]


def make(
    ids: Iterable[str], seed: int, validation_fraction: float = 0.2, *, patients: Mapping[str, str] | None = None
) -> Split:
    """Draw a split. It depends on the set of ids and the seed alone, not on their order or the machine."""
    groups = _by_patient({case_id: (patients or {}).get(case_id) or patient_of(case_id) for case_id in ids})
    if len(groups) < 2:
        raise DataError(
            f"cases: found {len(groups)} patient; expected at least 2, one to train and one to validate; add cases"
        )
    if not 0 < validation_fraction < 1:
        raise DataError(f"validation fraction: found {validation_fraction}; expected between 0 and 1; 0.2 is usual")
    order = _shuffled(groups, seed)
    held_out = min(max(1, round(validation_fraction * len(groups))), len(groups) - 1)
    return _split(training=order[held_out:], validation=order[:held_out])


def folds(patients: Mapping[str, str], strata: Mapping[str, Hashable], count: int, seed: int) -> list[Split]:
    """`count` splits for cross-validation: every case validates in exactly one of them.

    patients: case id -> patient, for every case. strata: case id -> a label such as a grade; each fold gets its share of
    every label. A patient has the label that most of its cases have. Depends on the cases and the seed alone.
    """
    groups = _by_patient(patients)
    if not 2 <= count <= len(groups):
        raise DataError(f"folds: found {count} for {len(groups)} patients; expected 2 to {len(groups)}; choose another")
    dealt: list[list[tuple[str, ...]]] = [[] for _ in range(count)]
    cases = [0] * count
    for members in _by_stratum(_shuffled(groups, seed), strata):
        of_stratum = [0] * count
        for group in members:
            fold = min(range(count), key=lambda index: (of_stratum[index], cases[index]))
            dealt[fold].append(group)
            of_stratum[fold] += len(group)
            cases[fold] += len(group)
    return [
        _split(training=[group for other in dealt if other is not held_out for group in other], validation=held_out)
        for held_out in dealt
    ]


def require_undivided(split: Split, patients: Mapping[str, str], where: str | Path) -> None:
    """DataError where a patient both trains and validates in `split`, which comes from `where`."""
    training = {patients.get(case_id, case_id): case_id for case_id in split.training}
    for case_id in split.validation:
        if (patient := patients.get(case_id, case_id)) in training:
            raise DataError(
                f"{where}: found patient {patient} in both parts ({training[patient]} trains, {case_id} validates); "
                "expected every patient in one part; move one of them"
            )


def without(split: Split, left_out: Container[str]) -> Split:
    """The split of the other cases."""
    training, validation = (
        tuple(case_id for case_id in part if case_id not in left_out) for part in (split.training, split.validation)
    )
    return Split(training=training, validation=validation)


def seen(ids: Iterable[str], earlier: Iterable[str], patients: Mapping[str, str]) -> list[str]:
    """Those of `ids` whose patient is one of the cases `earlier`, which may be of another data set: another visit is no new brain.

    patients: case id -> patient, of `ids` at least.
    """
    known = {patients.get(case_id) or patient_of(case_id) for case_id in earlier}
    return sorted(case_id for case_id in ids if (patients.get(case_id) or patient_of(case_id)) in known)


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
    pseudonyms.know([*value["training"], *value["validation"]])
    both = set(value["training"]) & set(value["validation"])
    if both:
        raise DataError(
            f"{path}: found {min(both)} in both parts; expected every case in one part; take it out of one of them"
        )
    return Split(training=tuple(value["training"]), validation=tuple(value["validation"]))


def _is_ids(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(case_id, str) for case_id in value)


def _by_patient(patients: Mapping[str, str]) -> list[tuple[str, ...]]:
    """The cases of each patient, sorted; the patients in the order of their first cases, whatever they are called."""
    groups: dict[str, list[str]] = defaultdict(list)
    for case_id in sorted(patients):
        groups[patients[case_id]].append(case_id)
    return sorted(tuple(group) for group in groups.values())


def _shuffled(groups: list[tuple[str, ...]], seed: int) -> list[tuple[str, ...]]:
    order = np.random.default_rng([abs(seed), len(groups)]).permutation(len(groups))
    return [groups[index] for index in order]


def _by_stratum(groups: list[tuple[str, ...]], strata: Mapping[str, Hashable]) -> list[list[tuple[str, ...]]]:
    """Patients by the label of most of their cases; in each those of many cases first, which are the hardest to place."""
    found: dict[str, list[tuple[str, ...]]] = defaultdict(list)
    for group in groups:
        labels = Counter(repr(strata.get(case_id)) for case_id in group)
        found[min(labels, key=lambda label: (-labels[label], label))].append(group)
    return [sorted(found[label], key=len, reverse=True) for label in sorted(found)]


def _split(*, training: Iterable[tuple[str, ...]], validation: Iterable[tuple[str, ...]]) -> Split:
    """Of the cases of the patients on each side."""
    train, validate = (tuple(sorted(case_id for group in side for case_id in group)) for side in (training, validation))
    return Split(training=train, validation=validate)
