"""One swapped tensor on the disk: a file that is written whole and read whole, again and again.

    first write        pwrite            allocates the blocks: a full disk fails here, with an error and no signal
    later transfers    memory map        while the page cache holds the file: one plain copy, by all cores; only
                                         on file systems that write a block again where it is: elsewhere a full disk, or
                                         a server that is gone, would end the process with a signal
                       pwrite, preadv    once the system has taken pages away for others
    reading in place   memory map        `mapped`: no copy at all

A system call copies at half the speed of a plain copy (measured: 9 and 6 against 14 GB/s), and every second of a copy is
one in which a core does not compute. But writing through a map to a page that is gone would read it from the disk first,
and reading would fetch it in small pieces: hence the look at the page table (`mincore`, 0.3 ms for 100 MB).

The system writes back later, and where that fails (a thin disk that is full, a broken one) it drops the pages all the same:
a read gives zeros, or what was there before, and no error. So:
 1. A file is held from before its first write, by its map, or by a descriptor where it cannot be mapped. The system tells
    each open file once of an error that came after it was opened, and forgets it with the last page of a file that
    nobody holds.
 2. Bytes that are gone are not read before an fsync of what is held (`sync`) has said that all of them are on the disk. Less
    does not do: sync_file_range hears of no blocks that ext4 has written and failed to enter, and of nothing on an overlay.
 3. Pages that are there can go, and come back wrong, while they are read. A system call has read blocks then, so `sync` follows
    it. Else the process has waited for a page, a major fault, so `DiskTier.check` syncs after a function that had one.
 4. A file that has failed is removed: whoever still wants its bytes gets an error, and the next write makes a new one.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import mmap
import os
import resource
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import psutil

_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.mmap.restype = ctypes.c_void_p
_LIBC.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
_LIBC.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_LIBC.msync.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_MS_SYNC = 4
_IN_PLACE = frozenset({"ext2", "ext3", "ext4", "f2fs", "overlay", "tmpfs", "xfs"})
_PART_BYTES = 2 << 20
_MOST_PARTS = 4
_LEAST_MAPPED_BYTES = 1 << 20  # below that a system call costs nothing


class SwapFile:
    """The bytes of one tensor at `path`. OSError where the disk fails, is full, or has lost what was written."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._map: np.ndarray | None = None
        self._held: int | None = None  # the descriptor, in place of a map
        self._size = 0

    def write(self, data: np.ndarray) -> None:
        """`data`: a flat array of bytes."""
        self._size = len(data)
        if self._in_memory(len(data)):
            _copy(self._map, data)  # type: ignore[arg-type]
            return
        with _opened(self.path, os.O_RDWR | os.O_CREAT) as file:
            self._hold(file)
            _whole(lambda at: os.pwrite(file, data[at:].data, at), len(data))

    def read(self, data: np.ndarray) -> None:
        """Fills the flat array of bytes `data` with what was written last."""
        if self._in_memory(len(data)):
            _copy(data, self._map)  # type: ignore[arg-type]
            return
        there = self._map is not None and _resident(self._map)  # RWF_NOWAIT does not tell: it begins to read by itself
        if not there:
            self.sync()
        with _opened(self.path) as file:
            before = _blocks_read()
            _whole(lambda at: os.preadv(file, [data[at:].data], at), len(data))
            after = _blocks_read()
        if there and after != before:
            self.sync()

    def mapped(self) -> np.ndarray:
        """What was written last, a flat array of bytes, where it lies: the same array each time, for reading alone."""
        if self._size == 0:
            return np.empty(0, np.uint8)
        if self._map is None:
            raise OSError(errno.ENOMEM, "the swap file cannot be mapped")
        return self._map

    def fetch(self) -> int:
        """Read what the system has taken away back into the page cache; returns the bytes that were read.

        By a call that can report an error: whoever touches a map whose disk fails is ended by a signal.
        """
        if self.path.stat().st_size < self._size:  # what is missing would read as zeros, or end the process
            raise OSError(errno.EIO, "the swap file ended too early")
        if self._size == 0 or _resident(self.mapped()):
            return 0
        self.sync()
        piece = np.empty(_PART_BYTES, np.uint8)
        with _opened(self.path) as file:
            _whole(lambda at: os.preadv(file, [piece.data], at), self._size)
        return self._size

    def sync(self) -> None:
        """Rule 2: OSError where not all that was written last is on the disk."""
        try:
            if self._held is not None:
                os.fdatasync(self._held)
            elif self._map is not None and _LIBC.msync(self._map.ctypes.data, len(self._map), _MS_SYNC):
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        except OSError:
            self.remove()  # rule 4
            raise

    def remove(self) -> None:
        self._map = None
        if self._held is not None:
            os.close(self._held)
            self._held = None
        self.path.unlink(missing_ok=True)

    def _hold(self, file: int) -> None:
        """Rule 1, before the first write."""
        if self._map is None and self._held is None and self._size:
            self._map = _mapped(file, self._size)
            if self._map is None:
                self._held = os.dup(file)

    def _in_memory(self, size: int) -> bool:
        """Whether a map of this size is there to copy with, all of it in the page cache."""
        worth_it = size >= _LEAST_MAPPED_BYTES and writes_in_place(self.path.parent)
        return worth_it and self._map is not None and len(self._map) == size and _resident(self._map)


