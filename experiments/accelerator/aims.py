"""The aims of the study beside its figures. No TensorFlow here."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from lms3d.experiments.accelerator import sections
from lms3d.experiments.accelerator.scale import GIB, Scale
from lms3d.experiments.harness import methods
from lms3d.experiments.harness.part import MIB, PartResult
from lms3d.experiments.harness.table import cell, markdown
from lms3d.experiments.overhead.results import memory_bytes
from lms3d.units import format_seconds, format_size

Found = Mapping[str, PartResult]

MET, MISSED, NOT_MEASURED = "met", "**missed**", "not measured"

STEP_SECONDS, STEP_BYTES = 0.12, 8.5 * GIB
"""Of a step at 192^3 in float32 without LMS, on an H200."""
RATIOS = (1.03, 1.10, 1.25, 1.50)
"""Steps in `scale.LIMITS_MIB` / the step without LMS."""
HALF_SECONDS, HALF_BYTES = 0.7, 0.5
"""A step in 16 bits / the same in float32, both without LMS."""

HEAD = "**Aims**; seconds and bytes without LMS are those for an H200:"


@dataclass(frozen=True, kw_only=True)
class Aim:
    """what: the figure that is to be at most `most`. verdict: MET, MISSED or NOT_MEASURED."""

    what: str
    most: str
    found: str
    verdict: str

    def cells(self) -> tuple[str, str, str, str]:
        return self.what, self.most, self.found, self.verdict


def table(section: str, found: Found, scale: Scale) -> str:
    """The aims of a section as Markdown; "" if it has none."""
    rows = [aim.cells() for aim in of(section, found, scale)]
    return f"{HEAD}\n\n{markdown(('aim', 'at most', 'found', ''), rows)}" if rows else ""


def of(section: str, found: Found, scale: Scale) -> list[Aim]:
    """The aims of a section beside what has been trained so far."""
    known = {"limits": _of_limits, "peers": _of_peers, "precision": _of_precision}
    return list(known[section](found, scale)) if section in known else []


def _of_limits(found: Found, scale: Scale) -> Iterator[Aim]:
    none = found.get(scale.part(methods.NONE, scale.limits_side, scale.whole_mib).name)
    seconds, peak_bytes = _seconds(none), _peak_bytes(none)
    plain = f"{scale.limits_side}³ without LMS"
    yield _aim(f"{plain}: step", STEP_SECONDS, seconds, format_seconds, none)
    yield _aim(f"{plain}: peak", STEP_BYTES, peak_bytes, format_size, none)
    for limit_mib, most in zip(scale.limits_mib, RATIOS, strict=False):  # a rehearsal has fewer limits
        lms = found.get(scale.compared(scale.lms, scale.limits_side, limit_mib).name)
        share = cell(_ratio(limit_mib * MIB, peak_bytes), ", {:.0%} of that".format)
        what = f"LMS in {format_size(limit_mib * MIB)}{share}: step"
        yield _aim(what, most, _ratio(_seconds(lms), seconds), "{:.2f} x no LMS".format, lms)


def _of_peers(found: Found, scale: Scale) -> Iterator[Aim]:
    """For each row of PyTorch: our fastest step in no more memory than that row took, at the same precision."""
    parts = (*sections.limits_parts(found, scale), *sections.precision_parts(found, scale))
    names = [part.name for part in parts if part.method in (methods.NONE, scale.lms)]
    ours = [found[name] for name in names if name in found and found[name].trained]
    for method in (*scale.peers, *scale.later_peers):
        peer = found.get(scale.part(method, scale.limits_side, None).name)
        precision = scale.half_precision if methods.TORCH_METHODS[method].autocast else "float32"
        best = fastest([r for r in ours if r.part.precision == precision], _peak_bytes(peer))
        what = (
            f"a step of ours in the memory of {method}{cell(_peak_bytes(peer), lambda size: f', {format_size(size)}')}"
        )
        aim = _aim(what, _seconds(peer), _seconds(best), format_seconds)
        yield (
            aim
            if best is None
            else replace(aim, found=f"{aim.found} ({best.part.method}, {cell(memory_bytes(best), format_size)})")
        )


def fastest(some: list[PartResult], size_bytes: float | None) -> PartResult | None:
    """The fastest step in so much memory: with LMS by its hard limit, without by its peak."""
    able = [r for r in some if size_bytes and (memory_bytes(r) or size_bytes + 1) <= size_bytes]
    return min(able, key=lambda r: r.step_seconds or 0.0, default=None)


def _of_precision(found: Found, scale: Scale) -> Iterator[Aim]:
    single, half = (
        found.get(scale.part(methods.NONE, scale.half.side, scale.whole_mib, precision=precision).name)
        for precision in ("float32", scale.half_precision)
    )
    form, what = "{:.2f} x float32".format, f"{scale.half_precision} without LMS"
    yield _aim(f"{what}: step", HALF_SECONDS, _ratio(_seconds(half), _seconds(single)), form, half)
    yield _aim(f"{what}: peak", HALF_BYTES, _ratio(_peak_bytes(half), _peak_bytes(single)), form, half)


def _aim(
    what: str, most: float | None, value: float | None, form: Callable[[float], str], result: PartResult | None = None
) -> Aim:
    """result: how it ended is what was found, if it has no value. A step that does not fit misses its aim."""
    ended = "" if result is None or result.trained else result.outcome
    if most is None or value is None:
        verdict = MISSED if ended in ("out of memory", "does not fit") else NOT_MEASURED
    else:
        verdict = MISSED if value > most else MET
    return Aim(what=what, most=cell(most, form), found=cell(value, form) or ended, verdict=verdict)


def _seconds(result: PartResult | None) -> float | None:
    return result.step_seconds if result else None


def _peak_bytes(result: PartResult | None) -> float | None:
    return result.peak_bytes if result and result.trained else None


def _ratio(value: float | None, other: float | None) -> float | None:
    return value / other if value and other else None
