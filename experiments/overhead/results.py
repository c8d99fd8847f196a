"""Results -> table, CSV, and whether each promise was kept. No TensorFlow here."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.overhead import parts
from experiments.overhead.parts import MIB, Part, Result
from experiments.overhead.schedule import SWEEP_MODELS, SWEEP_STEPS
from lms3d.files import replacing
from lms3d.units import format_seconds, format_size

SMALLEST_SHARE = 0.30
STEP_RATIOS = {0.50: 1.10, 0.35: 1.25}
PEAK_ERROR, SECONDS_ERROR = 0.05, 0.15
SWEEP_SIZE = (12, 3)
ORDER = (
    parts.NONE, parts.KERAS, parts.XLA, parts.LMS, parts.COPIED, parts.TFLMS, *parts.UNIFORM, parts.KERAS_REMAT,
    parts.RECOMPUTE_GRAD, *parts.TORCH_METHODS,
)  # fmt: skip
COLUMNS = (
    "model", "resolution", "method", "limit_mib", "limit_share", "outcome", "steps", "step_seconds", "ratio", "peak_bytes",
    "peak_share", "resident_bytes", "predicted_peak_bytes", "predicted_step_seconds", "peak_error", "seconds_error", "ratio_error",
    "swapped_out_bytes", "recomputed_ops", "planning_seconds", "recoveries", "loss", "digest", "wall_seconds", "detail",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Promise:
    """`met`: None where it was not measured."""

    text: str
    measured: str
    met: bool | None

    def __str__(self) -> str:
        verdict = {True: "met", False: "missed", None: "not measured"}[self.met]
        return f"{self.text}: {self.measured or 'nothing'} - {verdict}"


class Comparison:
    """All results of one model at one resolution."""

    def __init__(self, results: Iterable[Result], model: str, resolution: int) -> None:
        self.model, self.resolution = model, resolution
        place = (model, resolution)
        self.results = [r for r in results if (r.part.model, r.part.resolution) == place and r.part.method in ORDER]
        self.results.sort(key=lambda r: (ORDER.index(r.part.method), -(r.part.limit_mib or 1 << 40), r.part.timed))

    def of(self, method: str) -> list[Result]:
        return [r for r in self.results if r.part.method == method]

    def smallest_mib(self, method: str) -> int | None:
        """The smallest hard limit that trained."""
        limits = [r.part.limit_mib for r in self.of(method) if r.trained and r.part.limit_mib is not None]
        return min(limits, default=None)

    def failed_mib(self, method: str) -> int | None:
        """The largest hard limit below it that did not."""
        smallest = self.smallest_mib(method)
        limits = [
            r.part.limit_mib for r in self.of(method)
            if r.part.limit_mib and not r.trained and r.outcome != "failed" and (smallest is None or r.part.limit_mib < smallest)
        ]  # fmt: skip
        return max(limits, default=None)

    def share(self, size_bytes: float | None) -> float | None:
        """Of the smallest limit without LMS."""
        without = self.smallest_mib(parts.NONE)
        return None if size_bytes is None or without is None else size_bytes / MIB / without

    def timed(self, method: str) -> list[Result]:
        """Those with a ratio."""
        return [r for r in self.of(method) if r.ratio is not None]

    def at_share(self, share: float) -> Result | None:
        """LMS, timed, at a share of the smallest limit without it."""
        found = [r for r in self.timed(parts.LMS) if abs((self.share(_limit_bytes(r.part)) or 0) - share) < 0.01]
        return found[0] if found else None


def memory_bytes(result: Result) -> int | None:
    """What a method takes: the hard limit that it was given, else the allocator's peak."""
    return _limit_bytes(result.part) or result.peak_bytes


def promises(results: Sequence[Result], model: str, resolutions: Iterable[int], sweep_resolution: int) -> list[Promise]:
    """Every promise, with what was measured."""
    made = []
    for resolution in resolutions:
        here = Comparison(results, model, resolution)
        made += [
            _smallest(here),
            *_step_ratios(here),
            *_predictions(here),
            *_others(here),
            _never_worse(here),
            _same_numbers(here),
        ]
    swept = [r for r in results if r.part.method == parts.LMS and not r.part.timed and _swept(r, sweep_resolution)]
    return [*made, _sweep(swept)]


