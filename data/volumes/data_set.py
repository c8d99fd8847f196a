"""A data set that was found on disk."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lms3d.data.volumes import patients
from lms3d.data.volumes.case import LEAVE_OUT, Case
from lms3d.data.volumes.labels import LabelSchema


@dataclass(frozen=True, kw_only=True)
class DataSet:
    """The data set that was found. It unpacks into cases and schema."""

    cases: list[Case]
    """The cases, sorted by id."""
    schema: LabelSchema
    layout: str
    """The recognised layout, as text: "BraTS 2021 (mirrored, folders ending in .nii)"."""
    unused: tuple[Path, ...] = ()
    """The NIfTI files that belong to no case, such as copies under other names."""

    def __iter__(self) -> Iterator[Any]:
        return iter((self.cases, self.schema))

    @property
    def complete(self) -> list[str]:
        """The ids of the cases that have all their images. Training uses only these once `--skip-bad` has left out the others."""
        return [case.id for case in self.cases if not case.problem]

    @property
    def patients(self) -> dict[str, str]:
        """Case id -> patient, for `lms3d.data.split`."""
        return {case.id: case.patient for case in self.cases}

    @property
    def modalities(self) -> tuple[str, ...]:
        """The modalities that the cases have."""
        first = self.cases[0]
        return tuple(channel for channel in first.channels if channel not in first.absent)

    @property
    def known_as(self) -> dict[str, tuple[str, ...]]:
        """Case id -> every name of its patient, for `lms3d.data.split.seen`."""
        return {case.id: case.known_as for case in self.cases}

    def for_training(self) -> DataSet:
        """The same cases. If some have a label map, it is the `problem` of the others that they have none: --skip-bad leaves them
        out."""
        without = [case for case in self.cases if case.truth is None]
        if not without or len(without) == len(self.cases):
            return self
        count = f"{len(without)} of {len(self.cases)} cases have none"
        cases = [
            case if case.truth is not None or case.problem else replace(case, problem=(
                f"{case.files[0]}: found no label map of case {case.id} ({count}); expected one for every training case; add it, "
                f"take the image away, or leave the case out ({LEAVE_OUT})"
            ))
            for case in self.cases
        ]  # fmt: skip
        return replace(self, cases=cases)

    def with_same_brains(self, alike: Iterable[Iterable[str]]) -> DataSet:
        """The same cases, with one patient for each group of ids in `alike`."""
        return replace(self, cases=patients.of_one_brain(self.cases, alike))

    @property
    def grades(self) -> dict[str, str | None]:
        """Case id -> "HGG", "LGG" or None: strata for `lms3d.data.split.folds`."""
        return {case.id: case.grade for case in self.cases}
