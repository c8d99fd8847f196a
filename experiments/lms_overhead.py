"""`python -m experiments.lms_overhead`: what does training in less memory cost, with LMS and with the others?

1. Every part is a process of its own, since a hard memory limit is fixed when TensorFlow starts.
2. A ratio of step times is measured side by side: a process without LMS takes a step before each step of the part. Where that
   process would take the memory that the swap files need (`bench.CROWDED_SHARE`), it runs before the part and again after it.
3. Smallest limits are found by bisection with real runs, not predicted.
4. The same network, data, loss and optimiser for all; PyTorch's own copy of the network has the same sizes.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from experiments.overhead import over_resolution, parts, results, schedule
from experiments.overhead.bench import Bench
from experiments.overhead.parts import MIB, Result
from lms3d import cli, errors
from lms3d.tasks.brats.options import MODELS
from lms3d.units import format_size, parse_size

RESOLUTIONS, RISING_RESOLUTIONS, GPU_RESOLUTIONS = (96, 128), (64, 80, 96, 112, 128), (144, 160, 176, 192)

_DESCRIPTION = """\
Measure what LMS costs: the smallest memory limits with and without it, step times under smaller and smaller limits, and
the same for TFLMS's automatic tuning, swapping or recomputing everything, Keras's and TensorFlow's recomputation and PyTorch's
checkpoints. On a CPU the limit is that of TensorFlow's own allocator and tensors go to the disk; on a GPU to the host.

Each part is saved as it finishes; started again with the same --output only what is missing is run."""

_EPILOG = """\
examples:
  python -m experiments.lms_overhead --minutes 25
  python -m experiments.lms_overhead --resolutions 96 --only limits sweep
  python -m experiments.lms_overhead --resolutions 144 192 --limits 16GiB      (a GPU)
  python -m experiments.lms_overhead --over-resolution         # one limit, rising resolutions: the case study's figure

