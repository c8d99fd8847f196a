"""The disk tier: private files that never outlive their owner, and clear errors when the disk fails."""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import re
import resource
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from lms3d.engine.native import library
from lms3d.engine.tensorflow import functions
from lms3d.engine.tiers import choose_tier, disk
from lms3d.engine.tiers.base import TierSpeed
from lms3d.engine.tiers.disk import DiskTier
from lms3d.engine.tiers.orphans import new_folder, remove_orphans
from lms3d.errors import InputError, StorageError
from lms3d.keras_step.callback import LMS
from tests.lms3d.engine.tiers.system_calls import LIBC, fails, replaced, resident
from tests.lms3d.engine.traced import SPEC, batch, by_tflms, chain, same_bits


def folders(parent: Path) -> list[Path]:
    return sorted(parent.glob("lms3d-swap-*"))


def make_old(folder: Path) -> None:
    """As if nobody had touched it for an hour: very young folders are never taken for orphans."""
    hour_ago = time.time() - 3600
    os.utime(folder, (hour_ago, hour_ago))


def test_files_are_private_and_go_away(tmp_path):
    tier = DiskTier(tmp_path / "swap")
    made = by_tflms(chain, tier)
    made.function(batch())
    (folder,) = folders(tmp_path / "swap")
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    files = list(folder.iterdir())
    assert [f.stat().st_size for f in files if f.suffix == ".bin"] == [64 * 32 * 4]
    assert {stat.S_IMODE(f.stat().st_mode) for f in files} == {0o600}
    tier.close()
    assert folders(tmp_path / "swap") == []
    tier.close()  # again: nothing happens


def maps(folder: Path) -> int:
    return Path("/proc/self/maps").read_text().count(str(folder))


def maps_go(folder: Path) -> bool:
    """Whether nothing is mapped any more. The lane's threads let go of a file a moment after its last copy."""
    for _ in range(500):
        if not maps(folder):
            return True
        time.sleep(0.01)
    return False


def test_a_closed_tier_holds_no_maps_although_functions_remain(tmp_path):
    tier = DiskTier(tmp_path)
    made = by_tflms(chain, tier)
    made.function(batch())
    assert maps(tmp_path)
    tier.close()
    assert maps_go(tmp_path)


@pytest.mark.parametrize("mapped", [True, False])
def test_files_go_with_the_last_function_that_swaps_to_them(tmp_path, mapped):
    """Nobody closes anything; TensorFlow keeps what a graph calls for ever."""
    tier = DiskTier(tmp_path)
    made = by_tflms(chain, tier, mapped=mapped)
    expected = made.function(batch())
    del tier
    gc.collect()
    same_bits(made.function(batch()), expected)
    del made
    gc.collect()
    assert folders(tmp_path) == []
    assert maps_go(tmp_path)


def test_a_fork_leaves_its_parents_files_alone(tmp_path, monkeypatch):
    tier = DiskTier(tmp_path)
    with monkeypatch.context() as child:
        child.setattr(disk.os, "getpid", lambda: -1)
        tier.close()
    assert folders(tmp_path) == [tier.directory]
    tier.directory.joinpath("lock").unlink()
    tier.directory.rmdir()


FORK = """
import os, sys
import numpy as np
from lms3d.engine.tiers.disk import DiskTier
tier = DiskTier(sys.argv[1])
file = tier.lane.file(tier.lane.reserve(8192), 8192)
file.write(np.ones(8192, np.uint8))
if os.fork() == 0:
    del tier, file
    os._exit(0)
print("ended as", os.wait()[1], [path.stat().st_size for path in tier.directory.glob("*.bin")])
"""


def test_a_fork_that_ends_does_not_wait_for_threads_that_its_parent_has(tmp_path):
    done = subprocess.run([sys.executable, "-c", FORK, tmp_path], stdout=subprocess.PIPE, text=True, timeout=300)
    assert done.stdout.strip() == "ended as 0 [8192]"
    assert folders(tmp_path) == []


