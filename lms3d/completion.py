"""`lms3d completion SHELL`: a script with which a shell completes the commands, their options and the paths that they take.

lms3d completion bash > ~/.local/share/bash-completion/completions/lms3d
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module

from lms3d import cli, errors
from lms3d.__main__ import COMMANDS

_SHELLS = ("bash", "zsh", "tcsh")
_PATHS = ("DATA", "DIR", "FILE", "FOLDER", "PREDICTIONS", "RUN_DIR")
"""The names of values that are files or folders."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the script. Returns the exit code."""
    return errors.run(lambda: print(script(_parser().parse_args(arguments).shell)))


def script(shell: str) -> str:
    """The script for "bash", "zsh" or "tcsh"."""
    import shtab

    parser = cli.Parser(prog="lms3d")
    commands = parser.add_subparsers()
    for name, (module, what) in COMMANDS.items():
        own = import_module(module)._parser()
        for action in own._actions:
            if action.metavar in _PATHS:
                action.complete = shtab.FILE
        commands.add_parser(
            name, parents=[own], add_help=False, conflict_handler="resolve", help=what, description=what
        )
    text: str = shtab.complete(parser, shell)
    return text


def _parser() -> cli.Parser:
    parser = cli.Parser(
        prog="lms3d completion",
        description="Print a shell script that completes commands, options and paths.",
        epilog="lms3d completion bash > ~/.local/share/bash-completion/completions/lms3d\n"
        "lms3d completion zsh > DIR/_lms3d, with DIR in the fpath of zsh",
    )
    parser.add_argument("shell", choices=_SHELLS, help="shell")
    return parser


if __name__ == "__main__":
    sys.exit(main())
