"""The questions of the study, and which trainings answer each. No TensorFlow here."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from lms3d.experiments.accelerator.scale import Scale
from lms3d.experiments.accelerator.trainings import UNANSWERED, Trainings
from lms3d.experiments.harness import methods
from lms3d.experiments.harness.part import MIB, PartResult, StudyPart

Found = Mapping[str, PartResult]


@dataclass(frozen=True, kw_only=True)
class StudySection:
    """One question. weight: its part of the time, relative to the others'. parts: the trainings that answer it, after what has been
    trained so far. search: trains as few of these as will do; None: all are trained."""

    name: str
    title: str
    weight: float = 0.0
    parts: Callable[[Found, Scale], Sequence[StudyPart]] = lambda found, scale: ()
    search: Callable[[Trainings, Scale], object] | None = None

    def run(self, trainings: Trainings, scale: Scale) -> None:
        """Trains what is missing. What has been trained may ask for more, once."""
        if self.search is not None:
            self.search(trainings, scale)
            return
        first = self.parts(trainings.found, scale)
        trainings.measure_all(first)
        trainings.measure_all([part for part in self.parts(trainings.found, scale) if part not in first])


def timed_parts(scale: Scale) -> list[StudyPart]:
    """The small cube with LMS, without, and with everything swapped: a plan may move nothing, and the link is to be seen."""
    whole = [scale.checked(method, scale.whole_mib) for method in (methods.NONE, methods.SWAP_ALL)]
    return [scale.checked(scale.lms, scale.check.limit_mib), *whole]


def identity_parts(scale: Scale, *, deterministic: bool = True) -> list[StudyPart]:
    """The step without LMS in two processes, which tells whether it repeats itself, and with LMS: three steps each."""
    more = {"warm_up": 2, "steps": 1, "profiled": 0, "deterministic": deterministic}
    without = scale.checked(methods.NONE, scale.whole_mib, **more)
    again = scale.checked(methods.NONE, scale.whole_mib, repeat=2, **more)
    return [without, again, scale.checked(scale.lms, scale.check.limit_mib, **more)]


def identity_results(found: Found, scale: Scale) -> list[PartResult]:
    """The results with deterministic kernels, or with the usual ones if the deterministic ones failed."""
    both = [identity_parts(scale, deterministic=deterministic) for deterministic in (True, False)]
    made, usual = ([found[part.name] for part in some if part.name in found] for some in both)
    return usual or made


def check_parts(found: Found, scale: Scale) -> list[StudyPart]:
    """The trainings of the first minute. If TensorFlow lacks a deterministic kernel, the usual kernels give the bits to compare."""
    exact = identity_parts(scale)
    refused = (first := found.get(exact[0].name)) is not None and first.outcome == "failed"
    return [*timed_parts(scale), *exact, *(identity_parts(scale, deterministic=False) if refused else [])]


def limits_parts(found: Found, scale: Scale) -> list[StudyPart]:
    """Without LMS under its options of the graph, within the workspace of LMS, too, and under Keras' own; LMS under smaller and
    smaller limits; other plans.

    Swapping everything knows no limit: it says what it takes. The floor comes last: only a refused training names it.
    """
    side = scale.limits_side
    without = [scale.part(method, side, scale.whole_mib) for method in (methods.NONE, methods.KERAS)]
    without.append(scale.part(methods.NONE, side, scale.whole_mib, workspace_mib=scale.workspace_mib))
    limited = [scale.compared(scale.lms, side, limit) for limit in (*scale.limits_mib, scale.refused_mib)]
    rivals = [
        scale.compared(methods.TFLMS, side, scale.rival_mib),
        scale.compared(methods.SWAP_ALL, side, scale.whole_mib),
    ]
    refused = found.get(limited[-1].name)
    smallest = refused.report.get("smallest_limit_bytes") if refused and refused.outcome == "does not fit" else None
    floor = [scale.compared(scale.lms, side, math.ceil(smallest / MIB))] if smallest else []
    return [*without, *limited, *rivals, *floor]


def large_parts(found: Found, scale: Scale) -> list[StudyPart]:
    """LMS on a step that would not fit the smaller card."""
    place = scale.large
    return [
        scale.part(methods.NONE, place.side, scale.whole_mib), scale.part(scale.lms, place.side, place.limit_mib)
    ]  # fmt: skip


def peer_parts(found: Found, scale: Scale) -> list[StudyPart]:
    """TensorFlow without LMS and PyTorch's usual ways, if it is installed, on the same network; once these have ended XLA and
    PyTorch's other ways, of which some compile for long."""
    side = scale.limits_side
    first = [scale.part(methods.NONE, side, scale.whole_mib), *(scale.part(one, side, None) for one in scale.peers)]
    later = [
        scale.part(methods.XLA, side, scale.whole_mib),
        *(scale.part(one, side, None) for one in scale.later_peers),
    ]
    return [*first, *(later if all(part.name in found for part in first) else [])]


