"""Removes small parts of predicted tumours and organs, which are mostly mistakes: on request, never by default.

The label map lies on disk and is read in slabs, twice. The first pass numbers the parts of each slab and adds up the sizes of parts
that belong together. The second pass puts 0 in place of the small ones.

  planes 0 to 3        planes 3 to 6
  . 1 1 1              3 . . .        Both slabs have plane 3. A voxel there has a number in each of them, which are one part:
  . . . .              . 4 4 .        1 and 3, with five voxels.
  2 . . .              . . . .

SMALL-1 Voxels that share a face, an edge or a corner are connected.
SMALL-2 A slab is numbered together with the first plane of the next one, where alone parts of both can touch.
SMALL-3 Every voxel is counted once: in the second slab, if two slabs have its plane.
SMALL-4 The second pass finds the numbers of the first: it changes no plane that a later slab reads.

It holds one slab, and the size of each of its parts and of those before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from scipy import ndimage, sparse

from lms3d.tasks.streaming.disk_map import DiskMap
from lms3d.tasks.streaming.volumes import Volume, slabs

_MOST_LABEL = np.iinfo(np.uint8).max
_CORNERS = np.ones((3, 3, 3))


def without_small(
    volume: Volume, values: Callable[[np.ndarray], np.ndarray], tissues: Sequence[Sequence[int]], least_voxels: float,
    scratch: Path,
) -> DiskMap:  # fmt: skip
    """The label map of a volume, in one channel, without the connected parts of each tissue with fewer than `least_voxels` voxels.

    values: (.., channels) float32 -> (..) labels up to 255, voxel by voxel. tissues: the label values of the whole tumour, or of
    each organ; no value in two of them. Voxels of other values stay. scratch: the folder for the temporary file. The caller closes
    the result. StorageError if the disk of `scratch` fails or is too full.
    """
    labels = DiskMap(scratch, volume.shape, 1)
    try:
        for start, stop in slabs(volume):
            _put(labels, start, values(volume.planes(start, stop)))
        _remove_small(labels, tissues, least_voxels)
    except BaseException:
        labels.close()
        raise
    return labels


def _put(labels: DiskMap, start: int, planes: np.ndarray) -> None:
    """Puts planes (count, A, B) in place of those from `start` on."""
    labels.write((0, 0, start), planes.transpose(1, 2, 0)[..., np.newaxis])


def _remove_small(labels: DiskMap, tissues: Sequence[Sequence[int]], least_voxels: float) -> None:
    tissue_of = np.zeros(_MOST_LABEL + 1, np.uint8)
    for number, of_tissue in enumerate(tissues, start=1):
        tissue_of[list(of_tissue)] = number
    small, first = _sizes(labels, tissue_of) < least_voxels, 0
    for start, stop in slabs(labels):
        planes, parts, count = _numbered(labels, tissue_of, start, stop)
        goes = np.concatenate(([False], small[first : first + count]))  # 0 is no part
        planes[goes[parts]] = 0
        _put(labels, start, planes[: stop - start])
        first += count


def _sizes(labels: DiskMap, tissue_of: np.ndarray) -> np.ndarray:
    """The number of voxels of the whole part to which each part of a slab belongs, in the order of the slabs."""
    sizes, pairs, first = [np.zeros(0, int)], [np.zeros((0, 2), int)], 0
    shared: np.ndarray | None = None
    for start, stop in slabs(labels):
        _, parts, count = _numbered(labels, tissue_of, start, stop)
        if shared is not None:
            pairs.append(np.unique(np.stack([shared, parts[0] + first], -1)[parts[0] > 0] - 1, axis=0))
        sizes.append(np.bincount(parts[: stop - start].ravel(), minlength=count + 1)[1:])
        shared, first = parts[-1] + first, first + count
    joined = np.concatenate(pairs).T
    links = sparse.coo_array((np.ones(joined.shape[1]), joined), shape=(first, first))
    count, whole = sparse.csgraph.connected_components(links, directed=False)
    return np.bincount(whole, weights=np.concatenate(sizes), minlength=count)[whole]


def _numbered(labels: DiskMap, tissue_of: np.ndarray, start: int, stop: int) -> tuple[np.ndarray, np.ndarray, int]:
    """(labels, parts, count) of a slab and the first plane of the next, if there is one: (planes, A, B) each. Parts have numbers
    from 1 to `count`; a voxel of no tissue has 0."""
    planes = labels.planes(start, min(stop + 1, labels.shape[2]))[..., 0]
    tissues, parts, count = tissue_of[planes.astype(np.uint8)], np.zeros(planes.shape, np.int32), 0
    for number, box in enumerate(ndimage.find_objects(tissues), start=1):
        if box is not None:
            mask = tissues[box] == number
            found, more = ndimage.label(mask, _CORNERS)
            parts[box][mask] = found[mask] + count
            count += more
    return planes, parts, count
