"""A tensor's file: the same bytes through system calls and through the map, and no more of either than needed."""

from __future__ import annotations

import errno
import mmap
import os
from pathlib import Path

import numpy as np
import pytest

from lms3d.engine.native.file_lane import FileLane, SwapFile
from lms3d.engine.tiers import disk
from lms3d.errors import StorageError
from tests.lms3d.engine.tiers.system_calls import LIBC, fails, resident

SIZE = 2 << 20


def noise(seed: int, size: int = SIZE) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, size, dtype=np.uint8)


def swap_file(folder: Path, size: int = SIZE, *, in_place: bool = True, number: int = 1) -> list[SwapFile]:
    lane = FileLane(folder, in_place=in_place)
    return [lane.file(lane.reserve(size), size) for _ in range(number)]


def read(file: SwapFile) -> np.ndarray:
    found = np.zeros(file.size, np.uint8)
    file.read(found)
    return found


@pytest.fixture
def file(tmp_path) -> SwapFile:
    return swap_file(tmp_path)[0]


def counted(name: str, replace) -> list[int]:
    """Grows by what each call returns."""
    found: list[int] = []
    replace(name, lambda *given: found.append(getattr(LIBC, name)(*given)) or found[-1])
    return found


def test_what_was_written_last_comes_back(file):
    for seed in range(4):
        file.write(noise(seed))
        np.testing.assert_array_equal(read(file), noise(seed))
        assert file.path.read_bytes() == noise(seed).tobytes()  # the map is the file, not a copy of it


def test_system_calls_where_the_cache_has_lost_pages(file, replace):
    file.write(noise(0))
    replace("mincore", resident(False))
    written, found = counted("pwrite", replace), counted("pread", replace)
    file.write(noise(1))
    np.testing.assert_array_equal(read(file), noise(1))
    assert sum(written) == sum(found) == SIZE


def test_a_map_serves_while_the_cache_holds_the_file(file, replace):
    file.write(noise(0))
    replace("pwrite", fails(errno.EIO))
    replace("pread", fails(errno.EIO))
    file.write(noise(1))
    np.testing.assert_array_equal(read(file), noise(1))


def test_no_copy_through_the_map_where_writing_again_may_need_new_blocks(tmp_path, replace):
    (file,) = swap_file(tmp_path, in_place=False)
    written, found = counted("pwrite", replace), counted("pread", replace)
    for seed in range(2):
        file.write(noise(seed))
    np.testing.assert_array_equal(read(file), noise(1))
    assert (sum(written), sum(found)) == (2 * SIZE, SIZE)


@pytest.mark.parametrize(("kind", "in_place"), [("btrfs", False), ("ext4", True)])
def test_file_systems_that_rewrite_a_block_where_it_lies(tmp_path, monkeypatch, kind, in_place):
    disk.writes_in_place.cache_clear()
    part = type("Part", (), {"mountpoint": "/", "fstype": kind})
    monkeypatch.setattr(disk.psutil, "disk_partitions", lambda all: [part])
    assert disk.writes_in_place(tmp_path) is in_place
    disk.writes_in_place.cache_clear()


def test_small_files_are_written_by_a_call(tmp_path, replace):
    """Through a map each page waits once, and again whenever it was written back."""
    (file,) = swap_file(tmp_path, size=1000)
    written = counted("pwrite", replace)
    for seed in range(3):
        file.write(noise(seed, 1000))
        np.testing.assert_array_equal(read(file), noise(seed, 1000))
    assert written == [1000] * 3


def test_short_writes_and_reads_go_on(tmp_path, replace):
    (file,) = swap_file(tmp_path, size=10_000, in_place=False)
    replace("pwrite", lambda at, data, size, offset: LIBC.pwrite(at, data, min(size, 1000), offset))
    replace("pread", lambda at, data, size, offset: LIBC.pread(at, data, min(size, 777), offset))
    file.write(noise(1, 10_000))
    np.testing.assert_array_equal(read(file), noise(1, 10_000))


