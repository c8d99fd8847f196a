"""The two commands over emulated links: which parts, what the tables say, resuming. Children are replaced, but for real ones at
toy size."""

from __future__ import annotations

import csv
import json
import math
import re
import threading
import time

import pytest

from lms3d.experiments import concurrent, emulated_links
from lms3d.experiments.harness import bench, methods
from lms3d.experiments.harness import child as process
from lms3d.experiments.harness.part import MIB, PartResult, StudyPart
from lms3d.experiments.links.link import COPY_SECONDS, STEP_SECONDS

WITHOUT, COPIED, MAPPED = 1000, 250, 200  # MiB: the smallest limits of the imitated machine
STEP = 2.0
RATIOS = {methods.LMS: 1.2, methods.TFLMS: 2.1, methods.SWAP_ALL: 3.0, methods.RECOMPUTE_CHEAP: 1.4}
GB = 1e9


class Imitation:
    """A child that trains if it may, and whose link moves 1 GB each way at nine tenths of 1 GB/s."""

    made: list[StudyPart]
    lock: threading.Lock

    def __init__(self, part: StudyPart, log, patience_seconds: float, environment=None, deadline=math.inf) -> None:
        self.part, self.environment = part, environment
        with self.lock:
            self.made.append(part)
        least = {methods.NONE: WITHOUT, methods.COPIED: COPIED, methods.LMS: COPIED if part.link else MAPPED}.get(
            part.method, 300
        )
        if part.limit_mib is not None and part.limit_mib < least:
            raise process.ChildFailed("does not fit", "too small")
        self.ready = {"ready": True, "device": "CPU"}

    def step(self) -> dict:
        peak = min(900, self.part.limit_mib or 900) * MIB
        moved = {
            "swapped_out_bytes": GB,
            "swapped_in_bytes": GB,
            "swap_out_seconds": 1 / 0.9,
            "swap_in_seconds": 1 / 0.9,
        }
        traffic = {**moved, COPY_SECONDS: 0.2, STEP_SECONDS: 4.0} if self.part.link else {}
        seconds = STEP * RATIOS.get(self.part.method, 1.0)
        return {"seconds": seconds, "peak_bytes": peak, "resident_bytes": peak, "loss": 0.5, "traffic": traffic}

    def finish(self) -> dict:
        limit = (self.part.limit_mib or 900) * MIB
        report = {"planner": "hybrid", "predicted_peak_bytes": int(0.99 * limit)}
        report["swapped_out_bytes"] = int(GB) if self.part.link else 0
        report |= {
            "predicted_step_seconds": 1.05 * STEP * RATIOS.get(self.part.method, 1.0),
            "unedited_step_seconds": 1.05 * STEP,
            "lower_bound_seconds": 1.05 * 1.1 * STEP,
        }
        if self.part.method == methods.PREDICTION:
            report = {"unedited_limit_bytes": 1040 * MIB, "unedited_peak_bytes": 900 * MIB, "floor_bytes": MAPPED * MIB}
            report["step_flops"] = int(2e12)
        return {"finished": True, "report": report}

    def kill(self) -> None:
        pass


@pytest.fixture
def child(monkeypatch):
    """The kind of child that is started; `child.made`: for which parts, in order. One thread copies 10 GB/s."""
    kind = type("Child", (Imitation,), {"made": [], "lock": threading.Lock()})
    for module in (bench, concurrent):
        monkeypatch.setattr(module, "Child", kind)
    monkeypatch.setattr(emulated_links, "copy_seconds_per_byte", lambda: 1e-10)
    return kind


def run(tmp_path, *words: str) -> int:
    return emulated_links.main(["--resolutions", "96", "--output", str(tmp_path / "out"), *words])


def rows(tmp_path, name: str = "links.csv") -> list[dict[str, str]]:
    with open(tmp_path / "out" / name, newline="") as file:
        return list(csv.DictReader(file))


