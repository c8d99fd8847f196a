"""Volumes that are read in planes equal the same volumes as arrays in every voxel; a failing disk leaves nothing half-written."""

from __future__ import annotations

import errno
import os
import tracemalloc
from collections.abc import Iterator
from typing import Any

import nibabel as nib
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lms3d.data.volumes import symmetries
from lms3d.data.volumes.geometry import Box
from lms3d.data.volumes.resample import resize
from lms3d.errors import StorageError
from lms3d.tasks.streaming import disk_map, entropy, nifti, segment, volumes
from lms3d.tasks.streaming.disk_map import DiskMap
from lms3d.tasks.streaming.volumes import Array, Cropped, Mean, Placed, Resized, Volume

SHAPE = (20, 33, 18)


@pytest.fixture(scope="module")
def numbers() -> np.ndarray:
    return np.random.default_rng(0).normal(size=(*SHAPE, 3)).astype(np.float32)


@pytest.fixture(scope="module")
def on_disk(numbers, tmp_path_factory) -> Iterator[DiskMap]:
    folder = tmp_path_factory.mktemp("scratch")
    with DiskMap(folder, SHAPE, 3) as found:
        found.write((7, 0, 0), numbers[7:])
        found.write((0, 0, 0), numbers[:7])
        yield found
    assert list(folder.iterdir()) == []


def array(volume: Volume, step: int = 1000) -> np.ndarray:
    parts = [volume.planes(i, min(i + step, volume.shape[2])) for i in range(0, volume.shape[2], step)]
    return np.concatenate(parts).transpose(1, 2, 0, 3)


@pytest.mark.parametrize("k", range(0, 48, 5))
def test_a_box_under_a_symmetry_is_read_alone(numbers, on_disk, k):
    found = segment.turned(on_disk, k, (3, 2, 1), (11, 9, 17))
    np.testing.assert_array_equal(found, symmetries.apply(numbers, k)[3:11, 2:9, 1:17])


def test_boxes_are_added_and_tiles_are_shared(tmp_path):
    expected = np.zeros((40, 7, 33, 100), np.float32)
    random = np.random.default_rng(1)
    with DiskMap(tmp_path, expected.shape[:3], 100) as found:
        assert found.side < 16  # many channels: smaller tiles
        for lower in ((0, 0, 0), (5, 1, 2), (5, 1, 2), (39, 6, 32)):
            upper = np.minimum(np.add(lower, (9, 6, 20)), expected.shape[:3])
            values = random.normal(size=(*(upper - lower), 100)).astype(np.float32)
            found.add(lower, values)
            expected[tuple(map(slice, lower, upper))] += values
        np.testing.assert_array_equal(array(found), expected)


@pytest.mark.parametrize("shape", [(25, 30, 31), (9, 33, 7), (20, 40, 18), SHAPE])
def test_a_resized_volume_is_the_same_whichever_planes_are_read_together(numbers, on_disk, shape):
    whole = array(Resized(on_disk, shape))
    np.testing.assert_array_equal(array(Resized(Array(numbers), shape), 1), whole)
    np.testing.assert_array_equal(array(Resized(on_disk, shape), 4), whole)
    np.testing.assert_allclose(whole, resize(numbers, shape), atol=1e-6)


@given(st.data())
@settings(deadline=None, max_examples=40)
def test_boxes_within_and_beyond_a_grid(numbers, data):
    def corner(least: int, most: int) -> tuple[int, int, int]:
        a, b, c = (data.draw(st.integers(least, most)) for _ in range(3))
        return a, b, c

    lower, step = corner(-30, 30), data.draw(st.integers(1, 9))
    upper = tuple(low + size for low, size in zip(lower, SHAPE, strict=True))
    box, grid = Box(lower=lower, upper=upper), corner(1, 30)
    placed = Placed(Array(numbers), box, grid)
    np.testing.assert_array_equal(array(placed, step), box.place(numbers, grid))
    np.testing.assert_array_equal(array(Cropped(placed, box), step), box.crop(box.place(numbers, grid)))


def test_the_mean_of_an_ensemble(numbers):
    found = array(Mean([Array(numbers), Array(numbers * 2), Array(numbers * 4)]), 5)
    np.testing.assert_array_equal(found, (numbers + numbers * 2 + numbers * 4) / np.float32(3))


