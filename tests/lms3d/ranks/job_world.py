"""Two ranks send messages before and after TensorFlow's start, average gradients, and end with an error of all ranks."""

from __future__ import annotations

import gc
import sys
from typing import Any

from lms3d import errors
from lms3d.device import startup
from lms3d.errors import DoesNotFit, InputError
from lms3d.ranks import job, replicas
from lms3d.ranks.world import World


class Awkward(ValueError):
    """Cannot be made from its arguments alone."""

    exit_code = 2

    def __init__(self, where: str, what: str) -> None:
        super().__init__(f"{where}: {what}")


def fail(error: Exception) -> Any:
    raise error


def caught(world: World, error: Exception) -> list[Any]:
    try:
        world.from_chief(lambda: fail(error))
    except Exception as found:
        return [type(found).__name__, str(found), getattr(found, "exit_code", None), errors.is_of_all_ranks(found)]
    return []


def unsendable(world: World) -> list[Any]:
    try:
        world.from_chief(lambda: (x for x in ()))
    except TypeError as found:
        return ["TypeError", str(found)]
    return []


def speak(world: World, note: Any) -> None:
    """The messages that work before TensorFlow has devices."""
    calls: list[int] = []
    value = world.from_chief(lambda: calls.append(1) or {"rank": world.rank, "long": "x" * 200_000})
    note(
        value=[value["rank"], len(value["long"]), len(calls)],
        input_error=caught(world, InputError("no such folder")),
        does_not_fit=caught(world, DoesNotFit("too large", 123)),
        awkward=caught(world, Awkward("file", "damaged")),
        unsendable=unsendable(world),
    )


def compute(world: World, note: Any) -> None:
    from lms3d.device import memory

    note(limit=memory.current_limit(), late_value=world.from_chief(lambda: {"rank": world.rank})["rank"])
    note(
        everyone=world.everyone("ab" * (1 + world.rank)),
        mean=world.mean({"b": 1.0 + world.rank, "a": 0.1}, weight=3.0 - 2 * world.rank),
        mean_one_counts=world.mean({"a": float("nan") if world.rank else 5.0}, weight=1.0 - world.rank),
        mean_none_counts=world.mean({"a": 1.0 + world.rank}, weight=0.0),
        largest=world.largest([world.rank, -world.rank, 0.5]),
    )


def gradients(world: World, note: Any) -> None:
    """One step of gradient descent with rate 1 on each rank's own sample."""
    import keras
    import numpy as np
    import ranks
    import tensorflow as tf

    found: dict[str, Any] = {}
    for compression in ("none", "fp16"):
        model = ranks.make_model(world, optimizer=keras.optimizers.SGD(1.0), compression=compression)
        replicas.synchronise(model, world)
        before = [np.asarray(w).copy() for w in model.trainable_weights]
        x, y = ranks.batch(np.array([world.rank]))
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x) - y) ** 2)
        own = [g.numpy() for g in tape.gradient(loss, [w.value for w in model.trainable_weights])]
        model.train_on_batch(x, y)
        taken = [b - np.asarray(w) for b, w in zip(before, model.trainable_weights, strict=True)]
        found[compression] = {
            name: np.concatenate([np.ravel(part) for part in parts]).astype(float).tolist()
            for name, parts in (("own", own), ("taken", taken))
        }
    note(gradients=found)


def graph(world: World, note: Any) -> None:
    """The traced step, as the planner sees it."""
    import numpy as np
    import ranks
    import tensorflow as tf

    from lms3d.engine.tensorflow.capture import capture
    from lms3d.keras_step.attachment import trace_step
    from lms3d.ranks import gradients as reduction

    found = {}
    for compression in ("none", "fp16"):
        model = ranks.make_model(world, compression=compression)
        spec = tf.nest.map_structure(tf.type_spec_from_value, tuple(map(tf.constant, ranks.batch(np.array([0])))))
        ops = [op for op in capture(trace_step(model, "train", spec)).ops if "orovod" in op.type]
        found[compression] = [[op.type, op.stateful, op.signature, len(op.outputs)] for op in ops]
    begun = [reduction.begun(model)]
    replicas.synchronise(model, world)
    for _ in range(2):
        model.train_on_batch(*ranks.batch(np.array([0])))
        begun.append(reduction.begun(model))
    note(ops=found, begun=begun, plain_name=type(model.optimizer).__name__)


