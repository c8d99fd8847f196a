"""Networks, Keras only. Importing this package registers its layers, so that `keras.models.load_model` finds them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras

from models import isensee2017, unet3d
from models.layers import ChannelDropout, InstanceNormalization, JoinedConv3D, NearestUpSampling3D

BUILDERS: dict[str, Callable[..., keras.Model]] = {"isensee2017": isensee2017.build, "unet3d": unet3d.build}
DIVISOR = 16  # both halve each axis four times

__all__ = [
    "BUILDERS",
    "DIVISOR",
    "ChannelDropout",
    "InstanceNormalization",
    "JoinedConv3D",
    "NearestUpSampling3D",
    "build",
]


def build(name: str, *, input_shape: tuple[int | None, ...], outputs: int = 3, **options: Any) -> keras.Model:
    """The network called `name`, freshly initialised: (B, *input_shape) -> (B, D, H, W, outputs) in 0..1.

    input_shape: (D, H, W, C) without the batch; an axis may be None (any multiple of 16).
    Raises ValueError for an unknown name or a shape that the network cannot halve often enough.
    """
    if name not in BUILDERS:
        raise ValueError(f"unknown model {name!r}; expected one of {', '.join(sorted(BUILDERS))}")
    divisor = 2 ** (len(options["filters"]) - 1) if "filters" in options else DIVISOR
    axes = input_shape[:-1]
    if len(axes) != 3 or any(axis is not None and (axis <= 0 or axis % divisor) for axis in axes):
        raise ValueError(f"{name}: each axis of the volume must be a multiple of {divisor}, received {input_shape}")
    return BUILDERS[name](input_shape, outputs, **options)
