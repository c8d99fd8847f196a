"""Turn a crash into an out-of-memory error, on a CPU with a hard limit.

TensorFlow's oneDNN kernels do not check whether their output could be allocated: where a pool with a limit is full,
they end the process with a segmentation fault (TensorFlow 2.21: `MklConvOp::Compute`). So before each large one an op
asks for the same number of bytes, and gives them back at once. It fails cleanly, with `ResourceExhaustedError`. (Another
thread may take the memory in between: the crash becomes rare, not impossible.) In a step with a plan not a byte more than the
op itself: in a nearly full pool the only piece that fits is often the one that a tensor of the same size has just left. In
a step without one, which is not meant to fit, an eighth more, for what kernels take besides.

    x --> lms/guard/conv (Empty, control input: the op behind x)  ..control..>  conv
"""

from __future__ import annotations

import tensorflow as tf

from lms3d.swap.plan import SCOPE
from lms3d.swap.planners.hybrid.allocator import ALIGNMENT
from lms3d.swap.tensorflow import surgery
from lms3d.swap.tensorflow.capture import capture, size

GUARD_SCOPE = f"{SCOPE}guard/"
SMALLEST_BYTES = 1 << 18
# Ops that TensorFlow replaces by oneDNN kernels on x86.
ONEDNN_TYPES = frozenset(
    """
    AvgPool AvgPool3D AvgPool3DGrad AvgPoolGrad BatchMatMul BatchMatMulV2 Conv2D Conv2DBackpropFilter
    Conv2DBackpropInput Conv3D Conv3DBackpropFilterV2 Conv3DBackpropInputV2 DepthwiseConv2dNative
    DepthwiseConv2dNativeBackpropFilter DepthwiseConv2dNativeBackpropInput Einsum Elu FusedBatchNorm
    FusedBatchNormGrad FusedBatchNormGradV2 FusedBatchNormGradV3 FusedBatchNormV2 FusedBatchNormV3 LeakyRelu MatMul
    MaxPool MaxPool3D MaxPool3DGrad MaxPoolGrad Relu Relu6 Softmax Swish Tanh Transpose
    """.split()  # noqa: SIM905 - a list of this length is read, not executed
)


def insert(
    function: tf.types.experimental.ConcreteFunction, *, planned: bool
) -> tuple[tf.types.experimental.ConcreteFunction, int]:
    """The function with a guard before each large oneDNN op, and how many there are. Results are unchanged.

    planned: the step is expected to fit. If not, filter gradients, which reorder their inputs, are guarded for that too,
    and all for an eighth more.
    """
    graph, count = function.graph, 0
    alive = {op.name for op in capture(function).ops}  # a guard would run even where its op never does
    started_by = _swap_ins_by_trigger(graph)
    for op in graph.get_operations():
        needed = max((size(t) or 0 for t in op.outputs), default=0)  # each output is a piece of its own
        if not planned and "BackpropFilter" in op.type:
            needed += max((size(t) or 0 for t in op.inputs), default=0)
        needed += 0 if planned else needed // 8
        if op.name not in alive or op.type not in ONEDNN_TYPES or needed < SMALLEST_BYTES or surgery.in_loop(op):
            continue
        before = list(dict.fromkeys([t.op for t in op.inputs] + list(op.control_inputs)))
        before += [buffer for trigger in before for buffer in started_by.get(trigger.name, ())]
        with surgery.insertion(graph, op.device or None, before):
            shape = [-(-needed // ALIGNMENT), ALIGNMENT]  # an axis ends at 2^31
            probe = tf.raw_ops.Empty(shape=shape, dtype=tf.uint8, name=f"{GUARD_SCOPE}{op.name}").op
        surgery.keep(probe)
        surgery.add_control_inputs(op, [probe])
        count += 1
    return (surgery.make_function(function), count) if count else (function, 0)


def _swap_ins_by_trigger(graph: tf.Graph) -> dict[str, list[tf.Operation]]:
    """Trigger -> buffers of the swap-ins that it starts: they take their memory first, then the guard looks at the rest."""
    found: dict[str, list[tf.Operation]] = {}
    for op in graph.get_operations():
        if op.name.startswith(f"{SCOPE}swap_in/") and op.name.endswith("/buffer"):
            for trigger in op.control_inputs:
                found.setdefault(trigger.name, []).append(op)
    return found
