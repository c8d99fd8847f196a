"""What control groups (version 1 or 2), as a container or a cluster makes them, leave this process of the machine."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_ROOT, _TABLE = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


def headrooms(root: Path = _ROOT, table: Path = _TABLE) -> list[int]:
    """Bytes below the memory limit of each group that has one."""
    names = {
        1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        2: ("memory.max", "memory.current", "inactive_file"),
    }
    found = [_headroom(folder, *names[version]) for folder, version in _groups("memory", root, table)]
    return [headroom for headroom in found if headroom is not None]


def allowed_cores(processes: int = 1, *, root: Path = _ROOT, table: Path = _TABLE) -> int:
    """Cores that each of `processes` in the same container may keep busy: those that this one may run on (affinity, cpuset), or
    fewer where a group limits processor time (`docker run --cpus`). At least one.
    """
    quotas = [quota for quota in (_quota(*group) for group in _groups("cpu", root, table)) if quota is not None]
    return max(1, math.floor(min([len(os.sched_getaffinity(0)), *(quota / processes for quota in quotas)])))


def _groups(controller: str, root: Path, table: Path) -> Iterator[tuple[Path, int]]:
    """(folder, version) of each group around this process that `controller` may limit, in any order."""
    try:
        lines = table.read_text().splitlines()
    except OSError:
        return
    for line in lines:  # "0::/user.slice/..." (version 2) or "7:memory:/docker/..." (version 1)
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            base, version = root, 2
        elif controller in controllers.split(","):
            base, version = root / controller, 1
        else:
            continue
        # In a container the path may name a group that is not mounted: then the root is the container's own group.
        group = base / path.lstrip("/")
        for folder in {base, group, *(p for p in group.parents if base in p.parents)}:
            yield folder, version


def _headroom(folder: Path, limit_name: str, use_name: str, cache_key: str) -> int | None:
    """Limit - (use - reclaimable file cache) in bytes; None without a limit."""
    try:
        limit = int((folder / limit_name).read_text())
        use = int((folder / use_name).read_text())
        statistics = dict(line.split()[:2] for line in (folder / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):  # no such group, or the word "max"
        return None
    return max(0, limit - use + int(statistics.get(cache_key, 0)))


def _quota(folder: Path, version: int) -> float | None:
    """Seconds of processor time per second; None without a limit."""
    with suppress(OSError, ValueError, ZeroDivisionError):  # no such group, or the word "max"
        if version == 2:
            quota, period = map(int, (folder / "cpu.max").read_text().split())
        else:
            quota, period = (int((folder / f"cpu.cfs_{name}_us").read_text()) for name in ("quota", "period"))
        return quota / period if quota > 0 else None
    return None
