"""`python -m docs.list_commands`: writes docs/commands.md, the page of all commands, from their parsers and from the Makefile.

Commands that people run every day have each option with its help, and the files that they write. Experiments have their usage line;
`--help` explains the rest.
"""

from __future__ import annotations

import argparse
import re
from importlib import import_module
from pathlib import Path
from types import ModuleType

from lms3d.cli import Parser

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "commands.md"
_IN_FULL = ("lms3d", "data")
_ROOMS = (*_IN_FULL, "experiments", "deploy")
_FIRST = ("train", "predict", "evaluate", "package", "plan", "doctor", "launch")
_HEAD = """# Commands

Made by `python -m docs.list_commands` from the parsers. `python -m NAME --help` says more of each, `--version` which lms3d it is.
An installation has `lms3d train`, `lms3d prepare` and so on for `lms3d.train` and `data.prepare`; experiments are called
`lms3d.experiments.NAME` there. Sizes are written as `900MiB` or `6GiB`.
Commands write to `--output` and to the cache (`LMS3D_CACHE`, by default `~/.cache/lms3d`) and nowhere else.
Experiments write `report.md`, tables and figures, and continue where they were stopped.

Exit codes: 0 done; 1 a part of an experiment failed, or training lost a rank; 2 wrong option or input, in one line; 3 does not fit
into memory, with the smallest limit that would; 130 interrupted (resumable if the command says so).
"""


def commands() -> list[str]:
    """The names of all modules that are commands, such as "lms3d.train", in the order of the page."""
    found = [
        f"{room}.{path.stem}".removesuffix(".__main__")
        for room in _ROOMS
        for path in sorted((ROOT / room).glob("*.py"))
        if '__name__ == "__main__"' in path.read_text()
    ]
    return sorted([*found, "tests.stress"], key=_rank)


def _rank(command: str) -> int:
    """The place of a command's section: first `_FIRST` in its order, then all others as they come."""
    room, _, name = command.partition(".")
    return _FIRST.index(name) if room == "lms3d" and name in _FIRST else len(_FIRST)


def page() -> str:
    """The page in Markdown."""
    seen: dict[str, str] = {}
    sections = [_section(command, seen) for command in commands()]
    return "\n".join([_HEAD, _make(), *sections])


def _make() -> str:
    """The section on the targets of make, from the comment at the head of the Makefile."""
    told = re.findall(r"^# make (\w+) +(.+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    return "\n".join(["## make", "", *(f"- `make {target}`: {what}" for target, what in told), ""])


def module_of(command: str) -> ModuleType:
    """The module that `python -m COMMAND` runs. Raises ModuleNotFoundError for a command that does not exist."""
    module = import_module(f"lms3d.{command}" if command.split(".")[0] in ("data", "experiments") else command)
    return import_module(f"{command}.__main__") if hasattr(module, "__path__") else module


def _section(command: str, seen: dict[str, str]) -> str:
    """One command. seen: option with its help -> the command that has it already, to which later ones refer."""
    module = module_of(command)
    if not hasattr(module, "_parser"):
        first = " ".join((module.__doc__ or "").split("\n\n")[0].split()).split(": ", 1)[-1]
        return f"## {command}\n\n`python -m {command}`: {first} No options.\n"
    parser: argparse.ArgumentParser = module._parser()
    lines = [f"## {command}", "", _escaped(_about(command, parser)), ""]
    if command.split(".")[0] in _IN_FULL:
        lines += [*_options(command, parser, seen), _escaped(_files(parser)), ""]
    else:
        lines += [f"`{usage}`" if (usage := _usage(parser)) else "No options.", ""]
    return "\n".join(lines).rstrip() + "\n"


def _about(command: str, parser: argparse.ArgumentParser) -> str:
    """The first sentence of a command's description."""
    paragraph = " ".join((parser.description or "").split("\n\n")[0].split()).removeprefix(f"`python -m {command}`: ")
    first = re.split(r"(?<=[.?]) (?=[A-Z])", paragraph)[0]
    return first[:1].upper() + first[1:]


def _escaped(text: str) -> str:
    """Text in which Markdown sees no tags and no emphasis; code between backticks stays."""
    pieces = text.split("`")
    return "`".join(re.sub(r"([<*])", r"\\\1", piece) if i % 2 == 0 else piece for i, piece in enumerate(pieces))


def _options(command: str, parser: argparse.ArgumentParser, seen: dict[str, str]) -> list[str]:
    """An item for each argument; arguments that another command has with the same words are one line together."""
    items: list[str] = []
    shared: dict[str, list[str]] = {}
    for action in _actions(parser):
        name, told = _name(action), _help(parser, action)
        owner = seen.setdefault(f"{name}: {told}", command)
        if owner == command:
            items.append(f"- `{name}`: {_escaped(told)}")
        else:
            shared.setdefault(owner, []).append(f"`{_options_of(action) or name}`")
    return [*items, *(f"- As of `{owner}`: {', '.join(names)}" for owner, names in shared.items()), ""]


def _options_of(action: argparse.Action) -> str:
    """What an option is called: "--seed", "--lms/--no-lms"."""
    return "/".join(action.option_strings)


def _usage(parser: argparse.ArgumentParser) -> str:
    """The arguments in one line of code, with every option in brackets and without its value."""
    words = [f"[{_options_of(action)}]" if action.option_strings else _name(action) for action in _actions(parser)]
    return " ".join(words)


def _actions(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    return [
        action
        for action in parser._actions
        if not {"--help", "--version"}.intersection(action.option_strings) and action.help != argparse.SUPPRESS
    ]


def _name(action: argparse.Action) -> str:
    """What to type: "--lms, --no-lms", "--box XxYxZ", "--ranks N ..."."""
    if not action.option_strings:
        return _value(action)
    return ", ".join(action.option_strings) + (f" {_value(action)}" if action.nargs != 0 else "")


def _value(action: argparse.Action) -> str:
    value = action.metavar or (f"{{{','.join(map(str, action.choices))}}}" if action.choices else action.dest.upper())
    many = {"+": f"{value} ...", "*": f"[{value} ...]", "?": f"[{value}]"}
    return many.get(str(action.nargs), str(value))


def _help(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    """The help of an option with its default put in, in one line."""
    return " ".join(parser._get_formatter()._expand_help(action).split())


def _files(parser: argparse.ArgumentParser) -> str:
    """The sentence on what the command writes, of the text under its options."""
    found = re.search(r"^(writes into .*?)(?=^exit codes|\Z)", parser.epilog or "", re.DOTALL | re.MULTILINE)
    told = " ".join(found[1].split()).removeprefix("writes into ") if found else ""
    return told and f"Writes into {told.rstrip('.')}."


def _parser() -> argparse.ArgumentParser:
    return Parser(
        prog="python -m docs.list_commands", description="Write docs/commands.md from the parsers of all commands."
    )


def main() -> None:
    """Writes the page."""
    _parser().parse_args()
    PAGE.write_text(page())


if __name__ == "__main__":
    main()
