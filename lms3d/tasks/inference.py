"""A trained network applied to whole volumes or images, with or without LMS.

Inference holds far less than training, as nothing waits for a backward pass. At a high resolution under a small limit the
widest layers alone may still not fit: then LMS rewrites the inference graph as it rewrites the training graph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from lms3d import console
from lms3d.atomic_files import require_checksums
from lms3d.config import TrainConfig
from lms3d.engine import tuning
from lms3d.errors import DoesNotFit, InputError

if TYPE_CHECKING:
    from lms3d.keras_step.callback import LMS

T = TypeVar("T")

Predictor = Callable[[np.ndarray], np.ndarray]
"""Normalised volume (A, B, C, 4) -> probabilities (A, B, C, outputs), or image (N, N, 3) -> (outputs,); all float32."""

Read = Callable[[int, int], np.ndarray]
"""first, end -> these planes of a normalised volume along its first axis, (end - first, B, C, channels) float32."""

Write = Callable[[int, np.ndarray], None]
"""first, planes (n, B, C, outputs) of the probabilities -> keeps them."""

Streamer = Callable[[Read, Write], None]
"""Reads a volume, and writes its probabilities plane by plane, in any order."""

_OF_PYTHON = (ValueError, TypeError, StopIteration, MemoryError, NotImplementedError)
"""What a function of Python's may raise through TensorFlow, beside an OpError."""


@contextmanager
def network(
    load: Callable[[], Any], trained: TrainConfig, *, lms: bool | None, limit_bytes: int | None, slabs: str = "auto",
    workspace_bytes: int | None = None, first: bool = True, streamed: bool = False,
) -> Iterator[Any]:  # fmt: skip
    """Starts TensorFlow, and yields a trained network as a function of one sample: a Predictor or, if `streamed`, a Streamer.

    load: makes the network, as `load_model` does, once TensorFlow runs. lms, limit_bytes, workspace_bytes (of cuDNN): None takes
    what the run was trained with. slabs: see `LMS`; inference needs others than the training step. first: TensorFlow is not
    running yet.
    """
    from lms3d.device import startup

    limit_bytes = trained.memory_limit if limit_bytes is None else limit_bytes
    if first:
        startup.start_tensorflow(
            limit_bytes=limit_bytes,
            precision=trained.precision,
            cudnn_workspace_bytes=trained.cudnn_workspace if workspace_bytes is None else workspace_bytes,
        )
    model = load()
    with rewriter(trained, wanted=lms, limit_bytes=limit_bytes, slabs=slabs) as used:
        apply = streamer if streamed else predictor
        predict = apply(model, trained.sample_shape(len(model.input_shape) - 2), lms=used)
        if used is not None and used.report is not None and used.report.slabs:
            console.say(used.report.slabs_sentence())
        yield predict


@contextmanager
def rewriter(
    trained: TrainConfig, *, wanted: bool | None, limit_bytes: int | None, slabs: str = "auto"
) -> Iterator[LMS | None]:
    """LMS for the inference graph, or None. It has the tier of the run; TFLMS parameters belong to the training step."""
    if not (trained.lms if wanted is None else wanted):
        yield None
        return
    from lms3d.keras_step.callback import LMS

    lms = LMS(memory_limit=limit_bytes, tier=trained.swap_tier, swap_dir=trained.swap_dir, slabs=slabs)
    try:
        yield lms
    finally:
        lms.close()  # removes its swap files


def require_weights(run_dir: Path) -> None:
    """InputError for a run without its best weights."""
    if not (run_dir / "best.keras").is_file():
        raise InputError(
            f"{run_dir / 'best.keras'}: found nothing; expected the best weights of a run; train at least one epoch "
            f"with `python -m lms3d.train --output {run_dir}`"
        )


def load_model(path: Path) -> Any:
    """The model in a .keras file that training saved. Raises DoesNotFit, or InputError for any other file."""
    import keras
    import tensorflow as tf

    from lms3d import models  # noqa: F401  (registers its layers)

    try:
        require_checksums(path)
        return keras.models.load_model(path, compile=False)
    except tf.errors.ResourceExhaustedError:
        raise weights_do_not_fit(path) from None
    except Exception as error:
        raise InputError(
            f"{path}: found a model that cannot be loaded ({_first_line(error)}); expected what lms3d.train saves; train again"
        ) from None


