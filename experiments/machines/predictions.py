"""Every published figure beside what the calibrated model says."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from lms3d.engine.ir import StepGraph
from lms3d.engine.plan import Plan
from lms3d.engine.planners.tflms.rules import build
from lms3d.experiments.harness import published
from lms3d.experiments.harness.published import HIGH, LOW, SUBJECTS, PublishedProfile, PublishedRun
from lms3d.experiments.machines.calibration import Tried, batch_bytes
from lms3d.machines import outlook
from lms3d.machines.model import MachineModel
from lms3d.machines.outlook import Outlook

SECONDS, PERCENT, RATE, RATIO = "s", "%", "GB/s", "x"


@dataclass(frozen=True, kw_only=True)
class PredictedFigure:
    """A figure. calibrated: the model was fitted to it. least, most: if all transfers hide behind compute, and if none does."""

    quantity: str
    title: str
    unit: str
    published: float
    predicted: float
    calibrated: bool = False
    least: float | None = None
    most: float | None = None

    @property
    def error(self) -> float:
        return self.predicted / self.published - 1


class Model:
    """The calibrated machines with the article's steps. steps: side -> graph."""

    def __init__(self, steps: Mapping[int, StepGraph], machines: Mapping[str, MachineModel], tflms: Tried) -> None:
        self.machines, self.steps = machines, steps
        self.plans = {LOW: Plan(), HIGH: build(steps[HIGH], tflms.parameters)}
        self._known: dict[tuple[str, int, int], Outlook] = {}

    def step(self, machine: str, side: int, sharers: int = 1) -> Outlook:
        key = (machine, side, sharers)
        if key not in self._known:
            model = self.machines[machine]
            self._known[key] = outlook.of(
                self.steps[side], self.plans[side], model.speeds(),
                gap_seconds=model.gap_seconds(batch_bytes(side)), sharers=sharers,
            )  # fmt: skip
        return self._known[key]

    def epoch(self, run: PublishedRun) -> float:
        return SUBJECTS * self.step(run.machine, run.side, run.sharers).step_seconds


def rows(model: Model) -> list[PredictedFigure]:
    return [*_epochs(model), *_ratios(model), *_profiles(model)]


def _epochs(model: Model) -> Iterator[PredictedFigure]:
    for run in published.RUNS:
        step = model.step(run.machine, run.side, run.sharers)
        least, most = step.bounds
        yield PredictedFigure(
            quantity="epoch", title=f"{run.title}, {run.side}³, {'LMS' if run.lms else 'no LMS'}", unit=SECONDS,
            published=run.epoch_seconds, predicted=model.epoch(run), calibrated=run in published.CALIBRATED,
            least=SUBJECTS * least, most=SUBJECTS * most,
        )  # fmt: skip
    gap = SUBJECTS * model.step(published.X86, HIGH).gap_seconds
    yield PredictedFigure(
        quantity="between batches", title=f"x86, {HIGH}³, per epoch", unit=SECONDS,
        published=published.GAP_SECONDS, predicted=gap,
    )  # fmt: skip


def _ratios(model: Model) -> Iterator[PredictedFigure]:
    pairs, apart = published.X86_PAIRS, published.X86_APART
    yield PredictedFigure(
        quantity="shared bus", title="x86, 8 GPUs over 4", unit=RATIO,
        published=pairs.epoch_seconds / apart.epoch_seconds, predicted=model.epoch(pairs) / model.epoch(apart),
    )  # fmt: skip
    for one in published.GROWTH:
        yield PredictedFigure(
            quantity="time per voxel", title=f"{one.system}, {HIGH}³ with LMS over {LOW}³ without", unit=RATIO,
            published=one.per_voxel, predicted=model.epoch(one.high) / model.epoch(one.low) / one.voxels,
            calibrated=one.high in published.CALIBRATED,
        )  # fmt: skip


def _profiles(model: Model) -> Iterator[PredictedFigure]:
    for profile in published.PROFILES:
        yield from _profile(profile, model.step(profile.machine, HIGH, profile.sharers))


def _profile(profile: PublishedProfile, step: Outlook) -> Iterator[PredictedFigure]:
    for quantity, unit, scale, known, found in (
        ("GPU utilisation", PERCENT, 100, profile.busy_share, step.busy_share),
        ("host to GPU", RATE, 1e-9, profile.in_bytes_per_second, step.in_bytes_per_second),
        ("GPU to host", RATE, 1e-9, profile.out_bytes_per_second, step.out_bytes_per_second),
    ):
        yield PredictedFigure(
            quantity=quantity, title=profile.title, unit=unit, published=scale * known, predicted=scale * found
        )


def within(found: Sequence[PredictedFigure], share: float) -> tuple[int, int]:
    """How many of the predicted figures err by at most `share`, and how many there are."""
    predicted = [row for row in found if not row.calibrated]
    return sum(abs(row.error) <= share for row in predicted), len(predicted)
