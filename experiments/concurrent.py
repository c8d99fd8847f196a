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
import shlex
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from experiments.feeding.parts import Parts, SomeFailed, remember
from experiments.links import epochs, machines
from experiments.links.epochs import ALONE, BUS, KINDS, OWN
from experiments.links.link import Link
from experiments.links.side_by_side import Group
from experiments.overhead import parts
from experiments.overhead.bench import Bench
from experiments.overhead.parts import MIB, Part
from experiments.overhead.process import ChildFailed
from experiments.scalability.launch import RunFailed
from lms3d import cli, errors
from lms3d.files import writable_folder, write_json, write_text
from lms3d.tasks.brats.options import MODELS
from lms3d.units import format_size, parse_size

WARM_UP = 2
PATIENCE_SECONDS = 1800.0
SHARE, ROOM = 0.35, 1.25
"""Of what a step needs without LMS, and of the smallest limit there is: where none is given the limit is the larger of the two.
What is copied back over a link needs more than the smallest limit, which is predicted for tensors read in place."""

BUSY = 0.15
"""Share of the cores in use by others above which the report calls a run disturbed."""

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
    """Run what is missing, report. Returns the exit code."""
    words = sys.argv[1:] if arguments is None else arguments
    command = shlex.join(["python", "-m", "experiments.concurrent", *words])
    return errors.run(lambda: _measure(_parser().parse_args(words), command))


def _measure(options: argparse.Namespace, command: str) -> None:
    output = writable_folder(Path(options.output).expanduser(), "--output")
    names = ("model", "resolution", "steps", "emulate_link", "memory_limit")
    remember({name: getattr(options, name) for name in names}, output)
    study = _Study(options, output)
    numbers = sorted({1, *options.processes})
    try:
        for number in numbers:
            for kind in KINDS:
                study.measure(kind, number)
    finally:
        print(_write(study, numbers, command))
    print(f"written: {output}")
    if study.parts.failed:
        raise SomeFailed(f"{len(study.parts.failed)} of the runs failed: {study.parts.failed[0]}")


class _Study:
    """What is run, and where it is kept."""

    def __init__(self, options: argparse.Namespace, output: Path) -> None:
        self.options, self.output = options, output
        self.parts = Parts(output, minutes=options.minutes, again=options.again)
        if options.again:  # the step that set the link's rate is measured anew, too
            (output / "link.json").unlink(missing_ok=True)

    def measure(self, kind: str, number: int) -> None:
        """One run; nothing where the run that sets the link's rate is missing."""
        if kind == ALONE or self.link is not None:
            self.parts.measure(f"{kind}-{number}", lambda left: self._run(kind, number, left))

    def found(self) -> list[dict[str, Any]]:
        """All runs, by kind and number."""
        return [part for kind in KINDS for part in self.parts.found(kind)]

    @property
    def link(self) -> Link | None:
        """Kept with the output: another run would find another. None before there is a step to set its rate."""
        path = self.output / "link.json"
        if path.exists():
            return Link.parse(json.loads(path.read_text())["word"])
        alone = [part for part in self.parts.found(ALONE) if part["ranks"] == 1]
        if not alone:
            return None
        step = alone[0]["epoch_seconds"][0] / self.options.steps
        link = machines.link(self.options.emulate_link, step, self.options.resolution)
        write_json(path, {"step_seconds": step, "word": str(link)})
        return Link.parse(str(link))

    def _run(self, kind: str, number: int, left: float | None) -> dict[str, Any]:
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
            method=parts.NONE, model=self.options.model, resolution=self.options.resolution, warm_up=WARM_UP,
            steps=self.options.steps, timed=False,
        )  # fmt: skip
        if kind == ALONE:
            return part
        link = self.link
        assert link is not None, "it was asked for before"
        shared = replace(link, bus=bus) if kind == BUS else link
        return replace(part, method=parts.LMS, limit_mib=self._limit_mib(), link=str(shared))

    def _limit_mib(self) -> int:
        if self.options.memory_limit is not None:
            return int(self.options.memory_limit) // MIB
        asked = Part(
            method=parts.PREDICTION, model=self.options.model, resolution=self.options.resolution, steps=0, timed=False
        )
        result = Bench(self.output / "prediction").measure(asked)
        if result is None or result.outcome != "predicted":
            raise RunFailed("what a step needs could not be predicted; give --memory-limit")
        return default_limit_mib(result.report)


