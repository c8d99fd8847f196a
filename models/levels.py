"""What the networks on volumes share: the options of their levels, and the probabilities of one or several heads."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import keras

from lms3d.models.registry import Shapes
from lms3d.models.topology import CUBE, Topology, Triple, regular

ACTIVATIONS = ("sigmoid", "softmax")
"""How logits become probabilities: each channel alone, or all channels of a voxel together, whose sum is then 1."""

HEADS = 3  # deep supervision: the outputs of this many top levels


def topology(levels: int, strides: Sequence[Sequence[int]] | None, kernels: Sequence[Sequence[int]] | None) -> Topology:
    """The options `strides` and `kernels` of a network; None: as for cubes. ValueError unless they are of so many levels."""
    cubes = regular(levels)
    made = Topology(
        strides=cubes.strides if strides is None else _triples(strides, (1, 2)),
        kernels=cubes.kernels if kernels is None else _triples(kernels, (1, 3)),
    )
    if not len(made.strides) == len(made.kernels) == levels or levels < 2 or made.strides[0] != (1, 1, 1):
        raise ValueError(
            f"found strides {made.strides} and kernels {made.kernels} for {levels} levels; expected one of each for every "
            "level, at least two, and 1 1 1 as the first stride"
        )
    return made


def _triples(numbers: Sequence[Sequence[int]], possible: tuple[int, ...]) -> tuple[Triple, ...]:
    found = []
    for one in numbers:
        first, second, third = one
        if not {first, second, third} <= set(possible):
            raise ValueError(f"found {tuple(one)}; expected {' or '.join(map(str, possible))} on each axis")
        found.append((first, second, third))
    return tuple(found)


def options_of(shapes: Shapes, first: str = r"(encoder\d|bottom)_a_conv/kernel") -> dict[str, Any]:
    """`Network.options_of`: "filters", and "kernels" unless all are cubes. first: the path of the first convolution of each level,
    with a group whose text sorts the levels."""
    levels = {m[1]: tuple(shape) for path, shape in shapes.items() if (m := re.fullmatch(first, path)) and shape}
    ordered = [levels[level] for level in sorted(levels, key=lambda level: (level == "bottom", level))]
    kernels = [list(shape[:3]) for shape in ordered]
    cubes = all(tuple(kernel) == CUBE for kernel in kernels)
    return {"filters": [shape[-1] for shape in ordered], **({} if cubes else {"kernels": kernels})}


def probabilities(heads: Sequence[keras.KerasTensor], activation: str) -> keras.KerasTensor:
    """The probabilities of one or several heads side by side: logits (B, D, H, W, C) each -> (B, D, H, W, C * heads).

    float32 under every policy: probabilities near 0 and 1 in half precision would spoil the loss. ValueError for an activation
    that is not one of ACTIVATIONS.
    """
    if activation not in ACTIVATIONS:
        raise ValueError(f"found activation {activation!r}; expected one of {', '.join(ACTIVATIONS)}")
    if activation == "softmax" and len(heads) > 1:
        each = [_activated(head, activation, f"head{level}_probabilities") for level, head in enumerate(heads)]
        return keras.layers.Concatenate(dtype="float32", name="probabilities")(each)
    logits = keras.layers.Concatenate(name="heads")(heads) if len(heads) > 1 else heads[0]
    return _activated(logits, activation, "probabilities")


def _activated(logits: keras.KerasTensor, activation: str, name: str) -> keras.KerasTensor:
    return keras.layers.Activation(activation, dtype="float32", name=name)(logits)
