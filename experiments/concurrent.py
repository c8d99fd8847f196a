"""`python -m experiments.concurrent`: what do trainings side by side lose when they share a bus? The case study's epoch tables.

1. Real processes, each bound to a core, begin an epoch together; who is done goes on until all are.
2. Without LMS they share the machine alone; with LMS they swap over an emulated link each, and then all over one bus, whose rate
   they share piece by piece.
3. The link's rate follows from the step of one process without LMS, on its one core (`experiments.links.machines`).
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from experiments.harness import command, methods, page, store
from experiments.harness.bench import Bench
from experiments.harness.child import ChildFailed
from experiments.harness.command import SomeFailed
from experiments.harness.part import MIB, Part
from experiments.harness.ranks import RunFailed
from experiments.harness.store import Record, Records
from experiments.links import epochs, machines
from experiments.links.epochs import ALONE, BUS, KINDS, OWN
from experiments.links.link import Link
from experiments.links.side_by_side import Group
from lms3d import cli
from lms3d.files import writable_folder, write_json

WARM_UP = 2
PATIENCE_SECONDS = 1800.0
SHARE, ROOM = 0.35, 1.25
"""Shares of what a step needs without LMS, and of the smallest limit: by default the limit is the larger of the two. Copying back
over a link needs more than the smallest limit, which is predicted for tensors that are read in place."""

_DESCRIPTION = """\
Measure epochs of 1 to 4 trainings side by side: without LMS, with LMS over an emulated link each, and with LMS over one bus that
they share. Seconds per epoch of each process, as the case study's tables have them.

Each run is saved as it finishes; started again with the same --output only what is missing is run."""

_EPILOG = """\
examples:
  python -m experiments.concurrent
  python -m experiments.concurrent --processes 1 2 --resolution 96 --memory-limit 550MiB --emulate-link 400MB/s

writes into --output: report.md, concurrent.csv, link.json; parts/, logs/, cache/
exit codes: 0 done, 1 a run failed, 2 wrong option or input, 130 interrupted (run again to go on)"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs what is missing and reports. Returns the exit code."""
    return command.main("concurrent", _parser, _measure, arguments)


def _measure(options: argparse.Namespace, typed: str) -> None:
    output = writable_folder(Path(options.output).expanduser(), "--output")
    names = ("model", "resolution", "steps", "emulate_link", "memory_limit")
    store.remember({name: getattr(options, name) for name in names}, output)
    study = _Study(options, output)
    numbers = sorted({1, *options.processes})
    try:
        for number in numbers:
            for kind in KINDS:
                study.measure(kind, number)
    finally:
        print(_write(study, numbers, typed))
    print(f"written: {output}")
    if failed := study.records.failed:
        raise SomeFailed(f"{len(failed)} of the runs failed: {failed[0]}")


