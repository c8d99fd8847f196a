"""From a saved network to its registered name, build options and arrays, and back. None of its code is kept.

NETWORK-1 The build options follow from the names and shapes of the weights, both when a package is made and when it is
          opened: a package cannot ask for a larger network than the one whose weights it has.
NETWORK-2 Whatever has no weights (slopes, epsilons, the connections of layers) comes from the lms3d that opens the package. When
          the package is made, the layers of the saved network are compared with the layers that `models.build` makes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import zip_longest
from typing import Any

import numpy as np

Shapes = Mapping[str, Sequence[int]]
"""The path of a variable, such as "encoder0_a_conv/kernel" -> its shape."""

_IGNORED = frozenset({"name", "dtype", "rate", "seed", "seed_generator", "batch_shape", "trainable"})
"""Settings that may differ: Keras numbers the names of some layers without weights, precision is an option, dropout does nothing
here, and the shape follows from the options."""


def build_options(name: str, shapes: Shapes) -> dict[str, Any]:
    """The options of the registered network `name` whose weights have these shapes, without input_shape and outputs.

    ValueError for an unknown network.
    """
    from lms3d import models

    if name not in models.NETWORKS:
        raise ValueError(f"unknown model {name!r}; expected one of {', '.join(sorted(models.NETWORKS))}")
    return models.NETWORKS[name].options_of(shapes)


def built(
    name: str, shape: Sequence[int | None], outputs: int, weights: Mapping[str, np.ndarray], precision: str, **more: Any
) -> Any:
    """The registered network with these weights, by path. ValueError if it has other names or shapes.

    shape: (D, H, W, C) or (H, W, 3). precision: a Keras policy for this network alone. more: options that need no weights.
    """
    from lms3d import models

    options = build_options(name, {path: array.shape for path, array in weights.items()})
    with _policy(precision):
        model = models.build(name, input_shape=tuple(shape), outputs=outputs, **options, **more)
    variables = {variable.path: variable for variable in model.weights}
    require_same_shapes(weights, {path: variable.shape for path, variable in variables.items()}, name)
    for path, variable in variables.items():
        variable.assign(weights[path])
    return model


def needed(
    name: str, shape: Sequence[int | None], outputs: int, weights: Mapping[str, np.ndarray], precision: str, **more: Any
) -> list[str]:
    """The paths of the weights that the registered network has without what training alone needs, such as deeper heads."""
    from lms3d import models

    options = build_options(name, {path: array.shape for path, array in weights.items()})
    with _policy(precision):
        model = models.build(name, input_shape=tuple(shape), outputs=outputs, **options, **more)
    return [variable.path for variable in model.weights]


def require_same_shapes(weights: Mapping[str, np.ndarray], expected: Shapes, name: str) -> None:
    """ValueError names the first variable that is missing, unknown or of another shape."""
    for path in (*expected, *weights):
        found = tuple(weights[path].shape) if path in weights else "nothing"
        wanted = tuple(expected[path]) if path in expected else "no such weight"
        if found != wanted:
            raise ValueError(f"weight {path[:80]!r} of {name}: found {found}, expected {wanted}")


def weights_of(model: Any) -> dict[str, np.ndarray]:
    """Path -> array, in the order of the network. ValueError if two weights have one path."""
    found = {variable.path: np.asarray(variable) for variable in model.weights}
    if len(found) < len(model.weights):
        raise ValueError("found two weights of one name")
    return found


def require_same_layers(saved: Any, rebuilt: Any) -> None:
    """ValueError if a layer has another kind or another setting, except for settings that change no prediction."""
    for one, other in zip_longest(*map(_layers, (saved, rebuilt))):
        if one != other:
            raise ValueError(f"found layer {str(one)[:80]}, where models.build makes {str(other)[:80]}")


def _layers(model: Any) -> list[str]:
    return [f"{type(layer).__name__} {json.dumps(_plain(layer.get_config()), default=str)}" for layer in model.layers]


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _plain(one) for name, one in value.items() if name not in _IGNORED}
    return [_plain(one) for one in value] if isinstance(value, list | tuple) else value


@contextmanager
def _policy(precision: str) -> Iterator[None]:
    import keras

    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(precision)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)
