"""What this process holds of the host's memory, as the system counts it.

TensorFlow counts what its own allocator hands out, and of a GPU's pinned memory nothing; the system counts
both, and Python besides.
"""

from __future__ import annotations

from pathlib import Path

_COLUMNS = {"VmRSS": "host_bytes_in_use", "VmHWM": "host_peak_bytes"}


def resident_bytes(status: Path = Path("/proc/self/status")) -> dict[str, int]:
    """host_bytes_in_use: resident now, mapped files included; host_peak_bytes: most since the process began. {} but on Linux."""
    try:
        lines = status.read_text().splitlines()
    except OSError:
        return {}
    pairs = [line.split(":", 1) for line in lines if ":" in line]
    return {_COLUMNS[name]: int(value.split()[0]) << 10 for name, value in pairs if name in _COLUMNS}
