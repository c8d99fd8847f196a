"""Networks train over slow links, in stream order, as if nothing was moved: not a bit differs."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from lms3d.engine.engine import Engine
from lms3d.engine.passes import forms
from lms3d.engine.passes.base import Function
from lms3d.engine.passes.pieces import CutFilterGradients
from lms3d.keras_step.callback import LMS
from tests.lms3d.engine import transformers
from tests.lms3d.engine.small_models import VOLUMES, Losses, build, densenet, state
from tests.lms3d.engine.tiers.slow import RATES, registered
from tests.lms3d.engine.traced import same_bits
from tests.thorough import also

MANUAL = {"swapout_threshold": 2, "swapin_ahead": 2, "swapin_groupby": 0, "sync_mode": 0}
"""Whatever is read again three ops later leaves the device."""
LINKS = (
    ("gpt", RATES[2]), ("segformer", RATES[1]), ("unet3d", RATES[0]), ("isensee2017", RATES[1]), ("densenet", RATES[2]),
    *also(*((name, rate) for name in ("gpt", "segformer", *VOLUMES, "densenet") for rate in RATES)),
)  # fmt: skip


def made(name: str) -> tuple[keras.Model, np.ndarray, np.ndarray]:
    if name in ("gpt", "segformer"):
        return transformers.make(name)
    if name in VOLUMES:
        return build(name)
    model = densenet()
    model.compile(keras.optimizers.Adam(1e-3), "binary_crossentropy", jit_compile=False)
    random = np.random.default_rng(3)
    return (
        model,
        random.normal(size=(4, 32, 32, 3)).astype(np.float32),
        random.integers(0, 2, (4, 14)).astype(np.float32),
    )


class Training:
    """Trains one model from its first state, again and again."""

    def __init__(self, name: str) -> None:
        self.model, self.x, self.y = made(name)
        self.model(self.x[:2])
        self.model.optimizer.build(self.model.trainable_variables)
        self.start = [v.numpy() for v in state(self.model)]

    def run(self, steps: int, **options: object) -> list:
        """Losses, and all variables."""
        for variable, value in zip(state(self.model), self.start, strict=True):
            variable.assign(value)
        lms, losses = LMS(slabs="off", **options), Losses()
        self.model.fit(
            self.x[: 2 * steps], self.y[: 2 * steps], batch_size=2, shuffle=False, verbose=0, callbacks=[lms, losses]
        )
        swapped = [step.prepared.plan.swap_outs for step in lms._runner.steps.values()] if options.get("tier") else []
        assert all(swapped[:1]), "nothing is swapped out"
        lms.close()
        return [losses.seen, [v.numpy() for v in state(self.model)]]


@pytest.mark.parametrize(("name", "rate"), LINKS)
def test_same_bits(name, rate):
    training, steps = Training(name), 2
    without = training.run(steps, enabled=False)
    with registered(rate):
        same_bits(training.run(steps, tier="slow", **MANUAL), without)


@pytest.mark.parametrize("name", ["isensee2017", *also("unet3d", "densenet")])
def test_same_bits_where_gradients_of_kernels_come_in_pieces(name, monkeypatch):
    """As on a GPU within a small workspace: views of what has come back."""
    cut: list[int] = []

    class Counted(CutFilterGradients):
        def run(self, function: Function) -> bool:
            changed = super().run(function)
            cut.append(len(self.cut))
            return changed

    monkeypatch.setattr(Engine, "_workspace_bytes", lambda *_: 64 << 10)
    monkeypatch.setattr(forms, "CutFilterGradients", Counted)
    training = Training(name)
    without = training.run(2, enabled=False)
    with registered(RATES[1]):
        same_bits(training.run(2, tier="slow", **MANUAL), without)
    assert len(cut) >= 2
    assert min(cut) > 0


def dense(seed: int = 0) -> keras.Model:
    keras.utils.set_random_seed(seed)
    model = keras.Sequential([keras.Input((16,)), *(keras.layers.Dense(16, activation="relu") for _ in range(6))])
    model.compile(keras.optimizers.Adam(1e-3), loss="mse", jit_compile=False)
    return model


def data(steps: int) -> tuple[np.ndarray, np.ndarray]:
    x, y = np.random.default_rng(0).normal(size=(2, 4 * steps, 16)).astype(np.float32)
    return x, y


def test_five_hundred_steps():
    x, y = data(500)

    def trained(**options: object) -> list[np.ndarray]:
        model, lms = dense(), LMS(slabs="off", **options)
        model.fit(x, y, batch_size=4, shuffle=False, verbose=0, callbacks=[lms])
        lms.close()
        return model.get_weights()

    with registered(latency_seconds=1e-4):
        same_bits(trained(tier="slow", **MANUAL), trained(enabled=False))


def test_two_models_in_turn_and_what_keras_does_with_them():
    x, y = data(3)

    def run(**options: object) -> list:
        models = [dense(seed) for seed in (1, 2)]
        both = [LMS(slabs="off", **options) for _ in models]
        found: list = []
        for _ in range(2):
            for model, lms in zip(models, both, strict=True):
                usual = {"batch_size": 4, "verbose": 0, "callbacks": [lms]}
                found.append(model.predict(x, **usual))
                model.fit(x, y, shuffle=False, validation_data=(x[:4], y[:4]), **usual)
                found += [model.evaluate(x, y, **usual), model.get_weights()]
        for lms in both:
            lms.close()
        return found

    with registered(latency_seconds=1e-3):
        same_bits(run(tier="slow", **MANUAL), run(enabled=False))
