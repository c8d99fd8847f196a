"""Two runs over an emulated link tell how far the machine of today is from the one that was timed; do they predict the others?

A step under a plan is simulated for links that are slower or faster than stated. Multiplying all its times by c leaves its shape as
it is, so that T(c, l) = c T(1, l / c): one curve of seconds over the link's slowness is all that a plan needs. No TensorFlow here.

    compute   factor on the predicted seconds of computing under a plan, both relative to a step without LMS
    link      factor on the seconds of each transfer at the stated rate, after `compute`
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from lms3d.engine import edit
from lms3d.engine.cost import Machine
from lms3d.engine.ir import StepGraph
from lms3d.engine.plan import Plan
from lms3d.engine.step_model.simulate import simulate

SLOWNESS = tuple(2.0 ** (n / 4) for n in range(-8, 13))
"""How slow the links are that a plan is simulated for: a quarter to eight times the stated seconds."""
_TRIED = 401  # slownesses between them, of which the best is taken


@dataclass(frozen=True, kw_only=True)
class Curve:
    """A run. seconds: by the link's slowness (`SLOWNESS`; one value if the plan moves nothing). measured_seconds: on the machine as
    it was predicted, that is the measured ratio to a step without LMS x the predicted seconds of that step."""

    name: str
    seconds: tuple[float, ...]
    measured_seconds: float

    def at(self, slowness: float) -> float:
        """Predicted seconds, interpolated in the logarithm."""
        if len(self.seconds) == 1:
            return self.seconds[0]
        return float(np.interp(math.log(slowness), [math.log(one) for one in SLOWNESS], self.seconds))


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """Two factors (see above). on: the runs that they were fitted to."""

    compute: float
    link: float
    on: tuple[str, ...]

    def error(self, curve: Curve) -> float:
        """Predicted / measured seconds - 1."""
        return self.compute * curve.at(self.link) / curve.measured_seconds - 1


def calibrate(curves: Sequence[Curve]) -> Calibration:
    """The factors that fit the runs best: least squares of the logarithms; the slowness nearest to 1 if several fit as well.

    A slowness beyond `SLOWNESS` counts as its end: then neither these runs nor the others are met.
    """
    tried = np.exp(np.linspace(math.log(SLOWNESS[0]), math.log(SLOWNESS[-1]), _TRIED)).tolist()
    found = []
    for slowness in sorted(tried, key=lambda one: abs(math.log(one))):
        factors = [math.log(curve.measured_seconds / curve.at(slowness)) for curve in curves]
        mean = sum(factors) / len(factors)
        found.append((round(sum((f - mean) ** 2 for f in factors), 9), math.exp(mean), slowness))
    _, compute, link = min(found, key=lambda one: one[0])
    return Calibration(compute=compute, link=link, on=tuple(curve.name for curve in curves))


def seconds_by_slowness(graph: StepGraph, plan: Plan, machine: Machine, predicted_seconds: float) -> list[float]:
    """The seconds of a planned step over links of `SLOWNESS`. predicted_seconds: over the stated link, by the planner."""
    edited = edit.apply(graph, plan)
    at_rate = simulate(edited, machine).seconds
    return [predicted_seconds + simulate(edited, _slower(machine, by)).seconds - at_rate for by in SLOWNESS]


def _slower(machine: Machine, by: float) -> Machine:
    return replace(
        machine,
        swap_out_bytes_per_second=machine.swap_out_bytes_per_second / by,
        swap_in_bytes_per_second=machine.swap_in_bytes_per_second / by,
    )


def curve(name: str, report: Mapping[str, object], ratio: float | None) -> Curve | None:
    """The curve of a part's report (`harness.part.Result`); None if it was not measured or says too little."""
    without, predicted, by_link = (
        report.get(key) for key in ("unedited_step_seconds", "predicted_step_seconds", "seconds_by_slowness")
    )
    if not ratio or not isinstance(without, float) or not isinstance(predicted, float):
        return None
    if isinstance(by_link, Sequence) and len(by_link) == len(SLOWNESS):
        return Curve(name=name, seconds=tuple(map(float, by_link)), measured_seconds=ratio * without)
    if report.get("swapped_out_bytes"):
        return None
    return Curve(name=name, seconds=(predicted,), measured_seconds=ratio * without)
