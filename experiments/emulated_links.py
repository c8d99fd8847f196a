"""`python -m experiments.emulated_links`: what would training in less memory cost behind the link of another machine?

1. Swapped tensors go through a serial channel each way whose bandwidth stands to this machine's FLOP/s as the link of the real
   machine stands to its own (`experiments.links.machines`, with the sources). Steps, limits and plans are real.
2. The step without LMS, which sets those rates, is measured first; the rates are kept with the output.
3. As in `experiments.lms_overhead` every part is a process under a hard limit, and ratios are taken side by side.
4. A link that is faster than this machine copies is not emulated: `lms3d.plan --machine` simulates steps behind it.
"""

from __future__ import annotations

import argparse
import sys

from lms3d import cli
from lms3d.experiments.harness import command, page, store
from lms3d.experiments.harness.bench import Bench
from lms3d.experiments.links import machines, study
from lms3d.experiments.links.copying import copy_seconds_per_byte
from lms3d.experiments.links.study import FLOOR, SHARES, LinkSchedule
from lms3d.experiments.overhead import results
from lms3d.experiments.overhead.results import MethodComparison
from lms3d.experiments.overhead.schedule import Wanted

_DESCRIPTION = """\
Measure what LMS, TFLMS's automatic tuning, swapping everything and recomputation cost if the link to the swap tier is as slow for
this machine as another machine's link is for that one: step times relative to a step without them, predicted beside measured.

Each part is saved as it finishes; started again with the same --output only what is missing is run."""

_EPILOG = """\
examples:
  python -m experiments.emulated_links --minutes 60
  python -m experiments.emulated_links --resolutions 64 --emulate-link pcie3 400MB/s+50us --shares 0.5 0.35 --no-floor

writes into --output: parts/<part>.json, logs/, links.json (the rates), links.csv, report.md, links.png
exit codes: 0 done, 2 wrong option or input, 130 interrupted (run again to go on)"""

_NOTES = f"""\
{results.NOTES}
Achieved: bytes / seconds in which a transfer was asked for and had not ended. Copies' processor time: what the copies of a step
took of this processor, and their share of the processor time of the whole step; a device would copy by itself, so that the ratio
behind a real link is lower by up to as much. Swapped bytes lie in the memory of the process. Recomputation
moves no bytes: its rows are the same for every link."""


def _measure(options: argparse.Namespace, typed: str) -> None:
    output = command.folder(options)
    store.remember({"model": options.model, "steps": options.steps}, output)
    wanted = Wanted(model=options.model, resolutions=options.resolutions, steps=options.steps)
    shares = [*options.shares, *([FLOOR] if options.floor else [])]
    bench = Bench(output, minutes=options.minutes, again=options.again)
    try:
        for resolution in options.resolutions:
            LinkSchedule(bench, wanted, resolution, options.emulate_link, shares).run()
    finally:
        bench.close()
        print(write(options.model, bench, typed))
    print(f"written: {output}")


def write(model: str, bench: Bench, typed: str) -> str:
    """Writes CSV, figure and report.md of what there is, and returns the report."""
    from lms3d.experiments.overhead import figure

    found, rates, output = bench.found(), study.read_rates(bench.folder), bench.folder
    compared = [MethodComparison(found, model, int(side), rates[side]) for side in sorted(rates, key=int)]
    results.write_csv([(here, link) for here in compared for link in here.links], output / "links.csv")
    figure.draw(compared, output / "links.png")
    sections = ["# LMS behind the links of other machines"]
    for here in compared:
        sections += [f"## {model} at {here.resolution}³", f"{here.smallest_limits()} {study.step_in_words(here.rates)}"]
        for link in here.links:
            sections += [f"### {machines.title(link)}: {here.word(link)} here", here.table(link)]
    conditions = (
        f"Batch 1, Adam, Dice loss. {page.machine()} One thread copies {1e-9 / copy_seconds_per_byte():.1f} GB/s. "
        f"{page.effort(found)} Made by `{typed}`."
    )
    return page.write(output / "report.md", [*sections, _NOTES, *page.gaps(bench), conditions])


def _options(parser: cli.Parser) -> None:
    resolution, link = cli.checked(cli.resolution, "resolution"), cli.checked(machines.checked, "link")
    add, real = parser.add_argument, list(machines.REAL)
    command.add_model(parser)
    add("--resolutions", type=resolution, nargs="+", metavar="N", default=[96], help="sides of the cubes (default: 96)")
    links = (
        f"{', '.join(real)}, or a rate of this machine such as 400MB/s or 2.4GB/s+50us (default: all that are named)"
    )
    add("--emulate-link", type=link, nargs="+", metavar="LINK", default=real, help=links)
    shares = "of the smallest limit without LMS (default: 0.5 0.35 0.25 0.6)"
    add("--shares", type=cli.number(0, 1), nargs="+", metavar="X", default=list(SHARES), help=shares)
    floor = "also at the smallest limit that trains with LMS, which is searched for (default: on)"
    add("--floor", action=argparse.BooleanOptionalAction, default=True, help=floor)
    add("--steps", type=cli.whole(1), metavar="N", default=5, help="measured steps of a part (default: 5)")
    command.add_resumable(parser, "emulated-links")


main, _parser = command.of("emulated_links", _measure, _options, _DESCRIPTION, _EPILOG)


if __name__ == "__main__":
    sys.exit(main())
