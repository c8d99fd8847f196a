"""`python -m experiments.concurrent`: what do 1 to 4 trainings side by side lose when they share a bus?

1. Real processes, each bound to a core, begin an epoch together; a process that is done goes on until all are.
2. Without LMS they share the machine alone; with LMS they swap over an emulated link each, and then all over one bus, whose rate
   they share piece by piece.
3. The link's rate follows from the step of one process without LMS, on its one core (`experiments.links.machines`).
4. The table has the seconds per epoch of each process, as the case study's tables have them.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from lms3d import cli
from lms3d.atomic_files import write_json
from lms3d.experiments.harness import command, methods, page, store
from lms3d.experiments.harness.bench import Bench, Trainer, means
from lms3d.experiments.harness.child import Child, ChildFailed
from lms3d.experiments.harness.part import MIB, StudyPart
from lms3d.experiments.harness.published import X86_APART, X86_HIGH, X86_PAIRS
from lms3d.experiments.harness.rank_study import RankStudy
from lms3d.experiments.harness.ranks import RunFailed
from lms3d.experiments.harness.store import Record, Records
from lms3d.experiments.harness.table import cell, markdown, write_csv
from lms3d.experiments.links import machines
from lms3d.experiments.links.link import SwapLink
from lms3d.experiments.overhead.schedule import PartsOfSize, Wanted

WARM_UP = 2
PATIENCE_SECONDS = 1800.0
SHARE, ROOM = 0.35, 1.25
"""Shares of what a step needs without LMS, and of the smallest limit: by default the limit is the larger of the two. Copying back
over a link needs more than the smallest limit, which is predicted for tensors that are read in place."""

ALONE, OWN, BUS = "alone", "own", "bus"
KINDS = {ALONE: "no LMS", OWN: "LMS, a link each", BUS: "LMS, one bus for all"}
"""Kind of run -> what tables call it. ALONE: nothing but the machine is shared."""
COLUMNS = ("kind", "processes", "process", "epoch_seconds", "out_bytes_per_second", "back_bytes_per_second")
CASE_STUDY = (
    "The case study, LMS at 192³ on x86 with PCIe Gen3, mean seconds per epoch of 228 steps: 1 GPU "
    f"{X86_HIGH.epoch_seconds:,.0f}; 4 GPUs, a bus each, {X86_APART.epoch_seconds:,.0f}; 8 GPUs, pairs on a bus, "
    f"{X86_PAIRS.epoch_seconds:,.0f}: sharing a bus costs {100 * (X86_PAIRS.epoch_seconds / X86_APART.epoch_seconds - 1):.0f} %."
)

Epochs = Mapping[str, Any]

_EPILOG = """\
examples:
  python -m experiments.concurrent
  python -m experiments.concurrent --processes 1 2 --resolution 96 --memory-limit 550MiB --emulate-link 400MB/s

writes into --output: report.md, concurrent.csv, link.json; parts/, logs/, cache/"""


def _measure(options: argparse.Namespace, typed: str) -> None:
    output = command.folder(options)
    names = ("model", "resolution", "steps", "emulate_link", "memory_limit")
    store.remember({name: getattr(options, name) for name in names}, output)
    numbers = tuple(sorted({1, *options.processes}))
    records = Records(output, minutes=options.minutes, again=options.again)
    study = RankStudy(output=output, ranks=numbers, records=records)
    runs = _SideBySide(options, study)
    study.measure(KINDS, lambda kind: partial(runs.run, kind), lambda: _report(runs, typed), by_number=True)


class _SideBySide:
    """The runs, and their link."""

    def __init__(self, options: argparse.Namespace, study: RankStudy) -> None:
        self.options, self.study, self.output = options, study, study.output
        if options.again:  # the step that set the link's rate is measured anew, too
            (self.output / "link.json").unlink(missing_ok=True)

    @property
    def link(self) -> SwapLink | None:
        """The link, kept with the output: another run would find another. None before there is a step to set its rate."""
        path = self.output / "link.json"
        if path.exists():
            return SwapLink.parse(json.loads(path.read_text())["word"])
        alone = [part for part in self.study.records.found(ALONE) if part["ranks"] == 1]
        if not alone:
            return None
        step = alone[0]["epoch_seconds"][0] / self.options.steps
        link = machines.link(self.options.emulate_link, step, self.options.resolution)
        write_json(path, {"step_seconds": step, "word": str(link)})
        return SwapLink.parse(str(link))

    def run(self, kind: str, number: int, left: float | None) -> Record:
        """A run. RunFailed if it failed, or if the run that sets the link's rate is missing."""
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
            "kind": kind, "ranks": number, "epoch_seconds": [seconds for seconds, _ in found],
            "traffic": [traffic for _, traffic in found], "limit_mib": part.limit_mib,
        }  # fmt: skip

    def _part(self, kind: str, bus: Path) -> StudyPart:
        part = StudyPart(
            method=methods.NONE, model=self.options.model, resolution=self.options.resolution, warm_up=WARM_UP,
            steps=self.options.steps, timed=False,
        )  # fmt: skip
        if kind == ALONE:
            return part
        if (link := self.link) is None:
            raise RunFailed("the run without LMS that sets the link's rate is missing", late=True)
        shared = replace(link, bus=bus) if kind == BUS else link
        return replace(part, method=methods.LMS, limit_mib=self._limit_mib(), link=str(shared))

    def _limit_mib(self) -> int:
        if self.options.memory_limit is not None:
            return int(self.options.memory_limit) // MIB
        wanted = Wanted(model=self.options.model, resolutions=())
        needs = PartsOfSize(Bench(self.output / "prediction"), wanted, self.options.resolution).prediction
        if needs is None:
            raise RunFailed("what a step needs could not be predicted; give --memory-limit")
        return default_limit_mib(needs)