def _smallest(here: Comparison) -> Promise:
    text = f"{here.resolution}³: smallest limit with LMS at most {SMALLEST_SHARE:.0%} of that without"
    own, other = here.smallest_mib(parts.LMS), here.smallest_mib(parts.NONE)
    if own is None or other is None:
        return Promise(text=text, measured="", met=None)
    failed = {m: f", {f:,} fails" if (f := here.failed_mib(m)) else "" for m in (parts.LMS, parts.NONE)}
    measured = f"{own / other:.1%} ({own:,} MiB{failed[parts.LMS]}; without {other:,} MiB{failed[parts.NONE]})"
    return Promise(text=text, measured=measured, met=own / other <= SMALLEST_SHARE)


def _step_ratios(here: Comparison) -> list[Promise]:
    made = []
    for share, most in STEP_RATIOS.items():
        text = f"{here.resolution}³: step time at {share:.0%} of that limit at most {most:.2f} x no LMS"
        result = here.at_share(share)
        tried = [r for r in here.of(parts.LMS) if abs((here.share(_limit_bytes(r.part)) or 0) - share) < 0.01]
        if result is None and tried and not tried[0].trained:
            made.append(Promise(text=text, measured=tried[0].outcome, met=False))
        elif result is None or result.ratio is None:
            made.append(Promise(text=text, measured="", met=None))
        else:
            made.append(Promise(text=text, measured=f"{result.ratio:.2f} x", met=result.ratio <= most))
    return made


def _predictions(here: Comparison) -> list[Promise]:
    planned, timed = (
        [r for r in found if r.report.get("planner") not in (None, "off", "none")]
        for found in (here.of(parts.LMS), here.timed(parts.LMS))
    )
    made = []
    for what, most, errors in (
        ("peak", PEAK_ERROR, [r.peak_error for r in planned]),
        ("step time", SECONDS_ERROR, [r.seconds_error for r in timed]),
        ("x no LMS", SECONDS_ERROR, [r.ratio_error for r in timed]),
    ):
        known = [e for e in errors if e is not None]
        worst = max(known, key=abs, default=None)
        within = sum(abs(e) <= most for e in known)
        made.append(
            Promise(
                text=f"{here.resolution}³: predicted {what} within {most:.0%} of the measured one",
                measured="" if worst is None else f"{within} of {len(known)} plans, worst {worst:+.0%}",
                met=None if worst is None else abs(worst) <= most,
            )
        )
    return made


def _others(here: Comparison) -> list[Promise]:
    made = []
    for method in ORDER:
        way = parts.TORCH_METHODS.get(method)
        if way is not None and (way.autocast or way.channels_last):  # other numbers, and no way to save memory
            continue
        if method in (parts.NONE, parts.KERAS, parts.XLA, parts.LMS, parts.COPIED, parts.TORCH):
            continue
        for other in here.of(method):
            limit = f" in {other.part.limit_mib:,} MiB" if other.part.limit_mib else ""
            text = f"{here.resolution}³: better on both axes than {method}{limit}"
            made.append(Promise(text=text, **_against(here, other)))
    return made


def _against(here: Comparison, other: Result) -> dict[str, Any]:
    """Whether some LMS run needs no more memory and no more time."""
    own = here.timed(parts.LMS)
    if other.outcome == "failed":  # for a reason of its own
        return {"measured": f"it: failed ({other.detail[:60]})", "met": None}
    if not other.trained:
        limit = other.part.limit_mib or 1 << 40
        better = [r for r in here.of(parts.LMS) if r.trained and (r.part.limit_mib or 0) <= limit]
        there = f"it: {other.outcome}"
        return {"measured": f"{there}, LMS trains" if better else there, "met": bool(better) or None}
    if other.ratio is None or not own:
        return {"measured": "", "met": None}
    kind, size = _same_kind(other)
    needs = size(other)
    if needs is None:
        return {"measured": "", "met": None}
    fitting = [r for r in own if (size(r) or needs + 1) <= needs]
    best = min(fitting, key=lambda r: r.ratio or 0.0, default=None)
    measured = f"it: {kind} {format_size(needs)} at {other.ratio:.2f} x; LMS: "
    if best is None or best.ratio is None:
        least = min(own, key=lambda r: size(r) or 1 << 60)
        return {"measured": measured + f"not below {format_size(size(least) or 0)}", "met": False}
    measured += f"{format_size(size(best) or 0)} at {best.ratio:.2f} x"
    return {"measured": measured, "met": best.ratio <= other.ratio}


