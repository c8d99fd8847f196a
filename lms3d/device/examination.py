"""The sections of the doctor's report: facts from `machine` and `memory`, judged by `checks`. A section is row title ->
`Finding`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil

from lms3d import console
from lms3d.device import checks, machine, memory, workspace
from lms3d.device.checks import Finding
from lms3d.units import format_seconds, format_size

PROBE_BYTES = 512 * 2**20


def host_memory(binding: machine.Binding, gpus: int) -> dict[str, Finding]:
    """The memory of the machine, of the container if that is less, and how much of it can be pinned for a GPU."""
    whole, free = psutil.virtual_memory(), memory.free_host_bytes()
    rows = {"machine": checks.host_memory(whole.total, whole.available)}
    if free < 0.99 * whole.available:
        rows["container"] = Finding(f"{format_size(free)} left below its limit")
    limit = memory.current_limit()
    rows["hard limit for TensorFlow"] = Finding(format_size(limit) if limit else "none (--memory-limit sets one)")
    rows["pinned for swaps"] = checks.pinned_pool(memory.pinned_limit_bytes(), free, gpus, binding.processes)
    rows["locked memory"] = checks.locked_memory(machine.locked_limit_bytes(), machine.infiniband())
    return rows


def cudnn_workspace(card: str) -> dict[str, Finding]:
    """The workspace that cuDNN's convolutions may take on this card, and the seconds measured for it (`workspace_probe`)."""
    row = f"at most {format_size(workspace.in_force())} a convolution (--cudnn-workspace sets another limit)"
    measured = workspace.measured(card)
    if not measured:
        return {"cuDNN's workspace": Finding(f"{row}; --workspaces measures which limits pay")}
    figures = ", ".join(f"{format_seconds(seconds)} within {mib} MiB" for mib, seconds in sorted(measured.items()))
    return {"cuDNN's workspace": Finding(f"{row}; measured: {figures}")}


def ranks(binding: machine.Binding, gpus: int) -> dict[str, Finding]:
    """The needs of training on several devices: what links ranks, and the cores and NUMA nodes of the processes of a machine."""
    shared = Path("/dev/shm")
    return {
        **checks.features(horovod_features(), gpus, machine.launchers(), mpi_library()),
        "cores of this process": checks.cores(binding, os.cpu_count() or 1),
        "NUMA": checks.numa(binding),
        "/dev/shm": checks.shared_memory(psutil.disk_usage(str(shared)).total if shared.is_dir() else None),
    }


def swap_disk(folder: Path) -> dict[str, Finding]:
    """The free space, and the speed of writing and reading 512 MiB (at most a quarter of the free space) past the page cache."""
    free = psutil.disk_usage(str(folder)).free
    size = min(PROBE_BYTES, free // 4) // machine.CHUNK_BYTES * machine.CHUNK_BYTES
    rows = {"free": checks.swap_place(free, machine.file_system(folder))}
    if size:
        write, read = machine.disk_speed(folder, size)
        rows |= {"write": checks.speed(write), "read": checks.speed(read)}
    return rows


def horovod_features() -> Mapping[str, bool] | str:
    """Feature -> whether the installed Horovod was built with it; or one line that says why this is unknown."""
    if horovod_version() is None:
        return checks.NOT_INSTALLED
    try:
        with console.quiet_native_log():
            import horovod.tensorflow as hvd
    except Exception as error:  # a Horovod that was built for another TensorFlow fails in many ways (symbols, versions)
        return f"does not load ({(str(error).strip() or type(error).__name__).splitlines()[0]})"
    return {"gloo": bool(hvd.gloo_built()), "mpi": bool(hvd.mpi_built()), "nccl": bool(hvd.nccl_built())}


def mpi_library() -> str:
    """The MPI that the installed Horovod is linked with, such as "Open MPI v4.1.4"; "" without one."""
    features = horovod_features()
    if isinstance(features, str) or not features["mpi"]:
        return ""
    from lms3d.ranks import horovod, mpi

    return mpi.version(horovod.mpi_library())


def horovod_version() -> str | None:
    """The version of Horovod; None if it is not installed."""
    try:
        return version("horovod")
    except PackageNotFoundError:
        return None
