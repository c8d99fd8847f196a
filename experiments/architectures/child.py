"""`python -m experiments.architectures.child NETWORK SIDE BATCH COMPILE LIMIT STEPS`: a step for each line that it reads.

It tells the seconds and bytes of each in one line of JSON, and at last what was compiled.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import keras
import numpy as np

import lms3d
from experiments.architectures.networks import NETWORKS
from lms3d.device import memory


class Turns(keras.callbacks.Callback):
    """Waits for a line before each step, and tells what the step took. LMS counts the bytes of each step anew."""

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        sys.stdin.readline()
        self.started = time.perf_counter()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        loss, seconds = float(logs["loss"]), time.perf_counter() - self.started
        peak = memory.bytes_in_use("peak", memory.compute_device())
        tell({"seconds": seconds, "peak_bytes": peak, "loss": loss})


def tell(found: dict[str, Any]) -> None:
    print(json.dumps(found), flush=True)


def main(name: str, side: int, batch: int, compile_parts: str, limit: str, steps: int) -> None:
    lms3d.limit_memory(limit)  # else TensorFlow counts no bytes on a CPU
    keras.utils.set_random_seed(0)
    model = NETWORKS[name].build(side)
    model.compile(keras.optimizers.Adam(1e-4), loss="mse", jit_compile=False)
    random = np.random.default_rng(0)
    x, y = (
        random.normal(size=(batch, *shape[1:])).astype(np.float32) for shape in (model.input_shape, model.output_shape)
    )
    lms = lms3d.LMS(compile=compile_parts, adapt=False)
    tell({"parameters": model.count_params()})
    model.fit(x=_repeated(x, y), steps_per_epoch=steps, verbose=0, callbacks=[Turns(), lms])
    report = lms.report
    assert report is not None, "it has trained"
    ops = sum(one.ops for one in report.compiled)
    tell({"programs": len(report.compiled), "ops": ops, "predicted_peak_bytes": report.predicted_peak_bytes})


def _repeated(x: np.ndarray, y: np.ndarray) -> Any:
    while True:
        yield x, y


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], sys.argv[5], int(sys.argv[6]))
