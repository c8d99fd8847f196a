"""`python -m lms3d.plan` on a toy step: what it prints and writes, how it refuses."""

from __future__ import annotations

import csv

import pytest

from lms3d import plan
from lms3d.callback import Planned
from lms3d.errors import DoesNotFit
from lms3d.swap import store
from lms3d.swap.cost import Machine
from lms3d.swap.decide import Settings
from tests.swap.toy_graphs import MIB, training

GRAPH, MACHINE = training(5, mib=4, resident_mib=3), Machine(flops_per_second=1e10)


@pytest.fixture
def toy(monkeypatch):
    """The command plans for a toy step, and the memory limit that it is given."""

    def planned(options, *, hard_limit):
        settings = Settings(limit_bytes=options.memory_limit or 1 << 40)
        try:
            made, report = store.decide(GRAPH, settings, MACHINE)
        except DoesNotFit as error:
            made, report = store.decide(GRAPH, Settings(limit_bytes=error.smallest_limit_bytes), MACHINE)
            report.limit_bytes = settings.limit_bytes
        return Planned(graph=GRAPH, settings=settings, machine=MACHINE, plan=made, report=report)

    monkeypatch.setattr(plan, "_planned", planned)


def run(capsys, *arguments: str) -> tuple[int, str, str]:
    code = plan.main(arguments)
    return code, *capsys.readouterr()


def test_decisions_and_figures(toy, capsys, tmp_path):
    code, out, err = run(capsys, "--memory-limit", "36MiB", "--output", str(tmp_path))
    assert (code, err) == (0, "")
    for part in ("What happens to the large tensors", "stays in memory until its last use", "In memory at the peak",
                 "memory limit", "36.0 MiB", "waiting for swaps"):  # fmt: skip
        assert part in out
    assert {p.name for p in tmp_path.iterdir()} == {
        "lms_plan.json", "lms_report.md", "memory_timeline.png", "timeline.png"
    }  # fmt: skip
    assert "from the cache" not in out
    assert "from the cache" in run(capsys, "--memory-limit", "36MiB")[1]


def test_sweep(toy, capsys, tmp_path):
    code, out, _ = run(capsys, "--memory-limit", "1GiB", "--sweep", "3", "--output", str(tmp_path))
    assert code == 0
    for part in ("Step time under a memory limit", "TFLMS auto-tune", "swap everything", "recompute everything"):
        assert part in out
    assert (tmp_path / "sweep.png").stat().st_size > 10_000
    rows = list(csv.DictReader((tmp_path / "sweep.csv").open()))
    assert [row["method"] for row in rows].count("lms3d") == 3
    assert rows[-1]["method"] == "without LMS"
    assert float(rows[-1]["relative_step_time"]) == 1
    assert not [p for p in tmp_path.iterdir() if "partial" in p.name]
    assert "Step time under a memory limit" in run(capsys, "--sweep", "2")[1]  # a table alone


def test_too_small_a_limit(toy, capsys):
    code, out, err = run(capsys, "--memory-limit", "4MiB", "--sweep", "2")
    assert code == 3
    assert "Step time under a memory limit" in out
    assert "does not fit in 4.00 MiB: the smallest memory limit" in err


@pytest.mark.parametrize(("line", "message"), [
    ("--sweep 0", "0 is too small; the least is 2"),
    ("--sweep many", "'many' is not a whole number"),
    ("--sweep 3 --no-lms", "--sweep compares plans and --no-lms makes none"),
    ("--sweep --output {file}", "give a folder that you can write to"),
])  # fmt: skip
def test_refusals_come_before_any_work(line, message, capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(plan, "_planned", None)
    (tmp_path / "file").touch()
    code, _, err = run(capsys, *line.format(file=tmp_path / "file").split())
    assert code == 2
    assert message in err
    assert err.count("\n") == 1


def test_without_lms_only_the_step_is_described(toy, capsys):
    code, out, _ = run(capsys, "--no-lms")
    assert code == 0
    assert "No plan: --no-lms" in out
    assert "with this plan" not in out


def test_the_sizes_of_the_toy():
    assert store.decide(GRAPH, Settings(limit_bytes=36 * MIB), MACHINE)[1].rewritten
