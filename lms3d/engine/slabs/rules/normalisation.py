"""Fused normalisation, forward and backward, from statistics of slabs.

With n elements per channel, x^ = (x - mean) / sigma, sigma = sqrt(variance + epsilon):

BATCH-1  Training: TensorFlow's training kernel computes mean and variance of each slab (its result is thrown away). They are merged
         by the formulae of Chan, Golub and LeVeque (Updating formulae and a pairwise algorithm, 1979), for all slabs at once:
             mean = sum n_i mean_i / n,   variance = sum n_i (variance_i + (mean_i - mean)^2) / n.
         The inference kernel then applies them slab by slab.
BATCH-2  Its gradient: dx = gamma / sigma (dy - d_beta / n - x^ d_gamma / n), d_beta = sum dy, d_gamma = sum dy x^. The gradient
         kernel for frozen statistics gives gamma / sigma dy and both sums of each slab; the inference kernel with scale
         -gamma d_gamma / (sigma n) and offset -gamma d_beta / (sigma n) gives the rest.
BATCH-3  The saved statistics that a sliced gradient reads are mean and variance, as on a CPU. On a GPU a whole forward pass saves
         1 / sigma instead. So a gradient is sliced only if its forward pass was.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from lms3d.engine.slabs.rules.registry import places, rule, shape_of, sliced, summed
from lms3d.engine.slabs.rules.windows import channels_last, layout_of, part, readable
from lms3d.engine.slabs.sliced_step import Builder
from lms3d.engine.slabs.values import Node, Ref, SlabLayout, Value, Whole

_APPLY: dict[str, Any] = {"is_training": False, "exponential_avg_factor": 1.0}
_TAKE: dict[str, Any] = {"is_training": True, "exponential_avg_factor": 1.0}


@rule("FusedBatchNormV3")
def normalise(build: Builder, node: Node, values: Sequence[Value]) -> Sequence[Value] | None:
    """x, scale, offset, mean, variance -> y, mean, variance, and three tensors for the gradient (BATCH-1)."""
    x, layout = values[0], layout_of(build, values[0])
    if layout is None or not readable(x) or not channels_last(node):
        return None
    scale, offset, old_mean, old_variance = (build.whole(v) for v in values[1:5])
    if node.attributes["is_training"]:
        mean, variance = _statistics(build, node, x, layout)
        returned = _running(build, node, x, (mean, variance), (old_mean, old_variance))
    else:
        mean, variance = returned = (old_mean, old_variance)
    pieces = [
        _fused(build, node, part(build, x, planes), (scale, offset, mean, variance), _APPLY, place)[0]
        for planes, place in places(layout)
    ]
    nothing = build.constant(np.zeros(0), "float32")
    rest = [Whole(r, s) for r, s in zip((*returned, mean, variance, nothing), node.outputs[1:], strict=True)]
    return [sliced(node.outputs[0], layout, pieces), *rest]


def _fused(
    build: Builder, node: Node, x: Ref, others: Sequence[Ref], changed: dict[str, Any], place: float = 0.0
) -> tuple[Ref, ...]:
    """The kernel for a slab x. others: scale, offset, mean, variance."""
    vector, empty = (others[0].shape, "float32"), ((0,), "float32")
    kept = {k: node.attributes[k] for k in ("epsilon", "data_format")}
    outputs = [(x.shape, x.dtype), vector, vector, vector, vector, empty]
    return build.make("FusedBatchNormV3", [x, *others], outputs, kept | changed, place=place)


def _statistics(build: Builder, node: Node, x: Value, layout: SlabLayout) -> tuple[Ref, Ref]:
    """The mean and variance of all slabs together, each of shape (C,)."""
    channels = shape_of(x)[-1:]
    one, zero = (build.constant(np.full(channels, n), "float32") for n in (1.0, 0.0))
    none = build.constant(np.zeros(0), "float32")
    means, variances = [], []
    for planes, place in places(layout):
        _, mean, variance, *_ = _fused(build, node, part(build, x, planes), (one, zero, none, none), _TAKE, place)
        means.append(mean)
        variances.append(variance)
    return _merged(build, means, variances, [math.prod(layout.shape(shape_of(x), r)[:-1]) for r in layout.ranges])


def _merged(build: Builder, means: Sequence[Ref], variances: Sequence[Ref], counts: Sequence[int]) -> tuple[Ref, Ref]:
    """The statistics of all slabs together (BATCH-1). variances: with n_i - 1 in the denominator, as the kernel returns them on
    every device."""
    n, shape = sum(counts), means[0].shape
    stacked = (len(means), *shape)
    rows = [build.one("Pack", [tuple(one)], stacked, "float32", attributes={"axis": 0}) for one in (means, variances)]

    def share(numbers: Sequence[int]) -> Ref:
        return build.constant(np.array(numbers)[:, None] / n, "float32")

    def times(a: Ref, b: Ref) -> Ref:
        return build.one("Mul", [a, b], stacked, "float32")

    def total(rows: Ref) -> Ref:
        return build.one("Sum", [rows, np.int32(0)], shape, "float32", attributes={"keep_dims": False})

    mean = total(times(rows[0], share(counts)))
    between = times(build.one("SquaredDifference", [rows[0], mean], stacked, "float32"), share(counts))
    within = times(rows[1], share([c - 1 for c in counts]))
    variance = total(build.one("AddV2", [within, between], stacked, "float32"))
    return build.done(mean, "float32"), build.done(variance, "float32")


def _running(
    build: Builder, node: Node, x: Value, new: tuple[Ref, Ref], old: tuple[Ref, Ref]
) -> tuple[Ref, Ref]:  # fmt: skip
    """The mean and variance that the op returns: the variance with n - 1 in the denominator, both moved towards the old ones."""
    n, factor = math.prod(shape_of(x)[:-1]), float(node.attributes["exponential_avg_factor"])
    unbiased = _scaled(build, new[1], n / max(n - 1, 1))
    if factor == 1:
        return new[0], unbiased
    return tuple(  # type: ignore[return-value]
        build.one("AddV2", [_scaled(build, b, 1 - factor), _scaled(build, a, factor)], a.shape, "float32")
        for a, b in zip((new[0], unbiased), old, strict=True)
    )


def _scaled(build: Builder, ref: Ref, factor: float) -> Ref:
    return build.one("Mul", [ref, build.constant(np.float64(factor), ref.dtype)], ref.shape, ref.dtype)


@rule("FusedBatchNormGradV3")
def gradient(build: Builder, node: Node, values: Sequence[Value]) -> Sequence[Value] | None:
    """dy, x, scale, saved mean, saved variance, reserve -> dx, d_gamma, d_beta, and two empty tensors (BATCH-2)."""
    dy, x, training = values[0], values[1], node.attributes["is_training"]
    layout = layout_of(build, x)
    if layout is None or not readable(dy, x) or not channels_last(node):
        return None
    scale, mean, variance, nothing = (build.whole(v) for v in values[2:])
    if training and mean.trace:  # BATCH-3
        return None
    pieces: list[Ref] = []
    sums: list[Ref | None] = [None, None]
    for planes, place in places(layout):
        inputs = [part(build, dy, planes), part(build, x, planes), scale, mean, variance, nothing]
        outputs = [(inputs[0].shape, inputs[0].dtype), *((scale.shape, "float32"),) * 2, *(((0,), "float32"),) * 2]
        made = build.make(node.type, inputs, outputs, {**node.attributes, "is_training": False}, place=place)
        pieces.append(made[0])
        sums = [build.grow(total, one) for total, one in zip(sums, made[1:3], strict=True)]
    wholes = [summed(build, spec, total) for spec, total in zip(node.outputs[1:3], sums, strict=True) if total]
    if training:
        pieces = _corrected(build, node, x, layout, pieces, (scale, mean, variance), [w.ref for w in wholes])
    empty = [Whole(build.constant(np.zeros(0), "float32"), spec) for spec in node.outputs[3:]]
    return [sliced(node.outputs[0], layout, pieces), *wholes, *empty]


def _corrected(
    build: Builder, node: Node, x: Value, layout: SlabLayout, pieces: Sequence[Ref], fixed: tuple[Ref, Ref, Ref],
    sums: Sequence[Ref],
) -> list[Ref]:  # fmt: skip
    """gamma / sigma dy plus the terms of the statistics."""
    scale, mean, variance = fixed
    epsilon = build.constant(np.float64(node.attributes["epsilon"]), "float32")
    inverse = build.one(
        "Rsqrt", [build.one("AddV2", [variance, epsilon], scale.shape, "float32")], scale.shape, "float32"
    )
    slope = build.one("Mul", [scale, inverse], scale.shape, "float32")
    share = _scaled(build, slope, -1 / math.prod(shape_of(x)[:-1]))
    by_gamma, by_beta = (build.one("Mul", [share, s], scale.shape, "float32") for s in sums)
    corrected = []
    for piece, (planes, place) in zip(pieces, places(layout), strict=True):
        rest = _fused(build, node, part(build, x, planes), (by_gamma, by_beta, mean, variance), _APPLY, place)[0]
        corrected.append(build.one("AddV2", [piece, rest], piece.shape, piece.dtype, place=place))
    return corrected
