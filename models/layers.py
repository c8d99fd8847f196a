"""Layers for networks on whole volumes. Almost every call makes a single full-size tensor.

Keras's own layers compute the same from many ops: up-sampling holds two full-size tensors at once, and normalisation and dropout
make full-size temporaries with each op. At 192^3 each of these costs hundreds of MiB.

All layers take channels last: (B, H, W, C) or (B, D, H, W, C).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import keras
import tensorflow as tf

from lms3d.models import fused, instance_norm
from lms3d.models.instance_norm import sizes

PACKAGE = "lms3d"
Triple = tuple[int, int, int]
"""A number for each axis: D, H, W."""
TWICE: Triple = (2, 2, 2)
_TRACED_FOR_GPU: ContextVar[bool] = ContextVar("traced_for_gpu", default=False)


@contextmanager
def traced_for_gpu() -> Iterator[None]:
    """A block in which layers build the ops that they use on a GPU, even if there is none. Trace in it, but run nothing."""
    before = _TRACED_FOR_GPU.set(True)
    try:
        yield
    finally:
        _TRACED_FOR_GPU.reset(before)


def on_gpu() -> bool:
    """Whether layers build the ops that suit a GPU."""
    return _TRACED_FOR_GPU.get() or bool(tf.config.list_physical_devices("GPU"))


@keras.saving.register_keras_serializable(package=PACKAGE)
class InstanceNormalization(keras.layers.Layer):
    """Normalises each channel of each sample, and does the rest of a block, in few passes over the volume.

    y = leaky(m (gamma (x - mean) / sqrt(variance + epsilon) + beta)) + addend, with mean and variance over all voxels of one sample
    (Ulyanov et al., arXiv:1607.08022). With x alone and a slope of 1 it equals `keras.layers.GroupNormalization(groups=-1)`.

    negative_slope: LeakyReLU's slope; 0 for ReLU, 1 for no activation. multipliers m: (B, C), not negative, such as from
    `ChannelDropout(applied=False)`; no gradient flows to them. addend: a tensor in the shape of x.

    Compiled operations compute it if there are some (`fused`), otherwise TensorFlow's own, one after the other. Then the
    normalisation on a CPU, and in float64 on any device, is `instance_norm.normalise`, whose statistics are exact at any size. On a
    GPU it is the fused kernel, since batch normalisation over a batch of one sample *is* instance normalisation.

    NORM-1 Batch 1: the fused kernel alone, and no other full-size tensor.
    NORM-2 Known batch: the fused kernel for each sample, and one concatenation.
    NORM-3 Unknown batch: the samples are moved into the channel axis, (B, V, C) -> (1, V, B C), by two transpositions.

    Under every precision policy scale and offset are float32 (float64 in a float64 network), and the statistics float32 or better.
    The reference code adds epsilon to sigma, this layer adds it to the variance. For a channel that is not constant the difference
    is less than epsilon.
    """

    def __init__(self, epsilon: float = 1e-3, negative_slope: float = 1.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.epsilon, self.negative_slope = epsilon, negative_slope
        self.supports_jit = False  # `build` decides

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        if len(input_shape) not in (4, 5) or input_shape[-1] is None:
            raise ValueError(
                f"{self.name}: expected (B, H, W, C) or (B, D, H, W, C) with a known C, received shape {input_shape}"
            )
        channels = (input_shape[-1],)
        # autocast=False: float32 even if the activations are in half precision.
        dtype = "float64" if self.variable_dtype == "float64" else "float32"
        self.gamma = self.add_weight(shape=channels, initializer="ones", name="gamma", dtype=dtype, autocast=False)
        self.beta = self.add_weight(shape=channels, initializer="zeros", name="beta", dtype=dtype, autocast=False)
        self.supports_jit = _kernels(self.compute_dtype) is None  # XLA knows TensorFlow's own operations

    def call(
        self, inputs: tf.Tensor, multipliers: tf.Tensor | None = None, addend: tf.Tensor | None = None
    ) -> tf.Tensor:
        gamma, beta = tf.convert_to_tensor(self.gamma), tf.convert_to_tensor(self.beta)
        kernels = None if self.supports_jit else _kernels(inputs.dtype.name)
        if kernels is not None:
            y = fused.activate(
                kernels, inputs, gamma, beta,
                epsilon=self.epsilon, slope=self.negative_slope, multipliers=multipliers, addend=addend,
            )  # fmt: skip
            return _with_shape(y, inputs.shape)
        y = self._normalised(inputs, gamma, beta)
        if self.negative_slope != 1:
            y = tf.nn.leaky_relu(y, self.negative_slope) if self.negative_slope else tf.nn.relu(y)
        if multipliers is not None:
            y *= _per_voxel(multipliers, y)
        return y if addend is None else y + addend

    def _normalised(self, inputs: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor) -> tf.Tensor:
        """The normalisation by TensorFlow's own operations."""
        if inputs.dtype == tf.float64 or not on_gpu():
            return instance_norm.normalise(inputs, gamma, beta, self.epsilon)
        batch = inputs.shape[0]
        if batch == 1:  # NORM-1
            return _normalise_one(inputs, gamma, beta, self.epsilon)
        if batch is not None:  # NORM-2
            samples = tf.split(inputs, batch)
            return tf.concat([_normalise_one(x, gamma, beta, self.epsilon) for x in samples], axis=0)
        return _normalise_unknown_batch(inputs, gamma, beta, self.epsilon)  # NORM-3

    def compute_output_shape(self, input_shape: tuple[int | None, ...]) -> tuple[int | None, ...]:
        return input_shape

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "epsilon": self.epsilon, "negative_slope": self.negative_slope}