class _Study:
    """What is run, and where it is kept."""

    def __init__(self, options: argparse.Namespace, output: Path) -> None:
        self.options, self.output = options, output
        self.records = Records(output, minutes=options.minutes, again=options.again)
        if options.again:  # the step that set the link's rate is measured anew, too
            (output / "link.json").unlink(missing_ok=True)

    def measure(self, kind: str, number: int) -> None:
        """Measures one run; nothing if the run that sets the link's rate is missing."""
        if kind == ALONE or self.link is not None:
            self.records.measure(f"{kind}-{number}", lambda left: self._run(kind, number, left))

    def found(self) -> list[Record]:
        """All runs, by kind and number."""
        return [part for kind in KINDS for part in self.records.found(kind)]

    @property
    def link(self) -> Link | None:
        """The link, kept with the output: another run would find another. None before there is a step to set its rate."""
        path = self.output / "link.json"
        if path.exists():
            return Link.parse(json.loads(path.read_text())["word"])
        alone = [part for part in self.records.found(ALONE) if part["ranks"] == 1]
        if not alone:
            return None
        step = alone[0]["epoch_seconds"][0] / self.options.steps
        link = machines.link(self.options.emulate_link, step, self.options.resolution)
        write_json(path, {"step_seconds": step, "word": str(link)})
        return Link.parse(str(link))

    def _run(self, kind: str, number: int, left: float | None) -> Record:
        deadline = math.inf if left is None else time.monotonic() + left
        # Costs of ops on one core are of no use to others.
        environment = {"LMS3D_CACHE": str(self.output / "cache")}
        with tempfile.TemporaryDirectory(prefix="lms3d-bus-") as bus:
            part = self._part(kind, Path(bus))
            logs = self.output / "logs" / kind
            group = Group(
                part, number, logs, patience_seconds=PATIENCE_SECONDS, environment=environment, deadline=deadline
            )
            try:
                found = group.run()
            except ChildFailed as failure:
                raise RunFailed(f"{failure} (logs: {logs})", late=failure.outcome == "out of time") from None
        return {
            "kind": kind, "ranks": number, "epoch_seconds": [one.seconds for one in found],
            "traffic": [one.traffic for one in found], "limit_mib": part.limit_mib,
        }  # fmt: skip

    def _part(self, kind: str, bus: Path) -> Part:
        part = Part(
            method=methods.NONE, model=self.options.model, resolution=self.options.resolution, warm_up=WARM_UP,
            steps=self.options.steps, timed=False,
        )  # fmt: skip
        if kind == ALONE:
            return part
        link = self.link
        assert link is not None, "it was asked for before"
        shared = replace(link, bus=bus) if kind == BUS else link
        return replace(part, method=methods.LMS, limit_mib=self._limit_mib(), link=str(shared))

    def _limit_mib(self) -> int:
        if self.options.memory_limit is not None:
            return int(self.options.memory_limit) // MIB
        asked = Part(
            method=methods.PREDICTION,
            model=self.options.model,
            resolution=self.options.resolution,
            steps=0,
            timed=False,
        )
        result = Bench(self.output / "prediction").measure(asked)
        if result is None or result.outcome != "predicted":
            raise RunFailed("what a step needs could not be predicted; give --memory-limit")
        return default_limit_mib(result.report)


def default_limit_mib(needs: Mapping[str, Any]) -> int:
    """The limit that follows from the figures of a predicted step."""
    return round(max(SHARE * needs["unedited_limit_bytes"], ROOM * needs["floor_bytes"]) / MIB)


def _write(study: _Study, numbers: Sequence[int], typed: str) -> str:
    """Writes CSV and report.md of what there is, and returns the report."""
    found = study.found()
    epochs.write_records(found, study.output / "concurrent.csv")
    shared = epochs.what_is_shared(numbers, len(os.sched_getaffinity(0)))
    gaps = page.gaps(study.records, found, "The machine had other work, do not trust these times")
    table = epochs.table(found) if found else "Nothing was measured."
    sections = ["# Trainings side by side", table, epochs.CASE_STUDY, shared, *gaps, _conditions(study, found, typed)]
    return page.write(study.output / "report.md", sections)


def _conditions(study: _Study, found: Sequence[Record], typed: str) -> str:
    options = study.options
    limit = next((f" of {part['limit_mib']:,} MiB" for part in found if part["kind"] == OWN), "")
    return (
        f"{options.model} at {options.resolution}³, batch 1; an epoch is {options.steps} steps, after {WARM_UP} that do not count; "
        f"LMS under a hard limit{limit}; link ({machines.title(options.emulate_link)}): {study.link or 'not known'}. "
        f"{page.machine()} Made by `{typed}`."
    )


def _parser() -> cli.Parser:
    parser = cli.Parser(prog="python -m experiments.concurrent", description=_DESCRIPTION, epilog=_EPILOG)
    add, link = parser.add_argument, cli.checked(machines.checked, "link")
    processes = "how many at once; one alone is always measured (default: 1 2 3 4)"
    add("--processes", type=cli.whole(1), nargs="+", metavar="N", default=[1, 2, 3, 4], help=processes)
    command.add_model(parser)
    command.add_resolution(parser, 64)
    limit = "hard limit of each process with LMS (default: 35 %% of what a step needs without, or a quarter above the smallest)"
    command.add_size(parser, "--memory-limit", None, limit)
    links = f"{', '.join(machines.REAL)}, or a rate of this machine such as 400MB/s (default: pcie3)"
    add("--emulate-link", type=link, metavar="LINK", default="pcie3", help=links)
    add("--steps", type=cli.whole(1), metavar="N", default=10, help="of an epoch (default: 10)")
    command.add_resumable(parser, "concurrent")
    return parser


if __name__ == "__main__":
    sys.exit(main())
