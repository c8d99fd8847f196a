"""`python -m experiments.compiled_steps`: what `LMS(compile="auto")` makes of the steps of three public architectures.

Before each step of a process that compiles, one that does not takes a step on the same machine; the ratio of each pair counts.
"""

from __future__ import annotations

import argparse
import statistics
import sys

from lms3d import cli, errors
from lms3d.experiments.harness import command, methods, page
from lms3d.experiments.harness.bench import Bench
from lms3d.experiments.harness.command import SomeFailed
from lms3d.experiments.harness.part import MIB, PartResult, StudyPart
from lms3d.experiments.harness.table import markdown
from lms3d.units import format_seconds, format_size

_DESCRIPTION = """\
Measure step times and peaks of a residual encoder U-Net (3D), a SegFormer and a ConvNeXt with LMS(compile="off") and
LMS(compile="auto"), in turns, without a limit that would ask LMS for anything."""

_EPILOG = """\
The first steps take long: each program is compiled and timed once, and remembered in the cache folder.

writes into --output: report.md; parts/, logs/
exit codes: 0 done, 1 a training failed, 2 wrong option, 130 interrupted (run again to go on)"""

NAMES = ("residual-unet", "segformer", "convnext")
OFF, AUTO = methods.UNCOMPILED, methods.COMPILED
HEAD = ("network", "parameters", "step off / auto", "ratio", "peak off / auto", "ratio", "programs", "losses differ by")


def _run(options: argparse.Namespace, typed: str) -> None:
    parts = {
        name: pair(name, options.side, options.batch_size, options.limit, options.steps) for name in options.networks
    }
    output = command.folder(options)
    bench = Bench(output, minutes=options.minutes, again=options.again)
    try:
        found = [result for both in parts.values() for part in both if (result := bench.measure(part)) is not None]
    finally:
        bench.close()
    trained = {(r.part.model, r.part.method): r for r in found if r.trained}
    rows = [
        cells(trained[name, OFF], trained[name, AUTO]) for name in parts if {(name, OFF), (name, AUTO)} <= set(trained)
    ]
    sections = ["# Steps with compile off and auto", markdown(HEAD, rows), *page.gaps(bench)]
    print(page.write(output / "report.md", [*sections, f"{page.machine()} Made by `{typed}`."]))
    if failed := [f"{r.part.title}: {r.outcome}: {r.detail}" for r in found if not r.trained]:
        raise SomeFailed(f"{len(failed)} of the trainings ended early: {failed[0]}")


def pair(name: str, side: int, batch: int, limit: int, steps: int) -> tuple[StudyPart, StudyPart]:
    """The step that does not compile, for its peak and loss, and the one that does, timed beside one that does not. side: 0 is the
    network's usual one. limit: in bytes."""
    from lms3d.experiments.architectures import NETWORKS

    network = NETWORKS[name]
    if side % network.multiple:
        raise errors.InputError(f"--side {side}: {name} takes multiples of {network.multiple}")
    off, auto = (
        StudyPart(
            method=method, model=name, resolution=side or network.side, limit_mib=limit // MIB, warm_up=2, steps=steps,
            timed=method == AUTO, baseline_limit_mib=limit // MIB if method == AUTO else None, batch=batch,
        )
        for method in (OFF, AUTO)
    )  # fmt: skip
    return off, auto


def cells(off: PartResult, auto: PartResult) -> list[str]:
    """A row of the table."""
    peaks = [max(one.peaks_bytes) for one in (off, auto)]
    seconds = [statistics.median(some) for some in (auto.baseline_seconds or off.seconds, auto.seconds)]
    return [
        off.part.model,
        f"{off.parameters:,}",
        " / ".join(map(format_seconds, seconds)),
        f"{auto.ratio or seconds[1] / seconds[0]:.2f}",
        " / ".join(map(format_size, peaks)),
        f"{peaks[1] / peaks[0]:.2f}",
        f"{auto.report.get('programs', 0)} for {auto.report.get('compiled_ops', 0)} ops",
        f"{abs((auto.loss or 0.0) / (off.loss or 1.0) - 1):.1e}",
    ]


def _options(parser: cli.Parser) -> None:
    add, side = parser.add_argument, "of the cubes or images (default: 64^3, 128^2, 128^2)"
    add("--networks", choices=NAMES, nargs="+", default=NAMES, help="which (default: all)")
    add("--side", type=cli.whole(16), metavar="N", default=0, help=side)
    add("--batch-size", type=cli.whole(1), metavar="N", default=1, help="samples of a step (default: 1)")
    add("--steps", type=cli.whole(1), metavar="N", default=8, help="measured steps of each way (default: 8)")
    limit = "hard limit of each process, which has to leave LMS nothing to do (default: 3GiB)"
    command.add_size(parser, "--limit", "3GiB", limit)
    command.add_resumable(parser, "compiled-steps")


main, _parser = command.of("compiled_steps", _run, _options, _DESCRIPTION, _EPILOG)


if __name__ == "__main__":
    sys.exit(main())
