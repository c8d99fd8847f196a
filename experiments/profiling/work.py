"""What each op of a traced step computes and moves, by the name that a profile gives to its kernels."""

from __future__ import annotations

import tensorflow as tf

from lms3d.engine.tensorflow import capture
from lms3d.experiments.profiling.measure import OpWork


def of(graph: tf.Graph) -> dict[str, OpWork]:
    """The work of each op, by its name."""
    return {
        op.name: OpWork(flops=capture.flops(op), size_bytes=sum(map(_bytes, (*op.inputs, *op.outputs))))
        for op in graph.get_operations()
    }


def _bytes(tensor: tf.Tensor) -> int:
    """The bytes of a tensor; 0 if its shape is open, and for handles."""
    known = tensor.shape.is_fully_defined() and tensor.dtype not in (tf.resource, tf.variant, tf.string)
    return tensor.shape.num_elements() * tensor.dtype.size if known else 0
