"""Measures the seconds of a step's convolutions within each limit of cuDNN's workspace, each limit in a process of its own.

They run as in a step of LMS: filter gradients in pieces that fit the limit (`passes.pieces`).
The child: `python -m lms3d.engine.passes.workspace_probe SIDE` prints the seconds as JSON.
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
"""The side and the channels of the finest level. Each level below has half the side and twice the channels, as in
isensee2017."""

_RUNS, _PATIENCE_SECONDS = 5, 300


def measure(
    limits_mib: Sequence[int] = LIMITS_MIB, *, side: int = SIDE, report: Callable[[int, float], object] | None = None
) -> dict[int, float]:
    """Limit in MiB -> seconds. report: called with both after each limit. InputError, with the child's last line, if a child
    fails."""
    measured = {}
    for limit in limits_mib:
        measured[limit] = _in_child(limit, side)
        if report is not None:
            report(limit, measured[limit])
    return measured


def _in_child(limit_mib: int, side: int) -> float:
    command = [sys.executable, "-m", "lms3d.engine.passes.workspace_probe", str(side)]
    environment = os.environ | {VARIABLE: str(limit_mib)}
    try:
        child = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE_SECONDS, env=environment)
        return float(json.loads(child.stdout.splitlines()[-1])["seconds"])
    except subprocess.TimeoutExpired:
        raise InputError(
            f"the convolutions at {side}^3 within {limit_mib} MiB took more than {_PATIENCE_SECONDS} s; end what else is on the GPU"
        ) from None
    except (LookupError, ValueError):
        reason = (child.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise InputError(
            f"the convolutions at {side}^3 within {limit_mib} MiB failed ({reason[:300]}); end what else is on the GPU, "
            "and try again"
        ) from None


def step_seconds(side: int) -> float:
    """The median seconds of some runs of a 3D convolution and both of its gradients at each level, one after the other."""
    from lms3d.device import memory, workspace
    from lms3d.engine.passes import manager
    from lms3d.engine.passes.base import Target
    from lms3d.engine.passes.pieces import CutFilterGradients
    from lms3d.engine.tensorflow import functions

    run = _convolutions(side)  # it holds the variables
    traced = functions.trace(run)
    manager.normalise(traced, Target(compute_device=memory.compute_device()))
    manager.run(traced, [CutFilterGradients(workspace.in_force())])
    convolutions = functions.make_function(traced)
    runs = []
    for _ in range(1 + _RUNS):
        begin = time.perf_counter()
        convolutions().numpy()
        runs.append(time.perf_counter() - begin)
    return statistics.median(runs[1:])  # the first run tries cuDNN's algorithms


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
