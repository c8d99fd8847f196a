"""What is computed on: the GPU as TensorFlow sees it, or the processor of a rehearsal.

A process that has asked TensorFlow for a GPU keeps memory of it, so that a child asks: `python -m experiments.accelerator.card`.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from lms3d.device import machine
from lms3d.errors import InputError
from lms3d.units import format_size

_ASK_SECONDS = 120.0
_LAST_LINES, _LAST_CHARACTERS = 5, 600
"""What is shown of a child that did not answer: enough for an import error, still one message."""
BFLOAT16_CAPABILITY = (8, 0)
"""The first compute capability with bfloat16 (CUDA C++ Programming Guide, arithmetic instructions)."""


@dataclass(frozen=True, kw_only=True)
class Card:
    """memory_bytes: what TensorFlow can have of it; None: of no account. capability: CUDA's, (0, 0) for a processor.
    processor: the host's, with its cores. versions: of TensorFlow, CUDA and cuDNN, in words."""

    name: str
    memory_bytes: int | None = None
    capability: tuple[int, int] = (0, 0)
    driver: str = ""
    processor: str = ""
    versions: str = ""

    @property
    def half_precision(self) -> str:
        """The Keras policy of 16 bits that it computes fast."""
        return "mixed_float16" if (0, 0) < self.capability < BFLOAT16_CAPABILITY else "mixed_bfloat16"

    def __str__(self) -> str:
        memory = "" if self.memory_bytes is None else f" ({format_size(self.memory_bytes)} for TensorFlow)"
        driver = f"driver {self.driver}" if self.driver else ""
        return "; ".join(filter(None, [f"{self.name}{memory}", driver, f"host: {self.processor}", self.versions]))


def found(*, rehearsed: bool) -> Card:
    """The card here, or the processor of a rehearsal. InputError if there is no GPU, or none for TensorFlow."""
    if not rehearsed and not machine.has_nvidia_driver():
        raise InputError("found no NVIDIA driver on this machine; run this where there is a GPU, or give --rehearse")
    answer = _asked(["--without-gpu"] if rehearsed else [])
    card = Card(**{**answer, "capability": tuple(answer["capability"]), "driver": "" if rehearsed else driver()})
    if not rehearsed and card.capability == (0, 0):
        raise InputError(
            "NVIDIA's driver is here, but TensorFlow found no GPU; install the extra (pip install -e '.[gpu]') and look "
            "at what `python -m lms3d.doctor` says, or give --rehearse"
        )
    return card


def driver(path: Path = machine.NVIDIA_DRIVER[0]) -> str:
    """Version of NVIDIA's driver, "" where unknown."""
    try:
        numbers = re.search(r"\b\d+\.\d+(\.\d+)?\b", path.read_text())
    except OSError:
        return ""
    return numbers[0] if numbers else ""


def _asked(words: Sequence[str]) -> dict:
    """The answer of a child. InputError with the end of its stderr if it does not answer."""
    command = [sys.executable, "-m", "experiments.accelerator.card", *words]
    try:
        done = subprocess.run(
            command, cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=_ASK_SECONDS
        )
    except subprocess.TimeoutExpired as late:
        raise _unanswered(f"no answer for {_ASK_SECONDS:.0f} s", late.stderr) from None
    try:
        return json.loads(done.stdout.strip().splitlines()[-1])
    except (ValueError, IndexError):
        raise _unanswered(f"exit code {done.returncode}", done.stderr) from None


def _unanswered(why: str, stderr: str | bytes | None) -> InputError:
    text = stderr.decode(errors="replace") if isinstance(stderr, bytes) else stderr or ""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    last = " / ".join(lines[-_LAST_LINES:])[-_LAST_CHARACTERS:]
    return InputError(
        f"TensorFlow did not say what it computes on ({why}); look at what `python -m lms3d.doctor` says; "
        f"its last lines: {last or 'none'}"
    )


def _answer(*, without_gpu: bool) -> Card:
    """In the child."""
    from lms3d.device import memory, startup

    startup.start_tensorflow(without_gpu=without_gpu)
    import tensorflow as tf

    from lms3d.engine.tensorflow import speeds

    processor = f"{speeds.device_name('CPU:0')}, {os.cpu_count()} cores"
    versions = [f"TensorFlow {tf.__version__}"]
    if memory.compute_device() != "GPU:0":
        return Card(name="CPU", processor=processor, versions=versions[0])
    details = tf.config.experimental.get_device_details(tf.config.list_physical_devices("GPU")[0])
    built = tf.sysconfig.get_build_info()
    versions += [
        f"{name} {built[key]}" for name, key in (("CUDA", "cuda_version"), ("cuDNN", "cudnn_version")) if key in built
    ]
    return Card(
        name=str(details.get("device_name", "GPU")),
        memory_bytes=memory.device_memory_bytes(),
        capability=tuple(details.get("compute_capability", (1, 0))),
        processor=processor,
        versions=", ".join(versions),
    )


if __name__ == "__main__":
    print(json.dumps(asdict(_answer(without_gpu="--without-gpu" in sys.argv))))
