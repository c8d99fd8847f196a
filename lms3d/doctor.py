"""`python -m lms3d.doctor`: what this machine offers to a training run, what is wrong with it, and what to do about that.

`device.machine` reads facts, `device.checks` judges them, and `device.examination` groups them in sections, which are printed here.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from lms3d import cli, console, errors
from lms3d.atomic_files import writable_folder
from lms3d.device import checks, machine, memory
from lms3d.device.checks import Finding
from lms3d.errors import InputError
from lms3d.training import run_folder
from lms3d.units import format_seconds, format_size

_DESCRIPTION = """\
Show what this machine offers to a training run, and what to do about what is wrong ("look here"): devices, memory,
the features of Horovod, how processes are bound to cores and NUMA nodes, limits on pinned and shared memory, the disk that
tensors would be swapped to (its free space and measured speed), and the versions of the libraries.
Under mpirun, srun or horovodrun each rank reports on itself."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Examines the machine and prints the report. Returns the exit code."""
    return errors.run(lambda: _examine(_parser().parse_args(arguments)))


def _examine(options: argparse.Namespace) -> None:
    from lms3d.device import examination, startup

    folder = writable_folder(options.swap_dir, "--swap-dir")
    if options.workspaces:
        _measure_workspaces()  # first, because this process will then take the GPU's memory
    binding = machine.binding()
    if binding.processes > 1:  # otherwise the first rank takes the memory of all GPUs, and the others see none
        os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")
    startup.start_tensorflow()
    gpus = _gpus(binding)
    sections = {
        "Devices": {
            **_processor(),
            **gpus,
            **_missing_gpu(gpus),
            **_compute_device(),
            **_swap_engine(),
            **_normalisation(bool(gpus)),
        },
        "Memory": {
            **examination.host_memory(binding, len(gpus)),
            **(examination.cudnn_workspace(card) if (card := memory.gpu_name()) else {}),
        },
        "Several ranks": examination.ranks(binding, len(gpus)),
        f"Swap disk ({folder})": examination.swap_disk(folder),
    }
    for title, findings in sections.items():
        console.summary(title, {name: str(finding) for name, finding in findings.items()})
    horovod = examination.horovod_version() or "not installed"
    console.summary("Versions", {**run_folder.versions(), "horovod": horovod})
    amiss = [name for findings in sections.values() for name, finding in findings.items() if not finding.ok]
    console.say(f"Look at: {', '.join(amiss)}" if amiss else "Nothing to look at.")


def _measure_workspaces() -> None:
    """Measures cuDNN's convolutions within each limit of the workspace, and stores the seconds. InputError without a GPU."""
    from lms3d.device import workspace
    from lms3d.engine.passes import workspace_probe

    with console.quiet_native_log():
        card = memory.gpu_name()
    if card is None:
        raise InputError("--workspaces: TensorFlow sees no GPU here, and measures cuDNN's convolutions; leave it out")
    side, count = workspace_probe.SIDE, len(workspace_probe.LIMITS_MIB)
    console.say(f"Measuring convolutions at {side}^3 within {count} limits of cuDNN's workspace, some 30 s each")
    workspace.keep(
        card,
        workspace_probe.measure(
            report=lambda limit, seconds: console.say(f"within {limit} MiB: {format_seconds(seconds)}")
        ),
    )


def _processor() -> dict[str, Finding]:
    cores = f"{os.cpu_count()} cores"
    if memory.bytes_in_use("current", "CPU:0") is not None:  # without a limit, only oneDNN's allocator counts bytes
        return {"CPU": Finding(f"{cores}, oneDNN's kernels")}
    chosen = os.environ.get("TF_ENABLE_ONEDNN_OPTS")
    advice = (
        ""
        if chosen in (None, "1")
        else f"3D convolutions take many times as long; unset TF_ENABLE_ONEDNN_OPTS (now {chosen})"
    )
    return {"CPU": Finding(f"{cores}, TensorFlow's own kernels", advice)}


def _gpus(binding: machine.Binding) -> dict[str, Finding]:
    """Each GPU that TensorFlow sees, and the NUMA node of its bus."""
    import tensorflow as tf

    from lms3d.engine.tensorflow import reading

    findings, gpus = {}, tf.config.get_visible_devices("GPU")
    buses = reading.gpu_buses() if gpus else {}
    for number, gpu in enumerate(gpus):
        about = tf.config.experimental.get_device_details(gpu)
        capability = ".".join(map(str, about.get("compute_capability", ())))
        node = machine.node_of_device(buses.get(number, ""))
        name = gpu.name.removeprefix("/physical_device:")
        findings[name] = checks.gpu(f"{about.get('device_name', '?')}, capability {capability}", node, binding)
    return findings


def _missing_gpu(gpus: dict[str, Finding]) -> dict[str, Finding]:
    if gpus or not machine.has_nvidia_driver():
        return {}
    return {
        "GPU": Finding(
            "an NVIDIA driver is here, but TensorFlow sees no GPU",
            "pip install -e '.[gpu]'; check CUDA_VISIBLE_DEVICES",
        )
    }


def _compute_device() -> dict[str, Finding]:
    usable = format_size(memory.device_memory_bytes())
    return {"training runs on": Finding(f"{memory.compute_device()}, {usable} to use")}


def _swap_engine() -> dict[str, Finding]:
    """Whether the swap engine works. It is loaded as for a step, and compiled first if need be."""
    from lms3d.engine.native import library

    try:
        library.library()
        return {"swap engine": Finding(f"native, {library.made_by()}")}
    except InputError as error:
        return {"swap engine": Finding("none, so that no tensor can leave the device", str(error))}


def _normalisation(gpus: bool) -> dict[str, Finding]:
    """The kernels with which networks normalise on a GPU. They are compiled and tried."""
    from lms3d.engine.native import kernels, library

    if not gpus or library.missing():
        return {}
    if why := kernels.why_not():
        return {"normalisation": Finding("TensorFlow's own, which is slower and keeps more", why)}
    return {"normalisation": Finding("kernels of lms3d, with the processor's numbers")}


def _parser() -> cli.Parser:
    parser = cli.Parser(prog="python -m lms3d.doctor", description=_DESCRIPTION)
    parser.add_argument(
        "--swap-dir", type=cli.checked(cli.place, "path"), metavar="DIR", default=Path(tempfile.gettempdir()),
        help="folder to measure (default: the system's temporary folder)",
    )  # fmt: skip
    parser.add_argument(
        "--workspaces", action="store_true", default=False,
        help="on a GPU, with nothing else on it: measure within which limits of cuDNN's workspace convolutions are fast, once for "
        "all later runs; some minutes",
    )  # fmt: skip
    return parser


if __name__ == "__main__":
    sys.exit(main())
