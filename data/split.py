"""Which cases train and which validate: drawn once by seed, saved with the run, used again by every later step.

No patient is in both parts. Who the patients are is told by a mapping (case id -> patient, as `DataSet.patients` has it);
where there is none, by the ids.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Container, Hashable, Iterable, Mapping, Set
from dataclasses import dataclass, field
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
    known_as: dict[str, tuple[str, ...]] = field(default_factory=dict, compare=False, repr=False)
    """Case id -> every name of its patient that was known when the run began, so that a data set with other names for the same
    brains can be told of it (`seen`)."""
    seen_before: tuple[str, ...] = field(default=(), compare=False, repr=False)
    """Names of patients that have trained the weights with which the run began."""

    @property
    def trained(self) -> set[str]:
        """Every name of the patients that have trained the weights of this run."""
        return set(self.seen_before) | names_of(self.training, {}, self.known_as)


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


def of_weights(weights: Path) -> Path | None:
    """split.json of the run that has written this file of weights; None where it is not where that run has it."""
    run_dir = weights.parent.parent if weights.parent.name == "last" else weights.parent
    path = run_dir / "split.json"
    return path if path.is_file() else None


def without(split: Split, left_out: Container[str]) -> Split:
    """The split of the other cases."""
    training, validation = (
        tuple(case_id for case_id in part if case_id not in left_out) for part in (split.training, split.validation)
    )
    return Split(training=training, validation=validation)


def names_of(
    ids: Iterable[str], patients: Mapping[str, str], known_as: Mapping[str, Iterable[str]] | None = None
) -> set[str]:
    """Every name of the patients of these cases."""
    found = {patients.get(case_id) or patient_of(case_id) for case_id in ids}
    return found.union(*((known_as or {}).get(case_id, ()) for case_id in ids))


def seen(
    ids: Iterable[str],
    earlier: Iterable[str],
    patients: Mapping[str, str],
    *,
    known_as: Mapping[str, Iterable[str]] | None = None,
    names: Set[str] = frozenset(),
) -> list[str]:
    """Those of `ids` whose patient is one of the cases `earlier`, which may be of another data set: another visit is no new brain.

    patients: case id -> patient, of `ids` at least. known_as: case id -> the patient's other names. names: of patients that count
    as earlier ones, too (`Split.trained`).
    """
    known = names_of(list(earlier), patients, known_as) | names
    return sorted(case_id for case_id in ids if names_of([case_id], patients, known_as) & known)


def save(split: Split, path: str | Path) -> None:
    """Write `split` as JSON."""
    value = {"training": split.training, "validation": split.validation}
    more = {"known_as": split.known_as, "seen_before": split.seen_before}
    with reported_writes(Path(path).parent):
        write_json(Path(path), value | {name: told for name, told in more.items() if told})


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
