"""Variables that are copied before a step and put back if it fails."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from lms3d.keras_step.variable_backup import VariableBackup
from tests.lms3d.pool import address


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int64", "bool"])
def test_what_was_taken_last_comes_back(dtype):
    variable, other = tf.Variable(tf.ones((3, 2), dtype)), tf.Variable(5)
    snapshot = VariableBackup([variable, other]).take()
    variable.assign(tf.zeros((3, 2), dtype))
    other.assign(6)
    snapshot.take()
    variable.assign(tf.ones((3, 2), dtype))
    other.assign(7)
    snapshot.restore()
    np.testing.assert_array_equal(variable.numpy(), np.zeros((3, 2), variable.dtype.as_numpy_dtype))
    assert other.numpy() == 6


def test_many_backups_give_no_warning(caplog):
    variable = tf.Variable(1.0)
    for _ in range(20):
        VariableBackup([variable]).take()
    assert "retracing" not in caplog.text


LARGE = (512, 1024)
MIB = 1 << 20


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int32"])
def test_large_variables_keep_their_place_and_take_no_second_one(dtype):
    """After a late failure most of them have changed, and the pool has no room for all of them twice."""
    start = [tf.cast(tf.random.stateless_uniform(LARGE, (i, 0), 0, 90, tf.int32), dtype) for i in range(8)]
    if "float" in dtype:
        start = [tf.where(s == 0, tf.cast(float("nan"), dtype), s) for s in start]  # which equals nothing
    variables = [tf.Variable(tf.identity(s)) for s in start]
    expected = [s.numpy() for s in start]
    del start
    snapshot = VariableBackup(variables).take()
    for variable in variables[1:]:
        variable.assign_add(tf.ones(LARGE, dtype))
    places = [address(v) for v in variables]
    tf.config.experimental.reset_memory_stats("CPU:0")
    before = tf.config.experimental.get_memory_info("CPU:0")["current"]
    snapshot.restore()
    peak = tf.config.experimental.get_memory_info("CPU:0")["peak"]
    assert [address(v) for v in variables] == places
    assert peak - before <= MIB // 8
    for variable, values in zip(variables, expected, strict=True):
        assert variable.numpy().tobytes() == values.tobytes()


def assign_both(a: tf.Variable, b: tf.Variable, x: tf.Tensor) -> None:
    same = x + x
    a.assign(same)
    b.assign(same)


@pytest.mark.parametrize(
    ("shared", "step"),
    [
        (False, lambda a, b, x: a.assign(b)),
        (False, assign_both),
        (False, lambda a, b, x: a.assign(x)),
        (True, lambda a, b, x: a.assign_add(x)),
    ],
    ids=["one the other", "both the same", "the batch", "shared before"],
)
def test_what_shares_memory_with_a_variable_keeps_its_values(shared, step):
    """`assign` lets a variable share the memory of a tensor, which may be that of another variable, or a batch."""
    a, b, x = tf.Variable(tf.fill(LARGE, 1.0)), tf.Variable(tf.fill(LARGE, 2.0)), tf.fill(LARGE, 5.0)
    if shared:
        a.assign(b)
    expected = [v.numpy() for v in (a, b, x)]
    snapshot = VariableBackup([a, b]).take()
    step(a, b, x)
    snapshot.restore()
    for found, values in zip((a, b, x), expected, strict=True):
        np.testing.assert_array_equal(found.numpy(), values)


def test_a_variable_that_had_a_sparse_update():
    variable = tf.Variable(tf.ones(LARGE))
    snapshot = VariableBackup([variable]).take()
    variable.scatter_update(tf.IndexedSlices(tf.zeros((1, LARGE[1])), tf.constant([3])))
    snapshot.restore()
    np.testing.assert_array_equal(variable.numpy(), np.ones(LARGE, np.float32))


IN_A_SMALL_POOL = """
import lms3d
lms3d.limit_memory(96 << 20)
import numpy as np, tensorflow as tf
from lms3d.device import cpu_pool
from lms3d.keras_step.variable_backup import VariableBackup
variables = [tf.Variable(tf.fill((5, 1 << 18), float(i))) for i in range(12)]  # 60 MiB
cpu_pool.open_crumb_holes()
snapshot = VariableBackup(variables).take()
for v in variables:
    v.assign_add(tf.ones((5, 1 << 18)))
free = cpu_pool.taken_bytes(96 << 20)
snapshot.restore()
assert [float(v[0, 0]) for v in variables] == list(map(float, range(12)))
assert cpu_pool.taken_bytes(96 << 20) == free
print("restored")
"""


def test_a_late_failure_in_a_pool_that_has_no_room_for_all_twice(commands):
    done = commands.run(["-c", IN_A_SMALL_POOL])
    assert done.stdout.strip().endswith("restored"), done.stderr[-2000:]


def test_a_variable_that_has_another_shape_now():
    variable = tf.Variable(tf.ones(LARGE), shape=tf.TensorShape((None, None)))
    snapshot = VariableBackup([variable]).take()
    variable.assign(tf.zeros((3, 2)))
    snapshot.restore()
    np.testing.assert_array_equal(variable.numpy(), np.ones(LARGE, np.float32))


def test_copies_are_copies_and_reuse_their_memory():
    """An update in place after `take` does not reach them."""
    variable = tf.Variable([1.0, 2.0])
    snapshot = VariableBackup([variable]).take()
    place = snapshot._copies[0]
    variable.assign_add([10.0, 10.0])
    np.testing.assert_array_equal(place, [1, 2])
    snapshot.take()
    assert snapshot._copies[0] is place
    np.testing.assert_array_equal(place, [11, 12])


def test_knows_its_variables():
    one, two = tf.Variable(1.0), tf.Variable(2.0)
    snapshot = VariableBackup([one, two])
    assert snapshot.is_of([one, two])
    assert not snapshot.is_of([two, one])
    assert not snapshot.is_of([one])
