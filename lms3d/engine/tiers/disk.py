"""A disk: raw bytes between a tensor's own buffer and a file, in C++ beside the step (`lms3d.engine.native.file_lane`).

    copied   t -> lms/swap_out/t -> lms/swap_in/t/k/buffer -> lms/swap_in/t/k -> z
             t -> lms/hold/t                                                         (as in `stream`)

    mapped   t -> lms/swap_out/t -> lms/swap_in/t/k -> z    (LmsReadInPlace)
             t -> lms/hold/t

If the device is the processor, and nothing keeps the tensor after the step (`liveness.lasting`), it is not copied back but read
where it lies, in the page cache. It takes no memory of TensorFlow's allocator, the limit does not count it, and the system may drop
its pages and read them again. MAPPED-1 to MAPPED-3 of `native/src/file_lane.h` say what happens then if the disk fails.

The files are private to the user. They are removed when the tier is closed, when neither its owner nor a function that swaps to it
is left, and when the process ends, even by a signal. After a crash of the machine the next run removes them (`orphans`).

A machine without a C++ compiler and without a compiled library (LMS3D_NATIVE_LIBRARY) can plan and train, but swap nothing.
There is no second implementation in Python: it would have to get the failures of disks (FILE-1 to FILE-5) right once more, and a
GPU needs the compiler anyway.
"""

from __future__ import annotations

import contextlib
import functools
import os
import platform
import resource
import shutil
import weakref
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import psutil
import tensorflow as tf

from lms3d.device import machine
from lms3d.engine.native.file_lane import FileLane, SwapFile
from lms3d.engine.native.lanes import Lane
from lms3d.engine.native.library import library
from lms3d.engine.tensorflow import surgery
from lms3d.engine.tiers.base import TierSpeed, best_seconds
from lms3d.engine.tiers.orphans import new_folder, remove_orphans, swap_parent
from lms3d.engine.tiers.stream import StreamTier
from lms3d.engine.tuning import COPYING_SHARE, NODE_SECONDS, PROBE_BYTES, PROBE_FILES
from lms3d.errors import InputError, StorageError

_ELSEWHERE = "free space there or choose another folder with --swap-dir, or swap_dir in Python"
_IN_PLACE = frozenset({"ext2", "ext3", "ext4", "f2fs", "overlay", "tmpfs", "xfs"})


