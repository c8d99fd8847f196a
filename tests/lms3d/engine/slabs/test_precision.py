"""In float32 and in half precision the sliced step is no farther from the step in float64 than the whole one is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import keras
import numpy as np
import pytest

from lms3d import models
from tests.lms3d.engine.slabs.networks import Run, batch_for, compiled, in_float64, run, u_net

ROOM = 1.5
"""By how much an error may be larger: the order of sums decides which one is, from network to network."""


@pytest.fixture(autouse=True)
def policy_of_before() -> Iterator[None]:
    before = keras.config.floatx(), keras.config.dtype_policy()
    yield
    keras.config.set_floatx(before[0])
    keras.config.set_dtype_policy(before[1])


def _steps(
    build: Any, policy: str, weights: list[np.ndarray] | None, slabs: list[Mapping[int, int]]
) -> tuple[list[Run], list[Any]]:
    """One step of plain descent at rate 1: weights that change by their gradients."""
    keras.config.set_floatx("float64" if policy == "float64" else "float32")
    keras.config.set_dtype_policy(policy)
    keras.utils.set_random_seed(0)
    model = build()
    if policy == "float64":
        in_float64(model)
    model = compiled(model, loss="binary_crossentropy", optimizer=keras.optimizers.SGD(1.0))
    if weights is not None:
        model.set_weights(weights)
    start = model.get_weights()
    batch = batch_for(model, dtype="float64" if policy == "float64" else "float32")
    runs = [run(model, batch, s, steps=1) for s in slabs]
    return runs, start


def _no_farther(build: Any, policy: str, slabs: Mapping[int, int]) -> None:
    (whole, cut), weights = _steps(build, policy, None, [{}, slabs])
    (exact,), _ = _steps(build, "float64", weights, [{}])
    assert len(cut.step.sliced) > 20
    assert not cut.joined
    size = np.linalg.norm(exact.change)
    errors = [np.linalg.norm(r.change - exact.change) / size for r in (whole, cut)]
    assert errors[1] <= ROOM * errors[0] + 1e-7, errors


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
def test_isensee2017(policy):
    def build() -> keras.Model:
        return models.isensee2017.build((32, 32, 32, 4), filters=(16, 32, 64), dropout=0.0)

    _no_farther(build, policy, {0: 8, 1: 4})


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
def test_a_2d_u_net(policy):
    _no_farther(lambda: _float32_at_the_end(u_net(filters=(2, 3))), policy, {0: 4, 1: 2})


def _float32_at_the_end(model: keras.Model) -> keras.Model:
    return keras.Model(model.input, keras.layers.Activation("linear", dtype="float32")(model.output))
