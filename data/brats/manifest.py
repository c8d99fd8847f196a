"""Manifests of brain scans: a column for each modality (see `lms3d.data.volumes.manifest`).

    {"labels": "brats2021", "cases": [...]}     in JSON also the labels: the name of a schema, or a definition
                                                (see `lms3d.data.brats.definition`)

A modality that no case has is empty in every row, and filled with zeros.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lms3d.data.brats import definition
from lms3d.data.brats.schema import CHANNELS, schema_named
from lms3d.data.volumes import manifest
from lms3d.data.volumes.case import Case
from lms3d.data.volumes.labels import LabelSchema


def read(path: Path) -> tuple[list[Case], LabelSchema | None]:
    """The cases, and the schema of their labels, or None if the manifest does not name one."""
    table = manifest.read(path, keys=("labels",))
    cases = manifest.cases(table, CHANNELS, may_be_absent=True)
    labels = table.more.get("labels")
    return cases, None if labels is None else _schema(path, labels)


def _schema(path: Path, labels: Any) -> LabelSchema:
    if isinstance(labels, str):
        return schema_named(labels, where=str(path))
    return definition.define(labels, where=str(path))
