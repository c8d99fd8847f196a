"""How every entry point starts TensorFlow: quietly, under the memory limit, with its seed and precision."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress

INTER_OP_THREADS = 4  # a swap node waits for the disk or the bus; it must not hold a thread that could compute


def start_tensorflow(
    *, memory_limit_bytes: int | None = None, seed: int | None = None, precision: str = "float32"
) -> None:
    """Imports TensorFlow and creates its devices. `precision` is a Keras policy such as "mixed_bfloat16".

    With `seed` all random numbers of Python, NumPy and Keras follow from it. TensorFlow's own remarks about drivers and
    CPU instructions are hidden unless TF_CPP_MIN_LOG_LEVEL is set.
    """
    with _quiet_native_log():
        import keras
        import tensorflow as tf

        from lms3d.memory import limit_memory

        with suppress(RuntimeError):  # where TensorFlow runs already its threads stay as they are
            tf.config.threading.set_inter_op_parallelism_threads(INTER_OP_THREADS)
        if memory_limit_bytes is not None:
            limit_memory(memory_limit_bytes)
        tf.config.list_logical_devices()
    if seed is not None:
        keras.utils.set_random_seed(seed)
    keras.mixed_precision.set_dtype_policy(precision)


@contextmanager
def _quiet_native_log() -> Iterator[None]:
    """Hides what native code writes to stderr within the block; shows it after all if the block raises.

    TensorFlow writes before its log is set up, so that its own log level alone does not silence the import.
    """
    if os.environ.get("TF_CPP_MIN_LOG_LEVEL", "3") != "3":  # "3": the user, or a parent process of ours, wants it quiet
        yield
        return
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    sys.stderr.flush()
    kept = os.dup(2)
    with tempfile.TemporaryFile() as hidden:
        os.dup2(hidden.fileno(), 2)
        try:
            yield
        except BaseException:
            os.dup2(kept, 2)
            hidden.seek(0)
            sys.stderr.write(hidden.read().decode(errors="replace"))
            raise
        finally:
            os.dup2(kept, 2)
            os.close(kept)
