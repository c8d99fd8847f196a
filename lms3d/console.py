"""The output of a running program: headings, progress with the time left, and a summary at the end.

On a terminal progress is a live bar. In a log file it is a plain line, at most one every half minute.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import IO, Any, cast

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from lms3d import errors
from lms3d.units import format_seconds

LOG_SECONDS = 30.0


class _Output:
    """The present stdout. If writing to it fails, output is discarded from then on: hours of work must not end because `tee` did,
    or because the disk of a log is full."""

    def write(self, text: str) -> int:
        self._try(lambda out: out.write(text))
        return len(text)

    def flush(self) -> None:
        self._try(lambda out: out.flush())

    def __getattr__(self, name: str) -> Any:
        if name == "rich_proxied_file":  # rich would write to the file itself
            raise AttributeError(name)
        return getattr(_stdout(), name)

    def _try(self, act: Callable[[IO[str]], object]) -> None:
        out = _stdout()
        try:
            act(out)
        except OSError as error:
            with contextlib.suppress(OSError, ValueError):  # the rest of its buffer is discarded, too
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, out.fileno())
                os.close(nowhere)
            errors.say(f"stdout: {error.strerror}; going on without it")


def _stdout() -> Any:
    return getattr(sys.stdout, "rich_proxied_file", sys.stdout)  # a live bar replaces sys.stdout


OUT = Console(file=cast(IO[str], _Output()), highlight=False, soft_wrap=True)
ProgressReport = Callable[..., None]
"""report(done, total, what, note=""): tells the progress of a long task."""


def say(text: str) -> None:
    """Prints a line on stdout."""
    OUT.print(text, markup=False)


def silence(silent: bool = True) -> None:
    """Prints nothing from now on, or prints again. Only one of several ranks should print."""
    OUT.quiet = silent


@contextmanager
def progress(*, keep: bool = True) -> Iterator[ProgressReport]:
    """Yields `report(done, total, what, note="")`. A new `what` starts a new bar and, unless `keep`, removes the bar before.

    If the first `done` is above 0, that work was done earlier; it does not distort the estimate of the time left.
    """
    live = _live() if OUT.is_terminal else None
    bars: dict[str, _Bar | _Lines] = {}

    def report(done: int, total: int, what: str, note: str = "") -> None:
        if what not in bars:
            if not keep:
                for bar in bars.values():
                    bar.remove()
                bars.clear()
            bars[what] = _Bar(live, what, total, done) if live else _Lines(what, keep)
        bars[what].show(done, total, note)

    with live or nullcontext():
        yield report


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], *, left: int = 1) -> None:
    """Prints a table. The first `left` columns hold text, the others right-aligned figures."""
    rows = [list(row) for row in rows]
    if not OUT.is_terminal:
        widths = [max(map(len, cells)) for cells in zip(columns, *rows, strict=True)]
        say(title)
        for row in (columns, *rows):
            cells = [
                f"{cell:<{width}}" if i < left else f"{cell:>{width}}"
                for i, (cell, width) in enumerate(zip(row, widths, strict=True))
            ]
            say(f"  {'  '.join(cells)}".rstrip())
        return
    drawn = Table(title=escape(title), title_justify="left", title_style="bold", box=SIMPLE_HEAD, pad_edge=False)
    for i, column in enumerate(columns):
        drawn.add_column(column, justify="left" if i < left else "right", overflow="fold")
    for row in rows:
        drawn.add_row(*map(escape, row))
    OUT.print(drawn)


def summary(title: str, rows: Mapping[str, str]) -> None:
    """Prints a table with a name and a value in each row."""
    if not OUT.is_terminal:
        width = max(map(len, rows), default=0)
        say("\n".join([title, *(f"  {name:<{width}}  {value}" for name, value in rows.items())]))
        return
    table = Table(title=title, title_justify="left", show_header=False, box=None, pad_edge=False)
    for name, value in rows.items():
        table.add_row(f"[bold]{name}[/bold]", value)
    OUT.print(table)


@contextmanager
def quiet_native_log() -> Iterator[None]:
    """Hides the output of native code on stderr within the block, unless the block raises.

    TensorFlow writes to stderr before it reads its log level, so the log level alone does not silence the import.
    """
    if os.environ.get("TF_CPP_MIN_LOG_LEVEL", "3") != "3":  # "3": the user, or a parent process of ours, wants quiet
        yield
        return
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    sys.stderr.flush()
    kept = os.dup(2)
    with tempfile.TemporaryFile() as hidden:
        os.dup2(hidden.fileno(), 2)
        try:
            yield
        except BaseException:
            os.dup2(kept, 2)
            hidden.seek(0)
            sys.stderr.write(hidden.read().decode(errors="replace"))
            raise
        finally:
            os.dup2(kept, 2)
            os.close(kept)


def _live() -> Progress:
    return Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("left"),
        TimeRemainingColumn(), TextColumn("{task.fields[note]}"), console=OUT,
    )  # fmt: skip


class _Bar:
    def __init__(self, live: Progress, what: str, total: int, done: int) -> None:
        self.live = live
        self.task = live.add_task(what, total=total, completed=done, note="")

    def show(self, done: int, total: int, note: str) -> None:
        self.live.update(self.task, completed=done, total=total, note=note)

    def remove(self) -> None:
        self.live.remove_task(self.task)


class _Lines:
    def __init__(self, what: str, last_line: bool) -> None:
        self.what, self.last_line = what, last_line
        self.begin: tuple[float, int] | None = None
        self.shown = 0.0

    def show(self, done: int, total: int, note: str) -> None:
        now = time.monotonic()
        if self.begin is None:
            self.begin = (now, done)
        begin_seconds, begin_done = self.begin
        due = self.last_line if done == total else now - max(self.shown, begin_seconds) >= LOG_SECONDS
        if not due:
            return
        self.shown = now
        line = f"{self.what}: {done}/{total} after {format_seconds(now - begin_seconds)}"
        if begin_done < done < total:
            line += f", about {format_seconds((now - begin_seconds) / (done - begin_done) * (total - done))} left"
        say(f"{line} {note}".rstrip())

    def remove(self) -> None:
        pass
