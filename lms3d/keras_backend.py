"""Makes Keras compute with TensorFlow, whatever the user's keras.json says."""

from __future__ import annotations

import os
import sys


def choose() -> None:
    """Chooses TensorFlow. Call it before the import of Keras, which reads the variable once; TensorFlow and Horovod import
    Keras."""
    if "keras" not in sys.modules:
        os.environ["KERAS_BACKEND"] = "tensorflow"
