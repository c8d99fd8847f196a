"""`python -m experiments.report`: every table of the four articles beside what this machine measures, on one page.

Each chapter runs one of the project's commands, at a size that two cores finish within the hour, all together. The page is written
as Markdown, and as HTML that needs no other file. Chapters that cannot be run here are listed with their needs.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from lms3d import cli, console
from lms3d.experiments.harness import command
from lms3d.experiments.harness.command import SomeFailed
from lms3d.experiments.harness.commands import data_folder
from lms3d.experiments.reporting.chapters import CHAPTERS, Chapter
from lms3d.experiments.reporting.runs import NOTE, CommandRun, brought, known, run
from lms3d.units import format_seconds

_EPILOG = """\
examples:
  python -m experiments.report
  python -m experiments.report --only limits floors --minutes 20
  python -m experiments.report --data ~/BraTS2020 --output runs/report-brats

writes into --output: report.md, report.html, and a folder for each chapter with all that its command wrote, and its log"""


def _report(options: argparse.Namespace, typed: str) -> None:
    from lms3d.experiments.reporting import pages

    output = command.folder(options).absolute()
    chapters = [chapter for chapter in CHAPTERS if chapter.name in (options.only or [chapter.name])]
    deadline = None if options.minutes is None else time.monotonic() + 60 * options.minutes
    found: dict[str, CommandRun | str] = {}
    try:
        for chapter in chapters:
            found[chapter.name] = _run(chapter, options, output, deadline)
    finally:
        pages.write(
            output, chapters, {chapter.name: found.get(chapter.name, "interrupted before") for chapter in chapters}
        )
        console.say(f"written: {output / 'report.html'}, report.md beside it")
    own = [chapter.name for chapter in chapters if chapter.command]
    if failed := [name for name in own if isinstance(one := found[name], CommandRun) and one.exit_code]:
        raise SomeFailed(f"the commands of {', '.join(failed)} failed; their logs are in {output}")


def _run(chapter: Chapter, options: argparse.Namespace, output: Path, deadline: float | None) -> CommandRun | str:
    """How the chapter's command ended, now or before; else why it was not run."""
    folder = output / chapter.name
    if not chapter.command:
        return brought(chapter, folder) or chapter.missing
    before = known(folder)
    if before is not None and not before.exit_code and not options.again:
        return before
    (folder / NOTE).unlink(missing_ok=True)
    left = None if deadline is None else deadline - time.monotonic()
    if left is not None and left < 60 * chapter.minutes:
        return f"needs about {chapter.minutes:g} min, and {format_seconds(max(0.0, left))} of --minutes were left"
    console.say(f"{chapter.title}: about {chapter.minutes:g} min; log: {folder / 'log.txt'}")
    return run(chapter, data_folder(options.data), folder)


def _options(parser: cli.Parser) -> None:
    add = parser.add_argument
    names = [chapter.name for chapter in CHAPTERS]
    add("--only", nargs="+", choices=names, metavar="NAME", default=None, help=f"of {', '.join(names)} (default: all)")
    add("--data", metavar="DIR", default=None, help="BraTS or MSD folder (default: the embedded artificial brains)")
    command.add_resumable(parser, "runs/report")


main, _parser = command.of(
    "report", _report, _options, __doc__, _EPILOG, resumed=True,
    exits={1: "a chapter's command failed (the report says which)"},
)  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
