"""The groups of options of `lms3d.train`, `lms3d.plan` and `lms3d.predict`, with those of each task."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from typing import Any

from lms3d import cli
from lms3d.cli import PRECISIONS
from lms3d.config import Option, flag
from lms3d.engine.tiers import tier_choices
from lms3d.errors import InputError
from lms3d.ranks import job
from lms3d.tasks import DEFAULT_TASK, TASKS
from lms3d.training import trackers
from lms3d.training.trackers import TRACKERS
from lms3d.units import parse_size


def slabs(text: str) -> str:
    """Slabs in their one normal form: "16" and "16/8" are "16/8"."""
    from lms3d.engine.slabs import choice  # NumPy, which `--help` need not wait for

    wanted = choice.parse(text)
    return wanted if isinstance(wanted, str) else choice.text(wanted)


def add_workspace_option(parser: Any) -> None:
    """Adds --cudnn-workspace to a command or a group of its options."""
    taken = (
        "on a GPU: limit on the memory that a convolution of cuDNN takes beside its tensors, with LMS and without; more is "
        "faster (default: a sixteenth of the memory limit, 128MiB to 4GiB, or what lms3d.doctor --workspaces has measured)"
    )
    parser.add_argument("--cudnn-workspace", type=cli.checked(cli.workspace, "size"), metavar="SIZE", help=taken)


def add_slabs_option(parser: Any) -> None:
    """Adds --slabs to a command or a group of its options."""
    cut = (
        "cut the largest tensors into slabs, which takes less memory and changes results by rounding: auto (only if the limit "
        "asks for it), off, or N slabs at full resolution, M at half, .. (default: auto)"
    )
    parser.add_argument("--slabs", type=cli.checked(slabs, "slabs"), metavar="auto|off|N/M/..", help=cut)


_RESOLUTION = cli.checked(cli.resolution, "resolution")


def every(kind: str) -> tuple[str, ...]:
    """All "models" or all "losses" of the tasks."""
    return tuple(dict.fromkeys(name for task in TASKS.names for name in getattr(TASKS[task].options, kind)))


def _default(option: str) -> str:
    """ "(default: 128; for chexnet 224)": the usual default, and the default of each task that has another."""
    kinds, usual = {name: TASKS[name].options for name in TASKS.names}, _usual(option)
    others = [
        f"for {name} {_shown(getattr(kind, option))}" for name, kind in kinds.items() if getattr(kind, option) != usual
    ]
    return f"(default: {'; '.join([_shown(usual), *others])})"


def _usual(option: str) -> Any:
    """The default of an option in the default task."""
    return getattr(TASKS[DEFAULT_TASK].options, option)


def _by_task(kind: str) -> str:
    """ "for brats isensee2017 or unet3d; for chexnet ...": all "models" or "losses" of each task."""
    return "; ".join(f"for {name} {' or '.join(getattr(TASKS[name].options, kind))}" for name in TASKS.names)


def _shown(value: Any) -> str:
    return f"{value:.0e}".replace("e-0", "e-") if isinstance(value, float) else str(value)


def add_model_options(parser: argparse.ArgumentParser, *, resolution: Callable[[str], Any] = _RESOLUTION) -> None:
    """Adds --model, --resolution, --batch-size and --precision. resolution: the check of its values."""
    add = parser.add_argument_group("network").add_argument
    add("--model", choices=every("models"), help=f"network: {_by_task('models')} {_default('model')}")
    sides, samples = map(_default, ("resolution", "batch_size"))
    side = f"side of the cube or square that all data is resized to, a multiple of 16 {sides}"
    add("--resolution", type=resolution, metavar="N", help=side)
    add("--batch-size", type=cli.whole(1, 1 << 20), metavar="N", help=f"samples per step and rank {samples}")
    formats = "number format of the activations; weights stay float32 (default: float32)"
    add("--precision", choices=PRECISIONS, help=formats)


def add_data_options(parser: argparse.ArgumentParser, *, shown: bool = True) -> None:
    """Adds the options that say what to learn, and from which data. shown: whether a network is shown samples, under --augment."""
    add = parser.add_argument_group("data").add_argument
    tasks = ", or ".join(f"{name}, {TASKS[name].options.summary}" for name in TASKS.names)
    add("--task", choices=TASKS.names, help=f"what to learn: {tasks} (default: by --data, else {DEFAULT_TASK})")
    folder = "folder of an unpacked data set: BraTS, nnU-Net, Decathlon, ChestX-ray14; or a manifest (default: an artificial set)"
    add("--data", type=cli.path, metavar="DIR", help=folder)
    if not shown:
        return
    turned = (
        "show training samples under random symmetries: of the cube, or an image and its mirror image (default: on)"
    )
    add("--augment", action=argparse.BooleanOptionalAction, help=turned)


def add_task_options(parser: argparse.ArgumentParser, *, planned: bool = False) -> None:
    """Adds a group for each task with options of its own, and one for options that several share. ValueError if two tasks have
    different options of one name.

    A task that wants an option of another inherits its class, or a class that both inherit. planned: add only what a plan depends
    on (`Option.planned`).
    """
    known: dict[str, Option] = {}
    owners: dict[str, list[str]] = {}
    for task in TASKS.names:
        for name, option in TASKS[task].options.own().items():
            if known.setdefault(name, option) is not option:
                raise ValueError(
                    f"task {task!r}: {flag(name)} is an option of another task; inherit it, or choose another name"
                )
            if option.planned or not planned:
                owners.setdefault(name, []).append(task)
    for tasks in dict.fromkeys(map(tuple, owners.values())):
        title = (
            f"task {tasks[0]} ({TASKS[tasks[0]].options.summary})" if len(tasks) == 1 else f"tasks {', '.join(tasks)}"
        )
        add = parser.add_argument_group(title).add_argument
        for name in (name for name, having in owners.items() if tuple(having) == tasks):
            add(flag(name), **known[name].arguments)


def add_step_options(parser: argparse.ArgumentParser) -> None:
    """Adds --loss, --accumulate and --ema: what a training step computes and keeps beside the network."""
    add = parser.add_argument_group("training step").add_argument
    add("--loss", choices=every("losses"), help=f"what to minimise: {_by_task('losses')} {_default('loss')}")
    together = "change the weights once in N steps, by the mean of their gradients (default: 1)"
    add("--accumulate", type=cli.whole(1), metavar="N", help=together)
    mean = "validate and keep a moving average of the weights with this decay, such as 0.999, but at most (1 + t) / (10 + t) "
    mean += "after t changes (default: the weights themselves)"
    add("--ema", type=cli.number(0, 1), metavar="DECAY", help=mean)


def add_training_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options that say how to learn, and for how long."""
    add = parser.add_argument_group("training").add_argument
    epochs = "passes over the training cases, at most (default: 500; on the embedded data as many as end within 17.5 minutes)"
    add("--epochs", type=cli.whole(1), metavar="N", help=epochs)
    steps = "training steps per epoch (default: all training cases)"
    add("--steps-per-epoch", type=cli.whole(1), metavar="N", help=steps)
    validated = "validation steps per epoch (default: all cases)"
    add("--validation-steps", type=cli.whole(1), metavar="N", help=validated)
    wide = "samples per validation step (default: the training batch)"
    add("--validation-batch-size", type=cli.whole(1, 1 << 20), metavar="N", help=wide)
    rate = (
        f"Adam's on one rank; N ranks take N times as much; lowered when validation stalls {_default('learning_rate')}"
    )
    add("--learning-rate", type=cli.number(0), metavar="X", help=rate)
    warmup = "with several ranks: epochs in which the rate grows from that of one rank to that of all (default: 5)"
    add("--warmup-epochs", type=cli.whole(0), metavar="N", help=warmup)
    compression = "how gradients travel between ranks (default: none)"
    add("--gradient-compression", choices=("none", "fp16"), help=compression)
    falls = "learning rate: lowered when validation stalls, or along a cosine to a hundredth (default: plateau)"
    add("--schedule", choices=("plateau", "cosine"), help=falls)
    weights = "weights to start from, such as ImageNet's (default: random ones)"
    add("--weights", type=cli.path, metavar="FILE", help=weights)
    add(
        "--patience",
        type=cli.whole(1),
        metavar="N",
        help=f"end training after N epochs without a better validation loss {_default('patience')}",
    )
    add("--seed", type=cli.whole(0, 2**32 - 1), metavar="N", help="decides everything that is random (default: 0)")