def _copy(to: np.ndarray, source: np.ndarray) -> None:
    """Copies on all cores at once, in parts of at least `_PART_BYTES`.

    The step computes meanwhile, on all cores alike: were one of them to copy alone, the others would wait for its share of
    an operation. numpy gives up the Python lock for a copy.
    """
    cores = len(os.sched_getaffinity(0))
    parts = max(1, min(cores, _MOST_PARTS, len(to) // _PART_BYTES))
    size = -(-len(to) // parts // mmap.PAGESIZE) * mmap.PAGESIZE
    others = [
        _copiers().submit(np.copyto, to[at : at + size], source[at : at + size]) for at in range(size, len(to), size)
    ]
    np.copyto(to[:size], source[:size])
    for other in others:
        other.result()


@functools.cache
def _copiers() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(2 * _MOST_PARTS, "lms3d-swap")


@functools.cache
def writes_in_place(folder: Path) -> bool:
    """Whether the file system of a folder is known to need no new block for what is written again."""
    place, best = folder.resolve(), ("", "")
    for part in psutil.disk_partitions(all=True):
        if place.is_relative_to(part.mountpoint) and len(part.mountpoint) >= len(best[0]):
            best = part.mountpoint, part.fstype
    return best[1] in _IN_PLACE


def _mapped(file: int, size: int) -> np.ndarray | None:
    """The file as an array; None where the system does not map it.

    Python's own `mmap` would keep a file open for each, of which a process may have 1024.
    """
    address = _LIBC.mmap(None, size, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, file, 0)
    if address in (None, ctypes.c_void_p(-1).value):
        return None
    memory = (ctypes.c_uint8 * size).from_address(address)
    # The array below keeps it alive. At exit a thread may still read: the system takes the map away then.
    weakref.finalize(memory, _LIBC.munmap, address, size).atexit = False
    return np.ctypeslib.as_array(memory)


def _resident(mapped: np.ndarray) -> bool:
    pages = np.empty(-(-len(mapped) // mmap.PAGESIZE), np.uint8)
    failed = _LIBC.mincore(
        ctypes.c_void_p(mapped.ctypes.data), ctypes.c_size_t(len(mapped)), ctypes.c_void_p(pages.ctypes.data)
    )
    return not failed and bool((pages & 1).all())


def _blocks_read() -> int:
    """How many blocks of a disk this thread has read."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_inblock


def _whole(move: Callable[[int], int], size: int) -> None:
    """Repeat a call that may move less than it was asked to: `move(offset)` -> bytes moved."""
    done = 0
    while done < size:
        moved = move(done)
        if moved == 0:
            raise OSError(errno.EIO, "the swap file ended too early")
        done += moved


@contextlib.contextmanager
def _opened(path: Path, flags: int = os.O_RDWR) -> Iterator[int]:
    """Open only meanwhile: a step may have more swapped tensors than a process may have open files."""
    file = os.open(path, flags, 0o600)
    try:
        yield file
    finally:
        os.close(file)
