"""The figures of docs/results.json stand in every page that repeats them, and the pages' sections on scores have no others."""

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
RESULTS = json.loads((ROOT / "docs" / "results.json").read_text())
SCORE = re.compile(r"(?<![\d.,])[01]\.\d{2,3}(?![\d.])")


def section(page: str, title: str) -> str:
    """A page's text below a heading, up to the next of the same rank."""
    _, _, rest = (ROOT / page).read_text().partition(f"\n## {title}\n")
    assert rest, f"{page} has no section {title!r}"
    return rest.partition("\n## ")[0]


def stands_in(figure: str, text: str) -> bool:
    return re.search(rf"(?<![\d.,]){re.escape(figure)}(?!\d)", text) is not None


@pytest.mark.parametrize("result", RESULTS["results"], ids=lambda result: result["what"])
def test_a_figure_is_the_same_in_every_page(result):
    assert result["measured"]
    for page in result["pages"]:
        text = (ROOT / page).read_text()
        assert [figure for figure in result["figures"] if not stands_in(figure, text)] == [], page


@pytest.mark.parametrize(("page", "title"), [tuple(one) for one in RESULTS["sections"]])
def test_a_section_on_scores_has_no_figure_of_its_own(page, title):
    known = {figure for result in RESULTS["results"] if page in result["pages"] for figure in result["figures"]}
    assert set(SCORE.findall(section(page, title))) <= known


def test_a_figure_is_no_part_of_another():
    assert stands_in("0.76", "| 0.76, 0.73 |")
    assert not stands_in("0.76", "| 0.765 |")
    assert not stands_in("0.76", "10.76 s")
