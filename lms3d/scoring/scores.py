"""Scores of segmentations: a row for each (predictions, case, space, region), and a column for each of `columns.COLUMNS`.

The rows are in a pandas DataFrame, with NaN if a column was not measured. `summarise` gives the numbers of a box plot, and
`average_over_models` the LMS case study's mean over the models of one resolution.

If a region is empty in truth and prediction, programs differ: BraTS counts Dice 1, nnU-Net leaves the case out. Scores follow the
rules; `counted` and `left_out` convert them to either convention.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import pandas as pd

from lms3d.common import markdown
from lms3d.scoring import statistics, tables
from lms3d.scoring.columns import COLUMNS, HEADLINE
from lms3d.scoring.pair import CasePair

KEYS = ["predictions", "case", "space", "region"]
"""predictions: the label of a predictions folder, or of a group of models. space: one of `columns.SPACES`."""

CEILING = "ceiling_"
"""The prefix of a column's ceiling: the score of the truth itself after it was brought to the network's grid and back, as
predictions are. A perfect network of that resolution would have this score. NaN if predictions come from no such grid."""

GROUP = ["predictions", "space", "region"]


def score(pair: CasePair, *, predictions: str, case: str, space: str) -> list[dict[str, Any]]:
    """A row for each region that the rules of `pair` score."""
    measured = {name: COLUMNS[name] for name in COLUMNS.names if space in COLUMNS[name].spaces}
    return [
        {"predictions": predictions, "case": case, "space": space, "region": region}
        | {name: column.measure(of_region) for name, column in measured.items()}
        for region, of_region in pair.regions.items()
    ]


def frame(rows: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """The rows of `score` as a table with every column, and with ceilings and the column "fold" if any row has them."""
    rows = list(rows)
    fold = ["fold"] if any("fold" in row for row in rows) else []
    has_ceilings = any(name.startswith(CEILING) for row in rows for name in row)
    values = [*COLUMNS.names, *(_with_ceiling() if has_ceilings else [])]
    return pd.DataFrame(rows, columns=[*KEYS, *fold, *values]).astype(dict.fromkeys(values, float))


def _with_ceiling() -> dict[str, str]:
    """Name of a ceiling -> name of its column."""
    return {CEILING + name: name for name in COLUMNS.names if not COLUMNS[name].of_truth}


def as_ceiling(row: Mapping[str, Any]) -> dict[str, float]:
    """The ceilings in a row of `score`, if that scores the truth on the network's grid."""
    return {ceiling: row[name] for ceiling, name in _with_ceiling().items() if name in row}


def ceilings(scores: pd.DataFrame) -> pd.DataFrame | None:
    """The scores of the truth itself: a row for each of `scores`, with the same columns. None if there are no ceilings."""
    names = _with_ceiling()
    if not set(names) <= set(scores):
        return None
    return scores.assign(**{name: scores[ceiling] for ceiling, name in names.items()}).drop(columns=list(names))


def counted(scores: pd.DataFrame) -> pd.DataFrame:
    """The scores with a perfect score for regions that are empty in both masks, whatever the rules say."""
    empty = scores["both_empty"] == 1
    perfect = {name: COLUMNS[name].perfect for name in COLUMNS.names if not np.isnan(COLUMNS[name].perfect)}
    unmeasured = {name: scores[name].notna().any() for name in perfect}
    return scores.assign(**{
        name: scores[name].mask(empty & native_or_everywhere(scores, name), value)
        for name, value in perfect.items()
        if unmeasured[name] or name == HEADLINE
    })  # fmt: skip


def native_or_everywhere(scores: pd.DataFrame, name: str) -> pd.Series:
    """Whether each row is of a space in which the column is measured."""
    return scores["space"].isin(COLUMNS[name].spaces)


def left_out(scores: pd.DataFrame) -> pd.DataFrame:
    """The scores without the rows in which both masks are empty."""
    return scores[scores["both_empty"] != 1]


EMPTY: Mapping[str, Callable[[pd.DataFrame], pd.DataFrame]] = {
    "rules": lambda scores: scores,
    "counted": counted,
    "left out": left_out,
}
"""The conventions for regions that are empty in truth and prediction."""