def test_what_comes_back_is_what_left(tmp_path):
    tier = DiskTier(tmp_path)
    made = by_tflms(chain, tier)
    for seed in range(3):  # the same files, over and over
        same_bits(made.function(batch(seed)), functions.trace(chain, SPEC)(batch(seed)))
    assert tier.take_counters()["swapped_in_bytes"] == 3 * 64 * 32 * 4
    assert tier.take_counters()["swapped_in_bytes"] == 0
    tier.close()


def test_a_discarded_function_leaves_no_files_and_others_keep_theirs(tmp_path):
    tier = DiskTier(tmp_path)
    one, other = by_tflms(chain, tier), by_tflms(chain, tier)
    one.function(batch())
    other.function(batch())
    assert len(list(tier.directory.glob("*.bin"))) == 2
    tier.discard(one.function.graph)
    assert len(list(tier.directory.glob("*.bin"))) == 1
    same_bits(other.function(batch(1)), functions.trace(chain, SPEC)(batch(1)))
    tier.discard(one.function.graph)  # again: nothing happens
    tier.close()


OWNER = """
import sys
from lms3d.engine.tiers.disk import DiskTier
tier = DiskTier(sys.argv[1])
print(tier.directory, flush=True)
sys.stdin.read()  # until the test closes it
"""


def test_a_killed_process_leaves_nothing_and_orphans_are_told_from_the_living(tmp_path):
    command = [sys.executable, "-c", OWNER, str(tmp_path)]
    with (
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as dead,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as alive,
    ):
        try:
            left, used = (Path(p.stdout.readline().strip()) for p in (dead, alive))
            for folder in (left, used):
                make_old(folder)
            assert remove_orphans(tmp_path) == []
            (left / "0.bin").write_bytes(b"x" * 1000)
            dead.send_signal(signal.SIGKILL)
            dead.wait()
            deadline = time.monotonic() + 10
            while left.exists() and time.monotonic() < deadline:
                time.sleep(0.01)
            assert not left.exists()
            left.mkdir()  # as if the machine had gone down, and what clears up with it
            (left / "lock").touch()
            make_old(left)
            make_old(used)
            mine = DiskTier(tmp_path)
            assert folders(tmp_path) == sorted([used, mine.directory])
            mine.close()
            alive.communicate()  # ends as it should
            assert folders(tmp_path) == []
        finally:
            dead.kill()
            alive.kill()


def test_a_young_folder_is_left_alone(tmp_path):
    young = tmp_path / "lms3d-swap-young"
    young.mkdir()
    (young / "lock").touch()
    assert remove_orphans(tmp_path) == []
    make_old(young)
    assert remove_orphans(tmp_path) == [young]


def test_a_relative_folder_goes_wherever_the_process_is_by_then(tmp_path, monkeypatch):
    """Also what a killed process leaves: its cleaner works elsewhere."""
    monkeypatch.chdir(tmp_path)
    code = (
        "import os, signal, sys; from lms3d.engine.tiers.disk import DiskTier; tier = DiskTier('swap');"
        "(tier.directory / '0.bin').write_bytes(b'0'); os.chdir('/'); print(os.listdir(sys.argv[1]), flush=True);"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", code, tmp_path / "swap"], stdout=subprocess.PIPE, text=True)
    assert "lms3d-swap-" in done.stdout
    end = time.monotonic() + 60
    while folders(tmp_path / "swap") and time.monotonic() < end:
        time.sleep(0.05)
    assert folders(tmp_path / "swap") == []


def test_an_owner_that_ended_before_it_made_a_lock(tmp_path):
    orphan = tmp_path / "lms3d-swap-orphan"
    orphan.mkdir()
    assert remove_orphans(tmp_path) == []
    make_old(orphan)
    assert remove_orphans(tmp_path) == [orphan]


def test_the_folder_of_a_living_run_stays_where_a_cleaner_took_its_lock(tmp_path):
    folder, held = new_folder(tmp_path)
    try:
        (folder / "lock").unlink()  # as systemd-tmpfiles does after some days
        (folder / "0.bin").touch()
        make_old(folder)
        assert remove_orphans(tmp_path) == []
        assert (folder / "0.bin").exists()
    finally:
        for file in held:
            os.close(file)


def test_a_link_that_somebody_has_planted_is_not_followed(tmp_path):
    mine, parent = tmp_path / "mine", tmp_path / "tmp"
    mine.mkdir()
    parent.mkdir()
    make_old(mine)
    planted = parent / "lms3d-swap-planted"
    planted.symlink_to(mine)
    os.utime(planted, (0, 0), follow_symlinks=False)
    assert remove_orphans(parent) == []
    assert list(mine.iterdir()) == []


def test_a_folder_that_cannot_be_locked_does_not_stay(tmp_path, monkeypatch):
    monkeypatch.setattr(
        "fcntl.flock", lambda *_: (_ for _ in ()).throw(OSError(errno.ENOSPC, "No space left on device"))
    )
    with pytest.raises(InputError, match="No space left on device"):
        DiskTier(tmp_path)
    assert folders(tmp_path) == []


def test_a_folder_for_which_too_few_files_can_be_opened_does_not_stay(tmp_path):
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))) + 20, limits[1]))
    opened = []
    try:
        with contextlib.suppress(OSError):
            while True:
                opened.append(os.open(os.devnull, os.O_RDONLY))
        os.close(opened.pop())  # the lock can be opened, the pipe cannot
        with pytest.raises(OSError, match="Too many open files"):
            new_folder(tmp_path)
        opened.append(os.open(os.devnull, os.O_RDONLY))  # the lock is closed
    finally:
        for file in opened:
            os.close(file)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert not list(tmp_path.iterdir())


