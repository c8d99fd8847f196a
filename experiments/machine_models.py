"""`python -m experiments.machine_models`: do models of machines predict what the LMS case study measured? And our plans on them?

Three published numbers calibrate the models, all others are predicted; and what our plans would do on these machines and on newer
ones, at the case study's share of memory. The graphs are real, the steps are simulated: nothing is trained.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path

from lms3d import cli
from lms3d.experiments.harness import command, page, published
from lms3d.experiments.harness.published import HIGH, LOW, NEXT
from lms3d.experiments.harness.store import Record, UpToDate
from lms3d.experiments.harness.table import write_csv
from lms3d.experiments.machines import calibration, ours, predictions, report, steps
from lms3d.experiments.machines.ours import PlannedCase
from lms3d.experiments.machines.predictions import PredictedFigure
from lms3d.experiments.machines.steps import ARTICLE, TracedStep
from lms3d.machines import machine_files
from lms3d.machines.model import MachineModel

SOURCES = (
    "lms3d/engine/**/*.py", "lms3d/machines/*.*", "lms3d/models/*.py", "lms3d/experiments/machines/*.py",
    "lms3d/experiments/harness/published.py",
)  # fmt: skip
"""What decides a part: each is worked out anew once one of these files has changed."""

_EPILOG = "writes into --output: parts/<part>.json, published.csv, ours.csv, report.md, machines.png"

_NOTES = """\
Published: the LMS case study. Its own network is modelled, op by op on the layers of its time, under TFLMS's rules.
Calibrated: AC922's 197 s sets the rates of the V100, x86's 216 s the gap between batches, x86's 1,467 s TFLMS's parameters.
All hidden to none: the epoch if every transfer of that plan ran beside compute, and if nothing ran beside anything else.
Throughputs are those of the links alone (the machines' files name the sources); two models on a bus share it (OUTLOOK-2).
Not modelled: validation, cuDNN's workspace, what the copies of other GPUs take from the host's memory, a pool that makes an op
wait until a copy has freed its memory."""


def _run(options: argparse.Namespace, typed: str) -> None:
    output, machines = command.folder(options), _machines()
    saved, found = UpToDate(output, *SOURCES, again=options.again), []
    calibrated = saved.get(f"published-{options.side}", lambda: _published(machines, options.side))
    fitted = _fitted(machines, calibrated)
    try:
        for case in () if "ours" not in options.only else ours.cases(fitted):
            make = partial(_ours, case, fitted[case.machine], options.side)
            found.append(saved.get(f"{case.name}-{options.side}", make))
    finally:
        text = write(output, calibrated, found, typed)
    print(f"{text}\nwritten: {output}")


def _machines() -> dict[str, MachineModel]:
    return {name: machine_files.load(name) for name in machine_files.names()}


def _traced(network: str, side: int, largest: int) -> TracedStep:
    """The step at the side that stands for `side` if `largest` stands for 192."""
    return steps.traced(network, max(16, round(side * largest / HIGH / 16) * 16))


def _published(machines: Mapping[str, MachineModel], side: int) -> Record:
    """The calibration, and every figure beside its prediction."""
    low, above, high = (_traced(ARTICLE, at, side) for at in (LOW, NEXT, HIGH))
    fitted = calibration.machines(low.graph, machines)
    x86 = fitted[published.X86]
    tried = calibration.tried(high.graph, x86, calibration.batch_bytes(HIGH))
    chosen = calibration.nearest(tried, published.X86_HIGH.epoch_seconds)
    model = predictions.Model({LOW: low.graph, HIGH: high.graph}, fitted, chosen)
    rate = x86.batch_bytes_per_second
    assert rate is not None, "calibration 2 sets it"
    return {
        "factor": calibration.factor(low.graph, machines[published.AC922], published.AC922_LOW.epoch_seconds),
        "batch_bytes_per_second": rate.value, "tflms": asdict(chosen),
        "needed_bytes": [low.needed_bytes, above.needed_bytes, high.needed_bytes],
        "limit_bytes": machines[published.AC922].limit_bytes,
        "rows": [asdict(row) for row in predictions.rows(model)],
        "step": asdict(model.step(published.X86, HIGH)),
    }  # fmt: skip


def _fitted(machines: Mapping[str, MachineModel], part: Record) -> dict[str, MachineModel]:
    """The machines of the case study with their calibrated rates; the others share the factor of the V100."""
    return calibration.applied(machines, part["factor"], part["batch_bytes_per_second"])


def _ours(case: PlannedCase, machine: MachineModel, side: int) -> Record:
    return ours.compare(case, _traced(case.network, case.side, side), machine)


def write(output: Path, part: Record, cases: Sequence[Record], typed: str) -> str:
    """Writes tables and figure of what there is, and returns the report."""
    from lms3d.experiments.machines import figure

    rows = [PredictedFigure(**row) for row in part["rows"]]
    write_csv(output / "published.csv", report.COLUMNS, report.records(rows))
    if cases:
        columns = list(dict.fromkeys(name for one in cases for name in one))
        write_csv(output / "ours.csv", columns, cases)
    figure.draw(rows, cases, output / "machines.png")
    when = f"Worked out by `{typed}`; nothing was trained. {page.machine()}"
    return page.write(output / "report.md", report.sections(part, rows, cases, _machines(), f"{_NOTES}\n\n{when}"))


def _options(parser: cli.Parser) -> None:
    add = parser.add_argument
    only = "parts: the published figures, or also our plans (default: both)"
    add("--only", choices=("published", "ours"), nargs="+", default=("published", "ours"), help=only)
    side = f"trace smaller cubes in place of {HIGH}^3, to try the program; its figures mean nothing then"
    command.add_resolution(parser, HIGH, option="--side", what=side)
    command.add_again(parser)
    command.add_output(parser, "machine-models")


main, _parser = command.of("machine_models", _run, _options, __doc__, _EPILOG, resumed=True)


if __name__ == "__main__":
    sys.exit(main())
