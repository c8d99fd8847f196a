"""A user's words become the engine's settings: limit, tier, planner and its parameters."""

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
from lms3d.engine.step_model.pool import CPU_POOL, GPU_POOL, LIMITED_GPU_POOL, NO_POOL, Pool
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
    """The settings that these words ask for.

    memory_limit: None means the limit that was set, or else all that the device has. planner: a name in `PLANNERS`.
    hypothetical: nothing will run, so the limit may be above the hard limit that was set. It then counts as a hard limit itself,
    unless `hard` is False.
    device: the compute device, such as "GPU:0"; None means that of this machine.
    Raises InputError for an unknown name, and for a limit above the hard limit.
    """
    device, in_force = device or memory.compute_device(), memory.current_limit()
    limit = memory.device_memory_bytes() if memory_limit is None else parse_size(memory_limit)
    if not hypothetical and in_force is not None and limit > in_force:
        raise InputError(
            f"LMS(memory_limit={format_size(limit)}) is above the hard limit of {format_size(in_force)} that was set"
        )
    set_here = memory.splits_closely() if device.startswith("GPU") else in_force is not None
    limited = set_here or (hypothetical and hard and memory_limit is not None)
    return Settings(
        limit_bytes=limit,
        tier=choose_tier(tier, device),
        planner=planner,
        parameters=parameters,
        pool=pool_of(device, limited),
        slabs=slabs,
        compile=checked_compile(compile),
        # A question about a step without LMS deserves an answer, even if the step could not run.
        most_elements=None if hypothetical and planner == "off" else most_elements_of(device),
    )


def tflms_parameters(given: dict[str, Any], taker: Callable[..., Any]) -> Parameters:
    """TFLMS's parameters; each None will be tuned. TypeError for an unknown name.

    taker: the function that was called with them; an unknown name may be a misspelt argument of its own.
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


def checked_compile(name: str) -> str:
    """The name itself, "auto" or "off". InputError for any other."""
    if name not in (AUTO, OFF):
        raise InputError(f"compile {name!r}: expected {AUTO} or {OFF}")
    return name


def planner_name(name: str, parameters: Parameters) -> str:
    """The name of a planner in `PLANNERS`. "auto" is TFLMS if any of its parameters is given, and hybrid otherwise."""
    if name == AUTO:
        return "hybrid" if parameters == Parameters() else "tflms"
    if name not in PLANNERS:
        raise InputError(f"planner {name!r}: expected one of {', '.join((AUTO, *PLANNERS.names))}")
    return name


def pool_of(device: str, limited: bool) -> Pool:
    """How the device hands out its memory. limited: it has a hard limit."""
    if device.startswith("GPU"):
        return LIMITED_GPU_POOL if limited else GPU_POOL
    return CPU_POOL if limited else NO_POOL


def most_elements_of(device: str) -> int | None:
    """The most elements of a tensor that the device's kernels can index; None means any number."""
    return tuning.MOST_ELEMENTS if device.startswith("GPU") else None
