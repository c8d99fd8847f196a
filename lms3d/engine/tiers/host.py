"""Host memory beside a processor: the copies are aliases and save nothing. With two logical devices, of which one plays the GPU,
TensorFlow copies between them. Beside a real GPU: see `pinned`.

device:  t                                     z
          \\                                   /
host:      lms/swap_out/t -> lms/swap_in/t/k      (one Identity each; triggers act on the second, because the copy to
                                                   the device starts when it fires)
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import tensorflow as tf

from lms3d.engine.tensorflow import surgery
from lms3d.engine.tiers.base import Tier, TierSpeed, best_seconds
from lms3d.engine.tuning import PROBE_BYTES, SMALL_COPIES

_HOST = "CPU:0"


class HostTier(Tier):
    """Host memory. If two logical devices of a processor stand for a GPU and its host, TensorFlow copies by itself."""

    name = "host"

    @classmethod
    def beside(cls, device: str) -> type[Tier]:
        if device.startswith("CPU"):
            return cls
        from lms3d.engine.tiers.pinned import PinnedTier

        return PinnedTier

    def swap_out(self, tensor: tf.Tensor, name: str) -> tf.Operation:
        return _copy(tensor, name, ()).op

    def swap_in(
        self, handle: tf.Tensor, like: tf.Tensor, name: str, triggers: Sequence[tf.Operation], *, mapped: bool = False
    ) -> tf.Tensor:
        return _copy(handle, name, triggers)

    @classmethod
    def speed(cls, device: str, directory: Path | None) -> TierSpeed:
        """The speed of a view, since both are the same memory."""
        with tf.device(device):
            there = tf.ones((PROBE_BYTES // 4,))
        with tf.device(_HOST):
            here = tf.identity(there)
            out_seconds = best_seconds(lambda: tf.identity(there))

        def back() -> object:
            with tf.device(device):
                return tf.identity(here)[:1].numpy()

        return TierSpeed(
            swap_out_bytes_per_second=PROBE_BYTES / out_seconds,
            swap_in_bytes_per_second=PROBE_BYTES / best_seconds(back),
            node_seconds=cls._node_seconds(device),
        )

    @classmethod
    def _node_seconds(cls, device: str) -> float:
        """The seconds of one copy of a few bytes among many: the cost of launching it, since the link has next to nothing to
        carry."""
        tier = cls()

        @tf.function(autograph=False)
        def there_and_back(tensor: tf.Tensor) -> tf.Tensor:
            for number in range(SMALL_COPIES):
                with tf.device(device):
                    tensor = tensor + 1.0
                handle = tier.swap_out(tensor, f"probe/swap_out/{number}").outputs[0]
                tensor = tier.swap_in(handle, tensor, f"probe/swap_in/{number}", ())
            return tensor

        @tf.function(autograph=False)
        def there(tensor: tf.Tensor) -> tf.Tensor:
            with tf.device(device):
                for _ in range(SMALL_COPIES):
                    tensor = tensor + 1.0
                return tensor

        start = tf.ones((1,))
        copying = best_seconds(lambda: there_and_back(start).numpy())  # the first run traces and places
        adding = best_seconds(lambda: there(start).numpy())
        return max(0.0, copying - adding) / (2 * SMALL_COPIES)


def _copy(tensor: tf.Tensor, name: str, triggers: Sequence[tf.Operation]) -> tf.Tensor:
    with surgery.insertion(tensor.graph, _HOST, triggers):
        copy = tf.raw_ops.Identity(input=tensor, name=name)
    surgery.keep(copy.op)
    return copy
