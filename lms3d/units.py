"""Sizes and durations in the form in which people write them."""

from __future__ import annotations

import math
import re
from numbers import Real

from lms3d.errors import InputError

_FACTORS = {"": 1, "B": 1} | {
    prefix + suffix: base**power
    for power, prefix in enumerate("KMGT", start=1)
    for suffix, base in (("IB", 1024), ("B", 1000), ("", 1024))
}


def parse_size(text: str | float) -> int:
    """The bytes of "6GiB", "900MiB", "4GB" (powers of 1000), "1.5G" (powers of 1024) or a number of bytes, such as 6e9. InputError
    for anything else."""
    if isinstance(text, Real) and math.isfinite(text):
        return _positive(int(text), text)
    if not isinstance(text, str):
        raise InputError(f"{text!r} is not a size; write for example '900MiB', '6GiB' or a number of bytes")
    match = re.fullmatch(r"\s*(\d{1,18}(?:\.\d+)?)\s*([A-Za-z]*)\s*", text)
    factor = _FACTORS.get(match.group(2).upper()) if match else None
    if match is None or factor is None:
        raise InputError(f"{text!r} is not a size; write for example 900MiB, 6GiB or 4GB")
    return _positive(round(float(match.group(1)) * factor), text)


def format_size(size_bytes: float) -> str:
    """1610612736 -> "1.50 GiB", 734003200 -> "700 MiB": three digits, binary units."""
    value, unit = float(size_bytes), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if abs(value) < 1000:
            break
        value, unit = value / 1024, larger
    if unit == "B":
        return f"{value:.0f} B"
    return f"{value:.{2 if abs(value) < 10 else 1 if abs(value) < 100 else 0}f} {unit}"


def format_seconds(seconds: float) -> str:
    """0.042 -> "42 ms", 7.25 -> "7.2 s", 754 -> "12 min 34 s", 9000 -> "2 h 30 min"."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min"


def _positive(size_bytes: int, written: object) -> int:
    if size_bytes <= 0:
        raise InputError(f"{written!r} is not a size; it must be larger than zero")
    return size_bytes
