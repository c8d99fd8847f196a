"""Makes Keras compute with TensorFlow, whatever the user's keras.json says."""

from __future__ import annotations

import os
import sys


def use_tensorflow() -> None:
    """Makes Keras use TensorFlow. Call it before anything imports Keras, as TensorFlow and Horovod do: Keras reads the variable
    once."""
    if "keras" not in sys.modules:
        os.environ["KERAS_BACKEND"] = "tensorflow"
