"""`python -m experiments.compiled_steps`: what `LMS(compile="auto")` makes of the steps of three public architectures.

Two processes, one that compiles and one that does not, take their steps in turn on one machine; the ratio of each pair counts.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from lms3d import cli, console, errors
from lms3d.units import format_seconds, format_size, parse_size

_DESCRIPTION = """\
Measure step times and peaks of a residual encoder U-Net (3D), a SegFormer and a ConvNeXt with LMS(compile="off") and
LMS(compile="auto"), in turns, without a limit that would ask LMS for anything."""

_EPILOG = """\
The first steps take long: each program is compiled and timed once, and remembered in the cache folder.
exit codes: 0 done, 2 wrong option, 130 interrupted"""

NAMES = ("residual-unet", "segformer", "convnext")
WAYS = ("off", "auto")
WARM_UP = 2


@dataclass(frozen=True)
class Measured:
    """Of one network. seconds: of each step, by way. peaks, losses: by way. programs: what the last line of the child told."""

    name: str
    parameters: int
    seconds: dict[str, list[float]]
    peaks: dict[str, int]
    losses: dict[str, float]
    programs: dict[str, int]

    @property
    def time_ratio(self) -> float:
        """Median over the pairs of steps."""
        return statistics.median(b / a for a, b in zip(self.seconds["off"], self.seconds["auto"], strict=True))

    def cells(self) -> tuple[str, ...]:
        off, auto = (statistics.median(self.seconds[way]) for way in WAYS)
        return (
            self.name,
            f"{self.parameters:,}",
            f"{format_seconds(off)} / {format_seconds(auto)}",
            f"{self.time_ratio:.2f}",
            f"{format_size(self.peaks['off'])} / {format_size(self.peaks['auto'])}",
            f"{self.peaks['auto'] / self.peaks['off']:.2f}",
            f"{self.programs['programs']} for {self.programs['ops']} ops",
            f"{abs(self.losses['auto'] / self.losses['off'] - 1):.1e}",
        )


HEAD = ("network", "parameters", "step off / auto", "ratio", "peak off / auto", "ratio", "programs", "losses differ by")


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print. Returns the exit code."""
    return errors.run(lambda: _run(_parser().parse_args(arguments)))


def _run(options: argparse.Namespace) -> None:
    found = [measure(name, options.side, options.batch_size, options.limit, options.steps) for name in options.networks]
    console.table("Steps with compile off and auto", HEAD, [one.cells() for one in found], left=1)


def measure(name: str, side: int, batch: int, limit: int, steps: int) -> Measured:
    """side: 0 is the network's usual one. limit: in bytes."""
    from experiments.architectures import NETWORKS

    network = NETWORKS[name]
    side = side or network.side
    if side % network.multiple:
        raise errors.InputError(f"--side {side}: {name} takes multiples of {network.multiple}")
    with contextlib.ExitStack() as stack:
        children = {
            way: stack.enter_context(_child([name, *map(str, (side, batch, way, limit, steps + WARM_UP))]))
            for way in WAYS
        }
        parameters = [_line(child)["parameters"] for child in children.values()]
        rows: dict[str, list[dict[str, Any]]] = {way: [] for way in WAYS}
        for _ in range(steps + WARM_UP):
            for way, child in children.items():
                rows[way].append(_step(child))
        last = {way: _line(child) for way, child in children.items()}
    return Measured(
        name,
        parameters[0],
        {way: [row["seconds"] for row in rows[way][WARM_UP:]] for way in WAYS},
        {way: max(row["peak_bytes"] for row in rows[way][WARM_UP:]) for way in WAYS},
        {way: rows[way][-1]["loss"] for way in WAYS},
        last["auto"],
    )


class _Ended(Exception):
    """A child tells nothing more."""

    def __init__(self, child: subprocess.Popen[str]) -> None:
        super().__init__()
        self.child = child


@contextlib.contextmanager
def _child(words: Sequence[str]) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "experiments.architectures.child", *words]
    with tempfile.TemporaryFile("w+") as said:
        child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said, text=True)
        try:
            yield child
        except _Ended as ended:
            if ended.child is not child:
                raise
            said.seek(0)
            why = (said.read().strip().splitlines() or ["without a word"])[-1]
            raise errors.InputError(f"the training of {words[0]} ended early: {why}") from None
        finally:
            child.kill()
            child.wait()


def _step(child: subprocess.Popen[str]) -> dict[str, Any]:
    assert child.stdin is not None, "a pipe"
    with contextlib.suppress(BrokenPipeError):  # `_line` says that it has ended
        child.stdin.write("\n")
        child.stdin.flush()
    return _line(child)


def _line(child: subprocess.Popen[str]) -> dict[str, Any]:
    """What a child tells next."""
    assert child.stdout is not None, "a pipe"
    for line in child.stdout:
        if line.startswith("{"):
            told: dict[str, Any] = json.loads(line)
            return told
    raise _Ended(child)


def _parser() -> cli.Parser:
    parser = cli.Parser(prog="python -m experiments.compiled_steps", description=_DESCRIPTION, epilog=_EPILOG)
    add = parser.add_argument
    add("--networks", choices=NAMES, nargs="+", default=NAMES, help="which (default: all)")
    add(
        "--side",
        type=cli.whole(16),
        metavar="N",
        default=0,
        help="of the cubes or images (default: 64^3, 128^2, 128^2)",
    )
    add("--batch-size", type=cli.whole(1), metavar="N", default=1, help="samples of a step (default: 1)")
    add("--steps", type=cli.whole(1), metavar="N", default=8, help="measured steps of each way (default: 8)")
    limit = "hard limit of each process, which has to leave LMS nothing to do (default: 3GiB)"
    add("--limit", type=cli.checked(parse_size, "size"), metavar="SIZE", default="3GiB", help=limit)
    return parser


if __name__ == "__main__":
    sys.exit(main())