def test_every_method_is_measured_at_every_share_over_every_link(tmp_path, child):
    assert run(tmp_path, "--emulate-link", "pcie3", "pcie5") == 0
    found = {(row["link"], row["method"], row["limit_mib"]) for row in rows(tmp_path) if row["limit_mib"]}
    links = ("pcie3", "pcie5")
    limits = {row["limit_mib"] for row in rows(tmp_path)} - {""}
    free = {(row["link"], row["method"]) for row in rows(tmp_path) if not row["limit_mib"]}
    assert free == {(link, method) for link in links for method in emulated_links.UNLIMITED}
    assert len(limits) == 5
    assert found == {(link, method, limit) for link in links for method in emulated_links.METHODS for limit in limits}
    recomputed = [part for part in child.made if part.method == methods.RECOMPUTE_CHEAP]
    assert len(recomputed) == len(limits) + 1  # one for all links
    text = (tmp_path / "out/report.md").read_text()
    assert text.count("### ") == 2
    assert (tmp_path / "out/links.png").stat().st_size > 10_000


def test_a_row_states_what_was_predicted_reached_and_taken_by_copies(tmp_path, child):
    assert run(tmp_path, "--emulate-link", "1GB/s", "--shares", "0.5", "--no-floor") == 0
    (row,) = [row for row in rows(tmp_path) if row["method"] == methods.LMS]
    assert (row["ratio"], row["predicted_ratio"], row["outcome"]) == ("1.2", "1.2", "trained")
    assert float(row["bound_ratio"]) == pytest.approx(1.1)
    assert (row["step_seconds"], row["predicted_step_seconds"], row["seconds_error"]) == ("2.4", "2.52", "0.05")
    assert float(row["peak_error"]) == pytest.approx(-0.01, abs=0.001)
    assert float(row["out_bytes_per_second"]) == pytest.approx(0.9e9)
    assert (row["copy_processor_seconds"], row["copy_share"]) == ("0.2", "0.05")
    text = (tmp_path / "out/report.md").read_text()
    line = next(line for line in text.splitlines() if "| LMS |" in line)
    assert "| trained | 2.4 s | 1.20 | 1.20 | 1.10 | 2.5 s (+5%) |" in line
    assert line.endswith("| 0.90 GB/s, 0.90 GB/s | 200 ms (5%) |")


def test_links_that_are_too_fast_are_skipped(tmp_path, child):
    assert run(tmp_path, "--emulate-link", "pcie3", "c2c", "--shares", "0.5", "--no-floor") == 0
    assert {row["link"] for row in rows(tmp_path)} == {"pcie3"}
    text = (tmp_path / "out/report.md").read_text()
    assert "Skipped:\n- GH200, NVLink-C2C: " in text
    assert "is more than 50% of what one thread copies; `lms3d.plan --machine` says" in text