def test_the_speed_is_measured_in_a_folder_that_is_swept(tmp_path, monkeypatch):
    """It goes with its process: a process that is killed while it measures leaves no half a gigabyte."""
    seen = []
    monkeypatch.setattr(disk, "best_seconds", lambda call: seen.append(list(tmp_path.iterdir())) or 1.0)
    DiskTier.speed("CPU:0", tmp_path)
    assert all(path.name.startswith("lms3d-swap-") for paths in seen for path in paths)
    assert folders(tmp_path) == []


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=r"swap folder .*file/below'.*--swap-dir, or swap_dir in Python"):
        DiskTier(tmp_path / "file" / "below")


def test_names_of_tiers():
    assert [choose_tier("auto", d) for d in ("CPU:0", "GPU:0")] == ["disk", "host"]
    assert [choose_tier(t, "GPU:0") for t in ("host", "disk")] == ["host", "disk"]
    with pytest.raises(InputError, match="'tape': expected one of auto, host, disk"):
        LMS(tier="tape")


# -- a failing disk under model.fit


def small_model() -> keras.Model:
    layers = [keras.layers.Dense(64, activation="relu") for _ in range(6)]
    model = keras.Sequential([keras.Input((64,)), *layers])
    model.compile(optimizer="sgd", loss="mse", jit_compile=False)
    return model


DATA = (np.ones((8, 64), np.float32), np.zeros((8, 64), np.float32))
SWAP_ALL = {"tier": "disk", "swapout_threshold": 1, "swapin_ahead": 1, "swapin_groupby": 0, "sync_mode": 0}


@pytest.mark.parametrize(("call", "code"), [("pwrite", errno.ENOSPC), ("pwrite", errno.EIO), ("pread", errno.EIO)])
def test_a_failing_disk_stops_fit_with_one_clear_line(tmp_path, replace, call, code):
    model = small_model()
    lms = LMS(swap_dir=tmp_path, **SWAP_ALL)
    replace("mincore", resident(False))  # the disk itself is asked
    replace(call, fails(code))
    with pytest.raises(StorageError) as caught:
        model.fit(*DATA, batch_size=4, verbose=0, callbacks=[lms])
    text = str(caught.value)
    assert os.strerror(code) in text
    assert str(tmp_path) in text
    assert "--swap-dir" in text
    assert "\n" not in text
    assert caught.value.exit_code == 2
    lms.close()
    assert folders(tmp_path) == []


