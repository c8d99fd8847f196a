"""The report: chapters run once, published tables beside what their commands wrote, a page that a browser clicks through."""

import re
from pathlib import Path

import matplotlib.pyplot as plt
import pytest

from lms3d.experiments import report
from lms3d.experiments.reporting import chapters, pages, published, runs
from lms3d.experiments.reporting.chapters import Chapter
from lms3d.experiments.reporting.runs import CommandRun
from tests.browser import clicked

ROOT = Path(__file__).parents[2]
RUN = CommandRun(
    command="python -m experiments.x", exit_code=0, seconds=61.0, date="2026-11-23 05:00", machine="a CPU, 2 cores"
)
TABLE = """import pathlib, sys
folder = pathlib.Path(sys.argv[1])
calls = folder / "calls"
calls.write_text((calls.read_text() if calls.exists() else "") + "x")
(folder / "report.md").write_text("# Own title\\n\\n## Part\\n\\n| a | b |\\n| --- | --- |\\n| 1 | <b> |\\n")
"""


@pytest.fixture
def written(tmp_path) -> Path:
    """A report of five chapters: with a report, a table, printed text, a text of another name, and one that was not run."""
    plt.figure(figsize=(3, 2)).savefig(tmp_path / "figure.png")
    for name in ("text", "table", "printed", "other"):
        (tmp_path / name).mkdir()
    (tmp_path / "text/shown.png").write_bytes((tmp_path / "figure.png").read_bytes())
    (tmp_path / "text/other.png").write_bytes((tmp_path / "figure.png").read_bytes())
    (tmp_path / "text/report.md").write_text(
        "# Title\n\n## Part\n\n| a | b |\n| --- | --- |\n| 1 | <i> |\n\n![one](shown.png)\n"
    )
    (tmp_path / "table/found.csv").write_text("name,value\nx,1.23456789\ny,\n")
    (tmp_path / "other/over_other.md").write_text("# Title\n\nIts own text.\n")
    (tmp_path / "other/other.csv").write_text("name,value\nx,1\n")
    (tmp_path / "printed/log.txt").write_text("a line <script>\n")
    made = [
        Chapter(name="text", title="Text", question="Why?", published=(published.RANKS,), command=("x",)),
        Chapter(name="table", title="Table", question="How?", command=("x",)),
        Chapter(name="printed", title="Printed", question="What?", command=("x",)),
        Chapter(name="other", title="Other", question="Whither?", command=("x",)),
        Chapter(name="none", title="None", question="When?", published=(published.CLUSTERS,), missing="two clusters"),
    ]
    pages.write(tmp_path, made, {"text": RUN, "table": RUN, "printed": RUN, "other": RUN, "none": "two clusters"})
    return tmp_path


def test_published_tables_stand_beside_results(written):
    text = (written / "report.md").read_text()
    assert "- None: two clusters" in text
    parts = dict(re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", text, re.DOTALL | re.MULTILINE))
    assert list(parts) == ["Text", "Table", "Printed", "Other", "None"]
    assert "| 16 | 40 | 14.75 | 92.19 % |" in parts["Text"]
    assert (
        "`python -m experiments.x` (a CPU, 2 cores; 2026-11-23 05:00 UTC; the last call took 1 min 01 s)"
        in parts["Text"]
    )
    assert "#### Part" in parts["Text"]
    assert "Title" not in parts["Text"]
    assert "![one](text/shown.png)" in parts["Text"]
    assert "![other](text/other.png)" in parts["Text"]
    assert parts["Text"].count(".png") == 2
    assert "| x | 1.23457 |" in parts["Table"]
    assert "| y |  |" in parts["Table"]
    assert "a line <script>" in parts["Printed"]
    assert "Its own text." in parts["Other"]
    assert "other.csv" not in parts["Other"]
    assert "Not run: two clusters" in parts["None"]


def test_the_page_is_clicked_through_in_a_browser(written, browser, tmp_path):
    said = clicked(browser, written / "report.html", tmp_path)
    assert said["errors"] == []
    assert [tab[1] for tab in said["tabs"]] == [["Text"], ["Table"], ["Printed"], ["Other"], ["None"]]
    assert said["tabs"][0][3] == [True, True]
    text = (written / "report.html").read_text()
    assert "&lt;i&gt;" in text
    assert "&lt;script&gt;" in text
    assert not re.search(r"https?://", text)


@pytest.fixture
def calls(monkeypatch, tmp_path):
    """Chapters whose command is a script: one that writes a table, one that fails."""
    (tmp_path / "writes_a_table.py").write_text(TABLE)
    (tmp_path / "fails.py").write_text("print('no luck'); raise SystemExit(3)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    good = Chapter(name="good", title="Good", question="Why?", command="writes_a_table {output}", minutes=1)
    bad = Chapter(name="bad", title="Bad", question="Why?", command="fails {data}", minutes=1)
    monkeypatch.setattr(report, "CHAPTERS", (good, bad))
    return ["--data", str(tmp_path), "--output", str(tmp_path / "out")]


def test_what_is_finished_is_kept_and_what_failed_is_run_again(calls, tmp_path, capsys):
    for _ in range(2):
        assert report.main(calls) == 1
        assert "the commands of bad failed" in capsys.readouterr().err
    assert (tmp_path / "out/good/calls").read_text() == "x"
    text = (tmp_path / "out/report.md").read_text()
    assert "| 1 | <b> |" in text
    assert "It ended with exit code 3" in text
    assert "no luck" in text
    assert report.main([*calls, "--only", "good", "--again"]) == 0
    assert (tmp_path / "out/good/calls").read_text() == "xx"


def test_what_does_not_fit_into_the_time_is_told(calls, tmp_path):
    assert report.main([*calls, "--only", "good", "--minutes", "0.5"]) == 0
    assert not (tmp_path / "out/good").exists()
    assert "Not run: needs about 1 min" in (tmp_path / "out/report.md").read_text()


def test_the_commands_of_the_chapters_are_right():
    """Each parses; none is run."""
    for chapter in chapters.CHAPTERS:
        assert bool(chapter.command) != bool(chapter.missing)
        if chapter.command:
            module = __import__(chapter.words[0], fromlist=["_parser"])
            module._parser().parse_args([word.format(data="d", output="o") for word in chapter.words[1:]])
    assert sum(chapter.minutes for chapter in chapters.CHAPTERS) <= 60


def test_the_real_command(tmp_path, commands):
    """A chapter that needs no training: all parts are real."""
    done = commands.run(["-m", "lms3d.experiments.report", "--only", "clusters", "--output", tmp_path])
    assert done.returncode == 0, done.stderr
    assert "up to 8 % faster" in (tmp_path / "report.md").read_text()
    assert runs.known(tmp_path / "clusters") is None
