"""The networks by name: the inputs that each takes, and the shapes that it can be built for.

@register("unet3d", takes=VOLUMES)
def build(input_shape, outputs=3, **options): ...
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import keras

VOLUMES = "volumes"
"""Segmentation: (B, D, H, W, C) -> probabilities (B, D, H, W, outputs)."""

IMAGES = "images"
"""Classification: (B, H, W, 3) -> probabilities (B, outputs)."""

DIVISOR = 16  # of each axis of a volume: the networks halve it four times
SMALLEST_SIDE = 32  # of an image: five halvings

Shape = tuple[int | None, ...]
Build = TypeVar("Build", bound=Callable[..., keras.Model])


@dataclass(frozen=True, kw_only=True)
class Network:
    """A registered network."""

    build: Callable[..., keras.Model]
    takes: str
    """VOLUMES or IMAGES."""


NETWORKS: dict[str, Network] = {}


def register(name: str, *, takes: str) -> Callable[[Build], Build]:
    """A decorator that adds a function (input_shape, outputs=..., **options) -> model. ValueError if the name is taken."""
    if name in NETWORKS:
        raise ValueError(f"model {name!r}: the name is taken; choose another")

    def add(build: Build) -> Build:
        NETWORKS[name] = Network(build=build, takes=takes)
        return build

    return add


def names(takes: str) -> list[str]:
    """The names of the networks that take VOLUMES, or IMAGES, sorted."""
    return sorted(name for name, network in NETWORKS.items() if network.takes == takes)


def build(name: str, *, input_shape: Shape, outputs: int | None = None, **options: Any) -> keras.Model:
    """The network called `name`, freshly initialised: (B, *input_shape) -> probabilities in 0..1.

    input_shape: without the batch. For volumes (D, H, W, C); an axis may be None, for any multiple of 16. For images (H, W, 3), at
    least 32 each. outputs: None for the network's default. options: those of the network's function.
    ValueError for an unknown name, or for a shape that the network cannot halve often enough.
    """
    if name not in NETWORKS:
        raise ValueError(f"unknown model {name!r}; expected one of {', '.join(sorted(NETWORKS))}")
    network = NETWORKS[name]
    {VOLUMES: _check_volume, IMAGES: _check_image}[network.takes](name, input_shape, options)
    return network.build(input_shape, **({} if outputs is None else {"outputs": outputs}), **options)


def _check_volume(name: str, shape: Shape, options: dict[str, Any]) -> None:
    divisor = 2 ** (len(options["filters"]) - 1) if "filters" in options else DIVISOR
    axes = shape[:-1]
    if len(axes) != 3 or any(axis is not None and (axis <= 0 or axis % divisor) for axis in axes):
        raise ValueError(f"{name}: each axis of the volume must be a multiple of {divisor}, received {shape}")


def _check_image(name: str, shape: Shape, options: dict[str, Any]) -> None:
    if len(shape) != 3 or shape[-1] != 3 or any(axis is not None and axis < SMALLEST_SIDE for axis in shape[:-1]):
        raise ValueError(
            f"{name}: expected images (H, W, 3) of at least {SMALLEST_SIDE}x{SMALLEST_SIDE}, received {shape}"
        )