def precision_parts(found: Found, scale: Scale) -> list[StudyPart]:
    """A step with LMS and a step without, in 16 bits, beside one without in float32."""
    place, more = scale.half, {"precision": scale.half_precision}
    without = [scale.part(methods.NONE, place.side, scale.whole_mib, **one) for one in ({}, more)]
    return [*without, scale.part(scale.lms, place.side, place.limit_mib, **more)]


def searches(scale: Scale) -> list[tuple[str, int | None]]:
    """Method and limit of each search for the largest cube: what matters most comes first."""
    return [(method, limit) for limit in (scale.small_mib, scale.whole_mib) for method in (methods.NONE, scale.lms)]


def cube_parts(scale: Scale, method: str, limit_mib: int | None, side: int) -> list[StudyPart]:
    """What tells whether a cube trains: a training of another section, or one that only tries."""
    return [scale.part(method, side, limit_mib), scale.tried(method, side, limit_mib)]


def largest_cubes(trainings: Trainings, scale: Scale) -> list[PartResult]:
    """What the searches tried. Cubes that other sections have trained are not trained again."""
    tried: list[PartResult] = []

    def trains(method: str, limit_mib: int | None, side: int) -> bool:
        timed, only_tried = cube_parts(scale, method, limit_mib, side)
        known = trainings.found.get(timed.name)
        tried.append(known if known is not None and known.outcome not in UNANSWERED else trainings.measure(only_tried))
        return tried[-1].trained

    for method, limit in searches(scale):
        limit_bytes = limit * MIB if limit else trainings.card_bytes or 0
        guess = scale.guess(method, limit_bytes)
        largest(partial(trains, method, limit), scale.sides, guess)
    return tried


def largest(trains: Callable[[int], bool], sides: Sequence[int], guess: int) -> int | None:
    """The largest of the sides that trains, between neighbours of which one does and the other does not; None: none trains.

    From the guess with doubling strides until both kinds are known, then by halves. What trains is taken to train when smaller.
    """
    good, bad = -1, len(sides)
    at, stride = sides.index(guess), 1
    while bad - good > 1:
        if trains(sides[at]):
            good = at
        else:
            bad = at
        if good >= 0 and bad < len(sides):
            at = (good + bad) // 2
        else:
            at = max(0, bad - stride) if good < 0 else min(len(sides) - 1, good + stride)
            stride *= 2
    return sides[good] if good >= 0 else None


def _tried_parts(found: Found, scale: Scale) -> list[StudyPart]:
    return [p for search in searches(scale) for side in scale.sides for p in cube_parts(scale, *search, side)]


SECTIONS = (
    StudySection(name="check", title="Does it work here?", weight=4, parts=check_parts),
    StudySection(name="limits", title="What a limit costs", weight=12, parts=limits_parts),
    StudySection(name="peers", title="XLA and PyTorch on the same network", weight=5, parts=peer_parts),
    StudySection(name="large", title="A step that does not fit the smaller card", weight=4, parts=large_parts),
    StudySection(name="precision", title="In 16 bits", weight=3, parts=precision_parts),
    StudySection(name="placement", title="Is every op where it should be?", weight=1),
    StudySection(name="cubes", title="The largest cube", weight=4, parts=_tried_parts, search=largest_cubes),
    StudySection(name="predictions", title="Predicted and measured"),
)
"""The sections in the order in which they run: the most important first, so that a short time gives a useful page."""
