"""Small parts of a tumour or an organ, removed slab by slab."""

from __future__ import annotations

import errno
import itertools
import os
import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import ndimage

from lms3d.errors import StorageError
from lms3d.tasks.streaming import disk_map, volumes
from lms3d.tasks.streaming.components import without_small
from lms3d.tasks.streaming.volumes import Array

WHOLE = 1_000_000
"""More planes than any volume here has."""


def cleaned(
    labels: np.ndarray, tissues: Sequence[Sequence[int]], least: float, scratch: Path, depth: int = WHOLE
) -> np.ndarray:
    """The label map (A, B, C) without small parts, made in slabs of `depth` planes."""
    plane_bytes = labels[..., 0].size * np.dtype(np.float32).itemsize
    with patch.object(volumes, "_SLAB_BYTES", depth * plane_bytes):
        volume = Array(labels[..., np.newaxis].astype(np.float32))
        with without_small(volume, lambda planes: planes[..., 0].astype(np.uint8), tissues, least, scratch) as found:
            return found.read((0, 0, 0), found.shape)[..., 0]


def at_once(labels: np.ndarray, tissues: Sequence[Sequence[int]], least: float) -> np.ndarray:
    """The same of the whole map, by one call of scipy for each tissue."""
    kept = labels.copy()
    for values in tissues:
        parts, _ = ndimage.label(np.isin(labels, values), np.ones((3, 3, 3)))
        kept[(parts > 0) & (np.bincount(parts.ravel())[parts] < least)] = 0
    return kept


def snake(shape: tuple[int, int, int]) -> np.ndarray:
    """A path of one voxel's width, through all planes and back, several times: every face of a slab cuts it into many parts."""
    found = np.zeros(shape, np.uint8)
    for i, j in itertools.product(range(0, shape[0], 2), range(0, shape[1], 2)):
        found[i, j] = 1
    for turn, i in enumerate(range(0, shape[0], 2)):
        found[i, 1::4, 0 if turn % 2 else -1] = 1
        found[i, 3::4, -1 if turn % 2 else 0] = 1
    found[1::2, 0, 0] = 1
    return found


@given(st.data())
@settings(deadline=None, max_examples=60)
def test_whichever_slabs_it_is_read_in(tmp_path_factory, data):
    shape = tuple(data.draw(st.integers(1, 9)) for _ in range(3))
    depth, share = data.draw(st.integers(1, 5)), data.draw(st.sampled_from([0.02, 0.1, 0.3, 0.6]))
    random = np.random.default_rng(data.draw(st.integers(0, 2**16)))
    labels = random.choice(np.array([0, 1, 2, 4, 200], np.uint8), p=[1 - share, *[share / 4] * 4], size=shape)
    tissues = data.draw(st.sampled_from([[(1, 2, 4)], [(1,), (2,), (4,), (200,)], [(1, 200), (2,)]]))
    least = data.draw(st.sampled_from([1.5, 2, 5, 20, 1000]))
    found = cleaned(labels, tissues, least, tmp_path_factory.getbasetemp(), depth)
    np.testing.assert_array_equal(found, at_once(labels, tissues, least))


@pytest.mark.parametrize("depth", [1, 2, 5, 12, WHOLE])
def test_a_part_that_winds_through_all_slabs_is_one(tmp_path, depth):
    labels = snake((7, 9, 12))
    size = np.count_nonzero(labels)
    assert ndimage.label(labels, np.ones((3, 3, 3)))[1] == 1
    np.testing.assert_array_equal(cleaned(labels, [(1,)], size, tmp_path, depth), labels)
    assert not cleaned(labels, [(1,)], size + 1, tmp_path, depth).any()


@pytest.mark.parametrize("depth", [1, 4])
def test_parts_below_a_volume_go_whatever_their_labels(tmp_path, depth):
    labels = np.zeros((12, 12, 12), np.uint8)
    labels[1:4, 1:4, 1:4] = 2
    labels[2, 2, 2] = 4
    labels[8:10, 8, 8] = 1
    labels[10, 9, 9] = 4  # touches by a corner: three voxels in all
    kept = cleaned(labels, [(1, 2, 4)], 4, tmp_path, depth)
    np.testing.assert_array_equal(kept[:6], labels[:6])
    assert not kept[6:].any()
    np.testing.assert_array_equal(cleaned(labels, [(1, 2, 4)], 3, tmp_path, depth), labels)


def test_labels_outside_the_tumour_stay(tmp_path):
    labels = np.zeros((4, 4, 4), np.uint8)
    labels[0, 0, 0] = 4  # the cavity of a resection
    np.testing.assert_array_equal(cleaned(labels, [(1, 2, 3)], 100, tmp_path, 1), labels)
    assert not cleaned(np.zeros((4, 4, 4), np.uint8), [(1, 2, 3)], 100, tmp_path, 1).any()


def test_of_each_organ_small_parts_are_removed_and_others_stay(tmp_path):
    labels = np.zeros((8, 8, 8), np.uint8)
    labels[:3, :3, :3], labels[5:, 5:, 5:], labels[3, 3, 3], labels[0, 7, 0] = 1, 2, 2, 1
    found = cleaned(labels, [(1,), (2,)], 2, tmp_path, 2)
    assert (found[3, 3, 3], found[0, 7, 0]) == (0, 0)  # the first touches organ 1, which is another one
    assert np.count_nonzero(found == 1) == np.count_nonzero(found == 2) == 27


def test_twice_the_depth_takes_no_more_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(volumes, "_SLAB_BYTES", 400_000)

    def peak_bytes(depth: int) -> int:
        tracemalloc.start()
        volume = Array(np.broadcast_to(np.ones((), np.float32), (64, 64, depth, 1)))
        with without_small(volume, lambda planes: planes[..., 0] > 0, [(1,)], 10, tmp_path) as found:
            assert found.planes(depth - 1, depth).all()
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return peak

    assert peak_bytes(400) <= 1.05 * peak_bytes(200)


@pytest.mark.parametrize("calls", [1, 40])
def test_a_full_disk_leaves_nothing(tmp_path, monkeypatch, calls):
    """Neither while labels are put on the disk, 27 tiles here, nor while small parts are removed from them."""
    write, left = os.pwrite, iter(range(calls))

    def full(*arguments: Any) -> int:
        if next(left, None) is None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(*arguments)

    monkeypatch.setattr(disk_map.os, "pwrite", full)
    with pytest.raises(StorageError, match="cannot keep the maps of a case: No space left on device"):
        cleaned(np.ones((40, 40, 40), np.uint8), [(1,)], 10, tmp_path)
    assert next(left, None) is None
    assert list(tmp_path.iterdir()) == []
