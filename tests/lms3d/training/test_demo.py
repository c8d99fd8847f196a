import pytest
from hypothesis import given
from hypothesis import strategies as st

from lms3d.training import demo


def test_each_part_takes_its_share_of_the_time_left():
    assert demo.seconds_left(120, 0.5) == (demo.END_SECONDS - 120) / 2
    assert demo.seconds_left(demo.END_SECONDS + 5, 1.0) == 0


@pytest.mark.parametrize(
    ("step_seconds", "seconds", "steps"), [(0.6, 400, 5), (12, 270, 5), (80, 270, 1), (80, 500, 3)]
)
def test_a_validation_of_slow_steps_sees_fewer_cases(step_seconds, seconds, steps):
    assert demo.validation_steps(step_seconds, 5, seconds) == steps


@given(st.floats(0.01, 250), st.integers(1, 500), st.integers(1, 100), st.floats(0, 2000))
def test_predicted_steps_fit_into_the_time(step_seconds, training, available, seconds):
    validation = demo.validation_steps(step_seconds, available, seconds)
    assert 1 <= validation <= available
    assert demo.VALIDATION_STEP * step_seconds * validation <= demo.VALIDATION_SHARE * seconds or validation == 1
    steps = demo.steps(step_seconds, training, validation, seconds)
    epochs = steps / training
    assert steps == 1 or step_seconds * (steps + demo.VALIDATION_STEP * validation * epochs) <= seconds


def test_memory_limits():
    assert demo.limit_bytes(192**3) == 8 * 2**30
    assert demo.limit_bytes(96**3) == 2**30
    assert demo.limit_bytes(64**3) == 700 * 2**20
