"""The statistics of instance normalisation do not suffer from the size of a volume, from a large mean or from the batch."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

import numpy as np
import pytest
import tensorflow as tf

from lms3d.models import fused, instance_norm
from lms3d.models.layers import InstanceNormalization

EPSILON = 1e-3


@pytest.fixture(autouse=True, params=["compiled", "plain"])
def operations(request):
    """Runs each test with the compiled operations, and with TensorFlow's own."""
    with fused.plain() if request.param == "plain" else contextlib.nullcontext():
        assert (fused.operations() is None) == (request.param == "plain")
        yield request.param


@dataclass(frozen=True, kw_only=True)
class Result:
    """y and dx: (B, D, H, W, C); dgamma and dbeta: (C,)."""

    y: np.ndarray
    dx: np.ndarray
    dgamma: np.ndarray
    dbeta: np.ndarray


def volumes(*shape: int, mean: float = 0.0) -> np.ndarray:
    return np.random.default_rng(0).normal(mean, 1.0, shape).astype(np.float32)


def weights(channels: int) -> tuple[np.ndarray, np.ndarray]:
    return np.linspace(0.5, 2.0, channels), np.linspace(-1.0, 1.0, channels)


def downstream(x: np.ndarray) -> np.ndarray:
    """A gradient of y whose mean and whose product with x do not vanish."""
    noise = np.random.default_rng(1).normal(0.0, 1.0, x.shape)
    return (0.3 + noise + 0.4 * (x - x.mean())).astype(np.float32)


def reference(x: np.ndarray, dy: np.ndarray) -> Result:
    """The textbook's formula in float64."""
    x, dy = x.astype(np.float64), dy.astype(np.float64)
    (gamma, beta), axes = weights(x.shape[-1]), tuple(range(1, x.ndim - 1))
    rsigma = 1 / np.sqrt(x.var(axes, keepdims=True) + EPSILON)
    x_hat = (x - x.mean(axes, keepdims=True)) * rsigma
    dx = gamma * rsigma * (dy - dy.mean(axes, keepdims=True) - x_hat * (dy * x_hat).mean(axes, keepdims=True))
    return Result(y=gamma * x_hat + beta, dx=dx, dgamma=(dy * x_hat).sum((0, *axes)), dbeta=dy.sum((0, *axes)))


def ours(x: np.ndarray, dy: np.ndarray, *, batch: int | None = 1, dtype: str = "float32") -> Result:
    layer = InstanceNormalization(epsilon=EPSILON, dtype=dtype)
    layer.build((batch, *x.shape[1:]))
    for weight, value in zip((layer.gamma, layer.beta), weights(x.shape[-1]), strict=True):
        weight.assign(value.astype(weight.dtype))

    @tf.function(input_signature=[tf.TensorSpec((batch, *x.shape[1:]), layer.compute_dtype)] * 2)
    def run(x: tf.Tensor, dy: tf.Tensor) -> tuple[tf.Tensor, list[tf.Tensor]]:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = layer(x)
        return y, tape.gradient(y, [x, layer.gamma, layer.beta], dy)

    y, gradients = run(tf.cast(x, layer.compute_dtype), tf.cast(dy, layer.compute_dtype))
    assert y.dtype == gradients[0].dtype == layer.compute_dtype
    found = [tf.cast(values, tf.float64).numpy() for values in (y, *gradients)]
    return Result(y=found[0], dx=found[1], dgamma=found[2], dbeta=found[3])


def assert_near(found: Result, expected: Result, error: float) -> None:
    """Asserts equality within `error` of each scale: 1 for y and dx, and their own sizes for the sums."""
    np.testing.assert_allclose(found.y, expected.y, rtol=error, atol=error)
    np.testing.assert_allclose(found.dx, expected.dx, rtol=error, atol=error)
    np.testing.assert_allclose(found.dgamma, expected.dgamma, rtol=error)
    np.testing.assert_allclose(found.dbeta, expected.dbeta, rtol=error)


@pytest.mark.parametrize("side", [64, 128])
def test_variance_is_exact_at_any_size(side):
    x = volumes(1, side, side, side, 3)
    y = InstanceNormalization(epsilon=0.0)(x).numpy()
    flat_x, flat_y = (np.reshape(values, (-1, 3)).astype(np.float64) for values in (x, y))
    variance = (np.ptp(flat_x, axis=0) / np.ptp(flat_y, axis=0)) ** 2  # y is linear in x, with slope 1 / sigma
    np.testing.assert_allclose(variance, flat_x.var(axis=0), rtol=1e-6)


@pytest.mark.parametrize("side", [64, 128])
def test_output_and_gradients_are_those_of_float64(side):
    x = volumes(1, side, side, side, 3)
    dy = downstream(x)
    assert_near(ours(x, dy), reference(x, dy), 5e-6)


@pytest.mark.parametrize("shape", [(1, 64, 64, 64, 2), (2, 48, 48, 48, 2)])
def test_a_mean_of_a_hundred_sigma_costs_no_more_than_its_own_rounding(shape):
    x = volumes(*shape, mean=100.0)  # rounded to 4e-6 of sigma
    dy = downstream(x)
    assert_near(ours(x, dy, batch=shape[0]), reference(x, dy), 4e-5)