def test_the_floor_is_that_of_copies_beside_that_of_reading_in_place(tmp_path, child):
    assert run(tmp_path, "--emulate-link", "pcie3") == 0
    line = next(line for line in (tmp_path / "out/report.md").read_text().splitlines() if "Smallest limits" in line)
    without, copied, mapped = (int(size.replace(",", "")) for size in re.findall(r"([\d,]+) MiB", line))
    assert 0 <= without / WITHOUT - 1 <= 0.025
    assert 0 <= copied / COPIED - 1 <= 0.025
    assert 0 <= mapped / MAPPED - 1 <= 0.025
    lowest = min(int(row["limit_mib"]) for row in rows(tmp_path) if row["limit_mib"])
    assert lowest in (copied, -(-without // 4))
    assert any(row["outcome"] == "does not fit" for row in rows(tmp_path))


def test_rates_stay_and_nothing_is_run_twice(tmp_path, child, monkeypatch):
    words = ("--emulate-link", "pcie3", "--shares", "0.5", "--no-floor")
    assert run(tmp_path, *words) == 0
    first, rates = len(child.made), json.loads((tmp_path / "out/links.json").read_text())
    link = rates["96"]["pcie3"]["word"]
    assert link == str(emulated_links.machines.link("pcie3", STEP, 96))
    monkeypatch.setitem(globals(), "STEP", 3.0)
    assert run(tmp_path, *words) == 0
    assert len(child.made) == first
    assert run(tmp_path, "--emulate-link", "pcie3", "400MB/s", "--shares", "0.5", "--no-floor") == 0
    assert {part.link for part in child.made[first:] if part.method != methods.NONE} == {"400MB/s"}
    assert json.loads((tmp_path / "out/links.json").read_text())["96"]["pcie3"]["word"] == link


def test_what_there_is_no_time_for_is_listed(tmp_path, child):
    assert run(tmp_path, "--minutes", "1e-9") == 0
    assert "Skipped:" in (tmp_path / "out/report.md").read_text()


def test_an_unknown_link_is_one_line(tmp_path, child, capsys):
    assert run(tmp_path, "--emulate-link", "pcie9") == 2
    message = capsys.readouterr().err.strip()
    assert "\n" not in message
    assert "--emulate-link: 'pcie9' is not a link; write for example 400MB/s" in message
    assert "pcie3, nvlink2, pcie5, c2c" in message


def test_the_command_with_a_real_child(tmp_path, monkeypatch):
    """At toy size, of one method; limits are as if found before, and no neighbour runs beside it."""
    monkeypatch.setattr(emulated_links, "METHODS", (methods.LMS,))
    monkeypatch.setattr(emulated_links, "UNLIMITED", ())
    monkeypatch.setattr(bench.Bench, "_neighbour_of", lambda self, part: None)
    monkeypatch.setattr(emulated_links.PartsOfSize, "without_mib", 1600)
    common = {"model": "unet3d", "resolution": 16}
    known = (
        PartResult(
            part=StudyPart(method=methods.PREDICTION, **common, warm_up=1, steps=0, timed=False), outcome="predicted",
            report={"step_flops": 10**9},
        ),
        PartResult(part=StudyPart(method=methods.NONE, **common, warm_up=1, steps=2), outcome="trained", seconds=(0.1, 0.1)),
    )  # fmt: skip
    for result in known:
        result.save(tmp_path / "out/parts")
    words = ["--model", "unet3d", "--resolutions", "16", "--emulate-link", "100MB/s", "--shares", "0.5", "--no-floor"]
    assert emulated_links.main([*words, "--steps", "2", "--output", str(tmp_path / "out")]) == 0
    (row,) = rows(tmp_path)
    assert row["outcome"] == "trained", row["detail"]
    assert (row["rate"], row["limit_mib"]) == ("100MB/s", "800")
    assert float(row["step_seconds"]) > 0


# -- side by side


def side_by_side_run(tmp_path, *words: str, limit: tuple[str, ...] = ("--memory-limit", "300MiB")) -> int:
    return concurrent.main(["--steps", "3", *limit, "--output", str(tmp_path / "out"), *words])


@pytest.mark.parametrize(
    ("without_mib", "floor_mib", "limit_mib"), [(1000, 100, 350), (329, 112, 140)], ids=["a share", "near the smallest"]
)
def test_side_by_side_the_limit_is_a_share_that_some_plan_fits_in(without_mib, floor_mib, limit_mib):
    needs = {"unedited_limit_bytes": without_mib * MIB, "floor_bytes": floor_mib * MIB}
    assert concurrent.default_limit_mib(needs) == limit_mib


@pytest.mark.parametrize(("share", "limit_mib"), [(0.5, 520), (0.01, round(1.25 * MAPPED))])
def test_side_by_side_without_a_limit_it_follows_from_what_a_step_needs(tmp_path, child, monkeypatch, share, limit_mib):
    monkeypatch.setattr(concurrent, "SHARE", share)
    assert side_by_side_run(tmp_path, "--processes", "1", limit=()) == 0
    assert {part.limit_mib for part in child.made if part.method == methods.LMS} == {limit_mib}


def test_each_process_has_its_epoch(tmp_path, child):
    assert side_by_side_run(tmp_path, "--processes", "2", "3") == 0
    found = rows(tmp_path, "concurrent.csv")
    assert [(row["kind"], row["processes"], row["process"]) for row in found] == [
        (kind, str(n), str(k)) for kind in concurrent.KINDS.values() for n in (1, 2, 3) for k in range(1, n + 1)
    ]
    assert [part.method for part in child.made[:3]] == [
        methods.NONE,
        methods.LMS,
        methods.LMS,
    ]  # of one process, before two
    buses = {part.link.partition("@")[2] for part in child.made if "@" in part.link}
    assert len(buses) == 3  # one for each number of processes
    assert {part.limit_mib for part in child.made if part.method == methods.LMS} == {300}
    text = (tmp_path / "out/report.md").read_text()
    assert "| 3 x LMS, one bus for all |" in text
    assert "sharing a bus costs 38 %" in text
    assert "all share the memory and its bandwidth" in text


def test_epochs_go_on_where_they_stopped(tmp_path, child):
    assert side_by_side_run(tmp_path, "--processes", "2") == 0
    first = len(child.made)
    assert side_by_side_run(tmp_path, "--processes", "2") == 0
    assert len(child.made) == first
    (tmp_path / "out/parts/bus-2.json").unlink()
    assert side_by_side_run(tmp_path, "--processes", "2") == 0
    assert len(child.made) == first + 2


def test_one_that_fails_ends_its_group_and_is_told(tmp_path, child, capsys):
    real = child.step

    def step(self) -> dict:
        if "@" in self.part.link:
            raise process.ChildFailed("failed", "as it was told")
        return real(self)

    child.step = step
    assert side_by_side_run(tmp_path, "--processes", "2") == 1
    assert "as it was told" in capsys.readouterr().err
    assert "Failed:" in (tmp_path / "out/report.md").read_text()


def test_one_that_is_not_ready_in_time_ends_its_group(tmp_path, child):
    def slow(part, log, *_):
        if log.stem.endswith("-1"):
            time.sleep(0.5)
        return child(part, log, 60)

    part = StudyPart(method=methods.NONE, model="unet3d", resolution=32, warm_up=1, steps=1)
    group = concurrent.Group(part, 2, tmp_path, patience_seconds=0.1, environment={}, start=slow)
    with pytest.raises(process.ChildFailed, match="failed: the 2 processes were not ready together"):
        group.run()


def test_the_time_that_is_over_is_no_failure(tmp_path, child, capsys):
    real = child.step

    def step(self) -> dict:
        if self.part.method == methods.LMS:
            raise process.ChildFailed("out of time", "ended at its deadline")
        return real(self)

    child.step = step
    assert side_by_side_run(tmp_path, "--processes", "2", "--minutes", "5") == 0
    text = (tmp_path / "out/report.md").read_text()
    assert "Skipped:" in text
    assert "Failed:" not in text


def test_measured_again_the_link_follows_from_the_new_step(tmp_path, child):
    assert side_by_side_run(tmp_path, "--processes", "1", "--emulate-link", "pcie3") == 0
    first = json.loads((tmp_path / "out/link.json").read_text())
    (tmp_path / "out/link.json").write_text(json.dumps(first | {"word": "1MB/s"}))
    assert side_by_side_run(tmp_path, "--processes", "1", "--emulate-link", "pcie3", "--again") == 0
    assert json.loads((tmp_path / "out/link.json").read_text())["word"] != "1MB/s"


def test_epoch_tables_compare_with_one_alone_and_with_links_apart():
    moved = {"swapped_out_bytes": GB, "swap_out_seconds": 2.0}
    found = [
        {"kind": kind, "ranks": n, "epoch_seconds": [seconds] * n, "traffic": [moved] * n}
        for kind, n, seconds in (
            (concurrent.OWN, 1, 10.0),
            (concurrent.OWN, 2, 12.0),
            (concurrent.BUS, 2, 18.0),
            (concurrent.BUS, 1, 10.0),
        )
    ]
    lines = concurrent.table_of(found).splitlines()
    assert "| 2 x LMS, one bus for all | 18.0 | 18.0 | 18.0 | 1.80 | 1.50 | 0.50 GB/s |" in lines
    assert "| 1 x LMS, a link each | 10.0 |  | 10.0 | 1.00 |  | 0.50 GB/s |" in lines
    assert "some share a core" in concurrent.what_is_shared([1, 2, 3], 2)
    assert "some share a core" not in concurrent.what_is_shared([1, 2], 2)
