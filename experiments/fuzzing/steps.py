"""Random steps for the half of the engine that knows no TensorFlow: any graph at all, and graphs with a backward pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from hypothesis import strategies as st

from lms3d.engine.cost import Machine
from lms3d.engine.ir import METADATA_TYPES, Op, StepGraph, Tensor

MIB = 1 << 20
FAST = Machine(flops_per_second=1e10)
MACHINES = {
    "fast": FAST,
    "slow links": Machine(flops_per_second=1e10, swap_out_bytes_per_second=1e7, swap_in_bytes_per_second=2e7),
    "mapped": Machine(flops_per_second=1e10, mapped=True),
    "dear transfers": Machine(flops_per_second=1e10, swap_share=2.0, node_seconds=5e-5),
}
_TYPES = (
    "Conv3D",
    "Relu",
    "AddV2",
    "Reshape",
    "Identity",
    "ConcatV2",
    "Shape",
    "RandomUniform",
    "ReadVariableOp",
    "Slice",
)
_SAME = ("Reshape", "Identity")  # as large as what they share


@st.composite
def any_steps(draw: st.DrawFn, most: int = 40) -> StepGraph:
    """Up to `most` ops that read what stands before them, near or far, some in loops or elsewhere, some with control inputs."""
    ops = [_op("x", "Placeholder", (), MIB)]
    for i in range(draw(st.integers(2, most))):
        kind = draw(st.sampled_from(_TYPES))
        read = [] if kind == "ReadVariableOp" else draw(st.lists(st.sampled_from(ops), min_size=1, max_size=3))
        size = draw(st.sampled_from([1, 10_000, MIB // 2, MIB, 2 * MIB, 4 * MIB, 0, None]))
        if kind in _SAME:
            read, size = read[:1], read[0].outputs[0].bytes
        odd = draw(st.sampled_from(["", "", "", "", "", "", "in_loop", "on_device", "stateful"]))
        ops.append(
            _op(
                f"o{i}",
                kind,
                tuple(f"{o.name}:0" for o in read),
                size,
                rank=draw(st.sampled_from([4, 4, 4, 2, 1, 0])) if size is not None else None,
                control_inputs=tuple(o.name for o in draw(st.lists(st.sampled_from(ops), max_size=1))),
                flops=draw(st.sampled_from([0, 10**8])),
                # What takes no time has none: timelines do not show what comes and goes at one moment.
                workspace_bytes=draw(st.sampled_from([0, 0, MIB if kind not in METADATA_TYPES else 0])),
                view=kind == "Slice" and draw(st.booleans()),
                in_loop=odd == "in_loop",
                on_device=odd != "on_device",
                stateful=odd == "stateful" and kind not in _SAME,  # a view has no state
            )
        )
    returned = draw(st.lists(st.sampled_from([f"{o.name}:0" for o in ops]), max_size=3))
    return StepGraph(tuple(ops), frozenset(returned), draw(st.integers(0, 3)) * MIB)


def _op(name: str, kind: str, inputs: tuple[str, ...], size: int | None, rank: int | None = 4, **rest: Any) -> Op:
    return Op(name, kind, inputs, outputs=(Tensor(f"{name}:0", size, rank),), **rest)


_UNARY = {"Conv3D": 10**8, "LeakyRelu": 0, "FusedBatchNormV3": 0, "Tanh": 0, "RandomUniform": 0, "Reshape": 0}
_BINARY = {"AddV2": 0, "ConcatV2": 0}


@dataclass
class _Net:
    """A network while it is being made: forward ops in order, then their gradients."""

    ops: list[Op] = field(default_factory=list)

    def add(self, name: str, kind: str, inputs: list[str], size: int, **rest: Any) -> str:
        self.ops.append(_op(name, kind, tuple(dict.fromkeys(inputs)), size, **rest))
        return f"{name}:0"


class Layer(NamedTuple):
    """An op of a network. back: it also reads the tensor that was made so many before, 0 for none."""

    kind: str
    size: int
    back: int = 0
    workspace_bytes: int = 0


def network(layers: Sequence[Layer]) -> list[Op]:
    """Layers "f0", "f1", .. on a batch "x", their loss, the gradients of all layers, and updates."""
    net, sizes = _Net(), {}
    made = [net.add("x", "Placeholder", [], MIB)]
    sizes[made[0]] = MIB
    known: list[tuple[str, str, list[str], str]] = []
    for i, (kind, size, back, workspace) in enumerate(layers):
        read = list(dict.fromkeys([made[-1], *([made[-min(back, len(made))]] if back else [])]))
        output = net.add(f"f{i}", kind, read, size, flops=_UNARY.get(kind, 0), workspace_bytes=workspace)
        sizes[output] = size
        made.append(output)
        known.append((f"f{i}", kind, read, output))
    loss = net.add("loss", "Sum", [made[-1]], 4, rank=0)
    gradient: dict[str, list[str]] = {made[-1]: [net.add("loss_gradient", "Mul", [loss, made[-1]], sizes[made[-1]])]}
    updates = []
    for name, kind, read, output in reversed(known):
        parts = gradient.pop(output, [])
        if not parts:
            continue
        total = parts[0] if len(parts) == 1 else net.add(f"sum_{name}", "AddN", parts, sizes[output])
        for k, source in enumerate(read):
            needs = (
                []
                if kind in ("AddV2", "Reshape", "ConcatV2")
                else [output if kind in ("Tanh", "LeakyRelu") else source]
            )
            grad = net.add(f"g{name}_{k}", f"{kind}Grad", [total, *needs], sizes[source], flops=_UNARY.get(kind, 0))
            gradient.setdefault(source, []).append(grad)
        if kind == "Conv3D":
            weights = net.add(f"w{name}", "Conv3DBackpropFilterV2", [total, *read], 4096, flops=_UNARY[kind])
            updates.append((name, weights))
    for name, weights in updates:
        net.ops.append(Op(f"update_{name}", "AssignSubVariableOp", (weights,), stateful=True))
    return net.ops


@st.composite
def training_steps(draw: st.DrawFn, most: int = 10) -> StepGraph:
    """A network of up to `most` layers with skips and changing sizes."""
    layers: list[Layer] = []
    for _ in range(draw(st.integers(1, most))):
        kind = draw(st.sampled_from([*_UNARY, *_BINARY]))
        back = draw(st.integers(2, 6)) if kind in _BINARY else 0
        factor = 1 if kind in ("Reshape", "LeakyRelu", "Tanh") else draw(st.sampled_from([0.25, 0.5, 1, 1, 1, 2]))
        size = min(max(int((layers[-1].size if layers else MIB) * factor), 1024), 16 * MIB)
        layers.append(Layer(kind, size, back, draw(st.sampled_from([0, 0, size]))))
    made = ["x:0", *(f"f{i}:0" for i in range(len(layers)))]
    returned = frozenset(["loss:0", *draw(st.lists(st.sampled_from(made), max_size=1))])
    return StepGraph(tuple(network(layers)), returned, draw(st.integers(0, 8)) * MIB)


steps = st.one_of(any_steps(), training_steps(), training_steps(30))
machines = st.sampled_from(sorted(MACHINES)).map(MACHINES.__getitem__)
pools = st.sampled_from(["none", "single", "split"])
