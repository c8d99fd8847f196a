"""docs/results.json is the one source of the figures that several pages repeat: each sentence states them as they stand there.

An entry has a command with machine, day and commit, named figures, and the sentences of each page that state them, with {names} for
figures. To change a figure, change it there: the tests name every sentence that says something else. A page may state fewer
decimals. `sections` lists the sections that state no figure of their own. The figures of an entry with `rounds` are means over the
scores in that folder.
"""

import csv
import json
import re
from collections import defaultdict
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parent.parent
RESULTS = json.loads((ROOT / "docs" / "results.json").read_text())
NUMBER = r"\d+(?:,\d{3})*(?:\.\d+)?"
FIGURE = re.compile(rf"(?<![\d.,])(?:[01]\.\d{{2,3}}(?![\d.])|{NUMBER} (?:MiB|GiB|x|s|%)(?!\w))")


class Sentence(NamedTuple):
    """A sentence of a page, or a part of one, in which {name} stands for a figure."""

    text: str
    figures: dict[str, str]

    def found(self, page: str) -> list[re.Match[str]]:
        """The places of `page` (one line) that read like this sentence, whatever their numbers."""
        pieces = re.split(r"\{(\w+)\}", self.text)
        pieces[::2] = map(re.escape, pieces[::2])
        pieces[1::2] = [rf"(?<![\d.,])({NUMBER})(?![.,]?\d)" for _ in pieces[1::2]]
        return list(re.finditer("".join(pieces), page))

    def wrong(self, place: re.Match[str]) -> list[str]:
        """What `place` states otherwise."""
        names = re.findall(r"\{(\w+)\}", self.text)
        return [
            f"{name} is {self.figures[name]}, not {stated}"
            for name, stated in zip(names, place.groups(), strict=True)
            if not agrees(stated, self.figures[name])
        ]

    def complaint(self, page: str) -> str | None:
        """Why no place of `page` states these figures; None if one does."""
        wrong = min((self.wrong(place) for place in self.found(page)), key=len, default=["no such sentence"])
        return f"{self.text!r}: {'; '.join(wrong)}" if wrong else None


def agrees(stated: str, figure: str) -> bool:
    """True if `stated` is `figure`, or `figure` rounded."""
    decimals = len(stated.partition(".")[2])
    one, other = (float(number.replace(",", "")) for number in (stated, figure))
    return abs(one - other) <= 0.5000001 * 10**-decimals and (decimals > 0 or one == other)


def line(text: str) -> str:
    return " ".join(text.split())


def sentences(page: str) -> list[Sentence]:
    """All sentences of docs/results.json that `page` must have."""
    return [Sentence(text, one["figures"]) for one in RESULTS["results"] for text in one["stated"].get(page, [])]


def section(page: str, title: str) -> str:
    """A page's text below a heading, up to the next of the same rank."""
    _, _, rest = (ROOT / page).read_text().partition(f"\n## {title}\n")
    assert rest, f"{page} has no section {title!r}"
    return rest.partition("\n## ")[0]


def unsourced(text: str, stating: list[Sentence]) -> list[str]:
    """The figures of a text (one line) that stand in no sentence of docs/results.json."""
    for sentence in stating:
        for place in reversed(sentence.found(text)):
            if not sentence.wrong(place):
                text = text[: place.start()] + " _ " + text[place.end() :]
    return FIGURE.findall(text)


@pytest.mark.parametrize("page", sorted({page for one in RESULTS["results"] for page in one["stated"]}))
def test_a_page_states_the_figures_as_they_were_measured(page):
    text = line((ROOT / page).read_text())
    complaints = [complaint for one in sentences(page) if (complaint := one.complaint(text))]
    assert not complaints, "\n".join(complaints)


@pytest.mark.parametrize("one", RESULTS["results"], ids=lambda one: one["what"])
def test_a_figure_has_a_command_and_a_sentence(one):
    stated = "".join(text for texts in one["stated"].values() for text in texts)
    assert one["measured"]
    assert set(re.findall(r"\{(\w+)\}", stated)) == set(one["figures"])


def means(folder: str) -> dict[str, str]:
    """The mean Dice in native space over all cases and rounds of a comparison: BUDGET_ARM_REGION -> three decimals."""
    rows = [
        row for file in sorted((ROOT / folder).glob("*.csv")) for row in csv.DictReader(file.read_text().splitlines())
    ]
    dice = defaultdict(list)
    for row in rows:
        if row["space"] == "native":
            dice["_".join((row["budget"], row["predictions"].split("-")[0], row["region"]))].append(float(row["dice"]))
    return {name: f"{fmean(values):.3f}" for name, values in dice.items()}


@pytest.mark.parametrize("one", [one for one in RESULTS["results"] if "rounds" in one], ids=lambda one: one["what"])
def test_the_scores_of_a_comparison_are_the_means_over_its_rounds(one):
    found = means(one["rounds"])
    assert found
    assert found == {name: one["figures"].get(name) for name in found}


@pytest.mark.parametrize(("page", "title"), [tuple(one) for one in RESULTS["sections"]])
def test_a_section_on_results_has_no_figure_of_its_own(page, title):
    assert unsourced(line(section(page, title)), sentences(page)) == []


ROW = Sentence("| 96³ | {limit} MiB | {ratio} x |", {"limit": "1,085", "ratio": "1.19"})


def test_a_sentence_says_what_it_states_otherwise():
    assert ROW.complaint("| 96³ | 1,085 MiB | 1.19 x |") is None
    assert ROW.complaint("| 96³ | 1,085 MiB | 1.2 x | and more") is None
    assert ROW.complaint("| 96³ | 1,085 MiB | 1.91 x |").endswith("x |': ratio is 1.19, not 1.91")
    assert ROW.complaint("| 96³ | 11,085 MiB | 1.1 x |").endswith("limit is 1,085, not 11,085; ratio is 1.19, not 1.1")
    assert ROW.complaint("| 64³ | 1,085 MiB | 1.19 x |").endswith("no such sentence")


def test_the_nearest_of_several_sentences_counts():
    rows = "| 96³ | 700 MiB | 1.3 x | | 96³ | 1,085 MiB | 1.3 x |"
    assert ROW.complaint(rows).endswith("x |': ratio is 1.19, not 1.3")


def test_a_figure_without_a_sentence_is_found():
    assert unsourced("| 96³ | 1,085 MiB | 1.19 x | and 0.76, 1.3 x, 17 %", [ROW]) == ["0.76", "1.3 x", "17 %"]
    assert unsourced("| 96³ | 1,086 MiB | 1.19 x |", [ROW]) == ["1,086 MiB", "1.19"]


def test_fewer_decimals_agree_and_fewer_digits_do_not():
    assert agrees("7.5", "7.46")
    assert not agrees("7.4", "7.46")
    assert not agrees("7", "7.46")
    assert agrees("11,500", "11,500")
    assert not agrees("11,501", "11,500")
