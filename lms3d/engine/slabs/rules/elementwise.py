"""Ops that make each element from the elements in its place: slab by slab, without neighbours."""

from __future__ import annotations

from collections.abc import Sequence

from lms3d.engine.slabs.rules.registry import broadcast, is_sliced, lined_up, places, rule, shape_of, sliced
from lms3d.engine.slabs.sliced_step import Builder
from lms3d.engine.slabs.values import Node, Ref, SlabLayout, Sliced, Value

_UNARY = [
    "Abs", "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "Bitcast", "Cast", "Ceil", "ClipByValue", "Cos",
    "Cosh", "Digamma", "Elu", "Erf", "Erfc", "Erfinv", "Exp", "Expm1", "Floor", "Inv", "IsFinite", "IsInf", "IsNan",
    "LeakyRelu", "Lgamma", "Log", "Log1p", "LogicalNot", "Neg", "OnesLike", "Reciprocal", "Relu", "Relu6", "Rint", "Round",
    "Rsqrt", "Selu", "Sigmoid", "Sign", "Sin", "Sinh", "Softplus", "Softsign", "Sqrt", "Square", "Tan", "Tanh", "ZerosLike",
]  # fmt: skip
_BINARY = [
    "Add", "AddN", "AddV2", "ApproximateEqual", "Atan2", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "Complex", "Div", "DivNoNan",
    "Equal", "FloorDiv", "FloorMod", "Greater", "GreaterEqual", "LeftShift", "Less", "LessEqual", "LogicalAnd", "LogicalOr",
    "Maximum", "Minimum", "Mod", "Mul", "MulNoNan", "NextAfter", "NotEqual", "Polygamma", "Pow", "RealDiv", "RightShift", "Select",
    "SelectV2", "SquaredDifference", "Sub", "TruncateDiv", "TruncateMod", "Xdivy", "Xlog1py", "Xlogy",
]  # fmt: skip
_GRADIENTS = [
    "EluGrad", "InvGrad", "LeakyReluGrad", "ReciprocalGrad", "Relu6Grad", "ReluGrad", "RsqrtGrad", "SeluGrad", "SigmoidGrad",
    "SoftplusGrad", "SoftsignGrad", "SqrtGrad", "TanhGrad",
]  # fmt: skip


@rule(*_UNARY, *_BINARY, *_GRADIENTS)
def elementwise(build: Builder, node: Node, values: Sequence[Value]) -> Sequence[Value] | None:
    """Operands that are broadcast along the sliced axis are read whole."""
    shape = node.outputs[0].shape
    layout = layout_of(build, values, shape)
    if layout is None or shape is None or not all(lined_up(v, layout, shape) for v in values):
        return None
    if node.type == "Bitcast" and shape_of(values[0]) != shape:  # to a type of another size
        return None
    if node.type == "Select" and shape_of(values[0]) not in (shape, ()):  # a vector of choices by row
        return None
    pieces = []
    for planes, place in places(layout):
        parts = [broadcast(build, v, layout, shape, planes) for v in values]
        inputs = [tuple(parts)] if node.type == "AddN" else parts
        pieces.append(build.repeat(inputs, layout.shape(shape, planes), place=place))
    return [sliced(node.outputs[0], layout, pieces)]


def layout_of(build: Builder, values: Sequence[Value], shape: tuple[int, ...] | None) -> SlabLayout | None:
    """How the result of a broadcast is cut: as its level says, or else like the first operand that is sliced."""
    if shape is None:
        return None
    own = build.levels.layout(shape)
    if own is not None and (not is_sliced(values) or all(lined_up(v, own, shape) for v in values)):
        return own
    for value in values:
        if isinstance(value, Sliced):
            axis = value.layout.axis + len(shape) - len(shape_of(value))
            return SlabLayout(axis, value.layout.bounds, value.layout.groups)
    return None


@rule("BiasAdd")
def bias_add(build: Builder, node: Node, values: Sequence[Value]) -> Sequence[Value] | None:
    """The bias belongs to the last axis, which is never the sliced one."""
    shape, layout = node.outputs[0].shape, layout_of(build, values[:1], node.outputs[0].shape)
    if (
        layout is None
        or shape is None
        or node.attributes.get("data_format", "NHWC")[-1] != "C"
        or layout.axis == len(shape) - 1
    ):
        return None
    bias = build.whole(values[1])
    pieces = [
        build.repeat([build.part(values[0], planes, layout), bias], layout.shape(shape, planes), place=place)
        for planes, place in places(layout)
    ]
    return [sliced(node.outputs[0], layout, pieces)]


@rule("Identity", "StopGradient", "PreventGradient", "EnsureShape", "Snapshot")
def alias(build: Builder, node: Node, values: Sequence[Value]) -> Sequence[Value] | None:
    """The result is the slabs themselves."""
    return [_renamed(values[0], node, 0)] if is_sliced(values) else None


@rule("IdentityN")
def aliases(build: Builder, node: Node, values: Sequence[Value]) -> Sequence[Value] | None:
    return [_renamed(v, node, i) for i, v in enumerate(values)] if is_sliced(values) else None


def _renamed(value: Value, node: Node, index: int) -> Value:
    spec = node.outputs[index]
    if isinstance(value, Sliced):
        return Sliced(spec, value.layout, value.pieces)
    return type(value)(value.ref, spec)


@rule("Softmax", "LogSoftmax")
def over_channels(build: Builder, node: Node, values: Sequence[Value]) -> Sequence[Value] | None:
    """The op works along the last axis, which is never the sliced one."""
    return _per_row(build, node, values)


@rule("SoftmaxCrossEntropyWithLogits", "SparseSoftmaxCrossEntropyWithLogits")
def cross_entropy(build: Builder, node: Node, values: Sequence[Value]) -> Sequence[Value] | None:
    """Rows of logits and labels -> a loss per row, and the gradient of the logits."""
    return _per_row(build, node, values)


@rule("TopKV2", "InTopKV2")
def best_of_a_row(build: Builder, node: Node, values: Sequence[Value]) -> Sequence[Value] | None:
    """Rows [and one index per row], and how many are wanted."""
    return _per_row(build, node, values[:-1], build.whole(values[-1]))


def _per_row(build: Builder, node: Node, values: Sequence[Value], *rest: Ref) -> Sequence[Value] | None:
    """Each output has the rows of the inputs; the last axis of the first input is worked on as a whole.

    rest: inputs that belong to no row.
    """
    shape = shape_of(values[0])
    layout = layout_of(build, values[:1], shape)
    if layout is None or layout.axis >= len(shape) - 1 or any(len(shape_of(v)) <= layout.axis for v in values):
        return None
    if not all(lined_up(v, layout, (*shape[: layout.axis + 1], *shape_of(v)[layout.axis + 1 :])) for v in values):
        return None
    made = []
    for planes, place in places(layout):
        parts = [build.part(v, planes, layout) for v in values]
        outputs = [(layout.shape(o.shape or (), planes), o.dtype) for o in node.outputs]
        made.append(build.make(node.type, [*parts, *rest], outputs, node.attributes, place=place))
    return [sliced(spec, layout, pieces) for spec, pieces in zip(node.outputs, zip(*made, strict=True), strict=True)]
