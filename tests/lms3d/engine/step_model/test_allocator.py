"""TensorFlow's allocator: best fit, when it splits, how it merges."""

from __future__ import annotations

import pytest

from lms3d.device.pool_layout import GPU_WASTE_BYTES, MOST_WASTE_BYTES, small_region_bytes
from lms3d.engine.step_model.allocator import GPU_REGIONS, LIMITED_GPU_REGIONS, Allocator
from tests.lms3d.engine.toy_graphs import MIB

KIB = 1024


def holes(*sizes: int) -> Allocator:
    """A pool whose free chunks have these sizes, in this order of addresses, and nothing else is free."""
    pool = Allocator(MIB)
    places = []
    for size in sizes:
        places.append(pool.allocate(size))
        pool.allocate(256)
    pool.allocate(MIB - pool.in_use)
    for address in places:
        pool.release(address)
    return pool


def test_rounds_up():
    pool = Allocator(1024)
    assert [pool.allocate(n) for n in (1, 256, 257, 1)] == [0, 256, 512, None]
    assert pool.in_use == pool.peak == 1024


def test_best_fit_and_lowest_address_among_equals():
    pool = holes(8 * KIB, 2 * KIB, 4 * KIB, 2 * KIB)
    assert pool.allocate(2 * KIB) == 8 * KIB + 256
    assert pool.allocate(2 * KIB) == 14 * KIB + 3 * 256
    assert pool.allocate(3 * KIB) == 10 * KIB + 2 * 256


@pytest.mark.parametrize(
    ("hole", "wanted", "taken"),
    [
        (8 * KIB, 4 * KIB, 4 * KIB),  # at least twice: split
        (8 * KIB, 4 * KIB + 256, 8 * KIB),  # else handed out whole
        (MOST_WASTE_BYTES * 3, MOST_WASTE_BYTES * 2, MOST_WASTE_BYTES * 2),  # or 128 MiB left over
        (MOST_WASTE_BYTES * 3 - 256, MOST_WASTE_BYTES * 2, MOST_WASTE_BYTES * 3 - 256),
    ],
)
def test_when_a_chunk_is_split(hole, wanted, taken):
    pool = Allocator(hole)
    pool.allocate(wanted)
    assert pool.in_use == taken
    assert (pool.allocate(256) is None) == (taken == hole)


def test_merges_with_both_neighbours():
    pool = Allocator(4 * KIB)
    places = [pool.allocate(KIB) for _ in range(4)]
    pool.release(places[0])
    pool.release(places[2])
    assert pool.allocate(2 * KIB) is None  # as many bytes, but in two pieces
    pool.release(places[1])
    assert pool.allocate(3 * KIB) == 0


def test_all_freed_is_one_piece_again():
    pool = Allocator(64 * KIB)
    places = [pool.allocate(n * KIB) for n in (3, 1, 7, 2, 5)]
    for i in (1, 4, 0, 2, 3):
        pool.release(places[i])
    assert (pool.in_use, pool.peak) == (0, 18 * KIB)
    assert pool.free == [(64 * KIB, 0)]


@pytest.mark.parametrize(
    ("limit", "small"), [(64, 0), (127, 0), (128, 8), (255, 8), (256, 16), (2048, 128), (8000, 128)]
)
def test_small_region(limit, small):
    assert small_region_bytes(limit * MIB) == small * MIB


def test_a_limited_gpu_wastes_little_of_a_piece():
    """On a card without a limit a piece is handed out whole if it is less than twice as large and 128 MiB larger."""
    for begin, left in ((GPU_REGIONS.begin, 0), (LIMITED_GPU_REGIONS.begin, 40 * MIB)):
        allocator = begin(0, 100 * MIB)
        allocator.allocate(60 * MIB)
        assert sum(size for size, _ in allocator.free) == left


def test_tensorflow_is_told_so(commands):
    """TensorFlow has no public name for it: the options of its context are asked."""
    code = """
from lms3d.device import gpu_pool
gpu_pool.split_closely(4 << 30)
import tensorflow as tf
from tensorflow.python.eager import context
tf.config.threading.set_inter_op_parallelism_threads(3)
config = context.context().config
print(config.gpu_options.experimental.internal_fragmentation_fraction * (4 << 30), config.inter_op_parallelism_threads)
print(float(tf.reduce_sum(tf.ones(3))))
"""
    assert commands.run(["-c", code]).stdout.splitlines() == [f"{GPU_WASTE_BYTES}.0 3", "3.0"]
