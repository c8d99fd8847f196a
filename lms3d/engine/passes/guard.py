"""An out-of-memory error in place of a crash, on a CPU with a hard limit.

TensorFlow's oneDNN kernels do not check whether their output could be allocated: if a pool with a limit is full, they end the
process with a segmentation fault (TensorFlow 2.21: `MklConvOp::Compute`). So before each large one a guard allocates as many bytes,
and frees them at once. If it cannot, it fails cleanly, with `ResourceExhaustedError`. (Another thread may take the memory in
between: the crash becomes rare, not impossible.)

    x --> lms/guard/conv (Empty, control input: the op behind x)  ..control..>  conv

GUARD-1  In a step with a plan a guard asks for no byte more than its op: in a nearly full pool the only piece that fits is
         often the one that a tensor of the same size has just left.
GUARD-2  A step without a plan is not meant to fit. There a guard asks for an eighth more, for the kernel's workspace, and before
         filter gradients for as much as their largest input besides, since these reorder their inputs.
GUARD-3  Swap-ins that the op's inputs trigger take their memory first, unless another of their triggers comes after the op.
GUARD-4  In a step with a plan there is no guard before an op that writes into its input: the op allocates nothing, and the plan
         leaves no room for two pieces.
"""

from __future__ import annotations

import logging
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence, Set

import tensorflow as tf

from lms3d.device.pool_layout import ALIGNMENT
from lms3d.engine.ir import ALIAS_TYPES, FORWARDING_TYPES
from lms3d.engine.passes.base import Function, Pass
from lms3d.engine.plan import SCOPE
from lms3d.engine.tensorflow import reading, surgery
from lms3d.engine.tensorflow.bodies import size
from lms3d.engine.tensorflow.capture import traced_order
from lms3d.engine.tiers import base
from lms3d.engine.tuning import GUARDED_BYTES, UNPLANNED_EIGHTHS

log = logging.getLogger("lms3d")

GUARD_SCOPE = f"{SCOPE}guard/"
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
# No other op holds the results of these. The types left out may pass on an input: if they move no axis, or add a single tensor.
_MAKE_THEIR_OWN = (ONEDNN_TYPES | FORWARDING_TYPES) - {"AddN", "Einsum", "Transpose"}


class Guard(Pass):
    """Requires nothing: it runs last, after a plan's nodes are in. Ensures that each large oneDNN op waits for a guard of its size,
    which comes after all that the op waits for, but for GUARD-4.

    planned: the step is expected to fit (GUARD-1), else GUARD-2. `count` says how many guards there are.
    """

    name = "guard"

    def __init__(self, *, planned: bool) -> None:
        self.planned, self.count = planned, 0
        self._to_guard: list[tuple[tf.Operation, int, list[tf.Operation]]] = []

    def run(self, function: Function) -> bool:
        self._to_guard = list(self._found(function))
        self.count = len(self._to_guard)
        for op, needed, before in self._to_guard:
            _insert(op, needed, before)
        log.info("lms: %d guards against oneDNN kernels that do not check their memory", self.count)
        return self.count > 0

    def ensures(self, function: Function) -> None:
        for op, needed, before in self._to_guard:
            guards = [one for one in op.control_inputs if _is_guard(one)]
            if not any(_asks_for(one) >= needed and _waits_for(one) >= set(before) for one in guards):
                raise RuntimeError(
                    f"pass {self.name}: {op.name!r} has no guard of {needed:,} bytes; please report this graph"
                )
        traced_order(function.graph)  # ValueError if a guard and a swap-in wait for each other

    def _found(self, function: Function) -> Iterator[tuple[tf.Operation, int, list[tf.Operation]]]:
        """(op, bytes that it needs, what its guard has to wait for) of each large oneDNN op."""
        graph = function.graph
        gates = {gate.name for gate in base.gates(graph)}
        others = [op.name for op in graph.get_operations() if op.name not in gates]
        # In this order a swap-in comes as early as its triggers allow. A guard would run even if its op never does.
        place = {op.name: number for number, op in enumerate(traced_order(graph, last=others))}
        started_by, alive = _gates_by_trigger(graph), place.keys()
        returned = {t.name for t in graph.outputs}
        for op in graph.get_operations():
            needed = self._needed_bytes(op)
            if op.name not in alive or op.type not in ONEDNN_TYPES or needed < GUARDED_BYTES or reading.in_loop(op):
                continue
            if self.planned and _overwrites(op, alive, returned, gates):  # GUARD-4
                continue
            before = list(dict.fromkeys([t.op for t in op.inputs] + list(op.control_inputs)))
            started = [gate for trigger in before for gate in started_by[trigger.name]]
            before += [gate for gate in started if place.get(gate.name, len(place)) < place[op.name]]  # GUARD-3
            yield op, needed, [one for one in before if not _is_guard(one)]

    def _needed_bytes(self, op: tf.Operation) -> int:
        needed = max((size(t) or 0 for t in op.outputs), default=0)  # each output is a piece of its own
        if self.planned:
            return needed
        if "BackpropFilter" in op.type:
            needed += max((size(t) or 0 for t in op.inputs), default=0)
        return needed + needed * UNPLANNED_EIGHTHS // 8

    def __str__(self) -> str:
        return f"{self.name}: {self.count} guards"


