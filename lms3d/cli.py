"""The parts that the command lines share: a parser with one-line errors, value checks, and groups of options.

Nothing here imports TensorFlow, so that `--help` and wrong options answer at once. Options that the user did
not give are left out of the namespace (`argparse.SUPPRESS`): defaults live in one place, `lms3d.config`.
"""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

from lms3d.config import LONGEST_SIDE, PRECISIONS, TrainConfig
from lms3d.engine.tiers import tier_choices
from lms3d.errors import InputError
from lms3d.tasks import TASKS
from lms3d.tasks.brats.options import CHOICES as _BRATS
from lms3d.units import parse_size

VOLUME_MODELS = _BRATS.models
"""Networks that segment volumes."""


class Parser(argparse.ArgumentParser):
    """An argument parser that raises InputError (one line, exit code 2) where argparse prints its usage and exits."""

    def __init__(self, **options: Any) -> None:
        options.setdefault("formatter_class", _Formatter)
        super().__init__(argument_default=argparse.SUPPRESS, allow_abbrev=False, **options)

    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message} (see {self.prog} --help)")


class _Formatter(argparse.RawDescriptionHelpFormatter):
    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=34, width=110)


def checked(check: Callable[[str], Any], name: str) -> Callable[[str], Any]:
    """An argparse `type` that passes on the message of an InputError or ValueError from `check`."""

    def convert(text: str) -> Any:
        try:
            return check(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    convert.__name__ = name
    return convert


def whole(minimum: int, maximum: int = 2**31 - 1) -> Callable[[str], Any]:
    """An option value that is a whole number from `minimum` to `maximum`."""

    def check(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise InputError(f"{text!r} is not a whole number") from None
        if value < minimum:
            raise InputError(f"{value} is too small; the least is {minimum}")
        if value > maximum:
            raise InputError(f"{text[:20]} is too large; the most is {maximum}")
        return value

    return checked(check, "whole number")


def number(low: float, high: float = float("inf")) -> Callable[[str], Any]:
    """An option value that is a number with low < value < high."""

    def check(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            raise InputError(f"{text!r} is not a number") from None
        if not low < value < high:
            raise InputError(f"{text} is out of range; it must lie between {low:g} and {high:g}, both excluded")
        return value

    return checked(check, "number")


def path(text: str) -> Path:
    """A path as the user means it now: absolute, so that config.json names the same place from any folder."""
    return place(text).absolute()


def place(text: str) -> Path:
    """A path for results, which messages tell as the user wrote it. "" is a variable of the shell that was not set."""
    if not text:
        raise InputError("an empty path; name a file or a folder")
    return Path(text).expanduser()


def levels(text: str) -> tuple[int | str, ...]:
    """The text "3,5:8" -> (3, "5:8"): levels of the graph and ranges of them, as TFLMS writes them."""
    parts = [part.strip() for part in text.split(",")]
    if not all(re.fullmatch(r"-?\d+|(?!:+$)-?\d*:-?\d*(:-?\d*)?", part) for part in parts):
        raise InputError(f"{text!r} is not a list of levels such as 3,5:8")
    return tuple(part if ":" in part else int(part) for part in parts)


def resolution(text: str) -> int:
    """The side of the cube: a whole number divisible by 16, since the networks halve it four times."""
    value = int(text) if text.isdecimal() else 0
    if value > LONGEST_SIDE:
        raise InputError(f"{text[:20]} is too large; the most is {LONGEST_SIDE}")
    if value < 16 or value % 16:
        below = max(16, value // 16 * 16)
        raise InputError(f"{text} is not a multiple of 16; the nearest that work are {below} and {below + 16}")
    return value


def box(text: str) -> tuple[int, int, int]:
    """The text "160x192x160": three sides, each a multiple of 16."""
    sides = text.lower().split("x")
    if len(sides) != 3:
        raise InputError(f"{text!r} is not three sides such as 160x192x160")
    a, b, c = map(resolution, sides)
    return a, b, c


def quoted(text: str) -> str:
    """Words for another command, as a shell would read them."""
    shlex.split(text)  # ValueError says which quote is open
    return text


def names(text: str) -> tuple[str, ...]:
    """The text "elastic,noise" -> ("elastic", "noise"); "all" stays ("all",)."""
    return tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))


def stages(text: str) -> tuple[tuple[int, int], ...]:
    """The text "64:20,96:10" -> ((64, 20), (96, 10)): resolutions and epochs."""
    found = []
    for part in text.split(","):
        side, _, epochs = part.strip().partition(":")
        if not epochs.isdecimal() or int(epochs) < 1:
            raise InputError(f"{text!r} is not a list of RESOLUTION:EPOCHS such as 64:20,96:10")
        found.append((resolution(side), int(epochs)))
    if sorted({side for side, _ in found}) != [side for side, _ in found]:
        raise InputError(f"{text!r}: resolutions must rise")
    return tuple(found)


def slabs(text: str) -> str:
    """The one way to write the same slabs: "16" and "16/8" are "16/8"."""
    from lms3d.engine.slabs import choice  # NumPy, which `--help` need not wait for

    wanted = choice.parse(text)
    return wanted if isinstance(wanted, str) else choice.text(wanted)


def add_anonymous_option(parser: Any) -> None:
    """--anonymous, of a command or a group of its options."""
    hidden = (
        "pseudonyms in the place of the names of cases, patients and images, in all messages, tables, figures and pages; what "
        "programs read again (split.json, predictions) keeps names (default: off)"
    )
    parser.add_argument("--anonymous", action="store_true", help=hidden)


def workspace(text: str) -> int:
    """A size of at least 1 MiB, in bytes: TensorFlow knows no smaller unit."""
    size = parse_size(text)
    if size < 1 << 20:
        raise InputError(f"{text} is less than 1 MiB, the smallest limit")
    return size


def add_workspace_option(parser: Any) -> None:
    """--cudnn-workspace, of a command or a group of its options."""
    taken = (
        "on a GPU: limit of the memory that a convolution of cuDNN takes beside its tensors, with LMS and without; the more, the "
        "faster (default: a quarter of the memory limit, 64MiB to 4GiB, or what lms3d.doctor --workspaces has measured)"
    )
    parser.add_argument("--cudnn-workspace", type=checked(workspace, "size"), metavar="SIZE", help=taken)


def add_slabs_option(parser: Any) -> None:
    """--slabs, of a command or a group of its options."""
    cut = (
        "cut the largest tensors into slabs, which takes less memory and changes results by rounding: auto (only where the limit "
        "asks for it), off, or N slabs at full resolution, M at half, .. (default: auto)"
    )
    parser.add_argument("--slabs", type=checked(slabs, "slabs"), metavar="auto|off|N/M/..", help=cut)


_RESOLUTION = checked(resolution, "resolution")


def profile_range(text: str) -> tuple[int, int, int]:
    """The text "2:20-50" -> (epoch 2, first step 20, last step 50)."""
    match = re.fullmatch(r"(\d+):(\d+)-(\d+)", text)
    epoch, first, last = map(int, match.groups()) if match else (0, 0, 0)
    if not (epoch >= 1 and 1 <= first <= last):
        raise InputError(f"{text!r} is not EPOCH:FIRST-LAST, all counted from 1, such as 2:20-50")
    return epoch, first, last


def every(kind: str) -> tuple[str, ...]:
    """All "models" or all "losses" that some task offers."""
    return tuple(dict.fromkeys(name for task in TASKS.names for name in getattr(TASKS[task].choices, kind)))


def _default(option: str, *, by_model: bool = False) -> str:
    """ "(default: 128; for chexnet 224)": of each task that departs from `TrainConfig`. by_model: named by its networks."""
    own = {name: TASKS[name].choices for name in TASKS.names}
    others = [
        f"for {' or '.join(choices.models) if by_model else name} {_shown(choices.defaults[option])}"
        for name, choices in own.items()
        if option in choices.defaults
    ]
    return f"(default: {'; '.join([_shown(getattr(TrainConfig, option)), *others])})"


def _by_task(kind: str) -> str:
    """ "for brats isensee2017 or unet3d; for chexnet ...": all "models" or "losses" of each task."""
    return "; ".join(f"for {name} {' or '.join(getattr(TASKS[name].choices, kind))}" for name in TASKS.names)


def _shown(value: Any) -> str:
    return f"{value:.0e}".replace("e-0", "e-") if isinstance(value, float) else str(value)


def add_model_options(
    parser: argparse.ArgumentParser, *, resolution: Callable[[str], Any] = _RESOLUTION, with_task: bool = True
) -> None:
    """--model, --resolution (its values checked in the given way), --batch-size, --precision.

    with_task: the command has --task, else the network tells the task.
    """
    group = parser.add_argument_group("network")
    add = group.add_argument
    default = _default("model") if with_task else f"(default: {TrainConfig.model})"
    add("--model", choices=every("models"), help=f"network: {_by_task('models')} {default}")
    sides, samples = (_default(option, by_model=not with_task) for option in ("resolution", "batch_size"))
    side = f"side of the cube or square that all data is resized to, a multiple of 16 {sides}"
    grid = group.add_mutually_exclusive_group()
    grid.add_argument("--resolution", type=resolution, metavar="N", help=side)
    if with_task:
        around = "voxels of 1 mm around the brain, such as 160x192x160, in place of a cube: nothing is resized"
        grid.add_argument("--box", type=checked(box, "box"), metavar="XxYxZ", help=around)
        part = "train on cubes of side N cut from the volume, predict with a sliding window (default: the whole volume)"
        add("--patch", type=_RESOLUTION, metavar="N", help=part)
    add("--batch-size", type=whole(1, 1 << 20), metavar="N", help=f"samples per step and rank {samples}")
    formats = "number format of the activations; weights stay float32 (default: float32)"
    add("--precision", choices=PRECISIONS, help=formats)


def add_data_options(parser: argparse.ArgumentParser) -> None:
    """What to learn from, how it is prepared, split and shown."""
    add = parser.add_argument_group("data").add_argument
    tasks = ", or ".join(f"{name}, {TASKS[name].choices.summary}" for name in TASKS.names)
    add("--task", choices=TASKS.names, help=f"what to learn: {tasks} {_default('task')}")
    folder = "folder of an unpacked BraTS, MSD Task01 or ChestX-ray14 data set, or a manifest (default: an embedded artificial set)"
    add("--data", type=path, metavar="DIR", help=folder)
    schema = "what label values mean, such as brats2021, where file names do not tell"
    add("--labels", metavar="SCHEMA", help=schema)
    learnt = "what the network learns: disjoint labels, or the nested regions that are scored (default: labels)"
    add("--targets", choices=("labels", "regions"), help=learnt)
    corrected = "remove bias fields (N4) of t1, t1ce and t2, once cropped: slow, done once per case (default: off)"
    add("--n4", action=argparse.BooleanOptionalAction, help=corrected)
    smooth = "before volumes are made smaller, remove detail that they cannot hold (default: on)"
    add("--anti-alias", action=argparse.BooleanOptionalAction, help=smooth)
    scores = (
        "intensities: z-scores inside each brain, or one mean and deviation for all, as the case study (default: case)"
    )
    add("--normalisation", choices=("case", "global"), help=scores)
    split = "split.json of another run to use (default: a random split by seed)"
    add("--split", type=path, metavar="FILE", help=split)
    parts = "divide the cases into K parts (patients together, grades spread evenly), of which --fold validates"
    add("--folds", type=whole(2), metavar="K", help=parts)
    add("--fold", type=whole(0), metavar="I", help="the part that validates, 0 to K - 1 (default: 0)")
    fraction = "share of cases for validation (default: 0.2)"
    add("--validation-fraction", type=number(0, 1), metavar="F", help=fraction)
    turned = (
        "show training samples under random symmetries: of the cube, or an image and its mirror image (default: on)"
    )
    add("--augment", action=argparse.BooleanOptionalAction, help=turned)
    which = "which of a volume's: all that keep its shape, flips, or left and right alone (default: all)"
    add("--symmetries", choices=("all", "flips", "mirror"), help=which)
    more = "besides, at random: elastic, scale, intensity, gamma, noise, bias-field; a list of these, or all (default: none)"
    add("--distort", type=checked(names, "list"), metavar="NAME,..", help=more)


def add_training_options(parser: argparse.ArgumentParser) -> None:
    """How long and how to learn."""
    group = parser.add_argument_group("training")
    add = group.add_argument
    epochs = "passes over the training cases, at most (default: 500; on the embedded data as many as 14 minutes allow)"
    add("--epochs", type=whole(1), metavar="N", help=epochs)
    steps = "training steps per epoch (default: all training cases)"
    add("--steps-per-epoch", type=whole(1), metavar="N", help=steps)
    validated = "validation steps per epoch (default: all cases)"
    add("--validation-steps", type=whole(1), metavar="N", help=validated)
    wide = "samples per validation step (default: the training batch)"
    add("--validation-batch-size", type=whole(1, 1 << 20), metavar="N", help=wide)
    add("--loss", choices=every("losses"), help=f"what to minimise: {_by_task('losses')} {_default('loss')}")
    deep = "a loss for each deeper head of isensee2017, beside that of their sum (default: off)"
    add("--deep-supervision", action=argparse.BooleanOptionalAction, help=deep)
    rate = (
        f"Adam's on one rank; N ranks take N times as much; lowered when validation stalls {_default('learning_rate')}"
    )
    add("--learning-rate", type=number(0), metavar="X", help=rate)
    warmup = "with several ranks: epochs in which the rate grows from that of one rank to that of all (default: 5)"
    add("--warmup-epochs", type=whole(0), metavar="N", help=warmup)
    compression = "how gradients travel between ranks (default: none)"
    add("--gradient-compression", choices=("none", "fp16"), help=compression)
    falls = "learning rate: lowered when validation stalls, or along a cosine to a hundredth (default: plateau)"
    add("--schedule", choices=("plateau", "cosine"), help=falls)
    together = "change the weights once in N steps, by the mean of their gradients (default: 1)"
    add("--accumulate", type=whole(1), metavar="N", help=together)
    mean = "validate and keep a moving average of the weights with this decay, such as 0.999 (default: the weights themselves)"
    add("--ema", type=number(0, 1), metavar="DECAY", help=mean)
    begin = group.add_mutually_exclusive_group()
    start = "start from the best weights of another run, of any resolution (default: random weights)"
    begin.add_argument("--start-from", type=path, metavar="RUN_DIR", help=start)
    weights = "weights to start from, such as ImageNet's (default: random ones)"
    begin.add_argument("--weights", type=path, metavar="FILE", help=weights)
    before = "train at lower resolutions first, each stage starting from the one before: RESOLUTION:EPOCHS,.. such as 64:20,96:10"
    add("--stages", type=checked(stages, "stages"), metavar="N:E,..", help=before)
    add(
        "--patience",
        type=whole(1),
        metavar="N",
        help=f"end training after N epochs without a better validation loss {_default('patience')}",
    )
    add("--seed", type=whole(0, 2**32 - 1), metavar="N", help="decides everything that is random (default: 0)")


def add_run_options(parser: argparse.ArgumentParser) -> None:
    """--output, --resume, --profile, --stats-average, --record-bits, --elastic, --anonymous, --dry-run."""
    group = parser.add_argument_group("run")
    add = group.add_argument
    output = "folder for all results (default: a new one under runs/)"
    add("--output", type=checked(place, "path"), metavar="RUN_DIR", help=output)
    resume = (
        "go on where the run in RUN_DIR stopped; without --output the latest under runs/ (of the network and resolution, if "
        "given); a new run where there is none"
    )
    add("--resume", action="store_true", help=resume)
    profile = "profile these steps of an epoch, counted from 1, for TensorBoard"
    add("--profile", type=checked(profile_range, "range"), metavar="EPOCH:FIRST-LAST", help=profile)
    average = (
        "write lms_stats_average.csv, too: means over all steps but the first N of each plan (default: not written)"
    )
    add("--stats-average", type=whole(0), metavar="N", help=average)
    record = (
        "record the bits of each step in FOLDER; a later job compares its own and keeps the first step that differs"
    )
    add("--record-bits", type=checked(place, "path"), metavar="FOLDER", help=record)
    elastic = "go on with fewer or more ranks when some are lost or join (needs horovodrun --min-np)"
    add("--elastic", action="store_true", help=elastic)
    add_anonymous_option(group)
    add("--dry-run", action="store_true", help="print the plan, the predicted peak and step time, and stop")


_OF_THE_PLAN = (
    "slabs", "lms_compile", "swapout_threshold", "swapin_ahead", "swapin_groupby", "sync_mode", "serialization",
    "serialization_by_size",
)  # fmt: skip


def require_a_plan(given: Mapping[str, Any]) -> None:
    """InputError for an option that changes the plan of a training step, beside --no-lms.

    Not for --swap-tier and --swap-dir: they change no result, scripts name them for every job, and the run keeps them for a later
    `--resume --lms` and for `predict --lms`.
    """
    idle = next((name for name in _OF_THE_PLAN if name in given), None)
    if idle and given.get("lms") is False:
        raise InputError(f"--{idle.replace('_', '-')}: with --no-lms there is no plan; leave one of them out")


def require_a_fixed_world(given: Mapping[str, Any]) -> None:
    """InputError for an option that needs jobs which take steps and can be repeated, beside --elastic or --dry-run."""
    if given.get("elastic") and "record_bits" in given:
        raise InputError(
            "--record-bits: a job that changes its ranks (--elastic) has no bits of its own; leave one of them out"
        )
    if given.get("dry_run") and "record_bits" in given:
        raise InputError("--record-bits: a dry run (--dry-run) takes no steps; leave one of them out")


def add_memory_options(parser: argparse.ArgumentParser) -> None:
    """--lms, --memory-limit, --slabs, --lms-compile, where to swap to, and the parameters of TFLMS."""
    group = parser.add_argument_group("memory")
    add = group.add_argument
    lms = "move activations out of the device and back, or recompute them, as far as the limit asks (default: on)"
    add("--lms", action=argparse.BooleanOptionalAction, help=lms)
    limit = "hard limit on device memory, such as 6GiB or 900MiB (default: what the device or container has)"
    add("--memory-limit", type=checked(parse_size, "size"), metavar="SIZE", help=limit)
    add_workspace_option(group)
    add_slabs_option(group)
    compiled = (
        "compile chains of small operations by XLA, which changes results by rounding: auto (each where it is measured to pay; "
        "the first step takes longer), or off (default: off)"
    )
    add("--lms-compile", choices=("auto", "off"), help=compiled)
    tier = "where to swap to: host (memory), disk, or auto, which is host for a GPU and disk for a CPU (default: auto)"
    add("--swap-tier", choices=tier_choices(), help=tier)
    folder = "folder for swap files (default: the system's temporary folder)"
    add("--swap-dir", type=path, metavar="DIR", help=folder)
    add = parser.add_argument_group(
        "manual LMS", "The parameters of TFLMS, in place of the automatic plan. Leave them out unless you compare."
    ).add_argument
    threshold = "swap tensors unused over N levels of the graph"
    add("--swapout-threshold", type=whole(1), metavar="N", help=threshold)
    add("--swapin-ahead", type=whole(1), metavar="N", help="swap in N levels before the use")
    add("--swapin-groupby", type=whole(0), metavar="N", help="one swap-in for uses within N levels")
    modes = "0 none; wait for swaps: 1 out, 2 in, 3 both"
    add("--sync-mode", type=int, choices=(0, 1, 2, 3), help=modes)
    one_by_one = "levels to run one operation at a time"
    add("--serialization", type=checked(levels, "list"), metavar="L,...", help=one_by_one)
    large = "run levels one operation at a time whose outputs exceed this size"
    add("--serialization-by-size", type=number(0), metavar="GIB", help=large)
