"""The pool of a CPU under a hard limit, in processes of their own."""

from __future__ import annotations

import pytest

from lms3d.device import cpu_pool

POOL = """
import numpy as np, tensorflow as tf
import lms3d
from lms3d.device import cpu_pool as pool
from lms3d.device import memory
lms3d.limit_memory("200MiB")
def piece(kib): return tf.raw_ops.Empty(shape=[kib << 10], dtype=tf.uint8)
"""


@pytest.fixture
def run_python(commands):
    return lambda code: commands.run(["-c", code])


@pytest.mark.parametrize(("opened", "printed"), [(True, "fits\n"), (False, "no room\n")])
def test_a_scalar_takes_no_place_of_a_large_tensor(opened, printed, run_python):
    """The pool is full, except for one hole of the size of `large`; then scalars are allocated."""
    code = f"""
large, rest = piece(48 << 10), []
for kib in (1 << 10, 64):
    while 200 * 2**20 - tf.config.experimental.get_memory_info("CPU:0")["current"] >= 2 * kib << 10:
        rest.append(piece(kib))
if {opened}: pool.open_crumb_holes()
del large
scalars = [tf.constant(float(i)) + 1.0 for i in range(20000)]
try:
    large = piece(48 << 10)
    print("fits")
except tf.errors.ResourceExhaustedError:
    print("no room")
"""
    done = run_python(POOL + code)
    assert done.stdout == printed, done.stderr[-2000:]


@pytest.mark.parametrize("limit", ["100MiB", "200MiB"])
def test_only_crumbs_get_in_among_the_crumbs(limit, run_python):
    """Slightly larger regions would shift everything that is planned."""
    done = run_python(
        POOL.replace("200MiB", limit)
        + """
print(len(pool._crumb_holes) > 85, len(pool._crumb_fences) < 400)
pool.open_crumb_holes()
larger = [piece(65) for _ in range(100)]
crumbs = [piece(64) for _ in range(100)]
print(sum(map(pool.counts, larger)), sum(map(pool.counts, crumbs)) < 20)
"""
    )
    assert done.stdout == "True True\n100 True\n", done.stderr[-2000:]


def test_batches_that_are_loaded_at_once_do_not_count(run_python):
    """They lie in memory of numpy's, each its own."""
    done = run_python(
        POOL
        + """
import threading
from lms3d.data import stream
stream.cpu_count = lambda: 3
spec = (tf.TensorSpec((1 << 20,)), tf.TensorSpec((1 << 18,), tf.uint8))
together = threading.Barrier(stream.batches_ahead(spec))
def load(step):
    arrays = tuple(stream.aligned_empty(one.shape, one.dtype.as_numpy_dtype) for one in spec)
    for array in arrays: array[:] = step
    together.wait(20)
    return arrays
before = tf.config.experimental.get_memory_info("CPU:0")["current"]
batches = list(stream.loaded(tf.data.Dataset.range(together.parties), load, spec))
print(tf.config.experimental.get_memory_info("CPU:0")["current"] - before < 1 << 16, together.parties)
print([pool.counts(tensor) for batch in batches for tensor in batch].count(False))
print([float(floats[-1]) for floats, _ in batches])
print(pool.counts(batches[0][0] + 1), pool.counts(tf.constant(["text"])))
"""
    )
    assert done.stdout == "True 4\n8\n[0.0, 1.0, 2.0, 3.0]\nTrue True\n", done.stderr


def test_where_the_free_part_of_the_pool_begins(run_python):
    """The small region counts as full once the large one is in use."""
    done = run_python(
        POOL
        + """
pool.open_crumb_holes()
kept = [piece(4 << 10)]
print(pool.taken_bytes(memory.current_limit()) // 2**19 / 2)
kept += [piece(8 << 10) for _ in range(7)]
temporary = piece(20 << 10)
kept.append(piece(5 << 10))
del temporary
print(pool.taken_bytes(memory.current_limit()) / 2**20)
"""
    )
    assert done.stdout == "4.0\n89.0\n", done.stderr


def test_without_a_pool_all_counts():
    import tensorflow as tf

    assert cpu_pool.counts(tf.constant(1.0))
    assert cpu_pool.taken_bytes(1 << 30) is None
