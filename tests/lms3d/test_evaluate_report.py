"""The report: groups, comparison, strata, the worst cases; its page is opened and clicked through in a real browser."""

from __future__ import annotations

import csv
import html
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from lms3d import evaluate
from lms3d.common import program
from lms3d.scoring import comparisons, page, statistics
from lms3d.scoring.page import Section
from lms3d.scoring.scores import frame
from lms3d.tasks.volumes import inputs
from lms3d.tasks.volumes.report import ScoreReport
from tests.browser import clicked
from tests.lms3d.test_evaluate import write_predictions


def rows(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def worse(number):
    """A change that loses some voxels, other ones for each seed."""
    random = np.random.default_rng(number)
    return lambda labels: np.where(random.random(labels.shape) < 0.02 * number, 0, labels)


@pytest.fixture(scope="module")
def report(tiny_brats, tmp_path_factory) -> Path:
    """A report on two groups of two models each, of one seed and of two, and on one run that is in none."""
    root = tmp_path_factory.mktemp("report")
    for number, name in enumerate(("a1", "a2", "b1", "b2", "c<i>")):
        write_predictions(tiny_brats, root / name, 16 if name[0] == "a" else 32, worse(5 - number))
        (root / name / "config.json").write_text(f'{{"options": {{"seed": {number if name[0] == "b" else 7}}}}}')
    command = [
        str(root / "c<i>"),
        "--group",
        f"a={root / 'a1'},{root / 'a2'}",
        "--group",
        f"b={root / 'b1'},{root / 'b2'}",
    ]
    assert evaluate.main([*command, "--output", str(root / "out"), "--worst", "2"]) == 0
    return root / "out"


def test_groups_stand_beside_single_runs(report):
    summary = rows(report / "summary.csv")
    assert list(dict.fromkeys(row["predictions"] for row in summary)) == ["c<i>", "a", "b"]
    assert {row["predictions"] for row in rows(report / "scores.csv")} == {"c<i>", "a1", "a2", "b1", "b2"}
    of_a = [float(r["dice"]) for r in rows(report / "scores.csv") if r["predictions"] in ("a1", "a2")
            and (r["space"], r["region"]) == ("native", "WT")]  # fmt: skip
    (found,) = [r for r in summary if (r["predictions"], r["space"], r["region"]) == ("a", "native", "WT")]
    assert float(found["mean"]) == pytest.approx(np.mean(of_a), abs=1e-6)
    assert float(found["low"]) < float(found["mean"]) < float(found["high"])
    assert 0 < float(found["mean_ceiling_dice"]) <= 1


def test_every_pair_is_compared_in_every_region(report):
    found = rows(report / "comparison.csv")
    assert [(row["first"], row["second"]) for row in found[::3]] == [("c<i>", "a"), ("c<i>", "b"), ("a", "b")]
    assert {row["verdict"] for row in found} == {"too few cases: 9 tests need 9"}
    assert {row["cases"] for row in found} == {"4"}
    assert (
        f">{float(found[0]['low']):.4f}</td>" in (report / "report.html").read_text()
    )  # three decimals may hide its side of 0


def test_the_seeds_of_a_group_are_those_of_its_runs(report, tiny_brats, tmp_path):
    for name in ("a", "b1", "b2"):
        write_predictions(tiny_brats, tmp_path / name, 16)
    (tmp_path / "b1/config.json").write_text('{"options": {"seed": 1}}')
    (tmp_path / "b2/config.json").write_text("damaged")
    folders = inputs.load_all([report.parent / name for name in ("a1", "a2", "b1", "b2")])
    assert inputs.seeds_of(folders) == {"a1": 7, "a2": 7, "b1": 2, "b2": 3}
    assert inputs.seeds_of(inputs.load_all([tmp_path / name for name in ("a", "b1", "b2")])) == {"b1": 1}
    assert {row["seeds"] for row in rows(report / "comparison.csv")} == {"1"}


def test_all_metrics_and_strata_are_there(report):
    metrics = rows(report / "metrics.csv")
    assert {row["empty"] for row in metrics} == {"rules", "counted", "left out"}
    assert {"hd95_area_mm", "nsd_half_mm", "precision", "volume_difference"} <= {row["metric"] for row in metrics}
    assert {row["stratum"].split()[0] for row in rows(report / "strata.csv")} == {"ET", "no"}
    names = {path.name for path in report.iterdir()}
    assert {"report.html", "paired.png", "paired.pdf", "worst.png", "dice_native.png", "summary.md"} <= names


def test_every_table_has_the_interval_of_a_group_over_its_models(report):
    (summary,) = [
        r for r in rows(report / "summary.csv") if (r["predictions"], r["space"], r["region"]) == ("a", "native", "WT")
    ]
    (metric,) = [
        r for r in rows(report / "metrics.csv")
        if (r["predictions"], r["space"], r["region"], r["metric"], r["empty"]) == ("a", "native", "WT", "dice", "rules")
    ]  # fmt: skip
    assert (metric["low"], metric["high"]) == (summary["low"], summary["high"])
    found = pd.read_csv(report / "scores.csv").drop(columns="rules")
    of_a = found[found["predictions"].isin(["a1", "a2"]) & (found["space"] == "native")]
    one_stratum = ScoreReport(found=of_a.assign(truth_ml=1.0), groups={"a": ["a1", "a2"]}).strata.query(
        "region == 'WT'"
    )
    values = comparisons.matrix(of_a, ["a1", "a2"], space="native", region="WT").to_numpy()
    assert one_stratum[["low", "high"]].to_numpy()[0] == pytest.approx(statistics.interval_of_mean(values), abs=1e-6)


def test_of_a_group_empty_regions_count_as_each_model_says():
    cells = [("a1", "x", 0.5, 0), ("a2", "x", 0.5, 0), ("a1", "y", 1.0, 1), ("a2", "y", 0.0, 0)]
    found = frame(
        {"predictions": label, "case": case, "space": "native", "region": "ET", "dice": dice, "both_empty": empty}
        for label, case, dice, empty in cells
    )
    (summary,) = ScoreReport(found=found, groups={"a": ["a1", "a2"]}).summary.to_dict("records")
    assert (summary["mean_empty_counted"], summary["mean_empty_left_out"]) == (0.5, 0.25)
    metrics = (
        ScoreReport(found=found, groups={"a": ["a1", "a2"]})
        .metrics.query("metric == 'dice'")
        .set_index("empty")["mean"]
    )
    assert (metrics["counted"], metrics["left out"]) == (0.5, 0.25)


class Links(HTMLParser):
    """Everything that a browser might load."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag, attrs):
        self.found += [value for name, value in attrs if name in ("src", "href", "srcset", "action", "data")]


def test_the_page_loads_nothing(report):
    text = (report / "report.html").read_text()
    links = Links()
    links.feed(text)
    assert len(links.found) == 4  # two box plots, the paired differences, the worst cases
    assert all(link.startswith("data:image/png;base64,") for link in links.found)
    assert not re.search(r"@import|url\(|https?://|<link", text)
    assert "default-src 'none'" in text
    assert "c&lt;i&gt;" in text
    assert "c<i>" not in text


def test_the_page_says_what_made_it_and_what_the_figures_are(report):
    text = (report / "report.html").read_text()
    first, second, *_ = re.findall(r"<thead><tr>(.*?)</tr></thead>", text)
    titles = [re.findall(r"<th\b[^>]*>(.*?)</th>", head) for head in (first, second)]
    assert titles[0][:9] == [
        "predictions", "space", "region", "cases", "n", "both empty", "mean Dice", "95 % from", "to"
    ]  # fmt: skip
    assert len(titles[0]) <= 18
    assert titles[1][:4] == ["predictions", "space", "region", "mean sensitivity"]
    (foot,) = re.findall(r"<footer>(.*?)</footer>", text)
    foot = html.unescape(foot)
    typed = re.escape("python -m lms3d.evaluate 'c<i>' --group a=a1,a2 --group b=b1,b2")
    assert re.search(rf"{re.escape(program.version())}, \d{{4}}-\d\d-\d\d: {typed}", foot)
    assert "--output out --worst 2" in foot


SORTING = """
const table = document.querySelector('table');
const column = name => [...table.tHead.rows[0].cells].find(cell => cell.textContent === name);
const values = name => [...table.tBodies[0].rows].map(row => row.cells[column(name).cellIndex].textContent);
hit(column('mean Dice')); said.rising = values('mean Dice');
hit(column('mean Dice')); said.falling = values('mean Dice');
hit(column('region')); said.names = values('region');
"""


def test_the_page_is_clicked_through_in_a_browser(report, browser, tmp_path):
    said = clicked(browser, report / "report.html", tmp_path, SORTING)
    assert said["errors"] == []
    titles = ["Summary", "Figures", "Comparison", "By tumour size", "Worst cases", "Cases", "All metrics"]
    assert [tab[0] for tab in said["tabs"]] == titles
    assert [tab[1] for tab in said["tabs"]] == [[title] for title in titles]  # one is open, the one that was clicked
    assert {tab[2] for tab in said["tabs"]} == {"true"}
    assert [tab[3] for tab in said["tabs"]] == [[], [True, True], [True], [], [True], [], []]
    means = [float(value) for value in said["rising"]]
    assert means == sorted(means)
    assert len(set(means)) > 3
    assert said["falling"] == said["rising"][::-1] or [float(v) for v in said["falling"]] == means[::-1]
    assert said["names"] == sorted(said["names"])


def test_cells_are_text_figures_or_empty(tmp_path):
    frame = pd.DataFrame(
        {"name": ["<b>", None], "value": [1.23456, np.nan], "yes": [True, False], "none": [np.nan, np.nan]}
    )
    page.write(tmp_path / "x.html", "T & t", "note", [Section("One", [page.table(frame, decimals={"value": 1})])])
    text = (tmp_path / "x.html").read_text()
    assert '<td class="text">&lt;b&gt;</td><td data-value="1.23456">1.2</td><td data-value="1">yes</td>' in text
    assert '<td class="text"></td><td data-value=""></td><td data-value="0">no</td>' in text
    assert "<th>none" not in text
    assert "<title>T &amp; t</title>" in text
