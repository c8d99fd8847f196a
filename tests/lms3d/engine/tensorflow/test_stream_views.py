"""Two tensors that come back for one reader, each through a view: neither waits for the other."""

from __future__ import annotations

import tensorflow as tf

from lms3d.engine.native import lanes
from lms3d.engine.tiers.stream import StreamTier
from tests.lms3d.engine.traced import batch, by_tflms, same_bits


class FastTier(StreamTier):
    name = "fast"

    @classmethod
    def make_lane(cls) -> lanes.Lane:
        return lanes.memory()


def through_views(x: tf.Tensor) -> tf.Tensor:
    a, b = tf.tanh(x), tf.sigmoid(x)
    f = tf.sin(a + b)
    for _ in range(6):
        f = tf.sin(f)
    with tf.control_dependencies([f]):
        return tf.reshape(a, (32, 64)) * tf.reshape(b, (32, 64)) + tf.reshape(f, (32, 64))


def test_two_views_of_one_reader_close_no_circle():
    tier = FastTier()
    made = by_tflms(through_views, tier)
    assert made.change.swap_ins == 2
    same_bits(made.function(batch()), made.original(batch()))
    tier.close()
