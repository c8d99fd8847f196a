"""`python -m lms3d.plan`: what LMS would do for a network or a saved model under a memory limit, without training."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lms3d import cli, console, errors, tasks
from lms3d.config import TrainConfig
from lms3d.errors import InputError
from lms3d.files import writable_folder, write_text
from lms3d.tasks import task_of
from lms3d.training import needs
from lms3d.units import format_seconds, format_size

if TYPE_CHECKING:
    from lms3d.keras_step.estimate import Planned
    from lms3d.keras_step.report import Report

LIMITS = 12  # of a sweep
LARGEST = 15  # tensors that are listed; lms_report.md has all
MEANINGS = {
    "keep": "stays in memory until its last use",
    "swap": "is written out, and read back just before it is used again",
    "recompute": "is dropped, and computed again just before it is used again",
    "both": "comes back more than once: read back, and computed again",
}

_DESCRIPTION = """\
Show what LMS would do: trace the training step, plan it for the memory limit, and print the decision for each tensor.
Nothing is trained and no data is read. The limit need not exist on this machine.

  python -m lms3d.plan --resolution 192 --memory-limit 8GiB
  python -m lms3d.plan --resolution 192 --sweep --output plans     # which limit costs how much time?
  python -m lms3d.plan --keras-model my.keras --batch-size 16      # will my own model fit?"""

_EPILOG = """\
writes into --output, where it is given: lms_plan.json, lms_report.md, memory_timeline.png (over the operations) and
timeline.png (over the seconds, with the transfers beside it); with --sweep also sweep.csv and sweep.png
exit codes: 0 the plan fits, 2 wrong option, 3 no plan fits (the smallest limit that would do is named)"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse, trace, plan, print. Returns the exit code."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    return errors.run(lambda: _plan(_parsed(arguments)))


def _parsed(arguments: Sequence[str]) -> dict[str, Any]:
    """The options that were given. A saved model takes any resolution; only our own networks halve it four times."""
    parser = _parser()
    given = vars(parser.parse_args(arguments))
    if "resolution" in given and "keras_model" not in given:
        try:
            cli.resolution(str(given["resolution"]))
        except InputError as error:
            parser.error(f"argument --resolution: {error}")
    return given


def _plan(given: dict[str, Any]) -> None:
    output: Path | None = given.pop("output", None)
    limits: int | None = given.pop("sweep", None)
    saved: Path | None = given.pop("keras_model", None)
    if saved is not None:
        _refuse_beside_saved_model(given)
    size: int | None = given.get("resolution")
    options = tasks.chosen(given)
    title = f"{saved.name}, batch {options.batch_size}" if saved is not None else _title(options)
    if limits is not None and not options.lms:
        raise InputError("--sweep compares plans and --no-lms makes none; give one of the two")
    if output is not None:
        writable_folder(output, "--output")
    console.say(f"Tracing {title}, measuring operations where they are new, planning")
    hard_limit = limits is not None
    planned = _planned_saved(saved, options, size, hard_limit) if saved else _planned(options, hard_limit=hard_limit)
    report, asked = planned.report, planned.report.limit_bytes
    floor_bytes = report.floor_bytes or 0
    too_small = options.lms and asked < floor_bytes
    if too_small and planned.settings.planner != "tflms":
        report.limit_bytes = floor_bytes  # the limit that the plan was made for: see `planning.plan_step`
        console.say(f"The lowest plan there is, made for {format_size(report.limit_bytes)}, not {format_size(asked)}:")
    _show(report, options)
    if output is not None:
        _write(output, planned, title)
    if limits is not None:
        _sweep(planned, limits, title, output)
    if too_small:
        from lms3d.swap.planning import does_not_fit

        raise does_not_fit(asked, floor_bytes, report.unedited_limit_bytes, report.peak_tensors[:-1])
    if options.lms:
        needs.require_given_parameters_fit(report)


def _title(options: TrainConfig) -> str:
    return f"{options.model} at {options.resolution}^{task_of(options).axes}, batch {options.batch_size}"


def _refuse_beside_saved_model(given: dict[str, Any]) -> None:
    for name, why in (("model", "names another network"), ("precision", "is part of the saved model")):
        if name in given:
            raise InputError(f"--{name} {why}; leave it out, or --keras-model")


def _planned_saved(path: Path, options: TrainConfig, size: int | None, hard_limit: bool) -> Planned:
    """`_planned` for the model in a .keras file. size: of what the model's inputs leave open."""
    from lms3d.device import memory, startup
    from lms3d.keras_step import saved_model

    startup.start_tensorflow(seed=options.seed)
    model = saved_model.load(path)
    spec = saved_model.step_spec(model, path, options.batch_size, size)
    arguments = needs.lms_arguments(options)
    if hard_limit and options.memory_limit is None:
        arguments["memory_limit"] = memory.device_memory_bytes()
    return saved_model.plan(model, path, spec, arguments)


def _planned(options: TrainConfig, *, hard_limit: bool) -> Planned:
    """The limit is only planned for, not put in force: it may be larger than this machine.

    hard_limit: plan as for a limit that the user named, which takes more room than none, even if there is none.
    """
    from lms3d.device import memory, startup
    from lms3d.training import compilation

    startup.start_tensorflow(seed=options.seed, precision=options.precision)
    if hard_limit and options.memory_limit is None:
        options = dataclasses.replace(options, memory_limit=memory.device_memory_bytes())
    model = compilation.compiled_model(options)
    return needs.plan_step(options, model, with_floor=True)


