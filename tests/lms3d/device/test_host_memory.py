"""The host memory of the process."""

import mmap
import platform

import pytest

from lms3d.device import host_memory

MIB = 1 << 20


@pytest.mark.skipif(platform.system() != "Linux", reason="/proc/self/status is Linux's")
def test_memory_that_is_touched_counts_and_its_peak_stays():
    before = host_memory.resident_bytes()
    block = mmap.mmap(-1, 64 * MIB)  # what malloc frees may stay with the process
    block.write(bytes(64 * MIB))
    held = host_memory.resident_bytes()
    assert held["host_bytes_in_use"] >= before["host_bytes_in_use"] + 48 * MIB
    block.close()
    after = host_memory.resident_bytes()
    assert after["host_bytes_in_use"] < held["host_bytes_in_use"]
    assert after["host_peak_bytes"] >= before["host_bytes_in_use"] + 48 * MIB  # the system counts in batches of pages


def test_nothing_is_said_where_the_system_does_not_tell(tmp_path):
    assert host_memory.resident_bytes(tmp_path / "none") == {}
