"""What was promised of LMS, what was measured, and whether each promise was met. No TensorFlow here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from lms3d.experiments.harness import methods
from lms3d.experiments.harness.part import Result
from lms3d.experiments.harness.promise import Promise, all_within, at_most
from lms3d.experiments.overhead.results import ORDER, Comparison, swept
from lms3d.units import format_size

SMALLEST_SHARE = 0.30
STEP_RATIOS = {0.50: 1.10, 0.35: 1.25}
PEAK_ERROR, SECONDS_ERROR = 0.05, 0.15
SWEEP_SIZE = (12, 3)
NO_RIVALS = (methods.NONE, methods.KERAS, methods.XLA, methods.LMS, methods.COPIED, methods.TORCH)
"""Methods that do not save memory, or that are LMS."""


def promises(results: Sequence[Result], model: str, resolutions: Iterable[int], sweep_resolution: int) -> list[Promise]:
    """Every promise, with what was measured."""
    made = []
    for resolution in resolutions:
        here = Comparison(results, model, resolution)
        made += [_smallest(here), *_step_ratios(here), *_predictions(here), *_rivals(here)]
        made += [_never_worse(here), _same_numbers(here)]
    return [*made, _sweep(swept(results, sweep_resolution))]


def _smallest(here: Comparison) -> Promise:
    text = f"{here.resolution}³: smallest limit with LMS at most {SMALLEST_SHARE:.0%} of that without"
    own, other = here.smallest_mib(methods.LMS), here.smallest_mib(methods.NONE)
    if own is None or other is None:
        return Promise(text=text)
    failed = {m: f", {f:,} fails" if (f := here.failed_mib(m)) else "" for m in (methods.LMS, methods.NONE)}
    measured = f"{own / other:.1%} ({own:,} MiB{failed[methods.LMS]}; without {other:,} MiB{failed[methods.NONE]})"
    return Promise(text=text, measured=measured, met=own / other <= SMALLEST_SHARE)


def _step_ratios(here: Comparison) -> list[Promise]:
    made = []
    for share, most in STEP_RATIOS.items():
        text = f"{here.resolution}³: step time at {share:.0%} of that limit at most {most:.2f} x no LMS"
        found = here.at_share(share)
        if found and not found[0].trained:
            made.append(Promise(text=text, measured=found[0].outcome, met=False))
        else:
            made.append(at_most(text, found[0].ratio if found else None, most))
    return made


def _predictions(here: Comparison) -> list[Promise]:
    planned = [r for r in here.of(methods.LMS) if r.has_plan]
    timed = [r for r in planned if r.ratio is not None]
    return [
        all_within(f"{here.resolution}³: predicted {what} within {most:.0%} of the measured one", most, errors)
        for what, most, errors in (
            ("peak", PEAK_ERROR, [r.peak_error for r in planned]),
            ("step time", SECONDS_ERROR, [r.seconds_error for r in timed]),
            ("x no LMS", SECONDS_ERROR, [r.ratio_error for r in timed]),
        )
    ]


def _rivals(here: Comparison) -> list[Promise]:
    """LMS against every other method that saves memory, under each of its limits."""
    made = []
    for method in (method for method in ORDER if method not in NO_RIVALS):
        way = methods.TORCH_METHODS.get(method)
        if way is not None and (way.autocast or way.channels_last):  # other numbers, and no way to save memory
            continue
        for other in here.of(method):
            limit = f" in {other.part.limit_mib:,} MiB" if other.part.limit_mib else ""
            measured, met = _against(here, other)
            text = f"{here.resolution}³: better on both axes than {method}{limit}"
            made.append(Promise(text=text, measured=measured, met=met))
    return made


def _against(here: Comparison, other: Result) -> tuple[str, bool | None]:
    """What was measured, and whether some run of LMS needs no more memory and no more time."""
    if other.outcome == "failed":  # for a reason of its own
        return f"it: failed ({other.detail[:60]})", None
    if not other.trained:
        limit = other.part.limit_mib or 1 << 40
        better = any(r.trained and (r.part.limit_mib or 0) <= limit for r in here.of(methods.LMS))
        return f"it: {other.outcome}{', LMS trains' if better else ''}", better or None
    own, (kind, size) = here.timed(methods.LMS), _same_kind(other)
    needs = size(other)
    if other.ratio is None or not own or needs is None:
        return "", None
    measured = f"it: {kind} {format_size(needs)} at {other.ratio:.2f} x; LMS: "
    best = min((r for r in own if (size(r) or needs + 1) <= needs), key=lambda r: r.ratio or 0.0, default=None)
    if best is None or best.ratio is None:
        least = min(own, key=lambda r: size(r) or 1 << 60)
        return f"{measured}not below {format_size(size(least) or 0)}", False
    return f"{measured}{format_size(size(best) or 0)} at {best.ratio:.2f} x", best.ratio <= other.ratio


def _same_kind(other: Result) -> tuple[str, Callable[[Result], int | None]]:
    """How to compare memory: the same kind of figure on both sides."""
    if other.part.limit_mib is not None:
        return "limit", lambda r: r.part.limit_bytes
    if other.peak_bytes is not None:
        return "peak", lambda r: r.peak_bytes
    return "resident", lambda r: r.resident_bytes  # PyTorch's allocator on a CPU counts nothing


def _never_worse(here: Comparison) -> Promise:
    """LMS against TFLMS at the limits that both were given."""
    text = f"{here.resolution}³: trains wherever TFLMS auto-tune does, with no more bytes swapped"
    tuned = [r for r in here.of(methods.TFLMS) if r.part.limit_mib is not None]
    if not tuned:
        return Promise(text=text)
    own = {r.part.limit_mib: r for r in here.timed(methods.LMS)}
    trained = [r for r in tuned if r.trained]
    swapped = [
        tuple(one.report.get("swapped_out_bytes", 0) for one in (own[r.part.limit_mib], r))
        for r in trained
        if r.part.limit_mib in own
    ]
    said = [f"TFLMS trains at {len(trained)} of {len(tuned)} limits"]
    said += [f"swaps {format_size(theirs)}, LMS {format_size(ours)}" for ours, theirs in swapped]
    met = len(swapped) == len(trained) and all(ours <= theirs for ours, theirs in swapped)
    return Promise(text=text, measured="; ".join(said), met=met)


def _same_numbers(here: Comparison) -> Promise:
    """The weights after three steps, over all methods that edit the same step."""
    whole = [r for method in methods.SAME_NUMBERS for r in here.of(method) if not r.report.get("slabs")]
    digests = [r.digest for r in whole if r.digest]
    text = f"{here.resolution}³: the weights after three steps are the same bits with and without LMS"
    if len(digests) < 2:
        return Promise(text=text)
    different = len(set(digests))
    return Promise(text=text, measured=f"{different} different in {len(digests)} runs", met=different == 1)


def _sweep(found: Sequence[Result]) -> Promise:
    """From floor to fit, no plan is predicted above its limit and no run is out of memory."""
    text = "sweep of 12 limits x 3 models: predicted peak within the limit, no run out of memory"
    if not found:
        return Promise(text=text)
    counts = Counter(r.part.model for r in found)
    trained = [r for r in found if r.trained]
    within = sum(r.report.get("predicted_peak_bytes", 1 << 60) <= (r.part.limit_bytes or 0) for r in trained)
    first = sum(r.recoveries == 0 for r in trained)
    measured = (
        f"{len(found)} runs of {len(counts)} models: {within} predicted within the limit, {len(trained)} trained, of these "
        f"{first} at the first plan and {len(trained) - first} after a step was planned and run again"
    )
    complete = len(counts) >= SWEEP_SIZE[1] and min(counts.values()) >= SWEEP_SIZE[0]
    good = within == len(trained) == len(found) == first
    return Promise(text=text, measured=measured, met=good if complete or not good else None)
