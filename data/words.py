"""Numbers in messages."""

from __future__ import annotations


def counted(count: int, of_one: str, of_several: str = "") -> str:
    """A count with its noun: "1 file", "3 files". If a verb follows, pass both forms: "1 file belongs", "3 files belong"."""
    return f"{count} {of_one if count == 1 else of_several or of_one + 's'}"