@pytest.mark.parametrize("mapped", [True, False])
def test_a_swap_file_that_was_cut_off(tmp_path, replace, mapped):
    model = small_model()
    lms = LMS(swap_dir=tmp_path, mapped=mapped, **SWAP_ALL)

    def cut_off(file: int, data: int, size: int, at: int) -> int:
        done = LIBC.pwrite(file, data, size, at)
        os.ftruncate(file, 10)
        return int(done)

    replace("pwrite", cut_off)
    with pytest.raises(StorageError, match="ended too early"):
        model.fit(*DATA, batch_size=4, verbose=0, callbacks=[lms])
    lms.close()


def test_nothing_is_left_of_a_callback_that_nobody_closed(tmp_path):
    small_model().fit(*DATA, batch_size=4, verbose=0, callbacks=[LMS(swap_dir=tmp_path, **SWAP_ALL)])
    gc.collect()
    assert folders(tmp_path) == []


def test_an_error_of_the_disk_does_not_explain_those_of_later_steps(tmp_path):
    tier = DiskTier(tmp_path)
    made = by_tflms(chain, tier)
    with replaced("pwrite", fails(errno.ENOSPC)), pytest.raises(tf.errors.OpError, match="No space left"):
        made.function(batch())
    assert re.search("swap folder .*No space left on device while moving 8192 bytes; free space", str(tier.error))
    same_bits(made.function(batch()), functions.trace(chain, SPEC)(batch()))
    assert tier.error is None
    tier.close()


def test_what_could_not_be_written_is_not_read(tmp_path):
    """The swap-in fails with the swap-out: it hands out no older bytes, and no other op sees them."""
    tier = DiskTier(tmp_path)
    for mapped in (True, False):
        made = by_tflms(chain, tier, mapped=mapped)
        made.function(batch(0))
        with (
            replaced("pwrite", fails(errno.EIO)),
            replaced("pread", fails(errno.ENXIO)),
            pytest.raises(tf.errors.OpError),
        ):
            made.function(batch(1))
        assert "Input/output error" in str(tier.error)
    tier.close()


@pytest.fixture
def no_compiler(tmp_path, monkeypatch):
    monkeypatch.setattr(library, "cache_directory", lambda: tmp_path / "cache")
    monkeypatch.delenv(library.GIVEN, raising=False)
    monkeypatch.setenv("CXX", "/nonexistent")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(library, "_loaded", library._loaded.__wrapped__)


def test_without_a_compiler_what_swaps_is_refused_in_one_line(tmp_path, no_compiler):
    """There is no second way in Python (`disk`)."""
    with pytest.raises(InputError, match=r"found no C\+\+ compiler.*install one.*CXX.*LMS3D_NATIVE_LIBRARY"):
        small_model().fit(*DATA, verbose=0, callbacks=[LMS(swap_dir=tmp_path / "swap", **SWAP_ALL)])
    assert not [*(tmp_path / "swap").iterdir()]


def test_without_a_compiler_a_step_that_swaps_nothing_trains(tmp_path, no_compiler, caplog):
    assert DiskTier.speed("CPU:0", tmp_path) == TierSpeed()
    assert "nothing can be swapped: found no C++ compiler" in caplog.text
    assert DiskTier.place(tmp_path).startswith(
        "no swap engine"
    )  # so that these speeds are not kept for when there is one
    small_model().fit(*DATA, verbose=0, callbacks=[LMS(swap_dir=tmp_path / "swap")])


def test_an_unwritable_swap_folder(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=r"swap folder .*--swap-dir"):
        small_model().fit(*DATA, verbose=0, callbacks=[LMS(swap_dir=tmp_path / "file" / "below", **SWAP_ALL)])
    monkeypatch.setattr(os, "access", lambda *_: False)  # tests may run as root, who may write anywhere
    with pytest.raises(InputError, match="is not writable"):
        small_model().fit(*DATA, verbose=0, callbacks=[LMS(swap_dir=tmp_path, **SWAP_ALL)])


def test_two_functions_on_one_tier_have_files_of_their_own(tmp_path):
    tier = DiskTier(tmp_path)
    first, second = by_tflms(chain, tier), by_tflms(chain, tier)
    for seed in range(2):
        same_bits(first.function(batch(seed)), second.function(batch(seed)))
    assert len(list(tier.directory.glob("*.bin"))) == 2
    tier.close()
