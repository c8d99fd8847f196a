"""Where swapped tensors live: host memory, or a disk. Each tier makes the ops of one swap-out and one swap-in.

    host    device:  t                                     z
                      \\                                   /
            host:      lms/swap_out/t -> lms/swap_in/t/k      (one Identity each; triggers act on the second, because
                                                               the copy to the device starts when it fires)

    disk    t -> lms/swap_out/t (writes a file) -> lms/swap_in/t/k/read -> lms/swap_in/t/k -> z
                                    lms/swap_in/t/k/buffer -/   (an empty tensor on the host, which the read fills)

    mapped  t -> lms/swap_out/t (writes a file) -> lms/swap_in/t/k -> z       (a tensor whose bytes are the mapped file's)

The disk tier moves raw bytes between the tensor's own buffer and a file of its own (`lms3d.swap.tiers.swap_file`), without a
second copy and without the Python lock. Where the device is the processor and nothing keeps the tensor after the step
(`liveness.lasting`), it is not copied back at all but read where it lies, in the page cache: it takes no memory of
TensorFlow's allocator then, the limit does not count it, and the system may take its pages away and read them again.

The files are private to the user, and are removed when the tier is closed, when neither its owner nor a function that swaps
to it is left, when the process ends, even by a signal, and, after a crash of the machine, by the next run (their owner holds
a lock that dies with it).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import resource
import shutil
import tempfile
import threading
import time
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import tensorflow as tf

from lms3d.errors import InputError, StorageError
from lms3d.swap.tensorflow import surgery
from lms3d.swap.tiers.orphans import remove_after
from lms3d.swap.tiers.swap_file import SwapFile

_PREFIX = "lms3d-swap-"


class Tier(Protocol):
    """Makes the nodes of a swap and counts what passes through them."""

    name: str
    takes_turns: bool  # whether the moments at which swapped memory changes hands can be planned

    def swap_out(self, tensor: tf.Tensor, name: str) -> tf.Operation:
        """The op that copies `tensor` out; its output 0 is what `swap_in` wants."""

    def swap_in(
        self, handle: tf.Tensor, like: tf.Tensor, name: str, triggers: Sequence[tf.Operation], *, mapped: bool = False
    ) -> tf.Tensor:
        """The tensor that came back: same shape and type as `like`, fetched after the ops of `triggers`.

        mapped: it may be the very bytes that were swapped out, which the next step overwrites.
        """

    def take_counters(self) -> dict[str, float]:
        """Bytes and seconds of swapping since the last call; empty where the tier cannot measure them.

        Seconds are those in which a link was busy: transfers that overlap count once, so bytes / seconds is its bandwidth.
        """

    def begin(self) -> None:
        """Before a step, and before its function runs. What has failed earlier explains nothing in it."""

    def check(self) -> None:
        """After a function: StorageError where the tier has failed to keep what it may have read."""

    def discard(self, graph: tf.Graph) -> None:
        """Give back the space of a graph that will not run again."""

    def close(self) -> None:
        """Give everything back."""


class HostTier:
    """Host memory. On a GPU the copies are TensorFlow's own, through pinned memory; on a CPU they are aliases and save nothing."""

    name = "host"
    takes_turns = False  # a copy to a GPU takes its memory by itself when it begins

    def __init__(self, device: str = "CPU:0") -> None:
        self.device = device

    def swap_out(self, tensor: tf.Tensor, name: str) -> tf.Operation:
        with surgery.insertion(tensor.graph, self.device):
            op = tf.raw_ops.Identity(input=tensor, name=name).op
        surgery.keep(op)
        return op

    def swap_in(
        self, handle: tf.Tensor, like: tf.Tensor, name: str, triggers: Sequence[tf.Operation], *, mapped: bool = False
    ) -> tf.Tensor:
        with surgery.insertion(handle.graph, self.device, triggers):
            back = tf.raw_ops.Identity(input=handle, name=name)
        surgery.keep(back.op)
        return back

    def take_counters(self) -> dict[str, float]:
        return {}

    def begin(self) -> None:
        pass

    def check(self) -> None:
        pass

    def discard(self, graph: tf.Graph) -> None:
        pass

    def close(self) -> None:
        pass


