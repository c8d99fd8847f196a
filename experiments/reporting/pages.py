"""report.md and report.html of all chapters: published tables, what the commands wrote beside them, and what was not run.

A command's results are its report.md, or what else it wrote as Markdown; without that, its tables (CSV); without any, what it
printed. Figures that its own text does not show follow.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pandas as pd
from markdown_it import MarkdownIt

from lms3d.atomic_files import write_text
from lms3d.experiments.harness.table import markdown
from lms3d.experiments.reporting.chapters import Chapter
from lms3d.experiments.reporting.published import PublishedTable
from lms3d.experiments.reporting.runs import LOG, CommandRun
from lms3d.scoring import page
from lms3d.units import format_seconds

TITLE = "lms3d: what was published, and what was measured here"
_IMAGE = re.compile(r"!\[([^\]]*)\]\(([^)\s]+)\)")
_MOST_ROWS, _MOST_LINES = 60, 60


def write(output: Path, chapters: Sequence[Chapter], found: Mapping[str, CommandRun | str]) -> None:
    """Writes both. found: by chapter, how its command ended, or why it has not been run."""
    texts = {chapter.name: "\n".join(_chapter(chapter, found[chapter.name], output)) for chapter in chapters}
    left = [f"- {chapter.title}: {why}" for chapter in chapters if isinstance(why := found[chapter.name], str)]
    head = [f"# {TITLE}", "", *(["Not run:", "", *left, ""] if left else [])]
    body = [f"## {chapter.title}\n\n{texts[chapter.name]}" for chapter in chapters]
    write_text(output / "report.md", "\n".join([*head, *body]) + "\n")
    sections = [page.Section(chapter.title, [_html(texts[chapter.name], output)]) for chapter in chapters]
    note = f"{len(chapters) - len(left)} of {len(chapters)} chapters were run; the others say why not."
    page.write(output / "report.html", TITLE, note, sections)


def _chapter(chapter: Chapter, run: CommandRun | str, output: Path) -> Iterator[str]:
    yield f"{chapter.question}\n"
    for table in chapter.published:
        yield f"### Published\n\n{_published(table)}\n"
    yield "### Here\n"
    if isinstance(run, str):
        yield f"Not run: {run}\n"
        return
    took = format_seconds(run.seconds)
    yield f"`{run.command}` ({run.machine}; {run.date} UTC; the last call took {took})\n"
    if run.exit_code:
        yield f"It ended with exit code {run.exit_code}; what it had written:\n"
    yield from _results(output / chapter.name, output)


def _published(table: PublishedTable) -> str:
    return f"{table.title} ({table.source}).\n\n{markdown(list(table.head), [list(row) for row in table.rows])}"


def _results(folder: Path, output: Path) -> Iterator[str]:
    report = folder / "report.md"
    texts = [report] if report.exists() else sorted(folder.glob("*.md"))
    text = "\n".join(_lowered(one.read_text(encoding="utf-8")) for one in texts)
    text = text or "\n".join(_tables(folder)) or _printed(folder)
    text = _IMAGE.sub(lambda found: f"![{found[1]}]({folder.name}/{found[2]})", text)
    yield text
    shown = {name for _, name in _IMAGE.findall(text)}
    for figure in sorted(folder.glob("*.png")):
        name = os.path.relpath(figure, output)
        if name not in shown:
            yield f"\n![{figure.stem.replace('_', ' ')}]({name})\n"


def _lowered(text: str) -> str:
    """Without its title, and with headings that fit below ours."""
    lines = text.splitlines()
    if lines and lines[0].startswith("# "):
        lines = lines[1:]
    return "\n".join(f"##{line}" if re.match(r"#{1,4} ", line) else line for line in lines)


def _tables(folder: Path) -> Iterator[str]:
    for path in sorted(folder.glob("*.csv")):
        frame = pd.read_csv(path)
        rows = [[_cell(value) for value in row] for row in frame.head(_MOST_ROWS).to_numpy().tolist()]
        yield f"`{path.name}`:\n\n{markdown(list(map(str, frame.columns)), rows)}\n"


def _cell(value: object) -> str:
    if isinstance(value, float):
        return "" if value != value else f"{value:.6g}"
    return str(value)


def _printed(folder: Path) -> str:
    lines = (folder / LOG).read_text(encoding="utf-8", errors="replace").splitlines()
    return "\n".join(["```text", *lines[-_MOST_LINES:], "```"])


def _html(text: str, output: Path) -> str:
    """Markdown as HTML, figures inlined; raw HTML in it stays text."""
    parser = MarkdownIt("commonmark", {"html": False}).enable("table")
    pieces, at = [], 0
    for image in _IMAGE.finditer(text):
        pieces.append(parser.render(text[at : image.start()]))
        path = output / image[2]
        pieces.append(page.figure(path, image[1]) if path.is_file() else "")
        at = image.end()
    made = "".join([*pieces, parser.render(text[at:])])
    return made.replace("<table>", '<div class="wide"><table>').replace("</table>", "</table></div>")
