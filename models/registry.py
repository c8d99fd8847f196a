"""The networks by name: the inputs that each takes, and the shapes that it can be built for.

@register("unet3d", takes=VOLUMES)
def build(input_shape, outputs=3, **options): ...
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import keras

from lms3d.models.topology import features, planned

VOLUMES = "volumes"
"""Segmentation: (B, D, H, W, C) -> probabilities (B, D, H, W, outputs)."""

IMAGES = "images"
"""Classification: (B, H, W, 3) -> probabilities (B, outputs)."""

DIVISOR = 16  # of each axis of a volume: without other strides the networks halve it four times
SMALLEST_SIDE = 32  # of an image: five halvings

Shape = tuple[int | None, ...]
Shapes = Mapping[str, Sequence[int]]
"""The path of a variable, such as "encoder0_a_conv/kernel" -> its shape."""
Build = TypeVar("Build", bound=Callable[..., keras.Model])


def _no_options(shapes: Shapes) -> dict[str, Any]:
    return {}


def _sized(levels: int) -> dict[str, Any]:
    return {"filters": features(levels, 16, 320)}


@dataclass(frozen=True, kw_only=True)
class Network:
    """A registered network."""

    build: Callable[..., keras.Model]
    takes: str
    """VOLUMES or IMAGES."""
    sized: Callable[..., dict[str, Any]]
    """A number of levels, and the name of a preset if the network has some -> the options that have one entry per level."""
    options_of: Callable[[Shapes], dict[str, Any]]
    """The options of `build` that follow from the shapes of the weights. A package that says others is refused."""


NETWORKS: dict[str, Network] = {}


def register(
    name: str, *, takes: str, sized: Callable[..., dict[str, Any]] = _sized,
    options_of: Callable[[Shapes], dict[str, Any]] = _no_options,
) -> Callable[[Build], Build]:  # fmt: skip
    """A decorator that adds a function (input_shape, outputs=..., **options) -> model. ValueError if the name is taken.

    sized, options_of: see `Network`.
    """
    if name in NETWORKS:
        raise ValueError(f"model {name!r}: the name is taken; choose another")

    def add(build: Build) -> Build:
        NETWORKS[name] = Network(build=build, takes=takes, sized=sized, options_of=options_of)
        return build

    return add


def names(takes: str) -> list[str]:
    """The names of the networks that take VOLUMES, or IMAGES, sorted."""
    return sorted(name for name, network in NETWORKS.items() if network.takes == takes)


def build(
    name: str,
    *,
    input_shape: Shape,
    outputs: int | None = None,
    spacing_mm: Sequence[float] | None = None,
    **options: Any,
) -> keras.Model:
    """The network called `name`, freshly initialised: (B, *input_shape) -> probabilities in 0..1.

    input_shape: without the batch. For volumes (D, H, W, C); an axis may be None, for any multiple of what the strides multiply to,
    by default 16. For images (H, W, 3), at least 32 each. outputs: None for the network's default. options: see the network's
    function. spacing_mm: the lengths of a volume's voxels, from which follow the strides and kernels of every level, and the number
    of levels unless `levels` or `filters` says it (`lms3d.models.topology`); None: all axes are halved at each level. preset: that
    of the network.
    ValueError for an unknown name, or for a shape that the network cannot halve often enough.
    """
    if name not in NETWORKS:
        raise ValueError(f"unknown model {name!r}; expected one of {', '.join(sorted(NETWORKS))}")
    network = NETWORKS[name]
    if spacing_mm is not None:
        options = _levelled(network, input_shape, spacing_mm, **options)
    {VOLUMES: _check_volume, IMAGES: _check_image}[network.takes](name, input_shape, options)
    return network.build(input_shape, **({} if outputs is None else {"outputs": outputs}), **options)


def _levelled(
    network: Network,
    shape: Shape,
    spacing_mm: Sequence[float],
    *,
    levels: int | None = None,
    preset: str | None = None,
    **options: Any,
) -> dict[str, Any]:
    """The options, with the strides, kernels and sizes of the levels that follow from the shape and the spacing."""
    levels = len(options["filters"]) if "filters" in options else levels
    topology = planned([n or 0 for n in shape[:-1]], spacing_mm, levels=levels)
    of_levels = {} if "filters" in options else network.sized(topology.levels, **({"preset": preset} if preset else {}))
    return {"strides": topology.strides, "kernels": topology.kernels, **of_levels, **options}


def _check_volume(name: str, shape: Shape, options: dict[str, Any]) -> None:
    divisors, axes = _divisors(options), shape[:-1]
    if len(axes) != 3 or any(n is not None and (n <= 0 or n % m) for n, m in zip(axes, divisors, strict=True)):
        wanted = str(divisors[0]) if len(set(divisors)) == 1 else "x".join(map(str, divisors))
        raise ValueError(f"{name}: each axis of the volume must be a multiple of {wanted}, received {shape}")


def _divisors(options: dict[str, Any]) -> tuple[int, ...]:
    """The numbers by which the axes of a volume must be divisible."""
    if options.get("strides"):
        return tuple(math.prod(of_axis) for of_axis in zip(*options["strides"], strict=True))
    return (2 ** (len(options["filters"]) - 1) if "filters" in options else DIVISOR,) * 3


def _check_image(name: str, shape: Shape, options: dict[str, Any]) -> None:
    if len(shape) != 3 or shape[-1] != 3 or any(axis is not None and axis < SMALLEST_SIDE for axis in shape[:-1]):
        raise ValueError(
            f"{name}: expected images (H, W, 3) of at least {SMALLEST_SIDE}x{SMALLEST_SIDE}, received {shape}"
        )
