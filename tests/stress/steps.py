"""Random steps for the half of the engine that knows no TensorFlow: any graph at all, and graphs with a backward pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from hypothesis import strategies as st

from lms3d.engine.cost import Machine
from lms3d.engine.ir import METADATA_TYPES, Op, StepGraph, Tensor
from lms3d.engine.planners import tflms

MIB = 1 << 20
FAST = Machine(flops_per_second=1e10)
MACHINES = {
    "fast": FAST,
    "slow links": Machine(flops_per_second=1e10, swap_out_bytes_per_second=1e7, swap_in_bytes_per_second=2e7),
    "mapped": Machine(flops_per_second=1e10, mapped=True),
    "dear transfers": Machine(flops_per_second=1e10, swap_share=2.0, node_seconds=5e-5),
}
_TYPES = "Conv3D Relu AddV2 Reshape Identity ConcatV2 Shape RandomUniform ReadVariableOp Slice".split()  # noqa: SIM905
_SAME = ("Reshape", "Identity")  # as large as the shared storage


@st.composite
def any_steps(draw: st.DrawFn, most: int = 40) -> StepGraph:
    """Up to `most` ops that read earlier ones, near or far, some in loops or elsewhere, some with control inputs."""
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
                # An op that takes no time has none: timelines do not show memory that comes and goes at one moment.
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


class Layer(NamedTuple):
    """An op of a network. back: it also reads the tensor that was made so many ops before; 0 for none."""

    kind: str
    size: int
    back: int = 0
    workspace_bytes: int = 0


def network(layers: Sequence[Layer]) -> list[Op]:
    """Layers "f0", "f1", .. on a batch "x", their loss, the gradients of all layers, and updates."""
    ops, sizes = list[Op](), dict[str, int]()

    def add(name: str, kind: str, inputs: Sequence[str], size: int, **rest: Any) -> str:
        ops.append(_op(name, kind, tuple(dict.fromkeys(inputs)), size, **rest))
        sizes[f"{name}:0"] = size
        return f"{name}:0"

    made, known = [add("x", "Placeholder", [], MIB)], []
    for i, (kind, size, back, workspace) in enumerate(layers):
        read = list(dict.fromkeys([made[-1], *([made[-min(back, len(made))]] if back else [])]))
        made.append(add(f"f{i}", kind, read, size, flops=_UNARY.get(kind, 0), workspace_bytes=workspace))
        known.append((f"f{i}", kind, read))
    loss = add("loss", "Sum", [made[-1]], 4, rank=0)
    gradient = {made[-1]: [add("loss_gradient", "Mul", [loss, made[-1]], sizes[made[-1]])]}
    updates = []
    for name, kind, read in reversed(known):
        output, flops = f"{name}:0", _UNARY.get(kind, 0)
        if not (parts := gradient.pop(output, [])):
            continue
        total = parts[0] if len(parts) == 1 else add(f"sum_{name}", "AddN", parts, sizes[output])
        for k, source in enumerate(read):
            needs = {"AddV2": [], "Reshape": [], "ConcatV2": [], "Tanh": [output], "LeakyRelu": [output]}.get(
                kind, [source]
            )
            grad = add(f"g{name}_{k}", f"{kind}Grad", [total, *needs], sizes[source], flops=flops)
            gradient.setdefault(source, []).append(grad)
        if kind == "Conv3D":
            weights = add(f"w{name}", "Conv3DBackpropFilterV2", [total, *read], 4096, flops=flops)
            updates.append(Op(f"update_{name}", "AssignSubVariableOp", (weights,), stateful=True))
    return ops + updates


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
parameters = st.builds(
    tflms.Parameters,
    swapout_threshold=st.integers(1, 12),
    swapin_ahead=st.integers(1, 12),
    swapin_groupby=st.integers(-1, 6),
    sync_mode=st.integers(0, 3),
    serialization=st.lists(st.one_of(st.integers(-3, 9), st.sampled_from(["3:5", "::2", "4:"]))).map(tuple),
    serialization_by_size=st.sampled_from([0, 0, 0.001]),
    n_tensors=st.sampled_from([None, None, None, 0, 1, 5]),
)
