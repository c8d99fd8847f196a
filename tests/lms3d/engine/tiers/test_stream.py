"""The four ops on a processor, over links of three speeds: not a bit changes, whatever fails, ends or runs beside."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from lms3d.device import memory
from lms3d.engine.planners import tflms
from lms3d.engine.tensorflow import functions
from lms3d.errors import StorageError
from tests.lms3d.engine import traced
from tests.lms3d.engine.tensorflow import test_random_functions as random_functions
from tests.lms3d.engine.tiers.slow import RATES, slow_tier
from tests.lms3d.engine.traced import batch, by_tflms, same_bits


@pytest.fixture
def tier():
    """A link that is late by more than any op takes."""
    made = slow_tier(latency_seconds=0.01)()
    yield made
    made.close()


def without_lms(function: Callable, batches: Sequence[tf.Tensor], spec: tf.TensorSpec = traced.SPEC) -> list:
    """Its results under the same graph optimisers."""
    made = functions.make_function(functions.trace(function, spec))
    return [made(one) for one in batches]


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("function", [traced.chain, traced.fork, traced.u_net], ids=lambda f: f.__name__)
def test_same_bits(function, rate):
    tier = slow_tier(rate)()
    made = by_tflms(function, tier)
    assert made.change.swap_outs
    batches = [batch(seed) for seed in range(4)]
    same_bits([made.function(one) for one in batches], without_lms(function, batches))
    counted = tier.take_counters()
    assert counted["swapped_out_bytes"] == len(batches) * made.plan.swapped_out_bytes
    assert counted["swapped_in_bytes"] == len(batches) * made.plan.swapped_in_bytes
    assert counted["swap_out_seconds"] >= counted["swapped_out_bytes"] / rate


parameters = st.builds(
    tflms.Parameters,
    swapout_threshold=st.integers(1, 12),
    swapin_ahead=st.integers(1, 8),
    swapin_groupby=st.integers(0, 6),
    sync_mode=st.integers(0, 3),
)


@given(random_functions.networks, parameters, st.sampled_from(RATES))
@settings(max_examples=12, deadline=None)
def test_random_functions(network, parameters, rate):
    tier = slow_tier(rate, 1e-4)()
    spec = random_functions.SPEC
    function, batches = random_functions.function_of(network), [batch(seed, spec) for seed in (1, 2)]
    made = by_tflms(function, tier, spec, parameters=parameters)
    if not made.plan.empty:  # else it runs as Keras would, under other graph optimisers
        same_bits([made.function(one) for one in batches], without_lms(function, batches, spec))
    tier.close()


def raising(x: tf.Tensor) -> tf.Tensor:
    """An op in the middle refuses NaN; swap-outs have begun by then, and their copies have not ended."""
    a = tf.tanh(x, name="a")
    b = tf.cos(a, name="b")
    f = b
    for i in range(6):
        f = tf.sin(f, name=f"f{i}")
    f = tf.debugging.check_numerics(f, "refused", name="check")
    for i in range(6, 12):
        f = tf.sin(f, name=f"f{i}")
    return f + a + b


def test_the_step_after_one_that_failed(tier):
    made = by_tflms(raising, tier)
    assert made.change.swap_outs >= 2
    (expected,) = without_lms(raising, [batch()])
    bad = tf.fill((64, 32), float("nan"))
    made.function(batch())
    before = memory.bytes_in_use("current", "CPU:0")
    for _ in range(3):
        with pytest.raises(tf.errors.InvalidArgumentError, match="refused"):
            made.function(bad)
        assert memory.bytes_in_use("current", "CPU:0") <= before  # nothing holds the tensors to be swapped out
        same_bits(made.function(batch()), expected)


def test_what_fails_while_a_step_is_cleared_away_does_not_hide_its_error(tier, monkeypatch):
    made = by_tflms(raising, tier)

    def lost() -> None:
        raise StorageError("the device is lost")

    monkeypatch.setattr(tier.lane, "settle", lost)
    with pytest.raises(tf.errors.InvalidArgumentError, match="refused"):
        made.function(tf.fill((64, 32), float("nan")))


def test_a_closed_tier(tier):
    made = by_tflms(traced.chain, tier)
    made.function(batch())
    tier.close()
    tier.close()
    with pytest.raises(
        StorageError, match=r"^the swap tier of this function is closed, .*: rewrite the function again$"
    ):
        made.function(batch())
    with pytest.raises(StorageError, match=r"^the lane is closed$"):
        by_tflms(traced.chain, tier)
    tier.discard(made.function.graph)
    assert tier.take_counters()["swapped_out_bytes"] == 0


def test_a_tier_that_is_closed_in_the_midst_of_a_step(tier, monkeypatch):
    made = by_tflms(traced.chain, tier)
    monkeypatch.setattr(tier, "begin", lambda: tier.close() or 0)
    with pytest.raises(tf.errors.InternalError, match="lms3d: the swap tier of this function is closed"):
        made.function(batch())


def test_closed_by_another_thread():
    """Whenever it happens: the right bits, or an error, and nothing waits for ever."""
    expected = without_lms(traced.u_net, [batch()])
    for wait in (0.0, 0.005, 0.02, 0.05):
        tier = slow_tier(latency_seconds=0.005)()
        made = by_tflms(traced.u_net, tier)
        closing = threading.Timer(wait, tier.close)
        closing.start()
        with contextlib.suppress(StorageError, tf.errors.InternalError):
            same_bits([made.function(batch())], expected)
        closing.join()


def test_a_function_in_two_threads(tier):
    made = by_tflms(traced.u_net, tier)
    batches = [batch(seed) for seed in range(8)]
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(made.function, batches))
    same_bits(found, without_lms(traced.u_net, batches))


def test_two_functions_of_one_tier_side_by_side_and_one_of_them_fails(tier):
    batches = [batch(seed) for seed in range(6)]
    one, other = by_tflms(traced.u_net, tier), by_tflms(raising, tier)
    bad = tf.fill((64, 32), float("nan"))

    def fail(_: int) -> None:
        with pytest.raises(tf.errors.InvalidArgumentError):
            other.function(bad)

    with ThreadPoolExecutor(2) as pool:
        found = pool.map(one.function, batches)
        list(pool.map(fail, range(6)))
        same_bits(list(found), without_lms(traced.u_net, batches))
    same_bits([other.function(one) for one in batches], without_lms(raising, batches))


def test_what_is_discarded_is_given_back(tier):
    import psutil

    big = tf.TensorSpec((4096, 4096))  # 64 MiB
    made = by_tflms(traced.chain, tier, big)
    before = psutil.Process().memory_info().rss
    tier.discard(made.function.graph)
    assert before - psutil.Process().memory_info().rss >= 48 << 20


def test_nothing_grows():
    """The long run is `python -m tests.stress soak`; this one takes seconds."""
    import gc

    import psutil

    process, tier = psutil.Process(), slow_tier()()
    made, x = by_tflms(traced.fork, tier), batch()

    def after(steps: int) -> tuple[int, int, int]:
        for _ in range(steps):
            made.function(x)
        tier.take_counters()
        gc.collect()
        return process.num_threads(), process.num_fds(), process.memory_info().rss

    threads, files, resident = after(1000)
    more_threads, more_files, more_resident = after(4000)
    assert (more_threads, more_files) == (threads, files)
    assert more_resident <= resident + (4 << 20)  # of 4,000 steps: 1 KiB each would be seen
    for _ in range(20):
        again = by_tflms(traced.fork, tier)
        again.function(x)
        tier.discard(again.function.graph)
        del again
    tier.close()
    assert process.num_threads() == threads - 2  # one for each direction
