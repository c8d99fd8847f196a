"""Cases of ops that read neighbours: convolutions, poolings, resizing."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf
from hypothesis import strategies as st

from tests.lms3d.engine.slabs.cases import Body, Case, Space, spaces

R = tf.raw_ops


def _kernel(shape: Any, dtype: tf.DType = tf.float64) -> tf.Tensor:
    return tf.constant(np.random.default_rng(2).normal(size=shape), dtype)


def _with_kernel_gradient(operation: Any, shape: Any) -> Body:
    """operation(x, kernel), and the gradient of the kernel."""

    def body(x: tf.Tensor) -> list[tf.Tensor]:
        kernel = _kernel(shape)
        with tf.GradientTape() as tape:
            tape.watch([kernel])
            y = operation(x, kernel)
            loss = tf.reduce_sum(y * y)
        return [y, tape.gradient(loss, kernel)]

    return body


@st.composite
def convolutions(draw: Any, rank: int) -> tuple[Space, Body]:
    space = draw(spaces(rank, planes=(8, 13), width=(5, 6)))
    size, stride = draw(st.integers(1, 5)), draw(st.integers(1, 3))
    # TensorFlow makes phases of half the planes for a dilated window over a volume: their level has to be sliced, too.
    phases = rank == 2 or space.slabs[1] > 1
    dilation = draw(st.integers(1, 2)) if phases and stride == 1 and 1 < size < 4 else 1
    padding = draw(st.sampled_from(["SAME", "VALID"]))
    # TensorFlow's float64 kernel for volumes shifts padded windows that are smaller than the stride, unlike its gradients and
    # float32.
    least = stride if rank == 3 and padding == "SAME" else 1
    shape = (max(size, least), *(draw(st.integers(least, 3)) for _ in range(rank - 1)), space.channels, 2)

    def convolve(x: tf.Tensor, kernel: tf.Tensor) -> tf.Tensor:
        return tf.nn.convolution(x, kernel, stride, padding, dilations=dilation)

    return space, _with_kernel_gradient(convolve, shape)


def with_planes_that_no_window_reads() -> tuple[Space, Body]:
    """Windows of three planes at stride 3: they read six of eight planes, and nothing of the last of four slabs."""
    space = Space(rank=3, batch=2, planes=8, width=6, channels=2, numbers=(4, 1))
    return space, _with_kernel_gradient(lambda x, kernel: tf.nn.convolution(x, kernel, 3, "VALID"), (3, 1, 1, 2, 2))


@st.composite
def dilated(draw: Any) -> tuple[Space, Body]:
    space = draw(spaces(2, planes=(9, 13), width=(5, 6)))
    shape = (draw(st.integers(2, 3)), 2, space.channels, 2)
    padding = draw(st.sampled_from(["SAME", "VALID"]))
    return space, _with_kernel_gradient(
        lambda x, kernel: tf.nn.with_space_to_batch(
            x, [2, 2], padding, lambda x, *_: tf.nn.conv2d(x, kernel, 1, "VALID"), filter_shape=shape[:2]
        ),
        shape,
    )


@st.composite
def explicitly_padded(draw: Any) -> tuple[Space, Body]:
    space, size, stride = draw(spaces(2, planes=(8, 13))), draw(st.integers(1, 4)), draw(st.integers(1, 3))
    before, after = (draw(st.integers(0, size - 1)) for _ in range(2))
    pads = [[0, 0], [before, after], [1, 0], [0, 0]]
    return space, _with_kernel_gradient(
        lambda x, kernel: tf.nn.conv2d(x, kernel, stride, pads), (size, 2, space.channels, 2)
    )


@st.composite
def transposed(draw: Any, rank: int) -> tuple[Space, Body]:
    space = draw(spaces(rank, planes=(4, 7), width=(3, 4)))
    stride, size = draw(st.integers(1, 3)), draw(st.integers(1, 4))
    padding = draw(st.sampled_from(["SAME", "VALID"]))
    extra = draw(st.integers(0, stride - 1))

    def length(n: int) -> int:
        return (
            n * stride - (stride - 1 - extra if padding == "SAME" else 0)
            if padding == "SAME"
            else (n - 1) * stride + size + extra
        )

    shape = (space.batch, *map(length, space.shape[1:-1]), 2)
    return space, _with_kernel_gradient(
        lambda x, kernel: tf.nn.conv_transpose(x, kernel, shape, stride, padding), (*[size] * rank, 2, space.channels)
    )


@st.composite
def depthwise(draw: Any) -> tuple[Space, Body]:
    space, size, stride = draw(spaces(2, planes=(8, 13))), draw(st.integers(1, 4)), draw(st.integers(1, 2))
    padding = draw(st.sampled_from(["SAME", "VALID"]))
    return space, _with_kernel_gradient(
        lambda x, kernel: tf.nn.depthwise_conv2d(x, kernel, [1, stride, stride, 1], padding),
        (size, min(size, 3), space.channels, 2),
    )


@st.composite
def poolings(draw: Any, rank: int, largest: bool) -> tuple[Space, Body]:
    space = draw(spaces(rank, planes=(8, 13), width=(4, 6)))
    size, stride = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    padding = draw(st.sampled_from(["SAME", "VALID"]))
    pool = tf.nn.max_pool if largest else tf.nn.avg_pool
    return space, lambda x: [pool(tf.square(x), size, stride, padding)]


@st.composite
def nested_poolings(draw: Any, rank: int, largest: bool) -> tuple[Space, Body]:
    """Window and stride are equal, and so are the bounds of both levels."""
    space = draw(spaces(rank, planes=(8, 8), width=(4, 4)))
    space = Space(**{**vars(space), "numbers": (2, 2)})
    pool = tf.nn.max_pool if largest else tf.nn.avg_pool
    return space, lambda x: [pool(x, 2, 2, "SAME")]


@st.composite
def resizings(draw: Any, linear: bool, half: bool) -> tuple[Space, Body]:
    factor, down = draw(st.sampled_from([1, 2, 4])), draw(st.booleans())
    space = draw(spaces(2, planes=(3, 7)))
    planes = space.planes * (factor if down else 1)
    space = Space(**{**vars(space), "planes": planes})
    size = (planes // factor if down else planes * factor, space.width * 2)
    resize = R.ResizeBilinear if linear else R.ResizeNearestNeighbor
    return space, lambda x: [resize(images=x, size=size, half_pixel_centers=half)]


def _case(name: str, types: str, settings: Any, **rest: Any) -> Case:
    return Case(name=name, types=frozenset(types.split()), settings=settings, **rest)


CASES = [
    _case("convolution 2D", "Conv2D Conv2DBackpropInput Conv2DBackpropFilter", convolutions(2)),
    _case("convolution 3D", "Conv3D Conv3DBackpropInputV2 Conv3DBackpropFilterV2", convolutions(3)),
    _case("dilated", "SpaceToBatchND BatchToSpaceND", dilated()),
    _case("explicit padding", "Conv2D Conv2DBackpropInput Conv2DBackpropFilter", explicitly_padded()),
    _case("transposed 2D", "Conv2D Conv2DBackpropInput Conv2DBackpropFilter", transposed(2)),
    _case("transposed 3D", "Conv3D Conv3DBackpropInputV2 Conv3DBackpropFilterV2", transposed(3)),
    _case(
        "depthwise", "DepthwiseConv2dNative DepthwiseConv2dNativeBackpropInput DepthwiseConv2dNativeBackpropFilter", depthwise()
    ),
    _case("maxima 2D", "MaxPool MaxPoolGrad", poolings(2, True)),
    _case("averages 2D", "AvgPool AvgPoolGrad", poolings(2, False)),
    # TensorFlow has no float64 kernels for these.
    _case("maxima 3D", "MaxPool3D MaxPool3DGrad", poolings(3, True), error=1e-6, dtype=tf.float32),
    _case("averages 3D", "AvgPool3D AvgPool3DGrad", poolings(3, False), error=1e-6, dtype=tf.float32),
    _case("linear", "ResizeBilinear ResizeBilinearGrad", resizings(True, True), error=1e-6, dtype=tf.float32),
    _case("linear, corners", "ResizeBilinear", resizings(True, False), error=1e-6, dtype=tf.float32),
    _case("nearest", "ResizeNearestNeighbor ResizeNearestNeighborGrad", resizings(False, True)),
    _case("nearest, corners", "ResizeNearestNeighbor ResizeNearestNeighborGrad", resizings(False, False)),
]  # fmt: skip