class DiskTier:
    """Files in a private folder below `directory` (default: the system's temporary folder).

    Raises InputError when the folder cannot be made, StorageError (through the step) on a full disk or an I/O error.
    error: what the disk failed with, until the next step begins; the step passes on its text alone.
    """

    name = "disk"
    takes_turns = True

    def __init__(self, directory: str | Path | None = None) -> None:
        parent = swap_parent(directory)
        remove_orphans(parent)
        try:
            parent.mkdir(parents=True, exist_ok=True)
            self.directory = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))  # mode 0700
            held = _lock(self.directory), remove_after(self.directory)
        except OSError as error:
            raise InputError(
                f"swap folder {str(parent)!r}: {error.strerror}; give a writable folder with --swap-dir"
            ) from None
        self._count = 0
        self._guard = threading.Lock()
        self._counters = dict.fromkeys(_COUNTERS, 0.0)
        self._under_way = dict.fromkeys(_COUNTERS, 0)  # transfers in this moment, by their counter of seconds
        self._busy_since = dict.fromkeys(_COUNTERS, 0.0)
        self._files: dict[int, list[int]] = defaultdict(list)  # graph (its id) -> numbers of its files
        self._swap_files: dict[int, SwapFile] = {}
        self._views: dict[int, tf.Tensor] = {}  # number -> the mapped file as a tensor
        self._pages_read = 0  # when the step began
        self.error: StorageError | None = None
        # At the end of the process, too.
        self._end = weakref.finalize(self, _remove, os.getpid(), self.directory, held, self._swap_files, self._views)

    def swap_out(self, tensor: tf.Tensor, name: str) -> tf.Operation:
        number, self._count = self._count, self._count + 1
        self._files[id(tensor.graph)].append(number)
        surgery.needs(tensor.graph, self)
        tier = weakref.proxy(self)  # TensorFlow keeps what a graph calls for ever: that must not hold the tier

        file = self._swap_files[number] = SwapFile(self.directory / f"{number}.bin")

        def write(array: np.ndarray) -> np.int64:
            tier._transfer(file.write, np.ascontiguousarray(array), "swapped_out_bytes", "swap_out_seconds")
            return np.int64(number)

        with surgery.insertion(tensor.graph, "CPU:0"):
            handle = tf.numpy_function(write, [tensor], tf.int64, name=name)
        handle.set_shape(())
        surgery.keep(handle.op)
        return handle.op

    def swap_in(
        self, handle: tf.Tensor, like: tf.Tensor, name: str, triggers: Sequence[tf.Operation], *, mapped: bool = False
    ) -> tf.Tensor:
        if mapped:
            return self._read_in_place(handle, like, name, triggers)
        tier = weakref.proxy(self)

        def read(array: np.ndarray, number: np.int64) -> np.int64:
            # The array is a view of the empty tensor's own buffer, which nobody else can see yet.
            tier._transfer(tier._swap_files[int(number)].read, array, "swapped_in_bytes", "swap_in_seconds")
            return number

        with surgery.insertion(handle.graph, "CPU:0", triggers):
            empty = tf.raw_ops.Empty(shape=like.shape.as_list(), dtype=like.dtype, name=f"{name}/buffer")
        with surgery.insertion(handle.graph, "CPU:0"):
            done = tf.numpy_function(read, [empty, handle], tf.int64, name=f"{name}/read")
        with surgery.insertion(handle.graph, "CPU:0", [done.op]):
            back = tf.raw_ops.Identity(input=empty, name=name)
        for op in (empty.op, done.op, back.op):
            surgery.keep(op)
        return back

    def _read_in_place(
        self, handle: tf.Tensor, like: tf.Tensor, name: str, triggers: Sequence[tf.Operation]
    ) -> tf.Tensor:
        shape, dtype, tier = like.shape.as_list(), like.dtype, weakref.proxy(self)

        def view(number: tf.Tensor) -> tf.Tensor:
            file = tier._swap_files[int(number)]
            with tier._reported(f"moving {like_bytes:,} bytes"), tier._busy("swap_in_seconds"):
                tier._count_bytes("swapped_in_bytes", file.fetch())
                data = file.mapped()
            # One tensor for all, which is kept: as long as it is, TensorFlow sees a second owner and writes into none of them.
            found = tier._views.get(int(number))
            return tier._views.setdefault(int(number), _tensor(data, shape, dtype)) if found is None else found

        like_bytes = like.shape.num_elements() * dtype.size
        with surgery.insertion(handle.graph, "CPU:0", triggers):
            back = tf.py_function(view, [handle], dtype, name=name)
        back.set_shape(shape)
        surgery.keep(back.op)
        return back

    def _transfer(
        self, move: Callable[[np.ndarray], None], array: np.ndarray, bytes_key: str, seconds_key: str
    ) -> None:
        """Move a whole array to or from its file."""
        data = array.reshape(-1).view(np.uint8)
        with self._reported(f"moving {len(data):,} bytes"), self._busy(seconds_key):
            move(data)
        self._count_bytes(bytes_key, len(data))

    @contextlib.contextmanager
    def _reported(self, work: str) -> Iterator[None]:
        """Keeps what the disk fails with: TensorFlow would pass on the text alone."""
        try:
            yield
        except OSError as error:
            self.error = StorageError(
                f"swap folder {str(self.directory.parent)!r}: {error.strerror} while {work}; "
                "free space there or choose another folder with --swap-dir"
            )
            self._views.clear()  # a file that has failed is made anew, and is another map then
            raise

    def _count_bytes(self, key: str, size: int) -> None:
        with self._guard:
            self._counters[key] += size

    @contextlib.contextmanager
    def _busy(self, seconds_key: str) -> Iterator[None]:
        """Counts the seconds in which at least one transfer of a direction is under way."""
        with self._guard:
            if self._under_way[seconds_key] == 0:
                self._busy_since[seconds_key] = time.perf_counter()
            self._under_way[seconds_key] += 1
        try:
            yield
        finally:
            with self._guard:
                self._under_way[seconds_key] -= 1
                if self._under_way[seconds_key] == 0:
                    self._counters[seconds_key] += time.perf_counter() - self._busy_since[seconds_key]

    def take_counters(self) -> dict[str, float]:
        with self._guard:
            taken, self._counters = self._counters, dict.fromkeys(_COUNTERS, 0.0)
        return taken

    def begin(self) -> None:
        self.error, self._pages_read = None, _pages_read()

    def check(self) -> None:
        if _pages_read() == self._pages_read:
            return
        try:
            with self._reported("writing back what was swapped out"):
                for file in [*self._swap_files.values()]:
                    file.sync()
        except OSError:
            assert self.error is not None, "_reported keeps it"
            raise self.error from None

    def discard(self, graph: tf.Graph) -> None:
        for number in self._files.pop(id(graph), ()):
            self._views.pop(number, None)
            self._swap_files.pop(number).remove()

    def close(self) -> None:
        self._end()


