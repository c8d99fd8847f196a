"""The same function gives the same step in each process: `store` recognises it, and plans do not depend on luck."""

from __future__ import annotations

import tensorflow as tf

from lms3d.swap import surgery
from lms3d.swap.capture import capture
from tests.swap.traced import SPEC


def test_control_inputs_have_one_order():
    def late(x: tf.Tensor) -> tf.Tensor:
        first = [tf.sin(x, name=name) for name in ("c", "a", "d", "b")]
        with tf.control_dependencies(first):
            return tf.identity(x, name="last")

    assert capture(surgery.trace(late, SPEC)).by_name["last"].control_inputs == ("a", "b", "c", "d")
