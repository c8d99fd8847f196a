"""The first minute: trainings of a small cube -> does the engine work on this card? A line for each question. No TensorFlow."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from lms3d.experiments.accelerator import sections
from lms3d.experiments.accelerator.scale import Scale
from lms3d.experiments.harness import methods
from lms3d.experiments.harness.part import PartResult
from lms3d.experiments.harness.table import cell
from lms3d.units import format_seconds, format_size

YES, NO, UNKNOWN, NO_AIM = "yes", "**NO**", "unknown", "-"
OVERLAP = "transfers run beside kernels"

HIDDEN_SHARE = 0.8  # of the transfers' time, in which the device computes
RATE_SHARE = 0.8  # of what the probe of the link says
SECONDS_ERROR, PEAK_ERROR = 0.10, 0.05  # predicted / measured - 1
RATIO = 1.06  # step under half of the memory / step without LMS
LEAST = {
    "flops_per_second": 5e12,
    "bytes_per_second": 3e11,
    "swap_out_bytes_per_second": 5e9,
    "swap_in_bytes_per_second": 5e9,
}
"""A probe that says less than a third of a V100 (15.7 TFLOP/s, 900 GB/s) or half of PCIe Gen3 x16 has measured something else."""

_FORMS: dict[str, Callable[[float], str]] = {
    "flops_per_second": lambda rate: f"{rate / 1e12:.3g} TFLOP/s",
    "bytes_per_second": lambda rate: f"{rate / 1e9:,.0f} GB/s of memory",
    "swap_out_bytes_per_second": lambda rate: f"{rate / 1e9:.3g} GB/s out",
    "swap_in_bytes_per_second": lambda rate: f"{rate / 1e9:.3g} GB/s in",
}


@dataclass(frozen=True, kw_only=True)
class Line:
    """A question, what was found, and whether that is as it should be."""

    question: str
    found: str
    verdict: str

    def cells(self) -> tuple[str, str, str]:
        return self.question, self.found, self.verdict


def lines(found: Mapping[str, PartResult], scale: Scale) -> list[Line]:
    """The lines about what has been trained so far."""
    lms, none, swapped = (found.get(part.name) for part in sections.timed_parts(scale))
    made = sections.identity_results(found, scale)
    if not made and lms is None and none is None:
        return []
    moving = [r for r in (lms, swapped) if r is not None and r.trained and r.report.get("swapped_out_bytes")]
    answered = [bits(made), *_ended(lms, none), *_transfers(moving[0] if moving else None, none)]
    return answered + (_predictions(lms, none) if lms is not None and lms.trained else [])


def _line(question: str, found: str, good: bool | None) -> Line:
    return Line(question=question, found=found or "not known", verdict=UNKNOWN if good is None else YES if good else NO)


def bits(made: Sequence[PartResult]) -> Line:
    """The line about the bits of steps without LMS in two processes, and with it."""
    digests = ", ".join(f"{r.part.method}: {r.digest[:8] or r.outcome}" for r in made)
    return _line("the same weights with LMS and without, after 3 steps", digests or "nothing", same_bits(made))


def compared(made: Sequence[PartResult]) -> tuple[PartResult, PartResult, PartResult] | None:
    """A step without LMS, the same in another process, and a step with LMS; None if one of them has not trained."""
    known = {(r.part.method == methods.NONE, r.part.repeat): r for r in made if r.trained and r.digest}
    first, again, with_lms = (known.get(which) for which in ((True, 1), (True, 2), (False, 1)))
    return None if first is None or again is None or with_lms is None else (first, again, with_lms)


def same_bits(made: Sequence[PartResult]) -> bool | None:
    """Whether LMS gives the same bits. None if nothing can be said: a training failed, the step without LMS does not repeat its
    bits, or LMS has sliced it."""
    if (three := compared(made)) is None:
        return None
    first, again, with_lms = three
    comparable = first.digest == again.digest and not any(r.report.get("slabs") for r in made)
    return True if with_lms.digest == first.digest else False if comparable else None


def _ended(lms: PartResult | None, none: PartResult | None) -> list[Line]:
    """A line for each of the timed trainings that did not train."""
    return [
        _line(f"{name} trains", result.outcome if result else "not run", False if result else None)
        for name, result in (("a step under LMS", lms), ("a step without", none))
        if result is None or not result.trained
    ]


def _transfers(moving: PartResult | None, none: PartResult | None) -> list[Line]:
    """The lines about transfers. moving: a training whose plan swaps; a profile has copies of batches and losses, too."""
    if moving is None:
        return [_line(OVERLAP, "no transfer was seen", None)]
    share, how = hidden_share(moving, none)
    found = "" if share is None else f"{share:.0%} of their time, by {how} ({moving.part.method})"
    overlap = _line(OVERLAP, found, None if share is None else share >= HIDDEN_SHARE)
    return [overlap, *(_rate(moving, way) for way in ("out", "in"))]


def hidden_share(lms: PartResult, none: PartResult | None) -> tuple[float | None, str]:
    """The share of the transfers' time in which the device computes, and how it is known: by the profiler, else by how much longer
    the step takes than without LMS, which counts recomputing as waiting."""
    if (share := lms.profile.get("overlap_share")) is not None:
        return float(share), "the profiler"
    seconds = sum(_transfer_seconds(lms, way) for way in ("out", "in"))
    if none is None or not lms.step_seconds or not none.step_seconds or not seconds:
        return None, ""
    return min(1.0, max(0.0, 1 - (lms.step_seconds - none.step_seconds) / seconds)), "step times"


def _rate(lms: PartResult, way: str) -> Line:
    question, probe = f"bytes go {way} as fast as the link", lms.machine.get(f"swap_{way}_bytes_per_second", 0.0)
    moved, rate = (lms.profile.get(f"{way}_{name}") for name in ("bytes", "bytes_per_second"))
    how = "the profiler"
    if not moved or not rate:
        moved, rate, how = lms.moved_bytes(way), lms.bytes_per_second(way), "the tier's counters"
    if not moved or not rate:
        return _line(question, "no transfer was seen", None)
    found = f"{format_size(moved)} a step at {rate / 1e9:.3g} GB/s, by {how}; probe: {probe / 1e9:.3g} GB/s"
    return _line(question, found, rate >= RATE_SHARE * probe if probe else None)


def _transfer_seconds(lms: PartResult, way: str) -> float:
    """The seconds of a step's transfers: by the tier's counters, or by the plan and the probe's rate if the tier does not count."""
    if rate := lms.bytes_per_second(way):
        return lms.moved_bytes(way) / rate
    rate = lms.machine.get(f"swap_{way}_bytes_per_second")
    return lms.report.get(f"swapped_{way}_bytes", 0.0) / rate if rate else 0.0


