"""The memory and cores that control groups (version 1 or 2) leave to this process, in a container or on a cluster."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_ROOT, _TABLE = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


def headrooms(root: Path = _ROOT, table: Path = _TABLE) -> list[int]:
    """The bytes left below the memory limit, for each control group that has one."""
    names = {
        1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        2: ("memory.max", "memory.current", "inactive_file"),
    }
    of_groups = [_headroom(folder, *names[version]) for folder, version in _groups("memory", root, table)]
    return [headroom for headroom in of_groups if headroom is not None]


def allowed_cores(processes: int = 1, *, root: Path = _ROOT, table: Path = _TABLE) -> int:
    """The number of cores that each of `processes` in the same container may keep busy: the cores that this process may run on
    (affinity, cpuset), or fewer if a group limits processor time (`docker run --cpus`). At least one.
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
        # In a container the path may name a group that is not mounted. Then the root is the container's own group.
        group = base / path.lstrip("/")
        for folder in {base, group, *(p for p in group.parents if base in p.parents)}:
            yield folder, version


def _headroom(folder: Path, limit_name: str, use_name: str, cache_key: str) -> int | None:
    """The limit less what is used and cannot be reclaimed from the file cache, in bytes; None without a limit."""
    try:
        limit = int((folder / limit_name).read_text())
        use = int((folder / use_name).read_text())
        statistics = dict(line.split()[:2] for line in (folder / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):  # there is no such group, or the limit is the word "max"
        return None
    return max(0, limit - use + int(statistics.get(cache_key, 0)))


def _quota(folder: Path, version: int) -> float | None:
    """The seconds of processor time per second that a group allows; None without a limit."""
    with suppress(OSError, ValueError, ZeroDivisionError):  # there is no such group, or the quota is the word "max"
        if version == 2:
            quota, period = map(int, (folder / "cpu.max").read_text().split())
        else:
            quota, period = (int((folder / f"cpu.cfs_{name}_us").read_text()) for name in ("quota", "period"))
        return quota / period if quota > 0 else None
    return None
