"""Horovod elastic: a job that goes on with the ranks that are left, and takes in new ones.

    join -> train_once -> done
     ^          |
     |          +-- a rank is lost: its step is discarded; back to the last commit
     +----------+-- the launcher has found more hosts, or fewer: after a commit

Each rank keeps the last commit (what a checkpoint holds) in its own memory, and the next rank 0 sends it to all:
horovodrun numbers the ranks by age, so that rank 0 is never a new one. Steps of an epoch and learning rate then follow from
the new number of ranks, as when a run is resumed on another number of them. Lost are the steps since the last commit, and
the random states of lost ranks: the bits of an elastic run cannot be reproduced.
"""

from __future__ import annotations

import contextlib
import gc
import os
import socket
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from lms3d import console
from lms3d.errors import InputError
from lms3d.ranks import job
from lms3d.ranks.lost_rank import is_loss
from lms3d.ranks.world import World

T = TypeVar("T")

COMMIT_SECONDS = 10.0
"""Between two commits within an epoch. One takes some 30 ms for 100 MB of weights."""


class HostsChanged(Exception):
    """Raised on all ranks at the same step, after a commit: the launcher wants to start other ranks."""


class Memory:
    """What a run keeps in this process from one world to the next.

    committed: the last commit, an immutable value; None before the first.
    worlds: how many this process has been in; in the second TensorFlow runs already.
    """

    def __init__(self) -> None:
        self.committed: Any = None
        self.worlds = 0
        self._agreed: list[Any] = []  # one value at most
        self._committed_at = time.monotonic()
        self._changed = threading.Event()

    @property
    def resuming(self) -> bool:
        """Whether this job has trained in an earlier world."""
        return self.worlds > 1

    @property
    def due(self) -> bool:
        """Whether it is time for a commit."""
        return self.changed or time.monotonic() - self._committed_at > COMMIT_SECONDS

    @property
    def changed(self) -> bool:
        """Whether there are other hosts than before. Rank 0 alone is told."""
        return self._changed.is_set()

    def commit(self, snapshot: Any) -> None:
        """Keeps a snapshot of the run."""
        self.committed, self._committed_at = snapshot, time.monotonic()

    def once(self, make: Callable[[], T]) -> T:
        """What `make` returned in the first world of the job, also for ranks that joined later: options and run folder."""
        if not self._agreed:
            self._agreed.append(make())
        agreed: T = self._agreed[0]
        return agreed

    def share(self, world: World) -> None:
        """Tells new ranks what was agreed on before they came. Commits stay: `replicas.synchronise` sends the variables."""
        self._agreed = world.from_chief(lambda: self._agreed)
        self.worlds += 1
        self._committed_at = time.monotonic()
        self._changed.clear()

    def on_hosts_updated(self, timestamp: int, result: Any) -> None:
        """Horovod calls this on rank 0, from a thread of its own."""
        self._changed.set()


def run(train_once: Callable[[World, Memory], T]) -> T:
    """Calls `train_once` with each world that comes to be, until it returns.

    It must start from `memory.committed` where rank 0 has one. Errors of its own end the job.
    InputError where the launcher was not asked for an elastic job.
    """
    if os.environ.get("HOROVOD_ELASTIC") != "1":
        raise InputError(
            "--elastic needs a launcher that replaces ranks: start with horovodrun -np 3 --min-np 2 "
            "--host-discovery-script SCRIPT python -m lms3d.train --elastic ..."
        )
    memory = Memory()
    ended = ""  # how the world before did
    while True:
        with _world(memory) as world:
            try:
                with job.reported_once(world):
                    memory.share(world)
                    if ended:
                        console.silence(not world.is_chief)  # rank 0 of the world before may be lost
                        console.say(f"{ended} become {world.size}, and training goes on from the last commit")
                    return train_once(world, memory)
            except Exception as error:
                if not isinstance(error, HostsChanged) and not is_loss(error):
                    raise
                what = "The launcher has other hosts now" if isinstance(error, HostsChanged) else "A rank is lost"
                ended = f"{what}: {world.size} ranks"
                _let_go(error)


@contextlib.contextmanager
def _world(memory: Memory) -> Iterator[World]:
    """Joins a world, in which Horovod tells `memory` of other hosts, and leaves it."""
    before = _sockets()
    world = job.join()
    opened = _sockets() - before
    from lms3d.ranks import notices

    notices.listen(memory)
    try:
        yield world
    finally:
        notices.stop(memory)
        job.leave(world)
        _hang_up(opened)


def _sockets() -> set[tuple[int, str]]:
    """The open sockets of this process: (file number, identity)."""
    found = set()
    for entry in os.scandir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the one of this listing is gone
            if (name := os.readlink(entry.path)).startswith("socket:"):
                found.add((int(entry.name), name))
    return found


def _hang_up(sockets: set[tuple[int, str]]) -> None:
    """Ends those connections that are still open.

    Horovod 0.28.1 leaves some open when it shuts down (the process set's Gloo context is never told that it is enabled, so
    that its `Finalize` does nothing). A rank that waits for this one there would notice only after Gloo's time-out.
    """
    for number, _ in sockets & _sockets():
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(number)) as connection:
            connection.getpeername()  # OSError for one that listens
            connection.shutdown(socket.SHUT_RDWR)


def _let_go(error: BaseException) -> None:
    """Frees what the failed training holds: two models may not fit into the memory limit."""
    import keras

    seen: BaseException | None = error
    while seen is not None:
        traceback.clear_frames(seen.__traceback__)
        seen = seen.__cause__ or seen.__context__
    keras.backend.clear_session(free_memory=False)
    gc.collect()
