"""LMS's marks in TensorFlow's profile, beside the ops: steps, and transfers of tiers that move bytes themselves.

    lms/step/train       on the thread that runs the step, from its start to its last op; step_num: as in lms_stats.csv
    lms/transfer/out     on the thread that copies, while it copies; size_bytes: the bytes copied. lms/transfer/in: the way back

The driver copies to and from a GPU, and the profiler records that by itself. Marks of other transfers are made in C++
(`native/src/ops.cc`). Without a profiler a mark costs half a microsecond.
"""

from __future__ import annotations

import tensorflow as tf

from lms3d.engine.plan import SCOPE

STEP = f"{SCOPE}step/"


def step(kind: str, number: int) -> tf.profiler.experimental.Trace:
    """The mark around a step ("train", "test", "predict"). `_r` makes it a step of TensorBoard's, too."""
    return tf.profiler.experimental.Trace(f"{STEP}{kind}", step_num=number, _r=1)
