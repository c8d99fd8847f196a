"""`python -m tests.stress`: kills, damage, failing disks, random graphs and long runs, for hours. Stopped, it goes on from there.

Each part is a module beside this one; `harness` runs, stores and reports their cases.
"""

from __future__ import annotations

import argparse
import pkgutil
import sys
from collections.abc import Sequence
from pathlib import Path

from lms3d import cli, errors
from lms3d.atomic_files import writable_folder, write_text
from lms3d.errors import InputError
from tests.stress.harness import Died, Options, Store, WentWrong, try_part

PARTS = {
    "kills": ("tests.stress.ranks:KILLS", "one of two ranks gets a signal; its job ends soon, and resumes to the same bits"),
    "repeats": ("tests.stress.ranks:REPEATS", "jobs of two ranks that get none end with the same bits, step by step"),
    "inputs": ("tests.stress.inputs:INPUTS", "damaged and hostile files end well in every reader"),
    "networks": ("tests.stress.inputs:NETWORKS_TOO", "the same for the readers that need TensorFlow"),
    "soak": ("tests.stress.soak:SOAK", "in long runs memory, open files, threads, swap files and step times do not grow"),
    "graphs": ("tests.stress.graphs:GRAPHS", "random steps and TensorFlow functions keep every promise of the engine"),
    "peaks": ("tests.stress.peaks:PEAKS", "peaks of networks that nobody has tuned the engine for are as predicted"),
    "limits": ("tests.stress.limits:LIMITS", "the same networks under one limit after the other: planned, kept, the same loss"),
    "rank-files": ("tests.stress.ranks:FILES", "the file operations of one of two ranks fail"),
    "tests": ("tests.stress.suite:TESTS", "tests that take too long for `make test`, and more random examples of others"),
    "files": ("tests.stress.files:FILES", "every command is killed, or fails, at every file operation; disks, clocks, power cuts"),
}  # fmt: skip
"""Part -> its module, and its question."""
COUNTS = {
    "kills": (30, "jobs that get a signal"),
    "repeats": (10, "jobs that get none; a job that went wrong is not tried again"),
    "inputs": (300, "damaged inputs of each reader"),
    "steps": (20_000, "soak: steps of one batch shape"),
    "shapes": (1000, "soak: batches, each of another shape"),
    "errors": (100, "soak: trainings that fail, each followed by one that does not"),
    "graphs": (10_000, "random steps and functions in all"),
    "signals": (30, "files: signals to each command at random moments"),
}
"""Option -> its default, and the things that it counts."""
_DESCRIPTION = """\
Kills, damage, failing disks, random graphs and long runs, for hours. A case that went well is not tried again.

parts:
""" + "\n".join(f"  {name:<12}{about}" for name, (_, about) in PARTS.items())
_EPILOG = """\
examples:
  python -m tests.stress kills --kills 6
  python -m tests.stress repeats --repeats 100             # is training with two ranks repeatable?
  python -m tests.stress files --only 'train*' --match 'rename:*:kill'
  python -m tests.stress inputs --only 'run folder' --first 17 --inputs 1

writes into --output: results.jsonl, table.md, and the folders of the jobs that went wrong
exit codes: 0 all went well, 1 a case went wrong, 2 wrong option, 130 interrupted (run again to go on)"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Tries all, prints a table. Returns the exit code."""
    return errors.run(lambda: _stress(_parser().parse_args(arguments)))


def _stress(options: Options) -> None:
    options.output = writable_folder(Path(options.output).expanduser(), "--output").absolute()
    options.data = options.data and str(Path(options.data).expanduser().absolute())
    names = [name for name in PARTS if name in options.parts or not options.parts]
    store = Store(options.output / "results.jsonl")
    asked, wrong = 0, list[str]()
    for name in names:
        try:
            asked += try_part(name, pkgutil.resolve_name(PARTS[name][0]), options, store)
        except Died as error:  # the other parts go on
            wrong.append(f"{name} cannot begin: {error}")
            print(wrong[-1], flush=True)
    if not asked and not wrong:
        raise InputError(
            f"no case of {', '.join(names)} is asked for; look at --only, --match and the numbers of cases"
        )
    table = store.table(names)
    print(table)
    write_text(options.output / "table.md", table + "\n")
    if wrong := wrong + store.wrong(names):
        shown = "; ".join(errors.line(one)[:200] for one in wrong[:5])
        raise WentWrong(f"{len(wrong)} cases went wrong: {shown}; see {store.path}")


def _parser() -> cli.Parser:
    parser = cli.Parser(prog="python -m tests.stress", description=_DESCRIPTION, epilog=_EPILOG)
    add = parser.add_argument
    add("parts", nargs="*", metavar="NAME", type=_part, default=[], help="parts (default: all)")
    group = "groups of cases alone, such as 'SIGKILL*', 'ledger' or 'train'; may be given several times"
    add("--only", action="append", metavar="PATTERN", default=[], help=group)
    add("--match", metavar="PATTERN", default="*", help="cases alone, such as 'rename:*:kill'")
    add("--most", type=cli.whole(1), metavar="N", default=None, help="N cases of each group, drawn at random")
    for name, (count, what) in COUNTS.items():
        add(f"--{name}", type=cli.whole(0), metavar="N", default=count, help=f"{what} (default: {count})")
    add("--first", type=cli.whole(0), metavar="N", default=0, help="number of the first input and batch (default: 0)")
    add("--seed", type=int, metavar="N", default=0, help="of all that is drawn at random (default: 0)")
    add("--data", metavar="DIR", default=None, help="data set that ranks train on (default: the embedded one)")
    where = "folder of results, new or to go on in (default: runs/stress)"
    add("--output", metavar="DIR", default="runs/stress", help=where)
    return parser


def _part(text: str) -> str:
    if text not in PARTS:
        raise argparse.ArgumentTypeError(f"found {text!r}; expected some of {', '.join(PARTS)}")
    return text


if __name__ == "__main__":
    sys.exit(main())
