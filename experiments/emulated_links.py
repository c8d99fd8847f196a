"""`python -m experiments.emulated_links`: what would training in less memory cost behind the link of another machine?

1. Swapped tensors go through a serial channel each way whose bandwidth stands to this machine's FLOP/s as the link of the real
   machine stands to its own (`experiments.links.machines`, with the sources). Steps, limits and plans are real.
2. LMS, TFLMS's automatic tuning, swapping everything and recomputation: step times relative to a step without them, predicted
   beside measured. As in `experiments.lms_overhead` every part is a process under a hard limit, and ratios are taken side by side.
3. The step without LMS, which sets the rates of the links, is measured first; the rates are kept with the output.
4. A link that is faster than this machine copies is not emulated: `lms3d.plan --machine` simulates steps behind it.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from lms3d import cli
from lms3d.atomic_files import write_json
from lms3d.experiments.harness import command, methods, page, store
from lms3d.experiments.harness.bench import Bench
from lms3d.experiments.harness.part import StudyPart
from lms3d.experiments.harness.table import write_csv
from lms3d.experiments.links import machines
from lms3d.experiments.links.link import SwapLink, copy_seconds_per_byte
from lms3d.experiments.overhead import results
from lms3d.experiments.overhead.results import MethodComparison
from lms3d.experiments.overhead.schedule import PartsOfSize, Wanted
from lms3d.units import format_seconds

_EPILOG = """\
examples:
  python -m experiments.emulated_links --minutes 60
  python -m experiments.emulated_links --resolutions 64 --emulate-link pcie3 400MB/s+50us --shares 0.5 0.35 --no-floor

writes into --output: parts/<part>.json, logs/, links.json (the rates), links.csv, report.md, links.png"""

_NOTES = f"""\
{results.NOTES}
Achieved: bytes / seconds in which a transfer was asked for and had not ended. Copies' processor time: what the copies of a step
took of this processor, and their share of the processor time of the whole step; a device would copy by itself, so that the ratio
behind a real link is lower by up to as much. Swapped bytes lie in the memory of the process. Recomputation
moves no bytes: its rows are the same for every link."""

SHARES = (0.50, 0.35, 0.25, 0.60)
"""The most important first."""
FLOOR = 0.0
"""In place of a share: the smallest limit that trained with swapped tensors copied back."""
METHODS = (methods.LMS, methods.TFLMS, methods.SWAP_ALL, methods.RECOMPUTE_CHEAP)
UNLIMITED = (methods.SWAP_ALL, methods.RECOMPUTE_CHEAP)
"""Methods with one plan whatever the limit, which seldom fit: measured without a limit, too, with the memory that they take."""
WARM_UP = 2
"""Steps of a part that are not timed."""
REACHED = 0.5
"""A link faster than this share of the speed of one thread's copies is not emulated: the thread shares a core with the step, and
the memory with the other direction. A margin, not measured; each row states the rate that was achieved."""


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


class LinkSchedule:
    """The parts of one model at one resolution.

    links: names or words (`machines.checked`). shares: of the smallest limit without LMS; FLOOR is one, too.
    """

    def __init__(
        self, bench: Bench, wanted: Wanted, resolution: int, links: Sequence[str], shares: Sequence[float]
    ) -> None:
        self.bench, self.wanted, self.resolution = bench, wanted, resolution
        self.links, self.shares = links, shares
        self.place = PartsOfSize(bench, wanted, resolution)

    def run(self) -> None:
        """Measures all that is missing, the most important first."""
        rates = self._rates()
        known = [rates[name] for name in self.links if rates[name]["reached"]] if rates else []
        for name in self.links if rates else ():
            if not rates[name]["reached"]:
                self.bench.skip(
                    f"{machines.title(name)}: {rates[name]['word']} here is more than {REACHED:.0%} of what one thread copies; "
                    "`lms3d.plan --machine` says what a step would come to there"
                )
        for part in self._parts(None, known, UNLIMITED):
            self.bench.measure(part)
        for share in self.shares if rates else ():
            limit = self._limit_mib(share)
            if limit is None:
                self.bench.skip(f"{self.wanted.model} {self.resolution}³ at {shown(share)} of an unknown limit")
                continue
            for part in self._parts(limit, known, METHODS):
                self.bench.measure(part)

    def _parts(
        self, limit_mib: int | None, rates: Sequence[dict[str, Any]], compared: Sequence[str]
    ) -> Iterator[StudyPart]:
        """Link by link, so that a short time gives a whole comparison of one."""
        for rate in rates:
            for method in compared:
                moves = method != methods.RECOMPUTE_CHEAP  # which is the same over every link
                yield StudyPart(
                    method=method, model=self.wanted.model, resolution=self.resolution, limit_mib=limit_mib, warm_up=WARM_UP,
                    steps=self.wanted.steps, link=rate["word"] if moves else "",
                )  # fmt: skip

    def _limit_mib(self, share: float) -> int | None:
        if share == FLOOR:
            return self.place.copied_mib
        return None if self.place.without_mib is None else math.ceil(share * self.place.without_mib)

    def _rates(self) -> dict[str, Any]:
        """Link -> its word here, and whether it is reached; with the step that they follow from. Empty if there was no time.

        Kept with the output: another run would find others. --again finds them anew.
        """
        kept = read_rates(self.bench.folder)
        known = {} if self.bench.again else kept.get(str(self.resolution), {})
        missing = [name for name in self.links if name not in known]
        if not missing:
            return known
        known = known or self._step()
        if not known:
            return {}
        known |= {name: self._rate(name, known["step_seconds"]) for name in missing}
        write_json(_store(self.bench.folder), kept | {str(self.resolution): known})
        return known

    def _step(self) -> dict[str, Any]:
        """The seconds and floating-point operations of a step without LMS; empty if there was no time."""
        without, predicted = self.bench.measure(self.place.part(methods.NONE)), self.place.prediction
        if without is None or without.step_seconds is None or predicted is None:
            self.bench.skip(
                f"{self.wanted.model} {self.resolution}³: the step without LMS, which sets the links' rates"
            )
            return {}
        return {"step_seconds": without.step_seconds, "step_flops": predicted["step_flops"]}

    def _rate(self, name: str, step_seconds: float) -> dict[str, Any]:
        link = machines.link(name, step_seconds, self.resolution)
        return {"word": str(link), "reached": is_reached(link)}


def is_reached(link: SwapLink) -> bool:
    """Whether one thread's copies keep up with the link, with time to spare."""
    return max(link.out_bytes_per_second, link.back_bytes_per_second) * copy_seconds_per_byte() <= REACHED