def add_run_options(parser: argparse.ArgumentParser) -> None:
    """Adds --config, --output, --resume, --profile, --stats-average, --record-bits, --tracker, --ranks, --elastic,
    --anonymous and --dry-run."""
    group = parser.add_argument_group("run")
    add = group.add_argument
    of_file = "TOML file with options, such as the run.toml of another run; options of the command line win"
    add("--config", type=cli.path, metavar="FILE", help=of_file)
    output = "folder for all results (default: a new one under runs/)"
    add("--output", type=cli.checked(cli.place, "path"), metavar="RUN_DIR", help=output)
    resume = (
        "continue the run in RUN_DIR; without --output the latest one under runs/ (of the network and resolution, if given); "
        "begin a new run if there is none"
    )
    add("--resume", action="store_true", help=resume)
    profile = "profile these steps of an epoch, counted from 1, for TensorBoard"
    add("--profile", type=cli.checked(cli.profile_range, "range"), metavar="EPOCH:FIRST-LAST", help=profile)
    average = (
        "also write lms_stats_average.csv: means over all steps except the first N of each plan (default: not written)"
    )
    add("--stats-average", type=cli.whole(0), metavar="N", help=average)
    record = (
        "record the bits of each step in FOLDER; a later job compares its own and keeps the first step that differs"
    )
    add("--record-bits", type=cli.checked(cli.place, "path"), metavar="FOLDER", help=record)
    followed = f"follow the run in {', '.join(TRACKERS.names)}, or several with commas (default: tensorboard)"
    add("--tracker", type=cli.checked(trackers.named, "names"), metavar="NAME,..", help=followed)
    backend = (
        "what links the ranks: horovod, tensorflow (its own collectives, on one machine), or auto: horovod if it is installed, "
        "unless python -m lms3d.launch started the ranks (default: auto)"
    )
    add("--ranks", choices=job.BACKENDS, help=backend)
    elastic = "continue with fewer or more ranks if some are lost or join (needs horovodrun --min-np)"
    add("--elastic", action="store_true", help=elastic)
    cli.add_anonymous_option(group)
    add("--dry-run", action="store_true", help="print the plan, the predicted peak and step time, and stop")


