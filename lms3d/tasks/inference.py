"""A trained network applied to whole volumes or images, with or without LMS, alone or as a mean over symmetries.

Inference holds far less than training (nothing waits for a backward pass), but at a high resolution under a small limit
the widest layers alone may not fit; LMS rewrites the inference graph as it does the training graph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from lms3d.errors import DoesNotFit

Predictor = Callable[[np.ndarray], np.ndarray]
"""Normalised volume (N, N, N, 4) -> probabilities (N, N, N, C), or image (N, N, 3) -> probabilities (C,); all float32."""


def predictor(model: Any, resolution: int, *, lms: Any = None) -> Predictor:
    """`model` as a function of one volume or image, traced once for batch 1 and the given resolution.

    lms: an `lms3d.LMS` that rewrites the traced function; None runs it as it is.
    The function raises DoesNotFit when memory runs out.
    """
    import tensorflow as tf

    axes = len(model.input_shape) - 2
    spec = tf.TensorSpec((1, *(resolution,) * axes, model.input_shape[-1]), tf.float32)
    forward = tf.function(lambda image: model(image, training=False), autograph=False, jit_compile=False)
    function = forward.get_concrete_function(spec)
    if lms is not None:
        function = lms.rewrite(function)

    def predict(image: np.ndarray) -> np.ndarray:
        try:
            (probabilities,) = tf.nest.flatten(function(tf.constant(image[np.newaxis])))
        except tf.errors.OpError as error:
            if lms is not None and lms.storage_error is not None:
                raise lms.storage_error from None
            if not isinstance(error, tf.errors.ResourceExhaustedError):
                raise
            advice = ("" if lms is not None else "try --lms, or ") + "give more with --memory-limit"
            work = "segmenting" if axes == 3 else "looking"
            raise DoesNotFit(f"{work} at {resolution}^{axes} needs more memory than there is; {advice}") from None
        return probabilities.numpy()[0]

    return predict


def mean_over_symmetries(
    predict: Predictor, image: np.ndarray, symmetries: Iterable[tuple[Callable[..., Any], Callable[..., Any]]]
) -> np.ndarray:
    """Mean of undo(predict(do(image))) over pairs (do, undo) of array functions: (N, N, N, 4) -> (N, N, N, C)."""
    total, count = None, 0
    for do, undo in symmetries:
        probabilities = undo(predict(np.ascontiguousarray(do(image))))
        total = probabilities.astype(np.float32) if total is None else np.add(total, probabilities, out=total)
        count += 1
    if total is None:
        raise ValueError("symmetries: none given; expected at least the identity")
    return total / np.float32(count)
