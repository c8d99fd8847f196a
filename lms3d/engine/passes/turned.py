"""On a GPU the gradient of a convolution's input is computed as a convolution with the turned kernel, if it has few channels.

cuDNN's kernel for the gradient computes 64 channels at a time; that for convolutions 16, if there are no more. On an H200 the
gradient of a convolution of 16 channels at 192^3 takes 3.9 ms, and the convolution 1.4 ms. TensorFlow also takes a piece of the
gradient's size for the former while it runs.

TURN-1  Strides and dilations are 1, the padding is SAME and symmetric (kernels of odd sizes): then the gradient is a convolution
        with the same padding, of the output's gradient with the kernel reversed along its spatial axes, (.., I, O) -> (.., O, I).
TURN-2  At most `tuning.TURNED_CHANNELS` channels.
TURN-3  Results are equal to rounding. The steps without LMS are normalised, too, so that both have the same bits.
"""

from __future__ import annotations

from collections.abc import Iterator

import tensorflow as tf

from lms3d.engine import tuning
from lms3d.engine.passes.base import Function, Normalising
from lms3d.engine.tensorflow import reading, surgery

_TYPE = "Conv3DBackpropInputV2"


class TurnKernels(Normalising):
    """Requires a step without a plan. Ensures that nobody reads a gradient for which TURN-1 and TURN-2 hold."""

    name = "turned"

    @property
    def applies(self) -> bool:
        return self.target.compute_device.startswith("GPU")

    def edit(self, graph: tf.Graph) -> int:
        return sum(_turn(op) for op in list(_found(graph)))

    def ensures(self, function: Function) -> None:
        for op in _found(function.graph):
            raise RuntimeError(
                f"pass {self.name}: {op.name!r} is still read, which a convolution could compute; please report this graph"
            )


def _found(graph: tf.Graph) -> Iterator[tf.Operation]:
    returned = {t.name for t in graph.outputs}
    for op in graph.get_operations():
        read = op.type == _TYPE and (op.outputs[0].consumers() or op.outputs[0].name in returned)
        if read and not reading.in_loop(op) and _can_be_turned(op):
            yield op


def _can_be_turned(op: tf.Operation) -> bool:
    """TURN-1, TURN-2."""
    _, kernel, gradient = (t.shape for t in op.inputs)
    made = op.outputs[0].shape
    if (
        not all(shape.is_fully_defined() for shape in (kernel, gradient, made))
        or op.get_attr("data_format") != b"NDHWC"
    ):
        return False
    plain = {*op.get_attr("strides"), *op.get_attr("dilations")} == {1} and op.get_attr("padding") == b"SAME"
    odd = all(size % 2 for size in kernel[:3])
    grouped = kernel[-2] != made[-1]
    return plain and odd and not grouped and made[-1] <= tuning.TURNED_CHANNELS


def _turn(op: tf.Operation) -> int:
    """Makes the convolution and lets all readers read it; returns how many inputs changed."""
    kernel, gradient = op.inputs[1:]
    name = f"{op.name}/turned"
    with surgery.insertion(op.graph, op.device or None, op.control_inputs):
        turned = tf.transpose(tf.reverse(kernel, [0, 1, 2]), [0, 1, 2, 4, 3], name=f"{name}/kernel")
        made = tf.raw_ops.Conv3D(input=gradient, filter=turned, strides=[1] * 5, padding="SAME", name=name)
    made.set_shape(op.outputs[0].shape)
    if op.outputs[0].name in {t.name for t in op.graph.outputs}:
        surgery.replace_outputs(op.graph, {op.outputs[0].name: made})
    surgery.wait_instead(op, made.op)
    return max(1, surgery.redirect(op.outputs[0], made))
