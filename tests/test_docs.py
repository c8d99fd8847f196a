"""Links, files, modules, commands and options that a document names exist, and every command, option and parameter is on its page.
The README and the pages stay short.

`docs/history/` keeps pages as they were written: their links lead somewhere, but their commands and files may be gone."""

import argparse
import re
import shlex
from functools import cache
from graphlib import CycleError
from pathlib import Path

import pytest

from docs import draw_architecture, list_commands, rooms
from lms3d.engine.planners.tflms import Parameters
from lms3d.keras_step.step_log import COLUMNS

ROOT = Path(__file__).parent.parent
ROOMS = ("lms3d", "data", "experiments", "deploy")
DOCUMENTS = sorted(
    str(path.relative_to(ROOT))
    for path in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "deploy").rglob("*.md")]
)
PRESENT = [document for document in DOCUMENTS if not document.startswith("docs/history/")]


@cache
def options(command: str) -> set[str]:
    """The options of a command. Raises ModuleNotFoundError for a command that does not exist."""
    module = list_commands.module_of(command)
    if not hasattr(module, "_parser"):
        return set()
    parser: argparse.ArgumentParser = module._parser()
    found = {option for action in parser._actions for option in action.option_strings}
    return {option for option in found if option.startswith("--")} - {"--help", "--version"}


def code(text: str) -> list[str]:
    """The pieces between backticks, in a line or as a block."""
    blocks = re.findall(r"^```\w*\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    return [*blocks, *re.findall(r"`([^`]+)`", re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE))]


def commands(text: str) -> list[list[str]]:
    """The words of each call `python -m MODULE ...` of this project's modules, without comments. A call may start another."""
    lines = "\n".join(code(text)).replace("\\\n", " ").splitlines()
    call = re.compile(rf"\bpython3? -m ((?:{'|'.join(ROOMS)}|docs|tests)\..*?)(?=\bpython3? -m |$)")
    found = [words for line in lines for words in call.findall(line)]
    return [shlex.split(words.split("&&")[0], comments=True) for words in found]


def missing(document: str, text: str) -> list[str]:
    """Files and folders in code style, relative to the root or to the document's folder, that do not exist."""
    pieces = code(text) if document.endswith(".md") else [text]
    names = {word.rstrip(".") for piece in pieces for word in re.findall(r"[\w.][\w./-]*", piece)}
    starts = [ROOT, (ROOT / document).parent]
    named = {name for name in names for start in starts if "/" in name and (start / name.split("/")[0]).is_dir()}
    return sorted(
        name for name in named if not name.startswith("runs/") and not any((start / name).exists() for start in starts)
    )


def anchors(text: str) -> set[str]:
    """The anchors of the headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE), re.MULTILINE)
    return {
        "".join(
            letter for letter in heading.lower() if letter.isalpha() or letter.isdecimal() or letter in "-_ "
        ).replace(" ", "-")
        for heading in headings
    }


def links(text: str) -> list[str]:
    return [link for link in re.findall(r"\]\(([^)\s]+)\)", text) if not link.startswith(("http://", "https://"))]


def broken(document: str, text: str) -> list[str]:
    """Links to a file or a heading that does not exist."""
    wrong = []
    for link in links(text):
        name, _, anchor = link.partition("#")
        target = (ROOT / document).parent / name if name else ROOT / document
        there = target.exists() and (not anchor or anchor in anchors(text if not name else target.read_text()))
        if not there:
            wrong.append(link)
    return wrong


def unknown_options(words: list[str]) -> set[str]:
    """Options of a call that its parser does not have. Words after `--`, or in quotes, belong to another program."""
    command, *rest = words
    own = rest[: rest.index("--")] if "--" in rest else rest
    return (
        {word.split("=")[0] for word in own if word.startswith("--") and " " not in word}
        - options(command)
        - {"--help", "--version"}
    )


def test_the_readme_is_read_in_five_minutes():
    assert len((ROOT / "README.md").read_text().split()) <= 600


def test_the_pages_are_read_in_an_evening():
    """Words and numbers; the bars of tables are none."""
    words = {
        page: len(re.findall(r"\S*\w\S*", (ROOT / page).read_text())) for page in PRESENT if page.startswith("docs/")
    }
    assert sum(words.values()) <= 22_000, words


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_link_leads_somewhere(document):
    assert not broken(document, (ROOT / document).read_text())


def test_every_page_is_reached_from_the_readme():
    reached, new = set(), {"README.md"}
    while new:
        reached |= new
        new = {
            str((ROOT / document).parent.joinpath(link.partition("#")[0]).resolve().relative_to(ROOT.resolve()))
            for document in new
            for link in links((ROOT / document).read_text())
            if link.partition("#")[0].endswith(".md")
        } - reached
    assert reached >= set(DOCUMENTS)


@pytest.mark.parametrize("document", [*PRESENT, "NOTICE"])
def test_every_file_that_is_named_is_there(document):
    assert not missing(document, (ROOT / document).read_text())


@pytest.mark.parametrize("document", PRESENT)
def test_every_command_that_is_named_has_these_options(document):
    assert not [words for words in commands((ROOT / document).read_text()) if unknown_options(words)]


def test_what_is_missing_is_found():
    text = "# A heading\n[x](docs/none.md) [y](#a-heading) [z](#none) `lms3d/none.py` `python -m lms3d.plan --lms --none`\n"
    assert broken("README.md", text) == ["docs/none.md", "#none"]
    assert missing("README.md", text) == ["lms3d/none.py"]
    assert [unknown_options(words) for words in commands(text)] == [{"--none"}]


def test_the_page_of_commands_is_that_of_the_parsers():
    """python -m docs.list_commands writes it again."""
    assert list_commands.page() == list_commands.PAGE.read_text()


def test_the_page_of_commands_has_every_option_and_target():
    page = list_commands.PAGE.read_text()
    sections = dict(re.findall(r"^## (\S+)\n(.*?)(?=^## |\Z)", page, re.DOTALL | re.MULTILINE))
    for command in list_commands.commands():
        assert set(re.findall(r"(?<![\w-])--[a-z0-9][a-z0-9-]*", sections[command])) >= options(command)
    targets = set(re.findall(r"^# make (\w+)", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert targets <= set(re.findall(r"`make (\w+)", sections["make"]))


def test_the_drawing_of_the_architecture_is_that_of_the_code():
    """python -m docs.draw_architecture draws it anew."""
    assert draw_architecture.drawn_arrows() == rooms.essential(rooms.arrows())


def test_the_drawing_leaves_out_what_follows_from_other_arrows():
    arrows = [("a", "b"), ("a", "c"), ("b", "c"), ("c", "d"), ("a", "d"), ("b", "e")]
    assert rooms.essential(arrows) == [("a", "b"), ("b", "c"), ("b", "e"), ("c", "d")]
    with pytest.raises(CycleError):
        rooms.essential([*arrows, ("d", "a")])


def test_every_parameter_and_figure_is_on_the_page_for_those_who_come_from_tflms():
    page = set(re.findall(r"[a-z][a-z_]+", (ROOT / "docs" / "from_tflms.md").read_text()))
    assert set(Parameters.__dataclass_fields__) <= page
    measured = {
        "bytes_in_use",
        "peak_bytes",
        "limit_bytes",
        "voxels_per_second",
        "epoch",
        "host_bytes_in_use",
        "host_peak_bytes",
    }
    assert measured <= page & set(COLUMNS)


def test_every_column_of_the_steps_is_explained():
    assert set(COLUMNS) <= set(re.findall(r"`([a-z_]+)`", (ROOT / "docs" / "training.md").read_text()))
