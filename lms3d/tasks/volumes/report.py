"""Writes the scores of label maps for `lms3d.evaluate`: CSV files, figures, and report.html with all of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pandas as pd

from lms3d import atomic_files
from lms3d.console import say
from lms3d.data.errors import DataError
from lms3d.data.volumes.case import load_images, load_truth
from lms3d.errors import InputError
from lms3d.scoring import comparisons, page, scores, statistics, strata, tables
from lms3d.scoring.columns import COLUMNS, HEADLINE
from lms3d.scoring.figures import box_plot, mosaic, paired
from lms3d.scoring.page import Section
from lms3d.tasks.volumes import codings, inputs, job, plain_maps
from lms3d.tasks.volumes.inputs import ScoringPlan

_TABLES = ("scores", "summary", "metrics", "strata", "comparison")


@dataclass(frozen=True, kw_only=True)
class ScoreReport:
    """All rows, and how to show them."""

    found: pd.DataFrame
    """The rows of every single prediction."""
    groups: Mapping[str, Sequence[str]]
    """Group of models -> labels of its predictions."""
    seeds: comparisons.Seeds = field(default_factory=dict)
    rules: str = ""
    note: str = ""
    margin: float = 0.01
    origin: str = ""
    """Version, date and command, for the page."""

    @property
    def units(self) -> dict[str, Sequence[str]]:
        """The units that are compared -> their predictions: the groups, and each prediction without a group."""
        grouped = {label for labels in self.groups.values() for label in labels}
        alone = [label for label in self.found["predictions"].unique() if label not in grouped]
        return {**{label: [label] for label in alone}, **self.groups}

    @cached_property
    def of_units(self) -> pd.DataFrame:
        """The rows of the units; a group has the mean over its models, case by case."""
        return scores.average_over_models(self.found, self.unit_of) if self.groups else self.found

    @property
    def unit_of(self) -> dict[str, str]:
        """The label of predictions -> the unit to which they belong."""
        return {label: unit for unit, labels in self.units.items() for label in labels}

    @cached_property
    def ways(self) -> scores.Ways:
        """The rows of the units, with empty regions counted and left out."""
        return scores.each_way(self.found, self.unit_of if self.groups else None)

    @cached_property
    def summary(self) -> pd.DataFrame:
        """`scores.summarise` of the units; the intervals of groups are over cases and seeds."""
        return self._over_models(scores.summarise(self.of_units, self.ways), lambda row: (self.found, HEADLINE))

    @cached_property
    def metrics(self) -> pd.DataFrame:
        found = scores.each_way(self.found)
        return self._over_models(
            scores.spread_of_all(self.of_units, self.ways), lambda row: (found[row["empty"]], row["metric"])
        )

    @cached_property
    def strata(self) -> pd.DataFrame:
        of_case = self.found["case"].map(strata.of_cases(self.of_units))
        return self._over_models(
            strata.table(self.of_units), lambda row: (self.found[of_case == row["stratum"]], HEADLINE)
        )

    def _over_models(
        self, table: pd.DataFrame, measured: Callable[[pd.Series], tuple[pd.DataFrame, str]]
    ) -> pd.DataFrame:
        """`table` with the intervals of groups over cases and seeds. measured: row -> the scores and the column behind it."""
        for at, row in table.iterrows():
            labels = self.units[row["predictions"]]
            if len(labels) > 1:
                found, column = measured(row)
                values = comparisons.matrix(found, labels, space=row["space"], region=row["region"], column=column)
                table.loc[at, ["low", "high"]] = statistics.interval_of_mean(values.to_numpy())
        return table

    def csv_files(self, output: Path) -> list[Path]:
        """Writes scores.csv, summary.csv, metrics.csv, strata.csv, comparison.csv if units are compared, and summary.md."""
        parts = (self.found, self.summary, self.metrics, self.strata, self.comparison)
        written = []
        for name, table in zip(_TABLES, parts, strict=True):
            if len(table):
                written.append(output / f"{name}.csv")
                tables.write_csv(table.assign(rules=self.rules) if self.rules else table, written[-1])
        written.append(output / "summary.md")
        atomic_files.write_text(written[-1], scores.to_markdown(self.summary, self.note))
        return written

    @cached_property
    def comparison(self) -> pd.DataFrame:
        """The comparison of the units, in native space if there is one."""
        space = "native" if (self.found["space"] == "native").any() else "cube"
        return comparisons.table(self.found, self.units, margin=self.margin, space=space, seeds=self.seeds)

    def figures(self, output: Path) -> list[Path]:
        """Draws the box plots of the columns that have one, and the paired differences."""
        written = []
        for name in COLUMNS.names:
            for space in COLUMNS[name].spaces if COLUMNS[name].box_plot else ():
                if (self.found["space"] == space).any():
                    path = output / f"{name}_{space}.png"
                    written += box_plot.draw(self.of_units, space, path, column=name)
        table = self.comparison
        if len(table):
            written += paired.draw(self.found, table, self.units, output / "paired.png", margin=self.margin)
        return written

    def page(self, output: Path, written: Sequence[Path]) -> Path:
        """Writes report.html, with the figures among `written`."""
        shown = {path.stem: path for path in written if path.suffix == ".png"}
        pictures = [page.figure(path, name.replace("_", " ")) for name, path in shown.items() if name not in _ELSEWHERE]
        parts = {
            "Summary": _summary(self.summary),
            "Figures": pictures,
            "Comparison": [page.text(_COMPARISON), _table(self.comparison, four=_ENDS)] if len(self.comparison) else [],
            "By tumour size": [page.text(_STRATA), _table(self.strata, _OF_DICE)] if len(self.strata) else [],
            "Worst cases": [page.figure(shown["worst"], _WORST)] if "worst" in shown else [],
            "Cases": _cases(self.found),
            "All metrics": [page.text(_METRICS), _table(self.metrics)],
        }
        if "paired" in shown:
            parts["Comparison"].append(page.figure(shown["paired"], _PAIRED))
        sections = [Section(title, part) for title, part in parts.items() if part]
        page.write(output / "report.html", "Segmentation scores", self.note, sections, origin=self.origin)
        return output / "report.html"


_ELSEWHERE = ("worst", "paired")  # figures that have a section of their own


def _summary(frame: pd.DataFrame) -> list[str]:
    """The spread of the headline column, and a table of the other means."""
    others = [name for name in frame if name.startswith("mean_") and name not in _OF_DICE]
    return [
        page.text(_SUMMARY), _table(frame.drop(columns=others), _OF_DICE), page.text(_MEANS),
        _table(frame[[*scores.GROUP, *others]]),
    ]  # fmt: skip


def _table(frame: pd.DataFrame, more: Mapping[str, str] = MappingProxyType({}), *, four: Sequence[str] = ()) -> str:
    """A table with the titles and decimals of the metric columns. more: column -> title, of other columns. four: other columns with
    four decimals."""
    titles: dict[str, str] = {}
    decimals = {
        "both_empty": 0,
        "n": 0,
        "cases": 0,
        "differing": 0,
        "seeds": 0,
        "tests": 0,
        "p": 4,
        "p_holm": 4,
        **dict.fromkeys(four, 4),
    }
    for name in COLUMNS.names:
        for key, prefix in ((name, ""), (scores.CEILING + name, "ceiling of ")):
            title = prefix + COLUMNS[name].title
            titles |= {key: title, f"mean_{key}": f"mean {title}"}
            decimals |= {one: COLUMNS[name].decimals for one in (key, f"mean_{key}") if one not in decimals}
    return page.table(frame, titles={**titles, **more}, decimals=decimals)


def _cases(found: pd.DataFrame) -> list[str]:
    """The table of cases, with the ceilings of the headline column alone."""
    others = [name for name in found if name.startswith(scores.CEILING) and name != scores.CEILING + HEADLINE]
    return [*([page.text(_CASES)] if others else []), _table(found.drop(columns=others))]


_SUMMARY = (
    "Dice: mean, 95 % bootstrap interval (over cases; of a group over cases and seeds), spread. Empty counted and left out: "
    "cases in which a region is empty in truth and prediction count as 1, or not at all; both empty: how many there are. Ceiling: "
    "what the truth itself scores, brought to the grid of the predictions and back as they are."
)
_MEANS = "The means of all other columns."
_OF_DICE = {
    "mean": "mean Dice", "low": "95 % from", "high": "to", f"mean_{scores.CEILING}{HEADLINE}": "ceiling of Dice",
    "std": "std of Dice", "mean_empty_counted": "Dice, empty counted", "mean_empty_left_out": "Dice, empty left out",
}  # fmt: skip
"""Column of a summary -> its title, if the column is of Dice."""
_COMPARISON = (
    "Second minus first, the same cases. p: Wilcoxon's signed-rank test; ranks: which side the signed ranks favour, from -1 to 1. "
    "differing: cases that are not equal; only they count in the test. The tests of differences in this table are one family, "
    "those of equality another; each is corrected after Holm. Better: p_holm below 0.05, and the 95 % interval and the "
    "ranks on the same side of 0. Equal: two one-sided tests within the margin. One seed: the models of a side have one seed, or "
    "their seeds are unknown, so the verdict is about these cases alone."
)
_ENDS = ("low", "high")
"""The columns that decide: three decimals do not tell an end of 0.0002 from 0."""
_PAIRED = "Dots: cases; bar: 95 % interval of the mean; band: margin within which both count as equal."
_STRATA = "Thirds of the cases by the volume of their true enhancing tumour."
_WORST = "The cases with the lowest mean Dice over regions; full lines: truth, broken lines: prediction."
_CASES = "Other ceilings than that of Dice: scores.csv."
_METRICS = "Every metric; empty: how regions that are empty in truth and prediction count."


def write(report: ScoreReport, output: Path, *, plan: ScoringPlan | None = None, worst: int = 0) -> list[Path]:
    """Writes all files of `report` into `output`; returns them. plan, worst: draw so many of the plan's worst cases, too."""
    written = [*report.csv_files(output), *report.figures(output)]
    if plan is not None and worst:
        tiles = _worst(report.found, plan, worst)
        if tiles:
            several = " predictions" if report.found["predictions"].nunique() > 1 else ""
            heading = f"The {len(tiles)} worst{several} of {report.found['case'].nunique()} cases"
            written.append(mosaic.draw(tiles, output / "worst.png", title=heading, modality=plan.channel.upper()))
    return [report.page(output, written), *written]


