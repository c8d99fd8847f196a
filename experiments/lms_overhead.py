"""`python -m experiments.lms_overhead`: what does training in less memory cost, with LMS and with other methods?

The smallest memory limits with and without LMS, step times under smaller and smaller limits, and the same for TFLMS's automatic
tuning, swapping or recomputing everything, Keras's and TensorFlow's recomputation and PyTorch's checkpoints. On a CPU the limit is
that of TensorFlow's own allocator and tensors go to the disk; on a GPU to the host.

1. Every part is a process of its own, since a hard memory limit is fixed when TensorFlow starts.
2. A ratio of step times is measured side by side: a process without LMS takes a step before each step of the part. If that
   process takes more than a third of the memory, which the swap files need, it runs before the part and again after it.
3. Smallest limits are found by bisection with real runs, not predicted.
4. The same network, data, loss and optimiser for all; PyTorch's own copy of the network has the same sizes.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Sequence

from lms3d import cli, errors
from lms3d.experiments.harness import command, page, store
from lms3d.experiments.harness.bench import Bench
from lms3d.experiments.harness.part import MIB, PartResult
from lms3d.experiments.harness.table import write_csv
from lms3d.experiments.overhead import over_resolution, results, schedule
from lms3d.experiments.overhead.results import MethodComparison
from lms3d.units import format_size

RESOLUTIONS, RISING_RESOLUTIONS, GPU_RESOLUTIONS = (96, 128), (64, 80, 96, 112, 128), (144, 160, 176, 192)

_EPILOG = """\
examples:
  python -m experiments.lms_overhead --minutes 25
  python -m experiments.lms_overhead --resolutions 96 --only limits times
  python -m experiments.lms_overhead --resolutions 144 192 --limits 16GiB      (a GPU)
  python -m experiments.lms_overhead --over-resolution         # one limit, rising resolutions: the case study's figure

groups of --only: times (LMS at --limits, and at 50 % and 35 % of the smallest limit without it, which is found first), limits
(the smallest ones, on a CPU also with swapped tensors copied back; not timed, so that the machine may have other work), tries
(whether LMS trains at --limits; not timed), others (what else TensorFlow has), torch (needs the extra `compare`), curve (LMS at
more limits)
writes into --output: parts/<part>.json, logs/, overhead.csv, report.md, overhead.png; over_resolution.csv and .md"""

_NOTES = f"""\
{results.NOTES}
PyTorch has no hard limit on a CPU and counts no bytes there, so that it is compared by resident memory alone; on a CPU
save_on_cpu copies tensors within the same memory and cannot save any. Swapped out: also the size of the swap files, since each
tensor has a file of its own. `no LMS` runs the same traced step, unedited; `Keras fit as it is` is Keras's own way to trace and run
it. overhead.csv also has the seconds of the first step, which traces, plans and rewrites."""


def _measure(options: argparse.Namespace, typed: str) -> None:
    output = command.folder(options, f"overhead-{options.model}")
    store.remember({"model": options.model, "steps": options.steps}, output)
    on_gpu, rising = shutil.which("nvidia-smi") is not None, options.over_resolution
    usual = GPU_RESOLUTIONS if on_gpu else RISING_RESOLUTIONS if rising else RESOLUTIONS
    wanted = schedule.Wanted(
        model=options.model,
        resolutions=options.resolutions or usual,
        limits_mib=[size // MIB for size in options.limits or ([16 << 30] if on_gpu else [1 << 30] if rising else [])],
        steps=options.steps,
        copied=not on_gpu,
        groups=options.only,
    )
    if rising and len(wanted.limits_mib) != 1:
        raise errors.InputError(
            f"--limits: found {len(wanted.limits_mib)}; expected one, which --over-resolution keeps fixed"
        )
    bench = Bench(output, minutes=options.minutes, again=options.again)
    try:
        if rising:
            over_resolution.measure(bench, wanted, wanted.limits_mib[0])
        else:
            schedule.everything(bench, wanted)
    finally:
        bench.close()
        print((write_over_resolution if rising else write)(wanted, bench, typed))
    print(f"written: {output}")


def write_over_resolution(wanted: schedule.Wanted, bench: Bench, typed: str) -> str:
    """Writes CSV and over_resolution.md of what there is, and returns the text."""
    limit_mib, output = wanted.limits_mib[0], bench.folder
    found = over_resolution.rows(bench, wanted, limit_mib)
    write_csv(output / "over_resolution.csv", over_resolution.COLUMNS, found)
    title = f"# The cost of a hard limit of {format_size(limit_mib * MIB)} over the resolution: {wanted.model}"
    sections = [title, over_resolution.table(found), over_resolution.NOTES, _conditions(bench.found(), typed)]
    return page.write(output / "over_resolution.md", [*sections, *page.gaps(bench)])


def write(wanted: schedule.Wanted, bench: Bench, typed: str) -> str:
    """Writes CSV, figure and report.md of what there is, and returns the report."""
    from lms3d.experiments.overhead import figure

    found, output = bench.found(), bench.folder
    places = list(dict.fromkeys((r.part.model, r.part.resolution) for r in found))
    rows = results.records((MethodComparison(found, *place), "") for place in places)
    write_csv(output / "overhead.csv", results.COLUMNS, rows)
    compared = [MethodComparison(found, wanted.model, resolution) for resolution in wanted.resolutions]
    figure.draw(compared, output / "overhead.png")
    sections = ["# What training in less memory costs"]
    for here in compared:
        sections += [f"## {here.model} at {here.resolution}³", here.table(), here.smallest_limits(), here.same_bits()]
    return page.write(output / "report.md", [*sections, _NOTES, _conditions(found, typed), *page.gaps(bench)])


def _conditions(found: Sequence[PartResult], typed: str) -> str:
    devices = ", ".join(dict.fromkeys(r.device for r in found if r.device)) or "none"
    return f"Batch 1, Adam, Dice loss. Devices: {devices}. {page.machine()} {page.effort(found)} Made by `{typed}`."


def _options(parser: cli.Parser) -> None:
    resolution = cli.checked(cli.resolution, "resolution")
    add = parser.add_argument
    command.add_model(parser)
    add(
        "--resolutions", type=resolution, nargs="+", metavar="N", default=None,
        help="sides of the cubes (default: 96 128, with --over-resolution 64 80 96 112 128; with a GPU 144 160 176 192)",
    )  # fmt: skip
    compared = "hard limits to compare besides those that follow (default: none; with a GPU 16GiB)"
    command.add_size(parser, "--limits", None, compared, nargs="+")
    rising = "instead of all this, what one hard limit (of --limits; 1GiB, with a GPU 16GiB) costs at each resolution"
    add("--over-resolution", action="store_true", default=False, help=rising)
    add("--steps", type=cli.whole(1), metavar="N", default=5, help="measured steps of a part (default: 5)")
    add("--only", choices=schedule.GROUPS, nargs="+", default=schedule.GROUPS, help="groups of parts (default: all)")
    command.add_minutes(parser)
    command.add_again(parser)
    command.add_output(parser, None, "overhead-MODEL")


main, _parser = command.of("lms_overhead", _measure, _options, __doc__, _EPILOG, resumed=True)


if __name__ == "__main__":
    sys.exit(main())
