"""`python -m lms3d.plan --machine`: a step on a machine that need not be here, and the largest cube that fits there.

- ON-1: Three methods are compared in one simulator: without LMS, in as much memory as that takes; our plan and TFLMS's, under the
  limit.
- ON-2: For a machine from a file, the step is traced as for a GPU (`lms3d.models.layers.traced_for_gpu`) and nothing is measured.
  For `here`, it is planned and measured as always.
- ON-3: The largest cube is found by trying multiples of 16, larger ones until one does not fit, then those between. Only whether a
  plan fits counts: so our search has the effort of a short run, and TFLMS has the parameters that move most. If the bytes that
  stay throughout the step are above the limit, nothing is planned.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass

from lms3d import console
from lms3d.cli import LONGEST_SIDE
from lms3d.config import TrainConfig
from lms3d.device import memory, workspace
from lms3d.engine import tuning
from lms3d.engine.plan import Plan
from lms3d.errors import DoesNotFit
from lms3d.keras_step.estimate import Planned
from lms3d.machines import outlook
from lms3d.machines.model import MachineModel
from lms3d.machines.outlook import Outlook
from lms3d.models import layers
from lms3d.tasks import TASKS
from lms3d.training import compilation, needs
from lms3d.units import format_size

WITHOUT, OURS, TFLMS = "without LMS", "lms3d", "TFLMS"
_SIDES = 16  # what networks divide by
_START, _GROWTH = 128, 1.25


@dataclass(frozen=True, kw_only=True)
class LimitedMachine:
    """A machine, and the limit there. model: None is the machine that this runs on."""

    model: MachineModel | None
    limit_bytes: int

    @property
    def title(self) -> str:
        return "this machine" if self.model is None else self.model.title

    @property
    def sharers(self) -> int:
        """How many GPUs share a link if all are in use."""
        return 1 if self.model is None else int(self.model.devices_per_link.value)


def place(model: MachineModel | None, options: TrainConfig) -> LimitedMachine:
    """The machine with the user's limit, or else its own."""
    whole = memory.device_memory_bytes() if model is None else model.limit_bytes
    return LimitedMachine(model=model, limit_bytes=options.memory_limit or whole)


def show(options: TrainConfig, where: LimitedMachine, title: str) -> None:
    """Plans the step and prints a table. DoesNotFit if not even our plan fits."""
    console.say(f"Planning {title} for {where.title}, limit {format_size(where.limit_bytes)}")
    ours = _planned(options, where, "auto")
    limit, batch = ours.request.limit_bytes, outlook.batch_bytes(ours.graph)
    gap = 0.0 if where.model is None else where.model.gap_seconds(batch)
    console.table(
        f"One step on {where.title} (predicted; the machine's file says where its numbers are from)",
        ("", "peak", "step", "x no LMS", "busy", "out", "in", "GB/s out", "GB/s in"),
        [
            _without(ours, _alone(ours, gap)),
            *(_row(*method) for method in _steps(ours, options, where, gap)),
        ],
    )
    if ours.prediction.limit_bytes > limit:
        raise ours.report.refusal()


def _steps(
    ours: Planned, options: TrainConfig, where: LimitedMachine, gap: float
) -> Iterator[tuple[str, Outlook | None, float]]:
    """The name of each method of ON-1, its outlook (None if it does not fit), and the seconds of the step without LMS.

    If the GPUs of the machine share links, each plan comes again with all GPUs in use.
    """
    if ours.prediction.limit_bytes <= ours.request.limit_bytes:
        alone = _alone(ours, gap)
        yield OURS, _outlook(ours, gap), alone
        if where.sharers > 1:
            yield f"{OURS}, {where.sharers} on a link", _outlook(ours, gap, where.sharers), alone
    else:
        yield OURS, None, 0.0
    try:
        theirs = _planned(options, where, "tflms", slabs="off")
    except DoesNotFit:
        yield TFLMS, None, 0.0
        return
    alone = _alone(theirs, gap)
    yield TFLMS, _outlook(theirs, gap), alone
    if where.sharers > 1:
        yield f"{TFLMS}, {where.sharers} on a link", _outlook(theirs, gap, where.sharers), alone


def _alone(planned: Planned, gap: float) -> float:
    """The seconds of the whole step without LMS, by the costs that this plan was made from: `here` these may be measured or not."""
    if planned.prediction.slabs:
        return planned.prediction.unedited_step_seconds + gap
    return outlook.of(planned.graph, Plan(), planned.machine, gap_seconds=gap).step_seconds


def _outlook(planned: Planned, gap: float, sharers: int = 1) -> Outlook:
    return outlook.of(planned.graph, planned.plan, planned.machine, gap_seconds=gap, sharers=sharers)


def _planned(
    options: TrainConfig, where: LimitedMachine, planner: str, *, slabs: str | None = None, effort_seconds: float | None = None,
    at_floor: bool = True,
) -> Planned:  # fmt: skip
    """The plan there (ON-2). slabs: in place of the options' own. effort_seconds: None searches to the end. at_floor: see
    `plan_step`."""
    from lms3d.device import startup

    startup.start_tensorflow(seed=options.seed, precision=options.precision)
    options = dataclasses.replace(options, memory_limit=where.limit_bytes, slabs=slabs or options.slabs)
    if options.cudnn_workspace is not None:
        workspace.set_limit(options.cudnn_workspace)
    if where.model is not None:
        options = dataclasses.replace(options, swap_tier="host")
    task = TASKS[options.task]
    with nullcontext() if where.model is None else layers.traced_for_gpu():
        model = compilation.compiled_model(options, task)
        speeds = None if where.model is None else where.model.speeds()
        return needs.plan_training_step(
            options, task, model, effort_seconds=effort_seconds, machine=speeds, planner=planner, at_floor=at_floor
        )


