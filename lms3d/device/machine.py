"""Facts that the operating system reports about this machine: cores, NUMA nodes, limits, launchers, disks.

Each function takes the path that it reads, so that a test can show it another machine.
"""

from __future__ import annotations

import contextlib
import os
import platform
import re
import resource
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lms3d.errors import StorageError

CHUNK_BYTES = 16 * 2**20
_LOCAL_SIZE = {  # environment variable with the number of processes on this machine -> launcher
    "LMS3D_SIZE": "lms3d.launch",  # on one machine
    "HOROVOD_LOCAL_SIZE": "horovodrun",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "Open MPI's mpirun",
    "MPI_LOCALNRANKS": "MPICH's mpirun",
    "SLURM_STEP_TASKS_PER_NODE": "srun",
}


@dataclass(frozen=True, kw_only=True)
class Binding:
    """The cores and NUMA nodes where this process may run."""

    cores: frozenset[int]
    """The cores that the process may use."""

    nodes: Mapping[int, frozenset[int]]
    """NUMA node -> its cores; empty if unknown."""

    processes: int = 1
    """The number of processes of the same job on this machine."""

    launcher: str = ""
    """The launcher that started them; "" for a single process."""

    @property
    def spanned(self) -> list[int]:
        """The NUMA nodes of the process's cores."""
        return [node for node, cores in self.nodes.items() if cores & self.cores]


def processor(table: Path = Path("/proc/cpuinfo")) -> str:
    """The processor's model, or its name in Python's `platform`."""
    try:
        lines = table.read_text().splitlines()
    except OSError:
        lines = []
    models = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(models, "") or platform.processor() or platform.machine()


def description(gpu: str | None = None) -> dict[str, Any]:
    """Properties of this machine that figures depend on. It holds no host or user name, since files with it are sent around.
    gpu: the GPU's model."""
    import psutil

    return {
        "architecture": platform.machine(),
        "processor": processor(),
        "cores": os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30),
        "kernel": platform.release(),
        "gpu": gpu,
    }


def binding(
    environment: Mapping[str, str] = os.environ, root: Path = Path("/sys/devices/system/node")
) -> Binding:  # fmt: skip
    """The binding of this process."""
    nodes = {int(path.parent.name[4:]): core_numbers(path.read_text()) for path in root.glob("node[0-9]*/cpulist")}
    launcher, processes = launched(environment)
    return Binding(
        cores=frozenset(os.sched_getaffinity(0)), nodes=dict(sorted(nodes.items())),
        processes=processes, launcher=launcher,
    )  # fmt: skip


def launched(environment: Mapping[str, str]) -> tuple[str, int]:
    """(launcher, processes on this machine); ("", 1) for a single process."""
    for name, launcher in _LOCAL_SIZE.items():
        number = environment.get(name, "").split("(")[0].split(",")[0]  # Slurm writes "4(x2)" for 4 on each of 2 nodes
        if number.isdecimal():
            return launcher, int(number)
    return "", 1


def core_numbers(text: str) -> frozenset[int]:
    """The kernel's list of cores, "0-3,8", as a set: {0, 1, 2, 3, 8}."""
    ends = [part.split("-") for part in text.strip().split(",") if part]
    return frozenset(core for end in ends for core in range(int(end[0]), int(end[-1]) + 1))


