"""One rank of `experiments.scaling --probe`: times all-reduces; rank 0 writes them.

    horovodrun -np 2 python -m experiments.scalability.ranks_probe OUTPUT.json

The reductions go through Horovod, as in training: its negotiation between ranks is part of the latency.
"""

from __future__ import annotations

import statistics
import sys
import time
from pathlib import Path
from typing import Any

SIZES_BYTES = tuple(4**k for k in range(5, 13))  # 1 KiB .. 16 MiB
LARGEST_BYTES = 4 * 8_269_561  # the gradients of isensee2017
REPEATS, WARM_UP = 9, 2


def main(arguments: list[str]) -> None:
    import horovod.tensorflow as hvd
    import tensorflow as tf

    from lms3d.files import write_json

    hvd.init()
    rows = [[size, _seconds(hvd, tf, size)] for size in (*SIZES_BYTES, LARGEST_BYTES)]
    if hvd.rank() == 0:
        devices = [device.device_type for device in tf.config.list_physical_devices()]
        write_json(Path(arguments[0]), {"ranks": hvd.size(), "devices": devices, "all_reduces": rows})
    hvd.shutdown()


def _seconds(hvd: Any, tf: Any, size_bytes: int) -> float:
    """Median of some all-reduces of that many bytes; their sum is checked."""
    tensor, together, name, found = tf.ones([size_bytes // 4]), tf.ones([1]), f"probe_{size_bytes}", []
    for repeat in range(WARM_UP + REPEATS):
        hvd.allreduce(together, op=hvd.Sum, name="together")  # all ranks start at the same time
        started = time.perf_counter()
        total = hvd.allreduce(tensor, op=hvd.Sum, name=name)
        last = float(total[-1])
        if repeat >= WARM_UP:
            found.append(time.perf_counter() - started)
        if last != hvd.size():
            raise RuntimeError(f"the sum of ones over {hvd.size()} ranks is {last}")
    return statistics.median(found)


if __name__ == "__main__":
    main(sys.argv[1:])
