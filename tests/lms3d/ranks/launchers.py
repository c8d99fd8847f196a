"""Starts two ranks of a Python program with this machine's launchers. A missing launcher skips a test, or fails it if LMS3D_CI is
set, since .ci/run has installed all of them."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
HOROVODRUN = Path(sys.executable).with_name("horovodrun")
ENVIRONMENT = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",  # the tests may run as root, in a container
    "OMPI_MCA_rmaps_base_oversubscribe": "1", "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",  # or on one core
    "PYTHON": sys.executable,  # of try_here.sh
}  # fmt: skip

COMMANDS = {
    "horovodrun": [str(HOROVODRUN), "--gloo", "-np", "2"],
    "mpirun": ["mpirun", "-np", "2", "--map-by", "socket", "--bind-to", "socket"],
    "srun": ["bash", str(ROOT / "deploy/slurm/try_here.sh"), "srun", "--mpi=pmix", "--ntasks=2", "--cpu-bind=cores"],
}
_PROGRAMS = {"horovodrun": [], "mpirun": ["mpirun"], "srun": ["munged", "slurmctld", "slurmd", "srun"]}
_PACKAGES = {"mpirun": "openmpi-bin libopenmpi-dev", "srun": "slurm-wlm munge openmpi-bin libopenmpi-dev"}


def need(launcher: str) -> None:
    """Skips the test unless the launcher can start ranks here; under LMS3D_CI fails it."""
    if not HOROVODRUN.exists():
        pytest.skip("Horovod is not installed: make horovod")
    if reason := _missing(launcher):
        (pytest.fail if os.environ.get("LMS3D_CI") else pytest.skip)(f"{launcher}: {reason}")


def _missing(launcher: str) -> str:
    path = f"{os.environ['PATH']}:/usr/sbin:/sbin"
    if missing := [program for program in _PROGRAMS[launcher] if shutil.which(program, path=path) is None]:
        return f"{', '.join(missing)} not found: apt-get install {_PACKAGES[launcher]}"
    if launcher != "horovodrun" and not _horovod_has_mpi():
        return "Horovod was built without MPI: make horovod, with mpicxx on PATH"
    return ""


def _horovod_has_mpi() -> bool:
    from lms3d.device import examination

    features = examination.horovod_features()
    return not isinstance(features, str) and features["mpi"]


def cores_of_a_socket() -> int:
    """The cores of the smallest socket that this process may use."""
    sockets: dict[str, int] = {}
    for core in os.sched_getaffinity(0):
        file = Path(f"/sys/devices/system/cpu/cpu{core}/topology/physical_package_id")
        socket = file.read_text() if file.exists() else ""
        sockets[socket] = sockets.get(socket, 0) + 1
    return min(sockets.values())
