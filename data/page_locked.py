"""Host memory of batches beside a GPU: page-locked, and used again.

From such memory a copy to the GPU runs at the link's full rate, and the host does not wait for it. From other memory the driver
copies piece by piece through a buffer of its own: on an H200 198 MB took 31 ms, in which the GPU computed nothing. From here 134 MB
take 2.5 ms.

LOCKED-1  Locking takes longer than the copy that it speeds up. A block is therefore kept, and lent again once no array of it is
          left.
LOCKED-2  What cannot be locked is lent all the same.
LOCKED-3  Blocks that nobody has borrowed hold at most `SPARE_BYTES`, or are no more than `FEW`.
LOCKED-4  A block is unlocked before its memory goes back to the system. If that fails, it is kept.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import mmap
import threading
import weakref
from collections import deque

import numpy as np
import tensorflow as tf

log = logging.getLogger("lms3d")

SPARE_BYTES, FEW = 1 << 30, 4
LEAST_BYTES = 1 << 16
"""Smaller arrays are not worth a block."""
_DRIVER = "libcuda.so.1"
_PORTABLE = 1  # CU_MEMHOSTREGISTER_PORTABLE: for all GPUs of the process


class Driver:
    """Locks and unlocks pages through CUDA's driver. OSError or AttributeError if there is none.

    gpu: the number of the GPU that TensorFlow uses, whose context is TensorFlow's, too.
    """

    def __init__(self, gpu: int, library: str = _DRIVER) -> None:
        self._calls, self._context = ctypes.CDLL(library), ctypes.c_void_p()
        self._check("cuInit", 0)
        device = ctypes.c_int()
        self._check("cuDeviceGet", ctypes.byref(device), gpu)
        self._check("cuDevicePrimaryCtxRetain", ctypes.byref(self._context), device)

    def lock(self, address: int, size: int) -> None:
        """OSError if the driver refuses."""
        self._in_context("cuMemHostRegister_v2", ctypes.c_void_p(address), ctypes.c_size_t(size), _PORTABLE)

    def unlock(self, address: int) -> None:
        self._in_context("cuMemHostUnregister", ctypes.c_void_p(address))

    def _in_context(self, call: str, *arguments: object) -> None:
        self._check("cuCtxPushCurrent_v2", self._context)
        try:
            self._check(call, *arguments)
        finally:
            self._check("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))

    def _check(self, call: str, *arguments: object) -> None:
        if error := getattr(self._calls, call)(*arguments):
            raise OSError(f"CUDA's {call} failed with error {error}")


class _Block:
    """Memory that a fork copies, so that no child writes into its parent's batches. locked: for the GPU."""

    def __init__(self, size: int) -> None:
        self.memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.size, self.locked = size, False
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))


class _Lent:
    """What NumPy keeps a reference to as long as an array views the block."""

    def __init__(self, block: _Block) -> None:
        self.block = block
        self.__array_interface__ = {
            "data": (block.address, False),
            "shape": (block.size,),
            "typestr": "|u1",
            "version": 3,
        }


class Blocks:
    """Blocks of memory by size. driver: locks them; None leaves them as they are."""

    def __init__(self, driver: Driver | None) -> None:
        self._driver, self._refused = driver, driver is None
        self._returned: deque[_Block] = deque()  # arrays may end at any allocation of any thread: no lock is taken then
        self._spare: list[_Block] = []  # the one that was given back last at the end
        self._kept: list[_Block] = []  # LOCKED-4
        self._lock = threading.Lock()

    def lend(self, size: int) -> np.ndarray:
        """An array of `size` bytes at the beginning of a page. With the last array that views it the block comes back."""
        with self._lock:
            while self._returned:
                self._spare.append(self._returned.popleft())
            block = next((one for one in reversed(self._spare) if one.size == size), None)
            if block is not None:
                self._spare.remove(block)
            self._let_go()
        lent = _Lent(block or self._made(size))
        weakref.finalize(lent, self._returned.append, lent.block).atexit = False
        return np.asarray(lent)

    @property
    def spare_bytes(self) -> int:
        return sum(block.size for block in (*self._spare, *self._returned))

    def _made(self, size: int) -> _Block:
        block = _Block(size)
        if self._driver is None or self._refused:
            return block
        try:
            self._driver.lock(block.address, size)
            block.locked = True
        except OSError as error:  # LOCKED-2
            self._refused = True
            log.warning(
                "lms: batches are copied to the GPU from memory that is not page-locked, which is slower: %s", error
            )
        return block

    def _let_go(self) -> None:
        """LOCKED-3, LOCKED-4."""
        while len(self._spare) > FEW and self.spare_bytes > SPARE_BYTES:
            oldest = self._spare.pop(0)
            try:
                if oldest.locked and self._driver is not None:
                    self._driver.unlock(oldest.address)
            except OSError as error:
                log.warning("lms: a block of batches stays in memory: %s", error)
                self._kept.append(oldest)


_asking = threading.Lock()


def blocks() -> Blocks | None:
    """The blocks beside this process's GPU; None without one."""
    with _asking:  # several batches are loaded at once, and all of them ask
        return _found()


@functools.cache
def _found() -> Blocks | None:
    gpus = tf.config.get_visible_devices("GPU")
    if not gpus:
        return None
    try:
        return Blocks(Driver(int(gpus[0].name.rpartition(":")[2])))
    except (OSError, AttributeError) as error:
        log.info("lms: batches are in memory that is not page-locked: %s", error)
        return None