def _without(planned: Planned, seconds: float) -> tuple[str, ...]:
    figures = planned.prediction
    return (WITHOUT, format_size(figures.unedited_peak_bytes), f"{seconds:.3g} s", "1.00", *[""] * 5)


def _row(name: str, step: Outlook | None, without_seconds: float) -> tuple[str, ...]:
    if step is None:
        return (name, "does not fit", *[""] * 7)
    average = (size / step.step_seconds / 1e9 for size in (step.out_bytes, step.in_bytes))
    return (
        name, format_size(step.peak_bytes), f"{step.step_seconds:.3g} s", f"{step.step_seconds / without_seconds:.2f}",
        f"{step.busy_share:.0%}", format_size(step.out_bytes), format_size(step.in_bytes), *(f"{r:.1f}" for r in average),
    )  # fmt: skip


def show_largest(options: TrainConfig, where: LimitedMachine) -> None:
    """Prints the largest cube of each method (ON-3)."""
    sides, axes = _Sides(options, where), TASKS[options.task].axes
    found = {WITHOUT: largest(sides.fits_without)}
    for method, fits in ((TFLMS, sides.fits_tflms), (OURS, sides.fits_ours)):
        found[method] = largest(fits, known=found[WITHOUT])
    least = found[WITHOUT]
    shape, unit = ("cube", "voxels") if axes == 3 else ("square", "pixels")
    console.table(
        f"The largest {shape} of {options.model} on {where.title}, limit {format_size(where.limit_bytes)} (predicted)",
        ("", shape, f"{unit}, x no LMS"),
        [
            (name, f"{side}^{axes}" if side else "none", f"{(side / least) ** axes:.2f}" if side and least else "")
            for name, side in found.items()
        ],
    )


def largest(fits: Callable[[int], bool], *, known: int = 0) -> int:
    """The largest multiple of 16 that fits, if all smaller ones do, up to the largest that `train` takes.

    known: a side that fits; 0 if none is known.
    """
    good, bad = known, _larger(known) if known else _START
    while bad <= LONGEST_SIDE and fits(bad):
        good, bad = bad, _larger(bad)
    while bad - good > _SIDES:
        middle = _rounded((good + bad) / 2)
        good, bad = (middle, bad) if fits(middle) else (good, middle)
    return good


def _larger(side: int) -> int:
    return min(LONGEST_SIDE + _SIDES, max(side + _SIDES, _rounded(side * _GROWTH)))


def _rounded(side: float) -> int:
    return max(_SIDES, round(side / _SIDES) * _SIDES)


class _Sides:
    """Answers which cubes, or squares, fit on a machine, and prints each answer."""

    def __init__(self, options: TrainConfig, where: LimitedMachine) -> None:
        self._options, self._where = options, where
        self._axes, self._known = TASKS[options.task].axes, dict[int, tuple[int, int]]()

    def fits_without(self, side: int) -> bool:
        needed, _ = self._unplanned(side)
        self._say(side, WITHOUT, f"needs {format_size(needed)}")
        return needed <= self._where.limit_bytes

    def fits_tflms(self, side: int) -> bool:
        tightest = dataclasses.replace(self._options, swapout_threshold=1, swapin_ahead=1, swapin_groupby=0)
        return self._fits(tightest, side, TFLMS, "tflms", slabs="off")

    def fits_ours(self, side: int) -> bool:
        return self._fits(self._options, side, OURS, "auto")

    def _unplanned(self, side: int) -> tuple[int, int]:
        """Bytes: the smallest limit without LMS, and what lies there all through the step, which no plan can move."""
        if side not in self._known:
            unlimited = dataclasses.replace(self._where, limit_bytes=1 << 50)
            options = dataclasses.replace(self._options, resolution=side)
            planned = _planned(options, unlimited, "off", slabs="off")
            self._known[side] = planned.prediction.unedited_limit_bytes, planned.graph.resident_bytes
        return self._known[side]

    def _fits(self, options: TrainConfig, side: int, method: str, planner: str, *, slabs: str | None = None) -> bool:
        _, resident = self._unplanned(side)
        if resident > self._where.limit_bytes:
            self._say(side, method, f"does not fit: {format_size(resident)} lie there all through the step")
            return False
        options = dataclasses.replace(options, resolution=side)
        try:
            planned = _planned(
                options, self._where, planner, slabs=slabs, effort_seconds=tuning.LEAST_SECONDS, at_floor=False
            )
        except DoesNotFit:
            self._say(side, method, "does not fit")
            return False
        self._say(side, method, f"peak {format_size(planned.prediction.predicted_peak_bytes)}")
        return True

    def _say(self, side: int, method: str, text: str) -> None:
        console.say(f"{side}^{self._axes}, {method}: {text}")