def _first_line(error: Exception) -> str:
    """The first line of an error: Keras adds the whole configuration."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)[:200]


def weights_do_not_fit(path: Path) -> DoesNotFit:
    """The error for weights that need too much memory. path: the file that holds them."""
    return DoesNotFit(f"{path}: the weights alone need more memory than there is; raise --memory-limit")


def predictor(model: Any, shape: Sequence[int], *, lms: Any = None) -> Predictor:
    """`model` as a function of one volume or image, traced for batch 1 and a sample of `shape`, without channels.

    lms: an `lms3d.LMS` that rewrites the traced function, for less memory each time it runs out; None runs the function unchanged,
    under the same graph optimisers.
    The returned function raises DoesNotFit if memory runs out.
    """
    import tensorflow as tf

    spec = tf.TensorSpec((1, *shape, model.input_shape[-1]), tf.float32)
    run = _Traced(lambda image: model(image, training=False), [spec], shape, lms)

    def predict(image: np.ndarray) -> np.ndarray:
        (probabilities,) = tf.nest.flatten(run(tf.constant(image[np.newaxis])))
        result: np.ndarray = probabilities.numpy()[0]
        return result

    return predict


def streamer(model: Any, shape: Sequence[int], *, lms: Any = None) -> Streamer:
    """`model` as a function that reads one volume and writes its probabilities. See `predictor`.

    If the plan has slabs, both are read and written slab by slab, and neither is whole in memory. If memory runs out, the network
    begins again, and planes are written twice.
    """
    from lms3d.engine.tensorflow import streams

    ends: list[tuple[Read, Write]] = []
    failures: list[Exception] = []

    def kept(call: Callable[..., T], *arguments: Any) -> T:
        """The result of a call. An error is kept, as TensorFlow would only pass on its words."""
        try:
            return call(*arguments)
        except Exception as error:
            failures.append(error)
            raise

    def forward(start: Any) -> Any:
        image = streams.read(lambda *planes: kept(ends[-1][0], *planes), (*shape, model.input_shape[-1]), start)
        (probabilities,) = tf.nest.flatten(model(image, training=False))
        return streams.write(probabilities, lambda *planes: kept(ends[-1][1], *planes))

    import tensorflow as tf

    run = _Traced(forward, [streams.START], shape, lms, failures)

    def stream(read: Read, write: Write) -> None:
        ends[:] = [(read, write)]
        failures.clear()
        try:
            written = int(run(tf.constant(0)))
        finally:
            ends.clear()
        assert written == shape[0], f"{written} of {shape[0]} planes were written"

    return stream


class _Traced:
    """A function of tensors, traced for these specs. It is traced again, for less memory, each time that runs out.

    shape: of a sample, for errors. failures: errors of the function's own, in the place of TensorFlow's.
    """

    def __init__(
        self, function: Callable[..., Any], specs: Sequence[Any], shape: Sequence[int], lms: Any,
        failures: Sequence[Exception] = (),
    ) -> None:  # fmt: skip
        self.function, self.specs, self.shape, self.lms, self.failures = function, specs, shape, lms, failures
        self.made = [self._traced(0)]
        self.tries = 1 if lms is None else tuning.TRIES

    def _traced(self, failed: int) -> Any:
        import tensorflow as tf

        from lms3d.engine.tensorflow import functions

        traced = tf.function(self.function, autograph=False, jit_compile=False).get_concrete_function(*self.specs)
        return functions.make_function(traced) if self.lms is None else self.lms.rewrite(traced, failed=failed)

    def __call__(self, *arguments: Any) -> Any:
        import tensorflow as tf

        while True:
            try:
                return self.made[-1](*arguments)
            except (tf.errors.OpError, *_OF_PYTHON) as error:
                self._require_another_try(error)
            self.made.append(self._traced(failed=len(self.made)))

    def _require_another_try(self, error: Exception) -> None:
        import tensorflow as tf

        if self.failures:
            raise self.failures[0] from None
        if self.lms is not None and self.lms.storage_error is not None:
            raise self.lms.storage_error from None
        if not isinstance(error, tf.errors.ResourceExhaustedError):
            raise error
        if len(self.made) == self.tries:
            advice = ("" if self.lms is not None else "try --lms, or ") + "raise --memory-limit"
            raise DoesNotFit(
                f"inference at {'x'.join(map(str, self.shape))} needs more memory than there is; {advice}"
            ) from None