def default_limit_mib(needs: Mapping[str, Any]) -> int:
    """Of the figures of a predicted step."""
    return round(max(SHARE * needs["unedited_limit_bytes"], ROOM * needs["floor_bytes"]) / MIB)


def _write(study: _Study, numbers: Sequence[int], command: str) -> str:
    """CSV and report.md of what there is; returns the report."""
    found = study.found()
    epochs.write_records(found, study.output / "concurrent.csv")
    sections = [
        "# Trainings side by side",
        epochs.table(found) if found else "Nothing was measured.",
        epochs.CASE_STUDY,
    ]
    sections += [epochs.what_is_shared(numbers, len(os.sched_getaffinity(0)))]
    busy = [f"{part['name']}: {part['busy']:.0%} of the cores before it began" for part in found if part["busy"] > BUSY]
    for title, lines in (
        ("The machine had other work, do not trust these times", busy),
        ("Skipped", study.parts.skipped),
        ("Failed", study.parts.failed),
    ):
        sections += ["\n".join([f"{title}:", *(f"- {line}" for line in lines)])] if lines else []
    text = "\n\n".join([*sections, _conditions(study, found, command)]) + "\n"
    write_text(study.output / "report.md", text)
    return text


def _conditions(study: _Study, found: Sequence[dict[str, Any]], command: str) -> str:
    import psutil

    from lms3d.engine.tensorflow import speeds

    options = study.options
    limit = next((f" of {part['limit_mib']:,} MiB" for part in found if part["kind"] == OWN), "")
    return (
        f"{options.model} at {options.resolution}³, batch 1; an epoch is {options.steps} steps, after {WARM_UP} that do not count; "
        f"LMS under a hard limit{limit}; link ({machines.title(options.emulate_link)}): {study.link or 'not known'}. Machine: "
        f"{os.cpu_count()} cores ({speeds.device_name('CPU:0')}), {format_size(psutil.virtual_memory().total)} of memory; "
        f"{datetime.now(UTC):%Y-%m-%d}. Made by `{command}`."
    )


def _parser() -> cli.Parser:
    parser = cli.Parser(prog="python -m experiments.concurrent", description=_DESCRIPTION, epilog=_EPILOG)
    resolution, link = cli.checked(cli.resolution, "resolution"), cli.checked(machines.checked, "link")
    add = parser.add_argument
    add(
        "--processes", type=cli.whole(1), nargs="+", metavar="N", default=[1, 2, 3, 4],
        help="how many at once; one alone is always measured (default: 1 2 3 4)",
    )  # fmt: skip
    add("--model", choices=MODELS, default="isensee2017", help="network (default: isensee2017)")
    add("--resolution", type=resolution, metavar="N", default=64, help="side of the cubes (default: 64)")
    add(
        "--memory-limit", type=cli.checked(parse_size, "size"), metavar="SIZE", default=None,
        help="hard limit of each process with LMS (default: 35 %% of what a step needs without, or a quarter above the smallest)",
    )  # fmt: skip
    add(
        "--emulate-link", type=link, metavar="LINK", default="pcie3",
        help=f"{', '.join(machines.REAL)}, or a rate of this machine such as 400MB/s (default: pcie3)",
    )  # fmt: skip
    add("--steps", type=cli.whole(1), metavar="N", default=10, help="of an epoch (default: 10)")
    add("--minutes", type=cli.number(0), metavar="X", default=None, help="time limit (default: none)")
    add("--again", action="store_true", default=False, help="run anew what is there (default: off)")
    add("--output", metavar="DIR", default="concurrent", help="where everything goes (default: concurrent)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
