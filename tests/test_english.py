"""Turns of phrase that make a reader stop are rare in pages, docstrings, comments and messages: counted per 1,000 words.

    "where" as a condition    "where it is set" means "if it is set"; "where" is for places: "says where it is"
    "what is", "what it"      "what is swapped" means "swapped tensors": nouns have names
    "those that"              "those that fit" means "plans that fit"
    "Of ..."                  a sentence that begins with "Of" has no verb: a docstring begins with a noun or a verb

Lower a limit when the count falls. `docs/history/` is as it was written.
"""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ROOMS = ("lms3d", "models", "data", "deploy", "docs", "experiments", "tests")
_SAYS_A_PLACE = "says?|said|sees?|tells?|told|knows?|shows?|names?|is|are|was|were|of|from|to|and|or|just|exactly"
MARKERS = {
    "where": rf"(?:^|\(|\b(?!(?:{_SAYS_A_PLACE})\b)\w+\W*)\bwhere\b",
    "what": r"\bwhat (?:is|it|was|they|are|were|has|have|the \w+ (?:is|are|has|does))\b",
    "those that": r"\bthose (?:that|who|which|of|in|with|at)\b",
    "Of": r"(?:^|[.:;]\s+)Of (?!course)",
}
CODE = {"where": 0.7, "what": 1.05, "those that": 0.15, "Of": 0.15}
PAGES = {"where": 0.9, "what": 0.7, "those that": 0.7, "Of": 0.1}
MESSAGES = {"where": 0.8, "what": 1.65, "those that": 1.5, "Of": 0.05}
LEAST_WORDS = 4
"""The fewest words of a string that is read as a sentence, and not as a name or an option."""


def prose(file: Path) -> list[str]:
    """The docstrings and comments of a Python file, or the paragraphs of a page without its blocks of code."""
    text = file.read_text()
    if file.suffix == ".md":
        return re.split(r"\n\s*\n|\n(?=[-|])", re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE))
    strings = [
        node.value.value
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    ]
    comments = re.findall(r"(?:^|  )# ([A-Za-z].*)$", text, re.MULTILINE)
    return [*strings, *comments]


def messages(file: Path) -> list[str]:
    """The strings of a Python file that users read: errors, notes and help. Docstrings are none, and the parts of an f-string count
    one by one."""
    nodes = list(ast.walk(ast.parse(file.read_text())))
    docstrings = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    strings = [node.value for node in nodes if isinstance(node, ast.Constant) and id(node) not in docstrings]
    return [text for text in strings if isinstance(text, str) and len(text.split()) >= LEAST_WORDS]


def per_thousand(texts: list[str]) -> dict[str, float]:
    """Marker -> how often it stands in 1,000 words."""
    joined = [" ".join(text.split()) for text in texts]
    words = sum(len(text.split()) for text in joined)
    return {name: 1000 * sum(_found(name, text) for text in joined) / words for name in MARKERS}


def _found(marker: str, text: str) -> int:
    return len(re.findall(MARKERS[marker], text, re.NOFLAG if marker == "Of" else re.IGNORECASE))


@cache
def in_pages() -> dict[str, float]:
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "deploy").rglob("*.md")]
    return per_thousand([text for page in pages for text in prose(page)])


@cache
def in_code() -> dict[str, float]:
    return per_thousand([text for room in ROOMS for file in (ROOT / room).rglob("*.py") for text in prose(file)])


@cache
def in_messages() -> dict[str, float]:
    rooms = [room for room in ROOMS if room not in ("docs", "tests")]
    return per_thousand([text for room in rooms for file in (ROOT / room).rglob("*.py") for text in messages(file)])


@pytest.mark.parametrize("marker", MARKERS)
def test_pages_are_plain(marker):
    assert in_pages()[marker] <= PAGES[marker]


@pytest.mark.parametrize("marker", MARKERS)
def test_docstrings_and_comments_are_plain(marker):
    assert in_code()[marker] <= CODE[marker]


@pytest.mark.parametrize("marker", MARKERS)
def test_messages_are_plain(marker):
    assert in_messages()[marker] <= MESSAGES[marker]


def test_messages_are_told_from_docstrings_and_names(tmp_path):
    (tmp_path / "one.py").write_text(
        '"""A docstring of four words."""\nraise ValueError(f"{x}: what is set here", "--name")\n'
    )
    assert messages(tmp_path / "one.py") == [": what is set here"]


def test_markers_are_found():
    text = "Of the run. It stops where it is set, with what is left of those that fit. It says where it is."
    assert per_thousand([text]) == {name: 1000 / len(text.split()) for name in MARKERS}