def _same_kind(other: Result) -> tuple[str, Callable[[Result], int | None]]:
    """How to compare memory: of the same kind on both sides."""
    if other.part.limit_mib is not None:
        return "limit", lambda r: _limit_bytes(r.part)
    if other.peak_bytes is not None:
        return "peak", lambda r: r.peak_bytes
    return "resident", lambda r: r.resident_bytes  # PyTorch's allocator on a CPU counts nothing


def _never_worse(here: Comparison) -> Promise:
    """At limits that both were given."""
    own = {r.part.limit_mib: r for r in here.timed(parts.LMS)}
    pairs = [(own[r.part.limit_mib], r) for r in here.of(parts.TFLMS) if r.trained and r.part.limit_mib in own]
    tuned = [r for r in here.of(parts.TFLMS) if r.part.limit_mib is not None]
    swapped = [[r.report.get("swapped_out_bytes", 0) for r in pair] for pair in pairs]
    trained = sum(r.trained for r in tuned)
    said = [f"TFLMS trains at {trained} of {len(tuned)} limits"]
    said += [f"swaps {format_size(theirs)}, LMS {format_size(ours)}" for ours, theirs in swapped]
    return Promise(
        text=f"{here.resolution}³: trains wherever TFLMS auto-tune does, with no more bytes swapped",
        measured="; ".join(said) if tuned else "",
        met=None if not tuned else len(pairs) == trained and all(ours <= theirs for ours, theirs in swapped),
    )


def _same_numbers(here: Comparison) -> Promise:
    """Weights after three steps, over all methods that edit the same step."""
    whole = [r for method in parts.SAME_NUMBERS for r in here.of(method) if not r.report.get("slabs")]
    digests = [r.digest for r in whole if r.digest]
    return Promise(
        text=f"{here.resolution}³: the weights after three steps are the same bits with and without LMS",
        measured=f"{len(set(digests))} different in {len(digests)} runs" if len(digests) > 1 else "",
        met=len(set(digests)) == 1 if len(digests) > 1 else None,
    )


def _swept(result: Result, resolution: int) -> bool:
    factor = SWEEP_MODELS.get(result.part.model)
    return (
        factor is not None
        and result.part.resolution == int(factor * resolution)
        and result.part.warm_up + result.part.steps == SWEEP_STEPS
    )


def _sweep(swept: Sequence[Result]) -> Promise:
    """From floor to fit: predicted within the limit, and no run out of memory."""
    counts = [sum(r.part.model == model for r in swept) for model in dict.fromkeys(r.part.model for r in swept)]
    text = "sweep of 12 limits x 3 models: predicted peak within the limit, no run out of memory"
    if not swept:
        return Promise(text=text, measured="", met=None)
    trained = [r for r in swept if r.trained]
    within = sum(r.report.get("predicted_peak_bytes", 1 << 60) <= (_limit_bytes(r.part) or 0) for r in trained)
    first = sum(r.recoveries == 0 for r in trained)
    measured = (
        f"{len(swept)} runs of {len(counts)} models: {within} predicted within the limit, {len(trained)} trained, of these "
        f"{first} at the first plan and {len(trained) - first} after a step was planned and run again"
    )
    complete = len(counts) >= SWEEP_SIZE[1] and min(counts) >= SWEEP_SIZE[0]
    good = within == len(trained) == len(swept) == first
    return Promise(text=text, measured=measured, met=good if complete or not good else None)


