"""`python -m lms3d.tasks.segmentation.proposal DATA`: the grid, the network and the command that suit a data set of any organ.

`python -m lms3d.data.prepare DATA --examine` prints it. The first choice is the largest whole volume whose training step fits into
the memory limit with LMS: at nnU-Net's target spacing if that fits, else at the finest of some coarser ones, which grow along the
finest axes first. Nothing is measured: a step fits if a plan for a GPU does (`lms3d.plan_step` with a machine from a file).
"""

from __future__ import annotations

import dataclasses
import math
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lms3d import cli, console, errors, tasks
from lms3d.errors import DoesNotFit
from lms3d.tasks.segmentation.options import SegmentationConfig
from lms3d.units import format_size, parse_size

if TYPE_CHECKING:
    from lms3d.data.segmentation.spacing import Sizes, Spacing

FACTORS = (1.0, 1.25, 1.5, 2.0, 2.5, 3.0, 4.0, 6.0)
"""How much coarser than the target spacing a grid may be, along its finest axis."""
MOST_BATCH = 8
_COARSE_STEP, _FINE_STEP, _FEW = 16, 4, 48  # sides are rounded up to multiples of 16, and of 4 on an axis of few voxels
_MACHINE = "v100-pcie-16gb"  # its speeds; how much memory it has does not matter


@dataclass(frozen=True, kw_only=True)
class WholeGrid:
    """A grid that holds every case whole."""

    spacing_mm: Spacing
    box: tuple[int, int, int]
    factor: float


@dataclass(frozen=True, kw_only=True)
class Fitting:
    """A grid whose step fits, and what the step needs."""

    grid: WholeGrid
    without_bytes: int
    """The smallest limit without LMS, for a batch of one."""


def wholes(sizes: Sizes) -> list[WholeGrid]:
    """The grids to choose from, the finest first."""
    from lms3d.data.segmentation import spacing

    target = spacing.target(sizes)
    found = []
    for factor in FACTORS:
        a, b, c = (round(max(mm, min(target) * factor), 4) for mm in target)
        extents = (sizes.shapes * sizes.spacings_mm / (a, b, c)).max(axis=0)
        x, y, z = (_rounded(extent) for extent in extents)
        found.append(WholeGrid(spacing_mm=(a, b, c), box=(x, y, z), factor=factor))
    return found


def _rounded(extent: float) -> int:
    step = _COARSE_STEP if extent >= _FEW else _FINE_STEP
    return max(8, math.ceil(round(extent, 3) / step) * step)


def finest(grids: Sequence[WholeGrid], needs: Callable[[WholeGrid], int | None]) -> Fitting | None:
    """The first grid that fits, if all coarser ones do; None if none does. needs: grid -> `without_bytes`; None: does not fit."""
    best: Fitting | None = None
    low, high = 0, len(grids)
    while low < high:
        middle = (low + high) // 2 if best or low else low  # the finest first: it is the one that most people hope for
        if (without := needs(grids[middle])) is None:
            low = middle + 1
        else:
            best, high = Fitting(grid=grids[middle], without_bytes=without), middle
    return best


def lines(
    found: Fitting | None, grids: Sequence[WholeGrid], options: SegmentationConfig, limit_bytes: int
) -> list[str]:
    """The proposal in words, with the command."""
    limit = format_size(limit_bytes).replace(" ", "")
    if found is None:
        coarse = grids[-1]
        return [
            f"proposal: not even voxels of {_by(coarse.spacing_mm)} mm fit into {limit} whole; raise --memory-limit"
        ]
    grid = found.grid
    batch = max(1, min(MOST_BATCH, limit_bytes // found.without_bytes))
    command = (
        f"python -m lms3d.train --task segmentation --data {shlex.quote(str(options.data))} --model {options.model}"
    )
    box, voxel = _by(grid.box), _by(grid.spacing_mm)
    told = [
        f"proposal for {limit}: whole volumes of {voxel} mm, which {box} voxels hold; {options.model} with {_levels(grid)} levels, "
        f"batch {batch}; without LMS it would need {format_size(found.without_bytes)}",
        f"  {command} --box {box} --spacing {voxel} --batch-size {batch} --memory-limit {limit}",
    ]
    if grid.factor > 1:
        patch = tuple(min(pair) for pair in zip(grid.box, grids[0].box, strict=True))
        fine = _by(grids[0].spacing_mm)
        told += [
            f"or patches at the data set's own {fine} mm:",
            f"  {command} --spacing {fine} --patch {_by(patch)} --memory-limit {limit}",
        ]
    return told


def _by(numbers: Sequence[float]) -> str:
    return "x".join(f"{number:g}" for number in numbers)


def _levels(grid: WholeGrid) -> int:
    from lms3d.models.topology import planned

    return planned(grid.box, grid.spacing_mm).levels


def _needs(options: SegmentationConfig, limit_bytes: int) -> Callable[[WholeGrid], int | None]:
    """See `finest`."""
    from lms3d.device import startup
    from lms3d.engine import tuning
    from lms3d.machines import machine_files
    from lms3d.tasks.segmentation.task import TASK

    with console.quiet_native_log():  # it imports TensorFlow
        from lms3d.models import layers
        from lms3d.training import compilation, needs

    startup.start_tensorflow(seed=options.seed, precision=options.precision)
    speeds = machine_files.load(_MACHINE).speeds()

    def ask(grid: WholeGrid) -> int | None:
        asked = dataclasses.replace(
            options, box=grid.box, spacing=_by(grid.spacing_mm), memory_limit=limit_bytes, swap_tier="host"
        )
        console.say(f"planning a step of {_by(grid.box)} voxels of {_by(grid.spacing_mm)} mm")
        with layers.traced_for_gpu():
            model = compilation.compiled_model(asked, TASK)
            try:
                planned = needs.plan_training_step(
                    asked, TASK, model, effort_seconds=tuning.LEAST_SECONDS, machine=speeds, at_floor=False
                )
            except DoesNotFit:
                return None
        return planned.prediction.unedited_limit_bytes

    return ask


def main(arguments: Sequence[str] | None = None) -> int:
    """Reads headers, plans, prints. Returns the exit code."""
    return errors.run(lambda: _run(_parser().parse_args(arguments)))


def _run(given: object) -> None:
    from lms3d.data.segmentation import layouts, spacing
    from lms3d.device import memory

    options = tasks.chosen({"task": "segmentation", **vars(given)})
    assert isinstance(options, SegmentationConfig)
    assert options.data is not None, "the parser requires it"
    grids = wholes(spacing.sizes(layouts.find(options.data, require_truth=False).data_set.cases))
    with console.quiet_native_log():  # it may import TensorFlow
        limit_bytes = options.memory_limit or memory.device_memory_bytes()
    found = finest(grids, _needs(options, limit_bytes))
    console.say("\n".join(lines(found, grids, options, limit_bytes)))


def _parser() -> cli.Parser:
    parser = cli.Parser(prog="python -m lms3d.tasks.segmentation.proposal", description="Propose a grid and a command.")
    parser.add_argument("data", type=cli.path, metavar="DATA", help="folder of the data set, or a manifest")
    limit = "memory of the device (default: what it has)"
    parser.add_argument("--memory-limit", type=cli.checked(parse_size, "size"), metavar="SIZE", help=limit)
    parser.add_argument("--model", choices=SegmentationConfig.models, help="network (default: isensee2017)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