_OF_THE_PLAN = (
    "slabs", "lms_compile", "swapout_threshold", "swapin_ahead", "swapin_groupby", "sync_mode", "serialization",
    "serialization_by_size",
)  # fmt: skip


def require_a_plan(given: Mapping[str, Any]) -> None:
    """InputError for an option that changes the plan of a training step, if --no-lms is given, too.

    --swap-tier and --swap-dir are allowed: they change no result, scripts name them for every job, and the run keeps them for a
    later `--resume --lms` and for `predict --lms`.
    """
    idle = next((name for name in _OF_THE_PLAN if name in given), None)
    if idle and given.get("lms") is False:
        raise InputError(f"{flag(idle)}: with --no-lms there is no plan; leave one of them out")


def require_a_fixed_world(given: Mapping[str, Any]) -> None:
    """InputError for --record-bits, which needs a job that takes steps and can be repeated, beside --elastic or --dry-run; and for
    --ranks tensorflow beside --elastic."""
    if given.get("elastic") and given.get("ranks") == "tensorflow":
        raise InputError("--ranks tensorflow: only Horovod replaces ranks (--elastic); leave one of them out")
    if given.get("elastic") and "record_bits" in given:
        raise InputError(
            "--record-bits: a job that changes its ranks (--elastic) has no bits of its own; leave one of them out"
        )
    if given.get("dry_run") and "record_bits" in given:
        raise InputError("--record-bits: a dry run (--dry-run) takes no steps; leave one of them out")


def add_memory_options(parser: argparse.ArgumentParser) -> None:
    """Adds --lms, --memory-limit, --slabs, --lms-compile, the options of swapping, and the parameters of TFLMS."""
    group = parser.add_argument_group("memory")
    add = group.add_argument
    lms = "move activations out of the device and back, or recompute them, as far as the limit requires (default: on)"
    add("--lms", action=argparse.BooleanOptionalAction, help=lms)
    limit = "hard limit on device memory, such as 6GiB or 900MiB (default: what the device or container has)"
    add("--memory-limit", type=cli.checked(parse_size, "size"), metavar="SIZE", help=limit)
    add_workspace_option(group)
    add_slabs_option(group)
    compiled = (
        "compile chains of small operations by XLA, which changes results by rounding: auto (each if measured to pay; "
        "the first step takes longer), or off (default: off)"
    )
    add("--lms-compile", choices=("auto", "off"), help=compiled)
    tier = "where to swap to: host (memory), disk, or auto, which is host for a GPU and disk for a CPU (default: auto)"
    add("--swap-tier", choices=tier_choices(), help=tier)
    folder = "folder for swap files (default: the system's temporary folder)"
    add("--swap-dir", type=cli.path, metavar="DIR", help=folder)
    add = parser.add_argument_group(
        "manual LMS", "The parameters of TFLMS, in place of the automatic plan. Leave them out unless you compare."
    ).add_argument
    threshold = "swap tensors unused over N levels of the graph"
    add("--swapout-threshold", type=cli.whole(1), metavar="N", help=threshold)
    add("--swapin-ahead", type=cli.whole(1), metavar="N", help="swap in N levels before the use")
    add("--swapin-groupby", type=cli.whole(0), metavar="N", help="one swap-in for uses within N levels")
    modes = "0 none; wait for swaps: 1 out, 2 in, 3 both"
    add("--sync-mode", type=int, choices=(0, 1, 2, 3), help=modes)
    one_by_one = "levels to run one operation at a time"
    add("--serialization", type=cli.checked(cli.levels, "list"), metavar="L,...", help=one_by_one)
    large = "run levels one operation at a time whose outputs exceed this size"
    add("--serialization-by-size", type=cli.number(0), metavar="GIB", help=large)