def test_interrupted_calls_go_on(tmp_path, replace):
    (file,) = swap_file(tmp_path, in_place=False)
    for name in ("pwrite", "pread"):
        interrupted = iter([True, False, True, False])
        own, fail = getattr(LIBC, name), fails(errno.EINTR)
        replace(name, lambda *given, own=own, fail=fail, tries=interrupted: (fail if next(tries) else own)(*given))
    file.write(noise(1))
    np.testing.assert_array_equal(read(file), noise(1))


def test_maps_hold_no_files_open_and_go_with_the_file(tmp_path):
    def maps() -> int:
        with open("/proc/self/maps") as table:
            return sum(str(tmp_path) in line for line in table)

    several = swap_file(tmp_path, number=10)
    before = len(os.listdir("/proc/self/fd"))
    for one in several:
        one.write(noise(1))
    assert maps() == 10
    assert len(os.listdir("/proc/self/fd")) == before
    for one in several:
        one.remove()
    assert maps() == 0
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_ends_too_early_is_an_error(tmp_path):
    (file,) = swap_file(tmp_path, in_place=False)
    file.write(noise(0))
    os.truncate(file.path, 10)
    for look in (lambda: read(file), file.fetch):
        with pytest.raises(StorageError, match="ended too early"):
            look()


@pytest.mark.parametrize("size", [1000, SIZE])
def test_reading_in_place_sees_each_write(tmp_path, size):
    (file,) = swap_file(tmp_path, size)
    where = file.place
    for seed in range(3):
        assert file.write(noise(seed, size)) == (seed > 0)  # whether it was all there before
        np.testing.assert_array_equal(where, noise(seed, size))


def test_what_the_cache_has_lost_is_fetched_by_system_calls(file, replace):
    """A disk that fails is an error then; touching the map would end the process."""
    file.write(noise(0))
    assert file.fetch() == 0
    replace("mincore", resident(False))
    calls = counted("pread", replace)
    assert file.fetch() == SIZE == sum(calls)
    replace("pread", lambda *_: 0)
    with pytest.raises(StorageError, match="ended too early"):
        file.fetch()


def test_nothing_is_written_as_nothing(tmp_path):
    (file,) = swap_file(tmp_path, 0)
    file.write(noise(0, 0))
    assert file.fetch() == len(read(file)) == 0


def test_a_file_that_is_made_anew_lies_where_the_old_one_lay(file):
    """Whoever reads it without a call has that address (FILE-5)."""
    where = file.place
    for seed in range(2):
        file.write(noise(seed))
        np.testing.assert_array_equal(where, noise(seed))
        file.remove()
        assert not where.any()


def test_files_are_mapped_where_huge_pages_may_begin(tmp_path):
    for size in (1, SIZE, 5 * SIZE + 1):
        (file,) = swap_file(tmp_path, size)
        assert file.place.ctypes.data % (2 << 20) == 0


def test_addresses_cost_no_memory_and_go_with_the_slot(tmp_path):
    def address_space() -> int:
        with open("/proc/self/statm") as pages:
            return int(pages.read().split()[0]) * mmap.PAGESIZE

    lane = FileLane(tmp_path, in_place=True)
    size, before = 1 << 40, address_space()
    slot = lane.reserve(size)
    assert address_space() - before >= size
    lane.drop(slot)
    assert address_space() - before < size // 2


@pytest.mark.parametrize("cores", [1, 2, 8])
def test_copies_by_several_threads_are_whole(tmp_path, monkeypatch, cores):
    """Every byte of a tensor that is copied in parts, whatever its size."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))
    lane = FileLane(tmp_path, in_place=True, part_bytes=1 << 12, least_mapped_bytes=0)
    for size in (1, 4095, 4096, 12289, 5 * 4096, 100_003):
        file = lane.file(lane.reserve(size), size)
        for seed in range(2):
            file.write(noise(seed, size))
            np.testing.assert_array_equal(read(file), noise(seed, size))


def test_an_array_of_another_size_is_refused(file):
    with pytest.raises(ValueError, match=f"a swap file of {SIZE} bytes .* of 10"):
        file.write(noise(0, 10))
