"""Runs the commands of chapters, each in a process of its own, once: finished ones are kept."""

from __future__ import annotations

import json
import os
import re
import time
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from lms3d.atomic_files import link_or_copy, write_json
from lms3d.experiments.harness import commands
from lms3d.experiments.harness.child import of_module
from lms3d.experiments.reporting.chapters import Chapter

NOTE, LOG = "run.json", "log.txt"


@dataclass(frozen=True, kw_only=True)
class CommandRun:
    """How a command ended. seconds: of the call that finished it; date: UTC, to the minute."""

    command: str
    exit_code: int
    seconds: float
    date: str
    machine: str


def run(chapter: Chapter, data: Path, folder: Path) -> CommandRun:
    """Runs the chapter's command, or goes on with it, and keeps its output in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    words = [word.format(data=data, output=folder) for word in chapter.words]
    shown = " ".join(word.format(data="DATA", output=folder.name) for word in chapter.words)
    started = time.monotonic()
    with (folder / LOG).open("w", encoding="utf-8") as log:
        code = commands.exit_code(
            [*of_module(re.sub(r"^experiments\.", "lms3d.experiments.", words[0])), *words[1:]], log
        )
    return note(folder, f"python -m {shown}", machine(), exit_code=code, seconds=time.monotonic() - started)


def note(folder: Path, command: str, machine: str, *, exit_code: int, seconds: float) -> CommandRun:
    """Writes down in its folder how a command has ended just now."""
    date = f"{datetime.now(UTC):%Y-%m-%d %H:%M}"
    made = CommandRun(command=command, exit_code=exit_code, seconds=seconds, date=date, machine=machine)
    write_json(folder / NOTE, asdict(made))
    return made


def known(folder: Path) -> CommandRun | None:
    """What an earlier call finished; None if it finished nothing, or its note cannot be read."""
    try:
        return CommandRun(**json.loads((folder / NOTE).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def brought(chapter: Chapter, folder: Path) -> CommandRun | None:
    """A run elsewhere, its page and figures copied to the chapter's own folder; None if there is no such run."""
    there = Path(chapter.elsewhere)
    if not chapter.elsewhere or known(there) is None:
        return None
    for file in [there / "report.md", *there.glob("*.png"), there / NOTE]:
        if file.exists():
            link_or_copy(file, folder / file.name)
    return known(folder)


def machine() -> str:
    """This machine, in a few words."""
    from lms3d.device.machine import processor

    return f"{processor()}, {os.cpu_count()} cores"
