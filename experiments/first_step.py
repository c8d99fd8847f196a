"""`python -m experiments.first_step`: does the first step take longer with LMS than with Keras's own `fit`?

The first step is where tracing, planning and rewriting are paid for. Every measurement is a process of its own, since the
second step of a process traces nothing; the ways take turns, so that other load on the machine affects all of them alike.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from lms3d import cli, console, errors
from lms3d.experiments.harness import command, methods, page, table
from lms3d.experiments.harness.bench import Trainer
from lms3d.experiments.harness.child import Child, ChildFailed
from lms3d.experiments.harness.part import MIB, Part
from lms3d.units import format_seconds

PATIENCE_SECONDS = 1800.0
UNCOUNTED = 1  # processes of each way that come before

_DESCRIPTION = """\
Measure the first training step, from the first batch to its end: with Keras's own `fit`, with LMS that has nothing to do,
and with LMS under --memory-limit, which has to plan. Fresh processes, in turns; the ratio is of their medians."""

_EPILOG = """\
example:
  python -m experiments.first_step --resolution 96 --memory-limit 785MiB
exit codes: 0 done, 2 wrong option or input, 3 does not fit into the limit, 130 interrupted"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures and prints. Returns the exit code."""
    return command.main("first_step", _parser, _measure, arguments)


def _measure(options: argparse.Namespace, typed: str) -> None:
    ways = [_part(options, methods.KERAS), _part(options, methods.LMS)]
    if options.memory_limit is not None:
        ways.append(_part(options, methods.LMS, options.memory_limit // MIB))
    with tempfile.TemporaryDirectory(prefix="lms3d-first-step-") as folder:
        seconds = first_steps(ways, options.repeats, Path(folder))
    print(report(seconds, options, typed))


def _part(options: argparse.Namespace, method: str, limit_mib: int | None = None) -> Part:
    return Part(
        method=method, model=options.model, resolution=options.resolution, limit_mib=limit_mib, warm_up=0, steps=1,
        timed=False,
    )  # fmt: skip


def first_steps(
    ways: Sequence[Part], repeats: int, folder: Path, start: Callable[..., Trainer] = Child
) -> dict[Part, list[float]]:
    """The seconds of the first step of each way, in `repeats` processes each.

    `UNCOUNTED` more of each come before: they bring files into the page cache, and measure the machine, which is done once.
    The processes have a cache of their own in `folder`, and none finds the plan of another.
    """
    cache = folder / "cache"
    seconds: dict[Part, list[float]] = {way: [] for way in ways}
    for number in range(UNCOUNTED + repeats):
        for way in ways:
            shutil.rmtree(cache / "plans", ignore_errors=True)
            log = folder / f"{way.name}-{number}.txt"
            taken = _first_step(way, log, cache, start)
            console.say(f"{way.title}: {format_seconds(taken)}" + ("" if number >= UNCOUNTED else " (not counted)"))
            if number >= UNCOUNTED:
                seconds[way].append(taken)
    return seconds


def _first_step(way: Part, log: Path, cache: Path, start: Callable[..., Trainer]) -> float:
    """The seconds of the first step of a new process. DoesNotFit if memory does not suffice."""
    try:
        child = start(way, log, PATIENCE_SECONDS, {"LMS3D_CACHE": str(cache)})
        try:
            return float(child.step()["seconds"])
        finally:
            child.kill()
    except ChildFailed as failure:
        if failure.outcome == "failed":
            raise
        raise errors.DoesNotFit(f"{way.title}: {failure}; raise --memory-limit or lower --resolution") from failure


def report(seconds: Mapping[Part, Sequence[float]], options: argparse.Namespace, typed: str) -> str:
    """A table of medians and their ratios to Keras's `fit`."""
    usual = statistics.median(next(of for way, of in seconds.items() if way.method == methods.KERAS))
    rows = []
    for way, of in seconds.items():
        limit = "" if way.limit_mib is None else f" in {way.limit_mib:,} MiB"
        middle, spread = statistics.median(of), f"{format_seconds(min(of))} to {format_seconds(max(of))}"
        rows.append([f"{way.method}{limit}", format_seconds(middle), spread, f"{middle / usual:.2f} x"])
    head = (f"first step of {options.model} at {options.resolution}^3, batch 1", "median", "least to most", "ratio")
    conditions = f"{options.repeats} fresh processes each, in turns. {page.machine()}"
    return f"{table.markdown(head, rows)}\n\n{conditions}\nMade by `{typed}`."


def _parser() -> cli.Parser:
    parser = cli.Parser(prog="python -m experiments.first_step", description=_DESCRIPTION, epilog=_EPILOG)
    command.add_model(parser)
    command.add_resolution(parser, 96)
    limit = "hard limit for the row with a plan (default: without that row)"
    command.add_size(parser, "--memory-limit", None, limit)
    repeats = "processes of each kind that count (default: 5)"
    parser.add_argument("--repeats", type=cli.whole(1), metavar="N", default=5, help=repeats)
    return parser


if __name__ == "__main__":
    sys.exit(main())
