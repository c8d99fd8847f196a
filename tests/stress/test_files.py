"""A sample of the faults that `python -m tests.stress files` tries all of: files.py says what must hold."""

import random
import signal

import pytest

from tests.stress.files import Bench, NoDisk


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    with Bench(tmp_path_factory.mktemp("bench")) as bench:
        yield bench


def drawn(faults, count):
    return random.Random(5).sample(list(faults), count)


@pytest.mark.parametrize("scenario", ["skipped", "shards"])
def test_a_data_set_is_prepared(bench, scenario):
    for rule in drawn(bench.undisturbed(scenario).rules, 3):
        assert not bench.fault(scenario, rule), rule
    for name, tree in drawn(bench.undisturbed(scenario).power_cuts(), 2):
        assert not bench.power_cut(scenario, tree), name


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_signal_at_any_moment(bench, number):
    assert not bench.signalled("shards", number, random.Random(number).uniform(0, 1))


@pytest.mark.parametrize("limit", [{"RLIMIT_FSIZE": 16 << 10}, {"RLIMIT_NOFILE": 8}])
def test_files_may_not_grow_or_not_be_opened(bench, limit):
    assert not bench.limited("shards", limit)


def test_a_full_disk(bench):
    try:
        assert not bench.on_full_disk("train", 0.5)
    except NoDisk as error:
        pytest.skip(str(error))


def test_a_clock_that_jumps(bench):
    assert not bench.clock_jumps("shards", 0.5, -86_400)


def test_a_training(bench):
    """The disk is full in the middle of the second checkpoint, when best.keras is new already."""
    assert not bench.fault("train", "write:run/last/.checkpoint.*.partial.npz:155:ENOSPC")


def test_a_prediction(bench):
    assert not bench.fault("predict", "write:run/predictions/cube/.BraTS20_Training_001.nii.*.partial.gz:1:kill")


def test_a_prediction_with_a_package(bench):
    fault = "write:predictions/native/.BraTS20_Training_002.nii.*.partial.gz:1:ENOSPC"
    assert not bench.fault("predict with a package", fault)


def test_an_evaluation_of_label_maps(bench):
    assert not bench.fault("evaluate label maps", "rename:scores/scores.csv:1:kill")