def read_rates(output: Path) -> dict[str, dict[str, Any]]:
    """Resolution -> what `LinkSchedule` keeps; nothing before its first part."""
    path = _store(output)
    found: dict[str, dict[str, Any]] = json.loads(path.read_text()) if path.exists() else {}
    return found


def step_in_words(rates: Mapping[str, Any]) -> str:
    """The step without LMS that the rates follow from."""
    seconds, flops = rates["step_seconds"], rates["step_flops"]
    return f"A step without LMS: {format_seconds(seconds)}, {flops / seconds / 1e9:,.0f} GFLOP/s."


def _store(output: Path) -> Path:
    return output / "links.json"


def shown(share: float) -> str:
    """A share in words."""
    return "the floor" if share == FLOOR else f"{share:.0%}"


def write(model: str, bench: Bench, typed: str) -> str:
    """Writes CSV, figure and report.md of what there is, and returns the report."""
    from lms3d.experiments.overhead import figure

    found, rates, output = bench.found(), read_rates(bench.folder), bench.folder
    compared = [MethodComparison(found, model, int(side), rates[side]) for side in sorted(rates, key=int)]
    rows = results.records((here, link) for here in compared for link in here.links)
    write_csv(output / "links.csv", results.COLUMNS, rows)
    figure.draw(compared, output / "links.png")
    sections = ["# LMS behind the links of other machines"]
    for here in compared:
        sections += [f"## {model} at {here.resolution}³", f"{here.smallest_limits()} {step_in_words(here.rates)}"]
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


main, _parser = command.of("emulated_links", _measure, _options, __doc__, _EPILOG, resumed=True)


if __name__ == "__main__":
    sys.exit(main())
