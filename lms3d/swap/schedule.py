"""Decisions -> an explicit schedule: what runs when, which copy of a buffer each reader gets, bytes and seconds. No TensorFlow.

Events are the anchors in their order, and before an anchor the ops that are recomputed for it. Rules:
 1. A buffer's reads fall into segments: a gap of more than `split` anchors starts a new one. A kept buffer has one segment.
 2. Segment 0 uses the original. Each further segment has a copy, swapped in or recomputed just before its first read.
 3. Recomputing reads the parents at that moment: these reads join the parents' own segments (parents are older, so one
    pass from the youngest buffer to the oldest settles everything).
 4. The links to and from the tier are serial. A swap-out starts when the buffer exists and holds the original until it is
    complete (tight: the next event waits for it). A swap-in is issued as late as hides its transfer (tight: just before its
    reader, which waits).
 5. A forwarding op writes into an input copy that ends with it.
"""

from __future__ import annotations

import bisect
import enum
from collections import defaultdict
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from lms3d.swap.cost import Machine
from lms3d.swap.problem import Problem

SPLIT = 3  # anchors: shorter gaps are never worth a copy


class Mode(enum.IntEnum):
    KEEP = 0
    SWAP = 1
    RECOMPUTE = 2


@dataclass(frozen=True)
class Choice:
    """What happens to one buffer. `tight_out`, `tight_in`, `split`: rules 4 and 1."""

    mode: Mode = Mode.KEEP
    tight_out: bool = False
    tight_in: bool = False
    split: int = SPLIT


KEEP = Choice()


class Reader(NamedTuple):
    """Who reads a buffer, sortable by time: before anchor `anchor` the recomputing of `buffer`, or the anchor itself."""

    anchor: int
    buffer: int  # len(buffers) for the anchor itself


@dataclass(slots=True)
class Copy:
    """One life of a buffer: events `start`..`end` inclusive; `number` 0 is the original; `heir` takes over its memory."""

    buffer: int
    number: int
    start: int
    end: int
    readers: list[Reader]
    first_read: int
    heir: Copy | None = None


@dataclass
class Schedule:
    """The result. `events[i]` is (anchor, buffer) as in `Reader`; arrays are per event."""

    events: list[Reader]
    copies: list[Copy]
    live_bytes: np.ndarray
    seconds: float
    stall_seconds: float
    release: dict[int, int] = field(default_factory=dict)  # swapped buffer -> event that waits for its swap-out
    base_bytes: int = 0

    @property
    def peak_bytes(self) -> int:
        return int(self.live_bytes.max(initial=self.base_bytes))


def build(problem: Problem, choices: dict[int, Choice], machine: Machine) -> Schedule:
    """The schedule for `choices` (buffers that are not named are kept)."""
    segments, events = _segments(problem, choices)
    number = {event: i for i, event in enumerate(events)}
    seconds = np.array(
        [
            problem.seconds[e.anchor] if e.buffer == len(problem.buffers) else problem.buffers[e.buffer].seconds
            for e in events
        ]
    )
    begins = np.concatenate([[0.0], seconds.cumsum()])
    copies = _copies(problem, choices, segments, number, len(events))
    release = _place_swaps(problem, choices, copies, begins, machine)
    _forward(problem, copies, number)
    live = np.full(len(events) + 1, 0, np.int64)
    for copy in copies:
        live[copy.start] += problem.buffers[copy.buffer].bytes
        live[copy.end + 1] -= problem.buffers[copy.buffer].bytes
    live = live.cumsum()[:-1] + problem.base_bytes
    workspaces = [problem.workspace_bytes[e.anchor] if e.buffer == len(problem.buffers) else 0 for e in events]
    live += np.array(workspaces, np.int64)
    originals = {c.buffer: c for c in copies if c.number == 0 and c.buffer in release}
    release = {b: min(originals[b].end + 1, len(events) - 1) for b in release if originals[b].end + 1 < len(events)}
    total = _timeline(problem, choices, copies, release, seconds, machine)
    return Schedule(events, copies, live, total, total - float(seconds.sum()), release, problem.base_bytes)


def _segments(problem: Problem, choices: dict[int, Choice]) -> tuple[dict[int, list[list[Reader]]], list[Reader]]:
    """Rules 1 to 3: readers of each buffer by segment, and all events in order."""
    itself = len(problem.buffers)
    extra: dict[int, list[Reader]] = defaultdict(list)
    events = [Reader(i, itself) for i in range(len(problem.anchors))]
    found: dict[int, list[list[Reader]]] = {}
    for b in sorted(range(itself), key=lambda b: -problem.buffers[b].defined):
        buffer, choice = problem.buffers[b], choices.get(b, KEEP)
        readers = [Reader(r, itself) for r in buffer.reads] + extra[b]
        readers.sort()
        if choice.mode is Mode.KEEP:
            found[b] = [readers]
            continue
        segments: list[list[Reader]] = [[]]
        last = buffer.defined
        for reader in readers:
            if reader.anchor - last > choice.split:
                segments.append([])
            segments[-1].append(reader)
            last = reader.anchor
        found[b] = segments
        if choice.mode is Mode.RECOMPUTE:
            for segment in segments[1:]:
                event = Reader(segment[0].anchor, b)
                events.append(event)
                for parent in buffer.parents:
                    extra[parent].append(event)
    # Among recomputed ops before one anchor the older buffer comes first, since the younger may read it.
    rank = [b.defined for b in problem.buffers] + [len(problem.anchors)]
    events.sort(key=lambda e: (e.anchor, rank[e.buffer], e.buffer))
    return found, events