def default_limit_mib(needs: Mapping[str, Any]) -> int:
    """The limit that follows from the figures of a predicted step."""
    return round(max(SHARE * needs["unedited_limit_bytes"], ROOM * needs["floor_bytes"]) / MIB)


def _report(runs: _SideBySide, typed: str) -> list[str]:
    """Writes the CSV file of what there is, and returns the sections of report.md."""
    study = runs.study
    found = study.found(KINDS)
    write_records(found, study.output / "concurrent.csv")
    shared = what_is_shared(study.ranks, len(os.sched_getaffinity(0)))
    gaps = page.gaps(study.records, found, "The machine had other work, do not trust these times")
    rows = table_of(found) if found else "Nothing was measured."
    return ["# Trainings side by side", rows, CASE_STUDY, shared, *gaps, _conditions(runs, found, typed)]


def _conditions(runs: _SideBySide, found: Sequence[Record], typed: str) -> str:
    options = runs.options
    limit = next((f" of {part['limit_mib']:,} MiB" for part in found if part["kind"] == OWN), "")
    return (
        f"{options.model} at {options.resolution}³, batch 1; an epoch is {options.steps} steps, after {WARM_UP} that do not count; "
        f"LMS under a hard limit{limit}; link ({machines.title(options.emulate_link)}): {runs.link or 'not known'}. "
        f"{page.machine()} Made by `{typed}`."
    )


def _options(parser: cli.Parser) -> None:
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


main, _parser = command.of("concurrent", _measure, _options, __doc__, _EPILOG, exits={1: "a run failed"}, resumed=True)


def table_of(found: Sequence[Epochs]) -> str:
    """A row for each run."""
    most = max((part["ranks"] for part in found), default=1)
    processes = (f"process {n}" for n in range(1, most + 1))
    head = ("run", *processes, "mean", "x one alone", "x a link each", "achieved out, in")
    rows = [_cells(part, found, most) for kind in KINDS for part in found if part["kind"] == kind]
    return markdown(head, rows)


def _cells(part: Epochs, found: Sequence[Epochs], most: int) -> list[str]:
    seconds = part["epoch_seconds"]
    mean = statistics.mean(seconds)
    alone, apart = (_mean_of(found, *key) for key in ((part["kind"], 1), (OWN, part["ranks"])))
    return [
        f"{part['ranks']} x {KINDS[part['kind']]}",
        *(f"{one:.1f}" for one in seconds),
        *[""] * (most - len(seconds)),
        f"{mean:.1f}",
        cell(alone, lambda one: f"{mean / one:.2f}"),
        cell(apart if part["kind"] == BUS else None, lambda one: f"{mean / one:.2f}"),
        ", ".join(f"{rate / 1e9:.2f} GB/s" for way in ("out", "in") if (rate := rate_of(part["traffic"], way))),
    ]


def _mean_of(found: Sequence[Epochs], kind: str, number: int) -> float | None:
    known = [part["epoch_seconds"] for part in found if (part["kind"], part["ranks"]) == (kind, number)]
    return statistics.mean(known[0]) if known else None


