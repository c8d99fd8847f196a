"""The parameters of TFLMS 2.0, checked. No TensorFlow here."""

from __future__ import annotations

import re
from dataclasses import dataclass

from lms3d.errors import InputError


@dataclass(frozen=True, kw_only=True)
class Parameters:
    """TFLMS's parameters. None: it is tuned to the memory limit.

    serialization: levels as ints or slices ("3:5", "7:", "::2"). serialization_by_size: GiB, 0 is off.
    n_tensors: swap only the first N candidates (0: none; None: all). include/exclude: name scopes (prefixes) and op types,
    for sources and for consumers; an empty include means everything.
    """

    swapout_threshold: int | None = None
    swapin_ahead: int | None = None
    swapin_groupby: int | None = None
    sync_mode: int | None = None
    serialization: tuple[int | str, ...] = ()
    serialization_by_size: float = 0.0
    n_tensors: int | None = None
    include_source_scopes: tuple[str, ...] = ()
    exclude_source_scopes: tuple[str, ...] = ()
    include_source_types: tuple[str, ...] = ()
    exclude_source_types: tuple[str, ...] = ()
    include_consumer_scopes: tuple[str, ...] = ()
    exclude_consumer_scopes: tuple[str, ...] = ()
    include_consumer_types: tuple[str, ...] = ()
    exclude_consumer_types: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("swapout_threshold", "swapin_ahead"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError(f"{name}={value}: expected 1 or more; leave it out to have it tuned")
        if self.sync_mode not in (None, 0, 1, 2, 3):
            raise InputError(f"sync_mode={self.sync_mode}: expected 0, 1, 2 or 3")
        if self.serialization_by_size < 0:
            raise InputError(
                f"serialization_by_size={self.serialization_by_size}: expected a size in GiB, or 0 for off"
            )
        if self.n_tensors is not None and self.n_tensors < 0:
            raise InputError(f"n_tensors={self.n_tensors}: expected 0 or more; leave it out for all")
        for level in self.serialization:
            level_slice(level)

    @property
    def fixed(self) -> bool:
        """Whether nothing is left to tune."""
        return None not in (self.swapout_threshold, self.swapin_ahead, self.swapin_groupby, self.sync_mode)


def level_slice(level: int | str) -> slice:
    """3 -> slice(3, 4); "3:5" -> slice(3, 5). InputError for anything else."""
    if isinstance(level, int):
        return slice(level, level + 1 or None)  # -1 is the highest level
    number = r"\s*(-?\d+)?\s*"
    match = re.fullmatch(f"{number}(:{number})?(:{number})?", level)
    numbers = [int(n) if n else None for n in match.group(1, 3, 5)] if match else []
    if numbers == [None, None, None] or not numbers or numbers[2] == 0:
        raise InputError(f"serialization level {level!r}: expected a number or a slice such as 3:5")
    return slice(*numbers) if ":" in level else level_slice(int(level))