def overflow(world: World, note: Any) -> None:
    """mixed_float16: the gradients of rank 1 alone are too large for one step."""
    import keras
    import numpy as np
    import ranks

    from lms3d.ranks import gradients as reduction

    keras.mixed_precision.set_dtype_policy("mixed_float16")
    inputs = keras.Input((3,))
    model = keras.Model(inputs, keras.layers.Dense(1, dtype="mixed_float16")(inputs))
    model.compile(reduction.averaged(keras.optimizers.SGD(0.1), world), "mse", jit_compile=False)
    model.optimizer.build(model.trainable_variables)
    replicas.synchronise(model, world)
    scales, weights = [float(model.optimizer.dynamic_scale)], [ranks.values(model)[0]]
    for largest in (1.0, 60000.0, 1.0):
        x = np.full((1, 3), largest if world.rank else 1.0, np.float32)
        model.train_on_batch(x, np.zeros((1, 1), np.float32))
        scales.append(float(model.optimizer.dynamic_scale))
        weights.append(ranks.values(model)[0])
    keras.mixed_precision.set_dtype_policy("float32")
    note(scales=scales, scaled_weights=weights, scaler=type(model.optimizer).__name__)


def out_of_memory(world: World, note: Any) -> None:
    """Rank 1 alone runs out of memory. Before the exchange it tries the step again; after it, it must not."""
    import numpy as np
    import ranks
    import tensorflow as tf

    from lms3d.keras_step.callback import LMS
    from lms3d.keras_step.step_runner import StepRunner

    model, lms = ranks.make_model(world), LMS(**{**ranks.SWAP_ALL, "swapin_ahead": None})
    replicas.synchronise(model, world)
    execute = StepRunner._execute
    tries: list[str] = []

    def failing(when: str) -> Any:
        def run(self: StepRunner, prepared: Any, batch: Any) -> Any:
            tries.append(when)
            if world.rank == 1 and len(tries) == 1 and when == "before":
                raise tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor")
            outputs = execute(self, prepared, batch)
            if world.rank == 1 and when == "after":
                raise tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor")
            return outputs

        return run

    x, y = ranks.batch(np.array([world.rank]))
    StepRunner._execute = failing("before")
    model.fit(x, y, verbose=0, callbacks=[lms])
    note(after_repeat=ranks.values(model), tries=len(tries), swaps=len(lms.plan.swap_outs))
    StepRunner._execute = failing("after")
    try:
        model.fit(x, y, verbose=0, callbacks=[lms])
        note(too_late="")
    except DoesNotFit as error:
        note(too_late=str(error))
    StepRunner._execute = execute
    lms.close()


def main() -> None:
    with job.joined() as world:
        noted: dict[str, Any] = {}
        speak(world, lambda **found: noted.update(found))
        noted["tensorflow_waited"] = True
        startup.start_tensorflow(limit_bytes=400 << 20, seed=1, world=world)
        import ranks
        import tensorflow as tf

        threads = tf.config.threading.get_intra_op_parallelism_threads()
        noted["frozen"] = gc.get_freeze_count()
        ranks.note(world, **noted, world=[world.rank, world.size, world.local_rank, world.local_size], threads=threads)
        for check in (compute, gradients, graph, overflow, out_of_memory):
            check(world, lambda **found: ranks.note(world, **found))
        world.wait()
        world.from_chief(lambda: fail(InputError("no such folder")))


if __name__ == "__main__":
    sys.exit(errors.run(main))
