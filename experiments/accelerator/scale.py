"""Which cubes under which limits, for how many steps: what a GPU is asked, and the same at toy size for a processor."""

from __future__ import annotations

from dataclasses import dataclass, field

from lms3d.experiments.harness import methods
from lms3d.experiments.harness.part import MIB, StudyPart

GIB = 1 << 30
STEP_OF_SIDES = 16
"""Networks halve a cube four times (`lms3d.models.registry.DIVISOR`)."""
GROWTH = 1.3
"""Memory that TensorFlow's allocator has reserved / its peak, if it grows without a limit. Of one H200, roughly."""
SWAPPED_SHARE = 1.2
"""The share of its need that a step takes if everything is swapped, without a limit. On an H200: 8.8 of 7.5 GiB."""
NEED_BYTES = 7.5 * GIB / 192**3
"""What a step without LMS needs for each voxel. Measured on an H200: 7.46 GiB at 192^3."""
LIMITS_MIB = (3820, 2521, 1528, 764)
"""50, 33, 20 and 10 % of 7.46 GiB, for each of which there is an aim (`aims.RATIOS`)."""
PEERS = (
    methods.TORCH, methods.TORCH_COMPILED, f"{methods.TORCH_COMPILED}, bfloat16", methods.TORCH_CHECKPOINT,
    methods.TORCH_SAVE_ON_CPU, f"{methods.TORCH_COMPILED}, activation_memory_budget 0.5",
)  # fmt: skip
LATER_PEERS = tuple(method for method in methods.TORCH_METHODS if method not in PEERS)


@dataclass(frozen=True, kw_only=True)
class CubeUnderLimit:
    """A cube, and a hard limit in MiB."""

    side: int
    limit_mib: int


@dataclass(frozen=True, kw_only=True)
class Scale:
    """What is measured.

    check: a small cube, in half of what it needs. limits_side, limits_mib: the cube whose step is compared with and without LMS,
    and its limits; rival_mib: the one of them that other plans have, too; refused_mib: so little that LMS names the floor.
    large: a cube that the smaller card has no room for. half: a cube in 16 bits.
    small_mib: the limit of the smaller card whose largest cubes are looked for; whole_mib: that of the whole card, None: no limit.
    sides: the cubes that are tried. need_bytes: of a step without LMS for each voxel, and lms_share: of that need under LMS, both
    to begin the search near its end. lms: the method, which copies back what it swapped, as a GPU must.
    least_seconds: with less time left no training is begun. side_by_side: how many warm up at a time. workspace_mib,
    check_workspace_mib: of cuDNN under LMS, and of the small cube, so small that it has filter gradients in pieces. One for
    all, since convolutions are measured anew for each. peers: the methods of PyTorch that matter most; later_peers: the others,
    once those have ended.
    """

    check: CubeUnderLimit
    limits_side: int
    limits_mib: tuple[int, ...]
    rival_mib: int
    refused_mib: int
    large: CubeUnderLimit
    half: CubeUnderLimit
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
    side_by_side: int
    workspace_mib: int
    check_workspace_mib: int
    filters: tuple[int, ...] = ()
    half_precision: str = "mixed_bfloat16"
    peers: tuple[str, ...] = ()
    later_peers: tuple[str, ...] = ()
    model: str = field(default="isensee2017", init=False)

    def part(self, method: str, side: int, limit_mib: int | None, **more: object) -> StudyPart:
        """A training whose step is timed and profiled. No neighbour runs beside it: the card is its own."""
        values = {"warm_up": self.warm_up, "steps": self.steps, "profiled": self.profiled, "timed": False, **more}
        return StudyPart.of({
            "method": method, "model": self.model, "resolution": side, "limit_mib": limit_mib, "filters": self.filters, **values
        })  # fmt: skip

    def compared(self, method: str, side: int, limit_mib: int | None, **more: object) -> StudyPart:
        """A training beside others of the same cube: without LMS with the usual workspace, else with what LMS takes."""
        workspace = None if method in (methods.NONE, methods.KERAS) else self.workspace_mib
        return self.part(method, side, limit_mib, **{"workspace_mib": workspace, **more})

    def checked(self, method: str, limit_mib: int | None, **more: object) -> StudyPart:
        """A training of the small cube, with LMS and without within the same workspace."""
        return self.part(method, self.check.side, limit_mib, **{"workspace_mib": self.check_workspace_mib, **more})

    def tried(self, method: str, side: int, limit_mib: int | None) -> StudyPart:
        """A training that only tells whether it trains. The first plan of LMS may be corrected once."""
        return self.part(method, side, limit_mib, warm_up=1, steps=1, profiled=0)

    def need(self, part: StudyPart) -> float:
        """About the bytes of the device that a training takes while it waits: its limit, or what its step needs."""
        if part.limit_mib is not None:
            return part.limit_mib * MIB
        share = SWAPPED_SHARE if part.method == methods.SWAP_ALL else 1.0
        return GROWTH * share * self.need_bytes * part.resolution**3

    def guess(self, method: str, limit_bytes: float) -> int:
        """A cube near the largest that trains in so many bytes."""
        need = self.need_bytes * (1.0 if method == methods.NONE else self.lms_share)
        fitting = [side for side in self.sides if need * side**3 <= limit_bytes]
        return max(fitting, default=self.sides[0])


