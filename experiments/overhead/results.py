"""Results -> tables and CSV. No TensorFlow here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from lms3d.experiments.harness import methods, table
from lms3d.experiments.harness.part import MIB, Result, smallest_mib
from lms3d.experiments.harness.table import cell
from lms3d.experiments.overhead.schedule import SWEEP_MODELS, SWEEP_STEPS
from lms3d.units import format_seconds, format_size

ORDER = (
    methods.NONE, methods.KERAS, methods.XLA, methods.LMS, methods.COPIED, methods.TFLMS, *methods.UNIFORM, methods.KERAS_REMAT,
    methods.RECOMPUTE_GRAD, *methods.TORCH_METHODS,
)  # fmt: skip
COLUMNS = (
    "model", "resolution", "method", "limit_mib", "limit_share", "outcome", "steps", "step_seconds", "ratio", "peak_bytes",
    "peak_share", "resident_bytes", "predicted_peak_bytes", "predicted_step_seconds", "peak_error", "seconds_error", "ratio_error",
    "swapped_out_bytes", "recomputed_ops", "planning_seconds", "recoveries", "loss", "digest", "wall_seconds", "detail",
)  # fmt: skip
HEAD = (
    "method", "hard limit", "of smallest without", "result", "step", "x no LMS", "peak", "resident", "predicted peak",
    "predicted step", "swapped out", "recoveries",
)  # fmt: skip
SWEEP_HEAD = ("model", "hard limit", "result", "predicted peak", "measured peak", "predicted / measured", "recoveries")
SHARE_WIDTH = 0.01


class Comparison:
    """All results of one model at one resolution."""

    def __init__(self, results: Iterable[Result], model: str, resolution: int) -> None:
        self.model, self.resolution = model, resolution
        place = (model, resolution)
        self.results = [r for r in results if (r.part.model, r.part.resolution) == place and r.part.method in ORDER]
        self.results.sort(key=lambda r: (ORDER.index(r.part.method), -(r.part.limit_mib or 1 << 40), r.part.timed))

    def of(self, method: str) -> list[Result]:
        """The results of one method."""
        return [r for r in self.results if r.part.method == method]

    def timed(self, method: str) -> list[Result]:
        """The results of one method that have a ratio."""
        return [r for r in self.of(method) if r.ratio is not None]

    def smallest_mib(self, method: str) -> int | None:
        """The smallest hard limit that trained."""
        return smallest_mib(self.results, method)

    def failed_mib(self, method: str) -> int | None:
        """The largest hard limit below that one that did not train."""
        smallest = self.smallest_mib(method) or 1 << 40
        failed = [r.part.limit_mib for r in self.of(method) if not r.trained and r.outcome != "failed"]
        return max((limit for limit in failed if limit and limit < smallest), default=None)

    def share(self, size_bytes: float | None) -> float | None:
        """A size as a share of the smallest limit without LMS."""
        without = self.smallest_mib(methods.NONE)
        return None if size_bytes is None or without is None else size_bytes / MIB / without

    def at_share(self, share: float) -> list[Result]:
        """The results of LMS at a share of the smallest limit without it, those that have a ratio first."""
        near = [r for r in self.of(methods.LMS) if abs((self.share(r.part.limit_bytes) or 0) - share) < SHARE_WIDTH]
        return sorted(near, key=lambda r: r.ratio is None)


def memory_bytes(result: Result) -> int | None:
    """What a method takes: the hard limit that it was given, else the allocator's peak."""
    return result.part.limit_bytes or result.peak_bytes


def swept(results: Iterable[Result], resolution: int) -> list[Result]:
    """The results of the sweep, whose cubes have sides that follow from `resolution`, by model and limit."""
    sides = {model: int(factor * resolution) for model, factor in SWEEP_MODELS.items()}
    found = [
        r
        for r in results
        if r.part.method == methods.LMS
        and not r.part.timed
        and r.part.resolution == sides.get(r.part.model)
        and r.part.warm_up + r.part.steps == SWEEP_STEPS
    ]
    return sorted(found, key=lambda r: (r.part.model, r.part.limit_mib or 0))


def tables(results: Sequence[Result], model: str, resolutions: Iterable[int]) -> list[str]:
    """A section of Markdown for each resolution."""
    sections = []
    for resolution in resolutions:
        here = Comparison(results, model, resolution)
        rows = [_cells(here, r) for r in here.results]
        sections.append(f"## {model} at {resolution}³\n\n{table.markdown(HEAD, rows)}")
    return sections


def sweep_table(results: Sequence[Result], resolution: int) -> str:
    """A section of Markdown with every run of the sweep."""
    rows = [
        [
            f"{r.part.model} {r.part.resolution}", cell(r.part.limit_bytes, format_size), r.outcome,
            cell(r.report.get("predicted_peak_bytes"), format_size), cell(r.peak_bytes, format_size),
            cell(r.peak_error, lambda error: f"{1 + error:.2f}"), str(r.recoveries),
        ]
        for r in swept(results, resolution)
    ]  # fmt: skip
    return f"## Sweep from floor to fit\n\n{table.markdown(SWEEP_HEAD, rows)}"


def _cells(here: Comparison, r: Result) -> list[str]:
    limit, predicted = r.part.limit_bytes, r.part.method == methods.NONE or r.has_plan
    swapped = r.report.get("swapped_out_bytes") or None
    return [
        r.part.method, cell(limit, format_size) or "none", cell(here.share(limit), ".0%"), r.outcome,
        cell(r.step_seconds if r.part.timed else None, format_seconds), cell(r.ratio, ".2f"), cell(r.peak_bytes, format_size),
        cell(r.resident_bytes, format_size), cell(r.peak_error if predicted else None, "+.0%"),
        cell(r.seconds_error if predicted and r.part.timed else None, "+.0%"),
        cell(swapped if predicted else None, format_size), str(r.recoveries or ""),
    ]  # fmt: skip


def write_csv(results: Sequence[Result], path: Path) -> None:
    """A row for each part, model by model and resolution by resolution."""
    places = list(dict.fromkeys((r.part.model, r.part.resolution) for r in results))
    compared = [Comparison(results, *place) for place in places]
    rows = [_record(here, r) for here in compared for r in here.results]
    table.write_csv(path, COLUMNS, rows, lambda value: round(value, 4))


def _record(here: Comparison, r: Result) -> dict[str, object]:
    shares = {"limit_share": here.share(r.part.limit_bytes), "peak_share": here.share(r.peak_bytes)}
    return r.record() | shares | {"steps": r.part.warm_up + r.part.steps}
