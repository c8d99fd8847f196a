"""Scores of segmentations: a row for each (predictions, case, space, region), a column for each of `columns.COLUMNS`.

Rows lie in a pandas DataFrame, NaN where a column was not measured. `summarise` gives the numbers of a box plot,
`average_over_models` the LMS case study's mean over the models of one resolution.

Where a region is empty in truth and prediction, programs differ: BraTS counts Dice 1, nnU-Net leaves the case out. Scores hold what
the rules say; `counted` and `left_out` give them either way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import pandas as pd

from lms3d.scoring import statistics, tables
from lms3d.scoring.columns import COLUMNS, HEADLINE
from lms3d.scoring.pair import CasePair

KEYS = ["predictions", "case", "space", "region"]
"""predictions: label of the predictions folder, or of a group of models. space: one of `columns.SPACES`."""

CEILING = "ceiling_dice"
"""Dice of the truth itself, resized to the cube of the predictions and back: what a perfect network would have. NaN where
predictions come from no cube."""

GROUP = ["predictions", "space", "region"]


def score(pair: CasePair, *, predictions: str, case: str, space: str) -> list[dict[str, Any]]:
    """A row for each region that the rules of `pair` score."""
    measured = {name: COLUMNS[name] for name in COLUMNS.names if space in COLUMNS[name].spaces}
    return [
        {"predictions": predictions, "case": case, "space": space, "region": region}
        | {name: one.measure(of_region) for name, one in measured.items()}
        for region, of_region in pair.regions.items()
    ]


def frame(rows: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """The rows of `score`, with every column, and `CEILING` where a row has it."""
    rows = list(rows)
    values = [*COLUMNS.names, *([CEILING] if any(CEILING in row for row in rows) else [])]
    return pd.DataFrame(rows, columns=[*KEYS, *values]).astype(dict.fromkeys(values, float))


def counted(scores: pd.DataFrame) -> pd.DataFrame:
    """Both masks empty: a perfect score, whatever the rules say."""
    empty = scores["both_empty"] == 1
    perfect = {name: COLUMNS[name].perfect for name in COLUMNS.names if not np.isnan(COLUMNS[name].perfect)}
    unmeasured = {name: scores[name].notna().any() for name in perfect}
    return scores.assign(**{
        name: scores[name].mask(empty & native_or_everywhere(scores, name), value)
        for name, value in perfect.items()
        if unmeasured[name] or name == HEADLINE
    })  # fmt: skip


def native_or_everywhere(scores: pd.DataFrame, name: str) -> pd.Series:
    """Rows of a space in which the column is measured."""
    return scores["space"].isin(COLUMNS[name].spaces)


def left_out(scores: pd.DataFrame) -> pd.DataFrame:
    """Without the rows in which both masks are empty."""
    return scores[scores["both_empty"] != 1]


EMPTY: Mapping[str, Callable[[pd.DataFrame], pd.DataFrame]] = {
    "rules": lambda scores: scores,
    "counted": counted,
    "left out": left_out,
}
"""How regions count that are empty in truth and prediction."""


def summarise(scores: pd.DataFrame) -> pd.DataFrame:
    """A row for each (predictions, space, region), in the order in which they first occur: of the headline column the spread
    over the cases (standard deviation of the population), the 95 % interval of the mean, and the mean with empty regions
    counted and left out; of all others the mean."""
    groups = scores.groupby(GROUP, sort=False)
    values = groups[HEADLINE]
    both_ways = {
        f"mean_{name}": way(scores).groupby(GROUP, sort=False)[HEADLINE].mean()
        for name, way in (("empty_counted", counted), ("empty_left_out", left_out))
    }
    summary = {
        "cases": groups.size(),
        "n": values.count(),
        "both_empty": groups["both_empty"].sum(min_count=1),
        "mean": values.mean(),
        "low": values.apply(lambda one: statistics.interval_of_mean(one.to_numpy())[0]),
        "high": values.apply(lambda one: statistics.interval_of_mean(one.to_numpy())[1]),
        **({f"mean_{CEILING}": groups[CEILING].mean()} if CEILING in scores else {}),
        "std": values.std(ddof=0),
        "minimum": values.min(),
        "lower_quartile": values.quantile(0.25),
        "median": values.median(),
        "upper_quartile": values.quantile(0.75),
        "maximum": values.max(),
        **both_ways,
        **{f"mean_{name}": groups[name].mean() for name in COLUMNS.names if name not in (HEADLINE, "both_empty")},
    }
    order = scores[GROUP].drop_duplicates()
    return order.merge(pd.DataFrame(summary).reset_index(), on=GROUP, how="left")


def spread_of_all(scores: pd.DataFrame) -> pd.DataFrame:
    """A row for each (predictions, space, region, metric, empty): mean with its 95 % interval, median, quartiles.

    empty: one of EMPTY.
    """
    rows = []
    for way, chosen in EMPTY.items():
        for keys, group in chosen(scores).groupby(GROUP, sort=False):
            for name in COLUMNS.names:
                values = group[name].dropna().to_numpy()
                if name == "both_empty" or not len(values):
                    continue
                low, high = statistics.interval_of_mean(values)
                quartiles = np.quantile(values, (0.25, 0.5, 0.75))
                rows.append([
                    *keys, name, way, len(values), int((group["both_empty"] == 1).sum()), values.mean(), low, high,
                    values.std(), values.min(), *quartiles, values.max(),
                ])  # fmt: skip
    head = [*GROUP, "metric", "empty", "n", "both_empty", "mean", "low", "high", "std", "minimum", "lower_quartile", "median",
            "upper_quartile", "maximum"]  # fmt: skip
    return pd.DataFrame(rows, columns=head)


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


def to_markdown(summary: pd.DataFrame, note: str = "") -> str:
    """The table of a summary, without the columns that were not measured. note: the rules, below it."""
    others = {name: COLUMNS[name] for name in COLUMNS.names if name != HEADLINE and COLUMNS[name].in_table}
    others = {name: one for name, one in others.items() if summary[f"mean_{name}"].notna().any()}
    ceiling = f"mean_{CEILING}" in summary and summary[f"mean_{CEILING}"].notna().any()
    head = [*GROUP, "cases", "both empty", "mean ± std", "95 %", "median (quartiles)", "empty left out"]
    head += [*(["ceiling"] if ceiling else []), *(one.title for one in others.values())]
    rows = []
    for row in summary.to_dict("records"):
        quartiles = f"{_figure(row['median'])} ({_figure(row['lower_quartile'])}-{_figure(row['upper_quartile'])})"
        means = ((row[f"mean_{name}"], one.decimals) for name, one in others.items())
        rows.append([
            *(row[key] for key in GROUP), str(row["cases"]), _figure(row["both_empty"], 0),
            f"{_figure(row['mean'])} ± {_figure(row['std'])}", f"{_figure(row['low'])}-{_figure(row['high'])}", quartiles,
            _figure(row["mean_empty_left_out"]), *([_figure(row[f"mean_{CEILING}"])] if ceiling else []),
            *(_figure(mean, decimals) for mean, decimals in means),
        ])  # fmt: skip
    return tables.markdown(head, rows) + (f"\n{note}\n" if note else "")


def _figure(value: float, decimals: int = 3) -> str:
    return "" if np.isnan(value) else f"{value:.{decimals}f}"
