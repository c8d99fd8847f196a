"""A disk that takes data and fails to keep it: the system writes back later, and drops the pages all the same.

The real thing if mounts are allowed: an ext4 in a sparse file on a tmpfs that is full before the file system is (as thin
volumes are). Else, and for what cannot be staged there, the calls that ask the system are made to fail.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from lms3d.engine.native.file_lane import FileLane, SwapFile
from lms3d.engine.tiers import disk
from lms3d.engine.tiers.disk import DiskTier
from lms3d.errors import StorageError
from lms3d.keras_step.callback import LMS
from tests.lms3d.engine.tiers.system_calls import LIBC, fails, replaced, resident
from tests.lms3d.engine.traced import batch, by_tflms, chain

BELOW, ABOVE = 6 << 20, 48 << 20  # bytes that the tmpfs has, and that the ext4 in it claims to have
SIZE = 12 << 20
FAILED = r"No space left|Input/output error"


def call(*command: str | Path) -> None:
    subprocess.run([*map(str, command)], check=True, capture_output=True, timeout=30)


@pytest.fixture
def thin(tmp_path) -> Iterator[Path]:
    """A folder on a disk that has less than it says."""
    below, above = tmp_path / "below", tmp_path / "disk"
    below.mkdir()
    above.mkdir()
    with ExitStack() as undo:
        try:
            call("mount", "-t", "tmpfs", "-o", f"size={BELOW}", "tmpfs", below)
            undo.callback(call, "umount", "-l", below)
            with open(below / "image", "wb") as image:
                image.truncate(ABOVE)
            call("mkfs.ext4", "-q", "-O", "^has_journal", "-E", "lazy_itable_init=1,nodiscard", below / "image")
            call("mount", "-o", "loop", below / "image", above)
            undo.callback(call, "umount", "-l", above)
        except (OSError, subprocess.SubprocessError) as error:
            pytest.skip(f"no disk of its own can be mounted here: {error}")
        disk.writes_in_place.cache_clear()
        yield above
    disk.writes_in_place.cache_clear()


def write_back(folder: Path) -> None:
    """Has the system write its dirty pages; nobody is told of failures."""
    file = os.open(folder, os.O_RDONLY)
    LIBC.syncfs(file)
    os.close(file)


def drop(file: SwapFile) -> None:
    """As when memory runs short: the pages go out of the cache."""
    LIBC.madvise(ctypes.c_void_p(file.place.ctypes.data), ctypes.c_size_t(file.size), mmap.MADV_DONTNEED)
    opened = os.open(file.path, os.O_RDONLY)
    os.posix_fadvise(opened, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(opened)


def noise(seed: int, size: int = SIZE) -> np.ndarray:
    return np.random.default_rng(seed).integers(1, 256, size, dtype=np.uint8)


def swap_files(folder: Path, size: int = SIZE, number: int = 1, *, in_place: bool = True) -> list[SwapFile]:
    lane = FileLane(folder, in_place=in_place)
    return [lane.file(lane.reserve(size), size) for _ in range(number)]


def lost(folder: Path, size: int = SIZE, number: int = 1, *, in_place: bool = True) -> list[SwapFile]:
    """Files that were written without an error, and that are more than there is room for. Nobody has looked since."""
    files = swap_files(folder, size, number, in_place=in_place)
    for seed, file in enumerate(files):
        file.write(noise(seed, size))
    write_back(folder)
    for file in files:
        drop(file)
    return files


def test_what_the_disk_has_lost_is_an_error_and_no_zeros(thin):
    (file,) = lost(thin)
    with pytest.raises(StorageError, match=FAILED):
        file.read(np.empty(SIZE, np.uint8))


def test_nor_is_it_read_where_it_lies(thin):
    (file,) = lost(thin)
    with pytest.raises(StorageError, match=FAILED):
        file.fetch()


def test_nor_between_the_look_for_it_and_the_read(thin, replace):
    (file,) = lost(thin, in_place=False)  # it is read by calls
    replace("mincore", resident(True))
    with pytest.raises(StorageError, match=FAILED):
        file.read(np.empty(SIZE, np.uint8))


def test_the_error_outlives_the_inode(thin):
    """Small tensors in many files: what the system knows of a file goes with its last page, unless somebody holds it."""
    size = 1 << 19
    files = lost(thin, size, SIZE // size)
    Path("/proc/sys/vm/drop_caches").write_text("2")
    wrong = 0
    for seed, file in enumerate(files):
        found = np.empty(size, np.uint8)
        try:
            file.read(found)
        except StorageError:
            wrong += 1
        else:
            np.testing.assert_array_equal(found, noise(seed, size))
    assert wrong


def test_pages_that_go_while_they_are_read_are_noticed_after_the_step(thin):
    """They are there when the step looks, go, and come back from the disk as something else."""
    (file,) = swap_files(thin)
    file.write(noise(0))
    assert file.fetch() == 0
    where = file.place
    write_back(thin)
    drop(file)
    assert not np.array_equal(where, noise(0))
    with pytest.raises(StorageError, match=FAILED):
        file.sync()


def test_a_failed_file_is_written_anew(thin):
    """The user makes room: later writes are as good as any, and nobody hears of the old error."""
    (file,) = lost(thin)
    found = np.empty(SIZE, np.uint8)
    with pytest.raises(StorageError, match=FAILED):
        file.fetch()
    with pytest.raises(StorageError, match="No such file"):  # once told is not forgotten
        file.read(found)
    call("mount", "-o", f"remount,size={ABOVE}", thin.parent / "below")
    file.write(noise(3))
    write_back(thin)
    drop(file)
    file.read(found)
    file.sync()
    np.testing.assert_array_equal(found, noise(3))


# -- a step on such a disk ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mapped", [True, False])
def test_a_step_ends_in_a_storage_error_and_not_in_other_numbers(thin, mapped):
    """Each tensor is written back and dropped before it is wanted again."""
    wide = tf.TensorSpec((3 << 10, 1 << 10))
    tier = DiskTier(thin)
    made = by_tflms(chain, tier, wide, mapped=mapped)
    assert {back.mapped for back in made.plan.swap_ins} == {mapped}
    with replaced("pwrite", written_and_dropped), pytest.raises(tf.errors.OpError):
        made.function(batch(0, wide))
    assert re.search("swap folder .* while moving", str(tier.error))
    tier.close()


def written_and_dropped(file: int, data: int, size: int, at: int) -> int:
    """A written file is written back at once, and its pages are dropped: before the file is mapped there is nobody
    else who holds them, and afterwards they are dropped by the address space, too."""
    done = LIBC.pwrite(file, data, size, at)
    LIBC.syncfs(file)
    path = os.readlink(f"/proc/self/fd/{file}")
    for line in Path("/proc/self/maps").read_text().splitlines():
        if line.endswith(path):
            first, end = (int(one, 16) for one in line.split()[0].split("-"))
            LIBC.madvise(ctypes.c_void_p(first), ctypes.c_size_t(end - first), mmap.MADV_DONTNEED)
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    return int(done)


def test_fit_asks_after_a_step_in_which_pages_came_back(tmp_path, monkeypatch, replace):
    """Data may have come back wrong while a step read them: its changes of the weights are taken back."""
    layers = [keras.layers.Dense(64, activation="relu") for _ in range(6)]
    model = keras.Sequential([keras.Input((64,)), *layers])
    model.compile(optimizer="sgd", loss="mse", jit_compile=False)
    manual = {"swapout_threshold": 1, "swapin_ahead": 1, "swapin_groupby": 0, "sync_mode": 0}
    lms = LMS(swap_dir=tmp_path, tier="disk", **manual)
    data = np.ones((8, 64), np.float32), np.zeros((8, 64), np.float32)
    replace("msync", fails(errno.ENOSPC))
    faults = iter([7, 7, 7, 7, 7, 9])  # before each step, before and after its function
    monkeypatch.setattr(disk, "_pages_read", lambda: next(faults))
    new = model.get_weights()
    model.fit(*data, batch_size=8, verbose=0, callbacks=[lms])
    good = model.get_weights()
    assert any((one != other).any() for one, other in zip(new, good, strict=True))
    with pytest.raises(StorageError, match=r"swap folder .*No space left .* while writing back"):
        model.fit(*data, batch_size=8, verbose=0, callbacks=[lms])
    for before, after in zip(good, model.get_weights(), strict=True):
        np.testing.assert_array_equal(before, after)
    assert isinstance(lms.storage_error, StorageError)
    lms.close()


def test_so_does_a_function_that_was_rewritten(tmp_path, monkeypatch, replace):
    """No step of Keras, and nobody but the function itself to ask."""
    tier = DiskTier(tmp_path)
    made = by_tflms(chain, tier, mapped=True)
    made.function(batch())
    replace("msync", fails(errno.ENOSPC))
    made.function(batch())
    faults = iter([7, 9])
    monkeypatch.setattr(disk, "_pages_read", lambda: next(faults))
    with pytest.raises(StorageError, match=r"swap folder .*No space left .* while writing back"):
        made.function(batch())
    tier.close()


def test_a_function_that_begins_meanwhile_hides_nothing(tmp_path, monkeypatch, replace):
    """Two functions of one tier in two threads: the tensors that the first has waited for stay known when the second begins."""
    tier = DiskTier(tmp_path)
    made = by_tflms(chain, tier, mapped=True)
    made.function(batch())
    replace("msync", fails(errno.ENOSPC))
    faults = iter([7, 9, 9, 9])
    monkeypatch.setattr(disk, "_pages_read", lambda: next(faults))
    first, second = tier.begin(), tier.begin()
    tier.check(second)
    with pytest.raises(StorageError, match=r"swap folder .*No space left .* while writing back"):
        tier.check(first)
    tier.close()


# -- where no disk can be made to fail -------------------------------------------------------------------------------


@pytest.fixture(params=[True, False])
def file(tmp_path, request) -> SwapFile:
    """On a file system that rewrites blocks in place, and on another."""
    (made,) = swap_files(tmp_path, in_place=request.param)
    made.write(noise(0))
    return made


@pytest.mark.parametrize("read", [lambda file: file.read(np.empty(SIZE, np.uint8)), lambda file: file.fetch()])
@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
def test_bytes_that_left_the_memory_are_asked_for_first(file, replace, read, number):
    replace("msync", fails(number))
    read(file)  # all of it is still there: nobody asks
    replace("mincore", resident(False))
    with pytest.raises(StorageError, match=FAILED):
        read(file)


def test_bytes_that_leave_the_memory_before_they_are_read_are_asked_for_afterwards(tmp_path, replace):
    (file,) = swap_files(tmp_path, in_place=False)
    file.write(noise(0))
    replace("msync", fails(errno.EIO))
    blocks = iter([5, 5, 5, 6])
    replace("blocks_read", lambda: next(blocks))
    file.read(np.empty(SIZE, np.uint8))
    with pytest.raises(StorageError, match=FAILED):
        file.read(np.empty(SIZE, np.uint8))


def test_a_file_that_cannot_be_mapped_is_held_by_a_descriptor(tmp_path, replace):
    (file,) = swap_files(tmp_path)
    before = len(os.listdir("/proc/self/fd"))
    replace("mmap", lambda *given: LIBC.mmap(*given) if given[4] < 0 else fails(errno.ENODEV)())
    for seed in range(2):
        file.write(noise(seed))
    assert len(os.listdir("/proc/self/fd")) == before + 1
    found = np.empty(SIZE, np.uint8)
    file.read(found)
    np.testing.assert_array_equal(found, noise(1))
    replace("fdatasync", fails(errno.EIO))
    with pytest.raises(StorageError, match=FAILED):
        file.read(found)
    assert len(os.listdir("/proc/self/fd")) == before
