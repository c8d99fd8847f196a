"""Two ranks that TensorFlow's own collectives link, started by `lms3d.launch`: no Horovod. The results of `job_collectives.py`."""

import itertools
import os
import re
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lms3d.errors import InputError
from tests.lms3d.ranks.started import Started
from tests.lms3d.ranks.test_ranks_training import WEIGHTS, flat

LAUNCH = [sys.executable, "-m", "lms3d.launch", "-np", "2"]
real = pytest.mark.slow


class Rank0:
    """How rank 0 of two meets the other, which sends what it sends."""

    rank, size = 0, 2

    def gather(self, message: bytes) -> list[bytes]:
        return [message, message]

    def broadcast(self, message: bytes) -> bytes:
        return message


def test_ranks_of_several_machines_are_refused():
    from lms3d.ranks import collectives

    class Elsewhere(Rank0):
        def gather(self, message: bytes) -> list[bytes]:
            return [message, b"elsewhere".ljust(len(message))]

    with pytest.raises(InputError, match=r"the ranks are on 2 machines, .* make horovod"):
        collectives.Collectives(Elsewhere())


def averages(monkeypatch, *sizes: int) -> list[Any]:
    """The exchanges of an average of vectors, in pieces of 256 bytes. In a plain graph: a tf.function would order them itself."""
    import tensorflow as tf

    from lms3d.ranks import collectives

    monkeypatch.setattr(collectives, "BUCKET_BYTES", 256)
    with tf.Graph().as_default() as graph:
        given = [tf.compat.v1.placeholder(tf.float32, [size]) for size in sizes]
        means = collectives.Collectives(Rank0()).average(given, "none", "gradients")
        assert [mean.shape for mean in means] == [one.shape for one in given]
        return [op for op in graph.get_operations() if op.type == "CollectiveReduceV2"]


def ancestors(op: Any) -> set[Any]:
    found, waiting = set(), [op]
    while waiting:
        one = waiting.pop()
        new = {*(tensor.op for tensor in one.inputs), *one.control_inputs} - found
        found |= new
        waiting += new
    return found


def keys(exchanges: list[Any]) -> list[int]:
    import tensorflow as tf

    return [int(tf.get_static_value(op.inputs[3])) for op in exchanges]


def test_pieces_are_exchanged_one_after_another(monkeypatch):
    exchanges = averages(monkeypatch, 25, 7, 30, 6, 100)
    assert [op.inputs[0].shape[0] for op in exchanges] == [62, 6, 100]
    for one, following in itertools.pairwise(exchanges):
        assert one in ancestors(following)


def test_types_are_exchanged_one_after_another(monkeypatch):
    import tensorflow as tf

    from lms3d.ranks import collectives
    from lms3d.ranks.gradients import Averaging

    monkeypatch.setattr(collectives, "BUCKET_BYTES", 256)
    with tf.Graph().as_default() as graph:
        given = [tf.compat.v1.placeholder(dtype, [60]) for dtype in (tf.float32, tf.float64, tf.float32)]
        Averaging(collectives.Collectives(Rank0()), "none")(given)
    exchanges = [op for op in graph.get_operations() if op.type == "CollectiveReduceV2"]
    assert [op.inputs[0].dtype for op in exchanges] == [tf.float32, tf.float32, tf.float64]
    for one, following in itertools.pairwise(exchanges):
        assert one in ancestors(following)


def test_the_number_of_an_exchange_hangs_on_what_is_exchanged_alone(monkeypatch):
    """Not on what this rank has traced before."""
    first = keys(averages(monkeypatch, 25, 100))
    other = keys(averages(monkeypatch, 25, 101))
    assert keys(averages(monkeypatch, 25, 100)) == first
    assert len({*first, *other}) == 3


@pytest.fixture(scope="module")
def job(started_by):
    """With a proxy at which nobody answers: the ranks must not ask it for each other."""
    return started_by(LAUNCH, "job_collectives.py", timeout=400, forked=True, http_proxy="http://127.0.0.1:9")


