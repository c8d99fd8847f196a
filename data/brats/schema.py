"""The meaning of the numbers in a label map. It is never inferred from the values: 3 and 4 differ between data sets.

Labels are named as in the data set's own description: NCR or NETC is necrosis and other non-enhancing core, ED or SNFH
oedema, ET enhancing tumour, CC cysts, RC the cavity of a resection. The learnt labels are necrosis, oedema, enhancing tumour, then
others. The regions are REGIONS, then the other regions that the challenge scores.
"""

from __future__ import annotations

from collections.abc import Mapping

from lms3d.data.errors import DataError
from lms3d.data.volumes.labels import LabelSchema

CHANNELS = ("t1", "t1ce", "flair", "t2")
"""The four modalities, in the order of the image channels."""

REGIONS = ("WT", "TC", "ET")
"""Whole tumour, tumour core, enhancing tumour. Every schema has them."""


def _adult(name: str, necrosis: str, oedema: str, labels: Mapping[str, int], *, cavity: bool = False) -> LabelSchema:
    """A schema of necrosis, oedema and enhancing tumour, with all but oedema as the core. cavity: whether it has the cavity of a
    resection, outside the whole tumour."""
    inner, rim, enhancing = labels[necrosis], labels[oedema], labels["ET"]
    cavities = ("RC",) if cavity else ()
    return LabelSchema(
        name=name,
        labels=labels,
        learnt=(necrosis, oedema, "ET", *cavities),
        regions={
            "WT": tuple(sorted((inner, rim, enhancing))),
            "TC": tuple(sorted((inner, enhancing))),
            "ET": (enhancing,),
            **{other: (labels[other],) for other in cavities},
        },
        nested=(
            ("WT", rim),
            ("TC", inner),
            ("ET", enhancing),
            *((other, labels[other]) for other in cavities),
        ),
    )


_TO_2021 = {"NCR": 1, "ED": 2, "ET": 4}
_FROM_2023 = {"NETC": 1, "SNFH": 2, "ET": 3}
_WITH_CAVITY = _FROM_2023 | {"RC": 4}

_PEDIATRIC = LabelSchema(
    name="brats2024-ped",
    labels={"ET": 1, "NETC": 2, "CC": 3, "ED": 4},
    learnt=("NETC", "ED", "ET", "CC"),
    regions={"WT": (1, 2, 3, 4), "TC": (1, 2, 3), "ET": (1,), "NETC": (2,), "CC": (3,), "ED": (4,)},
    nested=(("WT", 4), ("TC", 2), ("CC", 3), ("ET", 1)),
)
"""The paediatric schema of 2024 and 2025. The set of 2023 has the labels of "brats2023"."""

SCHEMAS: dict[str, LabelSchema] = {
    schema.name: schema
    for schema in (
        *(
            _adult(name, "NCR", "ED", _TO_2021)
            for name in ("tcia", "brats2017", "brats2018", "brats2019", "brats2020", "brats2021")
        ),
        _adult("brats2023", "NETC", "SNFH", _FROM_2023),
        _adult("brats2024", "NETC", "SNFH", _WITH_CAVITY, cavity=True),
        _PEDIATRIC,
        _adult(
            "msd", "NET", "ED", {"ED": 1, "NET": 2, "ET": 3}
        ),  # the Medical Segmentation Decathlon counts oedema first
    )
}
"""The schemas by name. "brats2023" is also that of SSA, MEN, MET and GoAT of all years, except for MET 2025, which has a cavity
like GLI 2024 ("brats2024")."""


_OWN: dict[str, LabelSchema] = {}


def remember(schema: LabelSchema) -> LabelSchema:
    """Registers a schema for `schema_named` in this process, and returns it."""
    _OWN[schema.name] = schema
    return schema


def schema_named(name: str, where: str = "--labels") -> LabelSchema:
    """The schema of this name. DataError, which lists the known ones, if there is none. where: the source of the name."""
    schema = SCHEMAS.get(name) or _OWN.get(name)
    if schema is None:
        known = ", ".join((*SCHEMAS, *_OWN))
        raise DataError(f"{where}: found {name!r}; expected one of {known}; choose the set that your labels come from")
    return schema
