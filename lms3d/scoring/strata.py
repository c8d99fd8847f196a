"""Scores by the volume of the enhancing tumour: resolution should matter most for small tumours."""

from __future__ import annotations

import numpy as np
import pandas as pd

from lms3d.scoring import scores, statistics
from lms3d.scoring.columns import HEADLINE

BY = "ET"
NONE = f"no {BY}"
_CEILING = scores.CEILING + HEADLINE


def of_cases(table: pd.DataFrame) -> dict[str, str]:
    """Case -> stratum. Three strata hold a third each of the cases with enhancing tumour, by its volume; one holds the cases
    without. Empty if fewer than three cases are known to have enhancing tumour."""
    known = table[(table["space"] == "native") & (table["region"] == BY)].groupby("case")["truth_ml"].max().dropna()
    present = known[known > 0]
    if len(present) < 3:
        return {}
    low, high = np.quantile(present, (1 / 3, 2 / 3))
    names = (f"{BY} up to {low:.1f} ml", f"{BY} {low:.1f}-{high:.1f} ml", f"{BY} above {high:.1f} ml")
    without = dict.fromkeys(known.index, NONE)
    return without | {case: names[int(volume > low) + int(volume > high)] for case, volume in present.items()}


def table(of_all: pd.DataFrame) -> pd.DataFrame:
    """A row for each (predictions, space, region, stratum): the number of cases, the mean of the headline column with its interval,
    and the ceiling. of_all: the scores of all cases."""
    of_case = of_cases(of_all)
    rows = []
    order = sorted(set(of_case.values()), key=lambda name: (name == NONE, "above" in name, "up to" not in name))
    chosen = of_all[of_all["case"].isin(of_case)]
    for keys, group in chosen.groupby(scores.GROUP, sort=False):
        for stratum in order:
            part = group[group["case"].map(of_case) == stratum]
            values = part[HEADLINE].dropna().to_numpy()
            low, high = statistics.interval_of_mean(values) if len(values) else (np.nan, np.nan)
            mean = values.mean() if len(values) else np.nan
            ceiling = part[_CEILING].mean() if _CEILING in part else np.nan
            rows.append([*keys, stratum, len(part), int(part["both_empty"].sum()), mean, low, high, ceiling])
    head = [*scores.GROUP, "stratum", "cases", "both_empty", "mean", "low", "high", f"mean_{_CEILING}"]
    return pd.DataFrame(rows, columns=head)
