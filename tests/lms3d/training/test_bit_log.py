"""The recorded bits of steps: adding, comparing and keeping them, and refused files."""

from __future__ import annotations

import json

import numpy as np
import pytest

from lms3d.errors import InputError
from lms3d.training.bit_log import BitLog

NAME = "rank-0-of-1"


def step(number: int, slip: float = 0.0) -> dict[str, np.ndarray]:
    weights = np.arange(6, dtype=np.float32).reshape(2, 3) + number
    weights[1, 2] += slip
    return {"batch/0": np.full(4, number, np.int32), "model/kernel": weights}


def record(folder, steps, *, slips=(), run="run") -> BitLog:
    log = BitLog(folder, NAME, run, {"threads": 1})
    for number in steps:
        log.note(1, number, step(number, np.float32(1e-5) if number in slips else 0.0))
    log.close()
    return log


def test_unknown_steps_are_added_and_known_ones_compared(tmp_path):
    first, second = record(tmp_path, (1, 2)), record(tmp_path, (2, 3, 4))
    assert [(log.added, log.compared, log.difference) for log in (first, second)] == [(2, 0, None), (2, 1, None)]
    assert record(tmp_path, range(1, 5)).compared == 4
    assert [json.loads(line).get("step") for line in (tmp_path / f"{NAME}.jsonl").read_text().splitlines()] == [
        None, 1, 2, 3, 4,
    ]  # fmt: skip


def test_the_first_step_that_differs_is_kept_with_the_one_before(tmp_path, capsys):
    record(tmp_path, range(1, 6))
    log = record(tmp_path, range(1, 8), slips=(3, 4))
    assert (log.compared, log.added) == (3, 0)
    assert log.difference == tmp_path / f"{NAME}-differs-1.json"
    told = json.loads(log.difference.read_text())
    assert (told["epoch"], told["step"], told["differ"]) == (1, 3, ["model/kernel"])
    assert told["circumstances"] == told["recorded_circumstances"] == {"threads": 1}
    with np.load(log.difference.with_suffix(".npz")) as arrays:
        assert set(arrays) == {f"{when}/{name}" for when in ("before", "found") for name in step(1)}
        np.testing.assert_array_equal(arrays["before/model/kernel"], step(2)["model/kernel"])
        assert np.argwhere(arrays["found/model/kernel"] != step(3)["model/kernel"]).tolist() == [[1, 2]]
    (line,) = capsys.readouterr().err.splitlines()
    assert "step 3 of epoch 1 is the first with other bits" in line
    assert line.endswith(f"see {log.difference}")
    assert record(tmp_path, range(1, 8), slips=(1,)).difference == tmp_path / f"{NAME}-differs-2.json"


def test_what_a_killed_job_has_not_ended_is_written_again(tmp_path):
    record(tmp_path, (1, 2))
    path = tmp_path / f"{NAME}.jsonl"
    path.write_bytes(path.read_bytes()[:-9])
    log = record(tmp_path, (1, 2))
    assert (log.compared, log.added, log.difference) == (1, 1, None)
    assert record(tmp_path, (1, 2)).compared == 2


def test_a_run_that_differed_is_not_recorded_when_it_goes_on(tmp_path, capsys):
    record(tmp_path, range(1, 4), run="first")
    record(tmp_path, range(1, 6), slips=(3, 4, 5))
    before = (tmp_path / f"{NAME}.jsonl").read_bytes()
    capsys.readouterr()
    rest = record(tmp_path, range(4, 9))
    assert (rest.compared, rest.added, rest.differs, rest.difference) == (0, 0, True, None)
    assert capsys.readouterr().err.count("has had other bits") == 1
    assert (tmp_path / f"{NAME}.jsonl").read_bytes() == before
    assert record(tmp_path, range(1, 5), run="another").added == 1


def test_a_run_that_goes_back_before_its_difference_is_compared_again(tmp_path):
    record(tmp_path, range(1, 6), run="first")
    record(tmp_path, range(1, 6), slips=(3,))
    assert record(tmp_path, range(3, 5)).compared == 2
    assert record(tmp_path, range(5, 7)).added == 1
    assert record(tmp_path, range(1, 6), slips=(2,)).difference
    assert record(tmp_path, range(3, 6)).compared == 0


def test_a_difference_is_told_where_its_arrays_do_not_fit(tmp_path, monkeypatch, capsys):
    record(tmp_path, range(1, 4))

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez", full)
    log = record(tmp_path, range(1, 4), slips=(2,))
    assert (log.differs, log.difference, list(tmp_path.glob("*differs*"))) == (True, None, [])
    told = capsys.readouterr().err
    assert "is the first with other bits" in told
    assert "see " not in told.splitlines()[-1]
    assert record(tmp_path, (3,)).compared == 0


def test_two_jobs_at_once_are_refused(tmp_path):
    first = BitLog(tmp_path, NAME, "run", {})
    with pytest.raises(InputError, match="another training records into"):
        BitLog(tmp_path, NAME, "run", {})
    first.close()
    BitLog(tmp_path, NAME, "run", {}).close()


@pytest.mark.parametrize(
    "line",
    ['{"epoch": 1}', "[]", "x", '{"arrays": 3, "circumstances": {}}', '{"arrays": []}',
     '{"run": "run", "differed": [1]}'],
)  # fmt: skip
def test_a_damaged_file_is_refused(tmp_path, line):
    record(tmp_path, (1,))
    with (tmp_path / f"{NAME}.jsonl").open("a") as file:
        print(line, file=file)
    with pytest.raises(InputError, match="is damaged; remove it"):
        record(tmp_path, (1,))


def test_another_network_ends_the_record_alone(tmp_path, capsys):
    record(tmp_path, (1,))
    log = BitLog(tmp_path, NAME, "run", {})
    for number in (1, 2):
        log.note(1, number, {"model/kernel": np.zeros(3)})
    log.close()
    assert capsys.readouterr().err.count("of another network: found batch/0, expected model/kernel") == 1
    assert (log.added, log.compared) == (0, 0)


def test_a_step_that_cannot_be_read_ends_the_record_alone(tmp_path, capsys):
    record(tmp_path, (1, 2))
    path = tmp_path / f"{NAME}.jsonl"
    path.write_bytes(path.read_bytes()[:-5] + b'"}\n')  # digests too short
    assert record(tmp_path, (1, 2, 3)).compared == 1
    assert (
        capsys.readouterr().err.count("is damaged; remove it, or choose another folder; training goes on without") == 1
    )


def test_a_file_that_cannot_be_read_is_refused(tmp_path, monkeypatch):
    def broken(log: BitLog) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(BitLog, "_read", broken)
    with pytest.raises(InputError, match=r"cannot read .*: Input/output error; choose another folder"):
        record(tmp_path, (1,))


def test_a_full_disk_ends_the_record_alone(tmp_path, monkeypatch, capsys):
    log = BitLog(tmp_path, NAME, "run", {})

    def full(line: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(log, "_write", full)
    log.note(1, 1, step(1))
    log.note(1, 2, step(2))
    log.close()
    assert capsys.readouterr().err.count("No space left on device; training goes on without it") == 1
