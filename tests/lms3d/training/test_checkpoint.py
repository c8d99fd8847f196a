"""Two generations of a checkpoint: whatever happens to the newer, nothing is read that was not written."""

import contextlib
import hashlib
import io
import json
import os
import zipfile

import numpy as np
import pytest

from lms3d.errors import InputError
from lms3d.training import checkpoint
from tests.power_cut import PowerCut
from tests.stress import damages

ARRAYS = {"model/0000/kernel": np.arange(6, dtype=np.float32).reshape(2, 3), "model/0001/bias": np.zeros(2, np.int64)}


@pytest.fixture
def path(tmp_path):
    """The checkpoint of a run, written twice."""
    path = checkpoint.path_in(tmp_path / "run")
    for number in (1, 2):
        write(path, number)
    return path


def write(path, number):
    checkpoint.save(path, {name: array + number for name, array in ARRAYS.items()}, {"number": number})


def number_of(found):
    """Which one was read; all of it must be of this one."""
    arrays, state = found[:2]
    assert arrays.keys() == ARRAYS.keys()
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(arrays[name], array + state["number"])
        assert arrays[name].dtype == array.dtype
    return state["number"]


def test_the_newest_is_taken_and_the_one_before_it_kept(path):
    write(path, 3)
    assert number_of(checkpoint.latest(path)) == 3
    assert checkpoint.latest(path)[2] == ""
    path.unlink()
    assert number_of(checkpoint.latest(path)) == 2
    assert sorted(other.name for other in path.parent.iterdir()) == ["checkpoint.npz", "checkpoint.older.npz"]


DAMAGE = {
    "cut off": lambda content: content[: len(content) // 2],
    "without its digest": lambda content: content[:-64],
    "empty": lambda content: b"",
    "zeros": lambda content: bytes(len(content)),
    "one byte": lambda content: content[:200] + bytes([content[200] ^ 1]) + content[201:],
    "longer": lambda content: content + b"\0",
    "text": lambda content: b"moved to tape, ask the operator",
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_one_gives_place_to_the_one_before_it(path, damage):
    path.write_bytes(damage(path.read_bytes()))
    *found, what = checkpoint.latest(path)
    assert number_of(found) == 1
    assert str(path) in what
    assert checkpoint.latest(path)[2] == ""  # it has taken its place
    write(path, 2)  # which must not push it out
    path.write_bytes(damage(path.read_bytes()))
    assert number_of(checkpoint.latest(path)) == 1


def test_both_damaged(path):
    for one in (path, checkpoint.older(path)):
        one.write_bytes(b"")
    with pytest.raises(InputError, match=r"checkpoint\.npz is damaged .*older\.npz is damaged .*another --output"):
        checkpoint.latest(path)


def array(content):
    np.save(stream := io.BytesIO(), content)
    return stream.getvalue()


def archive(**members):
    with zipfile.ZipFile(stream := io.BytesIO(), "w") as made:
        for name, content in members.items():
            made.writestr(f"{name}.npy", content)
    return stream.getvalue()


FOREIGN = {
    "text": b"moved to tape, ask the operator",
    "an array": array(np.ones(3)),
    "no state": archive(a=array(np.ones(3))),
    "a state that is no JSON": archive(**{"state.json": array(np.frombuffer(b"[" * 1000, np.uint8))}),
    "a pickle": archive(a=damages.pickled()),
    "a claim": archive(a=damages.claim()),
}


@pytest.mark.parametrize("content", FOREIGN.values(), ids=FOREIGN)
def test_what_no_run_has_written_is_damaged_whatever_its_digest_says(path, content):
    sealed = content + hashlib.sha256(content).hexdigest().encode()
    path.write_bytes(sealed)
    assert number_of(checkpoint.latest(path)) == 1
    checkpoint.older(path).unlink()
    path.write_bytes(sealed)
    with pytest.raises(InputError, match=r"checkpoint\.npz is damaged .*another --output"):
        checkpoint.latest(path)


def test_every_bit_of_a_checkpoint_is_guarded(path):
    content = path.read_bytes()
    with path.open("r+b", buffering=0) as file:
        for bit in range(8 * len(content)):
            place, value = bit // 8, content[bit // 8]
            os.pwrite(file.fileno(), bytes([value ^ 1 << bit % 8]), place)
            with pytest.raises(checkpoint.DamagedCheckpoint):
                checkpoint.load(path)
            os.pwrite(file.fileno(), bytes([value]), place)
    assert number_of(checkpoint.load(path)) == 2


def unsealed(path, number):
    """As 0.1.0 wrote it: the archive without a digest."""
    state = np.frombuffer(json.dumps({"number": number}).encode(), np.uint8)
    np.savez(path, **{"state.json": state, **{name: array + number for name, array in ARRAYS.items()}})


def test_one_of_an_earlier_version_is_read_and_told_of(path, capsys):
    """It is the newest: the older one must not take its place because it has a digest."""
    unsealed(path, 3)
    content = path.read_bytes()
    assert number_of(checkpoint.latest(path)) == 3
    (line,) = capsys.readouterr().out.splitlines()
    assert f"{path} is of an earlier version of lms3d" in line
    assert path.read_bytes() == content
    write(path, 4)
    assert number_of(checkpoint.latest(path)) == 4
    assert capsys.readouterr().out == ""
    assert number_of(checkpoint.load(checkpoint.older(path))) == 3


def test_a_damaged_one_of_an_earlier_version_gives_place_to_the_one_before_it(path):
    unsealed(path, 3)
    content = path.read_bytes()
    assert number_of(checkpoint.load(path)) == 3
    for place in range(0, len(content), 7):
        path.write_bytes(content[:place] + bytes([content[place] ^ 16]) + content[place + 1 :])
        with contextlib.suppress(checkpoint.DamagedCheckpoint):  # not all that is there matters
            assert number_of(checkpoint.load(path)) == 3
    path.write_bytes(DAMAGE["one byte"](content))
    assert number_of(checkpoint.latest(path)) == 1


def test_what_the_system_will_not_read_is_not_taken_for_damaged(path):
    """A disk that is not mounted well, a file of another user: the older one must not take the place of a sound one."""
    path.unlink()
    path.symlink_to(path)
    with pytest.raises(InputError, match=r"checkpoint\.npz: Too many levels of symbolic links"):
        checkpoint.latest(path)


def test_numpy_alone_can_read_it(path):
    with np.load(path) as content:
        assert set(content.files) == {"state.json", *ARRAYS}


def test_a_power_cut_leaves_the_old_one_or_the_new_one(path, tmp_path, monkeypatch):
    disk = PowerCut(path.parent.parent, monkeypatch)
    write(path, 3)
    assert {number_of(checkpoint.latest(checkpoint.path_in(root))) for root in disk.each(tmp_path / "every")} == {2, 3}
    assert {number_of(checkpoint.load(checkpoint.path_in(root))) for root in disk.now(tmp_path / "now")} == {3}
