"""The vocabulary of the engine: a step of training or inference as plain, frozen values. No TensorFlow here.

A `StepGraph` is a tuple of `Op`s in a topological order (the order in which they were traced). Tensors are named
`op:index`, as in TensorFlow. Sizes are bytes on the compute device; `None` means that the size is not known.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property


def _types(names: str) -> frozenset[str]:
    return frozenset(names.split())


ALIAS_TYPES = _types(
    "Identity Reshape Squeeze ExpandDims StopGradient PreventGradient Bitcast EnsureShape IdentityN LmsArrive"
)
"""Ops whose outputs share the buffers of their inputs, whatever the shapes; see also `Op.view`."""

METADATA_TYPES = _types("Shape ShapeN Size Rank BroadcastGradientArgs")
"""Ops that read the shape of their input and never its values. They run as soon as they can."""

RESIDENT_TYPES = _types("Placeholder PlaceholderWithDefault _Arg VarHandleOp ReadVariableOp VariableV2 Variable Const")
"""Ops whose outputs live outside the step: variables, constants, arguments."""

FORWARDING_TYPES = _types("""
    Abs Add AddN AddV2 BiasAdd Ceil Div DivNoNan Elu EluGrad Erf Exp Expm1 Floor LeakyRelu LeakyReluGrad Log Log1p
    LogSoftmax Maximum Minimum Mul MulNoNan Neg RealDiv Reciprocal Relu Relu6 Relu6Grad ReluGrad Rint Round Rsqrt
    RsqrtGrad Select SelectV2 Selu SeluGrad Sigmoid SigmoidGrad Sign Softmax Softplus Softsign Sqrt SqrtGrad Square
    SquaredDifference Sub Tanh TanhGrad Xdivy Xlogy LmsActivate LmsActivateGrad