def _copies(
    problem: Problem,
    choices: dict[int, Choice],
    segments: dict[int, list[list[Reader]]],
    number: dict[Reader, int],
    count: int,
) -> list[Copy]:
    copies = []
    itself = len(problem.buffers)
    for b, parts in segments.items():
        buffer = problem.buffers[b]
        for k, readers in enumerate(parts):
            at = [number[r] for r in readers]
            first = number[Reader(buffer.defined, itself)] if k == 0 else min(at)
            if k and choices[b].mode is Mode.RECOMPUTE:
                first = number[Reader(readers[0].anchor, b)]
            end = count - 1 if buffer.returned else max(at, default=first)
            copies.append(Copy(b, k, first, max(end, first), readers, min(at, default=first)))
    return copies


def _place_swaps(
    problem: Problem, choices: dict[int, Choice], copies: list[Copy], begins: np.ndarray, machine: Machine
) -> dict[int, int]:
    """Rule 4: lengthen originals until they are written, start swap-ins early enough. Returns buffer -> release event."""
    swapped = [c for c in copies if choices.get(c.buffer, KEEP).mode is Mode.SWAP]
    back = {c.buffer for c in swapped if c.number}
    release: dict[int, int] = {}
    free_at = 0.0
    last_event = len(begins) - 2
    for copy in sorted((c for c in swapped if c.number == 0 and c.buffer in back), key=lambda c: c.start):
        seconds = problem.buffers[copy.buffer].bytes / machine.swap_out_bytes_per_second
        free_at = max(free_at, begins[copy.start + 1]) + seconds
        complete = int(np.searchsorted(begins[:-1], free_at))
        if choices[copy.buffer].tight_out:
            complete = copy.start + 1
        release[copy.buffer] = min(complete, last_event)
        copy.end = max(copy.end, release[copy.buffer] - 1)
    needed_by = float("inf")
    for copy in sorted((c for c in swapped if c.number), key=lambda c: -c.first_read):
        seconds = problem.buffers[copy.buffer].bytes / machine.swap_in_bytes_per_second
        needed_by = min(needed_by, begins[copy.first_read]) - seconds
        issue = bisect.bisect_right(begins, needed_by) - 1
        out = release[copy.buffer]
        copy.start = copy.first_read if choices[copy.buffer].tight_in else max(min(issue, copy.first_read), out, 1)
        copy.start = min(copy.start, copy.first_read)
    return release


def _forward(problem: Problem, copies: list[Copy], number: dict[Reader, int]) -> None:
    """Rule 5: an input that ends where an op may write in place ends one event earlier, its bytes are taken over."""
    ending: dict[int, list[Copy]] = defaultdict(list)
    for copy in copies:
        ending[copy.end].append(copy)
    for copy in copies:
        buffer = problem.buffers[copy.buffer]
        if not buffer.in_place:
            continue
        event = number[Reader(buffer.defined, len(problem.buffers))] if copy.number == 0 else copy.start
        for old in ending[event]:
            if old.buffer in buffer.parents and problem.buffers[old.buffer].bytes == buffer.bytes and old.start < event:
                old.end -= 1
                old.heir = copy
                ending[event].remove(old)
                break


def _timeline(
    problem: Problem,
    choices: dict[int, Choice],
    copies: list[Copy],
    release: dict[int, int],
    seconds: np.ndarray,
    machine: Machine,
) -> float:
    """Seconds of the step: compute and both links are serial resources, waits as in the schedule."""
    starts: dict[int, list[Copy]] = defaultdict(list)
    needs: dict[int, list[int]] = defaultdict(list)
    for i, copy in enumerate(copies):
        if choices.get(copy.buffer, KEEP).mode is Mode.SWAP and (copy.number or copy.buffer in release):
            starts[copy.start].append(copy)
            if copy.number:
                needs[copy.first_read].append(i)
    key = {(c.buffer, c.number): i for i, c in enumerate(copies)}
    waits: dict[int, list[int]] = defaultdict(list)
    for buffer, event in release.items():
        waits[event].append(buffer)
    written: dict[int, float] = {}
    arrived: dict[int, float] = {}
    now = out_free = in_free = 0.0
    for event in range(len(seconds)):
        for copy in starts[event]:
            if copy.number:
                begin = max(in_free, now, written.get(copy.buffer, 0.0))
                in_free = begin + problem.buffers[copy.buffer].bytes / machine.swap_in_bytes_per_second
                arrived[key[copy.buffer, copy.number]] = in_free
        now = max([now, *(arrived[i] for i in needs[event]), *(written.get(b, 0.0) for b in waits[event])])
        now += seconds[event]
        for copy in starts[event]:
            if copy.number == 0:
                out_free = max(out_free, now) + problem.buffers[copy.buffer].bytes / machine.swap_out_bytes_per_second
                written[copy.buffer] = out_free
    return max(now, out_free)
