"""Circumstances that decide the last bits of a training, besides its options: threads, processor, kernels, and the code itself.

A sum rounds differently over another number of threads, or in another processor's kernels. So config.json holds all of this, and
ranks that differ are refused before they train (`require_alike`). A command calls `note_code` first, so that later edits of the
code do not count.
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from lms3d import console, errors
from lms3d.device import machine, memory
from lms3d.errors import InputError
from lms3d.ranks.messages import sendable
from lms3d.ranks.world import World

ROOT = Path(__file__).resolve().parents[2]
_BESIDE = ("models", "data")
"""Packages of lms3d that lie beside its folder in a checkout."""
_OF_ONEDNN = (
    "TF_ENABLE_ONEDNN_OPTS", "ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", "ONEDNN_DEFAULT_FPMATH_MODE", "DNNL_DEFAULT_FPMATH_MODE",
    "TF_SET_ONEDNN_FPMATH_MODE",
)  # fmt: skip
_DECISIVE = (
    *_OF_ONEDNN, "NVIDIA_TF32_OVERRIDE", "XLA_FLAGS", "TF_XLA_FLAGS", "TF_DETERMINISTIC_OPS", "TF_CUDNN_DETERMINISTIC",
)  # fmt: skip
"""Environment variables by which TensorFlow, XLA, oneDNN and CUDA's libraries choose kernels or how to round."""
_ENDINGS = (".py", ".cc", ".cu", ".h", ".inc")
_INSTRUCTIONS = {
    "sse4_1": "SSE41", "avx": "AVX", "avx2": "AVX2", "avx_vnni": "AVX2_VNNI", "avx512bw": "AVX512_CORE",
    "avx512_vnni": "AVX512_CORE_VNNI", "avx512_bf16": "AVX512_CORE_BF16", "avx512_fp16": "AVX512_CORE_FP16",
    "amx_tile": "AVX512_CORE_AMX", "asimd": "NEON", "sve": "SVE",
}  # fmt: skip
"""Linux's name of an instruction set -> oneDNN's, from the worst to the best."""


@sendable
@dataclass(frozen=True, kw_only=True)
class Circumstances:
    """The circumstances of one process. A field is "" if it is unknown."""

    threads: int
    """The threads that share the work of one operation."""

    operations: int
    """The operations that run side by side."""

    processor: str
    """Its maker, family and model, such as "GenuineIntel 6 143"."""

    instructions: str
    """The processor's best instruction set, by oneDNN's name."""

    card: str
    """The model of the GPU; "" if the processor computes."""

    libraries: str
    """The libraries that compute, and Python: "tensorflow 2.21.0, ...". Python's patch version is left out: it changes no
    result."""

    variables: str
    """The environment variables that choose kernels: "NAME=value ..."."""

    boot: str
    """The identity of the machine since its last boot."""

    commit: str
    """The commit of the code, if it is a checkout."""

    sources: str
    """A hash of the code as it was when this process began. It differs at the same commit if the code was edited."""


def here() -> Circumstances:
    """The circumstances of this process. TensorFlow must run."""
    processor, instructions = of_processor()
    return Circumstances(
        threads=threads(),
        operations=_in_effect("inter"),
        processor=processor,
        instructions=instructions,
        card=memory.gpu_name() or "",
        libraries=_libraries(),
        variables=_set(_DECISIVE),
        boot=_read(Path("/proc/sys/kernel/random/boot_id")).strip(),
        commit=commit(),
        sources=sources(),
    )


def kernels_of_processor() -> str:
    """The facts by which oneDNN chooses its kernels: maker, family, model, instruction set and environment. Processors of one name,
    such as "AMD EPYC", may differ in all but the maker."""
    return " ".join([*of_processor(), _set(_OF_ONEDNN)])


def _set(names: Sequence[str]) -> str:
    """The environment variables among `names` that are set, with their values."""
    return " ".join(f"{name}={os.environ[name]}" for name in names if name in os.environ)


def _libraries() -> str:
    import keras
    import numpy as np
    import tensorflow as tf

    python = f"python {sys.version_info.major}.{sys.version_info.minor}"
    return ", ".join([*(f"{library.__name__} {library.__version__}" for library in (tf, keras, np)), python])


def threads() -> int:
    """The number of TensorFlow's threads that share the work of one operation in this process."""
    return _in_effect("intra")


def _in_effect(kind: str) -> int:
    """The number of threads in effect: what TensorFlow was configured with, else the environment variable, else all cores.
    kind: "intra" or "inter"."""
    import tensorflow as tf

    configured = int(getattr(tf.config.threading, f"get_{kind}_op_parallelism_threads")())
    variable = os.environ.get(f"TF_NUM_{kind.upper()}OP_THREADS", "")
    return configured or int(variable if variable.isdecimal() else 0) or len(os.sched_getaffinity(0))


def of_processor(table: Path = Path("/proc/cpuinfo")) -> tuple[str, str]:
    """(maker, family and model; best instruction set) of the first core in Linux's table."""
    first: dict[str, str] = dict(re.findall(r"^([\w ]+?)\s*: (.*)$", _read(table).partition("\n\n")[0], re.MULTILINE))
    names = ("vendor_id", "cpu family", "model") if "vendor_id" in first else ("CPU implementer", "CPU part")
    flags = set(first.get("flags", first.get("Features", "")).split())
    known = [name for flag, name in _INSTRUCTIONS.items() if flag in flags]
    return " ".join(first[name] for name in names if name in first) or machine.processor(table), (known or [""])[-1]


