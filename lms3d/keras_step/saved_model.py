"""A model in a .keras file: loading it, and the batch that one training step of it takes."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lms3d.atomic_files import require_checksums
from lms3d.errors import InputError

if TYPE_CHECKING:
    import keras
    import tensorflow as tf

    from lms3d.keras_step.estimate import Planned


def load(path: Path) -> keras.Model:
    """The compiled model in a .keras file, loaded in Keras's safe mode: no code from the file runs. InputError if there is none."""
    import keras

    if not path.is_file():
        raise InputError(f"--keras-model {path}: there is no such file")
    try:
        with warnings.catch_warnings(action="ignore"):  # an optimiser that has never been used has no slots to load
            require_checksums(path)
            model = keras.models.load_model(path)
    except (
        Exception
    ) as error:  # Keras lets everything through: ValueError, TypeError, KeyError, OSError, also from h5py and zipfile
        raise InputError(
            f"--keras-model {path}: Keras cannot load it ({_first_line(error)}); it must be a .keras file of a model without "
            "classes and functions of your own; for others call lms3d.plan_step(model, batch) where they are defined"
        ) from None
    if not isinstance(model, keras.Model):
        raise InputError(f"--keras-model {path}: holds a {type(model).__name__}, not a model")
    if not model.compiled:
        raise InputError(
            f"--keras-model {path}: the model is not compiled, so it has no training step; call model.compile(optimizer, loss) "
            "and save it again"
        )
    return model


def step_spec(model: keras.Model, path: Path, batch_size: int, size: int | None) -> Any:
    """The batch (x, y) of a training step as nested TensorSpecs. `size` stands for each size that the model's inputs leave open.

    Targets have the shapes of the outputs, (B, ..., C), or (B, ...) if the loss takes class numbers. InputError if `size` is
    missing, or if no size is open.
    """
    import keras
    import tensorflow as tf

    inputs = model.inputs[0] if isinstance(model, keras.Sequential) and model.inputs else getattr(model, "input", None)
    if inputs is None:
        raise InputError(
            f"--keras-model {path}: the model does not say what it takes; call lms3d.plan_step(model, batch) instead"
        )
    open_sizes = [i.name for i in tf.nest.flatten(inputs) if None in i.shape[1:]]
    if open_sizes and size is None:
        raise InputError(
            f"--keras-model {path}: input {open_sizes[0]!r} leaves sizes open; give --resolution N, which stands for each of them"
        )
    if size is not None and not open_sizes:
        raise InputError(f"--keras-model {path}: the file fixes all sizes of its inputs; leave --resolution out")
    x = tf.nest.map_structure(
        lambda i: keras.KerasTensor((batch_size, *(n or size for n in i.shape[1:])), i.dtype), inputs
    )
    return tf.nest.map_structure(_spec, x), _targets(model, model.compute_output_spec(x))


def plan(model: keras.Model, path: Path, spec: Any, arguments: dict[str, Any]) -> Planned:
    """The result of `estimate.plan_step` with these arguments. InputError if the model does not take such a batch."""
    from lms3d.keras_step.estimate import plan_step

    try:
        return plan_step(model, spec, **arguments)
    except (ValueError, TypeError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(
            f"--keras-model {path}: its training step does not take the batch {spec} ({_first_line(error)}); call "
            "lms3d.plan_step(model, batch) with a batch of yours instead"
        ) from None


def _targets(model: keras.Model, outputs: Any) -> Any:
    import tensorflow as tf

    flat = tf.nest.flatten(outputs)
    if isinstance(model.loss, dict):
        losses = [model.loss.get(name) for name in model.output_names]
    else:
        losses = list(model.loss) if isinstance(model.loss, list | tuple) else [model.loss] * len(flat)
    return tf.nest.pack_sequence_as(outputs, [_target(o, loss) for o, loss in zip(flat, losses, strict=True)])


def _target(output: Any, loss: Any) -> tf.TensorSpec:
    import tensorflow as tf

    name = loss if isinstance(loss, str) else getattr(loss, "name", getattr(loss, "__name__", ""))
    if "sparse" in str(name):
        return tf.TensorSpec(output.shape[:-1], tf.int64)
    return tf.TensorSpec(output.shape, tf.float32)  # even if activations have fewer bits


def _spec(tensor: Any) -> tf.TensorSpec:
    import tensorflow as tf

    return tf.TensorSpec(tensor.shape, tensor.dtype)


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)[:200]
