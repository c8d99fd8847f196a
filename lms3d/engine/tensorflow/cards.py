"""The least that a GPU can do, by which a wrong measurement of its speeds is recognised. No TensorFlow here.

CARD-1  If machine files (lms3d/machines/*.json) name the card's chip, the slowest of their figures are the stated speeds.
CARD-2  Otherwise the compute capability tells cards with stacked memory from the others (`tuning.SLOWEST_CARDS`). A part of a
        card (MIG) counts as one of the others.
CARD-3  A measurement below `tuning.LEAST_SHARE` of the stated speed, or above the speed of any card, is refused and made again. If
        it is refused twice, the stated speed takes its place.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from lms3d.common import json_values
from lms3d.engine import tuning
from lms3d.engine.cost import Machine

log = logging.getLogger("lms3d")

_MACHINES = Path(__file__).parents[2] / "machines"
"""The folder of the machine files. They are read as data, since the package `lms3d.machines` stands above the engine."""


@dataclass(frozen=True, kw_only=True)
class Stated:
    """The speeds that a card reaches, and the source of the figures. Named as in `cost.Machine`."""

    flops_per_second: float
    bytes_per_second: float
    source: str


def stated(name: str, capability: tuple[int, int]) -> Stated:
    """The stated speeds of a card: by its name, such as "NVIDIA H100 80GB HBM3", and its compute capability (CARD-1, CARD-2)."""
    part = "MIG" in name
    if not part and (known := _in_files(name)):
        return known
    stacked = not part and capability in tuning.STACKED_MEMORY
    flops, rate = tuning.SLOWEST_CARDS["stacked memory" if stacked else "other memory"]
    source = f"any card of compute capability {'.'.join(map(str, capability))}"
    return Stated(flops_per_second=flops, bytes_per_second=rate, source=source)


def _in_files(name: str) -> Stated | None:
    """CARD-1."""
    chips = set(re.findall(r"\b[A-Z]{1,2}\d{2,3}\b", name))
    contents = {path: json_values.parse(path.read_bytes()) for path in sorted(_MACHINES.glob("*.json"))}
    named = {path: said for path, said in contents.items() if chips & set(re.findall(r"\w+", said["title"]))}
    if not named:
        return None
    return Stated(
        flops_per_second=min(said["forward_flops_per_second"]["value"] for said in named.values()),
        bytes_per_second=min(said["memory_bytes_per_second"]["value"] for said in named.values()),
        source=", ".join(f"machines/{path.name}" for path in named),
    )


def checked(measure: Callable[[], Machine], name: str, capability: tuple[int, int]) -> Machine:
    """The speeds that `measure` finds, or the stated ones if a card cannot have those (CARD-3)."""
    least = stated(name, capability)
    for _ in range(2):
        found = measure()
        wrong = _wrong(found, least)
        if not wrong:
            return found
        for field, (low, high) in wrong.items():
            log.warning(
                "lms: %s: measured %s %.3g, which no such card has: expected %.3g to %.3g (%s)",
                name, field, getattr(found, field), low, high, least.source,
            )  # fmt: skip
    log.warning("lms: %s: planning with what is stated of it; nothing else should run on the card meanwhile", name)
    return replace(found, **{field: getattr(least, field) for field in wrong})


def _wrong(found: Machine, least: Stated) -> dict[str, tuple[float, float]]:
    """Field -> (lowest, highest) of the speeds that the card cannot have."""
    ranges = {
        field: (tuning.LEAST_SHARE * getattr(least, field), highest) for field, highest in tuning.FASTEST_CARD.items()
    }
    return {field: ends for field, ends in ranges.items() if not ends[0] <= getattr(found, field) <= ends[1]}