def note_code() -> None:
    """Computes `sources` and `commit` now. They keep these values for the life of the process."""
    sources()
    commit()


@cache
def sources() -> str:
    """A hash of the Python and C++ files of the packages that train, by name and content."""
    digest = hashlib.blake2b(digest_size=8)
    for path in _code():
        try:
            digest.update(os.fsencode(path.relative_to(ROOT)) + b"\0" + path.read_bytes() + b"\0")
        except OSError:  # code that this process cannot read, it cannot run
            continue
    return digest.hexdigest()


def _code() -> Iterator[Path]:
    """The files that hold code, in an order that is the same everywhere.

    Only packages and `native/src` are searched: scans may lie in `data/`, and an editor may leave links to nothing.
    """
    waiting = _packages()
    while waiting:
        folder = waiting.pop()
        if not (os.path.isfile(folder / "__init__.py") or folder.match("native/src")):
            continue
        entries = sorted(_entries(folder))
        yield from (path for path in entries if path.suffix in _ENDINGS and os.path.isfile(path))
        folders = (path for path in entries if os.path.isdir(path))
        waiting += [path for path in folders if not path.is_symlink()]  # a link may lead in a circle


def _packages() -> list[Path]:
    """The folders of the packages that train: lms3d's own, and in a checkout those beside it, to which links in lms3d lead."""
    own = ROOT / "lms3d"
    return [own, *(ROOT / name for name in _BESIDE if (own / name).is_symlink() or not (own / name).is_dir())]


def _entries(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []


@cache
def commit() -> str:
    """The commit that is checked out; "" without a checkout. Its files are read, because a rank that starts a process such as git
    may break MPI."""
    git = ROOT / ".git"  # of this folder alone: an installation may lie within somebody else's checkout
    git = ROOT / (_read(git).partition("gitdir:")[2].strip() or ".git")  # a second work tree has a file there
    head = _read(git / "HEAD").strip()
    name = head.removeprefix("ref: ")
    if name != head:
        shared = git / (_read(git / "commondir").strip() or ".")
        packed = re.search(rf"^(\w+) {re.escape(name)}$", _read(shared / "packed-refs"), re.MULTILINE)
        head = _read(shared / name).strip() or (packed[1] if packed else "")
    return head if re.fullmatch("[0-9a-f]{40,64}", head) else ""


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


# -- between ranks -----------------------------------------------------------------------------------------------------

_BEFORE = "let nothing use TensorFlow before lms3d has started it, and start all ranks alike"
_MUST_AGREE: Mapping[str, tuple[str, str]] = {
    "threads": ("uses another number of threads per operation", _BEFORE),
    "operations": ("runs another number of operations side by side", _BEFORE),
    "libraries": ("computes with other libraries", "install the same on all machines"),
    "variables": ("has other variables that choose kernels", "start all ranks with the same environment"),
    "sources": ("runs other code", "let all ranks run the same, and edit nothing while they start"),
}
"""Field -> (how two ranks differ, what to do about it)."""
_OF_PROCESSORS = ("threads", "operations")
"""The fields that do not matter if a GPU computes."""


def require_alike(world: World, *, restarted: bool = False) -> None:
    """Raises InputError on all ranks if the ranks would compute differently though they could compute alike.

    If the processors or GPUs that compute differ, a message says so, and `replicas.equalise` keeps the ranks together.
    restarted: whether this is a later world of an elastic job. Such a job continues whatever differs, since its bits cannot be
    reproduced anyway. The value of rank 0 counts.
    """
    if world.size == 1:
        return
    of_ranks = world.everyone(here())
    on_cards = any(circumstances.card for circumstances in of_ranks)
    goes_on = world.from_chief(lambda: restarted)
    for name, (how, remedy) in _MUST_AGREE.items():
        rank = _first_other(of_ranks, name)
        if rank is None or (on_cards and name in _OF_PROCESSORS):
            continue
        first, other = (_shown(getattr(of_ranks[r], name)) for r in (0, rank))
        difference = f"rank {rank} {how} than rank 0: found {other}, expected {first}"
        if not goes_on:
            raise errors.of_all_ranks(InputError(f"{difference}; {remedy}"))
        console.say(f"{difference[0].upper()}{difference[1:]}; training goes on all the same")
    _report_hardware(of_ranks, ("card",) if on_cards else ("processor", "instructions"))


def _report_hardware(of_ranks: list[Circumstances], names: tuple[str, ...]) -> None:
    for name in names:
        if (rank := _first_other(of_ranks, name)) is not None:
            first, other = (_shown(getattr(of_ranks[r], name)) for r in (0, rank))
            console.say(
                f"Rank {rank} computes on {other}, rank 0 on {first}: their results may differ in the last bits; after each epoch "
                "all ranks continue with the weights of rank 0"
            )
            return


def _first_other(of_ranks: list[Circumstances], name: str) -> int | None:
    """The first rank whose value of this field differs from rank 0's; None if all agree."""
    values = [getattr(circumstances, name) for circumstances in of_ranks]
    return next((rank for rank, value in enumerate(values) if value != values[0]), None)


def _shown(value: object) -> str:
    return str(value) or "none"
