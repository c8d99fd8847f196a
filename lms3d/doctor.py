"""`python -m lms3d.doctor`: what this machine offers to a training run, what is amiss, and what to do about it.

`machine` reads facts, `checks` judges them; here they meet and are printed.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from lms3d import cli, console, errors
from lms3d.device import checks, machine, memory
from lms3d.device.checks import Finding
from lms3d.files import writable_folder
from lms3d.training import run_folder
from lms3d.units import format_size

_DESCRIPTION = """\
Show what this machine offers to a training run, and what to do where something is amiss ("look here"): devices, memory,
the features of Horovod, how processes are bound to cores and NUMA nodes, limits on pinned and shared memory, the disk that
tensors would be swapped to (its free space and measured speed), and the versions of the libraries.
Under mpirun, srun or horovodrun each rank reports on itself."""

PROBE_BYTES = 512 * 2**20
_CHUNK_BYTES = 16 * 2**20


def main(arguments: Sequence[str] | None = None) -> int:
    """Look and print. Returns the exit code."""
    return errors.run(lambda: _examine(_parser().parse_args(arguments)))


def _examine(options: object) -> None:
    from lms3d.device import startup

    folder = writable_folder(getattr(options, "swap_dir", Path(tempfile.gettempdir())), "--swap-dir")
    binding = machine.binding()
    if binding.processes > 1:  # else the first rank takes the memory of all GPUs, and the others see none
        os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")
    startup.start_tensorflow()
    sections = {
        "Devices": devices(binding),
        "Memory": host_memory(binding),
        "Several ranks": ranks(binding),
        f"Swap disk ({folder})": swap_disk(folder),
    }
    for title, findings in sections.items():
        console.summary(title, {name: str(finding) for name, finding in findings.items()})
    console.summary("Versions", {**run_folder.versions(), "horovod": horovod_version() or "not installed"})
    amiss = [name for findings in sections.values() for name, finding in findings.items() if not finding.ok]
    console.say(f"Look at: {', '.join(amiss)}" if amiss else "Nothing to look at.")


def devices(binding: machine.Binding) -> dict[str, Finding]:
    """Each device of TensorFlow and what training can have on it."""
    import tensorflow as tf

    found = {"CPU": Finding(f"{os.cpu_count()} cores, {'oneDNN' if _one_dnn() else 'plain kernels'}")}
    gpus = tf.config.get_visible_devices("GPU")
    buses = _gpu_buses() if gpus else {}
    for number, gpu in enumerate(gpus):
        about = tf.config.experimental.get_device_details(gpu)
        capability = ".".join(map(str, about.get("compute_capability", ())))
        node = machine.node_of_device(buses.get(number, ""))
        name = gpu.name.removeprefix("/physical_device:")
        found[name] = checks.gpu(f"{about.get('device_name', '?')}, capability {capability}", node, binding)
    if not gpus and machine.has_nvidia_driver():
        found["GPU"] = Finding(
            "an NVIDIA driver is here, but TensorFlow sees no GPU",
            "pip install -e '.[gpu]'; check CUDA_VISIBLE_DEVICES",
        )
    found["training runs on"] = Finding(
        f"{memory.compute_device()}, {format_size(memory.device_memory_bytes())} to use"
    )
    return found


def host_memory(binding: machine.Binding) -> dict[str, Finding]:
    """Memory of the machine, of the container if that is less, and what of it can be pinned for a GPU."""
    import psutil

    whole, free = psutil.virtual_memory(), memory.free_host_bytes()
    rows = {"machine": checks.host_memory(whole.total, whole.available)}
    if free < 0.99 * whole.available:
        rows["container"] = Finding(f"{format_size(free)} left below its limit")
    limit = memory.current_limit()
    rows["hard limit for TensorFlow"] = Finding(format_size(limit) if limit else "none (--memory-limit sets one)")
    pinned = memory.pinned_limit_bytes()
    rows["pinned for swaps"] = checks.pinned_pool(pinned, free, _gpu_number(), binding.processes)
    rows["locked memory"] = checks.locked_memory(machine.locked_limit_bytes(), machine.infiniband())
    return rows


def ranks(binding: machine.Binding) -> dict[str, Finding]:
    """What training on several devices needs: Horovod, and where the processes of a machine run."""
    import psutil

    shared = Path("/dev/shm")
    return {
        **checks.features(horovod_features(), _gpu_number(), machine.launchers(), mpi_library()),
        "cores of this process": checks.cores(binding, os.cpu_count() or 1),
        "NUMA": checks.numa(binding),
        "/dev/shm": checks.shared_memory(psutil.disk_usage(str(shared)).total if shared.is_dir() else None),
    }


def swap_disk(folder: Path) -> dict[str, Finding]:
    """Free space, and the speed of a file of 512 MiB (or a quarter of the free space) past the page cache."""
    import psutil

    free = psutil.disk_usage(str(folder)).free
    size = min(PROBE_BYTES, free // 4) // _CHUNK_BYTES * _CHUNK_BYTES
    rows = {"free": checks.swap_place(free, machine.file_system(folder))}
    if size:
        write, read = machine.disk_speed(folder, size)
        rows["write"] = checks.speed(write)
        rows["read"] = checks.speed(read)
    return rows


def horovod_features() -> Mapping[str, bool] | str:
    """Feature -> whether the installed Horovod was built with it, or one line that says why it cannot be asked."""
    if horovod_version() is None:
        return "not installed"
    try:
        with console.quiet_native_log():
            import horovod.tensorflow as hvd
    except Exception as error:  # built for another TensorFlow it fails in ways of its own (symbols, versions)
        return f"does not load ({(str(error).strip() or type(error).__name__).splitlines()[0]})"
    return {"gloo": bool(hvd.gloo_built()), "mpi": bool(hvd.mpi_built()), "nccl": bool(hvd.nccl_built())}


def mpi_library() -> str:
    """Which MPI the installed Horovod is linked with, such as "Open MPI v4.1.4"; "" without."""
    features = horovod_features()
    if isinstance(features, str) or not features["mpi"]:
        return ""
    import horovod.tensorflow as hvd

    from lms3d.ranks import mpi

    return mpi.version(hvd.mpi_ops._basics.MPI_LIB_CTYPES)


def horovod_version() -> str | None:
    """The version of Horovod, or None if it is not installed."""
    try:
        return version("horovod")
    except PackageNotFoundError:
        return None


def _gpu_number() -> int:
    import tensorflow as tf

    return len(tf.config.get_visible_devices("GPU"))


def _gpu_buses() -> dict[int, str]:
    """Number of a GPU -> its PCI bus id, which TensorFlow tells in prose only."""
    from tensorflow.python.client import device_lib  # no public call tells the bus

    described = (
        device.physical_device_desc for device in device_lib.list_local_devices() if device.device_type == "GPU"
    )
    found = (re.search(r"device: (\d+),.*pci bus id: ([0-9a-fA-F:.]+)", text) for text in described)
    return {int(match.group(1)): match.group(2) for match in found if match}


def _one_dnn() -> bool:
    return os.environ.get("TF_ENABLE_ONEDNN_OPTS", "1") == "1"


def _parser() -> cli.Parser:
    parser = cli.Parser(prog="python -m lms3d.doctor", description=_DESCRIPTION)
    parser.add_argument(
        "--swap-dir", type=Path, metavar="DIR", help="folder to measure (default: the system's temporary folder)"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
