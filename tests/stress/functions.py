"""Random TensorFlow functions, as recipes: plain values that can be printed, compared, and traced as often as one likes.

A recipe is a list of nodes; each reads the tensors that were made so many nodes before it. All large tensors have five axes,
(B, D, H, W, C). If two that meet differ in shape or type, the second becomes a number, or is cast.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tensorflow as tf
from hypothesis import strategies as st

SHAPE = (1, 8, 16, 16, 16)  # 128 KiB: more than a crumb
SEED = 7
Kind = Callable[..., tf.Tensor]


@dataclass(frozen=True)
class Node:
    """One operation: its kind, how many nodes back its inputs were made, and whether it also waits for an older one."""

    kind: str
    back: tuple[int, ...] = (1,)
    after: int = 0

    def __repr__(self) -> str:
        return f"{self.kind}{list(self.back)}" + (f"~{self.after}" if self.after else "")


@dataclass(frozen=True)
class Recipe:
    """A function of one tensor. trains: it also takes a step of gradient descent. dtype: of the input."""

    nodes: tuple[Node, ...]
    loss: str = "mean"
    trains: bool = True
    dtype: str = "float32"

    def __repr__(self) -> str:
        return f"{self.dtype} {self.loss}{' trained' if self.trains else ''}: " + " ".join(map(repr, self.nodes))


class Weights:
    """The variables that a function made of a recipe uses, and their first values."""

    def __init__(self, dtype: str = "float32") -> None:
        def drawn(name: str, *shape: int) -> tf.Variable:
            return tf.Variable(tf.random.stateless_normal(shape, (SEED, len(name)), 0, 0.1, dtype), name=name)

        self.conv3, self.conv2 = drawn("conv3", 3, 3, 3, 16, 16), drawn("c2", 3, 3, 16, 16)
        self.square, self.depthwise = drawn("sq", 16, 16), drawn("depthwise", 3, 3, 16, 1)
        self.scale = drawn("scale", 16)
        self.trained = [self.conv3, self.conv2, self.square, self.depthwise, self.scale]
        self.momentum = [tf.Variable(tf.zeros_like(v)) for v in self.trained]
        self.running, self.count = tf.Variable(tf.zeros((16,), dtype)), tf.Variable(0, dtype=tf.int64)
        self.generator = tf.random.Generator.from_seed(SEED)
        self.all = [*self.trained, *self.momentum, self.running, self.count, self.generator.state]
        self._first = [v.numpy() for v in self.all]

    def reset(self) -> None:
        """Back to the first values."""
        for variable, value in zip(self.all, self._first, strict=True):
            variable.assign(value)

    def values(self) -> list[Any]:
        return [v.numpy() for v in self.all]


def _like(value: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
    """`value` in the shape and type of `x`, or a number."""
    value = tf.cast(value, x.dtype)
    return value if value.shape == x.shape else tf.reduce_mean(value)


def _images(x: tf.Tensor) -> tf.Tensor:
    """The planes of a volume as a batch of images."""
    return tf.reshape(x, (-1, *x.shape[2:]))


def _single(function: Kind) -> Kind:
    """A kind that knows float32 and float64 alone."""

    def wrapped(x: tf.Tensor, w: Weights) -> tf.Tensor:
        wide = x if x.dtype in (tf.float32, tf.float64) else tf.cast(x, tf.float32)
        return tf.cast(function(wide, w), x.dtype)

    return wrapped


def _kernel(variable: tf.Variable, x: tf.Tensor) -> tf.Tensor:
    return tf.cast(variable, x.dtype)


def _up(x: tf.Tensor, w: Weights) -> tf.Tensor:
    shape = (x.shape[0], *(2 * n for n in x.shape[1:4]), 16)
    return tf.nn.conv3d_transpose(x, _kernel(w.conv3, x), shape, (1, 2, 2, 2, 1)) if x.shape[1] < 8 else x


def _up_sample(x: tf.Tensor, w: Weights) -> tf.Tensor:
    for axis in (1, 2, 3) if x.shape[1] < 8 else ():
        x = tf.repeat(x, 2, axis)
    return x


def _pool(function: Kind, rank: int) -> Kind:
    def pooled(x: tf.Tensor, w: Weights) -> tf.Tensor:
        if min(x.shape[1:4]) <= 2 or (rank == 3 and x.dtype == tf.float64):  # TensorFlow has no such kernel
            return x
        if rank == 3:
            return function(x, 2, 2, "VALID")
        planes = function(_images(x), 2, 2, "VALID")
        return tf.reshape(planes, (*x.shape[:2], *planes.shape[1:]))

    return pooled


def _batch_norm(x: tf.Tensor, w: Weights) -> tf.Tensor:
    x32 = tf.cast(_images(x), tf.float32)
    y, mean, *_ = tf.raw_ops.FusedBatchNormV3(
        x=x32, scale=tf.cast(w.scale, tf.float32), offset=tf.zeros(16), mean=[], variance=[], is_training=True
    )
    w.running.assign(w.running * 0.9 + tf.cast(mean, w.running.dtype) * 0.1)
    return tf.reshape(tf.cast(y, x.dtype), x.shape)


def _norm(axes: list[int]) -> Kind:
    def normalised(x: tf.Tensor, w: Weights) -> tf.Tensor:
        mean, variance = tf.nn.moments(x, axes, keepdims=True)
        return tf.nn.batch_normalization(x, mean, variance, None, _kernel(w.scale, x), 1e-3)

    return normalised


def _halves(x: tf.Tensor, w: Weights) -> tf.Tensor:
    first, second = tf.split(x, 2, 1) if x.shape[1] > 1 else (x, x[:, :0])
    return tf.concat([second, first], 1)


def _views(x: tf.Tensor, w: Weights) -> tf.Tensor:
    """Parts along the first axis, which lie in the memory of the whole. Their readers could write there."""
    planes = _images(x)
    half = planes.shape[0] // 2
    return tf.reshape(tf.concat([tf.sin(planes[half:]), tf.cos(planes[:half])], 0), x.shape)


def _call(x: tf.Tensor, w: Weights) -> tf.Tensor:
    @tf.function(autograph=False)
    def inner(y: tf.Tensor) -> tf.Tensor:
        return tf.tanh(y) * _kernel(w.scale, y)

    @tf.function(autograph=False)
    def outer(y: tf.Tensor) -> tf.Tensor:
        return inner(y) + inner(tf.sin(y))

    return outer(x)


def _custom(x: tf.Tensor, w: Weights) -> tf.Tensor:
    @tf.custom_gradient
    def both(a: tf.Tensor, b: tf.Tensor) -> Any:
        return (tf.tanh(a), tf.identity(b)), lambda da, db: (da * 0.5, db + da)

    return tf.add(*both(x, tf.sin(x)))


def _accumulate(x: tf.Tensor, w: Weights) -> tf.Tensor:
    """Assigns a variable in either branch, and reads it before and after."""
    before = w.running * 1.0
    mean = tf.cast(tf.reduce_mean(x, [0, 1, 2, 3]), w.running.dtype)

    def begin() -> tf.Tensor:
        change = w.running - mean
        w.running.assign(tf.zeros_like(w.running))
        return change

    def add() -> tf.Tensor:
        w.running.assign(w.running + mean)
        return mean

    change = tf.cond(tf.math.floormod(w.count, 2) > 0, begin, add)
    w.count.assign_add(1)
    return x + tf.cast(w.running - before + change, x.dtype)


def _assign(x: tf.Tensor, w: Weights) -> tf.Tensor:
    """Reads a variable, changes it, reads it again."""
    before = tf.identity(w.running)
    w.running.assign_add(tf.cast(tf.reduce_mean(x, [0, 1, 2, 3]), w.running.dtype))
    w.count.assign_add(1)
    return x + tf.cast(w.running - before, x.dtype)


def _integers(x: tf.Tensor, w: Weights) -> tf.Tensor:
    whole = tf.cast(tf.clip_by_value(tf.cast(x, tf.float32), -9, 9) * 8, tf.int32)
    whole = tf.bitwise.bitwise_xor(whole, tf.math.floormod(whole, 5))
    return x + tf.cast(tf.cast(whole, tf.int64) % 3, x.dtype)


def _masked(x: tf.Tensor, w: Weights) -> tf.Tensor:
    mask = tf.logical_and(x > 0, tf.logical_not(x > 1))
    return tf.where(mask, x, x * tf.cast(0.5, x.dtype)) + tf.cast(mask, x.dtype)


def _empty(x: tf.Tensor, w: Weights) -> tf.Tensor:
    nothing = tf.tanh(x[:0])
    return tf.concat([nothing, x, nothing], 0) + tf.reduce_sum(nothing)


def _through(dtype: tf.DType) -> Kind:
    def narrowed(x: tf.Tensor, w: Weights) -> tf.Tensor:
        narrow = tf.cast(tf.tanh(x), dtype)
        return tf.cast(tf.nn.relu(narrow * narrow) + narrow, x.dtype)

    return narrowed


def _python(x: tf.Tensor, w: Weights) -> tf.Tensor:
    y = tf.numpy_function(lambda a: a + a.dtype.type(1), [x], x.dtype)
    y.set_shape(x.shape)
    return y


def _best(x: tf.Tensor, values: tf.Tensor, places: tf.Tensor) -> tf.Tensor:
    return x * tf.cast(tf.reduce_sum(values, -1, keepdims=True), x.dtype) + tf.cast(places[..., :1], x.dtype)


UNARY: dict[str, Kind] = {
    "tanh": lambda x, w: tf.tanh(x),
    "relu": lambda x, w: tf.nn.relu(x),
    "leaky": lambda x, w: tf.nn.leaky_relu(x),
    "elu": lambda x, w: tf.nn.elu(x),
    "gelu": _single(lambda x, w: tf.nn.gelu(x)),
    "sigmoid": lambda x, w: tf.sigmoid(x),
    "softmax": lambda x, w: tf.nn.softmax(x),
    "logsoftmax": lambda x, w: tf.nn.log_softmax(x),
    "identity": lambda x, w: tf.identity(x),
    "reshape": lambda x, w: tf.reshape(tf.reshape(x, (-1, x.shape[-1])), x.shape),
    "transpose": lambda x, w: tf.transpose(tf.transpose(x, (0, 2, 1, 3, 4)) * 2, (0, 2, 1, 3, 4)),
    "same axes": lambda x, w: tf.transpose(x, (0, 1, 2, 3, 4)),
    "roll": lambda x, w: tf.roll(x, 1, 2),
    "reverse": lambda x, w: tf.reverse(x, [3]),
    "cumsum": lambda x, w: tf.cumsum(x, 1),
    "pad": lambda x, w: tf.pad(x, [[0, 0], [1, 0], [0, 0], [0, 0], [0, 0]])[:, :-1],
    "halves": _halves,
    "views": _views,
    "unstack": lambda x, w: tf.stack(tf.unstack(x, axis=1), 1),
    "gather": lambda x, w: tf.gather(x, tf.range(x.shape[-1])[::-1], axis=-1),
    "square": lambda x, w: tf.square(tf.clip_by_value(x, -2, 2)),
    "stop": lambda x, w: x + tf.stop_gradient(tf.sin(x)),
    "scalar": lambda x, w: x * tf.reduce_max(x) - tf.reduce_mean(x),
    "conv3": _single(lambda x, w: tf.nn.conv3d(x, _kernel(w.conv3, x), (1,) * 5, "SAME")),
    "conv2": _single(lambda x, w: tf.reshape(tf.nn.conv2d(_images(x), _kernel(w.conv2, x), 1, "SAME"), x.shape)),
    "depthwise": _single(
        lambda x, w: tf.reshape(tf.nn.depthwise_conv2d(_images(x), _kernel(w.depthwise, x), (1,) * 4, "SAME"), x.shape)
    ),
    "bias": lambda x, w: tf.nn.bias_add(x, _kernel(w.scale, x)),
    "matmul": lambda x, w: tf.matmul(x, _kernel(w.square, x)),
    "einsum": lambda x, w: tf.einsum("bdhwc,ce->bdhwe", x, _kernel(w.square, x)),
    "down": _single(
        lambda x, w: x if min(x.shape[1:4]) <= 2 else tf.nn.conv3d(x, _kernel(w.conv3, x), (1, 2, 2, 2, 1), "SAME")
    ),
    "up": _single(_up),
    "up-sample": _up_sample,
    "max2": _single(_pool(tf.nn.max_pool2d, 2)),
    "max3": _single(_pool(tf.nn.max_pool3d, 3)),
    "mean2": _single(_pool(tf.nn.avg_pool2d, 2)),
    "mean3": _single(_pool(tf.nn.avg_pool3d, 3)),
    "batch norm": _batch_norm,
    "layer norm": _norm([4]),
    "instance norm": _norm([1, 2, 3]),
    "cond": lambda x, w: tf.cond(
        tf.reduce_sum(x) > 0, lambda: tf.cos(x), lambda: tf.nn.relu(x) * tf.cast(w.scale[0], x.dtype)
    ),
    "while": lambda x, w: tf.while_loop(
        lambda i, y: i < 3, lambda i, y: (i + 1, tf.tanh(y) + x), (0, x), maximum_iterations=4
    )[1],
    "call": _call,
    "custom": _custom,
    "assign": _assign,
    "accumulate": _accumulate,
    "integers": _integers,
    "masked": _masked,
    "empty": _empty,
    "float16": _through(tf.float16),
    "bfloat16": _through(tf.bfloat16),
    "float64": _through(tf.float64),
    "python": _python,
    "best": lambda x, w: _best(x, *tf.math.top_k(tf.cast(x, tf.float32), 4)),
    "generator": lambda x, w: x + tf.cast(w.generator.normal(x.shape, dtype=tf.float32), x.dtype),
    "dropout": lambda x, w: tf.nn.dropout(x, 0.3, seed=SEED),
    "uniform": lambda x, w: x + tf.cast(tf.random.uniform(x.shape, seed=SEED), x.dtype),
    "stateless": lambda x, w: x + tf.cast(tf.random.stateless_normal(x.shape, (SEED, 1)), x.dtype),
    "shuffled": lambda x, w: tf.random.shuffle(tf.reshape(x, (-1, 16)), SEED)[:1] + x,
}
BINARY: dict[str, Callable[[tf.Tensor, tf.Tensor], tf.Tensor]] = {
    "add": lambda a, b: a + _like(b, a),
    "multiply": lambda a, b: a * _like(b, a),
    "subtract": lambda a, b: a - _like(b, a),
    "maximum": lambda a, b: tf.maximum(a, _like(b, a)),
    "concat": lambda a, b: tf.concat([a, tf.broadcast_to(_like(b, a), a.shape)], -1)[..., ::2],
    "add_n": lambda a, b: tf.add_n([a, tf.broadcast_to(_like(b, a), a.shape), a]),
    "attend": lambda a, b: a * tf.sigmoid(_like(b, a)),
}
# In float64 these make a rounding error of a rounding error: a sliced step can be compared.
SMOOTH = {"layer norm", "instance norm"} | set(
    """
    tanh gelu sigmoid softmax identity square conv3 conv2 depthwise bias matmul down up up-sample mean2 call cond while custom stop
    reshape halves views pad roll unstack gather
    """.split()  # noqa: SIM905 - a list of this length is read, not executed
)


def function_of(recipe: Recipe, weights: Weights) -> Callable[[tf.Tensor], list[tf.Tensor]]:
    """What to trace: returns the last tensor, a slice of another one, the loss, and the gradient of the input."""

    def function(x: tf.Tensor) -> list[tf.Tensor]:
        made = [x]
        for node in recipe.nodes:
            read = [made[-min(b, len(made))] for b in node.back]
            waits = [made[-min(node.after, len(made))].op] if node.after else []
            with tf.control_dependencies(waits):
                new = UNARY[node.kind](read[0], weights) if node.kind in UNARY else BINARY[node.kind](*read)
            made.append(new)
        loss = _loss(recipe.loss, made[-1], x)
        results = [made[-1], made[len(made) // 2][:, :2], loss]
        return [*results, *_trained(loss, x, weights)] if recipe.trains else results

    return function


def _loss(kind: str, y: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
    if kind == "dice":
        p, truth = tf.sigmoid(y), tf.cast(tf.roll(y, 1, 1) > 0, y.dtype)
        overlap = tf.reduce_sum(p * truth, [1, 2, 3])
        return 1 - tf.reduce_mean((2 * overlap + 1) / (tf.reduce_sum(p + truth, [1, 2, 3]) + 1))
    if kind == "cross entropy":
        return tf.reduce_mean(tf.nn.softmax_cross_entropy_with_logits(tf.nn.softmax(tf.stop_gradient(y * 2)), y))
    return tf.reduce_mean(tf.tanh(y))


def _trained(loss: tf.Tensor, x: tf.Tensor, weights: Weights) -> list[tf.Tensor]:
    gradients = tf.gradients(loss, [x, *weights.trained], unconnected_gradients=tf.UnconnectedGradients.ZERO)
    for gradient, variable, momentum in zip(gradients[1:], weights.trained, weights.momentum, strict=True):
        momentum.assign(momentum * tf.cast(0.9, momentum.dtype) + gradient)
        variable.assign_sub(momentum * tf.cast(0.1, momentum.dtype))
    return gradients[:1]


def recipes(most: int = 14, *, smooth: bool = False) -> st.SearchStrategy[Recipe]:
    """Recipes of up to `most` nodes. smooth: in float64, of kinds that can be compared up to rounding."""
    kinds = [k for k in UNARY if not smooth or k in SMOOTH]
    others = ["add", "multiply", "subtract", "concat", "attend"] if smooth else list(BINARY)
    after = st.just(0) if smooth else st.sampled_from([0, 0, 0, 0, 1, 2, 5])
    near = st.sampled_from([1, 1, 1, 1, 2, 3])
    unary = st.builds(Node, st.sampled_from(kinds), st.tuples(near), after)
    binary = st.builds(Node, st.sampled_from(others), st.tuples(near, st.integers(1, 20)), after)
    return st.builds(
        Recipe,
        st.lists(st.one_of(unary, unary, binary), min_size=3, max_size=most).map(tuple),
        st.sampled_from(["mean", "dice", "cross entropy"] if not smooth else ["mean", "cross entropy"]),
        st.booleans() if not smooth else st.just(True),
        st.just("float64") if smooth else st.sampled_from(["float32"] * 5 + ["float16", "bfloat16", "float64"]),
    )
