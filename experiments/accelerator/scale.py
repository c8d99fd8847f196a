"""Which cubes under which limits, for how many steps: what a GPU is asked, and the same at toy size for a processor."""

from __future__ import annotations

from dataclasses import dataclass, field

from experiments.overhead import parts
from experiments.overhead.parts import MIB, Part

GIB = 1 << 30
STEP_OF_SIDES = 16
"""Networks halve a cube four times (`models.registry.DIVISOR`)."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """A cube, and a hard limit in MiB."""

    side: int
    limit_mib: int


@dataclass(frozen=True, kw_only=True)
class Scale:
    """What is measured.

    identity, tight, large: where LMS is compared with no LMS. small_mib: the limit of the smaller card whose largest cubes are
    looked for; whole_mib: that of the whole card, None: no limit. sides: the cubes that are tried.
    need_bytes: of a step without LMS for each voxel, and lms_share: of that need under LMS, both only to begin the search near
    its end. lms: the method, which copies back what it swapped, as a GPU must.
    least_seconds: with less time left no training is begun. side_by_side: how many are run at a time.
    """

    identity: Place
    tight: Place
    large: Place
    small_mib: int
    whole_mib: int | None
    sides: tuple[int, ...]
    need_bytes: float
    lms_share: float
    lms: str
    warm_up: int
    steps: int
    profiled: int
    least_seconds: float
    side_by_side: int = 1
    filters: tuple[int, ...] = ()
    half_precision: str = "mixed_bfloat16"
    model: str = field(default="isensee2017", init=False)

    def part(self, method: str, side: int, limit_mib: int | None, **more: object) -> Part:
        """A training whose step is timed and profiled. No neighbour runs beside it: the card is its own."""
        values = {"warm_up": self.warm_up, "steps": self.steps, "profiled": self.profiled, "timed": False, **more}
        return Part.of({
            "method": method, "model": self.model, "resolution": side, "limit_mib": limit_mib, "filters": self.filters, **values
        })  # fmt: skip

    def tried(self, method: str, side: int, limit_mib: int | None) -> Part:
        """A training that only tells whether it trains. The first plan of LMS may be corrected once."""
        return self.part(method, side, limit_mib, warm_up=1, steps=1, profiled=0)

    def guess(self, method: str, limit_bytes: float) -> int:
        """A cube near the largest that trains in so many bytes."""
        need = self.need_bytes * (1.0 if method == parts.NONE else self.lms_share)
        fitting = [side for side in self.sides if need * side**3 <= limit_bytes]
        return max(fitting, default=self.sides[0])


def of_gpu(half_precision: str, memory_bytes: int) -> Scale:
    """What the case study asked of a V100 with 16 GB, and what a whole card can do. memory_bytes: of the card."""
    small_mib = min(16 * 10**9, memory_bytes) // MIB  # of a card that has no more it is the whole
    return Scale(
        identity=Place(side=128, limit_mib=2048),
        tight=Place(side=192, limit_mib=5 * GIB // MIB),
        large=Place(side=256, limit_mib=small_mib),
        small_mib=small_mib,
        whole_mib=None,
        sides=tuple(range(128, 513, STEP_OF_SIDES)),
        need_bytes=12.2 * GIB / 192**3,  # traced on a CPU as for a GPU
        lms_share=0.1,  # half as much trains on a CPU (docs/slabs.md); cuDNN wants workspace, and time is short
        lms=parts.LMS,
        warm_up=2,
        steps=5,
        profiled=2,
        least_seconds=15.0,
        half_precision=half_precision,
    )


def of_rehearsal() -> Scale:
    """The same questions for two levels of the network, in limits of the same proportions, on a processor."""
    return Scale(
        identity=Place(side=48, limit_mib=66),
        tight=Place(side=48, limit_mib=66),
        large=Place(side=64, limit_mib=120),
        small_mib=120,
        whole_mib=1000,
        sides=(48, 64),
        need_bytes=860.0,
        lms_share=0.5,
        lms=parts.COPIED,
        warm_up=1,
        steps=2,
        profiled=1,
        least_seconds=2.0,
        side_by_side=2,
        filters=(8, 16),
    )
