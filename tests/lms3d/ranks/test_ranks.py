"""Two ranks communicate and average their gradients. The results of `job_world.py` on each are checked."""

import itertools
import re

import numpy as np
import pytest


@pytest.fixture(scope="module")
def job(horovodrun):
    """Ends with an error that all ranks have."""
    return horovodrun("job_world.py")


@pytest.fixture(scope="module")
def found(job):
    return [job.results(rank) for rank in range(2)]


def test_the_world(found):
    assert [rank["world"] for rank in found] == [[0, 2, 0, 2], [1, 2, 1, 2]]
    assert len({rank["threads"] for rank in found}) == 1
    assert found[0]["threads"] >= 1
    assert [rank["limit"] for rank in found] == [400 << 20] * 2


def test_what_tensorflow_is_made_of_is_kept_from_the_garbage_collector(found):
    assert all(rank["frozen"] > 100_000 for rank in found)


def test_a_value_of_rank_0_reaches_all_and_is_made_once(found):
    assert [rank["value"] for rank in found] == [[0, 200_000, 1], [0, 200_000, 0]]
    assert [rank["late_value"] for rank in found] == [0, 0]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("input_error", ["InputError", "no such folder", 2, True]),
        ("does_not_fit", ["DoesNotFit", "too large", 3, True]),
    ],
)
def test_an_error_of_rank_0_reaches_all(found, name, expected):
    assert [rank[name] for rank in found] == [expected, expected]


def test_an_error_that_cannot_travel_keeps_its_words_and_its_exit_code(found):
    assert found[0]["awkward"] == ["Awkward", "file: damaged", 2, True]
    assert found[1]["awkward"] == ["RuntimeError", "Awkward: file: damaged", 2, True]


def test_a_value_that_cannot_travel_is_an_error_everywhere(found):
    for rank in found:
        kind, text = rank["unsendable"]
        assert kind == "TypeError"
        assert "a generator cannot be sent to the other ranks" in text


def test_numbers_of_all_ranks(found):
    for rank in found:
        assert rank["everyone"] == ["ab", "abab"]
        assert list(rank["mean"]) == ["b", "a"]
        assert rank["mean"]["b"] == (3 * 1.0 + 1 * 2.0) / 4
        assert rank["mean"]["a"] == pytest.approx(0.1)
        assert rank["mean_one_counts"] == {"a": 5.0}
        assert rank["mean_none_counts"] == {"a": 1.5}
        assert rank["largest"] == [1.0, 0.0, 0.5]
    assert found[0]["mean"] == found[1]["mean"]


@pytest.mark.parametrize(("compression", "relative"), [("none", 1e-6), ("fp16", 2e-3)])
def test_gradients_are_averaged(found, compression, relative):
    own, taken = (np.array([rank["gradients"][compression][key] for rank in found]) for key in ("own", "taken"))
    mean, scale = own.mean(0), np.abs(own).max()
    assert np.abs(own[0] - own[1]).max() > 0.1 * scale  # else nothing would be shown
    np.testing.assert_array_equal(taken[0], taken[1])
    np.testing.assert_allclose(taken[0], mean, rtol=0, atol=relative * scale)


def test_one_op_reduces_all_gradients_and_is_never_run_twice(found):
    for rank in found:
        for compression in ("none", "fp16"):
            ((kind, stateful, signature, outputs),) = rank["ops"][compression]
            assert (kind, stateful, signature, outputs) == ("HorovodGroupedAllreduce", True, "", 4)


def test_reductions_are_counted_and_the_optimiser_keeps_its_name(found):
    for rank in found:
        assert rank["begun"] == [0, 1, 2]
        assert rank["plain_name"] == "Adam"


def test_overflow_on_one_rank_lowers_the_scale_of_the_loss_on_all(found):
    first, second = found
    assert first["scaler"] == "LossScaleOptimizer"
    assert first["scales"] == second["scales"]
    scales, weights = first["scales"], first["scaled_weights"]
    assert [b / a for a, b in itertools.pairwise(scales)] == [1, 0.5, 1]
    assert weights == second["scaled_weights"]
    assert weights[0] != weights[1] == weights[2] != weights[3]  # the step that overflowed was left out


def test_a_rank_that_runs_out_of_memory_repeats_its_step_only_if_the_others_still_wait(found):
    assert [rank["tries"] for rank in found] == [1, 2]
    assert found[0]["swaps"] > 0
    assert found[0]["after_repeat"] == found[1]["after_repeat"]
    assert found[0]["too_late"] == ""
    assert "cannot be repeated alone" in found[1]["too_late"]
    assert "--resume" in found[1]["too_late"]


def test_a_rank_with_other_threads_is_refused(horovodrun):
    """A tensor made before the start: TensorFlow keeps the threads that it has chosen by itself."""
    job = horovodrun("job_early.py", timeout=120)
    assert job.code != 0
    assert (
        len(
            re.findall(
                "lms3d: error: rank 1 .* another number of .* than rank 0: found .*, expected .*; let nothing use",
                job.output,
            )
        )
        == 1
    )


def test_an_error_of_all_ranks_is_told_once(job):
    assert job.code != 0
    assert job.output.count("lms3d: error: no such folder") == 1
    assert "<stderr>:Traceback" not in job.output  # horovodrun itself ends with one
