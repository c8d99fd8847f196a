"""cuDNN's workspace: memory that a convolution takes, beside its tensors, while it runs. Many of the fast algorithms need it.

TensorFlow lets a convolution choose among the algorithms whose workspace is within a limit. It reads this limit from the
environment once per process, at the first convolution. Filter gradients need the most: as much as their inputs. They are computed
in pieces that fit the limit (`engine.passes.pieces`). In one piece, a step of isensee2017 at 192^3 took 0.245 s within 256 MiB on
an H200, and 0.088 s within 1 GiB.

WORKSPACE-1  The user's choice holds: `--cudnn-workspace`, else the environment variable.
WORKSPACE-2  Otherwise the limit is a share of the memory limit, because no plan can give the memory of a workspace to tensors
             while the convolution runs.
WORKSPACE-3  If this card was measured (`python -m lms3d.doctor --workspaces`), the limit is the smallest one, up to that share,
             within which the convolutions of a step are about as fast as within any larger one up to that share.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lms3d import atomic_files
from lms3d.common import json_values
from lms3d.common.disk import cache_directory
from lms3d.device import machine

VARIABLE = "TF_CUDNN_WORKSPACE_LIMIT_IN_MB"
LEAST_BYTES, MOST_BYTES = 128 << 20, 4 << 30
"""The second is TensorFlow's default. With the first, 192^3 in 1,528 MiB is predicted to take 2.57 x in slabs on an H200, and with
64 MiB 2.97 x: plans for more pieces are worse. No card has measured either."""

SHARE = 16
"""The workspace may be 1 / SHARE of the memory limit. A smaller share leaves a plan more room, and makes more pieces: at 192^3 with
an H200's rates, predicted, 8 pieces of the largest filter gradients within 128 MiB cost 1.4 % of a step, and 16 within 64 MiB 3 %.
A step in 2,870 MiB takes a predicted 0.199 s within 1 GiB, 0.112 s within 256 MiB and 0.104 s within 128. No card has measured
pieces yet."""

WORTH = 1.02
"""A larger workspace must save more than 2 % of the convolutions' seconds to be worth its memory. The margin is chosen, not
measured."""

_MIB = 1 << 20


def workspace_limit_bytes(limit_bytes: int, seconds: Mapping[int, float] | None = None) -> int:
    """The workspace limit that suits a memory limit. seconds: workspace limit in MiB -> measured seconds of a step's
    convolutions."""
    share = max(LEAST_BYTES, limit_bytes // SHARE)
    possible = {mib: taken for mib, taken in (seconds or {}).items() if mib * _MIB <= share}
    if not possible:  # WORKSPACE-2
        return min(MOST_BYTES, 1 << (share.bit_length() - 1))
    fast_enough = WORTH * min(possible.values())  # WORKSPACE-3
    return min(mib for mib, taken in possible.items() if taken <= fast_enough) * _MIB


def asked_or_usual(limit_bytes: int) -> int:
    """The limit that the user has set (WORKSPACE-1), else the one that suits a memory limit on a card that was not measured."""
    return in_force() if VARIABLE in os.environ else workspace_limit_bytes(limit_bytes)


def put_in_force(limit_bytes: int, card: str | None) -> None:
    """Sets the limit, unless one is set already or there is no GPU. Call it before the first convolution. card: the GPU's model."""
    if card is not None and VARIABLE not in os.environ:
        set_limit(workspace_limit_bytes(limit_bytes, measured(card)))


def set_limit(limit_bytes: int) -> None:
    """Sets the limit of this process, in whole MiB. Call it before the first convolution."""
    os.environ[VARIABLE] = str(limit_bytes // _MIB)


def in_force() -> int:
    """The bytes of the limit that is set, else of TensorFlow's default."""
    limit_mib = os.environ.get(VARIABLE, "")
    return int(limit_mib) * _MIB if limit_mib.isdecimal() else MOST_BYTES


def measured(card: str) -> dict[int, float]:
    """Limit in MiB -> seconds, as `keep` stored them for this card, driver and TensorFlow; empty if nothing is stored."""
    table = _stored().get(_key(card))
    try:
        limits = {int(mib): float(seconds) for mib, seconds in table.items()} if isinstance(table, dict) else {}
    except (TypeError, ValueError):
        return {}
    return limits if all(mib > 0 and 0 < seconds < float("inf") for mib, seconds in limits.items()) else {}


def keep(card: str, seconds: Mapping[int, float]) -> None:
    """Stores measured seconds in the cache folder. StorageError if that cannot be written."""
    atomic_files.write_json(_store(), _stored() | {_key(card): {str(mib): taken for mib, taken in seconds.items()}})


def _key(card: str) -> str:
    import tensorflow as tf

    return f"{card}, driver {machine.nvidia_driver()}, TensorFlow {tf.__version__}, filter gradients in pieces"


def _store() -> Path:
    return cache_directory() / "workspaces.json"


def _stored() -> dict[str, Any]:
    try:
        known = json_values.parse(_store().read_text())
    except (OSError, ValueError):
        return {}
    return known if isinstance(known, dict) else {}
