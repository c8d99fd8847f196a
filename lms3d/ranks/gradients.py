"""Averages gradients over the ranks, within the optimiser:

    before   gradients ------------------------------------> apply
    after    gradients -> count -> (cast) -> average -> (cast) -> apply

One op averages all gradients, or several in a chain (`link.Link.average`). So each rank's planner may order its step freely: two
ranks can never wait for each other in two different ops. To overlap the exchange with the backward pass would gain little:
isensee2017 has 33 MB of gradients, which take 3 ms at 100 Gb/s in a step of seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lms3d.errors import InputError
from lms3d.ranks.world import World

if TYPE_CHECKING:
    import keras
    import tensorflow as tf

    from lms3d.ranks.link import Link

COMPRESSIONS = ("none", "fp16")


def averaged(
    optimizer: keras.optimizers.Optimizer, world: World, compression: str = "none"
) -> keras.optimizers.Optimizer:
    """The same optimiser, changed to apply the mean of the gradients over all ranks.

    compression: "fp16" halves the bytes that are sent, and sums in half precision. The optimiser keeps its variables, their names
    and its configuration, so that a checkpoint is the same with and without ranks. With the policy mixed_float16 the loss is scaled
    inside of it: overflow is looked for in the mean, so that all ranks see the same.
    """
    if compression not in COMPRESSIONS:
        raise InputError(f"gradient compression {compression!r}: expected one of {', '.join(COMPRESSIONS)}")
    if world.size == 1:
        return optimizer
    optimizer = _with_loss_scale(optimizer)
    plain = type(optimizer)
    # The names of the plain class, so that Keras saves and loads the plain optimiser.
    names = {"__module__": plain.__module__, "__qualname__": plain.__qualname__, "__doc__": plain.__doc__}
    optimizer.__class__ = type(plain.__name__, (_Averaged, plain), names)
    optimizer.averaging = Averaging(world.linked, compression)
    return optimizer


def begun(model: Any) -> int:
    """The number of times that this rank has begun to average the gradients of a model; 0 if the model does not average them."""
    averaging = getattr(getattr(model, "optimizer", None), "averaging", None)
    return int(averaging.count.numpy()) if averaging is not None else 0


def averages(model: Any) -> bool:
    """Whether the steps of a model average gradients, and so wait for the other ranks."""
    return hasattr(getattr(model, "optimizer", None), "averaging")


class Averaging:
    """The ops between the gradients and the optimiser.

    count: the number of times that they began to run. It lies on the host, and is not part of the state of a run.
    """

    def __init__(self, link: Link, compression: str) -> None:
        import tensorflow as tf

        self._link, self._compression = link, compression
        with tf.device("CPU:0"):
            self.count = tf.Variable(0, dtype=tf.int64, trainable=False, name="averagings")
        link.count(lambda: int(self.count.numpy()))

    def __call__(self, gradients: Sequence[tf.Tensor | None]) -> list[tf.Tensor | None]:
        """The means over the ranks, None for a gradient that is None. All ranks must pass the same shapes."""
        import tensorflow as tf

        dense = [None if g is None else tf.convert_to_tensor(g) for g in gradients]  # slices of embeddings become whole
        present = [g for g in dense if g is not None]
        with tf.control_dependencies(
            present
        ):  # count after the last gradient: nothing may fail between count and exchange
            counted = self.count.assign_add(1, read_value=False)
        means = iter(self._by_type(present, counted))
        return [None if g is None else next(means) for g in dense]

    def _by_type(self, tensors: Sequence[tf.Tensor], before: Any) -> list[tf.Tensor]:
        """The means, one type after another. Most models have only one type."""
        import tensorflow as tf

        means: dict[int, tf.Tensor] = {}
        for dtype in dict.fromkeys(t.dtype for t in tensors):
            places = [index for index, t in enumerate(tensors) if t.dtype == dtype]
            with tf.control_dependencies([op for op in [before] if op is not None]):
                of_type = [tensors[place] for place in places]
                results = self._link.average(of_type, self._compression, f"gradients_{dtype.name}")
            means.update(zip(places, results, strict=True))
            before = results[-1]
        return [means[index] for index in range(len(tensors))]


class _Averaged:
    """The first base class of an averaging optimiser, before that of Keras."""

    averaging: Averaging

    def apply(self, grads: Sequence[Any], trainable_variables: Any = None) -> Any:
        return super().apply(self.averaging(grads), trainable_variables)  # type: ignore[misc]


def _with_loss_scale(optimizer: keras.optimizers.Optimizer) -> keras.optimizers.Optimizer:
    """The optimiser with loss scaling, if the policy needs it. `compile` would add it itself, but outside of the average."""
    import keras

    scaled = isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
    if scaled or keras.mixed_precision.dtype_policy().name != "mixed_float16":
        return optimizer
    return keras.optimizers.LossScaleOptimizer(optimizer, name="loss_scale_optimizer")
