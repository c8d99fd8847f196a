"""A disk: raw bytes between a tensor's own buffer and a file, without a second copy and without the Python lock.

    copied   t -> lms/swap_out/t (writes a file) -> lms/swap_in/t/k/read -> lms/swap_in/t/k -> z
                                     lms/swap_in/t/k/buffer -/   (the gate: an empty tensor, which the read fills)

    mapped   t -> lms/swap_out/t (writes a file) -> lms/swap_in/t/k -> z       (a tensor whose bytes are the mapped file's)

Where the device is the processor and nothing keeps the tensor after the step (`liveness.lasting`), it is not copied back but
read where it lies, in the page cache: it takes no memory of TensorFlow's allocator, the limit does not count it, and the
system may drop its pages and read them again.

The files are private to the user. They are removed when the tier is closed, when neither its owner nor a function that swaps to
it is left, when the process ends, even by a signal, and after a crash of the machine by the next run (`orphans`).
"""

from __future__ import annotations

import contextlib
import os
import platform
import resource
import shutil
import tempfile
import threading
import time
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import tensorflow as tf

from lms3d.errors import InputError, StorageError
from lms3d.swap.tensorflow import surgery
from lms3d.swap.tiers.base import COUNTERS, Tier, TierSpeed, best_seconds, gate_name
from lms3d.swap.tiers.orphans import new_folder, remove_orphans, swap_parent
from lms3d.swap.tiers.swap_file import SwapFile, writes_in_place
from lms3d.swap.tuning import COPYING_SHARE, PROBE_BYTES, PROBE_FILES

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
        self._guard = threading.Lock()
        self._counters = dict.fromkeys(COUNTERS, 0.0)
        self._under_way = dict.fromkeys(COUNTERS, 0)  # transfers at this moment, by their counter of seconds
        self._busy_since = dict.fromkeys(COUNTERS, 0.0)
        self._files: dict[int, list[int]] = defaultdict(list)  # graph (its id) -> numbers of its files
        self._swap_files: dict[int, SwapFile] = {}
        self._views: dict[int, tf.Tensor] = {}  # number -> the mapped file as a tensor
        self._pages_read = 0  # when the step began
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
            # The array is a view of the empty tensor's own buffer, which no op can see yet.
            tier._transfer(tier._swap_files[int(number)].read, array, "swapped_in_bytes", "swap_in_seconds")
            return number

        with surgery.insertion(handle.graph, "CPU:0", triggers):
            empty = tf.raw_ops.Empty(shape=like.shape.as_list(), dtype=like.dtype, name=gate_name(name))
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
        size = like.shape.num_elements() * dtype.size

        def view(number: tf.Tensor) -> tf.Tensor:
            file = tier._swap_files[int(number)]
            with tier._reported(f"moving {size:,} bytes"), tier._busy("swap_in_seconds"):
                tier._count_bytes("swapped_in_bytes", file.fetch())
                data = file.mapped()
            # One tensor for all reads, which is kept: TensorFlow then sees a second owner and writes into none of them.
            found = tier._views.get(int(number))
            return tier._views.setdefault(int(number), _tensor(data, shape, dtype)) if found is None else found

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
        """Keeps an error of the disk: TensorFlow would pass on the text alone."""
        try:
            yield
        except OSError as error:
            self.error = StorageError(
                f"swap folder {str(self.directory.parent)!r}: {error.strerror} while {work}; {_ELSEWHERE}"
            )
            self._views.clear()  # a file that has failed is made anew, with another map
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
            taken, self._counters = self._counters, dict.fromkeys(COUNTERS, 0.0)
        return taken

    def begin(self) -> None:
        self.error, self._pages_read = None, _pages_read()

    def check(self) -> None:
        """FILE-3: after a function that waited for a page."""
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
        return f"{platform.node()} {swap_parent(directory).resolve()}"  # many machines may share a home

    @classmethod
    def speed(cls, device: str, directory: Path | None) -> TierSpeed:
        """Write and read some files in turn, as swap files are: mostly the page cache's speed.

        Several, of tensors of their own: one alone would stay in the processor's caches, which a step does not leave to it.
        """
        parent, tensors = swap_parent(directory).resolve(), [np.ones(PROBE_BYTES, np.uint8) for _ in range(PROBE_FILES)]
        try:
            with tempfile.TemporaryDirectory(dir=parent) as folder:
                files = [SwapFile(Path(folder) / str(number)) for number in range(PROBE_FILES)]
                _each(files, "write", tensors)  # the first time finds a full disk, and the blocks
                out_seconds, in_seconds = (
                    best_seconds(partial(_each, files, way, tensors)) for way in ("write", "read")
                )
        except OSError as error:
            raise StorageError(
                f"swap folder {str(parent)!r}: {error.strerror} while measuring its speed; {_ELSEWHERE}"
            ) from None
        return TierSpeed(
            swap_out_bytes_per_second=PROBE_FILES * PROBE_BYTES / out_seconds,
            swap_in_bytes_per_second=PROBE_FILES * PROBE_BYTES / in_seconds,
            swap_share=COPYING_SHARE if device.startswith("CPU") else 0.0,
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


def _remove(
    owner: int, directory: Path, held: Sequence[int], files: dict[int, SwapFile], views: dict[int, tf.Tensor]
) -> None:
    """Removes what is left of a tier. Only its own process may: a fork has a copy of it."""
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
    """The bytes of `data`, which must be aligned to a page, as a tensor. No copy."""
    kind = dtype.as_numpy_dtype
    known = isinstance(kind, type) and kind.__module__ == "numpy"
    plain = dtype if known else tf.as_dtype(f"uint{8 * dtype.size}")  # bfloat16 and the like
    array = data.view(plain.as_numpy_dtype).reshape(shape)
    with tf.device("CPU:0"):
        tensor = tf.experimental.dlpack.from_dlpack(array.__dlpack__())
        return tensor if known else tf.bitcast(tensor, dtype)


def _pages_read() -> int:
    """How often this process has waited for a page of a map from a disk (major faults)."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_majflt
