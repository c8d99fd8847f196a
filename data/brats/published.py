"""The public data sets in which the files of a case differ in a suffix: one row each, and no branch for their oddities.

From 2023 on all sets use the same names, but a label value may mean different things. They are distinguished as follows:
GLI   by the number of the visit: 000, 001, ... before treatment (2023, and "PRE" of 2025), 100, 101, ... after it (from 2024 on)
PED   by the year in the path: labels have another order from 2024 on
MET   by the year in the path: from 2025 on, label 4 is the cavity of a resection
"""

from __future__ import annotations

import re

from lms3d.data.brats.naming import Named

_EARLY = ("_t1", "_t1ce", "_flair", "_t2")
_LATE = ("-t1n", "-t1c", "-t2f", "-t2w")


def _late(title: str, schema: str, case: str, *years: int | None) -> Named:
    return Named(title=title, schema=schema, case=case, images=_LATE, truth=("-seg",), years=years)


PUBLISHED = (
    Named(
        title="TCIA (TCGA-GBM, TCGA-LGG)",
        schema="tcia",
        case=r"TCGA-",
        images=("_t1", "_t1Gd", "_flair", "_t2"),
        truth=("_GlistrBoost_ManuallyCorrected", "_GlistrBoost"),
    ),
    Named(title="BraTS 2017", schema="brats2017", case=r"Brats17_", images=_EARLY, truth=("_seg",)),
    Named(title="BraTS 2018", schema="brats2018", case=r"Brats18_", images=_EARLY, truth=("_seg",)),
    Named(title="BraTS 2019", schema="brats2019", case=r"BraTS19_", images=_EARLY, truth=("_seg",)),
    Named(
        title="BraTS 2020",
        schema="brats2020",
        case=r"BraTS20_",
        images=_EARLY,
        truth=("_seg",),
        odd_truth=("*_Segm.nii*",),  # training case 355 has W39_1998.09.19_Segm.nii
    ),
    Named(title="BraTS 2021", schema="brats2021", case=r"BraTS2021_", images=_EARLY, truth=("_seg",)),
    _late("BraTS GLI before treatment (2023, 2025)", "brats2023", r"BraTS-GLI-\d+-0\d\d$", None, 2023, 2025),
    _late("BraTS GLI after treatment (2024, 2025)", "brats2024", r"BraTS-GLI-\d+-[1-9]\d\d$", None, 2024, 2025),
    _late(
        "BraTS GLI, whose path and visits disagree (brats2023 before treatment, brats2024 after it)", "", r"BraTS-GLI-"
    ),
    _late("BraTS PED 2023", "brats2023", r"BraTS-PED-", 2023),
    _late("BraTS PED 2024 or 2025", "brats2024-ped", r"BraTS-PED-", 2024, 2025),
    _late(
        "BraTS PED, of an unknown year (brats2023 for 2023, brats2024-ped for 2024 and 2025)", "", r"BraTS-PED-"
    ),
    _late("BraTS MET 2023 or 2024", "brats2023", r"BraTS-MET-", 2023, 2024),
    _late("BraTS MET 2025", "brats2024", r"BraTS-MET-", 2025),
    _late(
        "BraTS MET, of an unknown year (brats2023 for 2023 and 2024, brats2024 for 2025)", "", r"BraTS-MET-"
    ),
    _late("BraTS SSA", "brats2023", r"BraTS-SSA-"),
    _late("BraTS MEN", "brats2023", r"BraTS-MEN-\d"),
    _late("BraTS GoAT", "brats2023", r"BraTS-GoAT-"),
)  # fmt: skip

OWN = (
    Named(title="own data, named as BraTS 2017-2021", schema="", case=r"", images=_EARLY, truth=("_seg",)),
    Named(title="own data, named as BraTS 2023 on", schema="", case=r"", images=_LATE, truth=("-seg",)),
)
"""A user's data with the file names of BraTS. Its labels could mean anything, so --labels must say."""

REFUSED = (
    (
        re.compile(r"BraTS-MEN-RT-"),
        "BraTS-MEN-RT, which has one modality (T1c) and the target of a radiotherapy",
        "a set with T1, T1c, FLAIR and T2",
    ),
)
"""The known sets that cannot be used: (pattern of a file's name, what the set is, what is expected instead)."""