Ways = Mapping[str, pd.DataFrame]
"""Convention of EMPTY -> the same scores by it."""


def each_way(scores: pd.DataFrame, group_of: Mapping[str, str] | None = None) -> Ways:
    """The scores by each convention of EMPTY. group_of: if given, the means over models as of `average_over_models`. The convention
    is applied to each model's own scores first, since one model may leave a region empty that another marks."""
    ways = {name: convention(scores) for name, convention in EMPTY.items()}
    return ways if group_of is None else {name: average_over_models(way, group_of) for name, way in ways.items()}


def summarise(scores: pd.DataFrame, ways: Ways | None = None) -> pd.DataFrame:
    """A row for each (predictions, space, region), in the order in which they first occur. For the headline column it has the
    spread over the cases (standard deviation of the population), the 95 % interval of the mean, and the means with empty regions
    counted and left out; for each other column the mean. Beside each mean is that of the ceilings.

    ways: the same scores by each convention, if the scores are means over models.
    """
    groups = scores.groupby(GROUP, sort=False)
    values = groups[HEADLINE]
    ways = each_way(scores) if ways is None else ways
    both_ways = {
        f"mean_empty_{name.replace(' ', '_')}": ways[name].groupby(GROUP, sort=False)[HEADLINE].mean()
        for name in ("counted", "left out")
    }
    summary = {
        "cases": groups.size(),
        "n": values.count(),
        "both_empty": groups["both_empty"].sum(min_count=1),
        "mean": values.mean(),
        "low": values.apply(lambda group: statistics.interval_of_mean(group.to_numpy())[0]),
        "high": values.apply(lambda group: statistics.interval_of_mean(group.to_numpy())[1]),
        **_mean_ceiling(scores, HEADLINE),
        "std": values.std(ddof=0),
        "minimum": values.min(),
        "lower_quartile": values.quantile(0.25),
        "median": values.median(),
        "upper_quartile": values.quantile(0.75),
        "maximum": values.max(),
        **both_ways,
    }
    for name in COLUMNS.names:
        if name not in (HEADLINE, "both_empty"):
            summary |= {f"mean_{name}": groups[name].mean(), **_mean_ceiling(scores, name)}
    order = scores[GROUP].drop_duplicates()
    return order.merge(pd.DataFrame(summary).reset_index(), on=GROUP, how="left")


def _mean_ceiling(scores: pd.DataFrame, name: str) -> dict[str, pd.Series]:
    """The mean of a column's ceilings, by its name; {} if the column has no ceiling."""
    ceiling = CEILING + name
    return {f"mean_{ceiling}": scores.groupby(GROUP, sort=False)[ceiling].mean()} if ceiling in scores else {}


def spread_of_all(scores: pd.DataFrame, ways: Ways | None = None) -> pd.DataFrame:
    """A row for each (predictions, space, region, metric, empty): the mean with its 95 % interval, the median, the quartiles, and
    the mean of the ceilings.

    empty: a convention of EMPTY. ways: as for `summarise`.
    """
    rows = []
    of_truth = ceilings(scores)
    for way, chosen in (each_way(scores) if ways is None else ways).items():
        perfect = {} if of_truth is None else dict(iter(EMPTY[way](of_truth).groupby(GROUP, sort=False)))
        for keys, group in chosen.groupby(GROUP, sort=False):
            for name in COLUMNS.names:
                values = group[name].dropna().to_numpy()
                if name == "both_empty" or not len(values):
                    continue
                low, high = statistics.interval_of_mean(values)
                quartiles = np.quantile(values, (0.25, 0.5, 0.75))
                rows.append([
                    *keys, name, way, len(values), int((group["both_empty"] == 1).sum()), values.mean(), low, high,
                    values.std(), values.min(), *quartiles, values.max(),
                    perfect[keys][name].mean() if keys in perfect and not COLUMNS[name].of_truth else np.nan,
                ])  # fmt: skip
    head = [*GROUP, "metric", "empty", "n", "both_empty", "mean", "low", "high", "std", "minimum", "lower_quartile", "median",
            "upper_quartile", "maximum", "ceiling"]  # fmt: skip
    return pd.DataFrame(rows, columns=head)