@pytest.mark.parametrize("shape", [(2, 64, 64, 64, 2), (3, 512, 512, 2)])
@pytest.mark.parametrize("batch_known", [True, False])
def test_each_sample_has_statistics_of_its_own(shape, batch_known):
    x = volumes(*shape) * np.arange(1, shape[0] + 1, dtype=np.float32).reshape(-1, *[1] * (len(shape) - 1))
    dy = downstream(x)
    assert_near(ours(x, dy, batch=shape[0] if batch_known else None), reference(x, dy), 1e-5)


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize(("dtype", "error"), [("bfloat16", 2.0**-6), ("float16", 2.0**-9)])
def test_half_precision_keeps_its_statistics_in_float32(dtype, error, batch):
    half = getattr(tf, dtype)
    x = tf.cast(tf.cast(volumes(batch, 48, 48, 48, 2, mean=1.0), half), tf.float32).numpy()
    dy = tf.cast(tf.cast(downstream(x), half), tf.float32).numpy()
    found, expected = ours(x, dy, batch=batch, dtype=f"mixed_{dtype}"), reference(x, dy)
    assert_near(found, expected, error)
    np.testing.assert_allclose(found.dgamma, expected.dgamma, rtol=1e-5)  # never rounded to half precision
    np.testing.assert_allclose(found.dbeta, expected.dbeta, rtol=1e-5)


@pytest.mark.parametrize("batch", [1, 2, None])
def test_float64_is_computed_in_float64(batch):
    x = volumes(batch or 2, 12, 9, 10, 3)
    dy = downstream(x)
    assert_near(ours(x, dy, batch=batch, dtype="float64"), reference(x, dy), 1e-12)


@pytest.mark.parametrize("dtype", [tf.float32, tf.bfloat16, tf.float64])
def test_a_slab_of_planes_has_the_partial_sums_of_the_whole(dtype):
    x = tf.cast(volumes(1, 24, 40, 48, 16), dtype)
    whole = instance_norm.plane_sums(x)
    for first, last in ((0, 1), (3, 5), (5, 8), (7, 24)):
        np.testing.assert_array_equal(instance_norm.plane_sums(x[:, first:last]), whole[:, first:last])


def test_peak_is_that_of_input_and_output(operations, commands):
    """In a process of its own: in a pool with holes the allocator hands out, and counts, pieces larger than asked for."""
    command = f"from tests.models.test_instance_norm import peaks_in_tensors; print(*peaks_in_tensors({operations!r}))"
    done = commands.run(["-c", command])
    assert done.returncode == 0, done.stderr
    forward, backward = map(float, done.stdout.split())
    assert forward < 1.2  # besides x: y
    assert backward < 3.2  # y, dy and dx


def peaks_in_tensors(operations: str) -> tuple[float, ...]:
    """The peak of the forward pass, and of both, as a multiple of the input's bytes."""
    with fused.plain() if operations == "plain" else contextlib.nullcontext():
        return _peaks_in_tensors()


def _peaks_in_tensors() -> tuple[float, ...]:
    x = tf.constant(volumes(1, 32, 32, 32, 16))  # powers of two: the allocator counts rounded sizes
    layer = InstanceNormalization()

    @tf.function
    def backward(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = layer(x)
        return tape.gradient(y, x, tf.sin(y))

    return tuple(peak_bytes(function, x) / (4 * x.shape.num_elements()) for function in (tf.function(layer), backward))


def peak_bytes(function, x: tf.Tensor) -> int:
    """The least of five measurements: on a busy machine, a late thread of the executor keeps its inputs for longer."""
    function(x)
    peaks = []
    for _ in range(5):
        before = tf.config.experimental.get_memory_info("CPU:0")["current"]
        tf.config.experimental.reset_memory_stats("CPU:0")
        result = function(x)
        peaks.append(tf.config.experimental.get_memory_info("CPU:0")["peak"] - before)
        del result
    return min(peaks)


def test_on_a_gpu_the_fused_kernel_does_all(monkeypatch):
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind=None: ["GPU:0"])
    layer = InstanceNormalization()
    with fused.plain():
        layer.build((1, 4, 4, 4, 2))
    graph = tf.function(layer.call).get_concrete_function(tf.TensorSpec((1, 4, 4, 4, 2))).graph
    large = [op.type for op in graph.get_operations() if op.outputs and op.outputs[0].shape.rank == 5]
    assert [kind for kind in large if kind not in ("Placeholder", "Identity")] == ["FusedBatchNormV3"]
    assert graph.outputs[0].shape == (1, 4, 4, 4, 2)


@pytest.mark.parametrize("batch", [2, None])
def test_on_a_gpu_several_samples_are_normalised_each(monkeypatch, batch):
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind=None: ["GPU:0"])
    x = volumes(2, 6, 5, 4, 3)
    dy = downstream(x)
    assert_near(ours(x, dy, batch=batch), reference(x, dy), 1e-5)
