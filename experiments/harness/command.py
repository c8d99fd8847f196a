"""What the commands of all experiments do alike: their main function, their common options, and how Ctrl-C ends them."""

from __future__ import annotations

import argparse
import re
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lms3d import cli, errors
from lms3d.atomic_files import writable_folder
from lms3d.experiments.harness.ranks import HORVODRUN
from lms3d.tasks.brats.options import MODELS
from lms3d.units import parse_size

_RESUMED = "What is finished is kept: started again with the same --output, only what is missing is run."


class SomeFailed(RuntimeError):
    """Raised at the end if some measurements failed; the report has the others."""

    exit_code = 1


def main(
    name: str,
    parser: Callable[[], argparse.ArgumentParser],
    work: Callable[[argparse.Namespace, str], None],
    arguments: Sequence[str] | None,
) -> int:
    """The exit code of `work(options, typed)`. typed: the command that does the same again."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    command = shlex.join(["python", "-m", f"experiments.{name}", *words])
    return errors.run(lambda: work(parser().parse_args(words), command))


def of(
    name: str,
    work: Callable[[argparse.Namespace, str], None],
    options: Callable[[cli.Parser], None],
    about: str | None,
    epilog: str = "",
    *,
    exits: Mapping[int, str] | None = None,
    resumed: bool = False,
    kind: type[cli.Parser] = cli.Parser,
) -> tuple[Callable[..., int], Callable[[], cli.Parser]]:
    """The main function of `python -m experiments.NAME`, which takes words and returns the exit code, and what makes its parser.

    work: see `main`. options: adds the command's options to a parser of this kind. about: the docstring of its module, which --help
    shows. epilog: examples and files. exits: exit code -> its meaning, besides the usual ones. resumed: the same command goes on.
    """

    def parser() -> cli.Parser:
        description = "\n\n".join(filter(None, [_described(about or ""), _RESUMED if resumed else ""]))
        below = "\n".join(filter(None, [epilog, _codes(exits or {}, resumed)]))
        made = kind(prog=f"python -m experiments.{name}", description=description, epilog=below)
        options(made)
        return made

    return (lambda arguments=None: main(name, parser, work, arguments)), parser


def _described(docstring: str) -> str:
    """A module's docstring without "`python -m MODULE`: ", which the usage line says."""
    text = re.sub(r"\A`python -m [^`]*`: ", "", docstring.strip())
    return text[:1].upper() + text[1:]


def _codes(exits: Mapping[int, str], resumed: bool) -> str:
    codes = {0: "done", 2: "wrong option or input", 130: "interrupted" + " (run again to go on)" * resumed, **exits}
    return "exit codes: " + ", ".join(f"{code} {meaning}" for code, meaning in sorted(codes.items()))


def settings(options: argparse.Namespace, *free: str) -> dict[str, Any]:
    """The options that calls with the same --output share. free: options in which they may differ."""
    return {name: value for name, value in sorted(vars(options).items()) if name not in ("output", *free)}


def folder(options: argparse.Namespace, default: str = "") -> Path:
    """The folder of --output, which is made. default: if the option has none. InputError if nothing can be written there."""
    return writable_folder(Path(options.output or default).expanduser(), "--output")


@contextmanager
def stoppable() -> Iterator[None]:
    """Ctrl-C in the block becomes an Interrupted that says how to go on."""
    try:
        yield
    except KeyboardInterrupt:
        raise errors.Interrupted("interrupted; run the same command again to go on") from None


def add_resumable(parser: argparse.ArgumentParser, output: str) -> None:
    """--minutes, --again and --output. output: the default folder."""
    add_minutes(parser)
    add_again(parser)
    add_output(parser, output)


def add_minutes(parser: argparse.ArgumentParser) -> None:
    limit = "time limit: what does not fit into the time that is left is skipped (default: none)"
    parser.add_argument("--minutes", type=cli.number(0), metavar="X", default=None, help=limit)


def add_again(parser: argparse.ArgumentParser) -> None:
    again = "measure again what has been measured (default: off)"
    parser.add_argument("--again", action="store_true", default=False, help=again)


def add_output(parser: argparse.ArgumentParser, default: str | None, shown: str = "") -> None:
    """--output. shown: the default in words, if it depends on other options."""
    where = f"where everything goes (default: {shown or default})"
    parser.add_argument("--output", metavar="DIR", default=default, help=where)


def add_launcher(parser: argparse.ArgumentParser) -> None:
    """--launcher and --cores-per-rank."""
    started = "starts the ranks, {ranks} stands for their number (default: %(default)r)"
    parser.add_argument("--launcher", metavar="COMMAND", default=HORVODRUN, help=started)
    cores = "cores of each rank, for any number of ranks (default: all shared by the most ranks; with a GPU unbound)"
    parser.add_argument("--cores-per-rank", type=cli.whole(1), metavar="N", default=None, help=cores)


def add_volumes(parser: argparse.ArgumentParser) -> None:
    """--data and --labels, of brains."""
    data = "BraTS or MSD folder (default: the embedded artificial brains)"
    parser.add_argument("--data", metavar="DIR", default=None, help=data)
    labels = "what labels mean, if file names do not tell"
    parser.add_argument("--labels", metavar="SCHEMA", default=None, help=labels)


def add_anonymous(parser: argparse.ArgumentParser) -> None:
    """--anonymous, off by default."""
    cli.add_anonymous_option(parser)
    parser.set_defaults(anonymous=False)


def add_model(parser: argparse.ArgumentParser) -> None:
    network = "network (default: isensee2017)"
    parser.add_argument("--model", choices=MODELS, default="isensee2017", help=network)


def add_resolution(
    parser: argparse.ArgumentParser, default: int, shown: str = "", *, option: str = "--resolution", what: str = "side of the cube"
) -> None:  # fmt: skip
    """A side that is a multiple of 16. shown: the default in words."""
    side, text = cli.checked(cli.resolution, "resolution"), f"{what} (default: {shown or default})"
    parser.add_argument(option, type=side, metavar="N", default=default, help=text)


def add_size(parser: argparse.ArgumentParser, option: str, default: Any, text: str, **more: Any) -> None:
    """An option whose value is a number of bytes, such as 16GiB."""
    parser.add_argument(
        option, type=cli.checked(parse_size, "size"), metavar="SIZE", default=default, help=text, **more
    )


def add_train_options(
    parser: argparse.ArgumentParser, what: str = "further options of lms3d.train, in quotes (default: none)"
) -> None:
    text = cli.checked(cli.quoted, "text")
    parser.add_argument("--train-options", type=text, metavar="TEXT", default="", help=what)
