"""Results over emulated links -> rows, table, CSV, and whether each aim was met. No TensorFlow here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from experiments.links import calibration, machines
from experiments.links.calibration import Calibration, Curve
from experiments.links.counters import COPY_SECONDS, STEP_SECONDS
from experiments.links.link import Link
from experiments.links.study import METHODS
from experiments.overhead import parts
from experiments.overhead.parts import MIB, Result
from experiments.overhead.results import Promise
from experiments.scalability.tables import markdown, write_csv
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
    """A method under a limit over a link. link: as it was asked for; word: of the link here."""

    link: str
    word: str
    result: Result
    share: float | None
    """What it takes (`taken_mib`) of the smallest limit without LMS."""

    @property
    def outcome(self) -> str:
        return MODEL_ONLY if self.result.outcome == "predicted" else self.result.outcome

    @property
    def predicted_ratio(self) -> float | None:
        """Step seconds under the plan / without LMS, both predicted."""
        return self._predicted("predicted_step_seconds")

    @property
    def bound_ratio(self) -> float | None:
        """Seconds of the plan's lower bound / of a step without LMS, both predicted."""
        return self._predicted("lower_bound_seconds")

    def _predicted(self, name: str) -> float | None:
        seconds, without = (self.result.report.get(one) for one in (name, "unedited_step_seconds"))
        return seconds / without if seconds and without else None

    def rate(self, way: str) -> float | None:
        """Bytes per second achieved; way: "out" or "in". None where nothing moved."""
        moved, seconds = (
            self.result.traffic.get(name, 0.0) for name in (f"swapped_{way}_bytes", f"swap_{way}_seconds")
        )
        return moved / seconds if seconds else None

    @property
    def curve(self) -> Curve | None:
        """For `calibration`; None where nothing was measured."""
        limit = f"{self.result.part.limit_mib:,} MiB" if self.result.part.limit_mib else "no limit"
        name = f"{self.result.part.method}, {limit}, {self.word}"
        return calibration.curve(name, self.result.report, self.result.ratio) if self.result.trained else None

    @property
    def copy_share(self) -> float | None:
        """Of the processor time of a step: what the copies took."""
        copies, step = (self.result.traffic.get(name) for name in (COPY_SECONDS, STEP_SECONDS))
        return copies / step if copies is not None and step else None


class Found:
    """What was measured of one model at one resolution, and what its links are here (`study.read_rates`)."""

    def __init__(self, results: Iterable[Result], model: str, resolution: int, rates: Mapping[str, Any]) -> None:
        self.model, self.resolution, self.rates = model, resolution, rates
        self.results = [r for r in results if (r.part.model, r.part.resolution) == (model, resolution)]

    def smallest_mib(self, method: str) -> int | None:
        """The smallest hard limit that trained, over no link."""
        limits = [r.part.limit_mib for r in self.results if r.trained and r.part.method == method and not r.part.link]
        return min((limit for limit in limits if limit is not None), default=None)

    def rows(self, link: str) -> list[Row]:
        """Of one link, by limit and method. What does not move bytes belongs to every link."""
        word, without = self.rates[link]["word"], self.smallest_mib(parts.NONE)
        mine = [r for r in self.results if r.part.link == word or r.part.method == parts.RECOMPUTE_CHEAP]
        rows = [
            Row(link=link, word=word, result=r, share=taken_mib(r) / without if without else None)
            for r in mine if r.part.method in METHODS
        ]  # fmt: skip
        return sorted(rows, key=lambda row: (-taken_mib(row.result), METHODS.index(row.result.part.method)))

    def at(self, link: str, method: str, share: float) -> Row | None:
        """The row at a share; None where there is none."""
        near = [
            row for row in self.rows(link)
            if row.result.part.method == method and row.share and abs(row.share - share) < SHARE_WIDTH
        ]  # fmt: skip
        return near[0] if near else None

    @cached_property
    def calibrated(self) -> Calibration | None:
        """Of LMS's run with the most memory and that with the least, over the first link that was emulated. None where there are
        no two."""
        for name in self.links:
            ours = [row for row in self.rows(name) if row.result.part.method == parts.LMS and row.result.part.limit_mib]
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
        """Those that something was measured or predicted over."""
        words = {r.part.link for r in self.results}
        return [name for name, rate in self.rates.items() if isinstance(rate, dict) and rate["word"] in words]


