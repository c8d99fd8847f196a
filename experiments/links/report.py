"""Results over emulated links -> rows, table, CSV, and whether each aim was met. No TensorFlow here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from lms3d.experiments.harness import methods
from lms3d.experiments.harness.part import MIB, Result, smallest_mib
from lms3d.experiments.harness.promise import Promise, all_within, at_most
from lms3d.experiments.harness.table import cell, markdown, write_csv
from lms3d.experiments.links import calibration, machines
from lms3d.experiments.links.calibration import Calibration, Curve
from lms3d.experiments.links.link import COPY_SECONDS, STEP_SECONDS, Link
from lms3d.experiments.links.study import METHODS
from lms3d.units import format_seconds, format_size

SHARE_WIDTH = 0.012
"""Limits are whole MiB, and smallest limits are known to 2.5 %: shares this near are the same."""
RATIOS = {"nvlink2": {0.5: 1.10}, "pcie3": {0.6: 1.06, 0.5: 1.06, 0.35: 1.12, 0.25: 1.30}}
"""Aims: link -> share of the memory -> step / step without LMS."""
SLOWER_TFLMS, SECONDS_ERROR, PEAK_ERROR, CALIBRATED_ERROR = 1.5, 0.07, 0.03, 0.10
MODEL_ONLY = "model only"
COLUMNS = (
    "model", "resolution", "link", "rate", "method", "limit_mib", "limit_share", "outcome", "ratio", "predicted_ratio",
    "bound_ratio", "step_seconds", "predicted_step_seconds", "seconds_error", "peak_bytes", "predicted_peak_bytes", "peak_error",
    "swapped_out_bytes", "swapped_in_bytes", "recomputed_ops", "out_bytes_per_second", "back_bytes_per_second",
    "copy_processor_seconds", "copy_share", "recoveries", "calibrated_error", "detail",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Row:
    """A method under a limit over a link. link: as it was asked for. word: of the link on this machine."""

    link: str
    word: str
    result: Result
    share: float | None
    """What the method takes (`taken_mib`) as a share of the smallest limit without LMS."""

    @property
    def outcome(self) -> str:
        return MODEL_ONLY if self.result.outcome == "predicted" else self.result.outcome

    @property
    def curve(self) -> Curve | None:
        """The run as `calibration` takes it; None if nothing was measured."""
        limit = f"{self.result.part.limit_mib:,} MiB" if self.result.part.limit_mib else "no limit"
        name = f"{self.result.part.method}, {limit}, {self.word}"
        return calibration.curve(name, self.result.report, self.result.ratio) if self.result.trained else None

    @property
    def copy_share(self) -> float | None:
        """The share of a step's processor time that the copies took."""
        copies, step = (self.result.traffic.get(name) for name in (COPY_SECONDS, STEP_SECONDS))
        return copies / step if copies is not None and step else None


