"""One direction of a link: a thread that moves bytes one transfer after the other, at the link's rate. No TensorFlow here.

LINK-2  A transfer has ended when its bookings have (LINK-1) and its bytes are copied, whichever is later.
LINK-3  It is booked and copied in pieces: of two processes that share a bus each gets every other piece. The copying is spread
        over the transfer, too, as that of a device is.
LINK-4  Copying and sleeping hold no thread of TensorFlow, and not the Python lock.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from experiments.links.calendar import Calendar

PIECE_BYTES = 4 << 20
"""Larger: fewer calls, a coarser division of a bus. 1.7 ms at 2.4 GB/s."""


@dataclass(frozen=True)
class Transfer:
    """to, source: flat arrays of as many bytes. asked: when. ended: called, in the channel's thread, once it has ended; the
    arrays are let go before."""

    to: np.ndarray
    source: np.ndarray
    asked: float
    ended: Callable[[], None]


class Channel:
    """Moves bytes at `bytes_per_second`, each transfer `latency_seconds` besides. now, sleep: a test has its own clock."""

    def __init__(
        self,
        bytes_per_second: float,
        latency_seconds: float,
        calendar: Calendar,
        *,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.bytes_per_second, self.latency_seconds = bytes_per_second, latency_seconds
        self._calendar, self._now, self._sleep = calendar, now, sleep
        self._waiting: queue.SimpleQueue[Transfer | threading.Event | None] = queue.SimpleQueue()
        self._guard = threading.Lock()
        self._counted = [0.0, 0.0, 0.0]  # bytes, busy seconds, processor seconds
        self._last_end = 0.0
        self.error: BaseException | None = None
        self.submitted = 0
        """Transfers, ever."""
        self._thread = threading.Thread(target=self._work, name="emulated-link", daemon=True)
        self._thread.start()

    def submit(self, to: np.ndarray, source: np.ndarray, ended: Callable[[], None]) -> None:
        """Returns at once."""
        with self._guard:
            self.submitted += 1
        self._waiting.put(Transfer(to, source, self._now(), ended))

    def wait(self) -> None:
        """Until all that was submitted has ended."""
        done = threading.Event()
        self._waiting.put(done)
        while self._thread.is_alive() and not done.wait(0.1):
            pass

    def close(self) -> None:
        """What was submitted still ends."""
        self._waiting.put(None)

    def take(self) -> tuple[float, float, float]:
        """Bytes, busy seconds and processor seconds of copies since the last call. Busy: a transfer was asked for and has not
        ended; on a shared bus that includes the turns of others."""
        with self._guard:
            taken, self._counted = self._counted, [0.0, 0.0, 0.0]
        return taken[0], taken[1], taken[2]

    def move(self, to: np.ndarray, source: np.ndarray, asked: float) -> None:
        """One transfer, to its end."""
        began = time.thread_time()
        for at in range(0, max(1, len(to)), PIECE_BYTES):
            piece = slice(at, at + PIECE_BYTES)
            seconds = len(to[piece]) / self.bytes_per_second + (0 if at else self.latency_seconds)
            end = self._calendar.book(asked, seconds)
            np.copyto(to[piece], source[piece])
            if (left := end - self._now()) > 0:
                self._sleep(left)
        self._count(len(to), asked, time.thread_time() - began)

    def _count(self, size: int, asked: float, processor_seconds: float) -> None:
        ended = self._now()
        busy = ended - max(asked, self._last_end)
        self._last_end = ended
        with self._guard:
            self._counted = [a + b for a, b in zip(self._counted, (size, busy, processor_seconds), strict=True)]

    def _work(self) -> None:
        while (job := self._waiting.get()) is not None:
            if isinstance(job, threading.Event):
                job.set()
                continue
            ended = job.ended
            try:
                self.move(job.to, job.source, job.asked)
            except BaseException as error:
                self.error = error
            finally:
                del job  # the memory is free before anybody hears of it
                ended()
