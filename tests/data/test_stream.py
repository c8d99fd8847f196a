"""Several batches are loaded ahead at once, never more than wanted, and always in order."""

from __future__ import annotations

import itertools
import threading

import pytest
import tensorflow as tf

from lms3d.data import stream
from lms3d.data.brats import pipeline
from lms3d.data.chest_xray import pipeline as pipelines
from lms3d.engine import tuning

SCALAR = (tf.TensorSpec((), tf.int64),)
PATIENCE_SECONDS = 20.0
"""A limit that only a failing test reaches."""


@pytest.fixture
def four_cores(monkeypatch):
    monkeypatch.setattr(stream, "cpu_count", lambda: 4)


def steps_of(dataset: tf.data.Dataset, count: int) -> list[int]:
    return [int(step) for (step,) in itertools.islice(dataset.as_numpy_iterator(), count)]


def test_as_many_batches_are_loaded_at_once_as_are_kept_ahead(four_cores):
    """Each load waits for the others, so that loading one after the other would never end."""
    together = threading.Barrier(stream.batches_ahead(SCALAR))
    assert together.parties == 5

    def load(step):
        together.wait(PATIENCE_SECONDS)
        return (step,)

    count = 2 * together.parties
    assert steps_of(stream.loaded(tf.data.Dataset.range(count), load, SCALAR), count) == list(range(count))


def test_batches_come_in_order_though_a_later_one_is_ready_first(four_cores):
    done = [threading.Event() for _ in range(8)]

    def load(step):
        if step % 4 == 0:
            assert done[step + 1].wait(PATIENCE_SECONDS)
        done[step].set()
        return (step,)

    assert steps_of(stream.loaded(tf.data.Dataset.range(8), load, SCALAR), 8) == list(range(8))


def test_no_load_begins_before_there_is_room_for_its_batch(four_cores):
    asked, most, begun = 0, 0, itertools.count(1)
    room = threading.Semaphore(0)

    def load(step):
        nonlocal most
        most = max(most, next(begun) - asked)
        room.release()
        return (step,)

    ahead = stream.batches_ahead(SCALAR)
    batches = stream.loaded(tf.data.Dataset.range(1 << 40), load, SCALAR).as_numpy_iterator()
    for step in range(30):
        asked += 1
        assert int(next(batches)[0]) == step
        for _ in range(1 if step else 1 + ahead):  # until all that may begin has begun
            assert room.acquire(timeout=PATIENCE_SECONDS)
    assert not room.acquire(timeout=0.05)
    assert most == ahead


@pytest.mark.parametrize(
    ("batch", "ahead"),
    [
        ((32, 224, 224, 3), 5),  # radiographs: one for each core, and one that is ready
        ((1, 128, 128, 128, 4), 5),
        ((1, 144, 144, 144, 4), 4),  # of 54 MiB
        ((1, 192, 192, 192, 4), tuning.BATCHES_AHEAD),  # of 128 MiB: what LMS counts, and no more
        ((4, 240, 240, 160, 4), tuning.BATCHES_AHEAD),
        ((None, 64, 64, 64, 4), tuning.BATCHES_AHEAD),  # validation whose last batch is smaller
    ],
)
def test_large_batches_wait_in_smaller_numbers(four_cores, batch, ahead):
    spec = (tf.TensorSpec(batch), tf.TensorSpec((*batch[:-1], 3), tf.uint8))
    assert stream.batches_ahead(spec) == ahead


def test_many_cores_do_not_load_more_than_is_worth_it(monkeypatch):
    monkeypatch.setattr(stream, "cpu_count", lambda: 256)
    assert stream.batches_ahead(SCALAR) == stream.MOST_AHEAD


def test_the_order_of_loads_is_that_of_any_number_of_cores(monkeypatch):
    def load(step):
        return (step * step,)

    found = []
    for cores in (1, 7):
        monkeypatch.setattr(stream, "cpu_count", lambda cores=cores: cores)
        found.append(steps_of(stream.loaded(tf.data.Dataset.range(50), load, SCALAR), 50))
    assert found[0] == found[1] == [k * k for k in range(50)]


def test_the_order_of_samples_is_that_of_earlier_versions():
    """Their checkpoints say only how many samples were seen."""
    assert "".join(str(stream.sample_position(7, 10, g)) for g in range(20)) == "80713624598241379065"
    assert [pipelines.sample_flip(7, g) for g in range(12)] == [0, 0, 1, 0, 0, 1, 1, 1, 1, 1, 0, 0]
    assert [pipeline.sample_symmetry(7, g, (16, 16, 16)) for g in range(12)] == [
        41,
        2,
        33,
        28,
        41,
        7,
        9,
        15,
        33,
        43,
        31,
        38,
    ]
