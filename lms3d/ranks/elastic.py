"""Elastic jobs with Horovod: a job continues with the ranks that are left, and takes in new ones.

    join -> train_once -> done
     ^          |
     |          +-- a rank is lost: the step is discarded; back to the last commit
     +----------+-- the launcher has found more hosts, or fewer: after a commit

Each rank keeps the last commit, which has the content of a checkpoint, in its own memory. The next rank 0 sends its commit to all:
horovodrun numbers the ranks by age, so that rank 0 is never a new one. The steps of an epoch and the learning rate then follow from
the new number of ranks, as if the run were resumed on that number. The steps since the last commit are lost, and so are the random
states of lost ranks. So the bits of an elastic run cannot be reproduced.
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
"""The time between two commits within an epoch. A commit takes some 30 ms for 100 MB of weights."""


class HostsChanged(Exception):
    """The launcher wants to start other ranks. It is raised on all ranks at the same step, after a commit."""


class Memory:
    """The memory of a run in this process, which lasts from one world to the next.

    committed: the last commit, an immutable value; None before the first commit.
    worlds: the number of worlds that this process has been in. From the second on, TensorFlow runs already.
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
        """Whether the hosts have changed. The launcher tells rank 0 alone."""
        return self._changed.is_set()

    def commit(self, snapshot: Any) -> None:
        """Keeps a snapshot of the run."""
        self.committed, self._committed_at = snapshot, time.monotonic()

    def once(self, make: Callable[[], T]) -> T:
        """The value that `make` returned in the first world of the job, also on ranks that joined later: options, run folder."""
        if not self._agreed:
            self._agreed.append(make())
        agreed: T = self._agreed[0]
        return agreed

    def share(self, world: World) -> None:
        """Sends new ranks the value of `once`. It sends no commit: `replicas.synchronise` sends the variables."""
        self._agreed = world.from_chief(lambda: self._agreed)
        self.worlds += 1
        self._committed_at = time.monotonic()
        self._changed.clear()

    def on_hosts_updated(self, timestamp: int, result: Any) -> None:
        """Notes that the hosts have changed. Horovod calls this on rank 0, from a thread of its own."""
        self._changed.set()


def run(train_once: Callable[[World, Memory], T]) -> T:
    """Calls `train_once` with one world after another, until it returns; its value.

    `train_once` must start from `memory.committed` if rank 0 has one. Any error of its own ends the job.
    InputError if the launcher was not started for an elastic job.
    """
    if os.environ.get("HOROVOD_ELASTIC") != "1":
        raise InputError(
            "--elastic needs a launcher that replaces ranks: start with horovodrun -np 3 --min-np 2 "
            "--host-discovery-script SCRIPT python -m lms3d.train --elastic ..."
        )
    memory = Memory()
    ending = ""  # how the world before ended
    while True:
        with _world(memory) as world:
            try:
                with job.reported_once(world):
                    memory.share(world)
                    if ending:
                        console.silence(not world.is_chief)  # rank 0 of the world before may be lost
                        console.say(f"{ending} become {world.size}, and training goes on from the last commit")
                    return train_once(world, memory)
            except Exception as error:
                if not isinstance(error, HostsChanged) and not is_loss(error):
                    raise
                cause = "The launcher has other hosts now" if isinstance(error, HostsChanged) else "A rank is lost"
                ending = f"{cause}: {world.size} ranks"
                _free_memory(error)


@contextlib.contextmanager
def _world(memory: Memory) -> Iterator[World]:
    """Joins a world for the block, and leaves it. Horovod notifies `memory` when the hosts change."""
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
        _shut_down(opened)


def _sockets() -> set[tuple[int, str]]:
    """The open sockets of this process: (file number, identity)."""
    sockets = set()
    for entry in os.scandir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the descriptor of this listing is closed by now
            if (name := os.readlink(entry.path)).startswith("socket:"):
                sockets.add((int(entry.name), name))
    return sockets


def _shut_down(sockets: set[tuple[int, str]]) -> None:
    """Shuts down the connections among these sockets that are still open.

    Horovod 0.28.1 leaves some open when it shuts down: the Gloo context of a process set is never marked as enabled, so that its
    `Finalize` does nothing. A rank that waits for this one on such a connection would notice only after Gloo's time-out.
    """
    for number, _ in sockets & _sockets():
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(number)) as connection:
            connection.getpeername()  # OSError if the socket listens
            connection.shutdown(socket.SHUT_RDWR)


def _free_memory(error: BaseException) -> None:
    """Frees the memory of the failed training, because two models may not fit into the memory limit."""
    import keras

    seen: BaseException | None = error
    while seen is not None:
        traceback.clear_frames(seen.__traceback__)
        seen = seen.__cause__ or seen.__context__
    keras.backend.clear_session(free_memory=False)
    gc.collect()
