"""The parts that the command lines share: a parser with one-line errors, value checks, and groups of options.

Nothing here imports TensorFlow, so that `--help` and wrong options answer at once. Options that the user did
not give are left out of the namespace (`argparse.SUPPRESS`): defaults live in one place, `lms3d.config`.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from lms3d.config import CHOICES
from lms3d.errors import InputError
from lms3d.swap.tiers import tier_choices
from lms3d.tasks import TASKS
from lms3d.units import parse_size

MODELS, LOSSES = (tuple(n for task in TASKS.names for n in CHOICES[task][kind]) for kind in ("model", "loss"))
VOLUME_MODELS = CHOICES["brats"]["model"]


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


def whole(minimum: int) -> Callable[[str], Any]:
    """An option value that is a whole number of at least `minimum`."""

    def check(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise InputError(f"{text!r} is not a whole number") from None
        if value < minimum:
            raise InputError(f"{value} is too small; the least is {minimum}")
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
    return Path(text).expanduser().absolute()


def levels(text: str) -> tuple[int | str, ...]:
    """The text "3,5:8" -> (3, "5:8"): levels of the graph and ranges of them, as TFLMS writes them."""
    parts = [part.strip() for part in text.split(",")]
    if not all(re.fullmatch(r"-?\d+|(?!:+$)-?\d*:-?\d*(:-?\d*)?", part) for part in parts):
        raise InputError(f"{text!r} is not a list of levels such as 3,5:8")
    return tuple(part if ":" in part else int(part) for part in parts)


def resolution(text: str) -> int:
    """The side of the cube: a whole number divisible by 16, since the networks halve it four times."""
    value = int(text) if text.isdecimal() else 0
    if value < 16 or value % 16:
        below = max(16, value // 16 * 16)
        raise InputError(f"{text} is not a multiple of 16; the nearest that work are {below} and {below + 16}")
    return value


_RESOLUTION = checked(resolution, "resolution")


def profile_range(text: str) -> tuple[int, int, int]:
    """The text "2:20-50" -> (epoch 2, first step 20, last step 50)."""
    match = re.fullmatch(r"(\d+):(\d+)-(\d+)", text)
    epoch, first, last = map(int, match.groups()) if match else (0, 0, 0)
    if not (epoch >= 1 and 1 <= first <= last):
        raise InputError(f"{text!r} is not EPOCH:FIRST-LAST, all counted from 1, such as 2:20-50")
    return epoch, first, last


def add_model_options(parser: argparse.ArgumentParser, *, resolution: Callable[[str], Any] = _RESOLUTION) -> None:
    """--model, --resolution (its values checked in the given way), --batch-size, --precision."""
    group = parser.add_argument_group("network")
    group.add_argument(
        "--model", choices=MODELS, help="network to train (default: isensee2017; for chexnet densenet121)"
    )
    group.add_argument(
        "--resolution", type=resolution, metavar="N",
        help="side of the cube or square that all data is resized to, a multiple of 16 (default: 128; for chexnet 224)",
    )  # fmt: skip
    group.add_argument(
        "--batch-size", type=whole(1), metavar="N", help="samples per step and rank (default: 1; for chexnet 16)"
    )
    group.add_argument(
        "--precision", choices=("float32", "mixed_bfloat16", "mixed_float16"),
        help="number format of the activations; weights stay float32 (default: float32)",
    )  # fmt: skip


def add_data_options(parser: argparse.ArgumentParser) -> None:
    """--task, --data, --labels, --n4, --split, --validation-fraction, --augment."""
    group = parser.add_argument_group("data")
    group.add_argument(
        "--task",
        choices=TASKS.names,
        help="what to learn: brats, tumours in brain scans, or chexnet, 14 findings in chest X-rays (default: brats)",
    )
    group.add_argument(
        "--data", type=path, metavar="DIR",
        help="folder of an unpacked BraTS, MSD Task01 or ChestX-ray14 data set (default: an embedded artificial one)",
    )  # fmt: skip
    group.add_argument(
        "--labels", metavar="SCHEMA", help="what label values mean, such as brats2021, where file names do not tell"
    )
    group.add_argument(
        "--n4", action=argparse.BooleanOptionalAction, help="remove bias fields first: slow, done once (default: off)"
    )
    group.add_argument(
        "--split", type=path, metavar="FILE", help="split.json of another run to use (default: a random split by seed)"
    )
    group.add_argument(
        "--validation-fraction", type=number(0, 1), metavar="F", help="share of cases for validation (default: 0.2)"
    )
    group.add_argument(
        "--augment", action=argparse.BooleanOptionalAction, help="turn samples by cube symmetries (default: on)"
    )


def add_training_options(parser: argparse.ArgumentParser) -> None:
    """How long and how to learn."""
    group = parser.add_argument_group("training")
    group.add_argument(
        "--epochs", type=whole(1), metavar="N", help="at most (default: 500; on the embedded data what 13 min allow)"
    )
    group.add_argument(
        "--steps-per-epoch", type=whole(1), metavar="N", help="training steps per epoch (default: all training cases)"
    )
    group.add_argument(
        "--validation-steps", type=whole(1), metavar="N", help="validation steps per epoch (default: all cases)"
    )
    group.add_argument(
        "--loss", choices=LOSSES, help="what to minimise (default: dice; for chexnet binary_cross_entropy)"
    )
    group.add_argument(
        "--learning-rate",
        type=number(0),
        metavar="X",
        help="of Adam and one rank, lowered when validation stalls (default: 5e-4; for chexnet 1e-3)",
    )
    group.add_argument(
        "--warmup-epochs", type=whole(0), metavar="N",
        help="of several ranks: epochs in which the rate grows from that of one rank to that of all (default: 5)",
    )  # fmt: skip
    group.add_argument(
        "--gradient-compression", choices=("none", "fp16"), help="how gradients travel between ranks (default: none)"
    )
    group.add_argument(
        "--weights", type=path, metavar="FILE", help="weights to start from, such as ImageNet's (default: random ones)"
    )
    group.add_argument(
        "--patience", type=whole(1), metavar="N", help="stop after N epochs without a better one (default: 50)"
    )
    group.add_argument("--seed", type=whole(0), metavar="N", help="decides everything that is random (default: 0)")


def add_run_options(parser: argparse.ArgumentParser) -> None:
    """--output, --resume, --profile, --dry-run."""
    group = parser.add_argument_group("run")
    group.add_argument(
        "--output", type=Path, metavar="RUN_DIR", help="folder for all results (default: a new one under runs/)"
    )
    group.add_argument(
        "--resume", action="store_true", help="go on where the run in RUN_DIR stopped (default: the latest such run)"
    )
    group.add_argument(
        "--profile", type=checked(profile_range, "range"), metavar="EPOCH:FIRST-LAST",
        help="profile these steps of an epoch, counted from 1, for TensorBoard",
    )  # fmt: skip
    group.add_argument(
        "--elastic", action="store_true",
        help="go on with fewer or more ranks when some are lost or join (needs horovodrun --min-np)",
    )  # fmt: skip
    group.add_argument(
        "--dry-run", action="store_true", help="print the plan, the predicted peak and step time, and stop"
    )


def add_memory_options(parser: argparse.ArgumentParser) -> None:
    """--lms, --memory-limit, where to swap to, and the parameters of TFLMS."""
    size = checked(parse_size, "size")
    group = parser.add_argument_group("memory")
    group.add_argument(
        "--lms", action=argparse.BooleanOptionalAction,
        help="move activations out of the device and back, or recompute them, as far as the limit asks (default: on)",
    )  # fmt: skip
    group.add_argument(
        "--memory-limit", type=size, metavar="SIZE",
        help="hard limit on device memory, such as 6GiB or 900MiB (default: what the device or container has)",
    )  # fmt: skip
    group.add_argument(
        "--swap-tier", choices=tier_choices(),
        help="where to: host memory, disk, or auto = host for a GPU and disk for a CPU (default: auto)",
    )  # fmt: skip
    group.add_argument(
        "--swap-dir", type=path, metavar="DIR", help="folder for swap files (default: the system's temporary folder)"
    )
    group = parser.add_argument_group(
        "manual LMS", "The parameters of TFLMS, in place of the automatic plan. Leave them out unless you compare."
    )
    group.add_argument(
        "--swapout-threshold", type=whole(1), metavar="N", help="swap tensors unused over N levels of the graph"
    )
    group.add_argument("--swapin-ahead", type=whole(1), metavar="N", help="swap in N levels before the use")
    group.add_argument("--swapin-groupby", type=whole(0), metavar="N", help="one swap-in for uses within N levels")
    group.add_argument(
        "--sync-mode", type=int, choices=(0, 1, 2, 3), help="0 none; wait for swaps: 1 out, 2 in, 3 both"
    )
    group.add_argument(
        "--serialization", type=checked(levels, "list"), metavar="L,...", help="levels to run one operation at a time"
    )
    group.add_argument(
        "--serialization-by-size", type=number(0), metavar="GIB",
        help="run levels one operation at a time whose outputs exceed this size",
    )  # fmt: skip
