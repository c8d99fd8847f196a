"""Joining the ranks that a launcher has started, and leaving them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec

from lms3d import collector, errors, keras_backend
from lms3d.console import quiet_native_log
from lms3d.errors import InputError
from lms3d.ranks import lost_rank, meeting
from lms3d.ranks.link import Link
from lms3d.ranks.world import World

FUSION_BYTES = 32 << 20
"""The size of the buffer that Horovod packs gradients into. Horovod's default, 128 MiB, would take too much of the device's memory
limit."""

BACKENDS = ("auto", "horovod", "tensorflow")
"""What carries gradients between ranks. auto: Horovod if it is installed, unless `lms3d.launch` started the ranks."""

# Variables in which launchers put the number of ranks. A batch script of Slurm has SLURM_NTASKS, too, so that is not among them;
# only srun sets the last one.
_SIZES = (meeting.SIZE, "HOROVOD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS")


def join(backend: str = "auto") -> World:
    """The world that the launcher made, or a world of one. backend: one of `BACKENDS`.

    InputError if several ranks were started but cannot communicate.
    """
    by_launch = meeting.STORE in os.environ  # perhaps within one task of srun, whose number of tasks is another
    started = max(int(os.environ.get(name, "1") or 1) for name in (_SIZES[:1] if by_launch else _SIZES))
    elastic = os.environ.get("HOROVOD_ELASTIC") == "1"
    if started == 1 and not elastic:
        return World()
    keras_backend.use_tensorflow()
    link = _by_horovod(started) if elastic or _uses_horovod(backend) else _by_tensorflow()
    world = World(**link.place(), link=link)
    if world.size < started and not elastic:  # in an elastic job the variables describe the first world
        link.close()
        raise InputError(f"{started} ranks were started, but this one sees {world.size}: {_why_alone(link)}")
    return world


def _uses_horovod(backend: str) -> bool:
    """Whether Horovod links the ranks. InputError if it is asked for, and the launcher is one that it does not know."""
    if backend == "horovod" and meeting.STORE in os.environ:
        raise InputError(
            "--ranks horovod: Horovod does not know python -m lms3d.launch; start with horovodrun, mpirun or srun, or leave "
            "--ranks out"
        )
    if backend == "auto":
        return meeting.STORE not in os.environ and find_spec("horovod") is not None
    return backend == "horovod"


def _by_horovod(started: int) -> Link:
    os.environ.setdefault("HOROVOD_FUSION_THRESHOLD", str(FUSION_BYTES))
    lost_rank.bound_waits()
    try:
        with quiet_native_log(), collector.kept_from_imports(), keras_backend.without_optional_packages():
            from lms3d.ranks import horovod
    except Exception as error:  # a library that was built for another TensorFlow may raise anything
        raise InputError(
            f"{started} ranks were started, but Horovod cannot be used here ({_first_line(error)}); install it with "
            "make horovod, give --ranks tensorflow, or start one process without a launcher"
        ) from None
    return horovod.Horovod()


def _by_tensorflow() -> Link:
    found = meeting.of_launcher()
    with quiet_native_log(), collector.kept_from_imports():
        from lms3d.ranks import collectives
    return collectives.Collectives(found)


def _why_alone(link: Link) -> str:
    if link.speaks_mpi:
        return "its MPI does not find the others; use the mpirun of the MPI that it was built with, or srun --mpi=pmix"
    return (
        "Horovod was built without MPI, which this launcher speaks; start with horovodrun, give --ranks tensorflow, or have mpirun "
        "on the PATH and build Horovod again (make horovod)"
    )


def leave(world: World, *, together: bool = True) -> None:
    """Leaves the other ranks. Call it last. together: whether all ranks leave, now or later."""
    if world.link is not None:
        world.link.close(together)


@contextmanager
def joined(backend: str = "auto") -> Iterator[World]:
    """Joins a world for the block, and leaves it at the end. backend: one of `BACKENDS`.

    An error is reported before any rank leaves, because a launcher ends the whole job as soon as one process has failed. If all
    ranks share the error, rank 0 reports it.
    """
    world = join(backend)
    together = True
    try:
        with lost_rank.watched(world), reported_once(world):
            yield world
    except BaseException as error:
        together = errors.is_of_all_ranks(error)
        raise
    finally:
        leave(world, together=together)


@contextmanager
def reported_once(world: World) -> Iterator[None]:
    """Lets rank 0 alone report an error that all ranks have."""
    try:
        yield
    except BaseException as error:
        if world.size > 1 and errors.is_of_all_ranks(error):
            errors.report_once(error, world.is_chief)
            with suppress(Exception):
                world.from_chief(lambda: None)  # the others wait here until rank 0 has reported it
        raise


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
