"""The host memory of this process, as the system counts it.

TensorFlow counts only what its own allocator hands out, and no memory that is pinned for a GPU. The system counts both, and
Python's memory as well.
"""

from __future__ import annotations

from pathlib import Path

_COLUMNS = {"VmRSS": "host_bytes_in_use", "VmHWM": "host_peak_bytes"}


def resident_bytes(status: Path = Path("/proc/self/status")) -> dict[str, int]:
    """host_bytes_in_use: bytes resident now, mapped files included. host_peak_bytes: the most since the process began. {} if the
    system is not Linux."""
    try:
        lines = status.read_text().splitlines()
    except OSError:
        return {}
    pairs = [line.split(":", 1) for line in lines if ":" in line]
    return {_COLUMNS[name]: int(value.split()[0]) << 10 for name, value in pairs if name in _COLUMNS}
