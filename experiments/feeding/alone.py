"""Pipelines alone: all orders at once in memory, one at a time running, in turns. No TensorFlow here.

    round 1   old | new | best        a window: all ranks of one order, for some seconds;
    round 2   new | best | old        the ranks of the others are stopped (SIGSTOP), so that they neither compute nor fill
    round 3   best | old | new        their buffers meanwhile

Other load on the machine hits all orders alike, and a ratio is taken within a round. Each run starts new ranks: their
placement on cores and in memory stays the same for all rounds of a run.

A rank is this module as a program. It takes batches as fast as they come, or as a device of some speed would:

    python -m experiments.feeding.alone '{"shards": ..., "order": "new", "rank": 0, "size": 2, "batch_size": 32,
        "device_speed": null}'

Each line on stdin is a number of seconds; each answer is a line of JSON. The rank ends with its stdin.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from lms3d.experiments.harness.child import Process, of_module
from lms3d.experiments.harness.ranks import RunFailed, last_words
from lms3d.experiments.harness.store import Record
from lms3d.experiments.harness.talk import Talk, asked

PATIENCE_SECONDS = 300.0
"""A rank that says nothing for so long (and four windows) hangs."""

PROGRAM = of_module("lms3d.experiments.feeding.alone")


LEAD = 0.25
"""The share of a window that passes before it counts: what lay in the buffers was not made in the window."""


class Rank(Process):
    """A process that takes batches when it is asked to; stopped in between."""

    def __init__(self, asked: dict[str, Any], log: Path, bind: Callable[[], None] | None) -> None:
        super().__init__(PROGRAM, asked, log, bind=bind)

    def answered(self, end: float) -> dict[str, Any]:
        """The rank's next answer. RunFailed if it has ended, or says nothing until `end` (monotonic)."""
        found = self.answer(end - time.monotonic())
        if found is not None:
            return found
        if self.is_late:
            raise RunFailed(f"a rank said nothing in its time (its words: {self.log})", late=True)
        raise RunFailed(f"a rank ended: {last_words(self.log)} (all of it: {self.log})")

    def ask(self, seconds: float) -> None:
        self.process.send_signal(signal.SIGCONT)
        self.say(str(seconds))

    def rest(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def close(self) -> None:
        """Kills the rank: it holds nothing that has to be saved."""
        self.kill()
        for pipe in (self.process.stdin, self.process.stdout):
            with suppress(BrokenPipeError):
                if pipe is not None:
                    pipe.close()


def measure(
    shards: Path, orders: Sequence[str], log: Path, *, ranks: int, cores: int | None, batch_size: int,
    rounds: int, window_seconds: float, seconds_left: float | None, runs: int = 1, device_speed: float | None = None,
) -> Record:  # fmt: skip
    """The part of `ranks` ranks on so many `cores` together: for each round of each run, and each order, the sums over ranks.

    device_speed: images/s of each rank's device, or None: as fast as batches come.
    """
    deadline = float("inf") if seconds_left is None else time.monotonic() + seconds_left
    found: list[dict[str, Any]] = []
    for run in range(runs):
        with started(shards, orders, log, ranks, binding(cores), batch_size, device_speed, deadline) as teams:
            for k in range(rounds):
                turn = [*orders[k % len(orders) :], *orders[: k % len(orders)]]
                found.append({"run": run, **{one: window(teams[one], window_seconds, deadline) for one in turn}})
    return {"ranks": ranks, "rounds": found}


@contextmanager
def started(
    shards: Path, orders: Sequence[str], log: Path, ranks: int, bind: Callable[[], None] | None, batch_size: int,
    device_speed: float | None, deadline: float,
) -> Iterator[dict[str, list[Rank]]]:  # fmt: skip
    """Order -> its ranks, warm and stopped. The orders warm up one after the other, which is not measured."""
    with ExitStack() as stack:
        teams: dict[str, list[Rank]] = {}
        for order in orders:
            asked = {
                "shards": str(shards), "order": order, "size": ranks, "batch_size": batch_size,
                "device_speed": device_speed,
            }  # fmt: skip
            teams[order] = []
            for rank in range(ranks):
                words = log.with_name(f"{log.stem}-{order}-{rank}.txt")
                one = Rank({**asked, "rank": rank}, words, bind)
                stack.callback(one.close)
                teams[order].append(one)
            for one in teams[order]:
                one.answered(min(deadline, time.monotonic() + PATIENCE_SECONDS))
                one.rest()
        yield teams


def window(team: Sequence[Rank], seconds: float, deadline: float) -> dict[str, float]:
    """Measures all ranks of one order at the same time. others: the cores that everything else on the machine took meanwhile."""
    end = min(deadline, time.monotonic() + PATIENCE_SECONDS + 4 * seconds)
    for one in team:
        one.ask(seconds)
    psutil.cpu_percent()  # from here on
    answers = []
    for one in team:
        answers.append(one.answered(end))
        one.rest()
    busy = psutil.cpu_percent() / 100 * (psutil.cpu_count() or 1)
    found = summed(answers)
    return {**found, "others": max(0.0, busy - found["cores"])}


def summed(answers: Sequence[dict[str, float]]) -> dict[str, float]:
    """The answers of all ranks as one: images_per_second, images_per_cpu_second, cores kept busy, shares of waiting."""
    waiting = [one["waited_seconds"] / one["seconds"] for one in answers]
    cpu_seconds = sum(one["cpu_seconds"] for one in answers)
    return {
        "images_per_second": sum(one["images"] / one["seconds"] for one in answers),
        "images_per_cpu_second": sum(one["images"] for one in answers) / max(cpu_seconds, 1e-9),
        "cores": sum(one["cpu_seconds"] / one["seconds"] for one in answers),
        "waiting": sum(waiting) / len(waiting),
        "waiting_most": max(waiting),
    }


def binding(cores: int | None) -> Callable[[], None] | None:
    """What binds a process to so many cores before it starts; None: to the cores that the system gives."""
    if cores is None or not hasattr(os, "sched_setaffinity"):
        return None
    kept = sorted(os.sched_getaffinity(0))[:cores]
    return lambda: os.sched_setaffinity(0, kept)


def main(asked: dict[str, Any]) -> None:
    from lms3d.console import quiet_native_log

    talk = Talk()
    with quiet_native_log():
        import tensorflow as tf

        tf.config.set_visible_devices([], "GPU")  # alone means without a device
        tf.config.list_logical_devices()
    from lms3d.experiments.feeding import orders
    from lms3d.experiments.feeding.images import training_part

    part = training_part(asked["shards"])
    order = orders.ORDERS[asked["order"]]
    batches = iter(order(part, batch_size=asked["batch_size"], seed=0, rank=asked["rank"], size=asked["size"]))
    # A pass: caches are full, files have been read, and tf.data has tuned itself.
    for _ in range(max(1, len(part) // asked["size"] // asked["batch_size"])):
        next(batches)
    talk.say(ready=True)
    for line in sys.stdin:
        talk.say(**take(batches, float(line), asked["batch_size"], asked["device_speed"]))


def take(
    batches: Iterator[Any], seconds: float, batch_size: int, device_speed: float | None = None
) -> dict[str, float]:  # fmt: skip
    """Takes the batches of a window, which begins and ends with the end of a batch, so that no part of one is counted.

    device_speed: images/s of the device that takes them. It sleeps as long as a step would last: like a GPU it computes
    without these cores, so that the pipeline works meanwhile, as far as it is made to.
    """
    step_seconds = batch_size / device_speed if device_speed else 0.0
    _until(batches, time.perf_counter() + LEAD * seconds, step_seconds)
    started, cpu = time.perf_counter(), time.process_time()
    count, waited = _until(batches, started + seconds, step_seconds)
    passed, cpu_passed = time.perf_counter() - started, time.process_time() - cpu
    return {"images": count * batch_size, "seconds": passed, "cpu_seconds": cpu_passed, "waited_seconds": waited}


def _until(batches: Iterator[Any], end: float, step_seconds: float) -> tuple[int, float]:
    """The number of batches taken, at least one, and the seconds waited for them."""
    count, waited = 0, 0.0
    while not count or time.perf_counter() < end:
        asked = time.perf_counter()
        next(batches)
        waited += time.perf_counter() - asked
        count += 1
        if step_seconds:
            time.sleep(step_seconds)
    return count, waited


if __name__ == "__main__":
    main(asked())
