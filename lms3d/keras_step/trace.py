"""A step of a Keras model as one traced function."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from lms3d.keras_step.attachment import is_built, model_step
from lms3d.swap.tensorflow import surgery


def trace_step(model: Any, step: str, spec: Any) -> tf.types.experimental.ConcreteFunction:
    """Trace one step of a compiled Keras model for batches of `spec` (nested TensorSpecs, static shapes).

    What is not built yet, the step itself builds as it is traced, as in Keras; TensorFlow then traces it once more. To predict, the
    model need not be compiled.
    """
    optimizer = getattr(model, "optimizer", None)
    if step == "train" and optimizer is not None and is_built(model) and not optimizer.built:
        optimizer.build(model.trainable_variables)  # saves the second trace
    function = model_step(model, step)
    return surgery.trace(lambda data: function(data), spec)