def of_gpu(half_precision: str, memory_bytes: int, *, with_peers: bool = False) -> Scale:
    """What the case study asked of a V100 with 16 GB, and what a whole card can do. memory_bytes: that of the card. with_peers:
    whether PyTorch is there."""
    small_mib = min(16 * 10**9, memory_bytes) // MIB  # of a card that has no more it is the whole
    return Scale(
        check=CubeUnderLimit(side=96, limit_mib=768),
        limits_side=192,
        limits_mib=LIMITS_MIB,
        rival_mib=LIMITS_MIB[0],
        refused_mib=192,  # the weights, their slots and the batch alone take 223
        large=CubeUnderLimit(side=256, limit_mib=small_mib),
        half=CubeUnderLimit(side=192, limit_mib=3072),
        small_mib=small_mib,
        whole_mib=None,
        sides=tuple(range(128, 513, STEP_OF_SIDES)),
        need_bytes=NEED_BYTES,
        lms_share=0.1,  # half as much trains on a CPU (docs/slabs.md); cuDNN wants workspace, and time is short
        lms=methods.LMS,
        warm_up=4,  # before these steps of a plan LMS copies the variables
        steps=6,
        profiled=2,
        least_seconds=15.0,
        workspace_mib=128,  # what lms3d chooses below 4 GiB
        check_workspace_mib=64,
        side_by_side=10,  # on 16 cores the first run warmed up ten at a time
        half_precision=half_precision,
        peers=PEERS if with_peers else (),
        later_peers=LATER_PEERS if with_peers else (),
    )


def of_rehearsal(*, with_peers: bool = False) -> Scale:
    """The same questions for two levels of the network on a processor, which has no cuDNN: its workspaces change nothing. 48^3
    needs 67 MiB, and 13 at the floor."""
    return Scale(
        check=CubeUnderLimit(side=48, limit_mib=44),
        limits_side=48,
        limits_mib=(33, 22),
        rival_mib=33,
        refused_mib=8,
        large=CubeUnderLimit(side=64, limit_mib=120),
        half=CubeUnderLimit(side=48, limit_mib=33),
        small_mib=120,
        whole_mib=1000,
        sides=(48, 64),
        need_bytes=640.0,
        lms_share=0.5,
        lms=methods.COPIED,
        warm_up=1,
        steps=2,
        profiled=1,
        least_seconds=2.0,
        side_by_side=3,
        workspace_mib=64,
        check_workspace_mib=32,
        filters=(8, 16),
        peers=PEERS if with_peers else (),
        later_peers=LATER_PEERS if with_peers else (),
    )
