"""Keras computes with TensorFlow here, whatever keras.json of the user's other work says."""

from __future__ import annotations

import os
import sys


def choose() -> None:
    """Call it before anything imports Keras, which looks once. TensorFlow and Horovod import it."""
    if "keras" not in sys.modules:
        os.environ["KERAS_BACKEND"] = "tensorflow"