class DiskTier(StreamTier):
    """Files in a private folder below `directory` (default: the system's temporary folder).

    Raises InputError if the folder cannot be made, StorageError (through the step) on a full disk or an I/O error.
    """

    name = "disk"
    may_fail = True
    waits_on_device = False
    lane: FileLane

    def __init__(self, directory: str | Path | None = None) -> None:
        library()  # before there is a folder
        parent = swap_parent(directory)
        remove_orphans(parent)
        with _writable(parent):
            self.directory, held = new_folder(parent)
        super().__init__(directory, _lane(self.directory))
        # At the end of the process, too.
        self._end = weakref.finalize(self, _remove, os.getpid(), self.directory, held, self.lane)

    def on(self, tensor: tf.Tensor) -> str:
        return self.device  # a file belongs to the host; TensorFlow copies a GPU's results

    def swap_out(self, tensor: tf.Tensor, name: str) -> tf.Operation:
        try:
            return super().swap_out(tensor, name)
        except StorageError as error:
            raise self._named(str(error)) from None

    def swap_in(
        self, handle: tf.Tensor, like: tf.Tensor, name: str, triggers: Sequence[tf.Operation], *, mapped: bool = False
    ) -> tf.Tensor:
        if not mapped:
            return super().swap_in(handle, like, name, triggers)
        with surgery.insertion(handle.graph, self.on(like), triggers):
            back = library().operations.lms_read_in_place(
                handle=handle, T=like.dtype, shape=like.shape, name=name, **self.new_copy(handle)
            )
        surgery.keep(back.op)
        return back

    @property
    def error(self) -> StorageError | None:
        return self._named(failure) if (failure := self.lane.failure) else None

    def _named(self, failure: str) -> StorageError:
        return StorageError(f"swap folder {str(self.directory.parent)!r}: {failure}; {_ELSEWHERE}")

    def begin(self) -> int:
        super().begin()
        self.lane.begin()
        return _pages_read()

    def check(self, begun: int) -> None:
        """Checks the disk if the function waited for a page (FILE-3), and lets the next one look at its pages (MAPPED-2)."""
        super().check(begun)
        try:
            self.lane.check(waited=_pages_read() != begun)
        except StorageError as error:
            raise self._named(str(error)) from None

    def close(self) -> None:
        self._end()

    @classmethod
    def prepare(cls, directory: Path | None) -> None:
        """Removes the files of crashed runs. InputError if a folder that the user gave is not writable."""
        parent = swap_parent(directory)
        remove_orphans(parent)
        if directory is None:
            return
        with _writable(parent):
            parent.mkdir(parents=True, exist_ok=True)
        if not os.access(parent, os.W_OK):
            raise InputError(
                f"swap folder {str(parent)!r} is not writable; give another one with --swap-dir, or swap_dir in Python"
            )

    @classmethod
    def place(cls, directory: Path | None) -> str:
        """The machine, since several may share a home, and the file system: all its folders are equally fast."""
        return f"{super().place(directory)}{platform.node()} {machine.mount_point(swap_parent(directory))}"

    @classmethod
    def measured(cls, device: str, directory: Path | None) -> TierSpeed:
        """The speed of writing and reading some files in turn, like swap files: mostly that of the page cache.

        There are several files, each of its own tensor: a single one would stay in the processor's caches, unlike a step's tensors.
        """
        parent, tensors = swap_parent(directory).resolve(), [np.ones(PROBE_BYTES, np.uint8) for _ in range(PROBE_FILES)]
        try:
            folder, held = new_folder(parent)
        except OSError as error:
            raise _unmeasured(parent, error.strerror) from None
        lane = _lane(folder)
        try:
            files = [lane.file(lane.reserve(PROBE_BYTES), PROBE_BYTES) for _ in tensors]
            _each(files, "write", tensors)  # the first write allocates the blocks, and finds a full disk
            out_seconds, in_seconds = (best_seconds(partial(_each, files, way, tensors)) for way in ("write", "read"))
        except StorageError as error:
            raise _unmeasured(parent, str(error)) from None
        finally:
            _remove(os.getpid(), folder, held, lane)
        return TierSpeed(
            swap_out_bytes_per_second=PROBE_FILES * PROBE_BYTES / out_seconds,
            swap_in_bytes_per_second=PROBE_FILES * PROBE_BYTES / in_seconds,
            swap_share=COPYING_SHARE if device.startswith("CPU") else 0.0,
            node_seconds=NODE_SECONDS,
        )

    @classmethod
    def can_map(cls, device: str, directory: Path | None) -> bool:
        return device.startswith("CPU") and writes_in_place(swap_parent(directory).resolve())


@contextlib.contextmanager
def _writable(parent: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InputError(
            f"swap folder {str(parent)!r}: {error.strerror}; give a writable folder with --swap-dir, or swap_dir in Python"
        ) from None


def _each(files: list[SwapFile], way: str, tensors: list[np.ndarray]) -> None:
    for file, data in zip(files, tensors, strict=True):
        getattr(file, way)(data)


def _unmeasured(parent: Path, why: str | None) -> StorageError:
    return StorageError(f"swap folder {str(parent)!r}: {why} while measuring its speed; {_ELSEWHERE}")


def _lane(folder: Path) -> FileLane:
    return FileLane(folder, in_place=writes_in_place(folder.parent))


@functools.cache
def writes_in_place(folder: Path) -> bool:
    """Whether the file system of a folder is known to rewrite blocks in place, without allocating new ones."""
    place, best = folder.resolve(), ("", "")
    for part in psutil.disk_partitions(all=True):
        if place.is_relative_to(part.mountpoint) and len(part.mountpoint) >= len(best[0]):
            best = part.mountpoint, part.fstype
    return best[1] in _IN_PLACE


def _remove(owner: int, directory: Path, held: Sequence[int], lane: Lane) -> None:
    """Removes the folder of a tier. Only its own process may: a fork has a copy of the tier."""
    if os.getpid() != owner:
        return
    lane.close()
    shutil.rmtree(directory, ignore_errors=True)
    for descriptor in held:
        with contextlib.suppress(OSError):
            os.close(descriptor)


def _pages_read() -> int:
    """The number of times that this process has waited for a page from a disk (major faults)."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_majflt
