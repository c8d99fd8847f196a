"""`python -m lms3d.plan`: what LMS would do for a network or a saved model under a memory limit, without training."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lms3d import cli, command_options, console, errors, tasks
from lms3d.atomic_files import writable_folder
from lms3d.cli import LONGEST_SIDE
from lms3d.config import TrainConfig, flag
from lms3d.data import pseudonyms
from lms3d.errors import InputError
from lms3d.tasks import TASKS
from lms3d.training import needs
from lms3d.units import format_size

if TYPE_CHECKING:
    from lms3d.engine.plan import Plan
    from lms3d.engine.prediction import Prediction
    from lms3d.engine.request import StepRequest
    from lms3d.keras_step.estimate import Planned

LIMITS = 12  # of a sweep
ELSEWHERE_REFUSED = (
    "keras_model", "output", "sweep", "why", "copied", "lms", "lms_compile", "swap_tier", "swap_dir",
    "swapout_threshold", "swapin_ahead", "swapin_groupby", "sync_mode", "serialization", "serialization_by_size",
)  # fmt: skip
"""Options that do not go with --machine, which compares methods."""
LARGEST_REFUSED = ("resolution", "box", "patch", "spacing")
"""Options that do not go with --largest, which tries cubes."""
OF_THE_STEP = ("precision", "loss", "accumulate", "ema")
"""Options that a saved model has answered."""

_DESCRIPTION = """\
Show what LMS would do: trace the training step, plan it for the memory limit, and print the decision for each tensor.
Nothing is trained. Of --data only headers are read. The limit need not exist on this machine.

  python -m lms3d.plan --resolution 192 --memory-limit 4GiB
  python -m lms3d.plan --resolution 192 --sweep --output plans     # which limit costs how much time?
  python -m lms3d.plan --task segmentation --data ~/Dataset017_Liver --box 128x160x96 --model resenc --memory-limit 8GiB
  python -m lms3d.plan --keras-model my.keras --batch-size 16      # will my own model fit?
  python -m lms3d.plan --resolution 192 --memory-limit 4GiB --why encoder0_b_conv_1/convolution   # why does it leave?
  python -m lms3d.plan --machine ac922 --resolution 192            # what would I get there?
  python -m lms3d.plan --machine ac922 --largest                   # and up to which cube?"""

