"""The emulated link: its lane keeps its rate, one transfer after the other, also with others on the bus; tensors come back as they
were. Times are lower bounds, or the best of some tries."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

import lms3d
from lms3d.device import memory
from lms3d.engine.native import lanes
from lms3d.engine.native.lanes import Lane
from lms3d.engine.native.library import library
from lms3d.engine.tensorflow import functions, speeds
from lms3d.engine.tiers import TIERS
from lms3d.errors import InputError, StorageError
from lms3d.experiments.harness import steps_tensorflow
from lms3d.experiments.links import machines, tier
from lms3d.experiments.links.link import COPY_SECONDS, STEP_SECONDS, SwapLink, copy_seconds_per_byte
from tests.lms3d.engine.traced import SPEC, batch, by_tflms, chain, fork, same_bits, u_net

PIECE_BYTES = 4 << 20
"""The seconds of LINK-3."""


class Mover:
    """Transfers of one tensor over a lane, as the ops of a step ask for them."""

    def __init__(self, lane: Lane, size: int, seed: int = 0) -> None:
        numbers = np.random.default_rng(seed).integers(0, 256, size, dtype=np.uint8)
        self.tensor, self.lane = tf.constant(numbers), lane
        self.where = {"lane": lane.number, "slot": lane.reserve(size)}

    def start(self) -> tf.Tensor:
        """The copy out, which goes on; its handle."""
        return library().operations.lms_swap_out(x=self.tensor, **self.where)

    def back(self, handle: tf.Tensor) -> tf.Tensor:
        """The tensor as it comes back."""
        operations, shape = library().operations, self.tensor.shape
        fetched = operations.lms_fetch(handle=handle, T=tf.uint8, shape=shape, copy=0, **self.where)
        return operations.lms_arrive(x=fetched, copy=0, **self.where)

    def wait(self) -> None:
        library().operations.lms_hold(x=self.tensor, **self.where)


@pytest.fixture
def lane() -> Iterator[Callable[..., Lane]]:
    """Makes lanes, and closes them after the test."""
    made: list[Lane] = []

    def make(rate: float, latency: float = 0.0, bus: Path | None = None) -> Lane:
        made.append(lanes.memory(rate, rate, latency, bus))
        return made[-1]

    yield make
    for one in made:
        one.close()


def seconds_of(work: Callable[[], object]) -> float:
    began = time.monotonic()
    work()
    return time.monotonic() - began


def test_a_transfer_takes_its_latency_and_its_bytes(lane):
    size, rate, latency = 2 * PIECE_BYTES + 7, 100e6, 0.05
    moved = Mover(lane(rate, latency), size)
    found: list[tf.Tensor] = []
    seconds = seconds_of(lambda: found.append(moved.back(moved.start())))
    assert seconds >= 2 * (latency + size / rate)
    assert found[0].numpy().tobytes() == moved.tensor.numpy().tobytes()
    counted = moved.lane.take()
    assert (counted.out_bytes, counted.in_bytes) == (size, size)
    assert min(counted.out_seconds, counted.in_seconds) >= latency + size / rate
    assert counted.out_seconds + counted.in_seconds <= seconds
    assert 0 < counted.processor_seconds < seconds
    assert not any(vars(moved.lane.take()).values())


def test_transfers_follow_each_other(lane):
    shared = lane(1e9, 0.05)
    first, second, third = (Mover(shared, 1000, seed) for seed in range(3))
    began = time.monotonic()
    for one in (first, second, third):  # all are asked for at once
        one.start()
    ends = []
    for one in (first, second, third):
        one.wait()
        ends.append(time.monotonic() - began)
    assert all(end >= 0.05 * n for n, end in enumerate(ends, 1))
    assert shared.take().out_seconds >= 0.15


def test_what_a_busy_machine_is_late_by_does_not_add_up(lane):
    """LINK-1: a sleep ends some 60 us late, 400 of them would be late by a third."""
    shared = lane(1e12, 200e-6)
    movers = [Mover(shared, 16) for _ in range(400)]

    def move() -> None:
        for one in movers:
            one.start()
        movers[-1].wait()

    seconds = [seconds_of(move) for _ in range(5)]
    assert min(seconds) >= 400 * 200e-6
    assert min(seconds) < 1.15 * 400 * 200e-6


def test_two_on_one_bus_get_every_other_piece(lane, tmp_path):
    """LINK-3: none is done before the other is nearly done, and both together take twice as long."""
    rate = PIECE_BYTES / 0.02
    movers = [Mover(lane(rate, bus=tmp_path), 4 * PIECE_BYTES) for _ in range(2)]

    def ends() -> tuple[float, float]:
        began = time.monotonic()
        for one in movers:
            one.start()
        found = []
        for one in movers:
            one.wait()
            found.append(one.lane.take().out_seconds)
        assert time.monotonic() - began >= 2 * 4 * 0.02
        return min(found), max(found)

    assert max(ends()[0] for _ in range(3)) >= 6 * 0.02


def test_other_processes_on_the_bus_are_waited_for(lane, tmp_path):
    """Their bookings stand in a file, as moments of the clock that all share."""
    booked = time.monotonic() + 0.3
    (tmp_path / "out").write_bytes(struct.pack("d", booked))
    moved = Mover(lane(1e9, 0.02, tmp_path), 1000)
    moved.start()
    moved.wait()
    assert time.monotonic() >= booked + 0.02
    (end,) = struct.unpack("d", (tmp_path / "out").read_bytes())
    assert end == pytest.approx(booked + 0.02 + 1e-6, abs=1e-6)
    handle = moved.start()
    moved.wait()
    assert seconds_of(lambda: moved.back(handle)) >= 0.02  # the other direction has a calendar of its own
    with pytest.raises(StorageError, match=r"cannot open the bus .*none/out: No such file"):
        lane(1e9, bus=tmp_path / "none")


def test_the_slots_memory_is_there_before_the_first_step(lane):
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    made, before = lane(1e9), resident()
    made.reserve(64 << 20)
    assert resident() - before >= 60 << 20


def test_a_link_is_a_word():
    for word in ("400MB/s", "2357MB/s+46us", "12000MB/s:14000MB/s", "400MB/s+10us@/tmp/bus"):
        link = SwapLink.parse(word)
        assert SwapLink.parse(str(link)) == link
    link = SwapLink.parse("2.4GB/s+50us")
    assert (link.out_bytes_per_second, link.back_bytes_per_second, link.latency_seconds) == (
        2.4e9,
        2.4e9,
        pytest.approx(50e-6),
    )
    for word in ("400MB", "fast", "0MB/s", "pcie9"):
        with pytest.raises(InputError, match=r"(?s)write for example|larger than zero"):
            machines.checked(word)


def test_bytes_bear_the_same_ratio_to_flops():
    """A step of half the voxels' side has an eighth of the FLOPs."""
    real = machines.REAL["pcie3"]
    here = real.here(step_seconds=1.0, side=72)
    assert here.out_bytes_per_second * 8.0 == pytest.approx(11e9 * 216 / 228)
    assert here.latency_seconds / 8.0 == pytest.approx(machines.COPY_SECONDS / (216 / 228))
    assert machines.link("400MB/s", 1.0, 72) == SwapLink.parse("400MB/s")
    h200 = machines.link("pcie5", 0.088, 192)  # on that machine itself
    assert (h200.out_bytes_per_second, h200.back_bytes_per_second) == pytest.approx((53.8e9, 51.8e9))


