"""What a package says of a brain scan network: modalities, labels in full, the outputs, and how intensities are scaled."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lms3d.data.brats import layouts, normalise
from lms3d.data.brats.definition import described, restored
from lms3d.data.brats.normalise import Normalisation
from lms3d.data.brats.schema import CHANNELS, SCHEMAS, LabelSchema
from lms3d.data.brats.targets import targets_of
from lms3d.errors import InputError
from lms3d.tasks.brats.options import BratsConfig


def packaged(run_dir: Path, options: BratsConfig, content: Mapping[str, Any]) -> dict[str, Any]:
    """See `lms3d.tasks.task.Task.packaged`."""
    schema = _schema(run_dir, options, content)
    try:
        scaled = normalisation(content.get("normalisation"))
    except ValueError as error:
        raise InputError(f"{run_dir / 'config.json'}: {error}; train again") from None
    return {
        "channels": list(CHANNELS),
        "outputs": list(targets_of(options.targets, schema).names),
        "labels": described(schema),
        "normalisation": scaled.to_json(),
        "modalities": content.get("data", {}).get("modalities", list(CHANNELS)),
    }


def unpacked(said: Mapping[str, Any], options: BratsConfig, where: str) -> dict[str, Any]:
    """See `lms3d.tasks.task.Task.unpacked`."""
    schema = restored(said.get("labels"), where=where)
    names = list(targets_of(options.targets, schema).names)
    for name, expected in (("outputs", names), ("channels", list(CHANNELS))):
        if said.get(name) != expected:
            raise ValueError(f"found {name} {str(said.get(name))[:80]}, expected {expected}")
    scaled = normalisation(said.get("normalisation")).to_json()
    if scaled["kind"] != options.normalisation:
        raise ValueError(f"found figures of --normalisation {scaled['kind']}, expected {options.normalisation}")
    modalities = said.get("modalities", list(CHANNELS))  # earlier versions did not write them
    if not (isinstance(modalities, list) and modalities) or modalities != [
        channel for channel in CHANNELS if channel in modalities
    ]:
        raise ValueError(f"found modalities {str(modalities)[:80]}, expected some of {', '.join(CHANNELS)}")
    return {"labels": dict(said["labels"]), "normalisation": scaled, "data": {"modalities": modalities}}


def normalisation(value: Any) -> Normalisation:
    """The normalisation that config.json or a package describes. ValueError for anything that cannot be applied."""
    try:
        found = normalise.from_json(value)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
        raise ValueError(
            f"found normalisation {str(value)[:80]}, expected mean and std of the training images"
        ) from None
    if isinstance(found, normalise.Global):
        right = len(found.mean) == len(found.std) == len(CHANNELS) and min(found.std) > 0
        if not (right and all(map(math.isfinite, (*found.mean, *found.std)))):
            raise ValueError(
                f"found normalisation {str(value)[:80]}, expected {len(CHANNELS)} means and deviations above 0"
            )
    return found


def _schema(run_dir: Path, options: BratsConfig, content: Mapping[str, Any]) -> LabelSchema:
    """The schema that the run has learnt, from config.json. Older ones have only its name there, or nothing: then the data says."""
    if "labels" in content:
        return restored(content["labels"], where=str(run_dir / "config.json"))
    name = str(content.get("data", {}).get("schema") or options.labels or "")
    if name in SCHEMAS:
        return SCHEMAS[name]
    if options.data is None or not options.data.exists():
        raise InputError(
            f"{run_dir / 'config.json'}: found no description of the labels{f' {name}' if name else ''}, which earlier versions "
            f"left to the data, and no data at {options.data}; expected one of them; put the data back"
        )
    return layouts.find_cases(options.data, labels=options.labels, require_truth=False, require_complete=False).schema
