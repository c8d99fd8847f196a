"""Tensors of more elements than a kernel can index. No TensorFlow here.

cuDNN and most of TensorFlow's GPU kernels count elements in 32 bits: a tensor of 2^31 elements, 512^3 voxels with 16 channels, is
refused (`BiasAddGrad`), or read at the wrong addresses (CUDA_ERROR_ILLEGAL_ADDRESS; TensorFlow's issue 124949 for broadcasts in
2.20). oneDNN's kernels count in 64 bits.
"""

from __future__ import annotations

from collections.abc import Iterable

from lms3d.engine.ir import ALIAS_TYPES, METADATA_TYPES, RESIDENT_TYPES
from lms3d.engine.slabs.values import Node, Spec

_WIDE = frozenset({"ConcatV2", "Slice"})
"""Kernels that change to 64 bits for large tensors (TensorFlow's concat_lib_gpu.cc and slice_op.h): they join and cut slabs."""

_ANY_SIZE = _WIDE | ALIAS_TYPES | METADATA_TYPES | RESIDENT_TYPES


def indexed(node: Node) -> tuple[Spec, ...]:
    """The tensors whose elements the kernel of `node` counts in 32 bits: inputs, then outputs."""
    return () if node.type in _ANY_SIZE else (*node.inputs, *node.outputs)


def largest(nodes: Iterable[Node]) -> Spec | None:
    """The tensor with the most elements that some kernel counts in 32 bits; None if there is none."""
    return max((spec for node in nodes for spec in indexed(node)), key=lambda spec: spec.elements, default=None)
