import pytest

from lms3d.distributed import World


def test_alone():
    assert World().is_chief
    assert World().share([1, 2, 3]) == [1, 2, 3]
    assert World().steps(5, 2) == 3
    assert World().learning_rate(5e-4) == 5e-4


def test_sixteen_ranks_of_the_case_study():
    ranks = [World(rank=rank, size=16) for rank in range(16)]
    shares = [world.share(range(228)) for world in ranks]
    assert sorted(item for share in shares for item in share) == list(range(228))
    assert {len(share) for share in shares} == {14, 15}
    assert {world.steps(228, 1) for world in ranks} == {15}
    assert sum(world.is_chief for world in ranks) == 1


def test_no_such_rank():
    with pytest.raises(ValueError, match="rank 2"):
        World(rank=2, size=2)