def taken_mib(result: Result) -> float:
    """The hard limit; where there is none the peak, which is predicted where nothing ran. 0 where neither is known."""
    peak = max(result.peaks_bytes, default=result.report.get("predicted_peak_bytes", 0))
    return result.part.limit_mib or peak / MIB


def text(found: Found) -> str:
    """Markdown of one resolution: the links, the floors, a table for each link."""
    sections = [f"## {found.model} at {found.resolution}³", _floors(found)]
    for name in found.links:
        link = Link.parse(found.rates[name]["word"])
        sections += [f"### {machines.title(name)}: {link} here", _table(found, found.rows(name))]
    return "\n\n".join(sections)


def _floors(found: Found) -> str:
    limits = {
        "without LMS": found.smallest_mib(parts.NONE),
        "with LMS, swapped tensors copied back": found.smallest_mib(parts.COPIED),
        "with LMS, read in place": found.smallest_mib(parts.LMS),
    }
    told = "; ".join(
        f"{what} {'not measured' if limit is None else f'{limit:,} MiB'}" for what, limit in limits.items()
    )
    seconds, flops = (found.rates.get(name) for name in ("step_seconds", "step_flops"))
    step = (
        f" A step without LMS: {format_seconds(seconds)}, {flops / seconds / 1e9:,.0f} GFLOP/s."
        if seconds and flops
        else ""
    )
    return f"Smallest limits that trained: {told}.{step}"


def _table(found: Found, rows: Sequence[Row]) -> str:
    head = (
        "hard limit", "share", "method", "result", "x no LMS", "predicted", "bound", "step", "predicted", "peak", "predicted",
        "swapped out", "achieved out, in", "copies' processor time", "calibrated",
    )  # fmt: skip
    return markdown(head, [_cells(found, row) for row in rows])


def _cells(found: Found, row: Row) -> list[str]:
    result, report = row.result, row.result.report
    seconds, peak = report.get("predicted_step_seconds"), report.get("predicted_peak_bytes")
    rates = [row.rate(way) for way in ("out", "in")]
    copies = result.traffic.get(COPY_SECONDS)
    swaps = row.outcome in ("trained", MODEL_ONLY) and report.get("swapped_out_bytes")
    return [
        f"{result.part.limit_mib:,} MiB" if result.part.limit_mib else "none",
        _form(row.share, ".0%"),
        result.part.method,
        row.outcome + (f", {result.recoveries} recoveries" if result.recoveries else ""),
        _form(result.ratio, ".2f"),
        _form(row.predicted_ratio, ".2f"),
        _form(row.bound_ratio, ".2f"),
        "" if result.step_seconds is None else format_seconds(result.step_seconds),
        "" if seconds is None else format_seconds(seconds),
        format_size(max(result.peaks_bytes)) if result.peaks_bytes else "",
        "" if peak is None else format_size(peak),
        format_size(report["swapped_out_bytes"]) if swaps else "",
        ", ".join(f"{rate / 1e9:.2f} GB/s" for rate in rates if rate),
        "" if not copies else f"{format_seconds(copies)} ({_form(row.copy_share, '.0%')})",
        _form(found.calibrated_error(row), "+.0%"),
    ]


def records(found: Found) -> list[dict[str, object]]:
    """For the CSV."""
    return [_record(found, row) for name in found.links for row in found.rows(name)]