@pytest.fixture(scope="module")
def found(job):
    return [job.results(rank) for rank in range(2)]


@real
def test_ranks_meet_and_each_sees_its_own_devices_alone(found):
    assert [rank["world"] for rank in found] == [[0, 2, 0, 2], [1, 2, 1, 2]]
    assert [rank["early"] for rank in found] == [[0, 9]] * 2
    assert [rank["limit"] for rank in found] == [400 << 20] * 2
    assert [(rank["kind"], len(rank["devices"])) for rank in found] == [("Collectives", 1)] * 2


@real
def test_messages(found):
    for rank in found:
        assert rank["late_value"] == 0
        assert rank["everyone"] == ["ab", "abab"]
        assert rank["mean"]["b"] == (3 * 1.0 + 1 * 2.0) / 4
        assert rank["mean_one_counts"] == {"a": 5.0}
        assert rank["largest"] == [1.0, 0.0, 0.5]


@real
@pytest.mark.parametrize(("compression", "most"), [("none", 1e-6), ("fp16", 2e-3)])
def test_gradients_are_averaged_in_pieces(found, compression, most):
    for rank in found:
        wrong, bits, stateful = rank[f"pieces_{compression}"]
        assert wrong <= most
        assert bits == found[0][f"pieces_{compression}"][1]
        assert stateful == [True] * 3
        assert rank["open_shape"] == [0.5] * 3


@real
def test_two_ranks_are_one_rank_with_a_batch_of_two(found):
    mine, alone = found[0]["adam"], found[0]["adam_alone"]
    assert mine == found[1]["adam"]
    weights, expected = flat(mine[:WEIGHTS]), flat(alone[:WEIGHTS])
    assert np.linalg.norm(weights - expected) <= 1e-6 * np.linalg.norm(expected)


@real
@pytest.mark.parametrize("name", ["lms_both", "lms_one"])
def test_swapping_changes_no_bit(found, name):
    assert found[1][name]["swaps"] > 0
    for rank in found:
        assert rank[name]["values"] == rank["lms_none"]["values"]
        assert rank[name]["rows"] == rank["lms_none"]["rows"]


@real
def test_an_error_of_all_ranks_is_told_once_and_its_code_returned(job):
    assert job.code == 2
    assert job.output.count("lms3d: error: no such folder") == 1
    assert "Traceback" not in job.output


@real
@pytest.mark.parametrize(
    ("number", "code", "why"),
    [
        (signal.SIGKILL, 128 + signal.SIGKILL, "it ended without a word"),
        (signal.SIGSTOP, None, "it has not answered for"),
    ],
    ids=["killed", "stopped"],
)
def test_a_lost_rank_ends_the_job(tmp_path, number, code, why):
    with started(tmp_path) as running:
        running.until(lambda: steps(tmp_path) >= 3)
        os.kill(int((tmp_path / "pid1").read_text()), number)
        running.end()
        assert running.left() == []
    assert running.process.returncode in ([code] if code else range(1, 256))
    (line,) = running.lines
    assert re.search(rf"rank 1 of 2 is lost \({why}.*; go on .* --resume", line)
    assert list((Path(tmp_path) / "swap").iterdir()) == []


@real
def test_a_rank_whose_main_thread_hangs_is_named(tmp_path):
    """Its process lives and answers, so it is not lost."""
    with started(tmp_path, "1", "3") as running:
        running.until(lambda: "keeps the others waiting" in running.output)
        (line,) = running.lines
        assert "rank 1 of 2 keeps the others waiting" in line


def started(folder: Path, *more: str) -> Started:
    return Started(folder / "log", (), "job_failure.py", folder, folder / "run", *more, launcher=LAUNCH)


def steps(folder: Path) -> int:
    """The steps of rank 1."""
    file = folder / "steps1"
    return file.read_text().count("\n") if file.exists() else 0
