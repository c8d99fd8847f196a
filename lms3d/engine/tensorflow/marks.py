"""What LMS writes into TensorFlow's profile, beside the ops: steps, and transfers of tiers that move bytes themselves.

    lms/step/train       on the thread that runs the step, from its start to its last op; step_num: as in lms_stats.csv
    lms/transfer/out     on the thread that copies, while it does; size_bytes: what it copied. lms/transfer/in: the way back

A copy to or from a GPU is the driver's, which the profiler records by itself. Marks of transfers are made in C++
(`native/src/ops.cc`). Without a profiler a mark costs half a microsecond.
"""

from __future__ import annotations

import tensorflow as tf

from lms3d.engine.plan import SCOPE

STEP = f"{SCOPE}step/"


def step(kind: str, number: int) -> tf.profiler.experimental.Trace:
    """Around a step ("train", "test", "predict"). `_r` makes it a step of TensorBoard's, too."""
    return tf.profiler.experimental.Trace(f"{STEP}{kind}", step_num=number, _r=1)
