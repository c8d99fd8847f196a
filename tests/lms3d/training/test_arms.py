"""Cosine schedule, moving average of the weights and accumulated gradients: right, and the same bits after an interruption."""

from types import SimpleNamespace

import keras
import numpy as np
import pytest

from lms3d.errors import Interrupted
from lms3d.tasks.brats.options import BratsConfig
from lms3d.training import compilation
from lms3d.training.adam import AveragingAdam
from lms3d.training.callbacks.cosine import LAST_SHARE, share
from lms3d.training.run_state import learning_rate
from tests.lms3d.training.test_trainer import STEPS, CtrlC, assert_same, history_of, make_model, run
from tests.thorough import also

KINDS = {
    "cosine": ({}, {"decay": "cosine", "warmup_epochs": 5}),
    "ema": ({"use_ema": True, "ema_momentum": 0.5}, {}),
    "accumulate": ({"gradient_accumulation_steps": 3}, {}),
    "all": ({"use_ema": True, "ema_momentum": 0.9, "gradient_accumulation_steps": 2}, {"decay": "cosine"}),
}


def model_of(kind):
    model = make_model()
    model.compile(AveragingAdam(1e-2, **KINDS[kind][0]), "mse", metrics=["mae"], jit_compile=False)
    model.optimizer.build(model.trainable_variables)
    return model


def run_of(kind, run_dir, *callbacks, **options):
    return run(run_dir, *callbacks, model=model_of(kind), **{**KINDS[kind][1], **options})


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """kind -> a run that was not disturbed."""
    made = {}

    def of(kind):
        if kind not in made:
            run_dir = tmp_path_factory.mktemp(kind)
            made[kind] = (run_dir, *run_of(kind, run_dir))
        return made[kind]

    return of


TRAINING, VALIDATING = (1, 1, "train"), (2, 1, "test")


@pytest.mark.parametrize(
    ("kind", "epoch", "step", "hook"),
    [*((kind, *TRAINING) for kind in KINDS), ("all", *VALIDATING), *also(*((kind, *VALIDATING) for kind in KINDS))],
)
def test_interrupted_and_resumed_it_ends_with_the_same_bits(straight, tmp_path, kind, epoch, step, hook):
    with pytest.raises(Interrupted):
        run_of(kind, tmp_path, CtrlC(epoch, step, hook))
    model, _ = run_of(kind, tmp_path, resume=True)
    assert_same(model, tmp_path, straight(kind))


def test_the_cosine_falls_to_a_hundredth_and_is_in_the_history(straight):
    run_dir, model, _ = straight("cosine")
    rates = [float(row["learning_rate"]) for row in history_of(run_dir)]
    expected = [1e-2 * share(STEPS * epoch - 1, 4 * STEPS) for epoch in range(1, 5)]
    np.testing.assert_allclose(rates, expected, rtol=1e-4)
    assert learning_rate(model) == pytest.approx(1e-2 * LAST_SHARE, rel=1e-4)
    assert (share(0, 10), share(9, 10), share(0, 1)) == (1, LAST_SHARE, 1)


class Seen(keras.callbacks.Callback):
    """Weights at each step, and while validating."""

    def __init__(self):
        super().__init__()
        self.steps, self.validating = [], []

    def on_train_batch_end(self, batch, logs=None):
        self.steps.append(np.asarray(self.model.trainable_variables[0]).copy())

    def on_test_batch_end(self, batch, logs=None):
        if batch == 0:
            self.validating.append(np.asarray(self.model.trainable_variables[0]).copy())


def test_the_average_is_validated_and_kept_and_the_weights_go_on(tmp_path):
    seen = Seen()
    model, _ = run_of("ema", tmp_path, seen, epochs=2)
    average = seen.steps[0]
    averages = [average]
    for changes, weights in enumerate(seen.steps[1:], 1):
        decay = min(0.5, (1 + changes) / (10 + changes))
        averages.append(decay * averages[-1] + (1 - decay) * weights)
    for epoch in range(2):
        np.testing.assert_allclose(seen.validating[epoch], averages[STEPS * (epoch + 1) - 1], rtol=1e-5)
        assert not np.allclose(seen.validating[epoch], seen.steps[STEPS * (epoch + 1) - 1])
    np.testing.assert_array_equal(np.asarray(model.trainable_variables[0]).copy(), seen.steps[-1])
    rows = history_of(tmp_path)
    best = min(range(2), key=lambda epoch: float(rows[epoch]["val_loss"]))
    kept = keras.models.load_model(tmp_path / "best.keras", compile=False)
    np.testing.assert_allclose(np.asarray(kept.trainable_variables[0]).copy(), seen.validating[best], rtol=1e-6)


def test_the_decay_grows_with_the_changes_of_the_weights():
    model = model_of("all")
    optimizer, found = model.optimizer, []
    for step in range(40):
        optimizer._iterations.assign(step)
        found.append(float(optimizer.ema_momentum))
    np.testing.assert_allclose(found, [min(0.9, ((1 + n // 2) / (10 + n // 2)) ** 0.5) for n in range(40)], rtol=1e-6)
    assert optimizer.get_config()["ema_momentum"] == 0.9
    assert isinstance(type(optimizer).from_config(optimizer.get_config()), AveragingAdam)


def test_ema_trains_with_such_an_average():
    task = SimpleNamespace(network=lambda *_: make_model(), loss=lambda *_: "mse", metrics=lambda *_: [])
    options = BratsConfig(ema=0.9)
    optimizer = compilation.compiled_model(options, task).optimizer
    assert isinstance(optimizer, AveragingAdam)
    assert float(optimizer.ema_momentum) == pytest.approx(0.1)


def test_accumulated_gradients_change_the_weights_once_in_three_steps(tmp_path):
    seen = Seen()
    run_of("accumulate", tmp_path, seen, epochs=2)
    changed = [bool((a != b).any()) for a, b in zip(seen.steps, seen.steps[1:], strict=False)]
    assert changed == [False, True, False, False, True, False, False]
