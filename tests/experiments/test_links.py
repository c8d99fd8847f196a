"""The emulated link: its channel keeps its rate, one transfer after the other, also between processes; tensors come back as they
were. Times are a clock of the test's own, or lower bounds."""

from __future__ import annotations

import multiprocessing
import time

import keras
import numpy as np
import pytest
import tensorflow as tf

import lms3d
from experiments.links import channel as channels
from experiments.links import machines, tier
from experiments.links.calendar import OwnCalendar, SharedCalendar
from experiments.links.channel import PIECE_BYTES, Channel
from experiments.links.counters import COPY_SECONDS, STEP_SECONDS
from experiments.links.link import Link
from experiments.overhead import steps_tensorflow
from lms3d.errors import InputError
from lms3d.swap.tensorflow import speeds
from lms3d.swap.tiers import TIERS
from tests.experiments import bus_mover
from tests.lms3d.swap.traced import batch, by_tflms, chain, fork, same_bits, u_net

RATE = 10e6


class Clock:
    """Sleeping is all that takes time."""

    def __init__(self) -> None:
        self.now = 100.0

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def virtual(clock: Clock, calendar=None, latency: float = 0.5) -> Channel:
    return Channel(RATE, latency, calendar or OwnCalendar(), now=lambda: clock.now, sleep=clock.sleep)


def noise(size: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, size, dtype=np.uint8)


def test_a_transfer_takes_its_latency_and_its_bytes():
    clock, source = Clock(), noise(3 * PIECE_BYTES + 7)
    to, channel = np.zeros_like(source), virtual(clock)
    channel.move(to, source, clock.now)
    assert clock.now == pytest.approx(100.5 + len(source) / RATE)
    assert to.tobytes() == source.tobytes()
    size, busy, processor = channel.take()
    assert (size, busy) == (len(source), pytest.approx(0.5 + len(source) / RATE))
    assert processor >= 0
    assert channel.take() == (0, 0, 0)


def test_transfers_follow_each_other():
    clock = Clock()
    channel = virtual(clock)
    ends = []
    for seed in range(3):  # all were asked for at once
        channel.move(np.empty(1000, np.uint8), noise(1000, seed), 100.0)
        ends.append(clock.now)
    assert ends == pytest.approx([100 + n * (0.5 + 1000 / RATE) for n in (1, 2, 3)])
    clock.now = 200.0  # and one later, when the link is free
    channel.move(np.empty(1000, np.uint8), noise(1000), clock.now)
    assert clock.now == pytest.approx(200.5 + 1000 / RATE)


def test_what_a_busy_machine_is_late_by_does_not_add_up():
    clock = Clock()
    channel = virtual(clock)
    channel.move(np.empty(10, np.uint8), noise(10), 100.0)
    clock.now += 0.3  # the thread slept too long
    channel.move(np.empty(10, np.uint8), noise(10), 100.0)
    assert clock.now == pytest.approx(101 + 20 / RATE)


def test_two_that_share_a_bus_get_every_other_piece(tmp_path):
    ours, theirs = SharedCalendar(tmp_path / "out"), SharedCalendar(tmp_path / "out")
    other = SharedCalendar(tmp_path / "back")
    ends = [calendar.book(100.0, 1.0) for calendar in (ours, theirs, ours, theirs, other)]
    assert ends == [101.0, 102.0, 103.0, 104.0, 101.0]


def test_two_processes_on_one_bus_take_twice_as_long(tmp_path):
    context = multiprocessing.get_context("spawn")
    start, ends = context.Barrier(2), context.Queue()
    processes = [context.Process(target=bus_mover.move, args=(str(tmp_path / "bus"), start, ends)) for _ in range(2)]
    for process in processes:
        process.start()
    found = [ends.get(timeout=120) for _ in processes]
    for process in processes:
        process.join(60)
    began, ended = min(began for began, _ in found), max(ended for _, ended in found)
    assert ended - began >= 2 * bus_mover.PIECES * bus_mover.PIECE_SECONDS


def test_a_link_is_a_word():
    for word in ("400MB/s", "2357MB/s+46us", "12000MB/s:14000MB/s", "400MB/s+10us@/tmp/bus"):
        link = Link.parse(word)
        assert Link.parse(str(link)) == link
    link = Link.parse("2.4GB/s+50us")
    assert link.seconds(2400, out=True) == pytest.approx(51e-6)
    for word in ("400MB", "fast", "0MB/s", "pcie9"):
        with pytest.raises(InputError, match=r"(?s)write for example|larger than zero"):
            machines.checked(word)


def test_bytes_bear_the_same_ratio_to_flops():
    """A step of half the voxels' side has an eighth of the FLOPs."""
    real = machines.REAL["pcie3"]
    here = real.here(step_seconds=1.0, side=72)
    assert here.out_bytes_per_second * 8.0 == pytest.approx(11e9 * 216 / 228)
    assert here.latency_seconds / 8.0 == pytest.approx(machines.COPY_SECONDS / (216 / 228))
    assert machines.link("400MB/s", 1.0, 72) == Link.parse("400MB/s")


@pytest.fixture
def slow():
    """The tier of a link that takes 20 ms for each transfer."""
    made = tier.register(Link.parse("400MB/s+20000us"))
    yield made
    TIERS.remove(made.name)


