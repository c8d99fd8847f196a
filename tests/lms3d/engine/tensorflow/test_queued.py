"""Seconds of work on a device that runs behind the host, with a clock and a device of the test's own."""

from __future__ import annotations

import random

import pytest

from lms3d.engine.tensorflow import queued


class Device:
    """A device that works off its queue, one piece after the other.

    launch_seconds: of the host, for one piece. work_seconds: of the device. wait_seconds: what a wait takes besides. noise: share
    by which either may take longer.
    """

    def __init__(self, work_seconds: float, launch_seconds: float, wait_seconds: float = 2e-3, noise: float = 0.0):
        self.work, self.launch, self.wait_takes, self.noise = work_seconds, launch_seconds, wait_seconds, noise
        self.now = self.idle_from = 0.0
        self.pieces, self.waits = 0, 0
        self._random = random.Random(0)

    def _some(self, seconds: float) -> float:
        return seconds * (1 + self.noise * self._random.random())

    def start(self) -> None:
        self.now += self._some(self.launch)
        self.idle_from = max(self.now, self.idle_from) + self._some(self.work)
        self.pieces += 1

    def wait(self) -> None:
        self.now = max(self.now, self.idle_from) + self._some(self.wait_takes)
        self.waits += 1

    def measured(self) -> float:
        return queued.seconds_each(self.start, self.wait, clock=lambda: self.now)


@pytest.mark.parametrize("work", [5e-5, 3e-4, 4.4e-3, 0.06, 0.5])
def test_neither_launches_nor_waits_count_where_the_device_is_busy(work):
    """One piece before each wait would take 2 ms more."""
    assert Device(work, launch_seconds=3e-5).measured() == pytest.approx(work, rel=0.02)


def test_what_the_host_cannot_enqueue_fast_enough_costs_a_launch():
    assert Device(work_seconds=1e-6, launch_seconds=1e-4).measured() == pytest.approx(1e-4, rel=0.02)


@pytest.mark.parametrize("work", [5e-5, 3e-4, 4.4e-3, 0.06])
def test_noise_adds_a_few_percent(work):
    assert work <= Device(work, launch_seconds=3e-5, noise=0.3).measured() < 1.3 * work


@pytest.mark.parametrize("work", [1e-7, 3e-4, 0.06, 0.5])
def test_it_takes_a_tenth_of_a_second_or_a_few_runs_of_a_long_op(work):
    device = Device(work, launch_seconds=3e-5)
    device.measured()
    assert device.now < max(0.25, 9 * work)
    assert device.waits < 0.5 * device.pieces or work > 0.01


def test_two_lengths_leave_out_what_a_run_has_once():
    assert queued.difference(10, 0.2 + 10 * 0.03, 30, 0.2 + 30 * 0.03) == pytest.approx(0.03)


def test_nothing_takes_no_time_and_no_more_than_its_share():
    assert queued.difference(1, 0.5, 4, 0.4) == pytest.approx(0.1)  # noise in the shorter run
    assert queued.difference(1, 0.0, 2, 0.4) == pytest.approx(0.2)