@pytest.fixture
def slow():
    """The tier of a link that takes 20 ms for each transfer."""
    made = tier.register(SwapLink.parse("400MB/s+20000us"))
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
    """A hundred copies are waited for, and an op that waits for none of them runs."""
    swapped, moved = slow(), []

    def look(x: np.ndarray) -> np.ndarray:
        moved.append(swapped.take_counters()["swapped_out_bytes"])
        return x

    traced = functions.trace(lambda x: tf.numpy_function(look, [x], tf.float32), SPEC)
    given = traced.graph.inputs[0]
    for number in range(100):
        out = swapped.swap_out(given, f"lms/swap_out/{number}")
        swapped.hold(given, out, f"lms/hold/{number}", ())
    functions.make_function(traced)(batch())
    moved.append(swapped.take_counters()["swapped_out_bytes"])
    assert sum(moved) == 100 * batch().numpy().nbytes
    assert moved[0] < moved[1]
    swapped.close()


def test_a_function_that_failed_leaves_nothing_behind(slow):
    fails = [False]

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

    made = by_tflms(function, slow())
    same_bits(made.function(batch(0)), made.original(batch(0)))
    fails[0] = True
    with pytest.raises(tf.errors.OpError, match="as it was told"):
        made.function(batch(1))
    fails[0] = False
    began = time.perf_counter()
    found = made.function(batch(2))
    assert time.perf_counter() - began >= 2 * 0.02  # it waited for its own transfers
    same_bits(found, made.original(batch(2)))


class Parent:
    """As `harness.talk.Talk` and `Resident`: asks for every step, and keeps the answers."""

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
    lockstep = steps_tensorflow._StepOnDemand(parent, parent, None, slow)
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
    assert found.swap_share == pytest.approx(400e6 * copy_seconds_per_byte())


def _speed_in_a_small_pool() -> float:
    memory.limit_memory("64MiB")
    found = tier.register(SwapLink.parse("400MB/s")).speed("CPU:0", None)
    return found.swap_share


def test_the_speed_is_measured_outside_of_the_limited_pool(in_fresh_process):
    assert 0 < in_fresh_process(_speed_in_a_small_pool) < 1


@pytest.fixture
def own_machine(tmp_path, monkeypatch):
    monkeypatch.setattr(speeds, "cache_directory", lambda: tmp_path)
