"""`lms3d COMMAND ...` or `python -m lms3d COMMAND ...`: all commands under one name.

A command's module is imported when it is asked for: the list of commands and `--version` answer at once.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module

from lms3d import cli, errors

COMMANDS = {
    "prepare": ("lms3d.data.prepare", "check a data set and build its training cache"),
    "train": ("lms3d.train", "train a network on whole volumes under a memory limit"),
    "predict": ("lms3d.predict", "segment cases, or find diseases in radiographs, with a trained network"),
    "evaluate": ("lms3d.evaluate", "compare predictions with the truth"),
    "package": ("lms3d.package", "make one file of a trained network"),
    "plan": ("lms3d.plan", "say what LMS would do, without training"),
    "doctor": ("lms3d.doctor", "say what this machine offers"),
    "launch": ("lms3d.launch", "start a command as several ranks on this machine"),
    "completion": ("lms3d.completion", "print a shell script that completes commands and options"),
}
"""Command -> (its module, what it does)."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command. Returns its exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    return errors.run(lambda: _run(words))


def _run(words: Sequence[str]) -> int:
    if words and words[0] in COMMANDS:
        module = import_module(COMMANDS[words[0]][0])
        code: int = module.main(words[1:])
        return code
    _parser().parse_args(words or ["--help"])  # prints and ends, or says what is wrong
    return 0


def _parser() -> cli.Parser:
    listed = "\n".join(f"  {name:<12}{what}" for name, (_, what) in COMMANDS.items())
    parser = cli.Parser(
        prog="lms3d",
        usage="lms3d COMMAND ...",
        description=f"Large Model Support for TensorFlow. Commands:\n{listed}",
        epilog="lms3d COMMAND --help says more of each. exit codes: 0 done, 2 wrong option or wrong input",
    )
    parser.add_argument("command", metavar="COMMAND", choices=COMMANDS, help="one of these")
    return parser


if __name__ == "__main__":
    sys.exit(main())