def rate_of(traffic: Sequence[Mapping[str, float]], way: str) -> float | None:
    """The mean bytes per second of the processes while one of their transfers was under way; way: "out" or "in"."""
    pairs = [(one.get(f"swapped_{way}_bytes", 0.0), one.get(f"swap_{way}_seconds", 0.0)) for one in traffic]
    rates = [moved / seconds for moved, seconds in pairs if seconds]
    return statistics.mean(rates) if rates else None


def write_records(found: Sequence[Epochs], path: Path) -> None:
    """A row for each process."""
    records = [
        {
            "kind": KINDS[part["kind"]], "processes": part["ranks"], "process": number, "epoch_seconds": seconds,
            "out_bytes_per_second": rate_of([traffic], "out"), "back_bytes_per_second": rate_of([traffic], "in"),
        }
        for part in found
        for number, (seconds, traffic) in enumerate(zip(part["epoch_seconds"], part["traffic"], strict=True), 1)
    ]  # fmt: skip
    write_csv(path, COLUMNS, records)


def what_is_shared(numbers: Sequence[int], cores: int) -> str:
    """A note on what processes share besides the bus: memory, and cores if there are too few."""
    crowded = [number for number in numbers if number > cores]
    note = f"Each process is bound to one of {cores} cores; all share the memory and its bandwidth."
    if crowded:
        note += (
            f" With {' and '.join(map(str, crowded))} processes some share a core: the rows without LMS show what that takes, and "
            "`x a link each` what the bus takes besides."
        )
    return note


Epoch = tuple[float, dict[str, float]]
"""The seconds of a process's epoch, and the means of what its link counted in a step."""


class Group:
    """Processes of one part: each takes its warm-up, waits for the others, and takes the steps of an epoch.

    A process that is done goes on until all are, so that no epoch ends on an emptier machine. ChildFailed if one fails; "out of
    time" at `deadline`, of `time.monotonic`.
    """

    def __init__(
        self, part: StudyPart, number: int, folder: Path, *, patience_seconds: float, environment: Mapping[str, str],
        deadline: float = math.inf, start: Callable[..., Trainer] | None = None,
    ) -> None:  # fmt: skip
        self.part, self.number, self.folder = part, number, folder
        self._patience, self._environment, self._start = patience_seconds, environment, start or Child
        self._deadline = deadline
        self._together = threading.Barrier(number)
        self._working, self._guard = number, threading.Lock()

    def run(self) -> list[Epoch]:
        """The epoch of each process."""
        with ThreadPoolExecutor(self.number) as pool:
            runs = [pool.submit(self._process, number) for number in range(self.number)]
        errors = [error for run in runs if (error := run.exception()) is not None]
        for error in errors:
            if not isinstance(error, threading.BrokenBarrierError):  # that one only heard of another's failure
                raise error
        if errors:
            outcome = "failed" if time.monotonic() < self._deadline else "out of time"
            raise ChildFailed(outcome, f"the {self.number} processes were not ready together")
        return [run.result() for run in runs]

    def _process(self, number: int) -> Epoch:
        bind(number)
        child: Trainer | None = None
        try:
            log = self.folder / f"{self.part.method.replace(' ', '_')}-{self.number}-{number}.txt"
            child = self._start(self.part, log, self._patience, self._environment, self._deadline)
            for _ in range(self.part.warm_up):
                child.step()
            self._together.wait(max(0.0, min(self._patience, self._deadline - time.monotonic())))
            return self._epoch(child)
        except BaseException:
            self._together.abort()
            raise
        finally:
            with self._guard:
                self._working = 0 if self._together.broken else self._working
            if child is not None:
                with suppress(ChildFailed, OSError):
                    child.finish()
                child.kill()

    def _epoch(self, child: Trainer) -> Epoch:
        began = time.monotonic()
        steps = [child.step() for _ in range(self.part.steps)]
        seconds = time.monotonic() - began
        with self._guard:
            self._working -= 1
        while self._working > 0:
            child.step()
        return seconds, means([step.get("traffic", {}) for step in steps])


def bind(number: int) -> None:
    """Binds this thread, and the process that it will start, to one core; processes share cores if there are too few."""
    cores = sorted(os.sched_getaffinity(os.getpid()))
    os.sched_setaffinity(0, {cores[number % len(cores)]})


if __name__ == "__main__":
    sys.exit(main())
