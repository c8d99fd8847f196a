"""Tables of texts as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def table(head: Sequence[str], rows: Iterable[Sequence[str]], *, figures: str = "---") -> str:
    """A table, without a line break at its end. figures: the rule below every column but the first; "---:" aligns them to the
    right."""
    lines = [head, ["---", *[figures] * (len(head) - 1)], *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