_EPILOG = """\
writes into --output, if it is given: lms_plan.json, lms_report.md, memory_timeline.png (over the operations) and
timeline.png (over the seconds, with the transfers beside it); with --sweep also sweep.csv and sweep.png
exit codes: 0 the plan fits, 2 wrong option, 3 no plan fits (the smallest limit that would do is named)"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse, trace, plan, print. Returns the exit code."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    return errors.run(lambda: _choose(_parsed(arguments)))


def _parsed(arguments: Sequence[str]) -> dict[str, Any]:
    """The options that were given. A saved model takes any resolution, our own networks multiples of 16."""
    parser = _parser()
    given = vars(parser.parse_args(arguments))
    if "resolution" in given and "keras_model" not in given:
        try:
            cli.resolution(str(given["resolution"]))
        except InputError as error:
            parser.error(f"argument --resolution: {error}")
    return given


def _choose(given: dict[str, Any]) -> None:
    """Answers for the machine that this runs on, or for the one that --machine names."""
    pseudonyms.start(given.pop("anonymous", False))
    if given.pop("list_machines", False):
        _list_machines()
    elif "machine" in given:
        _on_machine(given)
    elif "largest" in given:
        raise InputError("--largest asks about a machine; name one with --machine, such as here")
    else:
        _run(given)


def _list_machines() -> None:
    from lms3d.machines import machine_files

    rows = [
        (machine_files.HERE, "this machine, measured"),
        *((name, machine_files.load(name).title) for name in machine_files.names()),
    ]
    console.table("Machines", ("--machine", ""), rows, left=2)


def _on_machine(given: dict[str, Any]) -> None:
    from lms3d.machines import machine_files

    name, largest = given.pop("machine"), given.pop("largest", False)
    refused = (*ELSEWHERE_REFUSED, *(LARGEST_REFUSED if largest else ()))
    for option in refused:
        if option in given:
            raise InputError(f"{flag(option)} is not for --machine{' --largest' if largest else ''}; leave it out")
    machine = None if name == machine_files.HERE else machine_files.load(name)
    options = _options(given)
    if machine is not None and options.precision != "float32":
        raise InputError(f"--precision {options.precision}: the rates of --machine are those of float32; leave it out")
    with console.quiet_native_log():  # it imports TensorFlow
        from lms3d.plan_display import on_machine

    where = on_machine.place(machine, options)
    if largest:
        on_machine.show_largest(options, where)
    else:
        on_machine.show(options, where, _title(options))


def _run(given: dict[str, Any]) -> None:
    output: Path | None = given.pop("output", None)
    limits: int | None = given.pop("sweep", None)
    why: str | None = given.pop("why", None)
    saved: Path | None = given.pop("keras_model", None)
    mapped: bool = not given.pop("copied", False)
    size: int | None = given.get("resolution")
    if saved is not None:
        _refuse_beside_saved_model(given)
    options = _options(given)
    title = f"{saved.name}, batch {options.batch_size}" if saved is not None else _title(options)
    title += "" if mapped else ", swapped tensors copied back"
    _refuse_without_use(options, mapped, limits, why)
    if output is not None:
        writable_folder(output, "--output")
    console.say(f"Tracing {title}, measuring operations where they are new, planning")
    hard_limit = limits is not None

    def plan(options: TrainConfig, *, with_floor: bool = True) -> Planned:
        asked = {"mapped": mapped, "with_floor": with_floor}
        if saved is not None:
            return _planned_saved(saved, options, size, hard_limit, asked)
        return _planned(options, hard_limit, asked)

    planned = plan(options)
    _show(planned, options, why)
    if output is not None:
        _write(planned, options, output, title)
    if limits is not None:
        _sweep(planned, options, plan, limits, title, output)
    if options.lms:
        needs.require_fit(options, planned.report)


def _options(given: dict[str, Any]) -> TrainConfig:
    """The options as `lms3d.train` would take them. InputError or DataError for --data that cannot be used, or if no step depends
    on it."""
    options = tasks.chosen(given)
    if options.data is not None:
        if not TASKS[options.task].planned_by_data:
            raise InputError(f"--data: a step of --task {options.task} is the same for any data; leave it out")
        TASKS[options.task].read_data(options)
    return options


def _tensor(text: str) -> str:
    """The name of a tensor. InputError for "", such as a variable of the shell that is not set."""
    if not text.strip():
        raise InputError("an empty name; name a tensor, or leave the option out for all")
    return text.strip()


def _refuse_without_use(options: TrainConfig, mapped: bool, limits: int | None, why: str | None) -> None:
    """InputError for an option that the others leave nothing to do."""
    if not mapped and not options.lms:
        raise InputError("--copied says how LMS swaps and --no-lms is without; give one of the two")
    if limits is not None and not options.lms:
        raise InputError("--sweep compares plans and --no-lms makes none; give one of the two")
    if why is not None and not options.lms:
        raise InputError("--why explains a plan and --no-lms makes none; give one of the two")
    if why is not None and limits is not None:
        raise InputError("--why explains one plan and --sweep makes many; give one of the two")


def _show(planned: Planned, options: TrainConfig, why: str | None) -> None:
    """Prints the plan, or the decision on the tensor `why`. If no plan fits, that is the lowest plan there is.

    If all parameters of TFLMS are given, there is no other plan.
    """
    from lms3d.plan_display import summary
    from lms3d.plan_display import why as explanation

    made_for, asked = planned.prediction.limit_bytes, planned.request.limit_bytes
    if options.lms and made_for != asked:
        console.say(f"The lowest plan there is, made for {format_size(made_for)}, not {format_size(asked)}:")
    if why is None:
        summary.show(_shown(planned, options), lms=options.lms)
    else:
        explanation.show(planned, why)


def _write(planned: Planned, options: TrainConfig, folder: Path, title: str) -> None:
    from lms3d.plan_display import plan_files

    plan_files.write(folder, planned.request, planned.plan, _shown(planned, options), title)


def _shown(planned: Planned, options: TrainConfig) -> Prediction:
    return planned.prediction if options.lms else planned.report


def _title(options: TrainConfig) -> str:
    return f"{options.model} at {options.size_text(TASKS[options.task].axes)}, batch {options.batch_size}"


def _refuse_beside_saved_model(given: dict[str, Any]) -> None:
    of_tasks = (name for task in TASKS.names for name, one in TASKS[task].options.own().items() if one.planned)
    for name in ("task", "data", "model", *of_tasks, *OF_THE_STEP):
        if name in given:
            why = "is part of the saved model" if name in OF_THE_STEP else "describes another network"
            raise InputError(f"{flag(name)} {why}; leave it out, or --keras-model")


def _planned_saved(
    path: Path, options: TrainConfig, size: int | None, hard_limit: bool, asked: dict[str, Any]
) -> Planned:
    """The plan for the model in a .keras file. size: stands for each size that the model's inputs leave open."""
    from lms3d.keras_step import saved_model

    _start_tensorflow(options, "float32")
    model = saved_model.load(path)
    spec = saved_model.step_spec(model, path, options.batch_size, size)
    return saved_model.plan(model, path, spec, asked | needs.lms_arguments(_limited(options, hard_limit)))


