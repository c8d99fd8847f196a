"""Results of trainings as the tables of the page and as CSV. No TensorFlow here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lms3d.experiments.accelerator import aims, check, sections
from lms3d.experiments.accelerator.scale import Scale
from lms3d.experiments.accelerator.sections import SECTIONS
from lms3d.experiments.harness import methods
from lms3d.experiments.harness.part import PartResult, StudyPart
from lms3d.experiments.harness.table import cell, filled, markdown, write_csv
from lms3d.experiments.overhead.results import MethodComparison
from lms3d.units import format_seconds, format_size

Found = Mapping[str, PartResult]

NOTES = """\
Each training is a process of its own, batch 1, the same noise with three balls, Adam, Dice loss. Hard limit: of TensorFlow's own
allocator; none is the whole card, which grows as it is used. Step: median of the measured steps. The trainings of a section
warm up side by side, then take their measured steps one process after the other. Workspace: cuDNN's limit; empty is TensorFlow's
own. x no LMS: by the median step of the process without LMS; x same workspace: of the one with that workspace. Peak: most bytes
that the allocator had handed out. Busy: share of the profiled steps in which the device runs a kernel. Overlap: share of the time
of transfers in which it does. Moved: bytes per profiled step, and 10^9 bytes per second while that way is used; swapped out: what
the plan moves. The profiler is not on in measured steps. GB/s, TFLOP/s: inputs, results and floating-point operations of the ops
that spend most of their time in this kernel, by its seconds. Predicted: by the planner; in brackets predicted / measured - 1.
The first plan is kept (`adapt=False`) unless it runs out of memory: a recovery."""

STEPS = (
    "cube", "method", "hard limit", "result", "workspace", "step", "x no LMS", "x same workspace", "peak", "busy", "overlap",
    "moved out", "moved in", "swapped out", "recomputed", "slabs",
)  # fmt: skip
KERNELS = ("kernel", "op", "launches a step", "time a step", "of the step", "GB/s", "TFLOP/s")
PREDICTIONS = ("cube", "method", "hard limit", "peak", "predicted peak", "step", "predicted step")
"""Names in `overhead.results.SHOWN`."""
COLUMNS = (
    "section", "model", "filters", "resolution", "method", "precision", "deterministic", "repeat", "limit_mib", "outcome", "steps",
    "step_seconds", "workspace_mib", "peak_bytes", "predicted_peak_bytes", "predicted_step_seconds", "swapped_out_bytes",
    "recomputed_ops", "busy_share", "overlap_share", "out_bytes", "in_bytes", "out_bytes_per_second", "in_bytes_per_second",
    "slabs", "recoveries", "planning_seconds", "loss", "digest", "wall_seconds", "device", "detail",
)  # fmt: skip


def results(found: Found, section: str, scale: Scale) -> list[PartResult]:
    """The results of the section's trainings, as far as they have ended."""
    wanted = next(one.parts for one in SECTIONS if one.name == section)(found, scale)
    return [found[part.name] for part in wanted if part.name in found]


def failed(found: Found, section: str, scale: Scale) -> list[PartResult]:
    """The results that ended for a reason of their own, not for want of memory."""
    return [result for result in results(found, section, scale) if result.outcome == "failed"]


def table(found: Found, section: str, scale: Scale) -> str:
    """The Markdown of a section; "" if nothing has been measured."""
    made = results(found, section, scale)
    if section == "predictions":
        made = [r for r in found.values() if r.trained and r.has_plan and r.peak_error is not None]
    if not made:
        return ""
    if section == "cubes":
        return cubes(made, scale)
    here = MethodComparison(made, scale.model, made[0].part.resolution)
    if section == "check":
        bits = identity(sections.identity_results(found, scale))
        timed = sorted((r for r in made if r.part.profiled), key=lambda r: r.part.method != methods.NONE)
        return "\n\n".join([verdicts(found, scale), bits, here.table_of(timed, STEPS)])
    steps = here.table_of(made, PREDICTIONS if section == "predictions" else STEPS)
    slowest = kernels(found, scale) if section == "limits" else ""
    return "\n\n".join(filter(None, [aims.table(section, found, scale), steps, slowest]))


def kernels(found: Found, scale: Scale) -> str:
    """The slowest kernels of the step without LMS and of that in half of its memory; "" if none are known."""
    none, *_ = sections.limits_parts(found, scale)
    wanted = [none.name, scale.compared(scale.lms, scale.limits_side, scale.rival_mib).name]
    return "\n\n".join(
        _kernels_of(found[name]) for name in wanted if name in found and found[name].profile.get("kernels")
    )


