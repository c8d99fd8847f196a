"""run.toml: the options of a training as a file that people read and write, for `--config`.

    model = "unet3d"
    resolution = 96
    memory_limit = "6GiB"
    stages = [[64, 20]]

A key is the name of an option, with _ or - between its words. A switch is true or false. A value is what the command line takes, as
text or as a number; a list is written as a list or as that text.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lms3d.atomic_files import write_text
from lms3d.config import TrainConfig
from lms3d.errors import InputError

NAME = "run.toml"


def read(path: Path, parser: argparse.ArgumentParser) -> dict[str, Any]:
    """The options in a file, checked as the command line's are. InputError, which names the file, for what is wrong in it."""
    content = _content(path)
    actions = {action.dest: action for action in parser._actions if action.dest not in ("config", "help", "version")}
    words, keys = [], dict[str, str]()
    for key, value in content.items():
        name = key.replace("-", "_")
        if (other := keys.setdefault(name, key)) != key:
            raise InputError(f"{path}: found {other} and {key}, which are one option; expected it once; leave one out")
        if name not in actions and isinstance(value, dict):
            raise InputError(
                f"{path}: found no option {key!r}, but a table [{key}]; expected options without a table; leave that line out"
            )
        if name not in actions:
            near = difflib.get_close_matches(name, actions, n=1)
            meant = f"did you mean {near[0]}?" if near else "see python -m lms3d.train --help"
            raise InputError(f"{path}: found no option {key!r}; {meant}")
        words.append(_word(path, key, value, actions[name], parser))
    try:
        return vars(parser.parse_args(words))
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def _content(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise InputError(f"--config {path}: {error.strerror}; expected a file such as the run.toml of a run") from None
    except ValueError as error:  # also of text that is no UTF-8
        raise InputError(f"--config {path}: {error}; expected TOML, such as resolution = 96") from None


def _word(path: Path, key: str, value: Any, action: argparse.Action, parser: argparse.ArgumentParser) -> str:
    """The word of the command line that says the same."""
    on, off = action.option_strings[0], action.option_strings[-1]
    if action.nargs == 0:
        if not isinstance(value, bool) or (value is False and on == off):
            raise InputError(f"{path}: {key}: found {value!r}; expected {'true' if on == off else 'true or false'}")
        return on if value else off
    if isinstance(value, bool) or not isinstance(value, str | int | float | list):
        raise InputError(f"{path}: {key}: found {str(value)[:40]!r}; expected a number, a text or a list")
    return f"{on}={_text(value, action) if isinstance(value, list) else value}"


def _text(values: list[Any], action: argparse.Action) -> str:
    """A list as the command line takes it: "3,5:8", "160x192x160" or "64:20,96:10", whichever the option accepts."""
    parts = [":".join(map(str, part)) if isinstance(part, list) else str(part) for part in values]
    for separator in (",", "x"):
        with contextlib.suppress(argparse.ArgumentTypeError, TypeError):
            action.type(separator.join(parts))  # type: ignore[operator, misc]
            return separator.join(parts)
    return ",".join(parts)


def merged(in_file: Mapping[str, Any], typed: Mapping[str, Any], kind: type[TrainConfig]) -> dict[str, Any]:
    """The options of both. What was typed counts, also where an option of the file excludes it, as --resolution does --box."""
    excluded = {name for pair in kind.exclusive for name in pair if any(other in typed for other in pair)}
    return {name: value for name, value in in_file.items() if name not in excluded} | dict(typed)


def write(run_dir: Path, options: TrainConfig) -> None:
    """Writes run.toml: every option that is not its task's default."""
    usual = type(options)().to_json()  # type: ignore[call-arg]
    lines = [
        f"{name} = {_toml(value)}"
        for name, value in options.to_json().items()
        if value is not None and (value != usual[name] or name in ("task", "model"))
    ]
    head = f"# The options that are not defaults; config.json has all. Again: python -m lms3d.train --config {NAME}"
    write_text(run_dir / NAME, "\n".join([head, *lines, ""]))


def _toml(value: Any) -> str:
    """A value of config.json as TOML: text, numbers, truth values, and lists of these."""
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml, value))}]"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
