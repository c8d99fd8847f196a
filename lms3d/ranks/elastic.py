"""Horovod elastic: a job that goes on with the ranks that are left, and takes in new ones.

    join -> train_once -> done
     ^          |
     |          +-- a rank is lost: its step comes to nothing; back to the last commit
     +----------+-- the launcher has found more hosts, or fewer: a commit is made first

Each rank keeps the last commit (what a checkpoint holds) in its own memory. Whoever is rank 0 afterwards gives it to all:
horovodrun numbers the ranks by age, so that rank 0 is never a new one. Steps of an epoch and learning rate then follow from
the new number of ranks, as when a run is resumed on another number of them. Lost with a rank are the steps since the last
commit, and what the runs of lost ranks had for themselves: no bit of an elastic run can be promised beforehand.
"""

from __future__ import annotations

import contextlib
import copy
import gc
import os
import socket
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import numpy as np

from lms3d import console
from lms3d.errors import InputError
from lms3d.ranks import world as distributed
from lms3d.ranks.lost_rank import is_loss
from lms3d.ranks.world import World

T = TypeVar("T")

COMMIT_SECONDS = 10.0
"""Between two commits within an epoch. One takes some 30 ms for 100 MB of weights."""


class HostsChanged(Exception):
    """Raised on all ranks at the same step, after a commit: the launcher wants to start other ranks."""


class Memory:
    """What a run keeps in this process from one world to the next.

    checkpoint: the arrays and the state of the last commit, as `checkpoint.save` takes them; None before the first.
    worlds: how many this process has been in; in the second TensorFlow runs already.
    """

    def __init__(self) -> None:
        self.checkpoint: tuple[dict[str, np.ndarray], dict[str, Any]] | None = None
        self.worlds = 0
        self._agreed: dict[str, Any] = {}
        self._committed = time.monotonic()
        self._changed = threading.Event()

    @property
    def due(self) -> bool:
        """Whether it is time for a commit."""
        return self.changed or time.monotonic() - self._committed > COMMIT_SECONDS

    @property
    def changed(self) -> bool:
        """Whether there are other hosts than before. Rank 0 alone is told."""
        return self._changed.is_set()

    def commit(self, arrays: Mapping[str, np.ndarray], state: Mapping[str, Any]) -> None:
        """Keeps copies."""
        self.checkpoint = {name: np.array(array) for name, array in arrays.items()}, copy.deepcopy(dict(state))
        self._committed = time.monotonic()

    def once(self, name: str, make: Callable[[], T]) -> T:
        """What `make` returned on all ranks in the first world, for the ranks of this one: the options, the run folder."""
        if name not in self._agreed:
            self._agreed[name] = make()
        return self._agreed[name]

    def share(self, world: World) -> None:
        """Tells new ranks what was agreed on before they came. The arrays stay: `World.synchronise` sends the variables."""
        self._agreed = world.from_chief(lambda: self._agreed)
        self.worlds += 1
        self._committed = time.monotonic()
        self._changed.clear()

    def on_hosts_updated(self, timestamp: int, result: Any) -> None:
        """Horovod calls this on rank 0, from a thread of its own."""
        self._changed.set()


def run(train_once: Callable[[World, Memory], T]) -> T:
    """Calls `train_once` with each world that comes to be, until it returns.

    It must start from `memory.checkpoint` where rank 0 has one, and may raise what it likes for errors that are its own.
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
        sockets = _sockets()
        world = distributed.join()
        sockets = _sockets() - sockets
        _listen(memory)
        try:
            with distributed.told_once(world):
                memory.share(world)
                if ended:
                    console.silence(not world.is_chief)  # rank 0 of the world before may be the one that is lost
                    console.say(f"{ended} become {world.size}, and training goes on from the last commit")
                return train_once(world, memory)
        except Exception as error:
            if not isinstance(error, HostsChanged) and not is_loss(error):
                raise
            what = "The launcher has other hosts now" if isinstance(error, HostsChanged) else "A rank is lost"
            ended = f"{what}: {world.size} ranks"
            _let_go(error)
        finally:
            _leave(memory, sockets)


def _listen(memory: Memory) -> None:
    from horovod.common.elastic import notification_manager

    notification_manager.init()
    notification_manager.register_listener(memory)


def _leave(memory: Memory, sockets: set[tuple[int, str]]) -> None:
    from horovod.common.elastic import notification_manager

    from lms3d.ranks import horovod

    notification_manager.remove_listener(memory)
    horovod.close()
    _hang_up(sockets)


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

    Horovod 0.28.1 keeps some when it shuts down (the process set's Gloo context is never told that it is enabled, so that
    its `Finalize` does nothing). A rank that waits for this one there would notice only after Gloo's time-out.
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
