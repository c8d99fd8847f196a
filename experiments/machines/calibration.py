"""Three published numbers set the model's unknowns; everything else is taken from the machines' files.

1. AC922, 144^3, no LMS, 197 s -> one factor for all rates of the V100.
2. x86, the same, 216 s -> the rate at which its host hands over batches, since the GPU is the same.
3. x86, 192^3, LMS, 1467 s -> the parameters with which TFLMS was run, which the article does not state: of all sync modes and
   thresholds those whose epoch is nearest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from lms3d.engine.cost import step_seconds
from lms3d.engine.ir import StepGraph
from lms3d.engine.planners.tflms import Parameters
from lms3d.engine.planners.tflms.rules import build
from lms3d.experiments.harness import published
from lms3d.experiments.harness.published import SUBJECTS
from lms3d.machines import outlook
from lms3d.machines.model import MachineModel, Number

MODES, THRESHOLDS = (0, 1, 2, 3), tuple(range(1, 11))
AHEAD, GROUPBY = 1, 0  # a swap-in just before each use
_FITTED = "fitted: calibration 1"
CHANNELS = 7  # of images and truth together, float32


@dataclass(frozen=True, kw_only=True)
class Tried:
    """TFLMS's parameters, and the epoch that they come to on x86."""

    sync_mode: int
    threshold: int
    epoch_seconds: float

    @property
    def parameters(self) -> Parameters:
        return Parameters(
            swapout_threshold=self.threshold, swapin_ahead=AHEAD, swapin_groupby=GROUPBY, sync_mode=self.sync_mode
        )

    def error(self, epoch_seconds: float) -> float:
        return self.epoch_seconds / epoch_seconds - 1


def batch_bytes(side: int) -> int:
    """The bytes of one subject: images and truth."""
    return 4 * CHANNELS * side**3


def factor(graph: StepGraph, machine: MachineModel, epoch_seconds: float, subjects: int = SUBJECTS) -> float:
    """The factor on the rates of the GPU with which `subjects` steps of `graph` take epoch_seconds. ValueError if launching takes
    longer."""
    speeds = machine.speeds()
    working = outlook.working_seconds(graph, speeds)
    left = epoch_seconds / subjects - (step_seconds(graph, speeds) - working)
    if left <= 0:
        raise ValueError(f"{epoch_seconds} s an epoch: launching the ops of {subjects} steps takes longer")
    return working / left


def with_gap(
    graph: StepGraph, machine: MachineModel, epoch_seconds: float, size_bytes: int, subjects: int = SUBJECTS
) -> MachineModel:
    """The machine with a host that is slow enough for this epoch. ValueError if the GPU alone takes longer."""
    gap = epoch_seconds / subjects - step_seconds(graph, machine.speeds())
    if gap <= 0:
        raise ValueError(f"{epoch_seconds} s an epoch: found {gap:.3g} s between two batches; expected more than 0")
    rate = Number(value=size_bytes / gap, source=f"fitted: {epoch_seconds:.0f} s per epoch without LMS")
    return replace(machine, batch_bytes_per_second=rate)


def tried(graph: StepGraph, machine: MachineModel, size_bytes: int, subjects: int = SUBJECTS) -> list[Tried]:
    """Every mode with every threshold."""
    found = []
    for mode in MODES:
        for threshold in THRESHOLDS:
            one = Tried(sync_mode=mode, threshold=threshold, epoch_seconds=0.0)
            step = outlook.of(
                graph, build(graph, one.parameters), machine.speeds(), gap_seconds=machine.gap_seconds(size_bytes)
            )
            found.append(replace(one, epoch_seconds=subjects * step.step_seconds))
    return found


def nearest(found: list[Tried], epoch_seconds: float) -> Tried:
    return min(found, key=lambda one: abs(one.error(epoch_seconds)))


def machines(low: StepGraph, files: Mapping[str, MachineModel]) -> dict[str, MachineModel]:
    """Calibrations 1 and 2. low: the article's step at 144^3."""
    times = factor(low, files[published.AC922], published.AC922_LOW.epoch_seconds)
    x86 = files[published.X86].faster(times, _FITTED)
    slow = with_gap(low, x86, published.X86_LOW.epoch_seconds, batch_bytes(published.LOW)).batch_bytes_per_second
    assert slow is not None, "it was just set"
    return applied(files, times, slow.value)


def applied(files: Mapping[str, MachineModel], times: float, batch_bytes_per_second: float) -> dict[str, MachineModel]:
    """The machines with calibrations 1 and 2. All share the factor: the part of a sheet's rates that such a step reaches."""
    rate = Number(value=batch_bytes_per_second, source="fitted: calibration 2")
    fast = {name: machine.faster(times, _FITTED) for name, machine in files.items()}
    return fast | {
        name: replace(machine, batch_bytes_per_second=rate)
        for name, machine in fast.items()
        if machine.batch_bytes_per_second is not None
    }
