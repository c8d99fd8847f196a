"""LMS's function in the place of a Keras model's step, for one `fit`, `evaluate` or `predict`; and how that step is traced.

    model.train_function         LMS's: finds or makes the rewritten step for the batch's shape, and runs it
    model.make_train_function    of this instance alone: removes that function, then makes the model's own

Keras calls no callback after an error. But each `fit`, `evaluate`, `predict` and `..._on_batch` begins with
`make_..._function`, and LMS's removes LMS's function. So whatever ended the last call, the next one runs Keras's own function,
unless it has an LMS callback that attaches its step again.

The private names of Keras that LMS needs are used here and nowhere else.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from lms3d.engine.tensorflow import functions
from lms3d.errors import InputError

log = logging.getLogger("lms3d")
_KERAS_TRAINER = next(one for one in keras.Model.__mro__ if "make_train_function" in vars(one))


class Attachment:
    """`run` in the place of the model's `kind` function ("train", "test", "predict"), from now until `remove`.

    run: Keras calls it with an iterator over batches, or, to predict, with a list of them. forced: the user has asked for a new
    function (`make_..._function(force=True)`), because the traced one is out of date.
    """

    def __init__(self, model: keras.Model, kind: str, run: Callable[[Any], Any]) -> None:
        if attached(model, kind) is not None:
            raise InputError(
                f"another LMS callback runs the {kind} step of this {type(model).__name__} already; leave one of the two out"
            )
        self.model, self.forced = model, False
        self._function, self._make = f"{kind}_function", f"make_{kind}_function"
        self._make_own_function = self._remove_and_make  # one object, so that `active` recognises it
        setattr(model, self._function, run)
        setattr(model, self._make, self._make_own_function)

    @property
    def active(self) -> bool:
        return vars(self.model).get(self._make) is self._make_own_function

    def remove(self) -> None:
        """Leaves the model as it was: it makes its own function again when it needs one."""
        if self.active:
            delattr(self.model, self._make)
            setattr(self.model, self._function, None)

    def _remove_and_make(self, force: bool = False) -> Any:
        self.remove()
        self.forced = self.forced or force
        return getattr(self.model, self._make)(force=force)


def attached(model: keras.Model, kind: str) -> Attachment | None:
    """The attachment in the place of the model's `kind` function, even if an error has ended the call that it was made for."""
    owner = getattr(vars(model).get(f"make_{kind}_function"), "__self__", None)
    return owner if isinstance(owner, Attachment) else None


def require_graph_step(model: keras.Model, kind: str) -> None:
    """InputError if no rewritten graph can replace the model's step and do the same."""
    strategy = type(model.distribute_strategy).__name__
    if strategy != "_DefaultDistributionStrategy":
        raise InputError(
            f"LMS does not work inside {strategy}; run one process per device instead (python -m lms3d.launch)"
        )
    if model.run_eagerly:
        raise InputError("LMS rewrites graphs, but the model was compiled with run_eagerly=True; compile it without")
    make = f"make_{kind}_function"
    replaced = make in vars(model) and attached(model, kind) is None
    if replaced or getattr(type(model), make) is not getattr(_KERAS_TRAINER, make):
        raise InputError(
            f"LMS runs {kind}_step by itself, but {type(model).__name__} has a {make} of its own, which would be passed over; "
            f"override {kind}_step instead, or do without LMS"
        )


def warn_of_xla(model: keras.Model) -> None:
    """Warns that XLA, for which the model was compiled, does not run its steps while LMS does."""
    if model.jit_compile:
        log.warning(
            "LMS: found a model that compiles its steps by XLA (jit_compile); LMS moves tensors between the ops of a graph, which "
            "XLA would fuse, so its steps run without XLA; compile the model with jit_compile=False to hear no more of it"
        )


def trace_step(model: Any, step: str, spec: Any) -> tf.types.experimental.ConcreteFunction:
    """The traced `train_step`, `test_step` or `predict_step` of a model, for batches of `spec` (nested TensorSpecs, static shapes).

    Tracing builds layers and slots that are not built yet, as in Keras; TensorFlow then traces the step once more. To predict, the
    model need not be compiled.
    """
    optimizer = getattr(model, "optimizer", None)
    built = all(layer.built for layer in model._flatten_layers())
    if step == "train" and optimizer is not None and built and not optimizer.built:
        optimizer.build(model.trainable_variables)  # saves the second trace
    function = model._autoconvert_optionals(getattr(model, f"{step}_step"))
    traced = functions.trace(lambda data: function(data), spec)
    functions.forget_gradients(traced.graph)  # or each model that was ever trained would stay on the device
    return traced


def compilation(model: Any) -> object:
    """An object that each `compile` replaces; None before the first."""
    return getattr(model, "_loss_tracker", None)
