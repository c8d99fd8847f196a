"""Two ranks train the networks of both tasks as the README says. The results of `job_networks.py` are checked."""

import pytest

ROUNDING = 5e-3  # of the way; gradients that are summed, or not averaged at all, miss by as much as the way
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def found(horovodrun):
    job = horovodrun("job_networks.py", timeout=500, forked=True)
    assert job.code == 0, job.output
    return [job.results(rank) for rank in range(2)]


@pytest.mark.parametrize("task", ["brats", "chexnet"])
def test_ranks_end_with_the_same_weights(found, task):
    assert found[0][task]["digest"] == found[1][task]["digest"]


def test_two_ranks_are_one_with_a_batch_of_two_where_nothing_normalises_batches(found):
    """isensee2017: the same way in weight space, to rounding."""
    trained = found[0]["brats"]["trainable"]
    assert trained["way"] > 0
    assert trained["missed"] <= ROUNDING * trained["way"]


def test_each_rank_normalises_its_own_batch_and_gradients_and_statistics_are_averaged(found):
    """resnet50."""
    for kind in ("trainable", "moving"):
        weights = found[0]["chexnet"][kind]
        assert weights["way"] > 0
        assert weights["missed"] <= ROUNDING * weights["way"], kind
