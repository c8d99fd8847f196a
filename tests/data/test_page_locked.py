"""Host memory of batches beside a GPU: locked once, used again, and given back; over a driver that a small library plays."""

from __future__ import annotations

import ctypes
import gc
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from lms3d.data import page_locked, stream
from lms3d.data.page_locked import Blocks, Driver
from lms3d.engine.native.library import find_compiler

MIB = 1 << 20
DRIVER = """
#include <map>
extern "C" {
static std::map<void*, unsigned long> locked;
static int current = 0, refuses = 0;
int cuInit(unsigned) { return 0; }
int cuDeviceGet(int* device, int number) { *device = number; return number == 1 ? 0 : 101; }
int cuDevicePrimaryCtxRetain(void** context, int device) { *context = (void*)(long)(device + 7); return 0; }
int cuCtxPushCurrent_v2(void* context) { ++current; return context == (void*)8 ? 0 : 201; }
int cuCtxPopCurrent_v2(void**) { --current; return 0; }
int cuMemHostRegister_v2(void* at, unsigned long size, unsigned) {
  if (!current) return 201;
  if (refuses) return 2;
  locked[at] = size;
  return 0;
}
int cuMemHostUnregister(void* at) { return locked.erase(at) ? 0 : 713; }
void refuse(int yes) { refuses = yes; }
unsigned long locked_bytes() { unsigned long sum = 0; for (auto& one : locked) sum += one.second; return sum; }
}
"""


@pytest.fixture
def driver(tmp_path: Path) -> Path:
    source, library = tmp_path / "driver.cc", tmp_path / "libdriver.so"
    source.write_text(DRIVER)
    subprocess.run([find_compiler(), "-shared", "-fPIC", source, "-o", library], check=True)
    return library


def locked_bytes(driver: Path) -> int:
    return ctypes.CDLL(str(driver)).locked_bytes()


def test_a_block_is_locked_once_and_lent_again(driver):
    blocks = Blocks(Driver(1, str(driver)))
    first = blocks.lend(MIB)
    view = first.view("f4").reshape(512, 512)[7:]
    view[...] = 3.0
    address = first.ctypes.data
    del first
    gc.collect()
    assert blocks.spare_bytes == 0  # a view is left
    other = blocks.lend(MIB)
    assert other.ctypes.data != address
    assert (view == 3.0).all()
    del view
    assert blocks.spare_bytes == MIB
    assert blocks.lend(MIB).ctypes.data == address
    assert locked_bytes(driver) == 2 * MIB


def test_spare_blocks_hold_no_more_than_they_may(driver, monkeypatch):
    monkeypatch.setattr(page_locked, "SPARE_BYTES", 3 * MIB)
    monkeypatch.setattr(page_locked, "FEW", 1)
    blocks = Blocks(Driver(1, str(driver)))
    lent = [blocks.lend(size * MIB) for size in (2, 1, 2)]
    assert locked_bytes(driver) == 5 * MIB
    while lent:
        lent.pop(0)
    assert blocks.spare_bytes == 5 * MIB
    kept = blocks.lend(MIB // 2)
    assert blocks.spare_bytes == 3 * MIB
    assert locked_bytes(driver) == 3 * MIB + kept.nbytes
    monkeypatch.setattr(page_locked, "SPARE_BYTES", 0)
    monkeypatch.setattr(page_locked, "FEW", 2)
    blocks.lend(MIB // 2)
    assert blocks.spare_bytes == 3 * MIB + MIB // 2  # few blocks are kept, however large


def test_a_block_that_cannot_be_unlocked_is_kept(driver, monkeypatch, caplog):
    monkeypatch.setattr(page_locked, "SPARE_BYTES", 0)
    monkeypatch.setattr(page_locked, "FEW", 0)
    blocks = Blocks(Driver(1, str(driver)))
    address = blocks.lend(MIB).ctypes.data
    ctypes.CDLL(str(driver)).cuMemHostUnregister(ctypes.c_void_p(address))  # so the driver does not know it
    blocks.lend(MIB // 2)
    assert [one.address for one in blocks._kept] == [address]
    assert "cuMemHostUnregister failed with error 713" in caplog.text


def test_threads_that_ask_at_once_get_the_same_blocks(driver, monkeypatch):
    """Nobody would unlock the memory of a second set of blocks."""
    made = []

    def slowly(gpu: int) -> Driver:
        made.append(gpu)
        time.sleep(0.2)
        return Driver(gpu, str(driver))

    monkeypatch.setattr(page_locked, "Driver", slowly)
    gpu = type("Gpu", (), {"name": "/physical_device:GPU:1"})
    monkeypatch.setattr(tf.config, "get_visible_devices", lambda kind: [gpu])
    page_locked._found.cache_clear()
    try:
        with ThreadPoolExecutor(4) as pool:
            found = list(pool.map(lambda _: page_locked.blocks(), range(4)))
        assert made == [1]
        assert len(set(map(id, found))) == 1
    finally:
        page_locked._found.cache_clear()


def test_what_cannot_be_locked_is_lent_all_the_same(driver, caplog):
    library = ctypes.CDLL(str(driver))
    library.refuse(1)
    blocks = Blocks(Driver(1, str(driver)))
    arrays = [blocks.lend(MIB) for _ in range(2)]
    for array in arrays:
        array[...] = 1
    assert library.locked_bytes() == 0
    assert [r.message for r in caplog.records if "page-locked" in r.message] == [
        "lms: batches are copied to the GPU from memory that is not page-locked, which is slower: CUDA's cuMemHostRegister_v2 "
        "failed with error 2"
    ]


def test_without_the_gpu_or_the_driver_there_are_no_blocks(driver, tmp_path):
    assert page_locked._found.__wrapped__() is None  # no GPU here
    with pytest.raises(OSError, match="cuDeviceGet failed with error 101"):
        Driver(0, str(driver))
    with pytest.raises(OSError, match=r"none\.so"):
        Driver(0, str(tmp_path / "none.so"))


def test_batches_lie_in_blocks_beside_a_gpu(driver, monkeypatch):
    blocks = Blocks(Driver(1, str(driver)))
    monkeypatch.setattr(page_locked, "blocks", lambda: blocks)
    shape = (64, 1024)

    def load(step: np.ndarray) -> tuple[np.ndarray, ...]:
        array, number = stream.aligned_empty(shape, "f4"), stream.aligned_empty((1,), "i8")
        array[...], number[...] = step, step
        return array, number

    signature = (tf.TensorSpec(shape), tf.TensorSpec((1,), tf.int64))
    for n, (array, number) in enumerate(stream.loaded(tf.data.Dataset.range(40), load, signature)):
        assert (array.numpy() == n).all()
        assert int(number[0]) == n
    assert 0 < locked_bytes(driver) < 15 * np.prod(shape) * 4  # few blocks for forty batches; the small array has none
