"""`LMS.rewrite` while other tensors lie on the device: an optimiser's slots, say, while a training's last figure is drawn."""

import tensorflow as tf

from lms3d.keras_step.callback import LMS


def test_they_count():
    other = tf.Variable(tf.zeros((16 << 20,), tf.float32))
    function = tf.function(lambda x: tf.sin(x) + 1.0, autograph=False, jit_compile=False)
    lms = LMS(memory_limit="8GiB")
    lms.rewrite(function.get_concrete_function(tf.TensorSpec((64, 64))))
    assert lms.report.predicted_peak_bytes >= other.dtype.size * other.shape.num_elements()
