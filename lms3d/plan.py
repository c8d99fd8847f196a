"""`python -m lms3d.plan`: what LMS would do for a network, a resolution and a memory limit, without training."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lms3d import cli, console, errors, forecast
from lms3d.config import TrainConfig
from lms3d.errors import DoesNotFit
from lms3d.files import writable_folder, write_text
from lms3d.units import format_seconds, format_size

if TYPE_CHECKING:
    from lms3d.report import Report

_DESCRIPTION = """\
Show what LMS would do: trace the training step, plan it for the memory limit, and print the decision for each tensor.
Nothing is trained and no data is read. The limit need not exist on this machine.

  python -m lms3d.plan --resolution 192 --memory-limit 8GiB"""

_EPILOG = """\
writes into --output, where it is given: lms_plan.json, lms_report.md and memory_timeline.png
exit codes: 0 the plan fits, 2 wrong option, 3 no plan fits (the smallest limit that would do is named)"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse, trace, plan, print. Returns the exit code."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    return errors.run(lambda: _plan(vars(_parser().parse_args(arguments))))


def _plan(given: dict[str, Any]) -> None:
    output: Path | None = given.pop("output", None)
    options = TrainConfig(**given)
    if output is not None:
        writable_folder(output, "--output")
    console.say(f"Tracing and planning {options.model} at {options.resolution}^3, batch {options.batch_size}")
    report = _report(options)
    console.say(report.to_markdown())
    console.summary("Plan" if options.lms else "No plan: --no-lms", {
        "memory limit": format_size(report.limit_bytes),
        "peak without LMS": format_size(report.unedited_peak_bytes),
        "peak with this plan": format_size(report.predicted_peak_bytes),
        "step without LMS": format_seconds(report.unedited_step_seconds),
        "step with this plan": format_seconds(report.predicted_step_seconds),
        "smallest limit": f"{format_size(report.floor_bytes or 0)} with LMS, {format_size(report.unedited_limit_bytes)} without",
    })  # fmt: skip
    if output is not None:
        _write(output, report, options)
    if report.floor_bytes is not None and options.lms and report.limit_bytes < report.floor_bytes:
        raise DoesNotFit(
            f"{options.model} at {options.resolution}^3 does not fit in {format_size(report.limit_bytes)}: the smallest "
            f"memory limit that is sure to do is {format_size(report.floor_bytes)} with LMS",
            report.floor_bytes,
        )


def _report(options: TrainConfig) -> Report:
    """The limit is only planned for, not put in force: it may be larger than this machine."""
    from data.schema import SCHEMAS
    from lms3d import startup, train

    startup.start_tensorflow(seed=options.seed, precision=options.precision)
    model = train.compiled_model(options, next(iter(SCHEMAS.values())))
    return forecast.estimate_step(options, model, with_floor=True)


def _write(folder: Path, report: Report, options: TrainConfig) -> None:
    from lms3d import figures

    write_text(folder / "lms_plan.json", report.to_json())
    write_text(folder / "lms_report.md", report.to_markdown())
    title = f"{options.model} at {options.resolution}$^3$, batch {options.batch_size}"
    figures.memory_timeline(
        report.timeline_bytes, report.unedited_timeline_bytes, folder / "memory_timeline.png",
        limit_bytes=report.limit_bytes, measured_peak_bytes=None, title=title,
    )  # fmt: skip


def _parser() -> cli.Parser:
    parser = cli.Parser(prog="python -m lms3d.plan", description=_DESCRIPTION, epilog=_EPILOG)
    cli.add_model_options(parser)
    cli.add_memory_options(parser)
    parser.add_argument("--output", type=Path, metavar="DIR", help="folder for the plan and a figure (default: none)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
