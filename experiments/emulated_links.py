"""`python -m experiments.emulated_links`: what would training in less memory cost behind the link of another machine?

1. Swapped tensors go through a serial channel each way whose bandwidth stands to this machine's FLOP/s as the link of the real
   machine stands to its own (`experiments.links.machines`, with the sources). Steps, limits and plans are real.
2. The step without LMS, which sets those rates, is measured first; the rates are kept with the output.
3. As in `experiments.lms_overhead` every part is a process under a hard limit, and ratios are taken side by side.
4. A link that is faster than this machine copies is not emulated: its rows say "model only" and hold what the planner predicts.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from experiments.feeding.parts import remember
from experiments.links import machines, study
from experiments.links.copying import copy_seconds_per_byte
from experiments.links.study import FLOOR, SHARES, Study
from experiments.overhead import parts
from experiments.overhead.bench import Bench
from experiments.overhead.schedule import Wanted
from lms3d import cli, errors
from lms3d.files import writable_folder, write_text
from lms3d.tasks.brats.options import MODELS
from lms3d.units import format_size

_DESCRIPTION = """\
Measure what LMS, TFLMS's automatic tuning, swapping everything and recomputation cost where the link to the swap tier is as slow
for this machine as that of another machine is for it: step time against none of them, predicted beside measured.

Each part is saved as it finishes; started again with the same --output only what is missing is run."""

_EPILOG = """\
examples:
  python -m experiments.emulated_links --minutes 60
  python -m experiments.emulated_links --resolutions 64 --emulate-link pcie3 400MB/s+50us --shares 0.5 0.35 --no-floor

writes into --output: parts/<part>.json, logs/, links.json (the rates), links.csv, report.md, links.png
exit codes: 0 done, 2 wrong option or input, 130 interrupted (run again to go on)"""

_NOTES = f"""\
x no LMS: median over the steps of (seconds / seconds of a step without LMS, taken just before in another process). Predicted:
by the planner, before the first step; of x no LMS against its own prediction without LMS. Bound: the longest of the plan's
computing without what is run again, its bytes out and its bytes in: no step with these transfers is shorter; of x no LMS.
Share: the limit, or where there is none the peak, of the smallest limit that trained without LMS. Peak: most bytes that
TensorFlow's allocator had handed out. Achieved: bytes / seconds in which a transfer was asked for and had not ended. Copies'
processor time: what the copies of a step took of this processor, and of the processor time of the whole step; a device would
copy by itself, so that the ratio behind a real link is lower by up to as much. Calibrated: predicted / measured x no LMS - 1,
once two runs have told how much slower than predicted computing under a plan and transfers are; nothing for these two. Model
only: the link needs more than {study.REACHED:.0%} of what one thread copies here; the prediction is for copies that cost the
processor nothing.
Swapped bytes lie in the memory of the process. LMS and TFLMS keep their first plan unless it runs out of memory: a recovery.
Recomputation moves no bytes: its rows are the same for every link."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what is missing, report. Returns the exit code."""
    words = sys.argv[1:] if arguments is None else arguments
    command = shlex.join(["python", "-m", "experiments.emulated_links", *words])
    return errors.run(lambda: _measure(_parser().parse_args(words), command))


def _measure(options: argparse.Namespace, command: str) -> None:
    output = writable_folder(Path(options.output).expanduser(), "--output")
    remember({"model": options.model, "steps": options.steps}, output)
    wanted = Wanted(
        model=options.model, resolutions=options.resolutions, sweep_resolution=min(options.resolutions), steps=options.steps
    )  # fmt: skip
    shares = [*options.shares, *([FLOOR] if options.floor else [])]
    bench = Bench(output, minutes=options.minutes, again=options.again)
    try:
        for resolution in options.resolutions:
            Study(bench, wanted, resolution, options.emulate_link, shares).run()
    finally:
        bench.close()
        print(write(output, options.model, bench, command))
    print(f"written: {output}")


def write(output: Path, model: str, bench: Bench, command: str) -> str:
    """CSV, figure and report.md of what there is; returns the report."""
    from experiments.links import figure, report

    results = bench.found()
    rates = study.read_rates(output)
    found = [report.Found(results, model, int(side), rates[side]) for side in sorted(rates, key=int)]
    report.write_records(found, output / "links.csv")
    figure.draw(found, output / "links.png")
    sections = ["# LMS behind the links of other machines", *(report.text(one) for one in found)]
    sections += ["## Aims", "\n".join(f"- {aim}" for one in found for aim in report.aims(one)), _NOTES]
    sections += ["\n".join(["Skipped:", *(f"- {one}" for one in bench.skipped)])] if bench.skipped else []
    text = "\n\n".join([*sections, _conditions(results, command)]) + "\n"
    write_text(output / "report.md", text)
    return text


def _conditions(results: Sequence[parts.Result], command: str) -> str:
    import psutil

    from lms3d.engine.tensorflow import speeds

    earlier = sum(r.code != parts.code_digest() for r in results)
    old = f" {earlier} of {len(results)} parts were measured before the last change of the code." if earlier else ""
    memory = format_size(psutil.virtual_memory().total)
    return (
        f"Batch 1, Adam, Dice loss. Machine: {os.cpu_count()} cores ({speeds.device_name('CPU:0')}), {memory} of memory; one "
        f"thread copies {1e-9 / copy_seconds_per_byte():.1f} GB/s; {datetime.now(UTC):%Y-%m-%d}. All parts together took "
        f"{sum(r.wall_seconds for r in results) / 60:.0f} min.{old} Made by `{command}`."
    )


def _parser() -> cli.Parser:
    parser = cli.Parser(prog="python -m experiments.emulated_links", description=_DESCRIPTION, epilog=_EPILOG)
    resolution, link = cli.checked(cli.resolution, "resolution"), cli.checked(machines.checked, "link")
    add = parser.add_argument
    add("--model", choices=MODELS, default="isensee2017", help="network (default: isensee2017)")
    add("--resolutions", type=resolution, nargs="+", metavar="N", default=[96], help="sides of the cubes (default: 96)")
    add(
        "--emulate-link", type=link, nargs="+", metavar="LINK", default=list(machines.REAL),
        help=f"{', '.join(machines.REAL)}, or a rate of this machine such as 400MB/s or 2.4GB/s+50us (default: all that are named)",
    )  # fmt: skip
    add(
        "--shares", type=cli.number(0, 1), nargs="+", metavar="X", default=list(SHARES),
        help="of the smallest limit without LMS (default: 0.6 0.5 0.35 0.25)",
    )  # fmt: skip
    add(
        "--floor", action=argparse.BooleanOptionalAction, default=True,
        help="also at the smallest limit that trains with LMS, which is searched for (default: on)",
    )  # fmt: skip
    add("--steps", type=cli.whole(1), metavar="N", default=5, help="measured steps of a part (default: 5)")
    add(
        "--minutes", type=cli.number(0), metavar="X", default=None,
        help="time limit: parts that do not fit into what is left of it are skipped (default: none)",
    )  # fmt: skip
    add("--again", action="store_true", default=False, help="run parts anew whose results are there (default: off)")
    add("--output", metavar="DIR", default="emulated-links", help="where everything goes (default: emulated-links)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