def _kernels_of(r: PartResult) -> str:
    whole, idle = format_seconds(r.profile["kernel_seconds"]), r.profile.get("idle_in_step_share")
    gaps = cell(idle, ", none in {:.0%} of the step".format)
    rows = [
        (
            one["kernel"][:60], one["op"], f"{one['launches']:g}", f"{1e3 * one['seconds']:.2f} ms",
            cell(r.step_seconds and one["seconds"] / r.step_seconds, ".1%"),
            _rate(one, "size_bytes", 1e9), _rate(one, "flops", 1e12),
        )
        for one in r.profile["kernels"]
    ]  # fmt: skip
    return f"**{r.part.title}**: kernels of {whole} a step{gaps}, the slowest:\n\n{filled(KERNELS, rows)}"


def _rate(kernel: Mapping[str, Any], name: str, unit: float) -> str:
    """The work of a kernel for each second of its time, in some unit; "" if it is not known."""
    return f"{kernel[name] / kernel['seconds'] / unit:,.3g}" if kernel.get(name) and kernel["seconds"] else ""


def verdicts(found: Found, scale: Scale) -> str:
    """A line for each question of the first minute."""
    return markdown(("question", "found", ""), [line.cells() for line in check.lines(found, scale)])


def identity(made: Sequence[PartResult]) -> str:
    """Whether the bits are the same, or how far apart the losses are."""
    head = ("method", "limit", "result", "loss after 3 steps", "weights (SHA-1)", "swapped out", "recomputed", "slabs")
    rows = [
        (
            f"{r.part.method}{', again' if r.part.repeat > 1 else ''}", _limit(r.part), r.outcome, cell(r.loss, ".9g"),
            r.digest[:12], cell(r.report.get("swapped_out_bytes"), format_size), str(r.report.get("recomputed_ops", "")),
            r.slabs,
        )
        for r in made
    ]  # fmt: skip
    return f"{markdown(head, rows)}\n\n{verdict(made)}"


def verdict(made: Sequence[PartResult]) -> str:
    """What three digests say; nothing about LMS if the step without it does not repeat itself."""
    if (three := check.compared(made)) is None:
        return "Not all three were trained: nothing can be said."
    first, again, with_lms = three
    same, repeats = with_lms.digest == first.digest, first.digest == again.digest
    lms, none = (_apart(first, other) for other in (with_lms, again))
    apart = f"Losses with LMS and without differ by {lms:.1e}, those of two runs without by {none:.1e}."
    if same:
        return "**The same bits** with LMS and without." + (
            "" if repeats else " Two runs without LMS were not always the same."
        )
    if not repeats:
        return f"The step without LMS does not repeat its own bits, so that bits tell nothing. {apart}"
    if with_lms.slabs:
        return f"Sliced, so equal to rounding. {apart}"
    return f"**Not the same bits**, though the step without LMS repeats its own. {apart}"


def _apart(one: PartResult, other: PartResult) -> float:
    return abs((one.loss or 0.0) - (other.loss or 0.0))


def cubes(made: Sequence[PartResult], scale: Scale) -> str:
    """The largest cube that trained in each search, and the smallest that did not."""
    head = ("limit", "method", "largest that trained", "smallest that did not", "")
    rows = []
    for method, limit in sections.searches(scale):
        tried = [r for r in made if (r.part.method, r.part.limit_mib) == (method, limit)]
        if tried:
            rows.append((_limit(tried[0].part), method, *_ends(tried, scale)))
    return markdown(head, rows)


def _ends(tried: Sequence[PartResult], scale: Scale) -> tuple[str, str, str]:
    good = max((r for r in tried if r.trained), key=lambda r: r.part.resolution, default=None)
    bad = min((r for r in tried if not r.trained), key=lambda r: r.part.resolution, default=None)
    trained = "" if good is None else f"{good.part.resolution}³ (peak {cell(good.peak_bytes, format_size)})"
    did_not = "" if bad is None else f"{bad.part.resolution}³ ({bad.outcome})"
    at = {side: number for number, side in enumerate(scale.sides)}
    low = -1 if good is None else at[good.part.resolution]
    high = len(scale.sides) if bad is None else at[bad.part.resolution]
    note = "" if high - low <= 1 else "sizes between were not tried"
    return trained, did_not, "the largest that is tried" if not note and bad is None else note


def write_table(found: Found, scale: Scale, path: Path) -> None:
    """A row for each training of each section."""
    rows = [record(one.name, r) for one in SECTIONS for r in results(found, one.name, scale)]
    write_csv(path, COLUMNS, rows)


def record(section: str, r: PartResult) -> dict[str, Any]:
    """A row of the CSV file."""
    known = r.record() | {"section": section, "steps": len(r.seconds)}
    return {name: known.get(name) for name in COLUMNS}


def _limit(part: StudyPart) -> str:
    return cell(part.limit_bytes, format_size) or "none"
