"""A CPU's memory pool under a hard limit: TensorFlow's BFC allocator, laid out so that a plan can predict it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lms3d.device.pool_layout import ALIGNMENT, CRUMB_BYTES, CRUMB_REGION_BYTES, FIRST_REGIONS_BYTES, small_region_bytes

if TYPE_CHECKING:
    import tensorflow as tf

_MIB = 2**20
_crumb_holes: list[tf.Tensor] = []  # blocks for small tensors, held until `open_crumb_holes` frees them
_crumb_fences: list[
    tf.Tensor
] = []  # one-byte spacers between these blocks, held for good, so that freed blocks cannot merge
_regions: list[tuple[int, int]] = []  # (first address, end), the large region last
_in_pieces = False  # whether no free piece holds half of the free bytes


def claim(limit_bytes: int) -> None:
    """Makes the pool take all its memory from the system now, in regions of chosen sizes. No page is touched.

    By itself the pool grows by regions that double in size, and no tensor can span two of them, so that a large tensor may be
    unable to use half of the limit. With the regions made here, best fit keeps weights and other small tensors in the second
    region, and the last one stays in one piece for activations. The first region is for crumbs, small tensors that no plan places
    (`pool_layout`). It consists of blocks with spacers between them, and is closed until `open_crumb_holes`; otherwise the
    variables of a model would fill it.
    """
    import tensorflow as tf

    small = small_region_bytes(limit_bytes)
    sizes = [CRUMB_REGION_BYTES, small, limit_bytes - small - FIRST_REGIONS_BYTES]
    if sizes[-1] < sizes[0]:  # the limit is too small for a layout; the pool works without one
        return
    try:
        crumbs, *others = [_empty(size) for size in sizes if size > 0]
        starts = [_address(piece) for piece in others]
        end = _address(crumbs) + CRUMB_REGION_BYTES
        del crumbs
        _make_crumb_holes(end)
    except tf.errors.ResourceExhaustedError:  # the system has less memory than the limit: no layout either
        _crumb_holes.clear()
        _crumb_fences.clear()
        return
    _regions[:] = [(start, start + size) for start, size in zip(starts, sizes[-len(starts) :], strict=True)]


def _empty(size_bytes: int) -> tf.Tensor:
    import tensorflow as tf

    across = min(_MIB, size_bytes)  # an axis has at most 2^31 - 1 elements
    return tf.raw_ops.Empty(shape=[size_bytes // across, across], dtype=tf.uint8)


def _address(tensor: tf.Tensor) -> int:
    import numpy as np

    return int(np.from_dlpack(tensor).__array_interface__["data"][0])


def _make_crumb_holes(end: int) -> None:
    """Fills the region that ends at this address with blocks of `CRUMB_BYTES`, and so the free rest of smaller regions.

    The one-byte spacer between two blocks stays for good, so that nothing but crumbs fits. So does the last block of a region,
    which the allocator enlarges by the rest of the region.
    """
    address = 0
    while not end - 2 * CRUMB_BYTES - ALIGNMENT < address < end:
        hole = _empty(CRUMB_BYTES)
        address = _address(hole)
        last = end - 2 * CRUMB_BYTES < address < end
        (_crumb_holes if not last and _fenced(address + CRUMB_BYTES) else _crumb_fences).append(hole)


def _fenced(address: int) -> bool:
    """Places a one-byte spacer at this address, after spacers in the smaller gaps that the allocator prefers. Returns whether that
    worked."""
    for _ in range(CRUMB_BYTES // ALIGNMENT):
        _crumb_fences.append(_empty(1))
        if _address(_crumb_fences[-1]) == address:
            return True
    return False


def open_crumb_holes() -> None:
    """Frees the blocks, so that small tensors go there from now on. Call it once the variables exist."""
    _crumb_holes.clear()


def gap_bytes(variables_bytes: int) -> int:
    """An upper estimate of the bytes left unused between a model's variables in such a pool (0.3 to 6 MiB were seen for 67 to
    275 MiB of variables). `taken_bytes` measures them. Few variables cannot leave more than a part of their own size."""
    return min(4 * _MIB, variables_bytes // 2) + variables_bytes // 50


def counts(tensor: tf.Tensor) -> bool:
    """Whether a tensor lies in the pool's regions. Memory of numpy's that TensorFlow took over does not.

    Crumbs do not count either. A tensor of bfloat16, which numpy does not know, always counts.
    """
    if not _regions or not tensor.dtype.is_numpy_compatible or tensor.dtype.size == 0:
        return True
    try:
        address = _address(tensor)
    except (BufferError, RuntimeError, TypeError, ValueError):  # a type that DLPack does not know
        return True
    return any(start <= address < end for start, end in _regions)


def taken_bytes(limit_bytes: int | None) -> int | None:
    """The bytes of a pool with this limit that lie before its largest free piece, gaps included; None if that is unknown.

    Call it between steps. Memory in use then is assumed to stay in use; a step can have the rest. If no free piece holds half of
    the free bytes, TensorFlow waits 10 s for one. That happens once in a process.
    """
    global _in_pieces
    import tensorflow as tf

    if not _regions or limit_bytes is None or _in_pieces:
        return None
    in_use = int(tf.config.experimental.get_memory_info("CPU:0")["current"])
    free = limit_bytes - in_use - FIRST_REGIONS_BYTES
    try:
        first = _address(_empty(max(free // 2 // _MIB, 1) * _MIB))  # no other free piece is that large
    except tf.errors.ResourceExhaustedError:
        _in_pieces = True
        return None
    (start, end), others = _regions[-1], _regions[:-1]
    if first == start:  # the smaller regions hold all that is in use
        return in_use
    return first - start + sum(b - a for a, b in others) if start < first < end else None
