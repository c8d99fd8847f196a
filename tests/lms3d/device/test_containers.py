"""The memory and cores that control groups leave to this process, read from folders as a kernel makes them."""

import os

import pytest

from lms3d.device import containers


def write_memory(folder, limit, use, cache, names):
    folder.mkdir(parents=True, exist_ok=True)
    for name, value in zip(names[:2], (limit, use), strict=True):
        (folder / name).write_text(f"{value}\n")
    (folder / "memory.stat").write_text(f"anon 1\n{names[2]} {cache}\n")


def test_memory_in_a_container_of_version_2(tmp_path):
    names = ("memory.max", "memory.current", "inactive_file")
    write_memory(tmp_path / "pod", 1000, 700, 100, names)
    write_memory(tmp_path / "pod/task", "max", 600, 0, names)
    table = tmp_path / "table"
    table.write_text("0::/pod/task\n")
    assert containers.headrooms(tmp_path, table) == [400]


def test_memory_in_a_container_of_version_1(tmp_path):
    names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
    write_memory(tmp_path / "memory", 2**62, 500, 0, names)
    write_memory(tmp_path / "memory/docker/a", 900, 500, 0, names)
    table = tmp_path / "table"
    table.write_text("5:cpu,cpuacct:/docker/a\n7:memory:/docker/a\n")
    assert min(containers.headrooms(tmp_path, table)) == 400


def test_no_container(tmp_path):
    here = len(os.sched_getaffinity(0))
    assert containers.allowed_cores(root=tmp_path, table=tmp_path / "absent") == here
    assert containers.headrooms(tmp_path, tmp_path / "absent") == []


@pytest.mark.parametrize(
    ("group", "content", "processes", "cores"),
    [
        ("pod", "400000 100000", 1, 4),
        ("pod", "400000 100000", 2, 2),  # they share it
        ("pod/task", "150000 100000", 1, 1),
        ("pod", "50000 100000", 1, 1),
        ("pod", "max 100000", 1, 8),
        ("pod", "1600000 100000", 1, 8),
    ],
)
def test_a_limit_of_processor_time_counts_as_fewer_cores(monkeypatch, tmp_path, group, content, processes, cores):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    (tmp_path / "pod/task").mkdir(parents=True)
    (tmp_path / group / "cpu.max").write_text(f"{content}\n")
    (tmp_path / "table").write_text("0::/pod/task\n")
    assert containers.allowed_cores(processes, root=tmp_path, table=tmp_path / "table") == cores


@pytest.mark.parametrize(("quota", "cores"), [(300000, 3), (-1, 8)])
def test_a_limit_of_processor_time_in_version_1(monkeypatch, tmp_path, quota, cores):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    (tmp_path / "cpu/docker/a").mkdir(parents=True)
    (tmp_path / "cpu/docker/a/cpu.cfs_quota_us").write_text(f"{quota}\n")
    (tmp_path / "cpu/docker/a/cpu.cfs_period_us").write_text("100000\n")
    (tmp_path / "table").write_text("5:cpu,cpuacct:/docker/a\n")
    assert containers.allowed_cores(root=tmp_path, table=tmp_path / "table") == cores