def table(results: Sequence[Result], model: str, resolutions: Iterable[int]) -> str:
    """Markdown: one section for each resolution."""
    sections = []
    for resolution in resolutions:
        here = Comparison(results, model, resolution)
        head = (
            "method", "hard limit", "of smallest without", "result", "step", "x no LMS", "peak", "resident", "predicted peak",
            "predicted step", "swapped out", "recoveries",
        )  # fmt: skip
        lines = [f"## {model} at {resolution}³", "", _row(head), _row(["---"] * len(head))]
        lines += [_row(_cells(here, r)) for r in here.results]
        sections.append("\n".join(lines))
    return "\n\n".join(sections)


def sweep_table(results: Sequence[Result], sweep_resolution: int) -> str:
    """Markdown: every run of the sweep."""
    head = ("model", "hard limit", "result", "predicted peak", "measured peak", "predicted / measured", "recoveries")
    swept = [r for r in results if r.part.method == parts.LMS and not r.part.timed and _swept(r, sweep_resolution)]
    lines = ["## Sweep from floor to fit", "", _row(head), _row(["---"] * len(head))]
    for r in sorted(swept, key=lambda r: (r.part.model, r.part.limit_mib or 0)):
        error = "" if r.peak_error is None else f"{1 + r.peak_error:.2f}"
        predicted, measured = _size(r.report.get("predicted_peak_bytes")), _size(r.peak_bytes)
        side = f"{r.part.model} {r.part.resolution}"
        lines.append(
            _row([side, _size(_limit_bytes(r.part)), r.outcome, predicted, measured, error, str(r.recoveries)])
        )
    return "\n".join(lines)


def write_csv(results: Sequence[Result], models: Iterable[tuple[str, int]], path: Path) -> None:
    """One row for each part."""
    with replacing(path) as partial, partial.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        for model, resolution in models:
            here = Comparison(results, model, resolution)
            writer.writerows(_record(here, result) for result in here.results)


def _record(here: Comparison, r: Result) -> dict[str, object]:
    figures: dict[str, object] = {name: r.report.get(name, "") for name in COLUMNS if name in r.report}
    figures |= {
        "model": r.part.model, "resolution": r.part.resolution, "method": r.part.method, "limit_mib": r.part.limit_mib,
        "limit_share": here.share(_limit_bytes(r.part)), "outcome": r.outcome, "steps": r.part.warm_up + r.part.steps,
        "step_seconds": r.step_seconds, "ratio": r.ratio, "peak_bytes": r.peak_bytes, "peak_share": here.share(r.peak_bytes),
        "resident_bytes": r.resident_bytes, "peak_error": r.peak_error, "seconds_error": r.seconds_error,
        "ratio_error": r.ratio_error,
        "recoveries": r.recoveries, "loss": r.loss, "digest": r.digest, "wall_seconds": r.wall_seconds, "detail": r.detail,
    }  # fmt: skip
    return {k: "" if v is None else round(v, 4) if isinstance(v, float) else v for k, v in figures.items()}


def _cells(here: Comparison, r: Result) -> list[str]:
    planned = r.part.method == parts.NONE or r.report.get("planner") not in (None, "off")
    seconds = r.step_seconds if r.part.timed else None
    return [
        r.part.method,
        _size(_limit_bytes(r.part)) or "none",
        _percent(here.share(_limit_bytes(r.part))),
        r.outcome,
        "" if seconds is None else format_seconds(seconds),
        "" if r.ratio is None else f"{r.ratio:.2f}",
        _size(r.peak_bytes),
        _size(r.resident_bytes),
        f"{r.peak_error:+.0%}" if planned and r.peak_error is not None else "",
        f"{r.seconds_error:+.0%}" if planned and r.part.timed and r.seconds_error is not None else "",
        _size(r.report.get("swapped_out_bytes")) if planned and r.report.get("swapped_out_bytes") else "",
        str(r.recoveries or ""),
    ]


def _limit_bytes(part: Part) -> int | None:
    return None if part.limit_mib is None else part.limit_mib * MIB


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _size(size_bytes: float | None) -> str:
    return "" if size_bytes is None else format_size(size_bytes)


def _percent(share: float | None) -> str:
    return "" if share is None else f"{share:.0%}"