def _predictions(lms: PartResult, none: PartResult | None) -> list[Line]:
    without, report = none.step_seconds if none else None, lms.report
    limit, peak = lms.part.limit_bytes or 0, lms.peak_bytes or 0
    ratio = lms.step_seconds / without if without and lms.step_seconds else None
    seconds, lms_seconds = report.get("unedited_step_seconds"), report.get("predicted_step_seconds")
    return [
        _compared("step without swapping", seconds, without, SECONDS_ERROR, format_seconds),
        _compared("step under LMS", lms_seconds, lms.step_seconds, SECONDS_ERROR, format_seconds),
        _compared("peak under LMS", report.get("predicted_peak_bytes"), lms.peak_bytes, PEAK_ERROR, format_size),
        _line("the limit is kept", f"{format_size(peak)} of {format_size(limit)}", peak <= limit),
        _line(
            f"half of the memory costs at most {RATIO} x", cell(ratio, "{:.2f} x".format), None if ratio is None else ratio <= RATIO
        ),
        _probe(lms),
    ]  # fmt: skip


def _compared(
    what: str, predicted: float | None, measured: float | None, error: float, form: Callable[[float], str]
) -> Line:
    question = f"{what} as predicted, to {error:.0%}"
    if not predicted or not measured:
        return _line(question, "", None)
    ratio = predicted / measured
    return _line(question, f"{form(predicted)} for {form(measured)}: {ratio:.2f} x", abs(ratio - 1) <= error)


def _probe(lms: PartResult) -> Line:
    """The line about the speeds that the planner believes in. There is no least speed for a processor."""
    found = ", ".join(form(lms.machine[name]) for name, form in _FORMS.items() if name in lms.machine)
    slow = [name for name, least in LEAST.items() if lms.machine.get(name, least) < least]
    line = _line("the probe of the machine is plausible", found, not slow if found else None)
    return replace(line, verdict=NO_AIM) if found and lms.device == "CPU" else line
