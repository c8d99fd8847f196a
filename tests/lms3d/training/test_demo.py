from hypothesis import example, given
from hypothesis import strategies as st

from lms3d.training import demo
from lms3d.training.demo import TARGET_SECONDS, length


def test_whole_epochs_where_they_fit():
    plan = length(1.0, 20, 5, 60)
    assert (plan.steps_per_epoch, plan.validation_steps) == (20, 5)
    assert plan.epochs == 33


def test_a_stage_is_as_long_as_predicted_and_the_last_part_is_promised_with_caution():
    assert demo.promised_seconds(1.0, 0.65) == 1.0
    assert demo.promised_seconds(1.0, 1.0) == demo.CAUTION > 1


def test_192_on_two_cores():
    plan = length(80.0, 20, 5, 120)
    assert (plan.epochs, plan.steps_per_epoch, plan.validation_steps) == (2, 3, 1)


def test_what_the_user_asked_for_is_not_cut():
    plan = length(80.0, 20, 5, 120, epochs=7)
    assert (plan.epochs, plan.steps_per_epoch) == (7, 20)


@example(221.0, 1, 5, 122.0)
@given(st.floats(0.01, 250), st.integers(1, 500), st.integers(1, 100), st.floats(0, 200))
def test_ends_in_time(step_seconds, training, validation, elapsed):
    plan = length(step_seconds, training, validation, elapsed)
    assert min(plan.epochs, plan.steps_per_epoch, plan.validation_steps) >= 1
    assert plan.steps_per_epoch <= training
    assert elapsed + plan.seconds <= TARGET_SECONDS + 1 or (plan.epochs, plan.steps_per_epoch) == (1, 1)


def test_memory_limits():
    assert demo.limit_bytes(192**3) == 8 * 2**30
    assert demo.limit_bytes(96**3) == 2**30
    assert demo.limit_bytes(64**3) == 700 * 2**20
