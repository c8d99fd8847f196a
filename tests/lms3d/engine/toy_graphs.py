"""Small steps by hand, for the half of the engine that knows no TensorFlow."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from lms3d.engine.cost import Machine
from lms3d.engine.ir import Op, StepGraph, Tensor
from lms3d.engine.step_model.decisions import Choice, Mode
from lms3d.engine.step_model.problem import Problem, reduce
from lms3d.engine.step_model.schedule import Schedule, build

MIB = 1 << 20
# One unit of `flops` takes a second and so does a MiB on either link; memory traffic and starting an op take nothing.
SECONDS = Machine(
    flops_per_second=1,
    bytes_per_second=1e30,
    swap_out_bytes_per_second=MIB,
    swap_in_bytes_per_second=MIB,
    op_seconds=0,
)


def op(
    name: str,
    *inputs: str,
    type: str = "Conv3D",
    mib: float | None = 1,
    rank: int | None = 4,
    after: Iterable[str] = (),
    **options: object,
) -> Op:
    """An op with one output `name:0`; inputs and `after` are op names, or tensor names with an index."""
    tensors = tuple(i if ":" in i else f"{i}:0" for i in inputs)
    size = None if mib is None else int(mib * MIB)
    return Op(name, type, tensors, tuple(after), (Tensor(f"{name}:0", size, rank),), **options)


def step(*ops: Op, returned: Iterable[str] = (), resident_mib: float = 0) -> StepGraph:
    """`returned` are op names."""
    return StepGraph(ops, frozenset(f"{name}:0" for name in returned), int(resident_mib * MIB))


def placeholder(name: str = "x", **options: object) -> Op:
    return op(name, type="Placeholder", **options)


def worked_example(**options: object) -> StepGraph:
    """`x -> a -> f1 -> f2 -> f3 -> f4 -> z = add(f4, a)`: levels 0..6. `options` are for each op but x."""
    chain = [op("a", "x", **options), op("f1", "a", **options)]
    chain += [op(f"f{i}", f"f{i - 1}", **options) for i in (2, 3, 4)]
    return step(placeholder(), *chain, op("z", "f4", "a", **options), returned=["z"])


def ladder(length: int, rungs: Iterable[int], **options: object) -> StepGraph:
    """`x -> a -> f2 -> f3 -> ...`, each f at the level of its number; for each rung an op `r<level>` that reads `a`."""
    ops = [placeholder(), op("a", "x")]
    for level in range(2, length + 1):
        below = "a" if level == 2 else f"f{level - 1}"
        ops.append(op(f"f{level}", below))
        if level in rungs:
            ops.append(op(f"r{level}", below, "a", **options))
    return step(*ops)


def training(depth: int, *, mib: float = 1, resident_mib: float = 1) -> StepGraph:
    """Forward c0 r0 c1 r1 ... (convolution, activation), a loss, and the gradients that read them backwards."""
    ops, before = [placeholder(mib=mib)], "x"
    for i in range(depth):
        ops.append(op(f"c{i}", before, mib=mib, flops=8 * MIB))
        ops.append(op(f"r{i}", f"c{i}", mib=mib, type="LeakyRelu"))
        before = f"r{i}"
    ops.append(op("loss", before, mib=mib))
    gradient = "loss"
    for i in reversed(range(depth)):
        source = f"r{i - 1}" if i else "x"
        ops.append(op(f"gr{i}", gradient, f"c{i}", mib=mib, type="LeakyReluGrad"))
        ops.append(op(f"gw{i}", f"gr{i}", source, mib=0.01, type="Conv3DBackpropFilterV2", flops=8 * MIB))
        ops.append(op(f"gc{i}", f"gr{i}", mib=mib, type="Conv3DBackpropInputV2", flops=8 * MIB))
        gradient = f"gc{i}"
    return step(*ops, returned=[f"gw{i}" for i in range(depth)], resident_mib=resident_mib)


def swapped_over_a_chain() -> tuple[Problem, Schedule, int]:
    """A step in which `a` goes out and comes back, its schedule, and the index of `a`."""
    machine = replace(SECONDS, swap_in_bytes_per_second=2 * MIB)
    chain = [op(f"f{i}", f"f{i - 1}" if i else "a", mib=0.25, flops=1) for i in range(6)]
    problem = reduce(step(placeholder(), op("a", "x", mib=4), *chain, op("z", "f5", "a", mib=0.1)), machine)
    swapped = [b.root for b in problem.buffers].index("a:0")
    return problem, build(problem, {swapped: Choice(Mode.SWAP)}, machine), swapped