def _show(report: Report, options: TrainConfig) -> None:
    """Decisions in total, then the largest tensors, then what the plan comes to."""
    if report.rewritten and options.lms:
        _show_decisions(report)
        _show_peak(report)
    if options.lms:
        console.say(report.headline())
    planning = format_seconds(report.planning_seconds)
    with_plan = {
        "peak with this plan": format_size(report.predicted_peak_bytes),
        "step with this plan": f"{format_seconds(report.predicted_step_seconds)}, of that "
        f"{format_seconds(report.predicted_stall_seconds)} waiting for swaps",
        "planning took": f"{planning} once; now it came from the cache" if report.from_cache else planning,
    }
    console.summary("Plan (predicted)" if options.lms else "No plan: --no-lms", {
        "memory limit": format_size(report.limit_bytes),
        "peak without LMS": format_size(report.unedited_peak_bytes),
        "step without LMS": format_seconds(report.unedited_step_seconds),
        **(with_plan if options.lms else {}),
        "smallest limit": f"{format_size(report.floor_bytes or 0)} with LMS, {format_size(report.unedited_limit_bytes)} without",
    })  # fmt: skip


def _show_decisions(report: Report) -> None:
    rows = []
    for action, meaning in MEANINGS.items():
        sizes = [d.bytes for d in report.decisions if d.action == action]
        rows.append((action, meaning, str(len(sizes)), format_size(sum(sizes))))
    console.table("What happens to the large tensors", ("decision", "the tensor", "tensors", "size"), rows, left=2)
    largest = sorted(report.decisions, key=lambda d: (-d.bytes, d.tensor))
    moved = [d for d in largest if d.action != "keep"][:LARGEST]
    console.table(
        f"The {len(moved)} largest that do not stay", ("tensor", "decision", "times per step", "size"),
        [(d.tensor, d.action, str(d.copies), format_size(d.bytes)) for d in moved], left=2,
    )  # fmt: skip


def _show_peak(report: Report) -> None:
    """The largest tensors at the peak, the others in one row, and all that is no large tensor."""
    if not report.peak_tensors:
        return  # a plan by TFLMS does not name them
    *tensors, rest = report.peak_tensors
    more = tensors[LARGEST:]
    rows = [*tensors[:LARGEST], *([(f"and {len(more)} more", sum(size for _, size in more))] if more else []), rest]
    console.table(
        f"In memory at the peak, at {report.peak_at}",
        ("tensor", "size"),
        [(name, format_size(size)) for name, size in rows],
    )


def _write(folder: Path, planned: Planned, title: str) -> None:
    from lms3d.scoring.figures import steps
    from lms3d.swap import edit
    from lms3d.swap.simulate import simulate

    report, title = planned.report, title.replace("^3", "$^3$")
    write_text(folder / "lms_plan.json", report.to_json())
    write_text(folder / "lms_report.md", report.to_markdown())
    steps.memory_timeline(
        report.timeline_bytes, report.unedited_timeline_bytes, folder / "memory_timeline.png",
        limit_bytes=report.limit_bytes, measured_peak_bytes=None, title=title, planned_label="with this plan (predicted)",
    )  # fmt: skip
    step = simulate(edit.apply(planned.graph, planned.plan), planned.machine)
    unedited = simulate(planned.graph, planned.machine)
    steps.step_timeline(
        folder / "timeline.png",
        memory=(step.timeline_seconds, step.timeline_bytes),
        unedited_memory=(unedited.timeline_seconds, unedited.timeline_bytes),
        lanes={**step.busy, "waiting": step.waiting}, limit_bytes=report.limit_bytes, title=title,
    )  # fmt: skip


def _sweep(planned: Planned, limits: int, title: str, folder: Path | None) -> None:
    from lms3d.plan_display import sweep_table as tables
    from lms3d.swap import sweep

    report = planned.report
    ends = None if report.floor_bytes is None else (report.floor_bytes, report.unedited_limit_bytes)
    console.say(f"Planning for {limits} limits, as lms3d does and as TFLMS does")
    with console.progress() as progress:
        found = sweep.run(planned.graph, planned.settings, planned.machine, limits=limits, ends=ends, progress=progress)
    tables.show(found)
    if folder is not None:
        tables.write(found, folder, title)


def _parser() -> cli.Parser:
    parser = cli.Parser(prog="python -m lms3d.plan", description=_DESCRIPTION, epilog=_EPILOG)
    cli.add_model_options(parser, resolution=cli.whole(1))
    cli.add_memory_options(parser)
    parser.add_argument(
        "--keras-model", type=cli.path, metavar="FILE",
        help="a compiled model of your own, in place of --model; --resolution, any N, stands for each size that it leaves open",
    )  # fmt: skip
    parser.add_argument("--output", type=Path, metavar="DIR", help="folder for the plan and figures (default: none)")
    parser.add_argument(
        "--sweep", type=cli.whole(2), nargs="?", const=LIMITS, metavar="N",
        help=f"also plan for N limits between the smallest with LMS and the smallest without (default N: {LIMITS}) and "
        "compare the step time with TFLMS, swapping everything and recomputing everything",
    )  # fmt: skip
    return parser


if __name__ == "__main__":
    sys.exit(main())
