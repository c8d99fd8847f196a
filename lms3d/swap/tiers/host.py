"""Host memory. On a GPU the copies are TensorFlow's own, through pinned memory; on a CPU they are aliases and save nothing.

device:  t                                     z
          \\                                   /
host:      lms/swap_out/t -> lms/swap_in/t/k      (one Identity each; triggers act on the second, because the copy to
                                                   the device starts when it fires)
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import tensorflow as tf

from lms3d.swap.tensorflow import surgery
from lms3d.swap.tiers.base import Tier, TierSpeed, best_seconds
from lms3d.swap.tuning import PROBE_BYTES

_HOST = "CPU:0"


class HostTier(Tier):
    """A copy to a GPU takes its memory by itself when it begins: the tier does not take turns."""

    name = "host"
    pins_host_memory = True

    def swap_out(self, tensor: tf.Tensor, name: str) -> tf.Operation:
        return _copy(tensor, name, ()).op

    def swap_in(
        self, handle: tf.Tensor, like: tf.Tensor, name: str, triggers: Sequence[tf.Operation], *, mapped: bool = False
    ) -> tf.Tensor:
        return _copy(handle, name, triggers)

    @classmethod
    def speed(cls, device: str, directory: Path | None) -> TierSpeed:
        """Device to host, host to device. On a CPU both are the same memory: the time of a view."""
        on_cpu = device.startswith("CPU")
        with tf.device(device):
            there = tf.ones((PROBE_BYTES // 4,))
        with tf.device(_HOST):
            here = tf.identity(there)
            out_seconds = best_seconds(lambda: tf.identity(there) if on_cpu else tf.identity(there).numpy())

        def back() -> object:
            with tf.device(device):
                return tf.identity(here)[:1].numpy()

        return TierSpeed(
            swap_out_bytes_per_second=PROBE_BYTES / out_seconds,
            swap_in_bytes_per_second=PROBE_BYTES / best_seconds(back),
        )


def _copy(tensor: tf.Tensor, name: str, triggers: Sequence[tf.Operation]) -> tf.Tensor:
    with surgery.insertion(tensor.graph, _HOST, triggers):
        copy = tf.raw_ops.Identity(input=tensor, name=name)
    surgery.keep(copy.op)
    return copy
