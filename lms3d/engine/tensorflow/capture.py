"""A traced function -> `StepGraph`. Reads only."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
import tensorflow as tf

from lms3d.device import workspace
from lms3d.engine.ir import (
    ALIAS_TYPES,
    METADATA_TYPES,
    PAIRED_TYPES,
    PROGRAM_TYPE,
    RESIDENT_TYPES,
    Op,
    StepGraph,
    Tensor,
    producer_name,
    topological,
    without_dead,
)
from lms3d.engine.liveness import peak_bytes
from lms3d.engine.plan import SCOPE
from lms3d.engine.tensorflow import bodies, constants, reading
from lms3d.engine.tensorflow.bodies import size
from lms3d.engine.tuning import ARGUMENT_ELEMENTS

_OPAQUE = frozenset({tf.resource, tf.variant, tf.string})


def capture(
    function: tf.types.experimental.ConcreteFunction,
    *,
    compute_device: str = "CPU:0",
    extra_bytes: int = 0,
    batches: Sequence[int] | None = None,
) -> StepGraph:
    """The step behind a concrete function, without ops that never run, close to the traced order.

    compute_device: "CPU:0", "CPU:1", "GPU:0"; ops pinned to another device are not `on_device`.
    extra_bytes: other bytes that stay on the device. batches: bytes of each tensor of this batch, and of later batches on the
    device; by default the arguments of `function`.
    """
    graph = function.graph
    ops = _ops(graph, compute_device)
    returned = frozenset(t.name for t in graph.outputs)
    if batches is None:
        batches = [size(t) or 0 for t in graph.inputs[: len(graph.inputs) - len(function.captured_inputs)]]
    here = [graph.get_operation_by_name(op.name) for op in ops if op.on_device]
    folded = constants.Folded(here)
    resident = reading.captured_bytes(function) + folded.bytes + constants.bytes_within(here)
    resident += extra_bytes + sum(batches)
    return StepGraph(_with_constants(ops, folded), returned, resident, tuple(batches))


def _with_constants(ops: Iterable[Op], folded: constants.Folded) -> tuple[Op, ...]:
    """The ops as they run, with constants in place of ops that TensorFlow folds (CONST-1)."""
    return tuple(_constant(op) if op.name in folded.names else op for op in ops)


def _constant(op: Op) -> Op:
    return replace(op, type="Const", view=False, workspace_bytes=0, hidden_bytes=0, flops=0, signature="")


def _ops(graph: tf.Graph, compute_device: str) -> tuple[Op, ...]:
    # Tracing adds control inputs to earlier ops, so the traced order is not always topological.
    order, (_, group) = reading.order_of(graph), reading.slices_of(graph)
    found = [_op(op, compute_device, group.get(op.name, "")) for op in graph.get_operations()]
    if order:
        found.sort(key=lambda op: order.get(op.name, ((0, 0.0, 0), False)))
    else:
        found = _in_place(found)
    return topological(without_dead(found, wanted(graph)))


def _in_place(ops: list[Op]) -> list[Op]:
    """The ops as they were traced; an op that a pass made later stands just before the first op that reads it."""
    by_name = {op.name: op for op in ops}
    index = {name: i for i, name in enumerate(by_name)}
    place = dict(index)
    waiting = [op for op in ops if not op.in_loop]
    while waiting:
        op = waiting.pop()
        for source in map(producer_name, op.inputs):
            if place[op.name] < place[source]:
                place[source] = place[op.name]
                waiting.append(by_name[source])
    return sorted(ops, key=lambda op: (place[op.name], place[op.name] == index[op.name], index[op.name]))


def wanted(graph: tf.Graph) -> list[str]:
    """The ops that a function runs for: arguments, results, and ops with effects."""
    return [t.op.name for t in (*graph.inputs, *graph.outputs)] + [op.name for op in graph.control_outputs]


def on_device(op: tf.Operation, compute_device: str) -> bool:
    """False only for an op that is pinned to a device other than the compute device."""
    if not op.device:
        return True
    spec = tf.DeviceSpec.from_string(op.device)
    wanted_type, _, wanted_index = compute_device.partition(":")
    if spec.device_type is None:
        return True
    return spec.device_type.upper() == wanted_type.upper() and (spec.device_index or 0) == int(wanted_index or 0)


def flops(op: tf.Operation) -> int:
    """Floating-point operations of a convolution (forward or either gradient) or a matrix product; 0 for other ops."""
    shapes = [t.shape for t in (*op.inputs, *op.outputs)]
    if op.type not in _FLOPS or not all(s.is_fully_defined() for s in shapes):
        return 0
    gradient, kernel = _FLOPS[op.type]  # indices into inputs and outputs
    size = shapes[gradient].num_elements()
    if kernel is None:  # matrix product: every output element sums over the shared axis
        return 2 * size * shapes[0][-2 if op.get_attr(_transposed(op.type)) else -1]
    weights = shapes[kernel]
    return 2 * size * weights.num_elements() // (1 if op.type.startswith("Depthwise") else weights[-1])


def _transposed(op_type: str) -> str:
    return "transpose_a" if op_type == "MatMul" else "adj_x"


# op type -> (index of the tensor on the output side, index of the kernel) among inputs + outputs
_FLOPS: dict[str, tuple[int, int | None]] = {
    **dict.fromkeys(("Conv2D", "Conv3D", "DepthwiseConv2dNative"), (2, 1)),
    **{
        f"{name}Backprop{of}{version}": (2, kernel)
        for name, version in (("Conv2D", ""), ("Conv3D", "V2"), ("DepthwiseConv2dNative", ""))
        for of, kernel in (("Input", 1), ("Filter", 3))
    },
    **dict.fromkeys(("MatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3"), (2, None)),
}


_NO_WORK = ALIAS_TYPES | METADATA_TYPES | RESIDENT_TYPES
SLICE_ALIGNMENT = 64  # bytes: the largest that TensorFlow is built with


def signature(op: tf.Operation, compute_device: str = "CPU:0") -> str:
    """A hash of type, attributes, shapes and integer arguments: equal, in every process, for ops that do the same work.

    On a GPU a convolution chooses its algorithm within the limit of cuDNN's workspace, which is a part of it.

    "" for ops that do no work or cannot run alone: stateful, random, in a loop, or of an unknown shape or argument. On a processor
    the gradient of a pooling runs another, slower kernel without its forward op. On a GPU it runs the same one, and takes twice its
    inputs for the time being (`cudnn_pooling_gpu.cc`).
    """
    tensors = [*op.inputs, *op.outputs]
    if (
        op.type in _NO_WORK
        or (op.type in PAIRED_TYPES.values() and compute_device.startswith("CPU"))
        or "Random" in op.type
        or "Multinomial" in op.type
        or op.type.startswith(("PyFunc", "EagerPyFunc"))
        or reading.in_loop(op)
        or runs_once(op)
        or not op.outputs
        or any(t.dtype in _OPAQUE for t in tensors)
        or not all(t.shape.is_fully_defined() or is_reserve(t) for t in tensors)
    ):
        return ""
    parts: list[object] = [op.type]
    if "Conv" in op.type and compute_device.startswith("GPU"):
        parts.append(workspace.in_force())
    for key, value in sorted(op.node_def.attr.items()):
        if value.HasField("func"):
            if not reading.is_program(op):
                return ""
            parts.append(reading.program_digest(op))
            continue
        if not key.startswith("_"):
            parts.append((key, value.SerializeToString(deterministic=True)))
    parts += [(t.dtype.name, str(t.shape)) for t in tensors]
    for tensor in filter(is_argument, op.inputs):
        value = argument(tensor)
        if value is None:
            return ""
        parts.append(value.tolist())
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


def runs_once(op: tf.Operation) -> bool:
    """True for an op that must run exactly once.

    Horovod's ops are not marked as stateful, but each waits for the same op of all ranks: one that ran twice, or alone, would wait
    for ever.
    """
    return reading.is_stateful(op) or reading.waits_for_ranks(op)


def is_argument(tensor: tf.Tensor) -> bool:
    """True for an argument of an op (axes, sizes, paddings), as opposed to data."""
    elements = tensor.shape.num_elements()
    few = elements <= ARGUMENT_ELEMENTS if elements is not None else tensor.op.type == "BroadcastGradientArgs"
    return tensor.dtype in (tf.int32, tf.int64) and few


def argument(tensor: tf.Tensor) -> np.ndarray | None:
    """The values of an argument; None if they are not known."""
    if tensor.op.type == "ShapeN":  # `get_static_value` does not know it
        shape = tensor.op.inputs[tensor.value_index].shape
        return np.array(shape.as_list(), tensor.dtype.as_numpy_dtype) if shape.is_fully_defined() else None
    value = tf.get_static_value(tensor)
    if value is not None:
        return np.asarray(value)
    if tensor.op.type not in (
        "Reshape",
        "Slice",
        "ConcatOffset",
        "FloorMod",
        "BroadcastGradientArgs",
        "InvertPermutation",
    ):  # nor these, which gradients of Pad, Concat, Transpose and broadcasts use
        return None
    known = [k for k in map(argument, tensor.op.inputs) if k is not None]
    if len(known) < len(tensor.op.inputs):
        return None
    if tensor.op.type == "FloorMod":
        return np.mod(*known)
    if (
        tensor.op.type == "BroadcastGradientArgs"
    ):  # axes along which one shape was broadcast, or that have length 1 in both
        rank = max(map(len, known))
        wide = [np.concatenate([np.ones(rank - len(k), k.dtype), k]) for k in known]
        found = np.flatnonzero(wide[tensor.value_index] == 1)
        return found.astype(tensor.dtype.as_numpy_dtype)[: 0 if np.array_equal(known[0], known[1]) else None]
    if tensor.op.type == "ConcatOffset":
        axis, *shapes = known
        begin = np.zeros_like(shapes[0])
        begin[int(axis)] = sum(int(s[int(axis)]) for s in shapes[: tensor.value_index])
        return begin
    if tensor.op.type == "InvertPermutation":
        return np.argsort(known[0]).astype(known[0].dtype)
    if tensor.op.type == "Reshape":
        return known[0].reshape(known[1])
    values, begin, extent = known
    return values[tuple(slice(b, None if n < 0 else b + n) for b, n in zip(begin, extent, strict=True))]


def _is_view(op: tf.Operation) -> bool:
    """Whether the output lies in the memory of the first input.

    This holds for a slice that is contiguous there, which TensorFlow does not copy (`slice_op.cc`, `ops_util.h`), for
    InplaceUpdate, which writes into its input, and for what is read from a list.
    """
    if op.type == "InplaceUpdate" or op.type in bodies.GETS or bodies.is_whole(op):
        return True
    if op.type != "Slice" or not op.inputs[0].shape.is_fully_defined() or op.inputs[0].dtype in _OPAQUE:
        return False
    shape, begin, extent = np.array(op.inputs[0].shape), argument(op.inputs[1]), argument(op.inputs[2])
    if begin is None or extent is None or not len(shape):
        return False
    extent = np.where(extent < 0, shape - begin, extent)
    whole = (begin == 0) & (extent == shape)
    row = int(np.prod(shape[1:])) * op.inputs[0].dtype.size
    steps = (begin[0] * row, extent[0] * row) if len(shape) == 1 else (row,)
    aligned = row > 0 and all(step % SLICE_ALIGNMENT == 0 for step in steps)
    return bool(whole[1:].all() and (whole[0] or aligned))


def is_reserve(tensor: tf.Tensor) -> bool:
    """True for the output that a fused normalisation keeps for its gradient. Its shape is unknown, and it is empty on a CPU."""
    return tensor.op.type.startswith("FusedBatchNormV") and tensor.value_index == 5


def _hidden_bytes(op: tf.Operation, compute_device: str) -> int:
    """The bytes that oneDNN keeps of a pooling for its gradient: the index of each maximum in its window, in one byte if it
    fits."""
    gradient = PAIRED_TYPES.get(op.type)
    if (
        not compute_device.startswith("CPU")
        or "ksize" not in op.node_def.attr
        or not op.outputs[0].shape.is_fully_defined()
    ):
        return 0
    if all(reader.type != gradient for reader in op.outputs[0].consumers()):
        return 0
    window = int(np.prod(op.get_attr("ksize")))
    return int(op.outputs[0].shape.num_elements() * (1 if window <= np.iinfo(np.uint8).max else 4))


def _tensor(tensor: tf.Tensor, size_bytes: int | None) -> Tensor:
    known = tensor.dtype not in _OPAQUE
    return Tensor(
        name=tensor.name,
        bytes=size_bytes,
        rank=tensor.shape.rank if known else None,
        shape=tuple(tensor.shape) if known and tensor.shape.is_fully_defined() else None,
        dtype=tensor.dtype.name,
    )


def traced_order(graph: tf.Graph, *, last: Sequence[str] = ()) -> list[tf.Operation]:
    """The ops that run, each after the ops that it waits for, as close to the traced order as possible.

    last: names of the ops that come as late as they can.
    """
    late = frozenset(last)
    bare = [
        Op(
            name=op.name,
            type=op.type,
            inputs=tuple(t.name for t in op.inputs),
            control_inputs=tuple(c.name for c in op.control_inputs),
            outputs=tuple(Tensor(t.name) for t in op.outputs),
            stateful=runs_once(op),
            in_loop=reading.in_loop(op),
        )
        for op in graph.get_operations()
    ]
    ops = topological(without_dead(_in_place(bare), wanted(graph)), urgent=lambda op: op.name not in late)
    return [graph.get_operation_by_name(op.name) for op in ops]


def held_bytes(graph: tf.Graph, compute_device: str = "CPU:0", lasting: Sequence[tf.Tensor] | None = None) -> int:
    """The most bytes that a function holds at a time besides its arguments and constants, if its ops run one by one.

    lasting: tensors that it keeps to its end; by default its results.
    """
    kept = graph.outputs if lasting is None else lasting
    ops = _ops(graph, compute_device)
    folded = constants.Folded([graph.get_operation_by_name(op.name) for op in ops])
    return peak_bytes(StepGraph(_with_constants(ops, folded), frozenset(t.name for t in kept)))


def _op(op: tf.Operation, compute_device: str, group: str = "") -> Op:
    here = on_device(op, compute_device)
    inside = bodies.kept(op, lambda graph, lasting: held_bytes(graph, compute_device, lasting)) if here else None
    sizes = inside.results if inside else [size(t) for t in op.outputs]
    return Op(
        name=op.name,
        type=PROGRAM_TYPE if reading.is_program(op) else op.type,
        inputs=tuple(t.name for t in op.inputs),
        control_inputs=tuple(sorted(c.name for c in op.control_inputs)),  # a set, in another order in each process
        outputs=tuple(_tensor(t, n) for t, n in zip(op.outputs, sizes, strict=True)),
        stateful=runs_once(op),
        workspace_bytes=inside.workspace if inside else 0,
        view=_is_view(op),
        hidden_bytes=_hidden_bytes(op, compute_device) if here else 0,
        in_loop=reading.in_loop(op),
        flops=flops(op),
        on_device=here,
        inserted=op.name.startswith(SCOPE),
        signature=signature(op, compute_device) if here else "",
        group=group,
    )