def _record(found: Found, row: Row) -> dict[str, object]:
    result = row.result
    known = {name: result.report.get(name) for name in COLUMNS if name in result.report}
    return known | {
        "model": found.model, "resolution": found.resolution, "link": row.link, "rate": row.word, "method": result.part.method,
        "limit_mib": result.part.limit_mib, "limit_share": row.share, "outcome": row.outcome, "ratio": result.ratio,
        "predicted_ratio": row.predicted_ratio, "bound_ratio": row.bound_ratio, "step_seconds": result.step_seconds,
        "seconds_error": result.seconds_error,
        "peak_bytes": max(result.peaks_bytes, default=None), "peak_error": result.peak_error,
        "out_bytes_per_second": row.rate("out"), "back_bytes_per_second": row.rate("in"),
        "copy_processor_seconds": result.traffic.get(COPY_SECONDS), "copy_share": row.copy_share, "recoveries": result.recoveries,
        "calibrated_error": found.calibrated_error(row), "detail": result.detail,
    }  # fmt: skip


def write_records(found: Sequence[Found], path: Path) -> None:
    """links.csv."""
    write_csv(path, COLUMNS, [record for one in found for record in records(one)])


def aims(found: Found) -> list[Promise]:
    """What the planner is to reach over these links, and what was measured."""
    here = f"{found.resolution}³, {{}}:"
    made = []
    for name in found.links:
        if not found.rates[name]["reached"]:
            continue
        start = here.format(machines.title(name))
        made += [_ratio(start, found, name, share, most) for share, most in RATIOS.get(name, {}).items()]
        if name == "pcie3":
            made.append(
                _against_tflms(f"{start} TFLMS's plan at 50% at least {SLOWER_TFLMS} times as slow as ours", found)
            )
        trained = [row for row in found.rows(name) if row.result.trained and row.result.part.method == parts.LMS]
        made.append(
            _errors(f"{start} predicted step seconds", SECONDS_ERROR, [r.result.seconds_error for r in trained])
        )
        made.append(_errors(f"{start} predicted peak", PEAK_ERROR, [r.result.peak_error for r in trained]))
    return [*made, *_calibrated(found)]


def _calibrated(found: Found) -> list[Promise]:
    """What moves no bytes belongs to every link, and counts once."""
    known = found.calibrated
    if known is None:
        return []
    rows = {row.result.part.name: row for name in found.links for row in found.rows(name)}
    factors = f"computing takes x {known.compute:.2f}, transfers x {known.link * known.compute:.2f}"
    start = f"{found.resolution}³: calibrated on two runs ({'; '.join(known.on)}: {factors}), seconds of the others"
    return [_errors(start, CALIBRATED_ERROR, [found.calibrated_error(row) for row in rows.values()])]


def _ratio(start: str, found: Found, link: str, share: float, most: float) -> Promise:
    aim, row = f"{start} at {share:.0%} of the memory at most {most:.2f} x no LMS", found.at(link, parts.LMS, share)
    if row is None or row.result.ratio is None:
        return Promise(text=aim, measured="", met=None)
    return Promise(text=aim, measured=f"{row.result.ratio:.2f} x", met=row.result.ratio <= most)


def _against_tflms(aim: str, found: Found) -> Promise:
    ours, theirs = (found.at("pcie3", method, 0.5) for method in (parts.LMS, parts.TFLMS))
    if ours is None or theirs is None or not ours.result.ratio or not theirs.result.ratio:
        told = theirs.outcome if theirs is not None and not theirs.result.trained else ""
        return Promise(text=aim, measured=told, met=None)
    factor = theirs.result.ratio / ours.result.ratio
    measured = f"{factor:.2f} ({theirs.result.ratio:.2f} x against {ours.result.ratio:.2f} x)"
    return Promise(text=aim, measured=measured, met=factor >= SLOWER_TFLMS)


def _errors(aim: str, most: float, errors: Iterable[float | None]) -> Promise:
    known = [error for error in errors if error is not None]
    worst = max(known, key=abs, default=None)
    within = sum(abs(error) <= most for error in known)
    return Promise(
        text=f"{aim} within {most:.0%} of the measured",
        measured="" if worst is None else f"{within} of {len(known)} plans, worst {worst:+.1%}",
        met=None if worst is None else abs(worst) <= most,
    )


def _form(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)
