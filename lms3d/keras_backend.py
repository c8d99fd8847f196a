"""Makes Keras compute with TensorFlow, whatever the user's keras.json says, and start without packages that it can do without."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

OPTIONAL = ("matplotlib", "pandas", "sklearn")
"""Keras imports them if they are there, for galleries of images, for `fit` with data frames and for scikit-learn's interface. No
command of lms3d asks Keras for any of that."""


def use_tensorflow() -> None:
    """Makes Keras use TensorFlow. Call it before anything imports Keras, as TensorFlow and Horovod do: Keras reads the variable
    once."""
    if "keras" not in sys.modules:
        os.environ["KERAS_BACKEND"] = "tensorflow"


@contextmanager
def without_optional_packages() -> Iterator[None]:
    """Keras, if it is first imported within the block, does without `OPTIONAL`. What is imported later finds them.

    They take 1.2 s of the 3.9 s of processor time in which a command starts TensorFlow and Keras (2 busy cores, TensorFlow 2.21,
    `time.process_time` around `start_tensorflow`).
    """
    absent = [name for name in OPTIONAL if name not in sys.modules]
    sys.modules.update(dict.fromkeys(absent))  # type: ignore[arg-type]
    try:
        yield
    finally:
        for name in absent:
            sys.modules.pop(name, None)
