from pathlib import Path

import pytest

from lms3d.device import machine
from lms3d.errors import StorageError


@pytest.mark.parametrize(
    ("text", "numbers"), [("0-3,8", {0, 1, 2, 3, 8}), ("5", {5}), ("0,2-3\n", {0, 2, 3}), ("\n", set())]
)
def test_lists_of_cores(text, numbers):
    assert machine.core_numbers(text) == numbers
    assert machine.core_list(numbers) == text.strip()


def test_numa_nodes_come_from_the_kernel(tmp_path):
    for node, owned in ((1, "4-7"), (0, "0-3"), (10, "8")):
        (tmp_path / f"node{node}").mkdir()
        (tmp_path / f"node{node}" / "cpulist").write_text(f"{owned}\n")
    (tmp_path / "online").write_text("0-1,10\n")
    binding = machine.binding({}, tmp_path)
    assert list(binding.nodes.items()) == [(0, {0, 1, 2, 3}), (1, {4, 5, 6, 7}), (10, {8})]
    assert binding.cores
    assert not machine.binding({}, tmp_path / "absent").nodes


def test_nodes_that_a_process_spans():
    nodes = {0: frozenset({0, 1}), 1: frozenset({2, 3})}
    assert machine.Binding(cores=frozenset({1, 2}), nodes=nodes).spanned == [0, 1]
    assert machine.Binding(cores=frozenset({3}), nodes=nodes).spanned == [1]


@pytest.mark.parametrize(
    ("environment", "launcher", "processes"),
    [
        ({}, "", 1),
        ({"OMPI_COMM_WORLD_LOCAL_SIZE": "4"}, "Open MPI's mpirun", 4),
        ({"SLURM_STEP_TASKS_PER_NODE": "8(x2),4"}, "srun", 8),
        ({"HOROVOD_LOCAL_SIZE": "2", "SLURM_STEP_TASKS_PER_NODE": "1"}, "horovodrun", 2),
        ({"MPI_LOCALNRANKS": "many"}, "", 1),
    ],
)
def test_the_launcher_is_known_by_what_it_tells_its_processes(environment, launcher, processes):
    assert machine.launched(environment) == (launcher, processes)


def test_node_of_a_device(tmp_path):
    for bus, node in (("0000:3b:00.0", "1"), ("0000:00:01.0", "-1")):
        (tmp_path / bus).mkdir()
        (tmp_path / bus / "numa_node").write_text(f"{node}\n")
    assert machine.node_of_device("0000:3B:00.0", tmp_path) == 1
    assert machine.node_of_device("0000:00:01.0", tmp_path) is None
    assert machine.node_of_device("", tmp_path) is None


def test_the_innermost_mount_tells_the_file_system(tmp_path):
    table = tmp_path / "mounts"
    table.write_text(f"overlay / overlay rw 0 0\nserver:/x {tmp_path} nfs4 rw 0 0\ntmpfs {tmp_path}/ram tmpfs rw 0 0\n")
    assert machine.file_system(tmp_path / "ram" / "deep", table) == "tmpfs"
    assert machine.file_system(tmp_path / "ramble", table) == "nfs4"
    assert machine.file_system(tmp_path.parent, table) == "overlay"
    assert machine.file_system(tmp_path, tmp_path / "absent") == ""


def test_folders_of_a_file_system_have_one_mount_point(tmp_path):
    assert machine.mount_point(Path("/proc/self/task")) == Path("/proc")
    assert machine.mount_point(tmp_path / "not" / "made") == machine.mount_point(tmp_path)
    (tmp_path / "link").symlink_to("/proc/sys")
    assert machine.mount_point(tmp_path / "link") == Path("/proc")


def test_mpirun_tells_its_make(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert machine.mpirun() is None
    (tmp_path / "mpirun").write_text("#!/bin/sh\necho 'mpirun (Open MPI) 4.1.4'\necho more\n")
    (tmp_path / "mpirun").chmod(0o755)
    assert machine.mpirun() == "mpirun (Open MPI) 4.1.4"


def test_the_driver_is_what_the_kernel_or_the_library_in_memory_says(tmp_path):
    told, maps, nothing = tmp_path / "version", tmp_path / "maps", tmp_path / "nothing"
    told.write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC 2024\n")
    maps.write_text(
        "7f0-7f1 r-xp 0 08:01 1 /usr/lib/libc.so.6\n7f2-7f3 r-xp 0 08:01 2 /usr/lib/libcuda.so.580.159.04\n"
    )
    assert machine.nvidia_driver(told, maps) == "550.54.15"
    assert machine.nvidia_driver(nothing, maps) == "580.159.04"
    assert machine.nvidia_driver(nothing, told) == machine.nvidia_driver(nothing, nothing) == ""


def test_disk_speed_is_measured_and_leaves_nothing(tmp_path):
    write, read = machine.disk_speed(tmp_path, 32 * 2**20)
    assert 1e6 < write < 1e11
    assert 1e6 < read < 1e11
    assert not list(tmp_path.iterdir())


def test_no_disk(tmp_path):
    with pytest.raises(StorageError, match="--swap-dir"):
        machine.disk_speed(tmp_path / "absent", 16 * 2**20)


def test_launchers_are_asked_and_tried(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert machine.launchers() == machine.Launchers()
    said = {
        "mpirun": 'case $1 in --version) echo "mpirun (Open MPI) 4.1.4";; *) echo ----; echo "not as root" >&2; exit 1;; esac',
        "srun": 'printf "MPI plugin types are...\\n\\tpmix\\n\\tnone\\n" >&2',
    }
    for name, script in said.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)
    assert machine.launchers({}) == machine.Launchers(
        mpirun="mpirun (Open MPI) 4.1.4", refusal="not as root", srun=("pmix", "none")
    )
    assert machine.launchers({"OMPI_COMM_WORLD_LOCAL_SIZE": "2"}).refusal == ""
    (tmp_path / "srun").write_text('#!/bin/sh\necho "srun: fatal: no controller" >&2\nexit 1\n')
    assert machine.launchers().srun == "srun: fatal: no controller"