""")
"""Kernels that write into the buffer of an input that has no other readers (`forward_input_or_allocate_output`). Each was measured
on a CPU. FusedBatchNorm asks for the buffer too, but holds a reference of its own and never gets it."""

CALLING_TYPES = _types("Case If PartitionedCall StatelessCase StatelessIf StatelessWhile While")
"""Ops that run whole functions. What they take is not measured, so they are not recomputed."""

PROGRAM_TYPE = "XlaProgram"
"""A call of a function that XLA compiles as a whole: to the engine one op, which never writes into its inputs."""

PAIRED_TYPES = {"MaxPool": "MaxPoolGrad", "MaxPool3D": "MaxPool3DGrad", "LRN": "LRNGrad"}
"""Forward op -> its gradient, of the pairs that TensorFlow's oneDNN kernels join by a hidden workspace. The gradient has to read
the forward op's own output. Otherwise another kernel runs, which divides the gradient of equal maxima differently. So such an edge
must not lead through a swap."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """One output of an op. `bytes`, `rank` and `shape` are None if the traced shape is not fully known. dtype: as in "float32"."""

    name: str
    bytes: int | None = None
    rank: int | None = None
    shape: tuple[int, ...] | None = None
    dtype: str = ""


@dataclass(frozen=True, slots=True)
class Op:
    """One node. `inputs` are tensor names, `control_inputs` op names.

    stateful: it draws random numbers, reads or writes a variable, or does I/O. in_loop: it is in a control-flow frame, and must not
    be touched. on_device: it runs on the compute device. workspace_bytes: memory that it takes while the kernel runs.
    hidden_bytes: memory that it keeps for its gradient (see `PAIRED_TYPES`), in no tensor of the graph.
    view: its output is a part of its first input. inserted: a rewrite made it.
    flops: floating-point operations of a convolution or matrix product, 0 for other ops.
    signature: equal for ops that do the same work (type, attributes, shapes); "" for ops that cannot run alone.
    group: the op of the trace that this one is a slab of, or helps to slice; "" for ops that are whole.
    """

    name: str
    type: str
    inputs: tuple[str, ...] = ()
    control_inputs: tuple[str, ...] = ()
    outputs: tuple[Tensor, ...] = ()
    stateful: bool = False
    in_loop: bool = False
    on_device: bool = True
    workspace_bytes: int = 0
    hidden_bytes: int = 0
    view: bool = False
    flops: int = 0
    inserted: bool = False
    signature: str = ""
    group: str = ""

    @property
    def shares_input(self) -> bool:
        """Whether its outputs lie in the memory of its inputs."""
        return self.view or self.type in ALIAS_TYPES


def producer_name(tensor_name: str) -> str:
    """`"conv/Conv3D:0"` -> `"conv/Conv3D"`."""
    return tensor_name.rpartition(":")[0]


def paired(producer: Op, consumer: Op) -> bool:
    """True if `consumer` must read the output of `producer` itself (see `PAIRED_TYPES`)."""
    return PAIRED_TYPES.get(producer.type) == consumer.type


@dataclass(frozen=True)
class StepGraph:
    """Ops in topological order, the names of the tensors that the step returns, and the bytes that live outside of it.

    resident_bytes: weights, optimiser slots and batches that stay on the device for the whole step. batches: the bytes of each
    tensor of the batches among them: the step's own batch, and batches that wait for the next steps.
    Raises `ValueError` on a duplicate name, an unknown input or an order that is not topological.
    """

    ops: tuple[Op, ...]
    returned: frozenset[str] = frozenset()
    resident_bytes: int = 0
    batches: tuple[int, ...] = ()
    _checked: bool = field(default=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self._checked:
            return
        seen: set[str] = set()
        tensors: set[str] = set()
        for op in self.ops:
            if op.name in seen:
                raise ValueError(f"two ops are named {op.name!r}")
            if not op.in_loop:
                missing = [t for t in op.inputs if t not in tensors] + [c for c in op.control_inputs if c not in seen]
                if missing:
                    raise ValueError(
                        f"op {op.name!r} uses {missing[0]!r}, which no earlier op makes: a cycle or an unknown name"
                    )
            seen.add(op.name)
            tensors.update(t.name for t in op.outputs)

    @cached_property
    def by_name(self) -> dict[str, Op]:
        return {op.name: op for op in self.ops}

    @cached_property
    def index(self) -> dict[str, int]:
        """Op name -> its place in the traced order."""
        return {op.name: i for i, op in enumerate(self.ops)}

    @cached_property
    def tensors(self) -> dict[str, Tensor]:
        return {t.name: t for op in self.ops for t in op.outputs}

    @cached_property
    def consumers(self) -> dict[str, tuple[str, ...]]:
        """Tensor name -> names of the ops that read it, each once, in traced order."""
        found: dict[str, dict[str, None]] = {}
        for op in self.ops:
            for tensor in op.inputs:
                found.setdefault(tensor, {})[op.name] = None
        return {tensor: tuple(ops) for tensor, ops in found.items()}

    @cached_property
    def levels(self) -> dict[str, int]:
        """TFLMS level of each op: 0 without inputs, else 1 + the largest among its data and control inputs.

        Ops in loops and ops that a rewrite inserted have no level.
        """
        levels: dict[str, int] = {}
        for op in self.ops:
            if op.in_loop or op.inserted:
                continue
            before = [levels.get(producer_name(t), -1) for t in op.inputs] + [
                levels.get(c, -1) for c in op.control_inputs
            ]
            levels[op.name] = 1 + max(before, default=-1)
        return levels

    def edges(self) -> Iterator[tuple[Tensor, Op, Op]]:
        """Every data edge once: (tensor, producer, consumer)."""
        for op in self.ops:
            for name in dict.fromkeys(op.inputs):
                yield self.tensors[name], self.by_name[producer_name(name)], op

    def with_ops(self, ops: tuple[Op, ...]) -> StepGraph:
        """The same step with other ops, which are checked."""
        return replace(self, ops=ops, _checked=False)


def without_dead(ops: Sequence[Op], wanted: Iterable[str]) -> list[Op]:
    """The ops that TensorFlow will run: ops with effects, those named in `wanted`, and all ops that these wait for.

    Tracing leaves other ops behind; a control edge from one of them would make it run.
    """
    by_name = {op.name: op for op in ops}
    waiting = [*wanted, *(op.name for op in ops if op.stateful or op.in_loop)]
    alive: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name not in alive:
            alive.add(name)
            waiting += [*map(producer_name, by_name[name].inputs), *by_name[name].control_inputs]
    return [op for op in ops if op.name in alive]


def _inserted(op: Op) -> bool:
    return op.inserted


def topological(unordered: Iterable[Op], *, urgent: Callable[[Op], bool] = _inserted) -> tuple[Op, ...]:
    """The ops in the topological order closest to the given one; `ValueError` names ops of a cycle.

    urgent: tells the ops that come as early as their inputs and triggers allow; by default the inserted ones.
    """
    ops = list(unordered)
    index = {op.name: i for i, op in enumerate(ops)}
    waits = [0] * len(ops)
    before: list[list[int]] = [[] for _ in ops]
    for i, op in enumerate(ops):
        sources = {producer_name(t) for t in op.inputs} | set(op.control_inputs)
        if op.in_loop:  # frames are cyclic: their ops wait for ops before them, not for the last round's
            sources = {name for name in sources if index.get(name, i) < i}
        for name in sources:
            if name not in index:
                raise ValueError(f"op {op.name!r} uses {name!r}, which does not exist")
            before[index[name]].append(i)
        waits[i] = len(sources)
    ready = [(not urgent(op), i) for i, op in enumerate(ops) if waits[i] == 0]
    heapq.heapify(ready)
    order: list[Op] = []
    while ready:
        _, i = heapq.heappop(ready)
        order.append(ops[i])
        for j in before[i]:
            waits[j] -= 1
            if waits[j] == 0:
                heapq.heappush(ready, (not urgent(ops[j]), j))
    if len(order) < len(ops):
        stuck = [op.name for i, op in enumerate(ops) if waits[i] > 0][:4]
        raise ValueError(f"there is a cycle through {', '.join(stuck)}")
    return tuple(order)
