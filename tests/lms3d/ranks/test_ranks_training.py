"""Two ranks train as one would. The results of `job_training.py` on each are checked."""

import json

import numpy as np
import pytest

from tests.lms3d.ranks.job_training import OPTIMISERS
from tests.thorough import also

WEIGHTS = 4  # two convolutions


@pytest.fixture(scope="module")
def job(horovodrun):
    job = horovodrun("job_training.py", timeout=500, forked=True)
    assert job.code == 0, job.output
    return job


@pytest.fixture(scope="module")
def found(job):
    return [job.results(rank) for rank in range(2)]


def flat(values):
    return np.concatenate([np.asarray(part, np.float64) for part in values])


@pytest.mark.parametrize("name", OPTIMISERS)
def test_two_ranks_are_one_rank_with_a_batch_of_two(found, name):
    mine, alone = found[0][name], found[0][f"{name}_alone"]
    assert mine == found[1][name]
    assert len(mine) == len(alone)
    weights, expected = flat(mine[:WEIGHTS]), flat(alone[:WEIGHTS])
    assert np.linalg.norm(weights - expected) <= 1e-6 * np.linalg.norm(expected)
    np.testing.assert_allclose(weights, expected, rtol=0, atol=1e-6 * np.abs(expected).max())
    ((row,), (expected_row,)) = found[0][f"{name}_rows"], found[0][f"{name}_alone_rows"]
    assert row == pytest.approx(expected_row, rel=1e-5)
    assert found[1][f"{name}_rows"] == found[0][f"{name}_rows"]


def test_rank_0_alone_writes(found):
    assert found[0]["files"] == ["best.keras", "history.csv", "last/checkpoint.npz"]
    assert found[1]["files"] == []


def test_ranks_validate_one_model(found):
    first, second = (rank["moving"] for rank in found)
    assert all(a != b for a, b in zip(first["within"], second["within"], strict=True))
    assert first["validating"] == second["validating"]
    assert found[0]["normalised"] == found[1]["normalised"]


def test_dropout_differs_between_ranks(found):
    (first,), (second,) = (rank["seeds"] for rank in found)
    assert first[0] != second[0]
    assert first[1] == second[1]


def test_ranks_that_drift_apart_are_made_one_and_told(found, job):
    assert found[0]["drift"] == found[1]["drift"]
    assert "not the same bits after epoch 1 (rank 1's " in job.output
    assert job.output.count("not the same bits") == 2  # in none of the other trainings


def test_a_slip_of_one_rank_is_found_in_the_step_that_follows(job):
    """In both: rank 0 has the gradients of rank 1."""
    notes = [json.loads((job.folder / f"bits/rank-{rank}-of-2-differs-1.json").read_text()) for rank in range(2)]
    assert [(note["epoch"], note["step"]) for note in notes] == [(1, 3), (1, 3)]
    assert not [name for note in notes for name in note["differ"] if "batch" in name]
    assert len(list((job.folder / "bits").glob("*-differs-*.json"))) == 2


@pytest.mark.parametrize("name", ["lms_both", "lms_one"])
def test_swapping_changes_no_bit(found, name):
    assert found[1][name]["swaps"] > 0
    assert (found[0][name]["swaps"] > 0) == (name == "lms_both")
    for rank in found:
        assert rank["lms_none"]["swaps"] == 0
        assert rank[name]["values"] == rank["lms_none"]["values"]
        assert rank[name]["rows"] == rank["lms_none"]["rows"]


@pytest.mark.parametrize(
    ("name", "position"), [("mid_epoch", [1, 2]), ("validation", [0, 4]), *also(("last_step", [1, 4]))]
)
def test_ctrl_c_on_one_rank_stops_all_and_no_bit_is_lost(found, name, position):
    for rank in found:
        assert rank[name]["stopped"] == f"interrupted in epoch {position[0] + 1} after step {position[1]} True"
        assert rank[name]["resumed_at"] == position
        assert rank[name]["values"] == rank["undisturbed"]["values"]
        assert rank[name]["rows"] == rank["undisturbed"]["rows"]
    assert found[0]["undisturbed"] == found[1]["undisturbed"]


def test_the_rate_grows_from_that_of_one_rank(found):
    rates = [row["learning_rate"] for row in found[0]["undisturbed"]["rows"]]
    assert rates[0] == pytest.approx(1e-2 * (1 + 3 / 8) / 2)  # before the last step of the first of two epochs
    assert rates[1] == pytest.approx(1e-2 * (1 + 7 / 8) / 2)


def test_two_ranks_become_one(found):
    resumed = found[0]["two_to_one"]
    assert resumed["resumed_at"] == [1, 4]  # of 8 steps: as many samples as 2 of 4
    assert resumed["first_samples"] == [12, 13, 14]
    assert resumed["rate"] == pytest.approx(0.5e-2)
    assert resumed["epochs"] == 2


def test_one_rank_becomes_two(found):
    for rank, resumed in enumerate(rank["one_to_two"] for rank in found):
        assert resumed["resumed_at"] == [1, 1]
        assert resumed["first_samples"][0] == 6 + rank
        assert resumed["rate"] == pytest.approx(2e-2)
        assert resumed["epochs"] == 2


def test_a_callback_of_one_rank_stops_all(found):
    assert [rank["stopped"] for rank in found] == [[1, 2], [1, 2]]


def test_a_loss_that_is_not_finite_stops_all(found):
    assert "not finite on another rank in epoch 2, step 2" in found[0]["diverged"]
    assert "the loss is nan in epoch 2, step 2" in found[1]["diverged"]
