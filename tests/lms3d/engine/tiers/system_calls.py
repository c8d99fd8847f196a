"""Other system calls for swap files, written in Python: see `lms3d/engine/native/src/system.h`."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from lms3d.engine.native.library import library

LIBC = ctypes.CDLL(None, use_errno=True)
_FILE, _SIZE, _PLACE, _SIGNED = ctypes.c_int, ctypes.c_size_t, ctypes.c_void_p, ctypes.c_ssize_t
_KINDS = {
    "pwrite": (_SIGNED, _FILE, _PLACE, _SIZE, ctypes.c_long),
    "pread": (_SIGNED, _FILE, _PLACE, _SIZE, ctypes.c_long),
    "mmap": (_PLACE, _PLACE, _SIZE, ctypes.c_int, ctypes.c_int, _FILE, ctypes.c_long),
    "mincore": (ctypes.c_int, _PLACE, _SIZE, _PLACE),
    "msync": (ctypes.c_int, _PLACE, _SIZE, ctypes.c_int),
    "fdatasync": (ctypes.c_int, _FILE),
    "blocks_read": (ctypes.c_long,),
}
for _name, (_result, *_arguments) in _KINDS.items():
    if _name != "blocks_read":
        getattr(LIBC, _name).restype, getattr(LIBC, _name).argtypes = _result, _arguments


@contextmanager
def replaced(name: str, call: Callable[..., Any]) -> Iterator[None]:
    """`call`, in place of the system's own, may set an error by `ctypes.set_errno`; `LIBC` has the system's own."""
    result, *arguments = _KINDS[name]
    made = ctypes.CFUNCTYPE(result, *arguments, use_errno=True)(call)
    put = library().calls.lms3d_replace_call
    assert put(name.encode(), ctypes.cast(made, ctypes.c_void_p))
    try:
        yield
    finally:
        put(name.encode(), None)


def fails(number: int, returned: int = -1) -> Callable[..., int]:
    """A call that fails with this error."""

    def call(*_: object) -> int:
        ctypes.set_errno(number)
        return returned

    return call


def resident(said: bool) -> Callable[[int, int, int], int]:
    """A `mincore` that says of each page whether it is in the page cache."""

    def mincore(address: int, size: int, pages: int) -> int:
        ctypes.memset(pages, said, -(-size // mmap.PAGESIZE))
        return 0

    return mincore
