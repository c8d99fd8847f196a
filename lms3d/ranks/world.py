"""Who takes part in a training run. One process alone is a world of size 1: all code asks the world and none asks
whether training is distributed.

Several ranks are several processes that a launcher started (`horovodrun -np 4 python -m lms3d.train ...`, mpirun, srun),
one per device. Each method below that speaks to other ranks must be called by all of them, in the same order; in a
world of one it does nothing, and Horovod is not even imported.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from lms3d import errors
from lms3d.errors import InputError

T = TypeVar("T")

FUSION_BYTES = 32 << 20
"""Horovod packs gradients into one buffer, of 128 MiB if left alone; it comes out of the device's memory limit."""

# How the launchers tell the number of ranks. A batch script of Slurm has SLURM_NTASKS too; only srun sets the last one.
_SIZES = ("HOROVOD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS")


@dataclass(frozen=True, kw_only=True)
class World:
    """The processes of a run (ranks), seen from one of them."""

    rank: int = 0
    """This process, 0 <= rank < size."""

    size: int = 1
    """Number of processes."""

    local_rank: int = 0
    """This process among those on the same machine: the number of its device."""

    local_size: int = 1
    """Number of processes on this machine, which share its cores and its memory."""

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.size:
            raise ValueError(f"rank {self.rank} is not in a world of size {self.size}; expected 0 <= rank < size")

    @property
    def is_chief(self) -> bool:
        """Whether this process writes files and talks to the user."""
        return self.rank == 0

    # -- arithmetic ----------------------------------------------------------------------------------------------------

    def share(self, items: Sequence[T]) -> list[T]:
        """The items of this rank, every `size`-th from `rank` on, as the case study dealt out its subjects."""
        return list(items[self.rank :: self.size])

    def training_steps(self, items: int, batch_size: int) -> int:
        """Steps of an epoch: as many as come nearest to one pass of all ranks together.

        The stream of samples has no end, and the next epoch goes on where this one stopped: nothing is lost by rounding.
        """
        return max(1, (2 * items + self.size * batch_size) // (2 * self.size * batch_size))

    def validation_steps(self, items: int, batch_size: int) -> int:
        """Batches of the rank with the largest share."""
        fullest = -(-items // self.size)
        return -(-fullest // batch_size)

    def learning_rate(self, of_one: float) -> float:
        """The learning rate for the larger batch of all ranks together: linear scaling, as in the case study."""
        return of_one * self.size

    # -- speaking to the others ----------------------------------------------------------------------------------------

    def from_chief(self, make: Callable[[], T]) -> T:
        """What `make` returns or raises on rank 0, on every rank; it is called on no other. Works before TensorFlow
        has devices, too."""
        if self.size == 1:
            return make()
        from lms3d.ranks import horovod, messages

        raised: BaseException | None = None
        message = b""
        if self.is_chief:
            message, raised = _outcome(make)
        value, error = messages.unpacked(horovod.broadcast(self, message))
        if error is not None:
            raise errors.of_all_ranks(raised or error)
        return value

    def everyone(self, value: T) -> list[T]:
        """The values of all ranks, in their order."""
        if self.size == 1:
            return [value]
        from lms3d.ranks import horovod, messages

        return [messages.unpacked(part) for part in horovod.gather_bytes(messages.packed(value))]

    def mean(self, values: Mapping[str, float], weight: float = 1.0) -> dict[str, float]:
        """Mean over the ranks, weighted by each one's `weight`; the same bits on all. All must have the same names.

        What a rank of weight 0 brings counts nothing, whatever it is; if all weights are 0 they count alike.
        """
        if self.size == 1 or not values:
            return dict(values)
        import numpy as np

        from lms3d.ranks import horovod

        names = sorted(values)
        rows = horovod.gather([weight, *(values[name] for name in names)])
        weights = rows[:, 0] if rows[:, 0].any() else np.ones(self.size)
        counted = weights > 0
        means = (weights[counted, None] * rows[counted, 1:]).sum(0) / weights[counted].sum()
        return {name: float(means[names.index(name)]) for name in values}

    def average(self, values: Any) -> Any:
        """Mean over the ranks of a NumPy array of floats, of the same shape on each."""
        if self.size == 1:
            return values
        from lms3d.ranks import horovod

        return horovod.mean(values)

    def largest(self, values: Sequence[float]) -> list[float]:
        """The largest of all ranks, position by position: 1.0 where any rank has raised a flag."""
        if self.size == 1:
            return [float(value) for value in values]
        from lms3d.ranks import horovod

        return [float(value) for value in horovod.gather(values).max(0)]

    def wait(self) -> None:
        """Returns when all ranks have come here."""
        self.largest([0.0])

    # -- the model -----------------------------------------------------------------------------------------------------

    def synchronise(self, model: Any) -> None:
        """Gives the model of every rank the variables of rank 0, its optimiser's and its metrics' included.

        Afterwards each rank but rank 0 has random states of its own, made from those of rank 0: dropout differs.
        """
        if self.size == 1:
            return
        from lms3d.ranks import replicas

        replicas.synchronise(model, self)

    def average_statistics(self, model: Any) -> None:
        """Makes the moving statistics (of batch normalisation), which each rank has from its own samples, their mean."""
        if self.size == 1:
            return
        from lms3d.ranks import replicas

        replicas.average_statistics(model)

    def close(self, together: bool = True) -> None:
        """Leaves the world; call it last. together: whether all ranks come here, now or later."""
        if self.size > 1:
            from lms3d.ranks import horovod

            horovod.close(together)


def join() -> World:
    """The world that the launcher made, or a world of one. InputError where ranks were started but cannot speak."""
    wanted = max(int(os.environ.get(name, "1") or 1) for name in _SIZES)
    if wanted == 1 and os.environ.get("HOROVOD_ELASTIC") != "1":
        return World()
    from lms3d.device.startup import quiet_native_log
    from lms3d.ranks.lost_rank import bound_waits

    os.environ.setdefault("HOROVOD_FUSION_THRESHOLD", str(FUSION_BYTES))
    bound_waits()
    try:
        with quiet_native_log():
            from lms3d.ranks import horovod
    except Exception as error:  # also what a library raises that was built for another TensorFlow
        raise InputError(
            f"{wanted} ranks were started, but Horovod cannot be used here ({_first_line(error)}); install it with "
            "make horovod, or start one process without a launcher"
        ) from None
    world = World(**horovod.start())
    if world.size < wanted and os.environ.get("HOROVOD_ELASTIC") != "1":  # the variables tell of the first world
        why = (
            "its MPI does not find the others; use the mpirun of the MPI that it was built with, or srun --mpi=pmix"
            if horovod.speaks_mpi()
            else "it was built without MPI, which this launcher speaks; start with horovodrun, or have mpirun on the PATH and "
            "build it again (make horovod)"
        )
        horovod.close()
        raise InputError(f"{wanted} ranks were started, but Horovod sees {world.size}: {why}")
    return world


@contextmanager
def joined() -> Iterator[World]:
    """`join`, and `close` at the end. An error is told before any rank goes, by rank 0 where all ranks share it: a launcher
    ends the whole job as soon as one process has failed."""
    from lms3d.ranks import lost_rank

    world = join()
    together = True
    try:
        with lost_rank.watched(world), told_once(world):
            yield world
    except BaseException as error:
        together = errors.is_of_all_ranks(error)
        raise
    finally:
        world.close(together)


@contextmanager
def told_once(world: World) -> Iterator[None]:
    """Lets rank 0 alone tell of an error that all ranks have."""
    try:
        yield
    except BaseException as error:
        if world.size > 1 and errors.is_of_all_ranks(error):
            errors.tell_once(error, world.is_chief)
            with suppress(Exception):
                world.from_chief(lambda: None)  # the others wait here until rank 0 has told
        raise


def _outcome(make: Callable[[], Any]) -> tuple[bytes, BaseException | None]:
    """(value, error) as bytes, and the error itself. What cannot travel becomes an error that can."""
    from lms3d.ranks import messages

    try:
        value = make()
    except BaseException as error:
        return _packed_error(error), error
    try:
        return messages.packed((value, None)), None
    except Exception as error:
        fault = TypeError(f"World.from_chief: {error}")
        return messages.packed((None, fault)), fault


def _packed_error(error: BaseException) -> bytes:
    from lms3d.ranks import messages

    try:
        message = messages.packed((None, error))
        messages.unpacked(message)  # an exception with an __init__ of its own may not come out again
        return message
    except Exception:
        stand_in: Any = RuntimeError(f"{type(error).__name__}: {error}")
        if isinstance(code := getattr(error, "exit_code", None), int):
            stand_in.exit_code = code
        return messages.packed((None, stand_in))


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
