"""Runs the commands of chapters, each in a process of its own, once: what is finished is kept."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from experiments.reporting.chapters import Chapter
from lms3d import errors
from lms3d.files import link_or_copy, write_json

NOTE, LOG = "run.json", "log.txt"


@dataclass(frozen=True, kw_only=True)
class Run:
    """How a command ended. seconds: of the call that finished it; date: UTC, to the minute."""

    command: str
    exit_code: int
    seconds: float
    date: str
    machine: str


def run(chapter: Chapter, data: Path, folder: Path) -> Run:
    """Runs it, or goes on with it, and keeps what it printed in `folder`. Interrupted on Ctrl-C, which the command answers, too."""
    folder.mkdir(parents=True, exist_ok=True)
    words = [word.format(data=data, output=folder) for word in chapter.command]
    told = " ".join(word.format(data="DATA", output=folder.name) for word in chapter.command)
    started = time.monotonic()
    with (folder / LOG).open("w", encoding="utf-8") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", *words], stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
        )
        try:
            code = process.wait()
        except KeyboardInterrupt:
            process.wait()
            raise errors.Interrupted("interrupted; run the same command again to go on") from None
    made = Run(
        command=f"python -m {told}",
        exit_code=code,
        seconds=time.monotonic() - started,
        date=f"{datetime.now(UTC):%Y-%m-%d %H:%M}",
        machine=machine(),
    )
    write_json(folder / NOTE, asdict(made))
    return made


def known(folder: Path) -> Run | None:
    """What an earlier call finished; None where nothing was, or it cannot be read."""
    try:
        return Run(**json.loads((folder / NOTE).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def brought(chapter: Chapter, folder: Path) -> Run | None:
    """What a run elsewhere has left in the chapter's own folder, its page and figures copied; None where there is no such run."""
    there = Path(chapter.elsewhere)
    if not chapter.elsewhere or known(there) is None:
        return None
    for file in [there / "report.md", *there.glob("*.png"), there / NOTE]:
        if file.exists():
            link_or_copy(file, folder / file.name)
    return known(folder)


def machine() -> str:
    """This one, in a few words."""
    from lms3d.engine.tensorflow import speeds

    return f"{speeds.device_name('CPU:0')}, {os.cpu_count()} cores"