groups of --only: times (LMS at --limits, and at 50 % and 35 % of the smallest limit without it, which is found first), limits
(the smallest ones, on a CPU also with swapped tensors copied back; not timed, so that the machine may have other work), tries
(whether LMS trains at --limits; not timed), others (what else TensorFlow has), torch (needs the extra `compare`), sweep (12
limits x 3 models at a small size; not timed), curve (LMS at more limits)
writes into --output: parts/<part>.json, logs/, overhead.csv, report.md, overhead.png; over_resolution.csv, .md and .png
exit codes: 0 done, 2 wrong option or input, 130 interrupted (run again to go on)"""

_NOTES = """\
Step: median. x no LMS: median over the steps of (seconds / seconds of a step without LMS, taken just before in another
process; where that process would hold more than a third of the machine's memory: before and after). Peak: most bytes that
TensorFlow's allocator had handed out, weights included. Resident: most anonymous memory of the process during a step above what
it had after importing the framework; all that Python holds of the traced graph is in it.
PyTorch has no hard limit on a CPU and counts no bytes there, so that it is compared by resident memory alone; on a CPU
save_on_cpu copies tensors within the same memory and cannot save any. Predicted: what the planner said / measured - 1.
Swapped out: also the size of the swap files, since each tensor has one of its own.
LMS and TFLMS keep their first plan (`adapt=False`) unless it runs out of memory: a recovery.
`no LMS` runs the same traced step, unedited; `Keras fit as it is` is Keras's own way to trace and run it."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what is missing, report. Returns the exit code."""
    words = sys.argv[1:] if arguments is None else arguments
    command = shlex.join(["python", "-m", "experiments.lms_overhead", *words])
    return errors.run(lambda: _measure(_parser().parse_args(words), command))


def _measure(options: argparse.Namespace, command: str) -> None:
    output = Path(options.output or f"overhead-{options.model}").expanduser()
    _remember(options, output)
    on_gpu = shutil.which("nvidia-smi") is not None
    rising = options.over_resolution
    usual = GPU_RESOLUTIONS if on_gpu else RISING_RESOLUTIONS if rising else RESOLUTIONS
    wanted = schedule.Wanted(
        model=options.model,
        resolutions=options.resolutions or usual,
        sweep_resolution=options.sweep_resolution,
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
        print((write_over_resolution if rising else write)(output, wanted, bench, command))
    print(f"written: {output}")


def write_over_resolution(output: Path, wanted: schedule.Wanted, bench: Bench, command: str) -> str:
    """CSV, figure and over_resolution.md of what there is; returns the text."""
    from lms3d.files import write_text

    limit_mib = wanted.limits_mib[0]
    found = over_resolution.points(bench, wanted, limit_mib)
    over_resolution.write_points(found, output / "over_resolution.csv")
    over_resolution.draw(found, output / "over_resolution.png")
    title = f"# The cost of a hard limit of {format_size(limit_mib * MIB)} over the resolution: {wanted.model}"
    lines = [title, "", over_resolution.table(found), "", over_resolution.NOTES, ""]
    lines += [_conditions([point.result for point in found]), f"Made by `{command}`."]
    lines += ["", "Skipped:", *(f"- {one}" for one in bench.skipped)] if bench.skipped else []
    text = "\n".join(lines) + "\n"
    write_text(output / "over_resolution.md", text)
    return text


def write(output: Path, wanted: schedule.Wanted, bench: Bench, command: str) -> str:
    """CSV, figure and report.md of what there is; returns the report."""
    from experiments.overhead import figure
    from lms3d.files import write_text

    found = bench.found()
    places = list(dict.fromkeys((r.part.model, r.part.resolution) for r in found))
    results.write_csv(found, places, output / "overhead.csv")
    figure.draw(found, wanted.model, wanted.resolutions, output / "overhead.png")
    made = results.promises(found, wanted.model, wanted.resolutions, wanted.sweep_resolution)
    lines = ["# What training in less memory costs", "", results.table(found, wanted.model, wanted.resolutions), ""]
    if "sweep" in wanted.groups:
        lines += [results.sweep_table(found, wanted.sweep_resolution), ""]
    lines += [_NOTES, "", _conditions(found), f"Made by `{command}`.", ""]
    if bench.skipped:
        lines += ["Skipped:", *(f"- {one}" for one in bench.skipped), ""]
    lines += ["## Promises", "", *(f"- {promise}" for promise in made)]
    text = "\n".join(lines) + "\n"
    write_text(output / "report.md", text)
    return text


def _conditions(found: Sequence[Result]) -> str:
    import psutil

    from lms3d.engine.tensorflow import speeds
    from lms3d.training import run_folder

    devices = ", ".join(dict.fromkeys(r.device for r in found if r.device)) or "none"
    versions = ", ".join(
        f"{name} {value}" for name, value in run_folder.versions().items() if name in ("tensorflow", "keras")
    )
    earlier = sum(r.code != parts.code_digest() for r in found)
    return (
        f"Batch 1, Adam, Dice loss. Devices: {devices}. Machine: {os.cpu_count()} cores ({speeds.device_name('CPU:0')}), "
        f"{format_size(psutil.virtual_memory().total)} of memory; {versions}; {datetime.now(UTC):%Y-%m-%d}. "
        f"All parts together took {sum(r.wall_seconds for r in found) / 60:.0f} min."
        + (f" {earlier} of {len(found)} parts were measured before the last change of the code." if earlier else "")
    )


def _remember(options: argparse.Namespace, output: Path) -> None:
    """Keep the settings that parts depend on with the output; InputError where they differ from before."""
    import json

    from lms3d.files import writable_folder, write_json

    writable_folder(output, "--output")
    path, settings = output / "settings.json", {"model": options.model, "steps": options.steps}
    before: dict[str, Any] = json.loads(path.read_text()) if path.exists() else settings
    for name, value in settings.items():
        if before.get(name) != value:
            raise errors.InputError(
                f"--{name}: found {value}, but {output} was begun with {before.get(name)}; give the same one, or another "
                "--output"
            )
    write_json(path, settings)


def _parser() -> cli.Parser:
    parser = cli.Parser(prog="python -m experiments.lms_overhead", description=_DESCRIPTION, epilog=_EPILOG)
    resolution = cli.checked(cli.resolution, "resolution")
    add = parser.add_argument
    add("--model", choices=MODELS, default="isensee2017", help="network (default: isensee2017)")
    add(
        "--resolutions", type=resolution, nargs="+", metavar="N", default=None,
        help="sides of the cubes (default: 96 128, with --over-resolution 64 80 96 112 128; with a GPU 144 160 176 192)",
    )  # fmt: skip
    add(
        "--limits", type=cli.checked(parse_size, "size"), nargs="+", metavar="SIZE", default=None,
        help="hard limits to compare besides those that follow (default: none; with a GPU 16GiB)",
    )  # fmt: skip
    rising = "instead of all this, what one hard limit (of --limits; 1GiB, with a GPU 16GiB) costs at each resolution"
    add("--over-resolution", action="store_true", default=False, help=rising)
    add("--steps", type=cli.whole(1), metavar="N", default=5, help="measured steps of a part (default: 5)")
    add("--only", choices=schedule.GROUPS, nargs="+", default=schedule.GROUPS, help="groups of parts (default: all)")
    add(
        "--sweep-resolution", type=resolution, metavar="N", default=64, help="size of the sweep's volumes (default: 64)"
    )  # fmt: skip
    add(
        "--minutes", type=cli.number(0), metavar="X", default=None,
        help="time limit: parts that do not fit into what is left of it are skipped (default: none)",
    )  # fmt: skip
    add("--again", action="store_true", default=False, help="run parts anew whose results are there (default: off)")
    add("--output", metavar="DIR", default=None, help="where everything goes (default: overhead-MODEL)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
