"""Host memory of batches beside a GPU: page-locked, and used again.

From such memory a copy to the GPU runs at the link's full rate, and the host does not wait for it. From other memory the driver
copies piece by piece through a buffer of its own: on an H200 a batch at 192^3 took 31 of the 230 ms of a step, in which the GPU
computed nothing. From here it takes 2.5 ms.

LOCKED-1  Locking takes longer than the copy that it speeds up. A block is therefore kept, and lent again once no array of it is
          left.
LOCKED-2  What cannot be locked is lent all the same.
LOCKED-3  Blocks that nobody has borrowed hold at most `SPARE_BYTES`.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import mmap
import threading
import weakref

import numpy as np
import tensorflow as tf

log = logging.getLogger("lms3d")

SPARE_BYTES = 1 << 30
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


class Blocks:
    """Blocks of memory by size. driver: locks them; None leaves them as they are."""

    def __init__(self, driver: Driver | None) -> None:
        self._driver = driver
        self._spare: list[tuple[int, mmap.mmap]] = []  # size and block, the one that was given back last at the end
        self._lock = threading.RLock()  # arrays may end, and blocks come back, at any allocation

    def lend(self, size: int) -> np.ndarray:
        """An array of `size` bytes at the beginning of a page. With the last array that views it the block comes back."""
        with self._lock:
            found = next((one for one in reversed(self._spare) if one[0] == size), None)
            if found is not None:
                self._spare.remove(found)
        block = found[1] if found is not None else self._made(size)
        lent = _Lent(_address(block), size)
        weakref.finalize(lent, self._give_back, size, block).atexit = False
        return np.asarray(lent)

    @property
    def spare_bytes(self) -> int:
        return sum(size for size, _ in self._spare)

    def _made(self, size: int) -> mmap.mmap:
        block = mmap.mmap(-1, size)
        try:
            if self._driver is not None:
                self._driver.lock(_address(block), size)
        except OSError as error:  # LOCKED-2
            log.warning(
                "lms: batches are copied to the GPU from memory that is not page-locked, which is slower: %s", error
            )
            self._driver = None
        return block

    def _give_back(self, size: int, block: mmap.mmap) -> None:
        with self._lock:
            self._spare.append((size, block))
            while self.spare_bytes > SPARE_BYTES:  # LOCKED-3
                _, oldest = self._spare.pop(0)
                if self._driver is not None:
                    self._driver.unlock(_address(oldest))


@functools.cache
def blocks() -> Blocks | None:
    """The blocks beside this process's GPU; None without one."""
    gpus = tf.config.get_visible_devices("GPU")
    if not gpus:
        return None
    try:
        return Blocks(Driver(int(gpus[0].name.rpartition(":")[2])))
    except (OSError, AttributeError) as error:
        log.info("lms: batches are in memory that is not page-locked: %s", error)
        return None


class _Lent:
    """What NumPy keeps a reference to as long as an array views the block."""

    def __init__(self, address: int, size: int) -> None:
        self.__array_interface__ = {"data": (address, False), "shape": (size,), "typestr": "|u1", "version": 3}


def _address(block: mmap.mmap) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(block))
