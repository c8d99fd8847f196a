"""The meaning of the values of a label map, if predictions use another coding than the truth."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from lms3d.data.brats.schema import schema_named
from lms3d.data.errors import DataError
from lms3d.data.volumes.labels import LabelSchema
from lms3d.errors import InputError
from lms3d.scoring.masks import region_masks

OTHERS = {"nnunet": "msd"}
"""nnU-Net's conversion of BraTS 2021 (Dataset137) writes 1 oedema, 2 necrosis, 3 enhancing tumour, as the Decathlon does."""

_SAME = {"NCR": "NETC", "NET": "NETC", "ED": "SNFH"}
"""An earlier name of a tissue -> its name since 2023."""


def coding(name: str) -> LabelSchema:
    """The schema called `name`, which may be the name of another program. InputError for any other name."""
    try:
        return schema_named(OTHERS.get(name, name))
    except DataError as error:
        message = (
            str(error)
            .replace("--labels", "--prediction-labels", 1)
            .replace("expected one of", f"expected {', '.join(OTHERS)} or one of")
        )
        raise InputError(message) from None


def values_of(schema: LabelSchema, region: str) -> tuple[int, ...] | None:
    """The label values of a region or tissue, by any of its names; None if the schema does not have it."""
    tissues: dict[str, tuple[int, ...]] = {}
    for name, value in schema.labels.items():  # two tissues of before 2017 are one tissue since
        tissue = _SAME.get(name, name)
        tissues[tissue] = (*tissues.get(tissue, ()), value)
    known = {**tissues, **schema.regions}
    return known.get(region, known.get(_SAME.get(region, region)))


def regions_of(schema: LabelSchema, wanted: tuple[str, ...]) -> Mapping[str, tuple[int, ...]]:
    """Region -> label values, for the regions that the schema has."""
    found = {region: values_of(schema, region) for region in wanted}
    return {region: values for region, values in found.items() if values is not None}


def expressed(labels: np.ndarray, schema: LabelSchema, coding: LabelSchema) -> np.ndarray:
    """A label map (X, Y, Z) uint8 of `schema` in the values of `coding`.

    Each label becomes the label of `coding`, or background, that lies in the same regions; regions that only one schema has do not
    count. If several labels do, it becomes the one of the same tissue. If none does, the one that differs in the fewest regions is
    taken: a cavity becomes background, and a cyst becomes the core that does not enhance.
    """
    if coding == schema:
        return labels
    table = np.zeros(256, np.uint8)
    for value in schema.labels.values():
        table[value] = min(coding.values, key=lambda own: _disagreements(value, schema, own, coding))
    return table[labels]


def _disagreements(value: int, schema: LabelSchema, own: int, coding: LabelSchema) -> tuple[int, int]:
    """How many regions, and how many tissues, that both schemas share have only one of the two label values."""

    def count(names: Iterable[str]) -> int:
        both = [(values_of(schema, name), values_of(coding, name)) for name in names]
        return sum((value in one) != (own in other) for one, other in both if one and other)

    return count(schema.regions.keys() & coding.regions.keys()), count(schema.labels)


def masks_of(labels: np.ndarray, schema: LabelSchema, wanted: tuple[str, ...]) -> dict[str, np.ndarray]:
    """Label map (X, Y, Z) -> the mask of each wanted region that the schema has."""
    return region_masks(labels, regions_of(schema, wanted))