def average_over_models(scores: pd.DataFrame, group_of: Mapping[str, str]) -> pd.DataFrame:
    """The means over the models of a group, for each case, space and region, with the groups in the order of `group_of`. A region
    counts as empty in both masks if it is so for all models.

    group_of: label of predictions -> label of their group, which replaces it.
    """
    order = list(dict.fromkeys(group_of.values()))
    grouped = scores.assign(predictions=scores["predictions"].map(group_of))
    means = grouped.groupby(KEYS, sort=False).mean(numeric_only=True).reset_index()
    if "both_empty" in means:
        means["both_empty"] = (
            means["both_empty"].where(means["both_empty"].isna(), means["both_empty"] == 1).astype(float)
        )
    return means.sort_values(
        "predictions", key=lambda labels: labels.map(order.index), kind="stable", ignore_index=True
    )


def to_markdown(summary: pd.DataFrame, note: str = "") -> str:
    """A summary as Markdown: a table of Dice, then the means of all other columns that were measured, in as many tables as a
    terminal needs. Ceilings are in brackets. note: a line about the rules, to stand below."""
    found = summary.to_dict("records")
    keys = [[row[key] for key in GROUP] for row in found]
    others = [name for name in COLUMNS.names if name != HEADLINE and COLUMNS[name].in_table]
    means = {name: _means(summary, name) for name in others if summary[f"mean_{name}"].notna().any()}
    head, rows = _dice_table(summary)
    table = markdown.table([*GROUP, *head], [[*key, *row] for key, row in zip(keys, rows, strict=True)])
    parts = [f"{table}\n"]
    heads = [COLUMNS[name].title + (" (ceiling)" if _has_ceiling(summary, name) else "") for name in means]
    parts += tables.side_by_side(GROUP, keys, dict(zip(heads, means.values(), strict=True)))
    return "\n".join(parts) + (f"\n{note}\n" if note else "")


def _dice_table(summary: pd.DataFrame) -> tuple[list[str], list[list[str]]]:
    """The heads and the cells of the table of Dice, without the columns that name the row."""
    head = ["cases", "both empty", "Dice, mean ± std", "95 %", "median (quartiles)", "empty left out"]
    ceiling = [f"mean_{CEILING}{HEADLINE}"] if _has_ceiling(summary, HEADLINE) else []
    rows = []
    for row in summary.to_dict("records"):
        rows.append([
            str(row["cases"]), _figure(row["both_empty"], 0) or "-", _figures("{} ± {}", row["mean"], row["std"]),
            _figures("{}-{}", row["low"], row["high"]),
            _figures("{} ({}-{})", row["median"], row["lower_quartile"], row["upper_quartile"]),
            *(_figure(row[name]) or "-" for name in ("mean_empty_left_out", *ceiling)),
        ])  # fmt: skip
    return [*head, *(["ceiling"] if ceiling else [])], rows


def _means(summary: pd.DataFrame, name: str) -> list[str]:
    """The means of a column, with their ceilings in brackets."""
    decimals = COLUMNS[name].decimals
    means = [_figure(value, decimals) for value in summary[f"mean_{name}"]]
    if not _has_ceiling(summary, name):
        return means
    ceilings = [_figure(value, decimals) for value in summary[f"mean_{CEILING}{name}"]]
    return [f"{mean} ({top})" if mean and top else mean for mean, top in zip(means, ceilings, strict=True)]


def _has_ceiling(summary: pd.DataFrame, name: str) -> bool:
    return _has_value(summary, f"mean_{CEILING}{name}")


def _has_value(table: pd.DataFrame, name: str) -> bool:
    return name in table and bool(table[name].notna().any())


def _figures(form: str, *values: float) -> str:
    """Several figures in one cell; "-" if one of them is not known, since " ± " says nothing."""
    shown = [_figure(value) for value in values]
    return form.format(*shown) if all(shown) else "-"


def _figure(value: float, decimals: int = 3) -> str:
    return "" if np.isnan(value) else f"{value:.{decimals}f}"