def _is_guard(op: tf.Operation) -> bool:
    return op.name.startswith(GUARD_SCOPE) and op.type == "Empty"


def _asks_for(guard: tf.Operation) -> int:
    """The bytes that a guard allocates."""
    shape = tf.get_static_value(guard.inputs[0])
    return 0 if shape is None else math.prod(shape.tolist())


def _waits_for(guard: tf.Operation) -> set[tf.Operation]:
    """The ops that a guard waits for. TensorFlow lets the constant wait that the guard reads."""
    return {before for one in (guard, *(t.op for t in guard.inputs)) for before in one.control_inputs}


def _insert(op: tf.Operation, needed_bytes: int, before: Sequence[tf.Operation]) -> None:
    """Lets `op` wait for a guard of so many bytes, which waits for the ops of `before`."""
    with surgery.insertion(op.graph, op.device or None, before):
        shape = [-(-needed_bytes // ALIGNMENT), ALIGNMENT]  # an axis ends at 2^31
        probe = tf.raw_ops.Empty(shape=shape, dtype=tf.uint8, name=f"{GUARD_SCOPE}{op.name}").op
    surgery.keep(probe)
    surgery.add_control_inputs(op, [probe])


def _overwrites(op: tf.Operation, alive: Set[str], returned: Set[str], gates: Set[str]) -> bool:
    """Whether an op surely writes into its first input: memory of the step, as large as its output, that no other op sees.

    alive: the ops that run; returned: the tensors that the step returns; gates: of copied swap-ins, whose memory is their own.
    """
    if op.type not in FORWARDING_TYPES or size(op.inputs[0]) != size(op.outputs[0]):
        return False
    read, reader = op.inputs[0], op
    while read.op.name not in gates:
        if read.name in returned or {r.name for r in read.consumers()} & alive != {reader.name}:
            return False
        if read.op.type not in ALIAS_TYPES:
            return read.op.type in _MAKE_THEIR_OWN and size(read) == size(op.outputs[0])
        read, reader = read.op.inputs[read.value_index if read.op.type == "IdentityN" else 0], read.op
    return True


def _gates_by_trigger(graph: tf.Graph) -> dict[str, list[tf.Operation]]:
    """Op -> gates of the swap-ins that it triggers."""
    found: dict[str, list[tf.Operation]] = defaultdict(list)
    for gate in base.gates(graph):
        for trigger in gate.control_inputs:
            found[trigger.name].append(gate)
    return found
