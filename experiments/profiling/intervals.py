"""Times as disjoint intervals, so that what happens at once counts once.

An interval is (begin, end) in picoseconds, begin < end: whole numbers, so that shares of one time add up to it exactly.
"""

from __future__ import annotations

from collections.abc import Iterable

Interval = tuple[int, int]


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """Disjoint and sorted, with the same points; touching intervals are joined, empty ones dropped."""
    joined: list[Interval] = []
    for begin, end in sorted(intervals):
        if end <= begin:
            continue
        if joined and begin <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((begin, end))
    return joined


def common(some: Iterable[Interval], others: Iterable[Interval]) -> list[Interval]:
    """The points of both. Disjoint and sorted, like the two that are given."""
    found, rest = [], list(others)
    place = 0
    for begin, end in some:
        while place < len(rest) and rest[place][1] <= begin:
            place += 1
        here = place
        while here < len(rest) and rest[here][0] < end:
            found.append((max(begin, rest[here][0]), min(end, rest[here][1])))
            here += 1
    return found


def between(some: Iterable[Interval], whole: Interval) -> list[Interval]:
    """The points of `whole` that are in none of these. Disjoint and sorted, like the given intervals."""
    found, at = [], whole[0]
    for begin, end in common(some, [whole]):
        if begin > at:
            found.append((at, begin))
        at = end
    if at < whole[1]:
        found.append((at, whole[1]))
    return found


def total(disjoint: Iterable[Interval]) -> int:
    """Picoseconds."""
    return sum(end - begin for begin, end in disjoint)