def remove_others(output: Path, written: Sequence[Path]) -> None:
    """Removes files that an earlier call has left in `output` and that this one has not written again."""
    for name in names() - {path.name for path in written}:
        (output / name).unlink(missing_ok=True)


def names() -> set[str]:
    """Every name that `write` may give to a file."""
    plots = {f"{name}_{space}" for name in COLUMNS.names if COLUMNS[name].box_plot for space in COLUMNS[name].spaces}
    figures = {f"{name}.{ending}" for name in (*plots, "paired") for ending in ("png", "pdf")}
    return {*(f"{name}.csv" for name in _TABLES), "summary.md", "report.html", "worst.png", *figures}


def _worst(found: pd.DataFrame, plan: ScoringPlan, count: int) -> list[mosaic.Tile]:
    """The predictions with the lowest mean Dice over regions; a case without a prediction or images is not shown."""
    native = found[found["space"] == "native"]
    means = native.groupby(["predictions", "case"])[HEADLINE].mean().dropna().sort_values(kind="stable")
    jobs = {inputs.shown(one.case.id): one for one in plan.jobs}
    tiles: list[mosaic.Tile] = []
    for (label, case), dice in means.items():
        source = next(one for one in jobs[case].sources if one.label == label)
        if source.native is not None and jobs[case].case.images and len(tiles) < count:
            try:
                tiles.append(_tile(jobs[case], source, plan, f"{label}, {case}: {dice:.3f}"))
            except (DataError, InputError) as error:  # the truth alone was needed so far, and everything is scored
                say(tables.printable(f"note: no picture of {case}: {error}"))
    return tiles


def _tile(one: job.ScoringJob, source: job.Source, plan: ScoringPlan, title: str) -> mosaic.Tile:
    images, affine = load_images(one.case)
    image = np.ascontiguousarray(images[..., one.case.channels.index(plan.channel)])
    truth = load_truth(one.case, plan.schema, image.shape, affine)
    assert truth is not None  # a job has one
    assert source.native is not None
    found = plain_maps.read(source.native, source.coding, image.shape, affine, like="the images")
    masks, predicted = (
        codings.masks_of(labels, schema, plan.drawn)
        for labels, schema in ((truth, plan.schema), (found, source.coding))
    )
    both = [region for region in plan.drawn if region in masks and region in predicted]
    return mosaic.Tile(
        image=image, truth={region: masks[region] for region in both}, prediction={region: predicted[region] for region in both},
        title=title,
    )  # fmt: skip
