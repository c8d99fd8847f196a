"""`python -m experiments.compiled_steps`: what does `LMS(compile="auto")` make of four public architectures?

They are a residual encoder U-Net (3D), a SegFormer, a ConvNeXt and BERT's encoder, without a limit that asks LMS for anything
else. Before each step of a process that compiles, one that does not takes a step on the same machine; the ratio of each pair
counts. The whole step under XLA (`jit_compile=True`) stands beside.
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

_EPILOG = """\
The first steps take long: each program is compiled and timed once, and remembered in the cache folder.

writes into --output: report.md; parts/, logs/"""

NAMES = ("residual-unet", "segformer", "convnext", "bert")
OFF, AUTO, WHOLE = methods.UNCOMPILED, methods.COMPILED, (methods.XLA,)
WHOLE_STEPS = 2
"""Measured steps under XLA. For a processor it has no fast gradients of 3D convolutions: the residual encoder U-Net took 12 to 27 s
instead of 2, beside other work."""
HEAD = (
    "network", "parameters", "step off / auto", "ratio", "peak off / auto", "ratio", "programs", "losses differ by",
    "XLA: step, ratio", "peak, ratio",
)  # fmt: skip


def _run(options: argparse.Namespace, typed: str) -> None:
    parts = {
        name: ways(name, options.side, options.batch_size, options.limit, options.steps) for name in options.networks
    }
    output = command.folder(options)
    bench = Bench(output, minutes=options.minutes, again=options.again)
    try:
        found = [result for some in parts.values() for part in some if (result := bench.measure(part)) is not None]
    finally:
        bench.close()
    trained = {(r.part.model, r.part.method): r for r in found if r.trained}
    rows = [
        cells(trained[name, OFF], trained[name, AUTO], trained.get((name, methods.XLA)))
        for name in parts
        if {(name, OFF), (name, AUTO)} <= set(trained)
    ]
    sections = ["# Steps with compile off and auto", markdown(HEAD, rows), *page.gaps(bench)]
    print(page.write(output / "report.md", [*sections, f"{page.machine()} Made by `{typed}`."]))
    if failed := [f"{r.part.title}: {r.outcome}: {r.detail}" for r in found if not r.trained]:
        raise SomeFailed(f"{len(failed)} of the trainings ended early: {failed[0]}")


def ways(name: str, side: int, batch: int, limit: int, steps: int) -> tuple[StudyPart, ...]:
    """The step that does not compile, for its peak and loss; the one that does, and the one under XLA, each timed beside one that
    does not compile. side: 0 is the network's usual one. limit: in bytes."""
    from lms3d.experiments.architectures import NETWORKS

    network = NETWORKS[name]
    if side % network.multiple:
        raise errors.InputError(f"--side {side}: {name} takes multiples of {network.multiple}")
    return tuple(
        StudyPart(
            method=method, model=name, resolution=side or network.side, limit_mib=limit // MIB, warm_up=2, timed=method != OFF,
            steps=steps if method != methods.XLA else min(steps, WHOLE_STEPS), batch=batch,
            baseline_limit_mib=limit // MIB if method != OFF else None,
        )
        for method in (OFF, AUTO, *WHOLE)
    )  # fmt: skip


def cells(off: PartResult, auto: PartResult, whole: PartResult | None = None) -> list[str]:
    """A row of the table. whole: the step under XLA, if it trained."""
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
        *(("", "") if whole is None else _whole_cells(whole, seconds[0], peaks[0])),
    ]


def _whole_cells(whole: PartResult, seconds: float, peak_bytes: int) -> tuple[str, str]:
    """Step and peak under XLA, each with its ratio to that of the step that does not compile."""
    own_seconds, own_bytes = statistics.median(whole.seconds), max(whole.peaks_bytes)
    ratio = whole.ratio or own_seconds / seconds
    return f"{format_seconds(own_seconds)}, {ratio:.2f}", f"{format_size(own_bytes)}, {own_bytes / peak_bytes:.2f}"


def _options(parser: cli.Parser) -> None:
    add, side = (
        parser.add_argument,
        "of the cubes or images, length of the sequences (default: 64^3, 128^2, 128^2, 512)",
    )
    add("--networks", choices=NAMES, nargs="+", default=NAMES, help="which (default: all)")
    add("--side", type=cli.whole(16), metavar="N", default=0, help=side)
    add("--batch-size", type=cli.whole(1), metavar="N", default=1, help="samples of a step (default: 1)")
    add("--steps", type=cli.whole(1), metavar="N", default=8, help="measured steps of each way (default: 8)")
    limit = "hard limit of each process, which has to leave LMS nothing to do (default: 3GiB)"
    command.add_size(parser, "--limit", "3GiB", limit)
    command.add_resumable(parser, "compiled-steps")


main, _parser = command.of(
    "compiled_steps", _run, _options, __doc__, _EPILOG, exits={1: "a training failed"}, resumed=True
)


if __name__ == "__main__":
    sys.exit(main())