def _kernels(dtype: str) -> fused.Operations | None:
    """The compiled operations for the device; None if there are none, as for float64 on a GPU."""
    if on_gpu() and dtype == "float64":
        return None
    return fused.operations("GPU" if tf.config.get_visible_devices("GPU") else "CPU")


def _per_voxel(values: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
    """(B, C) -> (B, 1, .., 1, C) in the dtype of x."""
    return tf.cast(tf.reshape(values, (-1, *(1 for _ in x.shape[1:-1]), x.shape[-1])), x.dtype)


def _normalise_one(x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor, epsilon: float) -> tf.Tensor:
    """The instance normalisation of one sample, (1, [D,] H, W, C) -> the same shape."""
    nothing = tf.zeros((0,), tf.float32)  # no running statistics
    y = tf.raw_ops.FusedBatchNormV3(
        x=x,
        scale=gamma,
        offset=beta,
        mean=nothing,
        variance=nothing,
        epsilon=epsilon,
        is_training=True,
        data_format="NDHWC" if x.shape.rank == 5 else "NHWC",
    ).y
    return _with_shape(y, x.shape)


def _with_shape(y: tf.Tensor, shape: tf.TensorShape) -> tf.Tensor:
    """y with a known static shape: the op's own shape function infers too little for five axes."""
    y.set_shape(shape)
    return y


def _normalise_unknown_batch(x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor, epsilon: float) -> tf.Tensor:
    """The instance normalisation of (B, [D,] H, W, C), with B unknown when it is traced: samples become channels."""
    shape, channels = tf.shape(x), x.shape[-1]
    batch = shape[0]
    flat = tf.reshape(x, (batch, -1, channels))
    wide = tf.reshape(tf.transpose(flat, (1, 0, 2)), (1, 1, -1, batch * channels))
    wide = _normalise_one(wide, tf.tile(gamma, (batch,)), tf.tile(beta, (batch,)), epsilon)
    flat = tf.transpose(tf.reshape(wide, (-1, batch, channels)), (1, 0, 2))
    return _with_shape(tf.reshape(flat, shape), x.shape)


@keras.saving.register_keras_serializable(package=PACKAGE)
class NearestUpSampling3D(keras.layers.Layer):
    """Repeats every voxel along each axis, by default twice: (B, D, H, W, C) -> (B, d D, h H, w W, C).

    factors: d, h and w. The layer is bit-identical to `keras.layers.UpSampling3D(factors)`, but the result is the only full-size
    tensor, forward and backward.
    """

    def __init__(self, factors: Triple = TWICE, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.factors = _triple(factors)

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        return upsample(inputs, self.factors)

    def compute_output_shape(self, input_shape: tuple[int | None, ...]) -> tuple[int | None, ...]:
        batch, *axes, channels = input_shape
        return (batch, *_times(axes, self.factors), channels)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "factors": self.factors}


def upsample(x: tf.Tensor, factors: Triple = TWICE) -> tf.Tensor:
    """The nearest neighbour up-sampling: (B, D, H, W, C) -> (B, d D, h H, w W, C) with the factors d, h and w.

    It is one Tile over three axes of length 1; both reshapes are views. The automatic gradient of Tile would transpose the whole
    tensor before it sums. So the gradient is written here: the sum over each block of d x h x w.
    """
    d, h, w = factors

    @tf.custom_gradient
    def run(x: tf.Tensor) -> tuple[tf.Tensor, Any]:
        batch, depth, height, width, channels = sizes(x)
        # Batch and depth share an axis, because Tile takes at most seven.
        y = tf.tile(tf.reshape(x, (batch * depth, 1, height, 1, width, 1, channels)), (1, d, 1, h, 1, w, 1))
        y = tf.reshape(y, (batch, d * depth, h * height, w * width, channels))
        pooling_serves = x.dtype in (tf.float32, tf.bfloat16) and not on_gpu()
        sums = block_sums_by_pooling if pooling_serves else block_sums_by_axis
        return y, lambda dy: sums(dy, factors)

    return run(x)


def block_sums_by_pooling(dy: tf.Tensor, factors: Triple = TWICE) -> tf.Tensor:
    """The sum of each block of d x h x w, (B, d D, h H, w W, C) -> (B, D, H, W, C), in one kernel, which is fastest on a CPU.

    On a GPU cuDNN pools with channels first, which would transpose the whole tensor. On a CPU there is no kernel for float16.
    """
    return math.prod(factors) * tf.nn.avg_pool3d(dy, ksize=factors, strides=factors, padding="VALID")


def block_sums_by_axis(dy: tf.Tensor, factors: Triple = TWICE) -> tf.Tensor:
    """The same sums, one axis after the other. To sum the middle one of three axes needs no transposition on any device."""
    d, h, w = factors
    batch, depth, height, width, channels = sizes(dy)
    planes, rows, columns = batch * depth // d, height // h, width // w
    y = tf.reduce_sum(tf.reshape(dy, (planes, d, height * width * channels)), axis=1)
    y = tf.reduce_sum(tf.reshape(y, (planes * rows, h, width * channels)), axis=1)
    y = tf.reduce_sum(tf.reshape(y, (planes * rows * columns, w, channels)), axis=1)
    return tf.reshape(y, (batch, depth // d, rows, columns, channels))


@keras.saving.register_keras_serializable(package=PACKAGE)
class Conv3D(keras.layers.Conv3D):
    """Keras's convolution, for use before a normalisation, which would cancel a bias. The layer has a bias, as all saved weights
    do, but does not add it. The gradient of the bias is 0, as it would be but for rounding.

    The class has the name of Keras's layer because weights files identify layers by it.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if not self.use_bias or self.activation is not keras.activations.linear:
            raise ValueError(f"{self.name}: expected a bias, and no activation")

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        y = self.convolution_op(inputs, self.kernel)
        return _with_zero_gradient(y, tf.convert_to_tensor(self.bias))


@tf.custom_gradient
def _with_zero_gradient(y: tf.Tensor, unused: tf.Tensor) -> tuple[tf.Tensor, Any]:
    """y, with a gradient of 0 for a weight that it does not depend on. Optimisers expect a gradient for each weight."""
    return tf.identity(y), lambda dy: (dy, tf.zeros_like(unused))


@keras.saving.register_keras_serializable(package=PACKAGE)
class JoinedConv3D(keras.layers.Layer):
    """A convolution of several tensors side by side, some of them up-sampled, which never materialises its input.

    inputs: tensors (B, D, H, W, C_i), or (B, D/d, H/h, W/w, C_i) if `raised[i]`, with the factors d, h and w, each 1 or 2. Result:
    (B, D, H, W, filters). It equals, to rounding, `Conv3D(filters, kernel_size, padding="same")` of the concatenation of all
    inputs, the raised ones after `NearestUpSampling3D(factors)`. It has the weights of that layer, (*kernel_size, sum of C_i,
    filters) and (filters,). kernel_size: 1 or 3 on each axis.

    The concatenations and the up-sampled tensors are the largest of a U-Net. Neither is needed:
    CONCAT-1 A convolution is linear in its input channels. So the convolution of a concatenation is the sum over its parts.
    CONCAT-2 To repeat each voxel and convolve with k is the transposed convolution of stride 2 with k * box(2), 4x4x4: the phases
       of the sub-pixel convolution (Shi et al., arXiv:1609.07009). It takes 64 products per small voxel instead of 8 x 27 = 216,
       and is faster, too (measured on 2 cores, 48^3 x 32 -> 96^3 x 16, with gradients: 0.13 s instead of 0.6 s).

    adds_bias: False before a normalisation; see `Conv3D`.
    """

    def __init__(
        self,
        filters: int,
        raised: tuple[bool, ...],
        adds_bias: bool = True,
        kernel_size: Triple = (3, 3, 3),
        factors: Triple = TWICE,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.filters, self.raised, self.adds_bias = filters, tuple(raised), adds_bias
        self.kernel_size, self.factors = _triple(kernel_size), _triple(factors)

    def build(self, input_shape: Any) -> None:
        self.channels = [shape[-1] for shape in _shapes(input_shape)]
        if len(self.channels) != len(self.raised):
            raise ValueError(f"{self.name}: expected {len(self.raised)} inputs, received {len(self.channels)}")
        self.kernel = self.add_weight(
            shape=(*self.kernel_size, sum(self.channels), self.filters), initializer="glorot_uniform", name="kernel"
        )
        self.bias = self.add_weight(shape=(self.filters,), initializer="zeros", name="bias")

    def call(self, inputs: Any) -> tf.Tensor:
        kernel = tf.convert_to_tensor(self.kernel)
        parts = tf.split(kernel, self.channels, axis=3) if len(self.channels) > 1 else [kernel]
        total: tf.Tensor | None = None
        for x, part, raised in zip(keras.tree.flatten(inputs), parts, self.raised, strict=True):
            y = raised_convolution(x, part, self.factors) if raised else tf.nn.conv3d(x, part, (1,) * 5, "SAME")
            total = y if total is None else total + y  # CONCAT-1
        bias = tf.convert_to_tensor(self.bias)
        return tf.nn.bias_add(total, bias) if self.adds_bias else _with_zero_gradient(total, bias)

    def compute_output_shape(self, input_shape: Any) -> tuple[int | None, ...]:
        (batch, *axes, _), raised = _shapes(input_shape)[0], self.raised[0]
        return (batch, *(_times(axes, self.factors) if raised else axes), self.filters)

    def get_config(self) -> dict[str, Any]:
        own = ("filters", "raised", "adds_bias", "kernel_size", "factors")
        return {**super().get_config(), **{name: getattr(self, name) for name in own}}


def _shapes(shapes: Any) -> list[Any]:
    """A list of shapes, of one shape or of several."""
    return [shapes] if shapes[0] is None or isinstance(shapes[0], int) else list(shapes)


def raised_convolution(x: tf.Tensor, kernel: tf.Tensor, factors: Triple = TWICE) -> tf.Tensor:
    """The convolution of x up-sampled by the factors (nearest neighbour), which is not materialised: (B, D, H, W, I) ->
    (B, d D, h H, w W, O).

    kernel: (K, L, M, I, O), each of K, L and M 1 or 3. factors: d, h and w, each 1 or 2. CONCAT-2 of `JoinedConv3D`.
    """
    wide = tf.reverse(kernel, (0, 1, 2))
    for axis in (
        axis for axis in range(3) if factors[axis] > 1
    ):  # (.., 3, ..) -> (.., 4, ..): k * box(2) along the axis
        before, after = ([[0, 0] for _ in range(5)] for _ in range(2))
        before[axis], after[axis] = [1, 0], [0, 1]
        wide = tf.pad(wide, before) + tf.pad(wide, after)
    batch, *axes, _ = sizes(x)
    shape = (batch, *(n * factor for n, factor in zip(axes, factors, strict=True)), kernel.shape[-1])
    y = tf.nn.conv3d_transpose(x, tf.transpose(wide, (0, 1, 2, 4, 3)), shape, (1, *factors, 1), "SAME")
    known = x.shape.as_list()
    return _with_shape(y, tf.TensorShape([known[0], *_times(known[1:4], factors), shape[-1]]))


def _times(axes: Sequence[int | None], factors: Triple) -> list[int | None]:
    """The sizes of axes, times the factors; None for an axis of unknown size."""
    return [None if n is None else n * factor for n, factor in zip(axes, factors, strict=True)]


def _triple(numbers: Sequence[int]) -> Triple:
    """Three numbers as a tuple: JSON makes a list of it."""
    first, second, third = numbers
    return first, second, third


@keras.saving.register_keras_serializable(package=PACKAGE)
class ChannelDropout(keras.layers.Layer):
    """Drops whole channels of a sample with probability `rate`, and scales the others by 1 / (1 - rate).

    It has the distribution of `keras.layers.SpatialDropout3D`, and is one multiplication with a (B, 1, .., 1, C) mask.
    applied: if False, the layer returns the multipliers, (B, C), for `InstanceNormalization`.
    """

    def __init__(self, rate: float, seed: int | None = None, applied: bool = True, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if not 0 <= rate < 1:
            raise ValueError(f"{self.name}: rate must be at least 0 and below 1, received {rate}")
        self.rate, self.seed, self.applied = rate, seed, applied
        self.seed_generator = keras.random.SeedGenerator(seed)

    def call(self, inputs: tf.Tensor, training: bool = False) -> tf.Tensor:
        batch = inputs.shape[0] if inputs.shape[0] is not None else tf.shape(inputs)[0]
        if not training or self.rate == 0:
            return inputs if self.applied else tf.ones((batch, inputs.shape[-1]), inputs.dtype)
        shape = (batch, *(1,) * (inputs.shape.rank - 2), inputs.shape[-1])
        kept = keras.random.uniform(shape, dtype="float32", seed=self.seed_generator) >= self.rate
        multipliers = tf.cast(kept, inputs.dtype) * (1 / (1 - self.rate))
        return inputs * multipliers if self.applied else tf.reshape(multipliers, (batch, inputs.shape[-1]))

    def compute_output_shape(self, input_shape: tuple[int | None, ...]) -> tuple[int | None, ...]:
        return input_shape if self.applied else (input_shape[0], input_shape[-1])

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "rate": self.rate, "seed": self.seed, "applied": self.applied}
