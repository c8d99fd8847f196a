"""An HTML page with tables and figures, in a single file that loads nothing. Figures are inlined, and a click sorts a table.

page.write(path, "title", [Section("Summary", [page.text("..."), page.table(frame), page.figure(png)])])
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

import numpy as np
import pandas as pd

from lms3d.atomic_files import write_text

_STYLE = """
:root { color-scheme: light dark; --line: #8885; --shade: #8882; --mark: #0072B2; }
body { font: 15px/1.45 system-ui, sans-serif; margin: 0 auto; max-width: 90rem; padding: 1rem 1.5rem 4rem; }
h1 { font-size: 1.5rem; margin: .5rem 0; } h2 { font-size: 1.2rem; }
nav { position: sticky; top: 0; background: Canvas; border-bottom: 1px solid var(--line); padding: .4rem 0; z-index: 1; }
nav button { font: inherit; border: 0; background: none; color: inherit; padding: .35rem .8rem; cursor: pointer; }
nav button[aria-selected=true] { border-bottom: 3px solid var(--mark); font-weight: 600; }
section[hidden] { display: none; }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-variant-numeric: tabular-nums; margin: .8rem 0; }
th, td { padding: .25rem .6rem; border-bottom: 1px solid var(--line); text-align: right; white-space: nowrap; }
th:first-child, td:first-child, td.text, th.text { text-align: left; }
th { position: relative; cursor: pointer; user-select: none; background: var(--shade); }
th[aria-sort=ascending]::after { content: " \\25B2"; } th[aria-sort=descending]::after { content: " \\25BC"; }
tbody tr:hover { background: var(--shade); } figure { margin: 1rem 0; } img { max-width: 100%; height: auto; background: #fff; }
figcaption, .note { color: GrayText; max-width: 60rem; }
@media print { nav { display: none; } section[hidden] { display: block; } }
"""

_SCRIPT = """
const tabs = [...document.querySelectorAll('nav button')];
function show(id) {
  for (const tab of tabs) {
    const chosen = tab.dataset.section === id;
    tab.setAttribute('aria-selected', chosen);
    document.getElementById(tab.dataset.section).hidden = !chosen;
  }
}
for (const tab of tabs) tab.addEventListener('click', () => {
  show(tab.dataset.section);
  // A reload shows this tab. No element has the name, so nothing scrolls.
  history.replaceState(null, '', '#tab-' + tab.dataset.section);
});
const named = () => tabs.find(tab => '#tab-' + tab.dataset.section === location.hash) || tabs[0];
addEventListener('hashchange', () => show(named().dataset.section));
show(named().dataset.section);
for (const head of document.querySelectorAll('th')) head.addEventListener('click', () => {
  const body = head.closest('table').tBodies[0], column = head.cellIndex;
  const rising = head.getAttribute('aria-sort') !== 'ascending';
  for (const other of head.parentNode.cells) other.removeAttribute('aria-sort');
  head.setAttribute('aria-sort', rising ? 'ascending' : 'descending');
  const key = row => row.cells[column].dataset.value ?? row.cells[column].textContent;
  const empty = row => key(row) === '';
  const rows = [...body.rows].sort((a, b) => {
    if (empty(a) || empty(b)) return empty(a) - empty(b);
    const [x, y] = [Number(key(a)), Number(key(b))];
    const order = isNaN(x) || isNaN(y) ? key(a).localeCompare(key(b), undefined, {numeric: true}) : x - y;
    return rising ? order : -order;
  });
  body.append(...rows);
});
"""


@dataclass(frozen=True)
class Section:
    """One tab of the page."""

    title: str
    parts: Sequence[str]
    """HTML from the functions below."""


def text(words: str) -> str:
    """A paragraph, as HTML."""
    return f'<p class="note">{escape(words)}</p>'


def table(
    frame: pd.DataFrame, *, decimals: Mapping[str, int] | None = None, titles: Mapping[str, str] | None = None
) -> str:
    """A table, as HTML, without the columns that have no value. Figures have three decimals, or as many as `decimals` says. titles:
    column -> heading."""
    shown = [name for name in frame if frame[name].notna().any()]
    is_text = {name: not pd.api.types.is_numeric_dtype(frame[name]) for name in shown}
    head = "".join(
        f"<th{_text_class(is_text[name])}>{escape((titles or {}).get(str(name), str(name).replace('_', ' ')))}</th>"
        for name in shown
    )
    rows = [
        "<tr>" + "".join(_cell(row[name], is_text[name], (decimals or {}).get(name, 3)) for name in shown) + "</tr>"
        for row in frame.to_dict("records")
    ]
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table></div>'


def figure(path: Path, caption: str) -> str:
    """A PNG with a caption, as HTML that holds the image."""
    content = base64.b64encode(path.read_bytes()).decode("ascii")
    words = escape(caption)
    return f'<figure><img src="data:image/png;base64,{content}" alt="{words}"><figcaption>{words}</figcaption></figure>'


def write(path: Path, title: str, note: str, sections: Sequence[Section], *, origin: str = "") -> None:
    """Writes the page. Its security policy forbids browsers to load anything for it. origin: what has made it, for its foot."""
    ids = [f"s{number}" for number in range(len(sections))]
    tabs = "".join(
        f'<button role="tab" data-section="{name}">{escape(section.title)}</button>'
        for name, section in zip(ids, sections, strict=True)
    )
    parts = "".join(
        f'<section id="{name}"><h2>{escape(section.title)}</h2>{"".join(section.parts)}</section>'
        for name, section in zip(ids, sections, strict=True)
    )
    foot = f"<footer>{text(origin)}</footer>" if origin else ""
    policy = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
    write_text(
        path,
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width"><meta http-equiv="Content-Security-Policy" content="{policy}">'
        f"<style>{_STYLE}</style></head><body><h1>{escape(title)}</h1>{text(note)}"
        f'<nav role="tablist">{tabs}</nav><main>{parts}</main>{foot}<script>{_SCRIPT}</script></body></html>\n',
    )


def _cell(value: object, is_text: bool, decimals: int) -> str:
    if is_text:
        return f'<td class="text">{escape("" if value is None or value != value else str(value))}</td>'
    if isinstance(value, bool | np.bool_):
        return f'<td data-value="{int(value)}">{"yes" if value else "no"}</td>'
    number = float(value)  # type: ignore[arg-type]
    if np.isnan(number):
        return '<td data-value=""></td>'
    shown = f"{number:.0f}" if number.is_integer() and isinstance(value, int) else f"{number:.{decimals}f}"
    return f'<td data-value="{number!r}">{shown}</td>'


def _text_class(is_text: bool) -> str:
    return ' class="text"' if is_text else ""
