"""A disk: raw bytes between a tensor's own buffer and a file, without a second copy and without the Python lock.

    copied   t -> lms/swap_out/t (writes a file) -> lms/swap_in/t/k/read -> lms/swap_in/t/k -> z
                                     lms/swap_in/t/k/buffer -/   (the gate: an empty tensor, which the read fills)

    mapped   t -> lms/swap_out/t (writes a file) -> lms/swap_in/t/k (after a look for dropped pages, if in doubt) -> z
                                     lms/swap_out/t/place -/     (an input of the function: where the file lies)

Where the device is the processor and nothing keeps the tensor after the step (`liveness.lasting`), it is not copied back but
read where it lies, in the page cache: it takes no memory of TensorFlow's allocator, the limit does not count it, and the
system may drop its pages and read them again.

MAPPED-1  The place of a file is known before it is written (`SwapFile.place`): a swap-in passes it on, and calls no Python.
MAPPED-2  It calls `SwapFile.fetch` first where the swap-out found that the file was new or had lost pages, and in the step
          after one in which pages were dropped or a transfer failed. Such a step reads dropped pages as without MAPPED-1.
MAPPED-3  Else nobody looks. Pages that go all the same come back by themselves, which FILE-3 notices: the step is an error
          where they came back wrong. But a disk that cannot be read at that moment ends the process with a signal.

The files are private to the user. They are removed when the tier is closed, when neither its owner nor a function that swaps to
it is left, when the process ends, even by a signal, and after a crash of the machine by the next run (`orphans`).
"""

from __future__ import annotations

import contextlib
import os
import platform
import resource
import shutil
import weakref
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np
import tensorflow as tf

from lms3d.device import machine
from lms3d.errors import InputError, StorageError
from lms3d.swap.tensorflow import marks, surgery
from lms3d.swap.tiers import in_place
from lms3d.swap.tiers.base import COUNTERS, Tier, TierSpeed, best_seconds, gate_name
from lms3d.swap.tiers.orphans import new_folder, remove_orphans, swap_parent
from lms3d.swap.tiers.swap_file import SwapFile, writes_in_place
from lms3d.swap.tiers.traffic import Traffic
from lms3d.swap.tuning import COPYING_SHARE, NODE_SECONDS, PROBE_BYTES, PROBE_FILES

_Moved = TypeVar("_Moved")
_ELSEWHERE = "free space there or choose another folder with --swap-dir"