def core_list(numbers: Iterable[int]) -> str:
    """The inverse of `core_numbers`: {0, 1, 2, 3, 8} -> "0-3,8"."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and runs[-1][-1] == number - 1:
            runs[-1][1:] = [number]
        else:
            runs.append([number])
    return ",".join("-".join(map(str, run)) for run in runs)


def node_of_device(bus_id: str, root: Path = Path("/sys/bus/pci/devices")) -> int | None:
    """The NUMA node of a PCI device such as "0000:3b:00.0"; None if unknown (one node, or a virtual machine)."""
    try:
        node = int((root / bus_id.lower() / "numa_node").read_text())
    except (OSError, ValueError):
        return None
    return node if node >= 0 else None


def infiniband(root: Path = Path("/sys/class/infiniband")) -> list[str]:
    """The names of the InfiniBand (or RoCE) adapters."""
    return sorted(path.name for path in root.glob("*"))


def locked_limit_bytes() -> int | None:
    """The bytes that this process may lock in memory (`ulimit -l`); None without a limit."""
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return None if soft == resource.RLIM_INFINITY else soft


def file_system(folder: Path, table: Path = Path("/proc/mounts")) -> str:
    """The file system of `folder`, such as "ext4", "tmpfs" or "nfs4"; "" if unknown."""
    try:
        mounts = [line.split()[1:3] for line in table.read_text().splitlines()]
    except OSError:
        return ""
    around = {str(folder.resolve()), *map(str, folder.resolve().parents)}
    kinds = {
        point: kind for point, kind in mounts if point in around
    }  # the last mount at a point hides the earlier ones
    return kinds[max(kinds, key=len)] if kinds else ""


def mount_point(folder: Path) -> Path:
    """The mount point of the file system of `folder`, which need not exist yet."""
    whole = folder.resolve()
    return next(place for place in (whole, *whole.parents) if os.path.ismount(place))


def mpirun() -> str | None:
    """The first line of `mpirun --version`; None without mpirun."""
    if shutil.which("mpirun") is None:
        return None
    try:
        lines = subprocess.run(["mpirun", "--version"], capture_output=True, text=True, timeout=5).stdout.splitlines()
    except (OSError, subprocess.TimeoutExpired):
        return "mpirun does not answer"
    return lines[0].strip() if lines else "mpirun of unknown make"


@dataclass(frozen=True, kw_only=True)
class Launchers:
    """The launchers that can start ranks through MPI here."""

    mpirun: str | None = None
    """The first line of `mpirun --version`; None without mpirun."""

    refusal: str = ""
    """The reason why mpirun starts nothing, such as that the user is root; "" if it does start processes."""

    srun: tuple[str, ...] | str | None = None
    """The values of `srun --mpi`, or the reason why Slurm does not answer; None without srun."""


def launchers(environment: Mapping[str, str] = os.environ) -> Launchers:
    """The launchers of this machine. Except within a rank, mpirun is tried with a command that does nothing."""
    version = mpirun()
    may_try = version is not None and not launched(environment)[0]
    refusal = _output(["mpirun", "-np", "1", "true"])[1] if may_try else ""
    return Launchers(mpirun=version, refusal=refusal, srun=_srun_kinds())


def _srun_kinds() -> tuple[str, ...] | str | None:
    if shutil.which("srun") is None:
        return None
    lines, refusal = _output(["srun", "--mpi=list"])
    return refusal or tuple(line.strip() for line in lines if line.startswith((" ", "\t")))


def _output(command: list[str]) -> tuple[list[str], str]:
    """(lines that a command printed, why it failed). The reason is the first line with letters; "" if the command succeeded."""
    try:
        result = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired) as error:
        return [], f"{type(error).__name__}"
    lines = (result.stdout + result.stderr).splitlines()  # srun prints its list to stderr
    first = next((line.strip() for line in lines if any(map(str.isalpha, line))), "")
    return lines, "" if result.returncode == 0 else first or f"exit code {result.returncode}"


NVIDIA_DRIVER = (Path("/proc/driver/nvidia/version"), Path("/dev/nvidiactl"))
"""If either of these exists, NVIDIA's driver runs. Virtual machines and sandboxes may have only the second."""


def has_nvidia_driver(paths: Iterable[Path] = NVIDIA_DRIVER) -> bool:
    """Whether NVIDIA's driver runs here, even if TensorFlow sees no GPU."""
    return any(path.exists() for path in paths)


def nvidia_driver(kernel: Path = Path("/proc/driver/nvidia/version"), maps: Path = Path("/proc/self/maps")) -> str:
    """The version of NVIDIA's driver, such as "580.159.04"; "" if unknown.

    kernel: the kernel's file about the driver, which a container may hide. maps: the list of files in this process's memory, which
    names the driver's library once TensorFlow has loaded it.
    """
    for path, pattern in ((kernel, r"\b(\d+\.\d+(?:\.\d+)?)\b"), (maps, r"/libcuda\.so\.(\d+\.\d+(?:\.\d+)?)\b")):
        with contextlib.suppress(OSError):
            if match := re.search(pattern, path.read_text()):
                return match[1]
    return ""


def disk_speed(folder: Path, size_bytes: int) -> tuple[float, float]:
    """(write, read) speed in bytes per second, each of one sequential pass. StorageError if the disk fails."""
    chunk = os.urandom(CHUNK_BYTES)  # a disk that compresses must not look faster
    try:
        with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
            begin = time.perf_counter()
            for _ in range(size_bytes // CHUNK_BYTES):
                file.write(chunk)
            os.fsync(file.fileno())
            write_seconds = time.perf_counter() - begin
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)  # read from the disk, not from memory
            file.seek(0)
            begin = time.perf_counter()
            while file.read(CHUNK_BYTES):
                pass
            read_seconds = time.perf_counter() - begin
    except OSError as error:
        raise StorageError(f"--swap-dir {folder}: {error.strerror or error}; choose another disk") from error
    return size_bytes / write_seconds, size_bytes / read_seconds
