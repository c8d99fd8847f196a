"""What steps take under limits, by method, on this machine's own swap tier and over emulated links: results -> tables and CSV. No
TensorFlow here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from lms3d.experiments.harness import methods, table
from lms3d.experiments.harness.part import MIB, PartResult, smallest_mib
from lms3d.experiments.harness.table import cell
from lms3d.experiments.links.link import COPY_SECONDS, STEP_SECONDS
from lms3d.units import format_seconds, format_size

ORDER = (
    methods.NONE, methods.KERAS, methods.XLA, methods.LMS, methods.COPIED, methods.TFLMS, *methods.UNIFORM, methods.KERAS_REMAT,
    methods.RECOMPUTE_GRAD, *methods.TORCH_METHODS,
)  # fmt: skip
COLUMNS = (
    "model", "resolution", "link", "rate", "method", "limit_mib", "limit_share", "outcome", "steps", "first_seconds",
    "step_seconds", "ratio", "predicted_ratio", "bound_ratio", "peak_bytes", "peak_share", "resident_bytes", "predicted_peak_bytes",
    "predicted_step_seconds", "peak_error", "seconds_error", "ratio_error", "swapped_out_bytes", "swapped_in_bytes",
    "recomputed_ops", "slabs", "out_bytes_per_second", "in_bytes_per_second", "copy_processor_seconds", "copy_share",
    "planning_seconds", "recoveries", "loss", "digest", "wall_seconds", "detail",
)  # fmt: skip
NOTES = """\
Step: the median. x no LMS: the median over the steps of (seconds / seconds of a step without LMS, taken just before in another
process; before and after, if that process would hold more than a third of the machine's memory). Share: the limit, or the peak if
there is no limit, relative to the smallest limit that trained without LMS. Peak: the most bytes that TensorFlow's allocator had
handed out, weights included. Resident: the most anonymous memory of the process during a step above what it had after importing the
framework; it contains all that Python holds of the traced graph. Predicted: by the planner, before the first step, and in brackets
predicted / measured - 1; the predicted x no LMS is relative to its own prediction without LMS. Bound: the longest of the plan's
computing without what is run again, its bytes out and its bytes in, as x no LMS: no step with these transfers is shorter.
LMS and TFLMS keep their first plan (`adapt=False`) unless it runs out of memory: a recovery."""


class MethodComparison:
    """All results of one model at one resolution. rates: name of a link -> its `word` here (`emulated_links`)."""

    def __init__(
        self, results: Iterable[PartResult], model: str, resolution: int, rates: Mapping[str, Any] | None = None
    ) -> None:
        self.model, self.resolution, self.rates = model, resolution, rates or {}
        place = (model, resolution)
        self.results = [r for r in results if (r.part.model, r.part.resolution) == place and r.part.method in ORDER]
        self.results.sort(key=lambda r: (-(r.part.limit_mib or 1 << 40), ORDER.index(r.part.method), r.part.timed))

    @property
    def links(self) -> list[str]:
        """The links that something was measured over."""
        words = {r.part.link for r in self.results}
        return [name for name, rate in self.rates.items() if isinstance(rate, dict) and rate["word"] in words]

    def word(self, link: str) -> str:
        """The link on this machine; "" for "", the machine's own swap tier."""
        return str(self.rates[link]["word"]) if link else ""

    def over(self, link: str) -> list[PartResult]:
        """The results over a link. What moves no bytes was measured once, and belongs to every link."""
        word, everywhere = self.word(link), [methods.RECOMPUTE_CHEAP] if link else []
        return [r for r in self.results if r.part.link == word or r.part.method in everywhere]

    def of(self, method: str, link: str = "") -> list[PartResult]:
        """The results of one method."""
        return [r for r in self.over(link) if r.part.method == method]

    def smallest_mib(self, method: str) -> int | None:
        """The smallest hard limit that trained, over no link."""
        return smallest_mib(self.over(""), method)

    def failed_mib(self, method: str) -> int | None:
        """The largest hard limit below that one that did not train."""
        smallest = self.smallest_mib(method) or 1 << 40
        failed = [r.part.limit_mib for r in self.of(method) if not r.trained and r.outcome != "failed"]
        return max((limit for limit in failed if limit and limit < smallest), default=None)

    def share(self, size_bytes: float | None) -> float | None:
        """A size as a share of the smallest limit without LMS."""
        without = self.smallest_mib(methods.NONE)
        return None if size_bytes is None or without is None else size_bytes / MIB / without

    def table(self, link: str = "") -> str:
        """The results over a link, as Markdown. Columns that are empty throughout are left out."""
        return self.table_of(self.over(link), [name for name in SHOWN if name != "cube"])

    def table_of(self, results: Iterable[PartResult], names: Sequence[str]) -> str:
        """These columns of SHOWN as Markdown, except any that is empty throughout."""
        return table.filled(names, [[SHOWN[name](self, r) for name in names] for r in results])

    def ratio(self, r: PartResult) -> float | None:
        """Step time / that of a step without LMS: of the neighbour beside it, or else of the process whose steps were timed."""
        plain = [one for one in self.results if one.part.method == methods.NONE]
        usual = [one for one in plain if one.part.workspace_mib is None]
        alike = (
            plain if len({one.part.workspace_mib for one in plain}) == 1 else []
        )  # else no ratio, rather than to any of them
        none = next((one for one in usual or alike if one.step_seconds), None)
        if r.ratio is not None or not r.part.profiled or none is None or r.step_seconds is None:
            return r.ratio
        return r.step_seconds / (none.step_seconds or 1.0)

    def ratio_within(self, r: PartResult) -> float | None:
        """Step time / that of the process without LMS that has the same workspace of cuDNN; None if there is none."""
        alike = [o for o in self.results if o.part.method == methods.NONE and o.workspace_mib == r.workspace_mib]
        none = next((o.step_seconds for o in alike if o.step_seconds and r.workspace_mib), None)
        return r.step_seconds / none if none and r.step_seconds else None

    def smallest_limits(self) -> str:
        """The smallest limits that trained, and the largest below them that failed, as a sentence."""
        found = []
        for what, method in (
            ("without LMS", methods.NONE),
            ("with LMS, swapped tensors copied back", methods.COPIED),
            ("with LMS, read in place", methods.LMS),
        ):
            limit, failed = self.smallest_mib(method), self.failed_mib(method)
            share = "" if method == methods.NONE or limit is None else cell(self.share(limit * MIB), ", {:.1%}".format)
            below = cell(failed, ", {:,} fails".format)
            found.append(f"{what} " + ("not measured" if limit is None else f"{limit:,} MiB{share}{below}"))
        return f"Smallest limits that trained: {'; '.join(found)}."

    def same_bits(self) -> str:
        """Whether the methods that edit the same step give the same weights after three steps; "" if nothing can be said."""
        whole = [r for method in methods.SAME_NUMBERS for r in self.of(method) if not r.report.get("slabs")]
        digests = [r.digest for r in whole if r.digest]
        if len(digests) < 2:
            return ""
        same = "the same bits in all" if len(set(digests)) == 1 else f"{len(set(digests))} different ones in"
        return f"Weights after three steps: {same} {len(digests)} runs that slice nothing."


def memory_bytes(result: PartResult) -> int | None:
    """What a method takes: the hard limit that it was given, else the allocator's peak."""
    return result.part.limit_bytes or result.peak_bytes


def copy_share(result: PartResult) -> float | None:
    """The share of a step's processor time that the copies over an emulated link took."""
    copies, step = (result.traffic.get(name) for name in (COPY_SECONDS, STEP_SECONDS))
    return copies / step if copies is not None and step else None


def _outcome(result: PartResult) -> str:
    why = f": {result.detail[:80]}" if result.outcome in ("failed", "not possible") else ""
    return result.outcome + why + (f", {result.recoveries} recoveries" if result.recoveries else "")


def _measured(result: PartResult, seconds: Any) -> Any:
    """The seconds of a step; None for parts that only tell whether they train."""
    return seconds if result.part.timed or result.part.profiled else None


def _predicted(value: float | None, error: float | None, form: Callable[[float], str]) -> str:
    return cell(value, form) + cell(error, " ({:+.0%})".format)


def _copies(result: PartResult) -> str:
    copies = result.traffic.get(COPY_SECONDS)
    return f"{format_seconds(copies)} ({cell(copy_share(result), '.0%')})" if copies else ""


def _moved(result: PartResult, way: str) -> str:
    """The bytes per profiled step, and the rate."""
    moved, rate = (result.profile.get(f"{way}_{name}") for name in ("bytes", "bytes_per_second"))
    return f"{format_size(moved)} at {rate / 1e9:.3g} GB/s" if moved and rate else ""


SHOWN: dict[str, Callable[[MethodComparison, PartResult], str]] = {
    "cube": lambda here, r: f"{r.part.resolution}³{'' if r.part.precision == 'float32' else f', {r.part.precision}'}",
    "hard limit": lambda here, r: cell(r.part.limit_bytes, format_size) or "none",
    "share": lambda here, r: cell(here.share(memory_bytes(r)), ".0%"),
    "method": lambda here, r: f"{r.part.method}{', deterministic' if r.part.deterministic else ''}",
    "result": lambda here, r: _outcome(r),
    "workspace": lambda here, r: r.workspace_mib and f"{r.workspace_mib} MiB",
    "step": lambda here, r: cell(_measured(r, r.step_seconds), format_seconds),
    "x no LMS": lambda here, r: cell(here.ratio(r), ".2f"),
    "x same workspace": lambda here, r: cell(here.ratio_within(r), ".2f"),
    "predicted x": lambda here, r: cell(r.predicted_ratio(), ".2f"),
    "bound": lambda here, r: cell(r.predicted_ratio("lower_bound_seconds"), ".2f"),
    "predicted step": lambda here, r: _predicted(
        _measured(r, r.report.get("predicted_step_seconds")), _measured(r, r.seconds_error), format_seconds
    ),
    "peak": lambda here, r: cell(r.peak_bytes, format_size),
    "predicted peak": lambda here, r: _predicted(r.report.get("predicted_peak_bytes"), r.peak_error, format_size),
    "resident": lambda here, r: cell(r.resident_bytes, format_size),
    "busy": lambda here, r: cell(r.profile.get("busy_share"), ".0%"),
    "overlap": lambda here, r: cell(r.profile.get("overlap_share"), ".0%"),
    "moved out": lambda here, r: _moved(r, "out"),
    "moved in": lambda here, r: _moved(r, "in"),
    "swapped out": lambda here, r: cell(r.report.get("swapped_out_bytes") or None, format_size),
    "recomputed": lambda here, r: str(r.report.get("recomputed_ops") or ""),
    "slabs": lambda here, r: r.slabs,
    "achieved out, in": lambda here, r: ", ".join(
        f"{rate / 1e9:.2f} GB/s" for way in ("out", "in") if r.part.link and (rate := r.bytes_per_second(way))
    ),
    "copies' processor time": lambda here, r: _copies(r),
}
"""The columns of the tables: name -> what stands there."""


def records(places: Iterable[tuple[MethodComparison, str]]) -> list[dict[str, object]]:
    """A record with COLUMNS for each result of each comparison over each of its links; "" is the machine's own tier."""
    return [_record(here, r, link) for here, link in places for r in here.over(link)]


def _record(here: MethodComparison, r: PartResult, link: str) -> dict[str, object]:
    return r.record() | {
        "link": link, "rate": here.word(link), "steps": r.part.warm_up + r.part.steps,
        "limit_share": here.share(r.part.limit_bytes), "peak_share": here.share(r.peak_bytes),
        "bound_ratio": r.predicted_ratio("lower_bound_seconds"), "out_bytes_per_second": r.bytes_per_second("out"),
        "in_bytes_per_second": r.bytes_per_second("in"), "copy_processor_seconds": r.traffic.get(COPY_SECONDS),
        "copy_share": copy_share(r),
    }  # fmt: skip