class Found:
    """The results of one model at one resolution, and its links on this machine (`study.read_rates`)."""

    def __init__(self, results: Iterable[Result], model: str, resolution: int, rates: Mapping[str, Any]) -> None:
        self.model, self.resolution, self.rates = model, resolution, rates
        self.results = [r for r in results if (r.part.model, r.part.resolution) == (model, resolution)]

    def smallest_mib(self, method: str) -> int | None:
        """The smallest hard limit that trained, over no link."""
        return smallest_mib((r for r in self.results if not r.part.link), method)

    def rows(self, link: str) -> list[Row]:
        """The rows of one link, by limit and method. A method that moves no bytes belongs to every link."""
        word, without = self.rates[link]["word"], self.smallest_mib(methods.NONE)
        mine = [r for r in self.results if r.part.link == word or r.part.method == methods.RECOMPUTE_CHEAP]
        rows = [
            Row(link=link, word=word, result=r, share=taken_mib(r) / without if without else None)
            for r in mine if r.part.method in METHODS
        ]  # fmt: skip
        return sorted(rows, key=lambda row: (-taken_mib(row.result), METHODS.index(row.result.part.method)))

    def at(self, link: str, method: str, share: float) -> Row | None:
        """The row at a share of the memory; None if there is none."""
        near = [
            row for row in self.rows(link)
            if row.result.part.method == method and row.share and abs(row.share - share) < SHARE_WIDTH
        ]  # fmt: skip
        return near[0] if near else None

    @cached_property
    def calibrated(self) -> Calibration | None:
        """The calibration on LMS's runs with the most and the least memory, over the first link that was emulated. None if there
        are no two such runs."""
        for name in self.links:
            ours = [
                row for row in self.rows(name) if row.result.part.method == methods.LMS and row.result.part.limit_mib
            ]
            curves = [row.curve for row in ours if row.curve is not None]
            if self.rates[name]["reached"] and len(curves) > 1:
                return calibration.calibrate([curves[0], curves[-1]])
        return None

    def calibrated_error(self, row: Row) -> float | None:
        """Predicted / measured - 1 once calibrated; None for the two runs that it was calibrated on."""
        known, curve = self.calibrated, row.curve
        return None if known is None or curve is None or curve.name in known.on else known.error(curve)

    @property
    def links(self) -> list[str]:
        """The links that something was measured or predicted over."""
        words = {r.part.link for r in self.results}
        return [name for name, rate in self.rates.items() if isinstance(rate, dict) and rate["word"] in words]


def taken_mib(result: Result) -> float:
    """The hard limit; without one the peak, which is the predicted one if nothing ran. 0 if neither is known."""
    peak = max(result.peaks_bytes, default=result.report.get("predicted_peak_bytes", 0))
    return result.part.limit_mib or peak / MIB


def text(found: Found) -> str:
    """The Markdown of one resolution: the links, the floors, a table for each link."""
    sections = [f"## {found.model} at {found.resolution}³", _floors(found)]
    for name in found.links:
        link = Link.parse(found.rates[name]["word"])
        sections += [f"### {machines.title(name)}: {link} here", _table(found, found.rows(name))]
    return "\n\n".join(sections)


def _floors(found: Found) -> str:
    limits = {
        "without LMS": found.smallest_mib(methods.NONE),
        "with LMS, swapped tensors copied back": found.smallest_mib(methods.COPIED),
        "with LMS, read in place": found.smallest_mib(methods.LMS),
    }
    named = "; ".join(
        f"{what} {'not measured' if limit is None else f'{limit:,} MiB'}" for what, limit in limits.items()
    )
    seconds, flops = (found.rates.get(name) for name in ("step_seconds", "step_flops"))
    step = (
        f" A step without LMS: {format_seconds(seconds)}, {flops / seconds / 1e9:,.0f} GFLOP/s."
        if seconds and flops
        else ""
    )
    return f"Smallest limits that trained: {named}.{step}"


def _table(found: Found, rows: Sequence[Row]) -> str:
    head = (
        "hard limit", "share", "method", "result", "x no LMS", "predicted", "bound", "step", "predicted", "peak", "predicted",
        "swapped out", "achieved out, in", "copies' processor time", "calibrated",
    )  # fmt: skip
    return markdown(head, [_cells(found, row) for row in rows])


def _cells(found: Found, row: Row) -> list[str]:
    result, report = row.result, row.result.report
    rates = [result.bytes_per_second(way) for way in ("out", "in")]
    copies = result.traffic.get(COPY_SECONDS)
    swapped = report.get("swapped_out_bytes") if row.outcome in ("trained", MODEL_ONLY) else None
    return [
        cell(result.part.limit_mib, "{:,} MiB".format) or "none",
        cell(row.share, ".0%"),
        result.part.method,
        row.outcome + (f", {result.recoveries} recoveries" if result.recoveries else ""),
        cell(result.ratio, ".2f"),
        cell(result.predicted_ratio(), ".2f"),
        cell(result.predicted_ratio("lower_bound_seconds"), ".2f"),
        cell(result.step_seconds, format_seconds),
        cell(report.get("predicted_step_seconds"), format_seconds),
        cell(max(result.peaks_bytes, default=None), format_size),
        cell(report.get("predicted_peak_bytes"), format_size),
        cell(swapped or None, format_size),
        ", ".join(f"{rate / 1e9:.2f} GB/s" for rate in rates if rate),
        f"{format_seconds(copies)} ({cell(row.copy_share, '.0%')})" if copies else "",
        cell(found.calibrated_error(row), "+.0%"),
    ]


