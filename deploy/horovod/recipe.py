"""What Horovod is built with on this machine, which decides the name of its wheel in the cache.

| feature | built when                                       | forced by                     | off by                    |
|---------|--------------------------------------------------|-------------------------------|---------------------------|
| gloo    | always                                           |                               |                           |
| mpi     | `mpicxx` and `mpirun` are on PATH                | `HOROVOD_WITH_MPI=1`          | `HOROVOD_WITHOUT_MPI=1`   |
| nccl    | `nvcc` is found, and NCCL's header and library   | `HOROVOD_GPU_OPERATIONS=NCCL` | `HOROVOD_GPU_OPERATIONS=` |

CUDA is looked for in `$HOROVOD_CUDA_HOME`, `$CUDA_HOME`, `$CONDA_PREFIX`, /usr/local/cuda and above `nvcc`; NCCL in
`$HOROVOD_NCCL_HOME`, `$CONDA_PREFIX`, CUDA's folder, /usr, and the package nvidia-nccl-cu12 that `tensorflow[and-cuda]` brings.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import platform
import shutil
import site
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from .source import PATCHES, VERSION, BuildError

Which = Callable[[str], str | None]
_ALWAYS = {
    "HOROVOD_WITH_TENSORFLOW": "1", "HOROVOD_WITHOUT_PYTORCH": "1", "HOROVOD_WITHOUT_MXNET": "1", "HOROVOD_WITH_GLOO": "1",
    "CMAKE_POLICY_VERSION_MINIMUM": "3.5",  # CMake 4 refuses the age that Gloo names
}  # fmt: skip
_PACKAGES = ("tensorflow", "setuptools", "cloudpickle", "packaging", "psutil", "PyYAML")
_CPU_FLAGS = ("avx", "f16c", "fma")  # Horovod's build uses them if the building machine has them


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """The features of a build and the environment variables that ask Horovod's own build for them."""

    features: tuple[str, ...]
    """Of "gloo", "mpi", "nccl"."""

    settings: dict[str, str]
    """Environment variables for the build, beside the caller's."""

    linked: tuple[str, ...] = ()
    """What is linked from outside of the wheel: with another MPI it must be built anew."""

    reasons: dict[str, str] = field(default_factory=dict)
    """Why a feature is left out."""

    def __str__(self) -> str:
        without = "".join(f"; no {name}: {reason}" for name, reason in self.reasons.items())
        return " + ".join(self.features) + without

    def key(self) -> str:
        """Name of the wheel's folder: equal where the same wheel serves, different where one must be built anew."""
        libc = "-".join(filter(None, platform.libc_ver())) or "libc"
        parts = (*sorted(self.settings.items()), *self.linked, *PATCHES, *_cpu_flags())
        digest = hashlib.sha256(repr(parts).encode()).hexdigest()[:8]
        python, tensorflow = sys.implementation.cache_tag, importlib.metadata.version("tensorflow")
        features = "-".join(self.features)
        return f"horovod-{VERSION}-{python}-tensorflow-{tensorflow}-{features}-{platform.machine()}-{libc}-{digest}"


def detect(environment: Mapping[str, str], which: Which = shutil.which) -> Recipe:
    """The features that this machine can have. BuildError if one that the user asked for is not to be had."""
    features, settings, linked, reasons = ["gloo"], dict(_ALWAYS), [], {}
    without_mpi, mpicxx = _mpi(environment, which)
    if without_mpi:
        reasons["mpi"] = without_mpi
        settings["HOROVOD_WITHOUT_MPI"] = "1"
    else:
        features.append("mpi")
        settings["HOROVOD_WITH_MPI"] = "1"
        linked.append(mpicxx)
    without_nccl, homes = _nccl(environment, which)
    if without_nccl:
        reasons["nccl"] = without_nccl
    else:
        features.append("nccl")
        settings |= homes
    return Recipe(features=tuple(features), settings=settings, linked=tuple(linked), reasons=reasons)


def require_tools(environment: Mapping[str, str], which: Which = shutil.which) -> None:
    """BuildError, naming all that is missing, unless Horovod can be compiled here."""
    compiler = (environment.get("CXX") or "g++").split()[0]
    missing = [tool for tool in (environment.get("HOROVOD_CMAKE") or "cmake", compiler, "make") if not which(tool)]
    if missing:
        raise BuildError(
            f"{' and '.join(missing)} not found on PATH; expected CMake 3.13 or newer, g++ 8 or newer and make: install "
            "them with the system's packages, or without root from conda-forge (cmake cxx-compiler make)"
        )
    require_packages()


