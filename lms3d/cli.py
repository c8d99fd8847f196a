"""A parser with one-line errors, and the checks of option values that the command lines share.

Nothing here imports TensorFlow, so that `--help` and wrong options answer at once. Options that the user did not give are left
out of the namespace (`argparse.SUPPRESS`): a default stands in one place, the dataclass of the options (`lms3d.config`).
"""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from lms3d.common import program
from lms3d.errors import InputError
from lms3d.units import parse_size

LEAST_SIDE, LONGEST_SIDE = 8, 4096
PRECISIONS = ("float32", "mixed_bfloat16", "mixed_float16")


class Parser(argparse.ArgumentParser):
    """An argument parser that raises InputError (one line, exit code 2). argparse would print its usage and exit.

    prog: "python -m MODULE" becomes what the user has typed, such as "lms3d train".
    """

    def __init__(self, *, prog: str, **options: Any) -> None:
        options.setdefault("formatter_class", _Formatter)
        launcher, is_module, module = prog.partition("python -m ")
        if is_module and not launcher:
            prog = program.started_as(module)
        super().__init__(prog=prog, argument_default=argparse.SUPPRESS, allow_abbrev=False, **options)
        shown = "print the version of lms3d and exit"
        self.add_argument("--version", action="version", version=program.version(), help=shown)

    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message} (see {self.prog} --help)")


class _Formatter(argparse.RawDescriptionHelpFormatter):
    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=34, width=110)


def checked(check: Callable[[str], Any], name: str) -> Callable[[str], Any]:
    """An argparse `type` that calls `check`, and passes on the message of an InputError or ValueError."""

    def convert(text: str) -> Any:
        try:
            return check(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    convert.__name__ = name
    return convert


def whole(minimum: int, maximum: int = 2**31 - 1) -> Callable[[str], Any]:
    """An argparse `type`: a whole number from `minimum` to `maximum`."""

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
    """An argparse `type`: a number with low < value < high."""

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
    """An absolute path, so that config.json names the same place from any folder."""
    return place(text).absolute()


def place(text: str) -> Path:
    """A path for results, as the user wrote it. InputError for "", such as a variable of the shell that is not set."""
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
    """The side of a cube: a whole number divisible by 16, since the networks halve it four times."""
    if not text.isdecimal():
        raise InputError(f"{text[:20]} is not a whole number and a multiple of 16; write {_nearest_side(text)}")
    value = int(text)
    if value > LONGEST_SIDE:
        raise InputError(f"{text[:20]} is too large; the most is {LONGEST_SIDE}")
    if value < 16 or value % 16:
        below = max(16, value // 16 * 16)
        raise InputError(f"{text} is not a multiple of 16; the nearest that work are {below} and {below + 16}")
    return value


def _nearest_side(text: str) -> int:
    """A side near a number that is no whole one, such as the 96.0 of a config file; a usual one for other text."""
    try:
        return min(max(16, round(float(text) / 16) * 16), LONGEST_SIDE // 16 * 16)
    except (ValueError, OverflowError):
        return 96


def box(text: str) -> tuple[int, int, int]:
    """The text "160x192x160": three sides, each a multiple of 16."""
    sides = text.lower().split("x")
    if len(sides) != 3:
        raise InputError(f"{text!r} is not three sides such as 160x192x160")
    a, b, c = map(resolution, sides)
    return a, b, c


def sides(text: str) -> tuple[int, int, int]:
    """The text "160x192x20": three sides, each even. The task says what else its networks need."""
    numbers = [int(side) if side.isdecimal() else 0 for side in text.lower().split("x")]
    if len(numbers) != 3:
        raise InputError(f"{text!r} is not three sides such as 160x192x160")
    for side in numbers:
        require_side(side, 2)
    a, b, c = numbers
    return a, b, c


def patch(text: str) -> int | tuple[int, int, int]:
    """The text "96", the side of a cube, or "96x96x48", three sides."""
    return sides(text) if "x" in text.lower() else resolution(text)


def require_side(side: int, step: int) -> None:
    """InputError for a side of a volume that is no multiple of `step`, or too small or large for any network."""
    if side > LONGEST_SIDE:
        raise InputError(f"{side} is too large; the most is {LONGEST_SIDE}")
    least = max(step, LEAST_SIDE)
    if side < least or side % step:
        below = max(least, side // step * step)
        wrong = "too small" if 0 < side < least else f"not a multiple of {step}"
        raise InputError(f"{side} is {wrong}; the nearest that work are {below} and {below + step}")


def spacing(text: str) -> str:
    """The text "median", or three sizes of a voxel in mm: "1.0x1x2.5" -> "1x1x2.5"."""
    if text == "median":
        return text
    try:
        sizes = [float(size) for size in text.lower().split("x")]
    except ValueError:
        sizes = []
    if len(sizes) != 3 or not all(0 < size < 1000 for size in sizes):
        raise InputError(f"{text!r} is not median, and not three sizes in mm such as 0.8x0.8x2.5")
    return "x".join(f"{size:.10g}" for size in sizes)


def quoted(text: str) -> str:
    """Words for another command, checked as a shell would read them."""
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


def workspace(text: str) -> int:
    """A size of at least 1 MiB, in bytes: TensorFlow knows no smaller unit."""
    size = parse_size(text)
    if size < 1 << 20:
        raise InputError(f"{text} is less than 1 MiB, the smallest limit")
    return size


def profile_range(text: str) -> tuple[int, int, int]:
    """The text "2:20-50" -> (epoch 2, first step 20, last step 50)."""
    match = re.fullmatch(r"(\d+):(\d+)-(\d+)", text)
    epoch, first, last = map(int, match.groups()) if match else (0, 0, 0)
    if not (epoch >= 1 and 1 <= first <= last):
        raise InputError(f"{text!r} is not EPOCH:FIRST-LAST, all counted from 1, such as 2:20-50")
    return epoch, first, last


def add_anonymous_option(parser: Any) -> None:
    """Adds --anonymous to a command or a group of its options."""
    hidden = (
        "print pseudonyms for the names of cases, patients and images in all messages, tables, figures and pages; files that "
        "programs read again (split.json, predictions) keep the names (default: off)"
    )
    parser.add_argument("--anonymous", action="store_true", help=hidden)
