"""Scores by the volume of the enhancing tumour: small ones are where resolution should matter."""

from __future__ import annotations

import numpy as np
import pandas as pd

from lms3d.scoring import scores, statistics
from lms3d.scoring.columns import HEADLINE

BY = "ET"
NONE = f"no {BY}"
_CEILING = scores.CEILING + HEADLINE


def of_cases(table: pd.DataFrame) -> dict[str, str]:
    """Case -> stratum: a third of the cases that have enhancing tumour each, by its volume; and those without. Empty where the
    volume is not known."""
    known = table[(table["space"] == "native") & (table["region"] == BY)].groupby("case")["truth_ml"].max().dropna()
    present = known[known > 0]
    if len(present) < 3:
        return {}
    low, high = np.quantile(present, (1 / 3, 2 / 3))
    names = (f"{BY} up to {low:.1f} ml", f"{BY} {low:.1f}-{high:.1f} ml", f"{BY} above {high:.1f} ml")
    found = dict.fromkeys(known.index, NONE)
    return found | {case: names[int(volume > low) + int(volume > high)] for case, volume in present.items()}


def table(found: pd.DataFrame) -> pd.DataFrame:
    """A row for each (predictions, space, region, stratum): cases, mean of the headline column with its interval, ceiling."""
    of_case = of_cases(found)
    rows = []
    order = sorted(set(of_case.values()), key=lambda name: (name == NONE, "above" in name, "up to" not in name))
    chosen = found[found["case"].isin(of_case)]
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