def require_packages() -> None:
    """BuildError unless the Python packages are there that Horovod needs to be built and to run."""
    missing = [name for name in _PACKAGES if not _installed(name)]
    if missing:
        raise BuildError(
            f"Python package(s) {', '.join(missing)} not found in {sys.prefix}; install them first: "
            "make venv, or python -m pip install -e '.[horovod]'"
        )


def _mpi(environment: Mapping[str, str], which: Which) -> tuple[str, str]:
    """(why not, "") or ("", path of MPI's compiler)."""
    if environment.get("HOROVOD_WITHOUT_MPI") == "1":
        return "HOROVOD_WITHOUT_MPI=1", ""
    missing = [tool for tool in ("mpicxx", "mpirun") if not which(tool)]
    if not missing:
        return "", str(which("mpicxx"))
    if environment.get("HOROVOD_WITH_MPI") == "1":
        raise BuildError(f"HOROVOD_WITH_MPI=1, but {' and '.join(missing)} not found on PATH; load or install MPI")
    return f"{' and '.join(missing)} not found", ""


def _nccl(environment: Mapping[str, str], which: Which) -> tuple[str, dict[str, str]]:
    """(why not, {}) or ("", settings)."""
    asked = environment.get("HOROVOD_GPU_OPERATIONS")
    if asked not in (None, "", "NCCL"):
        raise BuildError(f"HOROVOD_GPU_OPERATIONS={asked}; expected NCCL, or nothing for no GPU operations")
    if asked == "":
        return "HOROVOD_GPU_OPERATIONS is empty", {}
    cuda = next((home for home in _cuda_homes(environment, which) if (home / "bin" / "nvcc").is_file()), None)
    nccl = next((home for home in _nccl_homes(environment, cuda) if _holds_nccl(home)), None)
    if cuda and nccl:
        homes = {"HOROVOD_CUDA_HOME": str(cuda), "HOROVOD_NCCL_HOME": str(nccl)}
        # Shared: the process has one NCCL, which TensorFlow has loaded, too.
        return "", {"HOROVOD_GPU_OPERATIONS": "NCCL", "HOROVOD_NCCL_LINK": "shared", **homes}
    reason = "nvcc not found" if not cuda else "NCCL (include/nccl.h, lib/libnccl.so*) not found"
    if asked:
        raise BuildError(f"HOROVOD_GPU_OPERATIONS=NCCL, but {reason}; set HOROVOD_CUDA_HOME and HOROVOD_NCCL_HOME")
    return reason, {}


def _cuda_homes(environment: Mapping[str, str], which: Which) -> Iterator[Path]:
    for name in ("HOROVOD_CUDA_HOME", "CUDA_HOME", "CONDA_PREFIX"):
        if environment.get(name):
            yield Path(environment[name])
    yield Path("/usr/local/cuda")
    if nvcc := which("nvcc"):
        yield Path(nvcc).resolve().parent.parent


def _nccl_homes(environment: Mapping[str, str], cuda: Path | None) -> Iterator[Path]:
    for name in ("HOROVOD_NCCL_HOME", "CONDA_PREFIX"):
        if environment.get(name):
            yield Path(environment[name])
    yield from [cuda] if cuda else []
    yield Path("/usr")
    yield from (Path(folder) / "nvidia" / "nccl" for folder in site.getsitepackages())


def _holds_nccl(home: Path) -> bool:
    return (home / "include" / "nccl.h").is_file() and bool(nccl_libraries(home))


def nccl_libraries(home: Path) -> list[Path]:
    """NCCL's shared libraries below `home`, those for the linker (libnccl.so) first."""
    return sorted(path for place in ("lib", "lib64", "lib/*-linux-gnu") for path in home.glob(f"{place}/libnccl.so*"))


def _cpu_flags() -> list[str]:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return []
    flags = next((line.split(":", 1)[1].split() for line in lines if line.startswith("flags")), [])
    return [flag for flag in _CPU_FLAGS if flag in flags]


def _installed(name: str) -> bool:
    try:
        return bool(importlib.metadata.version(name))
    except importlib.metadata.PackageNotFoundError:
        return False
