"""What is computed on: the GPU as TensorFlow sees it, or the processor of a rehearsal.

A process that has asked TensorFlow for a GPU keeps some of its memory, so a child asks.
"""

from __future__ import annotations

import os
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lms3d.device import machine
from lms3d.errors import InputError
from lms3d.experiments.harness.child import ChildFailed, only_answer
from lms3d.experiments.harness.talk import Talk, asked
from lms3d.units import format_size

_ASK_SECONDS = 120.0
BFLOAT16_CAPABILITY = (8, 0)
"""The first compute capability with bfloat16 (CUDA C++ Programming Guide, arithmetic instructions)."""


@dataclass(frozen=True, kw_only=True)
class Card:
    """memory_bytes: what TensorFlow can have of it; None for a processor. capability: CUDA's, (0, 0) for a processor.
    processor: that of the host, with its cores. versions: of TensorFlow, CUDA and cuDNN, in words."""

    name: str
    memory_bytes: int | None = None
    capability: tuple[int, int] = (0, 0)
    driver: str = ""
    processor: str = ""
    versions: str = ""

    @property
    def half_precision(self) -> str:
        """The Keras policy of 16 bits that the card computes fast."""
        return "mixed_float16" if (0, 0) < self.capability < BFLOAT16_CAPABILITY else "mixed_bfloat16"

    def __str__(self) -> str:
        memory = "" if self.memory_bytes is None else f" ({format_size(self.memory_bytes)} for TensorFlow)"
        driver = f"driver {self.driver}" if self.driver else ""
        return "; ".join(filter(None, [f"{self.name}{memory}", driver, f"host: {self.processor}", self.versions]))


def found(*, rehearsed: bool) -> Card:
    """The card here, or the processor of a rehearsal. InputError if there is no GPU, or none for TensorFlow."""
    if not rehearsed and not machine.has_nvidia_driver():
        raise InputError("found no NVIDIA driver on this machine; run this on a machine with a GPU, or give --rehearse")
    answer = _asked(without_gpu=rehearsed)
    card = Card(**{**answer, "capability": tuple(answer["capability"])})
    if not rehearsed and card.capability == (0, 0):
        raise InputError(
            "NVIDIA's driver is here, but TensorFlow found no GPU; install the extra (pip install -e '.[gpu]') and look "
            "at what `python -m lms3d.doctor` says, or give --rehearse"
        )
    return card


def _asked(*, without_gpu: bool) -> dict[str, Any]:
    """The answer of a child. InputError with the end of its log if it does not answer."""
    with tempfile.TemporaryDirectory(prefix="lms3d-card-") as folder:
        try:
            return only_answer(
                "lms3d.experiments.accelerator.card",
                {"without_gpu": without_gpu},
                Path(folder) / "log.txt",
                _ASK_SECONDS,
            )
        except ChildFailed as failure:
            raise InputError(
                f"TensorFlow did not say what it computes on; look at what `python -m lms3d.doctor` says ({failure.detail})"
            ) from None


def _answer(*, without_gpu: bool) -> Card:
    """The card, as the child finds it."""
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
        driver=machine.nvidia_driver(),
        processor=processor,
        versions=", ".join(versions),
    )


if __name__ == "__main__":
    talk = Talk()
    talk.say(**asdict(_answer(**asked())))
