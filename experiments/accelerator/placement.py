"""Where the ops of a plan are placed: native swap ops, and all that computes, on the device.

A child looks. In a rehearsal the processor is the device, and swaps to files. Speeds are made up: any plan will do, if it both
swaps and recomputes.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from lms3d.experiments.harness.child import only_answer
from lms3d.experiments.harness.talk import Talk, asked

SIDE, FILTERS, STEPS = 32, (8, 16), 2
LIMIT_SHARE = 0.5  # of what the step needs without LMS
LINK_BYTES_PER_SECOND = 5e8


def ask(log: Path, seconds: float, *, rehearsed: bool) -> dict[str, Any]:
    """What the child found. ChildFailed if it failed, or after so many seconds.

    computes_on; swap_outs, swap_ins, recomputes: numbers of ops; wrong: names of ops that are not where they should be;
    same_bits: whether two steps leave the same variables with LMS as without.
    """
    module, same_kernels = "lms3d.experiments.accelerator.placement", {"TF_DETERMINISTIC_OPS": "1"}
    return only_answer(module, {"rehearsed": rehearsed}, log, seconds, same_kernels)


def examine(*, rehearsed: bool) -> dict[str, Any]:
    """What `ask` returns, as the child finds it."""
    import keras
    import numpy as np
    import tensorflow as tf

    from lms3d import models
    from lms3d.device import startup

    startup.start_tensorflow(seed=0, without_gpu=rehearsed)
    device = "CPU:0" if rehearsed else "GPU:0"
    with tf.device(device):
        model = models.build("isensee2017", input_shape=(SIDE, SIDE, SIDE, 4), filters=FILTERS)
        model.compile(keras.optimizers.Adam(), "mse", jit_compile=False)
        model.optimizer.build(model.trainable_variables)
        x = tf.constant(np.random.default_rng(3).random((1, SIDE, SIDE, SIDE, 4), np.float32))
    step = model.train_step

    def on_device(data: Any) -> Any:
        with tf.device(device):
            return step(data)

    model.train_step = on_device
    without, planned = _prepared(model, device, (x, x[..., :3]))
    bits = _bits_after(without.function, planned.function, (x, x[..., :3]))
    return {
        "computes_on": device, "swap_outs": len(planned.plan.swap_outs), "swap_ins": len(planned.plan.swap_ins),
        "recomputes": len(planned.plan.recomputes), "wrong": wrong(planned.function.graph, device),
        "same_bits": len(set(bits)) == 1,
    }  # fmt: skip


def _prepared(model: Any, device: str, batch: Any) -> tuple[Any, Any]:
    """The step as it is, and with a plan for a part of what that needs."""
    from dataclasses import replace

    from lms3d.engine.cost import Machine
    from lms3d.engine.engine import Engine
    from lms3d.engine.planners.tflms.parameters import Parameters
    from lms3d.engine.step_model.pool import GPU_POOL
    from lms3d.keras_step import settings
    from lms3d.keras_step.attachment import trace_step
    from lms3d.keras_step.estimate import batch_spec

    link = LINK_BYTES_PER_SECOND
    machine = Machine(swap_out_bytes_per_second=link, swap_in_bytes_per_second=link)
    tier = "disk" if device.startswith("CPU") else "host"
    asked = settings.resolve("1TiB", tier, "off", Parameters(), slabs="off", hypothetical=True, device=device)
    asked = replace(asked, pool=GPU_POOL)  # as a GPU's, also in a rehearsal
    spec = batch_spec(batch)

    def prepared(chosen: Any) -> Any:
        engine = Engine(chosen, compute_device=device, machine=machine)
        return engine.prepare(trace_step(model, "train", spec), "train")

    without = prepared(asked)
    limit = int(LIMIT_SHARE * without.prediction.unedited_limit_bytes)
    return without, prepared(replace(asked, limit_bytes=limit, planner="hybrid"))


def _bits_after(*functions_and_batch: Any) -> list[str]:
    """A digest of all variables after some steps of each function, from the same values."""
    *functions, batch = functions_and_batch
    variables = functions[0].variables
    before = [variable.numpy() for variable in variables]
    digests = []
    for function in functions:
        for variable, value in zip(variables, before, strict=True):
            variable.assign(value)
        for _ in range(STEPS):
            function(batch)
        digests.append(hashlib.sha1(b"".join(variable.numpy().tobytes() for variable in variables)).hexdigest())
    return digests


def wrong(graph: Any, device: str) -> list[str]:
    """Ops of a rewritten graph that are not on the device: native ops of a swap, what is computed again, and what reads a tensor
    that was swapped or is computed again."""
    ours = ("lms/swap_in/", "lms/recompute/")
    return [
        op.name
        for op in graph.get_operations()
        if op.type.startswith("Lms")
        or op.name.startswith("lms/recompute/")
        or any(tensor.op.name.startswith(ours) for tensor in op.inputs)
        if op.device.rpartition("/device:")[2] != device
    ]


if __name__ == "__main__":
    talk = Talk()
    talk.say(**examine(**asked()))
