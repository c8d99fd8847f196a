"""The split into cases that train and cases that validate. It is drawn once by seed, saved with the run, and used by all later
steps.

No patient is in both parts. The patients come from a mapping (case id -> patient, as in `DataSet.patients`), or without one from
the ids.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Container, Hashable, Iterable, Mapping, Set
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from lms3d.data import pseudonyms
from lms3d.data.brats.patients import patient_of
from lms3d.data.errors import DataError
from lms3d.data.files import read_json, reported_writes, write_json


@dataclass(frozen=True, kw_only=True)
class Split:
    """The case ids of both parts, sorted. The parts share no patient."""

    training: tuple[str, ...]
    validation: tuple[str, ...]
    known_as: dict[str, tuple[str, ...]] = field(default_factory=dict, compare=False, repr=False)
    """Case id -> every name of its patient that was known when the run began. With them, the same patients are recognised in a data
    set that names them differently (`seen`)."""
    seen_before: tuple[str, ...] = field(default=(), compare=False, repr=False)
    """The names of patients on whom the weights with which the run began were trained."""

    @property
    def trained(self) -> set[str]:
        """Every name of the patients on whom the weights of this run were trained."""
        return set(self.seen_before) | names_of(self.training, {}, self.known_as)


def make(
    ids: Iterable[str], seed: int, validation_fraction: float = 0.2, *, patients: Mapping[str, str] | None = None
) -> Split:
    """Draws a split. It depends only on the set of ids and the seed, not on the order of the ids or the machine."""
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
    """Draws `count` splits for cross-validation. Every case validates in exactly one of them.

    patients: case id -> patient, for every case. strata: case id -> a label such as a grade; each fold gets its share of every
    label. A patient has the label of most of its cases. The splits depend only on the cases and the seed.
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
    """DataError if a patient both trains and validates. where: the source of the split, for the message."""
    training = {patients.get(case_id, case_id): case_id for case_id in split.training}
    for case_id in split.validation:
        if (patient := patients.get(case_id, case_id)) in training:
            raise DataError(
                f"{where}: found patient {patient} in both parts ({training[patient]} trains, {case_id} validates); "
                "expected every patient in one part; move one of them"
            )


def of_weights(weights: Path) -> Path | None:
    """The split.json of the run that wrote this weights file; None if there is none in the run's folder."""
    run_dir = weights.parent.parent if weights.parent.name == "last" else weights.parent
    path = run_dir / "split.json"
    return path if path.is_file() else None


def without(split: Split, left_out: Container[str]) -> Split:
    """The split without some cases."""
    training, validation = (
        tuple(case_id for case_id in part if case_id not in left_out) for part in (split.training, split.validation)
    )
    return Split(training=training, validation=validation)


def names_of(
    ids: Iterable[str], patients: Mapping[str, str], known_as: Mapping[str, Iterable[str]] | None = None
) -> set[str]:
    """Every name of the patients of these cases."""
    names = {patients.get(case_id) or patient_of(case_id) for case_id in ids}
    return names.union(*((known_as or {}).get(case_id, ()) for case_id in ids))


def seen(
    ids: Iterable[str],
    earlier: Iterable[str],
    patients: Mapping[str, str],
    *,
    known_as: Mapping[str, Iterable[str]] | None = None,
    names: Set[str] = frozenset(),
) -> list[str]:
    """The cases among `ids` whose patient is that of a case in `earlier`, sorted. `earlier` may be of another data set: another
    visit is not a new brain.

    patients: case id -> patient, at least for `ids`. known_as: case id -> the patient's other names. names: names of patients that
    also count as earlier (`Split.trained`).
    """
    known = names_of(list(earlier), patients, known_as) | names
    return sorted(case_id for case_id in ids if names_of([case_id], patients, known_as) & known)


def save(split: Split, path: str | Path) -> None:
    """Writes a split as JSON."""
    value = {"training": split.training, "validation": split.validation}
    optional = {"known_as": split.known_as, "seen_before": split.seen_before}
    with reported_writes(Path(path).parent):
        write_json(Path(path), value | {name: names for name, names in optional.items() if names})


def load(path: str | Path) -> Split:
    """Reads a split. DataError if the file is damaged or a case is in both parts."""
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
    known_as, seen_before = value.get("known_as", {}), value.get("seen_before", [])
    if not isinstance(known_as, dict) or not all(map(_is_ids, [*known_as.values(), seen_before or [""]])):
        raise DataError(
            f'{path}: found names of patients that are no lists; expected "known_as" and "seen_before" as written; restore '
            "the file, or take both out"
        )
    return Split(
        training=tuple(value["training"]), validation=tuple(value["validation"]),
        known_as={case_id: tuple(names) for case_id, names in known_as.items()}, seen_before=tuple(seen_before),
    )  # fmt: skip


def _is_ids(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(case_id, str) for case_id in value)


def _by_patient(patients: Mapping[str, str]) -> list[tuple[str, ...]]:
    """The cases of each patient, sorted. The patients are in the order of their first cases, so that their names do not matter."""
    groups: dict[str, list[str]] = defaultdict(list)
    for case_id in sorted(patients):
        groups[patients[case_id]].append(case_id)
    return sorted(tuple(group) for group in groups.values())


def _shuffled(groups: list[tuple[str, ...]], seed: int) -> list[tuple[str, ...]]:
    order = np.random.default_rng([abs(seed), len(groups)]).permutation(len(groups))
    return [groups[index] for index in order]


def _by_stratum(groups: list[tuple[str, ...]], strata: Mapping[str, Hashable]) -> list[list[tuple[str, ...]]]:
    """The patients of each stratum, by the label of most of their cases. Patients with many cases come first, as they are the
    hardest to place."""
    strata_of: dict[str, list[tuple[str, ...]]] = defaultdict(list)
    for group in groups:
        labels = Counter(repr(strata.get(case_id)) for case_id in group)
        strata_of[min(labels, key=lambda label: (-labels[label], label))].append(group)
    return [sorted(strata_of[label], key=len, reverse=True) for label in sorted(strata_of)]


def _split(*, training: Iterable[tuple[str, ...]], validation: Iterable[tuple[str, ...]]) -> Split:
    """The split into the cases of the patients on each side."""
    train, validate = (tuple(sorted(case_id for group in side for case_id in group)) for side in (training, validation))
    return Split(training=train, validation=validate)