def _planned(options: TrainConfig, hard_limit: bool, asked: dict[str, Any]) -> Planned:
    """The plan for one of our networks. The limit is not put in force: it may be larger than this machine.

    asked: further arguments of `estimate.plan_step`.
    """
    from lms3d.training import compilation

    _start_tensorflow(options, options.precision)
    model = compilation.compiled_model(options, TASKS[options.task])
    return needs.plan_training_step(_limited(options, hard_limit), TASKS[options.task], model, **asked)


def _start_tensorflow(options: TrainConfig, precision: str) -> None:
    """Starts TensorFlow without the limit. Operations are measured within the workspace that they would have under it."""
    from lms3d.device import startup

    startup.start_tensorflow(
        seed=options.seed,
        precision=precision,
        cudnn_workspace_bytes=options.cudnn_workspace,
        planned_limit_bytes=options.memory_limit,
    )


def _limited(options: TrainConfig, hard_limit: bool) -> TrainConfig:
    """The options, with the device's memory as their limit if they have none and `hard_limit` is True.

    A named limit is planned for as a hard one, which takes more room.
    """
    from lms3d.device import memory

    if hard_limit and options.memory_limit is None:
        return dataclasses.replace(options, memory_limit=memory.device_memory_bytes())
    return options


def _sweep(
    planned: Planned,
    options: TrainConfig,
    plan: Callable[..., Planned],
    limits: int,
    title: str,
    folder: Path | None,
) -> None:
    """Plans for so many limits, prints the table, and writes it to `folder`. plan: makes the plan for other options."""
    from lms3d.engine import sweep
    from lms3d.engine.planners import PLANNERS
    from lms3d.plan_display import sweep_table

    def sliced(limit_bytes: int) -> tuple[StepRequest, Plan, Prediction]:
        made = plan(dataclasses.replace(options, memory_limit=limit_bytes), with_floor=False)
        return made.request, made.plan, made.prediction

    by_itself = options.slabs == "auto" and PLANNERS[planned.settings.planner].slices
    lowest = planned.prediction.floor_bytes if by_itself else None
    if by_itself:  # above the floor of the whole step its curve, and below it that of the step in slabs
        planned = plan(dataclasses.replace(options, slabs="off"))
    known = planned.prediction
    ends = None if known.floor_bytes is None else (known.floor_bytes, known.unedited_limit_bytes)
    console.say(f"Planning for {limits} limits, as lms3d does and as TFLMS does")
    with console.progress() as progress:
        found = sweep.run(
            planned.request, limits=limits, ends=ends, sliced=sliced, slab_floor_bytes=lowest, progress=progress
        )
    sweep_table.show(found)
    if folder is not None:
        sweep_table.write(found, folder, title)


def _parser() -> cli.Parser:
    parser = cli.Parser(prog="python -m lms3d.plan", description=_DESCRIPTION, epilog=_EPILOG)
    command_options.add_data_options(parser, shown=False)
    command_options.add_model_options(parser, resolution=cli.whole(1, LONGEST_SIDE))
    command_options.add_task_options(parser, planned=True)
    command_options.add_step_options(parser)
    command_options.add_memory_options(parser)
    parser.add_argument(
        "--keras-model", type=cli.path, metavar="FILE",
        help="a compiled model of your own, in place of --model; --resolution, any N, stands for each size that it leaves open",
    )  # fmt: skip
    parser.add_argument(
        "--machine", metavar="NAME",
        help="what a step would come to there: without LMS, with our plan, with TFLMS's; one of --list-machines, or a .json file",
    )  # fmt: skip
    parser.add_argument(
        "--copied", action="store_true",
        help="on a processor: copy swapped tensors back, as to a GPU, instead of reading them where they lie; as LMS(mapped=False)",
    )  # fmt: skip
    parser.add_argument(
        "--why", metavar="TENSOR", type=cli.checked(_tensor, "name"),
        help="explain the decision on one tensor instead: who makes and reads it, when it is in memory, and the costs of "
        "swapping it, of computing it again and of keeping it; a name, or a part of one",
    )  # fmt: skip
    cli.add_anonymous_option(parser)
    parser.add_argument("--largest", action="store_true", help="with --machine: the largest cube there, each way")
    parser.add_argument("--list-machines", action="store_true", help="name the machines, and stop")
    parser.add_argument(
        "--output",
        type=cli.checked(cli.place, "path"),
        metavar="DIR",
        help="folder for the plan and figures (default: none)",
    )
    parser.add_argument(
        "--sweep", type=cli.whole(2), nargs="?", const=LIMITS, metavar="N",
        help=f"also plan for N limits between the smallest with LMS and the smallest without (default N: {LIMITS}), and for "
        "some in slabs below these, and compare the step time with TFLMS, swapping everything and recomputing everything",
    )  # fmt: skip
    return parser


if __name__ == "__main__":
    sys.exit(main())
