"""The store of measured speeds: whatever another program has left in it, a start measures again and does not fail."""

import fcntl
import json
import math
import os
from pathlib import Path

import pytest

from lms3d.engine.cost import Machine
from lms3d.engine.tensorflow import speeds
from lms3d.engine.tiers.base import TierSpeed
from lms3d.engine.tiers.disk import DiskTier
from lms3d.engine.tiers.host import HostTier


@pytest.fixture
def store(tmp_path, monkeypatch):
    monkeypatch.setattr(speeds, "cache_directory", lambda: tmp_path)
    return tmp_path / "machine.json"


@pytest.fixture(scope="module")
def here() -> Machine:
    """A real measurement."""
    return speeds._measure("CPU:0", HostTier.speed("CPU:0", None))


@pytest.fixture
def measured(store, here, monkeypatch) -> list[str]:
    """Grows with each measurement; all find the same."""
    found: list[str] = []
    monkeypatch.setattr(HostTier, "speed", lambda device, folder: TierSpeed())
    monkeypatch.setattr(speeds, "_measure", lambda device, tier: found.append(device) or here)
    speeds.machine("CPU:0", "host", None)
    assert found == ["CPU:0"]
    return found


def test_speeds_are_measured_once(store, measured):
    first = speeds.machine("CPU:0", "host", None)
    assert speeds.machine("CPU:0", "host", None) == first
    assert measured == ["CPU:0"]


def test_other_cores_are_measured_for_themselves(store, measured, monkeypatch):
    """A process that a launcher binds to one core is slower than one that has all."""
    another = speeds.cores() + 1
    monkeypatch.setattr(speeds, "cores", lambda: another)
    speeds.machine("CPU:0", "host", None)
    assert measured == ["CPU:0", "CPU:0"]


@pytest.mark.parametrize(
    ("allowed", "threads", "variable", "cores"),
    [
        (8, 0, "", 8),
        (1, 0, "", 1),  # bound by a launcher
        (8, 3, "", 3),  # a rank's part
        (2, 32, "", 2),
        (8, 0, "2", 2),
        (8, 3, "2", 3),  # TensorFlow asks the variable if nothing was set
        (8, 0, "many", 8),
    ],
)
def test_an_op_has_the_threads_of_tensorflow_and_no_more_cores_than_the_process(
    monkeypatch, allowed, threads, variable, cores
):
    monkeypatch.setattr(speeds.containers, "allowed_cores", lambda: allowed)
    monkeypatch.setattr(speeds.tf.config.threading, "get_intra_op_parallelism_threads", lambda: threads)
    monkeypatch.setenv("TF_NUM_INTRAOP_THREADS", variable)
    monkeypatch.setenv("LOKY_MAX_CPU_COUNT", "1")  # of joblib's workers
    assert speeds.cores() == cores


def test_a_bound_process_computes_on_the_cores_that_it_is_bound_to():
    allowed = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(allowed)})
        assert speeds.cores() == 1
    finally:
        os.sched_setaffinity(0, allowed)


def test_a_disk_is_measured_once_whatever_folder_is_used(store, monkeypatch, tmp_path):
    found: list[Path | None] = []
    monkeypatch.setattr(
        DiskTier, "speed", lambda device, folder: found.append(folder) or TierSpeed(swap_out_bytes_per_second=1e9)
    )
    first = speeds.machine("CPU:0", "disk", tmp_path / "one")
    assert speeds.machine("CPU:0", "disk", tmp_path / "two") == first
    assert found == [tmp_path / "one"]
    speeds.machine("CPU:0", "disk", Path("/proc"))
    assert found == [tmp_path / "one", Path("/proc")]


WRONG = {
    "a list": [1.0],
    "a number": 3,
    "nothing": {},
    "text": dict.fromkeys(speeds.SPEEDS, "fast"),
    "true": dict.fromkeys(speeds.SPEEDS, True),
    "zero": dict.fromkeys(speeds.SPEEDS, 0.0),
    "negative": dict.fromkeys(speeds.SPEEDS, -1.0),
    "infinite": dict.fromkeys(speeds.SPEEDS, math.inf),
    "not a number": dict.fromkeys(speeds.SPEEDS, math.nan),
    "a speed too few": dict.fromkeys(speeds.SPEEDS[1:], 1.0),
    "a name too many": dict.fromkeys([*speeds.SPEEDS, "colour"], 1.0),
}


@pytest.mark.parametrize("entry", WRONG.values(), ids=WRONG)
def test_what_no_machine_has_is_measured_again(store, measured, entry):
    (key,) = json.loads(store.read_text())
    store.write_text(json.dumps({key: entry, "of another machine": 1}))
    found = speeds.machine("CPU:0", "host", None)
    assert len(measured) == 2
    assert found.flops_per_second > 1e6
    assert speeds.machine("CPU:0", "host", None) == found  # and it is in the store now
    assert json.loads(store.read_text()).keys() == {key, "of another machine"}
    assert len(measured) == 2


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b"\xff\xfe", b"[" * 100_000])
def test_a_store_that_is_none_is_written_anew(store, measured, content):
    store.write_bytes(content)
    assert speeds.machine("CPU:0", "host", None).flops_per_second > 1e6
    assert len(json.loads(store.read_text())) == 1


def test_nobody_waits_for_ever_for_one_that_hangs(store, monkeypatch, caplog):
    monkeypatch.setattr(speeds, "PATIENCE_SECONDS", 0.2)
    with open(f"{store}.lock", "w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with speeds.one_at_a_time(store):
            assert "another process has held" in caplog.text
    caplog.clear()
    with speeds.one_at_a_time(store):
        assert caplog.text == ""