@pytest.mark.parametrize("function", [chain, fork, u_net])
def test_tensors_come_back_as_they_were(slow, function):
    swapped = slow()
    made = by_tflms(function, swapped)
    assert made.change.swap_ins
    for seed in range(3):
        began = time.perf_counter()
        found = made.function(batch(seed))
        seconds = time.perf_counter() - began
        same_bits(found, made.original(batch(seed)))
        counters = swapped.take_counters()
        outs, ins = made.change.swap_outs, made.change.swap_ins
        assert counters["swapped_out_bytes"] == sum(out.bytes for out in made.plan.swap_outs)
        assert counters["swap_out_seconds"] >= 0.02 * outs
        assert counters["swap_in_seconds"] >= 0.02 * ins
        assert seconds >= 0.02 * max(ins, 2)
    assert slow.total["swapped_in_bytes"] == 3 * counters["swapped_in_bytes"]
    swapped.close()


def test_no_thread_of_tensorflow_waits(slow):
    """`numpy_function` would hold one of the few that run ops for as long as it sleeps."""
    made = by_tflms(chain, slow())
    waiting = {made.op(op.name).type for op in made.plan.swap_outs}
    assert waiting == {"QueueDequeueV2"}


def test_a_function_that_failed_leaves_nothing_behind(slow, monkeypatch):
    fails, silence = [False], tier._End.silence

    def maybe(x: np.ndarray) -> np.ndarray:
        if fails[0]:
            raise ValueError("as it was told")
        return x

    def function(x: tf.Tensor) -> tf.Tensor:
        a = tf.tanh(x, name="a")
        f = tf.numpy_function(maybe, [tf.sin(a)], tf.float32)
        f.set_shape(x.shape)
        for i in range(5):
            f = tf.sin(f, name=f"f{i}")
        return f + a

    swapped = slow()
    made = by_tflms(function, swapped)
    silenced: list[object] = []
    monkeypatch.setattr(tier._End, "silence", lambda end: (silenced.append(end), silence(end)))
    for _ in range(2):
        swapped.begin()  # as before a step, whatever it runs
        same_bits(made.function(batch(0)), made.original(batch(0)))
    assert not silenced, "looking at every queue takes time from each step"
    fails[0] = True
    with pytest.raises(tf.errors.OpError, match="as it was told"):
        made.function(batch(1))
    time.sleep(0.05)  # the transfer that was under way ends, and nobody takes its token
    fails[0] = False
    began = time.perf_counter()
    found = made.function(batch(2))
    assert time.perf_counter() - began >= 2 * 0.02  # it waited for its own transfers
    same_bits(found, made.original(batch(2)))


def test_a_channel_that_fails_ends_the_function(slow, monkeypatch):
    made = by_tflms(chain, swapped := slow())
    monkeypatch.setattr(channels.np, "copyto", lambda to, source: 1 / 0)
    with pytest.raises(RuntimeError, match="emulated link failed"):
        made.function(batch())
    swapped.close()


class Parent:
    """As `overhead.child.Talk` and `Resident`: asks for every step, and keeps the answers."""

    def __init__(self) -> None:
        self.answers: list[dict] = []

    def asked(self) -> bool:
        return True

    def say(self, **values) -> None:
        self.answers.append(values)

    def take_peak(self) -> int:
        return 0


def trained(*callbacks, **options) -> list[np.ndarray]:
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((16,)), *(keras.layers.Dense(16, activation="relu") for _ in range(6))])
    model.compile(optimizer="sgd", loss="mse", jit_compile=False)
    data = np.random.default_rng(0).normal(size=(2, 8, 16)).astype(np.float32)
    manual = {"swapout_threshold": 1, "swapin_ahead": 1, "swapin_groupby": 0, "sync_mode": 0}
    model.fit(*data, batch_size=4, epochs=2, verbose=0, callbacks=[lms3d.LMS(**manual, **options), *callbacks])
    return model.get_weights()


def test_a_model_trains_over_it_with_equal_bits(slow):
    parent = Parent()
    lockstep = steps_tensorflow._Lockstep(parent, parent, None, slow)
    same_bits(trained(lockstep, tier=slow.name), trained(enabled=False))
    moved = [answer["traffic"]["swapped_in_bytes"] for answer in parent.answers]
    assert moved == [slow.total["swapped_in_bytes"] / 4] * 4
    assert moved[0] > 0
    assert all(a["traffic"][COPY_SECONDS] <= a["traffic"][STEP_SECONDS] for a in parent.answers)


def test_the_planner_is_told_the_stated_rates(slow, own_machine):
    found = speeds.machine("CPU:0", slow.name, None)
    assert (found.swap_out_bytes_per_second, found.swap_in_bytes_per_second, found.mapped) == (400e6, 400e6, False)
    assert 0 < found.swap_share < 1
    assert found.node_seconds > 0
    free = tier.register(slow.link, costs_nothing=True)
    try:
        assert speeds.machine("CPU:0", free.name, None).swap_share == 0
    finally:
        TIERS.remove(free.name)


@pytest.fixture
def own_machine(tmp_path, monkeypatch):
    monkeypatch.setattr(speeds, "cache_directory", lambda: tmp_path)
