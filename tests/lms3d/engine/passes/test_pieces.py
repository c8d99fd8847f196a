"""Filter gradients in pieces, within a limit of cuDNN's workspace: the same numbers, to rounding, from memory that is there."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import tensorflow as tf

from lms3d.engine import tuning
from lms3d.engine.cost import Machine, read_bytes, with_workspaces
from lms3d.engine.engine import Engine
from lms3d.engine.liveness import peak_bytes
from lms3d.engine.passes import manager
from lms3d.engine.passes.forms import Forms
from lms3d.engine.passes.pieces import TYPES, CutFilterGradients
from lms3d.engine.request import Settings
from lms3d.engine.tensorflow import functions
from lms3d.engine.tensorflow.capture import capture
from lms3d.keras_step.callback import LMS
from tests.lms3d.keras_step.test_slabs import Fitted, same

CONVOLUTIONS = {3: tf.nn.conv2d, 4: tf.nn.conv3d}


def gradients(kernel: tuple[int, ...], shape: tuple[int, ...], dtype: tf.DType = tf.float64, **convolution):
    """The traced gradient of a convolution's kernel, and an input."""
    weights = tf.cast(tf.random.stateless_normal(kernel, (1, 2)), dtype)
    options = {"strides": [1] * len(shape), "padding": "SAME", **convolution}

    def step(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            tape.watch(weights)
            y = CONVOLUTIONS[len(shape) - 1](tf.sin(x), weights, **options)
            loss = tf.reduce_sum(tf.cos(y) * y)
        return tape.gradient(loss, weights)

    x = tf.cast(tf.random.stateless_normal(shape, (3, 4)), dtype)
    return functions.trace(step, tf.TensorSpec(shape, dtype)), x


def filter_gradients(function) -> list:
    return [op for op in capture(function).ops if op.type in TYPES]


def input_bytes(function) -> int:
    """What the hungriest gradient of a kernel reads."""
    graph = capture(function)
    return max(read_bytes(graph, op) for op in filter_gradients(function))


@pytest.mark.parametrize(
    ("kernel", "shape", "convolution", "number", "pieces"),
    [
        pytest.param((3, 3, 3, 4, 5), (1, 24, 6, 7, 4), {}, 4, 6, id="four and the planes beside the cuts"),
        pytest.param((3, 3, 3, 4, 5), (1, 8, 6, 7, 4), {}, 4, 8, id="two planes each"),
        pytest.param((3, 3, 3, 4, 5), (1, 7, 6, 7, 4), {}, 2, 10, id="of unequal size"),
        pytest.param((3, 3, 3, 4, 5), (1, 9, 6, 7, 4), {}, 32, 25, id="of a plane each"),
        pytest.param((3, 3, 3, 4, 5), (2, 8, 6, 7, 4), {}, 2, 2, id="sample by sample"),
        pytest.param((3, 3, 3, 4, 5), (5, 8, 6, 7, 4), {}, 2, 4, id="some samples at a time"),
        pytest.param((3, 3, 3, 4, 5), (2, 8, 6, 7, 4), {}, 8, 14, id="within samples"),
        pytest.param((3, 3, 3, 4, 5), (3, 8, 6, 7, 4), {}, 4, 8, id="within three samples"),
        pytest.param((3, 3, 3, 4, 5), (1, 8, 6, 8, 4), {"strides": [1, 2, 2, 2, 1]}, 2, 3, id="stride 2"),
        pytest.param((4, 4, 4, 4, 5), (1, 8, 6, 8, 4), {"strides": [1, 2, 2, 2, 1]}, 2, 4, id="4 at stride 2"),
        pytest.param((2, 2, 2, 4, 5), (1, 8, 6, 8, 4), {"strides": [1, 2, 2, 2, 1]}, 4, 4, id="windows that touch"),
        pytest.param((1, 3, 3, 4, 5), (1, 8, 6, 7, 4), {}, 4, 4, id="a kernel of one plane"),
        pytest.param((1, 1, 1, 4, 5), (1, 9, 6, 7, 4), {"strides": [1, 2, 2, 2, 1]}, 2, 4, id="planes left out"),
        pytest.param((3, 3, 3, 4, 5), (1, 8, 6, 7, 4), {"padding": "VALID"}, 2, 4, id="without padding"),
        pytest.param(
            (5, 3, 3, 4, 5), (1, 9, 6, 7, 4), {"padding": "VALID", "strides": [1, 2, 1, 1, 1]}, 2, 3, id="far"
        ),
        pytest.param((2, 3, 3, 4, 5), (1, 8, 6, 7, 4), {}, 4, 6, id="one side padded"),
        pytest.param((3, 3, 4, 5), (1, 8, 6, 4), {}, 4, 8, id="an image"),
        pytest.param((3, 3, 4, 5), (4, 8, 6, 4), {"padding": [[0, 0], [1, 2], [2, 0], [0, 0]]}, 2, 2, id="explicit"),
    ],
)
def test_the_sum_is_the_gradient(kernel, shape, convolution, number, pieces):
    function, x = gradients(kernel, shape, **convolution)
    before, whole = functions.make_function(function)(x).numpy(), input_bytes(function)
    most = int(whole * tuning.WORKSPACE_MARGIN / number) + 20  # besides the sizes of the filter
    assert manager.run(function, [CutFilterGradients(most)]) == ("pieces",)
    found = filter_gradients(function)
    assert len(found) == pieces
    after = functions.make_function(function)(x).numpy()
    np.testing.assert_allclose(after, before, rtol=1e-12, atol=1e-12 * abs(before).max())


@pytest.mark.parametrize(
    ("kernel", "shape", "convolution"),
    [
        pytest.param((5, 3, 3, 4, 5), (1, 8, 6, 7, 4), {}, id="a window that reaches two pieces on"),
        pytest.param((3, 3, 3, 4, 5), (1, 8, 6, 7, 4), {"dilations": [1, 2, 1, 1, 1]}, id="so does a dilated one"),
        pytest.param((3, 3, 3, 4, 5), (1, 9, 7, 7, 4), {"strides": [1, 2, 2, 2, 1]}, id="padded on both sides"),
        pytest.param((3, 3, 4, 5), (1, 8, 6, 4), {"padding": [[0, 0], [1, 2], [2, 0], [0, 0]]}, id="explicit"),
    ],
)
def test_what_cannot_be_cut_stays_whole(kernel, shape, convolution):
    function, _ = gradients(kernel, shape, **convolution)
    before = capture(function)
    assert manager.run(function, [CutFilterGradients(1)]) == ()
    assert capture(function) == before


def test_within_the_limit_nothing_is_cut():
    """cuDNN takes a little more than the inputs."""
    function, _ = gradients((3, 3, 3, 4, 5), (1, 8, 6, 7, 4))
    whole = input_bytes(function)
    assert manager.run(function, [CutFilterGradients(int(whole * tuning.WORKSPACE_MARGIN))]) == ()
    assert manager.run(function, [CutFilterGradients(whole)]) == ("pieces",)


@pytest.mark.parametrize("shape", [(3, 8, 6, 7, 4), (5, 8, 6, 7, 4), (1, 9, 6, 7, 4), (2, 7, 6, 7, 4)])
@pytest.mark.parametrize("padding", ["SAME", "VALID"])
def test_the_largest_piece_fits(shape, padding):
    """Samples and planes do not always divide evenly, and windows without padding overlap."""
    for share in (0.9, 0.52, 0.45):
        function, _ = gradients((3, 3, 3, 4, 5), shape, padding=padding)
        most = int(input_bytes(function) * share)
        manager.run(function, [CutFilterGradients(most)])
        assert (input_bytes(function) - 40) * tuning.WORKSPACE_MARGIN <= most


def test_a_limit_of_nothing_ends():
    function, _ = gradients((3, 3, 3, 4, 5), (1, 8, 6, 7, 4))
    assert manager.run(function, [CutFilterGradients(0)]) == ("pieces",)
    assert len(filter_gradients(function)) == 8 + 2 * 7


def test_half_precision_is_summed_in_single():
    """The gradient of 16 pieces is as near to the true one as that in one piece."""
    kernel, shape = (3, 3, 3, 4, 4), (1, 16, 8, 8, 4)
    function, x = gradients(kernel, shape)
    true = functions.make_function(function)(x).numpy()
    function, x = gradients(kernel, shape, tf.bfloat16)
    whole = tf.cast(functions.make_function(function)(x), tf.float64).numpy()
    manager.run(function, [CutFilterGradients(input_bytes(function) // 16)])
    cut = tf.cast(functions.make_function(function)(x), tf.float64).numpy()
    assert abs(cut - true).max() <= 1.1 * abs(whole - true).max()
    sums = [op for op in function.graph.get_operations() if op.type == "AddV2" and "/pieces" in op.name]
    assert {t.dtype for op in sums for t in op.inputs} == {tf.float32}


def test_pieces_lie_in_the_memory_of_their_tensors():
    """The step holds no more than before: views of some planes take no memory. Its workspace is a quarter."""
    function, _ = gradients((3, 3, 3, 16, 16), (1, 16, 16, 16, 16), tf.float32)
    machine = Machine(workspaces=tuple((name, 1.0) for name in TYPES))
    before = capture(function)
    alone, with_one = peak_bytes(before), peak_bytes(with_workspaces(before, machine))
    manager.run(function, [CutFilterGradients(int(input_bytes(function) * tuning.WORKSPACE_MARGIN / 4) + 20)])
    after = capture(function)
    planes = 2 * 3 * 2 * 16**3 * 4  # beside three cuts, of both inputs, for two taps
    assert peak_bytes(after) <= alone + planes
    assert peak_bytes(with_workspaces(after, machine)) <= alone + (with_one - alone) // 4 + 2 * planes
    assert [op.view for op in after.ops if op.type == "Slice"] == [True] * 20


def test_pieces_stand_in_the_place_of_the_gradient():
    """Behind the loss and before the gradients of layers below: else what they read would live to the end of the step."""
    weights = [tf.Variable(tf.random.stateless_normal((3, 3, 3, 4, 4), (1, i))) for i in range(3)]

    def step(x: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            y = x
            for one in weights:
                y = tf.tanh(tf.nn.conv3d(y, one, [1] * 5, "SAME"))
            loss = tf.reduce_sum(y)
        for one, gradient in zip(weights, tape.gradient(loss, weights), strict=True):
            one.assign_sub(gradient)

    function = functions.trace(step, tf.TensorSpec((1, 8, 8, 8, 4)))

    def order() -> list[str]:
        kinds = [op.type for op in capture(function).ops if "Backprop" in op.type]
        return [kind for kind, _ in itertools.groupby(kinds)]

    before = order()
    manager.run(function, [CutFilterGradients(input_bytes(function) // 2)])
    assert order() == before


def test_forms_come_back_with_their_pieces():
    def step(x: tf.Tensor, kernel: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            tape.watch(kernel)
            loss = tf.reduce_sum(tf.tanh(tf.nn.conv3d(x, kernel, [1] * 5, "SAME")))
        return tape.gradient(loss, kernel)

    function = functions.trace(step, tf.TensorSpec((1, 16, 16, 16, 4)), tf.TensorSpec((3, 3, 3, 4, 4)))
    before = capture(function)
    forms = Forms(
        function, lambda: Settings(limit_bytes=1 << 40).request(capture(function), Machine()), workspace_bytes=1 << 14
    )
    traced = forms.as_traced()
    nodes = {node.name for node in forms.nodes(traced)}
    assert not any("/pieces" in name for name in nodes)
    sliced = forms.in_slabs(((0, 2),), traced)
    for form in (traced, sliced, traced):
        forms.take(form)
        assert capture(function) == form.request.graph
        assert input_bytes(function) <= (1 << 14) + 20  # the sizes of the filter
        assert any("/pieces" in op.name for op in form.request.graph.ops)
    assert forms.as_traced().request.graph == traced.request.graph
    forms.take(None)
    assert capture(function) == before


@pytest.mark.parametrize("slabs", ["off", {0: 4}])
def test_swapping_changes_no_bit_of_a_step_in_pieces(slabs, monkeypatch):
    """Trained on the processor as a GPU's steps are, within a small workspace: with LMS and without, whole and in slabs."""
    plain = Fitted(LMS(enabled=False, slabs=slabs))
    monkeypatch.setattr(Engine, "_workspace_bytes", lambda *_: 100 << 10)
    alone = Fitted(LMS(enabled=False, slabs=slabs))
    swapped = Fitted(LMS(tier="host", swapout_threshold=1, swapin_ahead=1, swapin_groupby=0, sync_mode=0, slabs=slabs))
    recomputed = Fitted(LMS(memory_limit=alone.lms.report.unedited_peak_bytes * 3 // 4, tier="host", slabs=slabs))
    assert swapped.lms.plan.swap_outs
    same(swapped, alone)
    same(recomputed, alone)
    np.testing.assert_allclose(alone.losses, plain.losses, rtol=1e-5)
    (step,) = swapped.lms._runner.steps.values()
    assert any("/pieces" in op.name for op in step.prepared.function.graph.get_operations())