class DiskTier(Tier):
    """Files in a private folder below `directory` (default: the system's temporary folder).

    Raises InputError when the folder cannot be made, StorageError (through the step) on a full disk or an I/O error.
    """

    name = "disk"
    memory_in_plan_order = True
    measures_transfers = True
    may_fail = True

    def __init__(self, directory: str | Path | None = None) -> None:
        parent = swap_parent(directory)
        remove_orphans(parent)
        with _writable(parent):
            self.directory, held = new_folder(parent)
        self._count = 0
        self._out, self._in = Traffic(), Traffic()
        # Graph -> swap-out -> number of its file.
        self._files: weakref.WeakKeyDictionary[tf.Graph, dict[str, int]] = weakref.WeakKeyDictionary()
        self._swap_files: dict[int, SwapFile] = {}
        self._pages_go = False  # MAPPED-2: pages were dropped, in this step or the one before
        self._fetched = False
        # At the end of the process, too.
        self._end = weakref.finalize(self, _remove, os.getpid(), self.directory, held, self._swap_files)

    def swap_out(self, tensor: tf.Tensor, name: str) -> tf.Operation:
        number, self._count = self._count, self._count + 1
        self._files.setdefault(tensor.graph, {})[name] = number
        self._swap_files[number] = SwapFile(self.directory / f"{number}.bin")
        surgery.needs(tensor.graph, self)
        tier = weakref.proxy(self)  # TensorFlow keeps what a graph calls for ever: that must not hold the tier

        def write(array: np.ndarray) -> np.bool_:
            data = array.reshape(-1).view(np.uint8)
            was_there = tier._transfer(marks.OUT, tier._swap_files[number].write, data)
            return np.bool_(tier._pages_go or not was_there)  # MAPPED-2: whether to look

        with surgery.insertion(tensor.graph, "CPU:0"):
            handle = tf.numpy_function(write, [tensor], tf.bool, name=name)
        handle.set_shape(())
        surgery.keep(handle.op)
        return handle.op

    def swap_in(
        self, handle: tf.Tensor, like: tf.Tensor, name: str, triggers: Sequence[tf.Operation], *, mapped: bool = False
    ) -> tf.Tensor:
        number, tier = self._files[handle.graph][handle.op.name], weakref.proxy(self)
        if mapped:
            place = self._place(number, handle, like)
            return in_place.read(place, handle, lambda: tier._fetch(number), name, triggers)

        def read(array: np.ndarray, handle: np.bool_) -> np.bool_:
            # The array is a view of the empty tensor's own buffer, which no op can see yet.
            tier._transfer(marks.IN, tier._swap_files[number].read, array.reshape(-1).view(np.uint8))
            return handle

        with surgery.insertion(handle.graph, "CPU:0", triggers):
            empty = tf.raw_ops.Empty(shape=like.shape.as_list(), dtype=like.dtype, name=gate_name(name))
        with surgery.insertion(handle.graph, "CPU:0"):
            done = tf.numpy_function(read, [empty, handle], tf.bool, name=f"{name}/read")
        with surgery.insertion(handle.graph, "CPU:0", [done.op]):
            back = tf.raw_ops.Identity(input=empty, name=name)
        for op in (empty.op, done.op, back.op):
            surgery.keep(op)
        return back

    def _place(self, number: int, handle: tf.Tensor, like: tf.Tensor) -> tf.Tensor:
        """MAPPED-1: the file behind `handle`, as an input of the graph. The function holds the tensor: TensorFlow then sees a
        second owner, and no kernel writes into it."""
        graph, name = handle.graph, f"{handle.op.name}/place"
        with contextlib.suppress(KeyError):
            return graph.get_tensor_by_name(f"{name}:0")
        size = like.shape.num_elements() * like.dtype.size
        try:
            place = self._swap_files[number].place(size)
        except OSError as error:
            raise self._failed(error, f"mapping {size:,} bytes") from None
        return surgery.capture_elsewhere(graph, in_place.as_tensor(place, like.shape.as_list(), like.dtype), name)

    def _fetch(self, number: int) -> None:
        """MAPPED-2."""
        file = self._swap_files[number]
        try:
            with self._in, marks.transfer(marks.IN) as mark:
                size = file.fetch()
                mark.set_metadata(size_bytes=size)
        except OSError as error:
            self._failed(error, "moving what was swapped out back")
            raise
        self._in.count(size)
        self._fetched |= size > 0

    def _transfer(self, way: str, move: Callable[[np.ndarray], _Moved], data: np.ndarray) -> _Moved:
        """Move the whole of the flat array of bytes `data` to or from its file. way: `marks.OUT` or `marks.IN`."""
        traffic = self._out if way == marks.OUT else self._in
        try:
            with traffic, marks.transfer(way, len(data)):
                moved = move(data)
        except OSError as error:
            self._failed(error, f"moving {len(data):,} bytes")
            raise
        traffic.count(len(data))
        return moved

    def _failed(self, error: OSError, work: str) -> StorageError:
        """Keeps an error of the disk: TensorFlow would pass on the text alone."""
        self._pages_go = True
        self.error = StorageError(
            f"swap folder {str(self.directory.parent)!r}: {error.strerror} while {work}; {_ELSEWHERE}"
        )
        return self.error

    def take_counters(self) -> dict[str, float]:
        out_bytes, out_seconds = self._out.take()
        in_bytes, in_seconds = self._in.take()
        return dict(zip(COUNTERS, (out_bytes, in_bytes, out_seconds, in_seconds), strict=True))

    def begin(self) -> int:
        self.error = None
        return _pages_read()

    def check(self, begun: int) -> None:
        """FILE-3: after a function that waited for a page. MAPPED-2 for the next one."""
        waited = _pages_read() != begun
        self._pages_go, self._fetched = waited or self._fetched, False
        if not waited:
            return
        try:
            for file in [*self._swap_files.values()]:
                file.sync()
        except OSError as error:
            raise self._failed(error, "writing back what was swapped out") from None

    def discard(self, graph: tf.Graph) -> None:
        for number in self._files.pop(graph, {}).values():
            self._swap_files.pop(number).remove()

    def close(self) -> None:
        self._end()

    @classmethod
    def prepare(cls, directory: Path | None) -> None:
        """Removes what crashed runs left; InputError where a folder that the user gave is not writable."""
        parent = swap_parent(directory)
        remove_orphans(parent)
        if directory is None:
            return
        with _writable(parent):
            parent.mkdir(parents=True, exist_ok=True)
        if not os.access(parent, os.W_OK):
            raise InputError(f"swap folder {str(parent)!r} is not writable; give another one with --swap-dir")

    @classmethod
    def place(cls, directory: Path | None) -> str:
        """The machine, since many may share a home, and the file system: a folder is as fast as the one of the run before."""
        return f"{platform.node()} {machine.mount_point(swap_parent(directory))}"

    @classmethod
    def speed(cls, device: str, directory: Path | None) -> TierSpeed:
        """Write and read some files in turn, as swap files are: mostly the page cache's speed.

        Several, of tensors of their own: one alone would stay in the processor's caches, which a step does not leave to it.
        """
        parent, tensors = swap_parent(directory).resolve(), [np.ones(PROBE_BYTES, np.uint8) for _ in range(PROBE_FILES)]
        try:
            folder, held = new_folder(parent)
            try:
                files = [SwapFile(folder / str(number)) for number in range(PROBE_FILES)]
                _each(files, "write", tensors)  # the first time finds a full disk, and the blocks
                out_seconds, in_seconds = (
                    best_seconds(partial(_each, files, way, tensors)) for way in ("write", "read")
                )
            finally:
                _remove(os.getpid(), folder, held, {})
        except OSError as error:
            raise StorageError(
                f"swap folder {str(parent)!r}: {error.strerror} while measuring its speed; {_ELSEWHERE}"
            ) from None
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
            f"swap folder {str(parent)!r}: {error.strerror}; give a writable folder with --swap-dir"
        ) from None


def _each(files: list[SwapFile], way: str, tensors: list[np.ndarray]) -> None:
    for file, data in zip(files, tensors, strict=True):
        getattr(file, way)(data)


def _remove(owner: int, directory: Path, held: Sequence[int], files: dict[int, SwapFile]) -> None:
    """Removes what is left of a tier. Only its own process may: a fork has a copy of it."""
    if os.getpid() != owner:
        return
    for file in files.values():
        file.remove()
    files.clear()
    shutil.rmtree(directory, ignore_errors=True)
    for descriptor in held:
        with contextlib.suppress(OSError):
            os.close(descriptor)


def _pages_read() -> int:
    """How often this process has waited for a page of a map from a disk (major faults)."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_majflt