def _record(found: Found, row: Row) -> dict[str, object]:
    result = row.result
    return result.record() | {
        "link": row.link, "rate": row.word, "limit_share": row.share, "outcome": row.outcome,
        "bound_ratio": result.predicted_ratio("lower_bound_seconds"), "peak_bytes": max(result.peaks_bytes, default=None),
        "out_bytes_per_second": result.bytes_per_second("out"), "back_bytes_per_second": result.bytes_per_second("in"),
        "copy_processor_seconds": result.traffic.get(COPY_SECONDS), "copy_share": row.copy_share,
        "calibrated_error": found.calibrated_error(row),
    }  # fmt: skip


def write_records(found: Sequence[Found], path: Path) -> None:
    """Writes links.csv."""
    rows = [_record(one, row) for one in found for name in one.links for row in one.rows(name)]
    write_csv(path, COLUMNS, rows)


def aims(found: Found) -> list[Promise]:
    """What the planner should reach over these links, and what was measured."""
    here = f"{found.resolution}³, {{}}:"
    made = []
    for name in found.links:
        if not found.rates[name]["reached"]:
            continue
        start = here.format(machines.title(name))
        made += [_ratio(start, found, name, share, most) for share, most in RATIOS.get(name, {}).items()]
        if name == "pcie3":
            aim = f"{start} TFLMS's plan at 50% at least {SLOWER_TFLMS} times as slow as ours"
            made.append(_against_tflms(aim, found))
        trained = [r.result for r in found.rows(name) if r.result.trained and r.result.part.method == methods.LMS]
        made += [
            _errors(f"{start} predicted step seconds", SECONDS_ERROR, [r.seconds_error for r in trained]),
            _errors(f"{start} predicted peak", PEAK_ERROR, [r.peak_error for r in trained]),
        ]
    return [*made, *_calibrated(found)]


def _calibrated(found: Found) -> list[Promise]:
    """The aim for predictions calibrated on two runs. A method that moves no bytes belongs to every link, and counts once."""
    known = found.calibrated
    if known is None:
        return []
    rows = {row.result.part.name: row for name in found.links for row in found.rows(name)}
    factors = f"computing takes x {known.compute:.2f}, transfers x {known.link * known.compute:.2f}"
    start = f"{found.resolution}³: calibrated on two runs ({'; '.join(known.on)}: {factors}), seconds of the others"
    return [_errors(start, CALIBRATED_ERROR, [found.calibrated_error(row) for row in rows.values()])]


def _ratio(start: str, found: Found, link: str, share: float, most: float) -> Promise:
    aim, row = f"{start} at {share:.0%} of the memory at most {most:.2f} x no LMS", found.at(link, methods.LMS, share)
    return at_most(aim, None if row is None else row.result.ratio, most)


def _against_tflms(aim: str, found: Found) -> Promise:
    ours, theirs = (found.at("pcie3", method, 0.5) for method in (methods.LMS, methods.TFLMS))
    if ours is None or theirs is None or not ours.result.ratio or not theirs.result.ratio:
        return Promise(text=aim, measured=theirs.outcome if theirs is not None and not theirs.result.trained else "")
    factor = theirs.result.ratio / ours.result.ratio
    measured = f"{factor:.2f} ({theirs.result.ratio:.2f} x against {ours.result.ratio:.2f} x)"
    return Promise(text=aim, measured=measured, met=factor >= SLOWER_TFLMS)


def _errors(aim: str, most: float, errors: Iterable[float | None]) -> Promise:
    return all_within(f"{aim} within {most:.0%} of the measured", most, errors, "+.1%")
