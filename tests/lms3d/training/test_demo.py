from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lms3d.tasks.brats.options import BratsConfig
from lms3d.training import demo, needs


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


@pytest.fixture
def planned(monkeypatch, capsys):
    """`planned(step_seconds, **options)`: the lengths of a run with 20 training and 5 validation steps, and its messages."""

    def length(step_seconds, cost=1.0, **options):
        prediction = SimpleNamespace(predicted_step_seconds=step_seconds, unedited_step_seconds=None)
        monkeypatch.setattr(needs, "plan_training_step", lambda *_, **__: SimpleNamespace(prediction=prediction))
        monkeypatch.setattr(needs, "elapsed_seconds", lambda: demo.END_SECONDS - 540)
        found = needs.with_length(BratsConfig(**options), None, None, 20, 5, 0.5, cost)
        return (found.epochs, found.steps_per_epoch, found.validation_steps), capsys.readouterr().out

    return length


def test_a_demonstration_has_as_many_epochs_as_its_time_allows(planned):
    lengths, said = planned(1.0)
    assert lengths == (demo.MOST_EPOCHS, 20, 5)
    assert "209 steps in epochs of 20 (1.0 s a step)" in said  # 230 seconds, of which validation takes one in eleven


def test_a_cosine_falls_over_the_epochs_that_are_predicted(planned):
    assert planned(1.0, schedule="cosine")[0] == (11, 20, 5)


def test_volumes_in_many_windows_validate_fewer(planned):
    assert planned(1.0, cost=45.0)[0] == planned(45.0)[0]


def test_slow_steps_validate_fewer_cases_unless_their_number_is_given(planned):
    assert planned(45.0)[0] == (demo.MOST_EPOCHS, 20, 3)
    assert planned(45.0, validation_steps=4)[0] == (demo.MOST_EPOCHS, 20, 4)


def test_more_epochs_than_any_run_has_are_not_promised(planned):
    assert f"{demo.MOST_EPOCHS * 20} steps" in planned(0.001)[1]


def test_epochs_that_the_user_asked_for_are_not_cut(planned):
    lengths, said = planned(45.0, epochs=7)
    assert lengths == (7, 20, 5)
    assert "140 steps" in said


def test_memory_limits():
    assert demo.limit_bytes(192**3) == 4 * 2**30
    assert demo.limit_bytes(96**3) == 700 * 2**20
    assert demo.limit_bytes(64**3) == 700 * 2**20
