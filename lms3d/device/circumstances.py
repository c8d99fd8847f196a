"""What the last bits of a training depend on besides its options: threads, processor, kernels, and the code itself.

A sum over several threads, or of another processor's kernels, rounds otherwise. So all of that is kept in config.json, and ranks
that are not alike are refused before they train (`require_alike`).
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from lms3d import console, errors
from lms3d.device import machine, memory
from lms3d.errors import InputError
from lms3d.ranks.messages import sendable
from lms3d.ranks.world import World

ROOT = Path(__file__).resolve().parents[2]
_PACKAGES = ("lms3d", "models", "data")
_DECISIVE = (
    "TF_ENABLE_ONEDNN_OPTS", "ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", "ONEDNN_DEFAULT_FPMATH_MODE", "DNNL_DEFAULT_FPMATH_MODE",
    "TF_SET_ONEDNN_FPMATH_MODE", "NVIDIA_TF32_OVERRIDE",
)  # fmt: skip
"""Variables by which oneDNN and CUDA's libraries choose kernels, or how they round."""
_INSTRUCTIONS = {
    "sse4_1": "SSE41", "avx": "AVX", "avx2": "AVX2", "avx_vnni": "AVX2_VNNI", "avx512bw": "AVX512_CORE",
    "avx512_vnni": "AVX512_CORE_VNNI", "avx512_bf16": "AVX512_CORE_BF16", "avx512_fp16": "AVX512_CORE_FP16",
    "amx_tile": "AVX512_CORE_AMX", "asimd": "NEON", "sve": "SVE",
}  # fmt: skip
"""Linux's name -> oneDNN's, as far as that has one; the better ones later."""


@sendable
@dataclass(frozen=True, kw_only=True)
class Circumstances:
    """Of one process. A field is "" if it is unknown."""

    threads: int
    """That share the work of one operation."""

    operations: int
    """That run side by side."""

    processor: str
    """Maker, family and model, such as "GenuineIntel 6 143"."""

    instructions: str
    """The best set of instructions that it has, as oneDNN calls it."""

    variables: str
    """Of the environment, by which libraries choose kernels: "NAME=value ..."."""

    boot: str
    """Identity of the machine since it was started."""

    commit: str
    """Of the code, if it is a checkout."""

    sources: str
    """A hash of the code as it was when this process began: another one at the same commit has been edited."""


def here() -> Circumstances:
    """Of this process, in which TensorFlow runs."""
    processor, instructions = of_processor()
    return Circumstances(
        threads=threads(),
        operations=_in_effect("inter"),
        processor=processor,
        instructions=instructions,
        variables=" ".join(f"{name}={os.environ[name]}" for name in _DECISIVE if name in os.environ),
        boot=_read(Path("/proc/sys/kernel/random/boot_id")).strip(),
        commit=commit(),
        sources=sources(),
    )


def threads() -> int:
    """Threads of TensorFlow that share the work of one operation in this process, as TensorFlow has them."""
    return _in_effect("intra")


def _in_effect(kind: str) -> int:
    """kind: "intra" or "inter". TensorFlow tells what it was asked for; else it asks the environment, and then takes all cores."""
    import tensorflow as tf

    asked = int(getattr(tf.config.threading, f"get_{kind}_op_parallelism_threads")())
    named = os.environ.get(f"TF_NUM_{kind.upper()}OP_THREADS", "")
    return asked or int(named if named.isdecimal() else 0) or len(os.sched_getaffinity(0))


def of_processor(table: Path = Path("/proc/cpuinfo")) -> tuple[str, str]:
    """(maker, family and model; best instructions), of the first core in Linux's table."""
    first: dict[str, str] = dict(re.findall(r"^([\w ]+?)\s*: (.*)$", _read(table).partition("\n\n")[0], re.MULTILINE))
    names = ("vendor_id", "cpu family", "model") if "vendor_id" in first else ("CPU implementer", "CPU part")
    flags = set(first.get("flags", first.get("Features", "")).split())
    known = [name for flag, name in _INSTRUCTIONS.items() if flag in flags]
    return " ".join(first[name] for name in names if name in first) or machine.processor(table), (known or [""])[-1]


@cache
def sources() -> str:
    """A hash of the Python and C++ files of the packages that train, by name and content."""
    digest = hashlib.blake2b(platform.python_version().encode(), digest_size=8)
    for path in sorted(path for package in _PACKAGES for path in (ROOT / package).rglob("*")):
        if path.suffix in (".py", ".cc", ".cu", ".h"):
            digest.update(str(path.relative_to(ROOT)).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


@cache
def commit() -> str:
    """The commit that is checked out, by git; "" without a checkout or without git."""
    if not (ROOT / ".git").exists():  # an installation may lie within somebody else's
        return ""
    try:
        told = subprocess.run(["git", "-C", str(ROOT), "rev-parse", "HEAD"], capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return told.stdout.strip() if told.returncode == 0 else ""


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


# -- between ranks -----------------------------------------------------------------------------------------------------

_MUST_AGREE: Mapping[str, tuple[str, str]] = {
    "threads": ("threads in an operation", "let nothing use TensorFlow before lms3d has started it, and start all ranks alike"),
    "operations": ("operations side by side", "let nothing use TensorFlow before lms3d has started it, and start all ranks alike"),
    "variables": ("variables that choose kernels", "start all ranks with the same environment"),
    "sources": ("code", "let all ranks run the same, and edit nothing while they start"),
}  # fmt: skip
"""Field -> what it is, and what to do where ranks differ."""
_MAY_DIFFER = ("processor", "instructions")


def require_alike(world: World) -> None:
    """InputError, on all ranks, where these would compute otherwise though they could compute alike.

    Processors that are not alike are told of, if it is they who compute: `replicas.equalise` then keeps the ranks together.
    """
    if world.size == 1:
        return
    of_ranks = world.everyone(here())
    for name, (what, remedy) in _MUST_AGREE.items():
        if (rank := _first_other(of_ranks, name)) is not None:
            first, other = (_shown(getattr(of_ranks[one], name)) for one in (0, rank))
            raise errors.of_all_ranks(
                InputError(f"rank {rank} has other {what} than rank 0: found {other}, expected {first}; {remedy}")
            )
    for name in () if memory.gpu_name() else _MAY_DIFFER:
        if (rank := _first_other(of_ranks, name)) is not None:
            first, other = (_shown(getattr(of_ranks[one], name)) for one in (0, rank))
            console.say(
                f"Rank {rank} computes on {other}, rank 0 on {first}: they round otherwise, and go on with the weights of rank 0 "
                "after each epoch"
            )
            return


def _first_other(of_ranks: list[Circumstances], name: str) -> int | None:
    return next((rank for rank, one in enumerate(of_ranks) if getattr(one, name) != getattr(of_ranks[0], name)), None)


def _shown(value: object) -> str:
    return str(value) or "none"