@pytest.mark.parametrize("ending", [".nii", ".nii.gz"])
@pytest.mark.parametrize("kind", [np.uint8, np.dtype(">i2"), np.float32])
def test_a_file_has_what_nibabel_would_write(tmp_path, numbers, ending, kind, monkeypatch):
    monkeypatch.setattr(volumes, "_SLAB_BYTES", 40_000)  # five planes at a time
    expected = nib.Nifti1Image(numbers.argmax(axis=-1).astype(kind), np.diag([2, 3, 4, 1.0]))
    expected.header.set_xyzt_units("mm")
    expected.to_filename(tmp_path / f"expected{ending}")
    path = tmp_path / f"found{ending}"
    nifti.write(Array(numbers), path, expected.header, lambda p: p.argmax(axis=-1))
    found = nib.load(path)
    assert found.header == nib.load(tmp_path / f"expected{ending}").header
    np.testing.assert_array_equal(np.asarray(found.dataobj), np.asarray(expected.dataobj))


def test_a_disk_that_fails_halfway_leaves_the_file_that_was_there(tmp_path, numbers, monkeypatch):
    monkeypatch.setattr(volumes, "_SLAB_BYTES", 40_000)
    header, path, calls = nib.Nifti1Header(), tmp_path / "labels.nii.gz", iter(range(3))
    path.write_bytes(b"before")

    def values(planes: np.ndarray) -> np.ndarray:
        if next(calls) == 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return planes.argmax(axis=-1)

    with pytest.raises(StorageError, match=r"cannot write .*labels.nii.gz: No space left on device"):
        nifti.write(Array(numbers), path, header, values)
    assert ([one.name for one in tmp_path.iterdir()], path.read_bytes()) == (["labels.nii.gz"], b"before")


def test_a_full_disk_is_told_of_before_and_while_it_fills(tmp_path, monkeypatch):
    with pytest.raises(StorageError, match=r"free; expected .* TiB for the maps of a case"):
        DiskMap(tmp_path, (30_000, 30_000, 3_000), 4)
    with DiskMap(tmp_path, (16, 16, 16), 1) as found:

        def full(*_: object) -> int:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(disk_map.os, "pwrite", full)
        with pytest.raises(StorageError, match="cannot keep the maps of a case: No space left on device"):
            found.write((0, 0, 0), np.ones((16, 16, 16, 1), np.float32))
    assert list(tmp_path.iterdir()) == []


def test_twice_the_depth_takes_no_more_memory(tmp_path, monkeypatch):
    """What NumPy allocates, from the network's probabilities to files on a finer grid; an array of all of them would double."""
    monkeypatch.setattr(volumes, "_SLAB_BYTES", 400_000)

    def peak_bytes(depth: int) -> int:
        shape, finer = (32, 32, depth), (40, 40, 2 * depth)

        def network(read: Any, write: Any) -> None:
            for first in range(0, 32, 4):
                write(first, np.zeros((4, 32, depth, 5), np.float32)[:, :, :, : read(first, first + 4).shape[-1] + 3])

        tracemalloc.start()
        with segment.probabilities(
            network, lambda first, end: np.zeros((end - first, *shape[1:], 2), np.float32), shape, channels=5,
            scratch=tmp_path, numbers=symmetries.allowed(shape, "flips"),
        ) as found:  # fmt: skip
            tracemalloc.reset_peak()
            native = Placed(Resized(Mean([found, found]), finer), Box(lower=(0, 0, 0), upper=finer), finer)
            header = nib.Nifti1Header()
            nifti.write(native, tmp_path / "labels.nii.gz", header, lambda p: p.argmax(axis=-1))
            nifti.write(native, tmp_path / "entropy.nii.gz", header, entropy.categorical)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return peak

    assert peak_bytes(128) <= 1.05 * peak_bytes(64)


def test_entropies():
    even, sure = np.full((2, 4), 0.25, np.float32), np.array([[0, 0, 1, 0]], np.float32)
    np.testing.assert_allclose(entropy.categorical(even), np.log(4), rtol=1e-6)
    np.testing.assert_allclose(entropy.independent(np.full((2, 3), 0.5, np.float32)), 3 * np.log(2), rtol=1e-6)
    for one in (entropy.categorical, entropy.independent):
        np.testing.assert_array_equal(one(sure), 0)
        assert one(even).dtype == np.float32
    p = np.array([0.1, 0.9], np.float32)
    np.testing.assert_allclose(entropy.categorical(p), entropy.independent(p[:1]), rtol=1e-6)
