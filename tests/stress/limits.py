"""The zoo (`peaks.zoo`) under one limit after the other: shares of the memory that each network took without a plan, and of the
room that a pool needs for small tensors, which counts with networks as small as these.

A group is a network, a case a share. Under each limit the network trains three steps from the same weights, in a process whose pool
has that size. Either no plan fits, which is told with the smallest limit that would do, or the steps must end with the loss of the
unplanned ones, bit by bit. A peak that is off by more than `peaks.NEAR` is told.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import cache

from lms3d.device.pool_layout import FIRST_REGIONS_BYTES
from lms3d.errors import DoesNotFit
from lms3d.units import format_size
from tests.stress import peaks
from tests.stress.harness import Child, Options, Part, Result
from tests.stress.peaks import Trained

SHARES = ("1.0", "0.9", "0.8", "0.7", "0.6", "0.5", "0.4")
NETWORKS = (
    "V-Net",
    "SegResNet",
    "MedNeXt",
    "UNETR",
    "Swin UNETR",
    "VoxelMorph",
    "DenseNet",
    "FNO",
    "language model",
    "message passing",
    "MAML",
    "WGAN-GP",
    "BYOL",
    "nested functions",
    "recompute_grad",
    "map_fn",
    "neural ODE",
    "ConvLSTM",
    "long ConvLSTM",
    "bidirectional GRU",
)
"""Names in the zoo: of each kind of network one, the loops last."""


@cache
def _unplanned(network: str) -> Trained:
    """Three steps without a plan, once per process."""
    import lms3d

    lms3d.limit_memory(peaks.POOL)
    return peaks.train(peaks.zoo()[network])


def _limited(network: str, limit: int) -> Trained | int:
    """Three steps in a pool of so many bytes; the smallest limit that would do if no plan fits. In a process of its own."""
    import lms3d

    lms3d.limit_memory(limit)
    try:
        return peaks.train(peaks.zoo()[network])
    except DoesNotFit as error:
        return error.smallest_limit_bytes or 0


def _cases(options: Options, group: str) -> Sequence[str]:
    return SHARES


def _run(options: Options, group: str, case: str) -> Result:
    whole = _unplanned(group)
    limit, begun = int((whole.measured + FIRST_REGIONS_BYTES) * float(case)), time.monotonic()
    figures: dict[str, float] = {"unplanned_bytes": whole.measured, "limit_bytes": limit}
    with Child() as child:
        under = child.call(_limited, group, limit)
    if isinstance(under, int):
        told = (
            f"no plan for {format_size(limit)} of {format_size(whole.measured)}: the smallest is {format_size(under)}"
        )
        return Result(note=told, counts={"no plan": 1}, figures=figures | {"smallest_bytes": under})
    figures |= {"predicted_bytes": under.predicted, "measured_bytes": under.measured}
    figures["seconds"] = round(time.monotonic() - begun, 1)
    counts = {"planned": 1, peaks.kind(under): 1}
    return Result(wrong=peaks.wrong(whole, under, limit), note=peaks.words(under), counts=counts, figures=figures)


LIMITS = Part(groups=NETWORKS, cases=_cases, run=_run, fresh_groups=True, seconds=1800)
