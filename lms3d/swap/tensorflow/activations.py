"""Activations of `models.fused` are computed again for the gradients of kernels, from the convolution's result.

A convolution's filter gradient reads what the convolution read. That is the activation of the block before, which one read and
one write make again from the result of the convolution before it; its own gradient keeps that result anyway. So a step holds half
of the full-size tensors, with LMS and without, and LMS has half of them to move.

    x -> LmsActivate -> y -> convolution ..... filter gradient(y', dy)
    x -> LmsActivate again, after dy ............... -> y'

AGAIN-A  Only where nothing else reads the activation in the backward pass, as the gradient of max pooling does.
AGAIN-B  An addend that is an activation, too, is computed again with it.
"""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from lms3d.swap.tensorflow import surgery

ACTIVATION = "LmsActivate"
_OF_KERNELS = frozenset({"Conv2DBackpropFilter", "Conv3DBackpropFilterV2", "DepthwiseConv2dNativeBackpropFilter"})


def compute_again(graph: tf.Graph) -> int:
    """Adds the ops to a traced step; returns how many gradients read them. Results are unchanged."""
    count = 0
    for op in graph.get_operations():
        if op.type != ACTIVATION:
            continue
        readers = op.outputs[0].consumers()
        if any(_is_gradient(r) and r.type not in _OF_KERNELS for r in readers):  # AGAIN-A
            continue
        for reader in (r for r in readers if r.type in _OF_KERNELS):
            others = [t.op for t in reader.inputs if t is not op.outputs[0] and t.op.type != "Const"]
            again = _copied(op, others, reader)
            for i, read in enumerate(reader.inputs):
                if read is op.outputs[0]:
                    surgery.set_input(reader, i, again)
            count += 1
    return count


def _is_gradient(op: tf.Operation) -> bool:
    return op.type in _OF_KERNELS or op.type.endswith(("Grad", "GradV2", "GradV3", "GradGrad"))


def _copied(op: tf.Operation, before: Sequence[tf.Operation], reader: tf.Operation) -> tf.Tensor:
    """The activation once more for `reader`, made after the ops of `before`, and its addend if need be (AGAIN-B)."""
    addends = {i: _copied(t.op, before, reader) for i, t in enumerate(op.inputs) if t.op.type == ACTIVATION}
    copy = surgery.copy_op(op, f"{op.name}/again", before)
    for i, addend in addends.items():
        surgery.set_input(copy, i, addend)
    surgery.place_before(op.graph, copy, reader)
    return copy.outputs[0]
