"""LMS is on a model for one `fit`, `evaluate` or `predict`, however that ends; what cannot be honoured is refused."""

from __future__ import annotations

import gc
import weakref

import keras
import numpy as np
import pytest

import lms3d
from lms3d.errors import InputError
from lms3d.keras_step.callback import LMS
from lms3d.keras_step.step_runner import StepRunner

X, Y = np.ones((4, 8), np.float32), np.zeros((4, 2), np.float32)
FUNCTIONS = ("train_function", "test_function", "predict_function")


def network(kind: type[keras.Model] = keras.Model) -> keras.Model:
    inputs = keras.Input((8,))
    model = kind(inputs, keras.layers.Dense(2)(keras.layers.Dense(8, activation="tanh")(inputs)))
    model.compile("sgd", "mse", jit_compile=False)
    return model


@pytest.fixture
def runs(monkeypatch) -> list[str]:
    """The kinds of the steps that LMS runs."""
    kinds: list[str] = []
    run = StepRunner.run
    monkeypatch.setattr(
        StepRunner, "run", lambda self, model, kind, batch: kinds.append(kind) or run(self, model, kind, batch)
    )
    return kinds


class Failing(keras.callbacks.Callback):
    """Raises in one of the hooks."""

    def __init__(self, hook: str) -> None:
        super().__init__()
        setattr(self, hook, self._fail)

    def _fail(self, *args: object, **logs: object) -> None:
        raise OSError("the disk of another callback is full")


def failing_data():
    yield X, Y
    raise OSError("the data cannot be read")


def use(model: keras.Model, method: str, *callbacks: keras.callbacks.Callback, data=None) -> None:
    given = (data,) if data is not None else (X,) if method == "predict" else (X, Y)
    options = {"batch_size": 2} if data is None else {}
    getattr(model, method)(*given, verbose=0, callbacks=list(callbacks), **options)


@pytest.mark.parametrize(
    ("method", "hook"),
    [
        ("fit", "on_train_begin"), ("fit", "on_epoch_begin"), ("fit", "on_train_batch_begin"), ("fit", "on_train_batch_end"),
        ("fit", "on_epoch_end"), ("evaluate", "on_test_batch_end"), ("predict", "on_predict_batch_begin"),
        ("predict", "on_predict_batch_end"),
    ],
)  # fmt: skip
def test_after_an_error_in_another_callback_the_next_call_runs_keras_own_function(method, hook, runs):
    model = network()
    with pytest.raises(OSError, match="another callback"):
        use(model, method, LMS(), Failing(hook))
    runs.clear()
    use(model, method)
    assert runs == []
    use(model, method, LMS())
    assert len(runs) == 2
    assert [getattr(model, name) for name in FUNCTIONS].count(None) == 3
    assert not [name for name in vars(model) if name.startswith("make_")]


@pytest.mark.parametrize("method", ["fit", "evaluate", "predict"])
def test_after_an_error_in_the_data_the_next_call_runs_keras_own_function(method, runs):
    model = network()
    with pytest.raises(Exception, match="the data cannot be read"):
        use(model, method, LMS(), data=failing_data())
    runs.clear()
    model.train_on_batch(X, Y)
    model.test_on_batch(X, Y)
    model.predict_on_batch(X)
    use(model, method)
    assert runs == []


def test_an_error_in_validation_leaves_neither_function_behind(runs):
    model = network()
    with pytest.raises(OSError, match="another callback"):
        model.fit(X, Y, validation_data=(X, Y), verbose=0, callbacks=[LMS(), Failing("on_test_batch_end")])
    runs.clear()
    model.fit(X, Y, validation_data=(X, Y), verbose=0)
    assert runs == []


def test_a_callback_that_trains_in_between_does_not_take_lms_off(runs):
    """As in adversarial training: its own step runs as Keras has it, the others with LMS."""
    model = network()
    between = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: model.train_on_batch(X, Y))
    model.fit(X, Y, batch_size=1, verbose=0, callbacks=[LMS(), between])
    assert runs == ["train"] * 4


def test_a_function_that_is_asked_for_by_force_is_traced_again():
    """Keras's way to freeze a layer in the middle of training."""
    model = network()

    def freeze(epoch: int, logs: dict) -> None:
        model.layers[1].trainable = False
        model.make_train_function(force=True)

    before = model.get_weights()
    model.fit(X, Y, verbose=0, callbacks=[LMS(), keras.callbacks.LambdaCallback(on_epoch_begin=freeze)])
    changed = [not np.array_equal(a, b) for a, b in zip(before, model.get_weights(), strict=True)]
    assert changed == [False, False, True, True]


def test_neither_a_failed_training_nor_the_callback_keeps_the_other_alive():
    model = network()
    lms = LMS()
    with pytest.raises(OSError, match="another callback"):
        use(model, "fit", lms, Failing("on_train_batch_end"))
    forgotten = weakref.ref(lms)
    del lms
    gc.collect()
    assert forgotten() is None  # and its swap files with it
    use(model, "fit", LMS())
    weights = weakref.ref(model.weights[0])
    del model
    gc.collect()
    assert weights() is None


def test_a_model_with_lms_on_it_can_be_planned():
    """In the middle of training, and after an error has left LMS there."""
    model, peaks = network(), []

    def estimate(*args: object, **logs: object) -> None:
        peaks.append(lms3d.estimate(model, (X, Y), with_floor=False).unedited_peak_bytes)
        assert model.train_function is not None

    between = keras.callbacks.LambdaCallback(on_train_batch_end=estimate)
    with pytest.raises(OSError, match="another callback"):
        use(model, "fit", LMS(), between, Failing("on_epoch_end"))
    estimate()
    assert len(peaks) == 3
    assert len(set(peaks)) == 1


@pytest.mark.parametrize("method", ["fit", "evaluate", "predict"])
def test_a_second_lms_is_refused_in_one_line(method, runs):
    model = network()
    with pytest.raises(InputError, match=r"another LMS callback .* leave one of the two out") as refusal:
        use(model, method, LMS(), LMS())
    assert "\n" not in str(refusal.value)
    use(model, method, LMS())
    assert len(runs) == 2


def test_what_a_failed_evaluation_within_an_evaluation_left_behind_is_taken_off(runs):
    model = network()

    def fails_within(batch: int, logs: object) -> None:
        if batch == 0:
            with pytest.raises(OSError, match="another callback"):
                use(model, "evaluate", LMS(), Failing("on_test_batch_end"))

    use(model, "evaluate", LMS(), keras.callbacks.LambdaCallback(on_test_batch_end=fails_within))
    assert runs == ["test"] * 3
    assert "make_test_function" not in vars(model)


class OwnTraining(keras.Model):
    def make_train_function(self, force: bool = False):
        return super().make_train_function(force=force)


def test_a_function_of_the_models_own_is_refused(runs):
    model = network(OwnTraining)
    with pytest.raises(InputError, match="OwnTraining has a make_train_function of its own") as refusal:
        use(model, "fit", LMS())
    assert "\n" not in str(refusal.value)
    use(model, "fit")
    assert runs == []
    use(model, "predict", LMS())  # which it leaves to Keras
    assert runs == ["predict"] * 2
    model = network()
    model.make_test_function = lambda force=False: None
    with pytest.raises(InputError, match="make_test_function"):
        use(model, "evaluate", LMS())
