"""Scores of segmentations: a row for each (predictions, case, space, region), a column for each of `columns.COLUMNS`.

Rows lie in a pandas DataFrame, NaN where a column was not measured. `summarise` gives the numbers of a box plot,
`average_over_models` the LMS case study's mean over the models of one resolution.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from lms3d.scoring import tables
from lms3d.scoring.columns import COLUMNS, HEADLINE

KEYS = ["predictions", "case", "space", "region"]
"""predictions: label of the predictions folder, or of a group of models. space: one of `columns.SPACES`."""

_GROUP = ["predictions", "space", "region"]


def score(
    prediction: Mapping[str, np.ndarray],
    truth: Mapping[str, np.ndarray],
    *,
    predictions: str,
    case: str,
    space: str,
    spacing_mm: Sequence[float],
    requested: Collection[str] = (),
) -> list[dict[str, Any]]:
    """A row for each region; `prediction` and `truth` map a region to its boolean mask (X, Y, Z).

    spacing_mm: voxel size. requested: columns to measure beside those that always are.
    """
    measured = {
        name: COLUMNS[name]
        for name in COLUMNS.names
        if space in COLUMNS[name].spaces and (name in requested or not COLUMNS[name].on_request)
    }
    return [
        {"predictions": predictions, "case": case, "space": space, "region": region}
        | {name: one.measure(prediction[region], mask, spacing_mm) for name, one in measured.items()}
        for region, mask in truth.items()
    ]


def frame(rows: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """The rows of `score`, with every column."""
    return pd.DataFrame(list(rows), columns=[*KEYS, *COLUMNS.names]).astype(dict.fromkeys(COLUMNS.names, float))


def summarise(scores: pd.DataFrame) -> pd.DataFrame:
    """A row for each (predictions, space, region), in the order in which they first occur: spread of the headline
    column over the cases (standard deviation of the population), mean of all others."""
    groups = scores.groupby(_GROUP, sort=False)
    values = groups[HEADLINE]
    summary = {
        "cases": groups.size(),
        "mean": values.mean(),
        "std": values.std(ddof=0),
        "minimum": values.min(),
        "lower_quartile": values.quantile(0.25),
        "median": values.median(),
        "upper_quartile": values.quantile(0.75),
        "maximum": values.max(),
        **{f"mean_{name}": groups[name].mean() for name in COLUMNS.names if name != HEADLINE},
    }
    return pd.DataFrame(summary).reset_index()


def average_over_models(scores: pd.DataFrame, group_of: Mapping[str, str]) -> pd.DataFrame:
    """The mean over the models of a group, for each case, space and region; groups in the order of `group_of`.

    group_of: label of predictions -> label of their group, which stands in its place.
    """
    order = list(dict.fromkeys(group_of.values()))
    grouped = scores.assign(predictions=scores["predictions"].map(group_of))
    means = grouped.groupby(KEYS, sort=False).mean().reset_index()
    return means.sort_values(
        "predictions", key=lambda labels: labels.map(order.index), kind="stable", ignore_index=True
    )


def to_markdown(summary: pd.DataFrame) -> str:
    """The table of a summary, without the columns that were not measured."""
    others = {name: COLUMNS[name] for name in COLUMNS.names if name != HEADLINE}
    others = {name: one for name, one in others.items() if summary[f"mean_{name}"].notna().any()}
    head = [*_GROUP, "cases", "mean ± std", "median (quartiles)", *(one.title for one in others.values())]
    rows = []
    for row in summary.to_dict("records"):
        quartiles = f"{row['median']:.3f} ({row['lower_quartile']:.3f}-{row['upper_quartile']:.3f})"
        means = ((row[f"mean_{name}"], one.decimals) for name, one in others.items())
        rows.append([
            *(row[key] for key in _GROUP), str(row["cases"]), f"{row['mean']:.3f} ± {row['std']:.3f}", quartiles,
            *("" if np.isnan(mean) else f"{mean:.{decimals}f}" for mean, decimals in means),
        ])  # fmt: skip
    return tables.markdown(head, rows)