def _remove(
    owner: int, directory: Path, held: Sequence[int], files: dict[int, SwapFile], views: dict[int, tf.Tensor]
) -> None:
    """What is left of a tier, by the process that made it alone: a fork has a copy."""
    if os.getpid() != owner:
        return
    views.clear()
    for file in files.values():
        file.remove()
    files.clear()
    shutil.rmtree(directory, ignore_errors=True)
    for descriptor in held:
        with contextlib.suppress(OSError):
            os.close(descriptor)


def _tensor(data: np.ndarray, shape: list[int], dtype: tf.DType) -> tf.Tensor:
    """The bytes of `data`, which must be aligned as a page is, as a tensor. No copy."""
    kind = dtype.as_numpy_dtype
    known = isinstance(kind, type) and kind.__module__ == "numpy"
    plain = dtype if known else tf.as_dtype(f"uint{8 * dtype.size}")  # bfloat16 and the like
    array = data.view(plain.as_numpy_dtype).reshape(shape)
    with tf.device("CPU:0"):
        tensor = tf.experimental.dlpack.from_dlpack(array.__dlpack__())
        return tensor if known else tf.bitcast(tensor, dtype)


_COUNTERS = ("swapped_out_bytes", "swapped_in_bytes", "swap_out_seconds", "swap_in_seconds")


def _pages_read() -> int:
    """How often this process has waited for a page of a map from a disk."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_majflt


def _lock(directory: Path) -> int:
    """Hold a lock that the kernel gives up when this process dies, however it dies."""
    file = os.open(directory / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return file


def swap_parent(directory: str | Path | None) -> Path:
    """Where swap folders are made: `directory`, else the system's temporary folder."""
    return Path(directory or tempfile.gettempdir())


def remove_orphans(parent: Path) -> list[Path]:
    """Remove this user's swap folders whose owner is gone; returns them."""
    removed = []
    for folder in parent.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            if folder.stat().st_uid != os.getuid() or time.time() - folder.stat().st_mtime < 5:
                continue  # not ours, or so young that its owner may not hold the lock yet
            file = os.open(folder / "lock", os.O_RDWR)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder)
                removed.append(folder)
            finally:
                os.close(file)
    return removed
