"""Page-locked host memory: the tier `host` beside a GPU. Copies run on two streams of their own (`stream`)."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import tensorflow as tf

from lms3d.device import memory
from lms3d.engine.native import lanes
from lms3d.engine.native.lanes import Lane
from lms3d.engine.tensorflow import functions
from lms3d.engine.tiers.base import TierSpeed, best_seconds
from lms3d.engine.tiers.stream import StreamTier
from lms3d.engine.tuning import LINK_COPIES, LINK_PROBE_BYTES, SMALL_COPIES


class PinnedTier(StreamTier):
    """Page-locked host memory beside a GPU. StorageError if CUDA's driver is missing."""

    name = "host"
    pins_host_memory = True
    device = "GPU:0"

    @classmethod
    def make_lane(cls) -> Lane:
        return lanes.cuda()

    @classmethod
    def measured(cls, device: str, directory: Path | None) -> TierSpeed:
        """The link's own seconds each way, by the events on its streams, and the cost of a small copy besides."""
        tier = cls()
        try:
            out, back = tier._rates(device)
            return TierSpeed(
                swap_out_bytes_per_second=out, swap_in_bytes_per_second=back, node_seconds=tier._node_seconds(device)
            )
        finally:
            tier.close()

    def _rates(self, device: str) -> tuple[float, float]:
        """Bytes per second out and in of the best copy, after one that locks the pages."""
        free = memory.device_memory_bytes() - (memory.bytes_in_use("current", device) or 0)
        elements = max(1, min(LINK_PROBE_BYTES, free // 8) // 4)
        there_and_back, counted = self._chain(device, 1, elements), []
        with tf.device(device):
            tensor = tf.ones((elements,))
        for _ in range(1 + LINK_COPIES):
            there_and_back(tensor)
            self.lane.settle()
            counted.append(self.lane.take())
        warm = counted[1:]
        return max(c.out_bytes / c.out_seconds for c in warm), max(c.in_bytes / c.in_seconds for c in warm)

    def _node_seconds(self, device: str) -> float:
        """The seconds of a copy of one number among many that wait for each other: the cost of launching it."""
        with tf.device(device):
            start = tf.ones((1,))
        functions = [self._chain(device, SMALL_COPIES, 1, copied=copied) for copied in (True, False)]
        copying, adding = (best_seconds(partial(_run, function, start)) for function in functions)
        return max(0.0, copying - adding) / (2 * SMALL_COPIES)

    def _chain(self, device: str, length: int, elements: int, *, copied: bool = True) -> functions.RewrittenFunction:
        """A function of a tensor on the device: `length` times an addition and, if copied, a way out and back."""

        def run(tensor: tf.Tensor) -> tf.Tensor:
            for number in range(length):
                with tf.device(device):
                    tensor = tensor + 1.0
                if copied:
                    out = self.swap_out(tensor, f"probe/swap_out/{number}")
                    self.hold(tensor, out, f"probe/hold/{number}", ())
                    tensor = self.swap_in(out.outputs[0], tensor, f"probe/swap_in/{number}", ())
            return tensor

        return functions.make_function(functions.trace(run, tf.TensorSpec((elements,))))


def _run(function: functions.RewrittenFunction, tensor: tf.Tensor) -> None:
    """Runs a function once, to its end."""
    function(tensor).numpy()
