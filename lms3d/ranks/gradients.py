"""Gradients averaged over the ranks, by the optimiser itself:

    before   gradients ------------------------------------> apply
    after    gradients -> count -> (cast) -> average -> (cast) -> apply

One op averages all gradients. So each rank may order its step as its planner likes: two ranks can never wait for each other
in two different ops. Overlapping the exchange with the backward pass would gain little here: isensee2017 has 33 MB of
gradients, 3 ms at 100 Gb/s in a step of seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lms3d.errors import InputError
from lms3d.ranks.world import World

if TYPE_CHECKING:
    import keras
    import tensorflow as tf

    from lms3d.ranks.horovod import Horovod

COMPRESSIONS = ("none", "fp16")


def averaged(
    optimizer: keras.optimizers.Optimizer, world: World, compression: str = "none"
) -> keras.optimizers.Optimizer:
    """The same optimiser, which from now on applies the mean over all ranks of the gradients that it is given.

    compression: "fp16" halves what is sent; the sum is made in half precision. The optimiser keeps its variables, their
    names and its configuration: a checkpoint does not tell whether ranks took part. With the policy mixed_float16 its loss
    is scaled inside: overflow is looked for in the mean, so that all ranks find the same.
    """
    if compression not in COMPRESSIONS:
        raise InputError(f"gradient compression {compression!r}: expected one of {', '.join(COMPRESSIONS)}")
    if world.size == 1:
        return optimizer
    optimizer = _with_loss_scale(optimizer)
    plain = type(optimizer)
    # The names of the plain class, so that Keras writes down and reads the plain optimiser.
    names = {"__module__": plain.__module__, "__qualname__": plain.__qualname__, "__doc__": plain.__doc__}
    optimizer.__class__ = type(plain.__name__, (_Averaged, plain), names)
    optimizer.averaging = Averaging(world.linked, compression)
    return optimizer


def begun(model: Any) -> int:
    """How often this rank has begun to average the gradients of a model; 0 for one that does not."""
    averaging = getattr(getattr(model, "optimizer", None), "averaging", None)
    return int(averaging.count.numpy()) if averaging is not None else 0


def averages(model: Any) -> bool:
    """Whether the steps of a model average gradients, and so wait for other ranks."""
    return hasattr(getattr(model, "optimizer", None), "averaging")


class Averaging:
    """The ops between gradients and optimiser.

    count: how often they began to run. It stays on the host, and is no part of the state of a run.
    """

    def __init__(self, link: Horovod, compression: str) -> None:
        import tensorflow as tf

        self._link, self._compression = link, compression
        with tf.device("CPU:0"):
            self.count = tf.Variable(0, dtype=tf.int64, trainable=False, name="averagings")
        link.count(lambda: int(self.count.numpy()))

    def __call__(self, gradients: Sequence[tf.Tensor | None]) -> list[tf.Tensor | None]:
        """Means over the ranks, None where there is no gradient. All ranks must pass the same shapes."""
        import tensorflow as tf

        dense = [None if g is None else tf.convert_to_tensor(g) for g in gradients]  # slices of embeddings become whole
        given = [g for g in dense if g is not None]
        with tf.control_dependencies(given):  # not before all are there: nothing may fail between count and exchange
            counted = self.count.assign_add(1, read_value=False)
        means = iter(self._by_type(given, counted))
        return [None if g is None else next(means) for g in dense]

    def _by_type(self, tensors: Sequence[tf.Tensor], before: Any) -> list[tf.Tensor]:
        """One op for each type, one after another: in most models there is only one type."""
        import tensorflow as tf

        means: dict[int, tf.Tensor] = {}
        for dtype in dict.fromkeys(t.dtype for t in tensors):
            places = [index for index, t in enumerate(tensors) if t.dtype == dtype]
            with tf.control_dependencies([op for op in [before] if op is not None]):
                chosen = [tensors[place] for place in places]
                results = self._link.average(chosen, self._compression, f"gradients_{dtype.name}")
            means.update(zip(places, results, strict=True))
            before = results[0]
        return [means[index] for index in range(len(tensors))]


class _Averaged:
    """Stands before a Keras optimiser in the order of its classes."""

    averaging: Averaging

    def apply(self, grads: Sequence[Any], trainable_variables: Any = None) -> Any:
        return super().apply(self.averaging(grads), trainable_variables)  # type: ignore[misc]


def _with_loss_scale(optimizer: keras.optimizers.Optimizer) -> keras.optimizers.Optimizer:
    """What `compile` would do for itself, too late: outside of the average."""
    import keras

    scaled = isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
    if scaled or keras.mixed_precision.dtype_policy().name != "mixed_float16":
        return optimizer
    return keras.optimizers.LossScaleOptimizer(optimizer, name="loss_scale_optimizer")
