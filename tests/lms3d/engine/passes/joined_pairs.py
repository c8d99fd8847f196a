"""Small functions of which TensorFlow joins, pairs or folds ops: do they keep their bits when a plan adds edges?

Run by test_joins, once for each ONEDNN_MAX_CPU_ISA. Prints JSON: dtype -> case -> [edits that changed a bit], or null if oneDNN
has no kernel for that dtype. `joined`: the joins, without `joins.keep_apart` and without the edits that would end the process.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf

from lms3d.engine.passes import joins
from lms3d.engine.plan import Plan, Recompute, SwapIn, SwapOut
from lms3d.engine.tensorflow import functions, surgery
from lms3d.engine.tensorflow.capture import capture
from lms3d.engine.tiers.host import HostTier
from tests.lms3d.engine.traced import rewrite

SPECS = {"x": (2, 11, 11, 8), "kernel": (3, 3, 8, 16), "bias": (16,)}
RING = [[0, 0], [1, 1], [1, 1], [0, 0]]
TABLE = np.random.default_rng(3).normal(size=(64, 333)).astype(np.float32)
Step = Callable[..., Any]


def convolution(x: tf.Tensor, kernel: tf.Tensor, bias: tf.Tensor) -> tf.Tensor:
    return tf.nn.bias_add(tf.nn.conv2d(x, kernel, 1, "SAME"), bias)


def padded(x: tf.Tensor, kernel: tf.Tensor, bias: tf.Tensor) -> tf.Tensor:
    return tf.nn.bias_add(tf.nn.conv2d(tf.pad(x, RING), kernel, 2, "VALID"), bias)


def pooled(x: tf.Tensor, *_: tf.Tensor) -> tf.Tensor:
    return tf.nn.max_pool2d(x, 3, 2, "SAME")


def pooled_in_3d(x: tf.Tensor, *_: tf.Tensor) -> tf.Tensor:
    return tf.nn.max_pool3d(x[:, None], 3, 2, "SAME")


def normalised(x: tf.Tensor, *_: tf.Tensor) -> tf.Tensor:
    return tf.nn.local_response_normalization(x, depth_radius=2)


def of_constants(x: tf.Tensor, *_: tf.Tensor) -> tf.Tensor:
    """TensorFlow computes these before the first step, unless they wait for something."""
    table = tf.cast(TABLE, x.dtype)
    return x[0, 0, 0, 0] * tf.reduce_sum(tf.nn.softmax(tf.matmul(table, table, transpose_b=True)), 1)


def twins(x: tf.Tensor, kernel: tf.Tensor, bias: tf.Tensor) -> tf.Tensor:
    """Two equal ops, of which one is left."""
    return tf.tanh(tf.nn.conv2d(x, kernel, 1, "SAME")) - 2 * tf.tanh(tf.nn.conv2d(x, kernel, 1, "SAME"))


def gradients(function: Step, *inputs: tf.Tensor) -> list[tf.Tensor]:
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        loss = tf.reduce_sum(tf.square(function(*inputs)))
    return [g for g in tape.gradient(loss, inputs) if g is not None]


JOINS: dict[str, tuple[Step, tuple[str, ...]]] = {
    "JOIN-1": (convolution, ("Conv2D", "BiasAdd")),
    "JOIN-2": (padded, ("Pad", "Conv2D")),
    "JOIN-3": (partial(gradients, convolution), ("Conv2DBackpropFilter", "BiasAddGrad")),
}
OTHERS: dict[str, tuple[Step, tuple[str, ...]]] = {
    "all three": (partial(gradients, padded), ("Pad", "Conv2D", "BiasAdd", "Conv2DBackpropFilter", "BiasAddGrad")),
    "MaxPool": (partial(gradients, pooled), ("MaxPool", "MaxPoolGrad")),
    "MaxPool3D": (partial(gradients, pooled_in_3d), ("MaxPool3D", "MaxPool3DGrad")),
    "LRN": (partial(gradients, normalised), ("LRN", "LRNGrad")),
    "constants": (of_constants, ("MatMul", "Softmax", "Sum")),
    "twins": (twins, ("Conv2D", "Tanh")),
}


def traced(function: Step, dtype: str, *, apart: bool = True) -> Any:
    made = functions.trace(function, *(tf.TensorSpec(shape, dtype, name) for name, shape in SPECS.items()))
    if apart:
        joins.keep_apart(made.graph)
    return made


def bits(function: Any, dtype: str) -> list[bytes]:
    chance = np.random.default_rng(0)
    batch = [tf.cast(chance.normal(size=shape).astype(np.float32), dtype) for shape in SPECS.values()]
    return [
        tf.cast(t, tf.float32).numpy().tobytes() for t in tf.nest.flatten(functions.make_function(function)(*batch))
    ]


def with_edges(function: Any, types: tuple[str, ...]) -> Any:
    """The last op of each type waits for one and the same other op."""
    with surgery.insertion(function.graph, None):
        other = tf.raw_ops.Empty(shape=[4], dtype=tf.uint8, name="other").op
    for wanted in types:
        last = [op for op in function.graph.get_operations() if op.type == wanted][-1]
        surgery.add_control_inputs(last, [other])
    return function


def changed_by_edges(function: Step, types: tuple[str, ...], dtype: str, *, apart: bool) -> list[str]:
    """An edge on each op alone and, if they are kept apart, on all of them."""
    expected = bits(traced(function, dtype, apart=apart), dtype)
    edits = [(one,) for one in types] + ([types] if apart else [])
    return [
        "+".join(edit)
        for edit in edits
        if bits(with_edges(traced(function, dtype, apart=apart), edit), dtype) != expected
    ]


def changed_by_a_plan(dtype: str) -> list[str]:
    """A plan that computes a convolution and its bias again, after one and the same op, from an input that was swapped."""
    function = traced(partial(gradients, lambda *inputs: tf.square(convolution(*inputs))), dtype)
    expected, graph = bits(function, dtype), capture(function)
    (reader,) = (op.name for op in graph.ops if op.type == "Mul" and "BiasAdd:0" in op.inputs)
    after, x = ("Square",), "x:0"
    plan = Plan(
        swap_outs=(SwapOut(tensor=x, bytes=graph.tensors[x].bytes or 0),),
        swap_ins=(SwapIn(tensor=x, copy=0, consumers=("lms/recompute/Conv2D",), triggers=after),),
        recomputes=(
            Recompute(op="Conv2D", tensor="Conv2D:0", copy=0, consumers=("lms/recompute/BiasAdd",), triggers=after),
            Recompute(op="BiasAdd", tensor="BiasAdd:0", copy=0, consumers=(reader,), triggers=after),
        ),
    )
    made, _ = rewrite(function, graph, plan, HostTier())
    return [] if bits(made, dtype) == expected else ["plan"]


def found(dtype: str, *, apart: bool) -> dict[str, list[str]] | None:
    try:
        bits(traced(convolution, dtype), dtype)
    except tf.errors.AbortedError:  # no primitive
        return None
    cases = JOINS | (OTHERS if apart else {})
    if dtype != "float32":
        cases.pop("LRN", None)  # it has no kernel for others
    results = {name: changed_by_edges(function, types, dtype, apart=apart) for name, (function, types) in cases.items()}
    if apart:
        results["plan"] = changed_by_a_plan(dtype)
    return results


if __name__ == "__main__":
    tf.config.threading.set_intra_op_parallelism_threads(2)
    apart = sys.argv[1:] != ["joined"]
    print(json.dumps({dtype: found(dtype, apart=apart) for dtype in ("float32", "bfloat16")}))
