"""From a user's words to the engine's settings: limit, tier, planner and its parameters."""

from __future__ import annotations

from collections.abc import Callable
from difflib import get_close_matches
from inspect import signature
from typing import Any

from lms3d.device import memory
from lms3d.engine import tuning
from lms3d.engine.planners import PLANNERS
from lms3d.engine.planners.tflms.parameters import Parameters
from lms3d.engine.request import Settings
from lms3d.engine.slabs import choice
from lms3d.engine.slabs.choice import Wanted
from lms3d.engine.tiers import choose_tier
from lms3d.errors import InputError
from lms3d.units import format_size, parse_size

AUTO, OFF = "auto", "off"


def resolve(
    memory_limit: str | float | None,
    tier: str,
    planner: str,
    parameters: Parameters,
    *,
    slabs: Wanted = choice.AUTO,
    compile: str = OFF,
    hypothetical: bool = False,
    hard: bool = True,
    device: str | None = None,
) -> Settings:
    """memory_limit: None is the limit that was set, else what the device has. planner: a name in `PLANNERS`.

    hypothetical: nothing will run, so the limit may be above the one that was set, and counts as one that is in force; unless
    `hard` is False.
    device: the compute device, such as "GPU:0"; None: that of this machine.
    InputError for names that are unknown, and for a limit above the hard limit.
    """
    device, in_force = device or memory.compute_device(), memory.current_limit()
    limit = memory.device_memory_bytes() if memory_limit is None else parse_size(memory_limit)
    if not hypothetical and in_force is not None and limit > in_force:
        raise InputError(
            f"LMS(memory_limit={format_size(limit)}) is above the hard limit of {format_size(in_force)} that was set"
        )
    limited = in_force is not None or (hypothetical and hard and memory_limit is not None)
    return Settings(
        limit_bytes=limit,
        tier=choose_tier(tier, device),
        planner=planner,
        parameters=parameters,
        pool=pool_of(device, limited),
        slabs=slabs,
        compile=compile_of(compile),
        # To ask what a step without LMS would need is no reason to refuse it.
        most_elements=None if hypothetical and planner == "off" else most_elements_of(device),
    )


def parameters_of(given: dict[str, Any], taker: Callable[..., Any]) -> Parameters:
    """TFLMS's parameters; those that are None are left to be tuned. TypeError for an unknown name.

    taker: what was called with them, whose own arguments may have been meant.
    """
    known = Parameters.__dataclass_fields__
    unknown = sorted(set(given) - set(known))
    if unknown:
        own = [
            name
            for name, one in signature(taker).parameters.items()
            if one.kind is not one.VAR_KEYWORD and name != "self"
        ]
        alike = get_close_matches(unknown[0], [*own, *known], n=1)
        advice = f"did you mean {alike[0]}?" if alike else f"its arguments are {', '.join([*own, *known])}"
        name = taker.__qualname__.removesuffix(".__init__")
        raise TypeError(f"{name}: found no argument {unknown[0]!r}; {advice}")
    chosen: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in given.items() if v is not None}
    return Parameters(**chosen)


def compile_of(name: str) -> str:
    """ "auto" or "off"; InputError for anything else."""
    if name not in (AUTO, OFF):
        raise InputError(f"compile {name!r}: expected {AUTO} or {OFF}")
    return name


def planner_of(name: str, parameters: Parameters) -> str:
    """A name in `PLANNERS`. "auto": TFLMS as soon as one of its parameters is given, else hybrid."""
    if name == AUTO:
        return "hybrid" if parameters == Parameters() else "tflms"
    if name not in PLANNERS:
        raise InputError(f"planner {name!r}: expected one of {', '.join((AUTO, *PLANNERS.names))}")
    return name


def pool_of(device: str, limited: bool) -> str:
    """How the device's memory is handed out: see `lms3d.engine.step_model.allocator.POOLS`."""
    if device.startswith("GPU"):
        return "single"
    return "split" if limited else "none"


def most_elements_of(device: str) -> int | None:
    """Of a tensor that the device's kernels can index; None is any number."""
    return tuning.MOST_ELEMENTS if device.startswith("GPU") else None
