"""The pool of a CPU under a hard limit: TensorFlow's own BFC allocator, arranged so that a plan can foresee what it does."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lms3d.device.pool_layout import ALIGNMENT, CRUMB_BYTES, CRUMB_REGION_BYTES, FIRST_REGIONS_BYTES, small_region_bytes

if TYPE_CHECKING:
    import tensorflow as tf

_MIB = 2**20
_crumb_holes: list[tf.Tensor] = []  # blocks for small allocations, held until `open_crumb_holes` frees them
_crumb_fences: list[tf.Tensor] = []  # one-byte spacers between these blocks, held for good: freed blocks cannot merge
_regions: list[tuple[int, int]] = []  # (first address, end), the large region last
_in_pieces = False  # no free piece has half of the free bytes


def claim(limit_bytes: int) -> None:
    """Take the whole pool from the system, region by region, and give it back to the pool. No page is touched.

    Left alone, the pool grows by regions of doubled size, and no tensor can span two of them: half of the limit may be out
    of reach for a large tensor. With these regions best fit keeps weights and other small tensors in the second, and the last
    stays in one piece for activations. The first is for crumbs, small tensors that no plan places (`pool_layout`): blocks with
    spacers between them. It stays closed until `open_crumb_holes`, or the variables of a model would fill it.
    """
    import tensorflow as tf

    small = small_region_bytes(limit_bytes)
    sizes = [CRUMB_REGION_BYTES, small, limit_bytes - small - FIRST_REGIONS_BYTES]
    if sizes[-1] < sizes[0]:  # too small a limit to be laid out: the pool works all the same
        return
    try:
        crumbs, *others = [_empty(size) for size in sizes if size > 0]
        starts = [_address(piece) for piece in others]
        end = _address(crumbs) + CRUMB_REGION_BYTES
        del crumbs
        _make_crumb_holes(end)
    except tf.errors.ResourceExhaustedError:  # the system has less than the limit: not laid out either
        _crumb_holes.clear()
        _crumb_fences.clear()
        return
    _regions[:] = [(start, start + size) for start, size in zip(starts, sizes[-len(starts) :], strict=True)]


def _empty(size_bytes: int) -> tf.Tensor:
    import tensorflow as tf

    across = min(_MIB, size_bytes)  # an axis ends at 2^31
    return tf.raw_ops.Empty(shape=[size_bytes // across, across], dtype=tf.uint8)


def _address(tensor: tf.Tensor) -> int:
    import numpy as np

    return int(np.from_dlpack(tensor).__array_interface__["data"][0])


def _make_crumb_holes(end: int) -> None:
    """Fill the region that ends at this address, and what is free of a smaller one, with blocks of `CRUMB_BYTES`.

    The spacer of one byte between two blocks stays for good, and so does the last block of a region, which the allocator
    enlarges by what is left over: nothing but crumbs may fit.
    """
    here = 0
    while not end - 2 * CRUMB_BYTES - ALIGNMENT < here < end:
        hole = _empty(CRUMB_BYTES)
        here = _address(hole)
        last = end - 2 * CRUMB_BYTES < here < end
        (_crumb_holes if not last and _fenced(here + CRUMB_BYTES) else _crumb_fences).append(hole)


def _fenced(address: int) -> bool:
    """Put a spacer of one byte at this address, and fill the smaller gaps that are preferred; False where it cannot be had."""
    for _ in range(CRUMB_BYTES // ALIGNMENT):
        _crumb_fences.append(_empty(1))
        if _address(_crumb_fences[-1]) == address:
            return True
    return False


def open_crumb_holes() -> None:
    """Frees the blocks: from now on small tensors go there. Call it once the variables exist."""
    _crumb_holes.clear()


def gap_bytes(variables_bytes: int) -> int:
    """Bytes that the variables of a model leave unused between them in such a pool, on the safe side (0.3 to 6 MiB
    were seen for 67 to 275 MiB). `taken_bytes` measures them."""
    return 4 * _MIB + variables_bytes // 50


def counts(tensor: tf.Tensor) -> bool:
    """False for a tensor outside of the pool's regions, such as memory of numpy's that TensorFlow took over.

    Crumbs do not count either; bfloat16, which numpy does not know, always does.
    """
    if not _regions or not tensor.dtype.is_numpy_compatible or tensor.dtype.size == 0:
        return True
    try:
        address = _address(tensor)
    except (BufferError, RuntimeError, TypeError, ValueError):  # a type that DLPack does not know
        return True
    return any(start <= address < end for start, end in _regions)


def taken_bytes(limit_bytes: int | None) -> int | None:
    """Bytes of a pool with this limit up to its largest free piece, gaps included; None where that is unknown.

    Call it between steps: what is there counts as if it stayed, and a step has what follows. Where no free piece has half of
    the free bytes, TensorFlow waits 10 s for one; that happens once.
    """
    global _in_pieces
    import tensorflow as tf

    if not _regions or limit_bytes is None or _in_pieces:
        return None
    in_use = int(tf.config.experimental.get_memory_info("CPU:0")["current"])
    free = limit_bytes - in_use - FIRST_REGIONS_BYTES
    try:
        first = _address(_empty(max(free // 2 // _MIB, 1) * _MIB))  # nothing else is that large
    except tf.errors.ResourceExhaustedError:
        _in_pieces = True
        return None
    (start, end), others = _regions[-1], _regions[:-1]
    if first == start:  # the smaller regions hold everything
        return in_use
    return first - start + sum(b - a for a, b in others) if start < first < end else None
