"""Networks, Keras only. Importing this package registers its layers, so that `keras.models.load_model` finds them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras

from models import chexnet, isensee2017, unet3d
from models.layers import ChannelDropout, InstanceNormalization, JoinedConv3D, NearestUpSampling3D

VOLUMES: dict[str, Callable[..., keras.Model]] = {"isensee2017": isensee2017.build, "unet3d": unet3d.build}
"""Networks that segment volumes, (B, D, H, W, C) -> (B, D, H, W, outputs)."""

IMAGES: dict[str, Callable[..., keras.Model]] = {
    "densenet121": chexnet.build_densenet121,
    "resnet50": chexnet.build_resnet50,
}
"""Networks that classify images, (B, H, W, 3) -> (B, outputs)."""

BUILDERS = {**VOLUMES, **IMAGES}
DIVISOR = 16  # both networks for volumes halve each axis four times

__all__ = [
    "BUILDERS",
    "DIVISOR",
    "IMAGES",
    "VOLUMES",
    "ChannelDropout",
    "InstanceNormalization",
    "JoinedConv3D",
    "NearestUpSampling3D",
    "build",
]


def build(name: str, *, input_shape: tuple[int | None, ...], outputs: int | None = None, **options: Any) -> keras.Model:
    """The network called `name`, freshly initialised: (B, *input_shape) -> probabilities in 0..1.

    input_shape: without the batch, (D, H, W, C) for volumes, where an axis may be None (any multiple of 16), or (H, W, 3)
    for images, at least 32 each. outputs: None is 3 for volumes, 14 for images. options: those of the network's `build`.
    Raises ValueError for an unknown name or a shape that the network cannot halve often enough.
    """
    if name not in BUILDERS:
        raise ValueError(f"unknown model {name!r}; expected one of {', '.join(sorted(BUILDERS))}")
    check = _check_image if name in IMAGES else _check_volume
    check(name, input_shape, options)
    return BUILDERS[name](input_shape, **({} if outputs is None else {"outputs": outputs}), **options)


def _check_volume(name: str, shape: tuple[int | None, ...], options: dict[str, Any]) -> None:
    divisor = 2 ** (len(options["filters"]) - 1) if "filters" in options else DIVISOR
    axes = shape[:-1]
    if len(axes) != 3 or any(axis is not None and (axis <= 0 or axis % divisor) for axis in axes):
        raise ValueError(f"{name}: each axis of the volume must be a multiple of {divisor}, received {shape}")


def _check_image(name: str, shape: tuple[int | None, ...], options: dict[str, Any]) -> None:
    smallest = chexnet.SMALLEST_SIDE
    if len(shape) != 3 or shape[-1] != 3 or any(axis is not None and axis < smallest for axis in shape[:-1]):
        raise ValueError(f"{name}: expected images (H, W, 3) of at least {smallest}x{smallest}, received {shape}")
