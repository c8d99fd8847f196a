"""`python -m experiments.compiled_steps`: what `LMS(compile="auto")` makes of the steps of three public architectures.

Two processes, one that compiles and one that does not, take their steps in turn on one machine; the ratio of each pair counts.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lms3d import cli, console, errors
from lms3d.experiments.harness import command, methods
from lms3d.experiments.harness.child import Child, ChildFailed
from lms3d.experiments.harness.part import MIB, Part
from lms3d.units import format_seconds, format_size

_DESCRIPTION = """\
Measure step times and peaks of a residual encoder U-Net (3D), a SegFormer and a ConvNeXt with LMS(compile="off") and
LMS(compile="auto"), in turns, without a limit that would ask LMS for anything."""

_EPILOG = """\
The first steps take long: each program is compiled and timed once, and remembered in the cache folder.
exit codes: 0 done, 2 wrong option, 130 interrupted"""

NAMES = ("residual-unet", "segformer", "convnext")
OFF, AUTO = methods.UNCOMPILED, methods.COMPILED
WARM_UP = 2
PATIENCE_SECONDS = 3600.0
HEAD = ("network", "parameters", "step off / auto", "ratio", "peak off / auto", "ratio", "programs", "losses differ by")


@dataclass(frozen=True)
class Measured:
    """The figures of one network. seconds: of each step, by method. peaks, losses: by method. programs: how many programs were
    compiled; ops: how many ops they replace."""

    name: str
    parameters: int
    seconds: dict[str, list[float]]
    peaks: dict[str, int]
    losses: dict[str, float]
    programs: int
    ops: int

    @property
    def time_ratio(self) -> float:
        """The median over the pairs of steps."""
        return statistics.median(b / a for a, b in zip(self.seconds[OFF], self.seconds[AUTO], strict=True))

    def cells(self) -> tuple[str, ...]:
        """A row of the table."""
        off, auto = (statistics.median(self.seconds[method]) for method in (OFF, AUTO))
        return (
            self.name,
            f"{self.parameters:,}",
            f"{format_seconds(off)} / {format_seconds(auto)}",
            f"{self.time_ratio:.2f}",
            f"{format_size(self.peaks[OFF])} / {format_size(self.peaks[AUTO])}",
            f"{self.peaks[AUTO] / self.peaks[OFF]:.2f}",
            f"{self.programs} for {self.ops} ops",
            f"{abs(self.losses[AUTO] / self.losses[OFF] - 1):.1e}",
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures and prints. Returns the exit code."""
    return command.main("compiled_steps", _parser, _run, arguments)


def _run(options: argparse.Namespace, typed: str) -> None:
    found = [measure(name, options.side, options.batch_size, options.limit, options.steps) for name in options.networks]
    console.table("Steps with compile off and auto", HEAD, [one.cells() for one in found], left=1)


def measure(name: str, side: int, batch: int, limit: int, steps: int) -> Measured:
    """Trains with both methods. side: 0 is the network's usual one. limit: in bytes."""
    from lms3d.experiments.architectures import NETWORKS

    network = NETWORKS[name]
    if side % network.multiple:
        raise errors.InputError(f"--side {side}: {name} takes multiples of {network.multiple}")
    parts = [
        Part(
            method=method, model=name, resolution=side or network.side, limit_mib=limit // MIB, warm_up=WARM_UP, steps=steps,
            timed=False, batch=batch,
        )
        for method in (OFF, AUTO)
    ]  # fmt: skip
    try:
        parameters, rows, last = _in_turn(parts)
    except ChildFailed as failure:
        raise errors.InputError(f"the training of {name} ended early: {failure}") from None
    report = last[AUTO]["report"]
    return Measured(
        name,
        parameters,
        {method: [row["seconds"] for row in some[WARM_UP:]] for method, some in rows.items()},
        {method: max(row["peak_bytes"] for row in some[WARM_UP:]) for method, some in rows.items()},
        {method: some[-1]["loss"] for method, some in rows.items()},
        report.get("programs", 0),
        report.get("compiled_ops", 0),
    )


def _in_turn(parts: Sequence[Part]) -> tuple[int, dict[str, list[dict[str, Any]]], dict[str, dict[str, Any]]]:
    """The number of parameters, and by method the answers to all steps and the last one. A step of each part at a time."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="lms3d-compiled-steps-")))
        children: dict[str, Child] = {}
        for part in parts:
            children[part.method] = Child(part, folder / f"{part.name}.txt", PATIENCE_SECONDS)
            stack.callback(children[part.method].kill)
        rows: dict[str, list[dict[str, Any]]] = {method: [] for method in children}
        for _ in range(WARM_UP + parts[0].steps):
            for method, child in children.items():
                rows[method].append(child.step())
        last = {method: child.finish() for method, child in children.items()}
        return next(iter(children.values())).ready["parameters"], rows, last


def _parser() -> cli.Parser:
    parser = cli.Parser(prog="python -m experiments.compiled_steps", description=_DESCRIPTION, epilog=_EPILOG)
    add, side = parser.add_argument, "of the cubes or images (default: 64^3, 128^2, 128^2)"
    add("--networks", choices=NAMES, nargs="+", default=NAMES, help="which (default: all)")
    add("--side", type=cli.whole(16), metavar="N", default=0, help=side)
    add("--batch-size", type=cli.whole(1), metavar="N", default=1, help="samples of a step (default: 1)")
    add("--steps", type=cli.whole(1), metavar="N", default=8, help="measured steps of each way (default: 8)")
    limit = "hard limit of each process, which has to leave LMS nothing to do (default: 3GiB)"
    command.add_size(parser, "--limit", "3GiB", limit)
    return parser


if __name__ == "__main__":
    sys.exit(main())
