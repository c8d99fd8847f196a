"""Measures what the convolutions of a step take within each limit of cuDNN's workspace, each limit in a process of its own.

The child: `python -m lms3d.device.workspace_probe SIDE` prints the seconds as JSON.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from lms3d.device.workspace import VARIABLE
from lms3d.errors import InputError

LIMITS_MIB = (64, 128, 256, 512, 1024, 2048, 4096)
SIDE, LEVELS, CHANNELS = 192, 4, 16
"""Of the finest level; those below have half the side and twice the channels, as isensee2017 has."""

_RUNS, _PATIENCE_SECONDS = 5, 300


def measure(
    limits_mib: Sequence[int] = LIMITS_MIB, *, side: int = SIDE, told: Callable[[int, float], object] | None = None
) -> dict[int, float]:
    """Limit in MiB -> seconds. InputError, with the child's last line, if one fails. told: hears each as it comes."""
    found = {}
    for limit in limits_mib:
        found[limit] = _in_child(limit, side)
        if told is not None:
            told(limit, found[limit])
    return found


def _in_child(limit_mib: int, side: int) -> float:
    command = [sys.executable, "-m", "lms3d.device.workspace_probe", str(side)]
    environment = os.environ | {VARIABLE: str(limit_mib)}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE_SECONDS, env=environment)
        return float(json.loads(done.stdout.splitlines()[-1])["seconds"])
    except subprocess.TimeoutExpired:
        raise InputError(
            f"the convolutions at {side}^3 within {limit_mib} MiB took more than {_PATIENCE_SECONDS} s; end what else is on the GPU"
        ) from None
    except (LookupError, ValueError):
        said = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise InputError(
            f"the convolutions at {side}^3 within {limit_mib} MiB failed ({said[:300]}); end what else is on the GPU, and try again"
        ) from None


def step_seconds(side: int) -> float:
    """Of a 3D convolution and both of its gradients at each level, one after the other: the median of some runs."""
    import tensorflow as tf

    tf.config.optimizer.set_experimental_options({"layout_optimizer": False})  # as in our steps
    convolutions = tf.function(_convolutions(side), autograph=False, jit_compile=False)
    runs = []
    for _ in range(1 + _RUNS):
        begin = time.perf_counter()
        convolutions().numpy()
        runs.append(time.perf_counter() - begin)
    return statistics.median(runs[1:])  # the first one tries cuDNN's algorithms


def _convolutions(side: int) -> Callable[[], Any]:
    import tensorflow as tf

    shapes = [(side >> level, CHANNELS << level) for level in range(LEVELS)]
    images = [tf.Variable(tf.random.stateless_normal((1, n, n, n, c), (0, c))) for n, c in shapes]
    kernels = [tf.Variable(tf.random.stateless_normal((3, 3, 3, c, c), (1, c))) for _, c in shapes]

    def run() -> tf.Tensor:
        with tf.GradientTape() as tape:
            sums = [tf.reduce_sum(tf.nn.conv3d(x, w, [1] * 5, "SAME")) for x, w in zip(images, kernels, strict=True)]
        gradients = tape.gradient(sums, [*images, *kernels])
        return tf.add_n([g[(0,) * g.shape.rank] for g in gradients])

    return run


if __name__ == "__main__":
    print(json.dumps({"seconds": step_seconds(int(sys.argv[1]))}))
