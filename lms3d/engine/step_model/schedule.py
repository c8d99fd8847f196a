"""Decisions -> an explicit schedule: what runs when, which copy of a buffer each reader gets, bytes and seconds. No TensorFlow.

Events are the anchors in their order, and before an anchor the ops that are recomputed for it.

SCHEDULE-1  A buffer's reads fall into segments. A kept buffer has one. Of another buffer, a gap of more than `split` anchors ends
            the first segment; a gap of more than `split` and of more than `later_split` anchors ends a later one.
SCHEDULE-2  Segment 0 uses the original. Each further segment has a copy, swapped in or recomputed just before its first read. A
            swapped buffer can have both: a segment with a read at an anchor of `recompute_at` is recomputed.
SCHEDULE-3  Recomputing reads the parents at that moment. These reads join the parents' own segments. Parents are older, so one
            pass from the youngest buffer to the oldest settles everything.
SCHEDULE-4  The links to and from the tier are serial. A swap-out starts when the buffer exists, and holds the original until it is
            complete (tight: the next event waits for it). A swap-in starts as late as still hides its transfer (tight: just before
            its reader, which waits). A planner may let it start earlier (`starts`).
SCHEDULE-5  A forwarding op writes into an input copy that ends with it, which may be a swap-in that starts with it. It does not
            write into an original that goes to the tier. If it read a part of the copy, it holds all of it from then on.
SCHEDULE-6  A mapped buffer, once swapped out, is read in place: its swap-ins take neither memory nor time, and nobody writes into
            them. They are called `LEAD` events ahead.
SCHEDULE-7  Nothing is recomputed from a variable after its update: a copy would hold the old value, and TensorFlow would move the
            variable to another piece of memory (`lms3d.engine.passes.updates`). No gap from there on ends a segment of a buffer
            that would be recomputed, and `recompute_at` says nothing there.
"""

from __future__ import annotations

import bisect
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from lms3d.engine.cost import Machine
from lms3d.engine.step_model import ledger
from lms3d.engine.step_model.decisions import KEEP, Choice, Mode
from lms3d.engine.step_model.problem import Buffer, Event, Problem
from lms3d.engine.tuning import LEAD


@dataclass(slots=True)
class Copy:
    """One life of a buffer, from event `start` to event `end`, both included. number: 0 is the original.

    mode: where the copy comes from; KEEP for the original. last_read: as `end`, without the wait for its swap-out. bytes: on the
    device (SCHEDULE-6), more than the buffer's if it took over more (SCHEDULE-5). heir: the copy that takes over its memory. A
    swap-in that ends before its start only allocates the memory of its heir (SCHEDULE-5).
    """

    buffer: int
    number: int
    mode: Mode
    start: int
    end: int
    readers: Sequence[Event]
    first_read: int
    last_read: int
    bytes: int
    heir: Copy | None = None


@dataclass
class Schedule:
    """Events, copies, and what they take.

    live_bytes: int64, shape (events,). release: swapped buffer -> event that waits for its swap-out.
    """

    events: list[Event]
    copies: list[Copy]
    live_bytes: np.ndarray
    seconds: float
    stall_seconds: float
    release: dict[int, int] = field(default_factory=dict)
    base_bytes: int = 0
    transfer_price_seconds: float = 0.0

    @property
    def cost_seconds(self) -> float:
        """What the planner minimises: the seconds of the step, plus a price for the transfers."""
        return self.seconds + self.transfer_price_seconds

    @property
    def peak_bytes(self) -> int:
        return int(self.live_bytes.max(initial=self.base_bytes))


def build(
    problem: Problem, choices: dict[int, Choice], machine: Machine, starts: Mapping[tuple[int, int], int] | None = None
) -> Schedule:
    """The schedule for `choices`. Buffers that they do not name are kept.

    starts: (buffer, number of the copy) -> event, for swap-ins that begin earlier than by SCHEDULE-4.
    """
    segments, recomputed = _segments(problem, choices)
    before = np.fromiter((e.anchor for e in recomputed), np.intp, len(recomputed))
    numbers = np.arange(len(problem.anchors))
    anchor_at = numbers + np.searchsorted(before, numbers, side="right")  # anchor -> event
    recomputed_at = before + np.arange(len(recomputed))
    seconds = np.empty(len(problem.anchors) + len(recomputed))
    seconds[anchor_at] = problem.seconds
    seconds[recomputed_at] = [problem.buffers[e.buffer].seconds for e in recomputed]
    begins = [0.0, *seconds.cumsum().tolist()]
    at = anchor_at.tolist()
    event_of = dict(zip(recomputed, recomputed_at.tolist(), strict=True))
    copies = _copies(problem, choices, segments, at, event_of, len(seconds))
    release = _place_swaps(problem, choices, copies, begins, machine)
    if starts:
        for copy in copies:
            copy.start = starts.get((copy.buffer, copy.number), copy.start)
    _forward(problem, copies, at, release)
    live = ledger.live_bytes(copies, len(seconds)) + problem.base_bytes
    live[anchor_at] += problem.small_bytes + problem.workspace_bytes
    workspaces = np.fromiter((problem.buffers[e.buffer].workspace_bytes for e in recomputed), np.int64, len(recomputed))
    live[recomputed_at] += problem.small_bytes[before] + workspaces
    ended = {c.buffer: c.end for c in copies if c.number == 0 and c.buffer in release}
    release = {b: ended[b] + 1 for b in release if ended[b] + 1 < len(seconds)}
    total = _timeline(problem, copies, release, begins, machine)
    transfers = machine.transfer_price * _transfer_seconds(problem, copies, machine)
    transfers += machine.node_seconds * nodes(copies)
    events = _events(problem, recomputed)
    return Schedule(events, copies, live, total, total - begins[-1], release, problem.base_bytes, transfers)


def _segments(problem: Problem, choices: dict[int, Choice]) -> tuple[dict[int, list[list[Event]]], list[Event]]:
    """The readers of each moved buffer by segment, and the recomputed events in order (SCHEDULE-1 to 3)."""
    extra: dict[int, list[Event]] = defaultdict(list)
    recomputed: list[Event] = []
    by_buffer: dict[int, list[list[Event]]] = {}
    for b in problem.youngest_first:
        choice = choices.get(b, KEEP)
        if choice.mode is Mode.KEEP and b not in extra:
            continue
        buffer = problem.buffers[b]
        readers = [*problem.readers[b]]
        if b in extra:
            readers += extra[b]
            readers.sort()
        if choice.mode is Mode.KEEP:
            by_buffer[b] = [readers]
            continue
        segments: list[list[Event]] = [[]]
        last = buffer.defined
        for reader in readers:
            too_late = choice.mode is Mode.RECOMPUTE and reader.anchor > buffer.last_recompute  # SCHEDULE-7
            if not too_late and choice.cuts(reader.anchor - last, first=len(segments) == 1):  # SCHEDULE-1
                segments.append([])
            segments[-1].append(reader)
            last = reader.anchor
        by_buffer[b] = segments
        for segment in segments[1:]:
            if _source(buffer, choice, segment) is Mode.RECOMPUTE:
                event = Event(segment[0].anchor, b)
                recomputed.append(event)
                for parent in buffer.parents:  # SCHEDULE-3
                    extra[parent].append(event)
    # Before one anchor the older buffer comes first, since the younger may read it.
    recomputed.sort(key=lambda e: (e.anchor, problem.buffers[e.buffer].defined, e.buffer))
    return by_buffer, recomputed


def _events(problem: Problem, recomputed: list[Event]) -> list[Event]:
    events: list[Event] = []
    done = 0
    for event in recomputed:
        events += problem.anchor_events[done : event.anchor]
        done = event.anchor
        events.append(event)
    return [*events, *problem.anchor_events[done:]]


def _source(buffer: Buffer, choice: Choice, readers: Sequence[Event]) -> Mode:
    """The mode of the copy for a segment of a moved buffer."""
    in_time = readers[0].anchor <= buffer.last_recompute  # SCHEDULE-7
    if in_time and choice.recompute_at and any(r.anchor in choice.recompute_at for r in readers):  # SCHEDULE-2
        return Mode.RECOMPUTE
    return choice.mode


def _copies(
    problem: Problem,
    choices: dict[int, Choice],
    segments: dict[int, list[list[Event]]],
    at: list[int],
    event_of: dict[Event, int],
    count: int,
) -> list[Copy]:
    copies = []
    for b, defined, first_read, last, whole, size in problem.kept_lives:
        if b not in segments:  # kept, and read by anchors only
            end = at[last]
            copies.append(Copy(b, 0, Mode.KEEP, at[defined], end, whole, at[first_read], end, size))
            continue
        buffer = problem.buffers[b]
        for k, readers in enumerate(segments[b]):
            reads = [event_of[r] if r in event_of else at[r.anchor] for r in readers]
            first = at[buffer.defined] if k == 0 else min(reads)
            first_read = min(reads, default=first)
            mode = _source(buffer, choices[b], readers) if k else Mode.KEEP
            if mode is Mode.RECOMPUTE:
                first = event_of[Event(readers[0].anchor, b)]
            end = count - 1 if buffer.returned else max(reads, default=first)
            size = 0 if buffer.mapped and mode is Mode.SWAP else buffer.bytes
            copies.append(Copy(b, k, mode, first, max(end, first), readers, first_read, end, size))
    return copies


def _place_swaps(
    problem: Problem, choices: dict[int, Choice], copies: list[Copy], begins: list[float], machine: Machine
) -> dict[int, int]:
    """Holds originals until they are written, and starts swap-ins early enough (SCHEDULE-4). Returns buffer -> release event."""
    swapped_in = [c for c in copies if c.mode is Mode.SWAP]
    back = {c.buffer for c in swapped_in}
    originals = [c for c in copies if c.number == 0 and c.buffer in back]
    release: dict[int, int] = {}
    free_at = 0.0
    last_event = len(begins) - 2
    for copy in sorted(originals, key=lambda c: c.start):
        seconds = problem.buffers[copy.buffer].bytes / machine.swap_out_bytes_per_second
        free_at = max(free_at, begins[copy.start + 1]) + seconds
        complete = bisect.bisect_left(begins, free_at, 0, len(begins) - 1)
        if choices[copy.buffer].tight_out:
            complete = copy.start + 1
        release[copy.buffer] = min(complete, last_event)
        copy.end = max(copy.end, release[copy.buffer] - 1)
    defined_at = {copy.buffer: copy.start for copy in originals}
    needed_by = float("inf")
    for copy in sorted(swapped_in, key=lambda c: -c.first_read):
        seconds = copy.bytes / machine.swap_in_bytes_per_second
        needed_by = min(needed_by, begins[copy.first_read]) - seconds
        issue = bisect.bisect_right(begins, needed_by) - 1
        if not copy.bytes:
            copy.start = max(defined_at[copy.buffer] + 1, copy.first_read - LEAD)
            continue
        out = release[copy.buffer]
        copy.start = copy.first_read if choices[copy.buffer].tight_in else max(min(issue, copy.first_read), out, 1)
        copy.start = min(copy.start, copy.first_read)
    return release


def _forward(problem: Problem, copies: list[Copy], at: list[int], release: dict[int, int]) -> None:
    """An input that ends where an op may write in place ends one event earlier, and its bytes are taken over (SCHEDULE-5).

    A kernel asks for its first input first, even for one whose swap-in has just begun: that copy then ends before it starts. An
    original that goes to the tier is held until its time is over (EMIT-4).
    """
    ending: dict[tuple[int, int], Copy] = {}
    for copy in copies:
        if copy.buffer in problem.overwritten and copy.bytes and (copy.number or copy.buffer not in release):
            ending[copy.buffer, copy.end] = copy
    taken: list[tuple[Copy, Copy]] = []
    for copy in copies:
        buffer = problem.buffers[copy.buffer]
        if not buffer.overwrites or copy.mode is Mode.SWAP:
            continue
        event = copy.start if copy.number else at[buffer.defined]
        for parent in buffer.overwrites:
            old = ending.get((parent, event))
            if old is not None and (old.start < event or old.mode is Mode.SWAP):
                old.end -= 1
                old.heir = copy
                taken.append((old, copy))
                del ending[parent, event]
                break
    for old, heir in sorted(taken, key=lambda pair: (pair[0].start, pair[1].start)):  # a chain from its first copy on
        heir.bytes = max(heir.bytes, old.bytes)


def _timeline(
    problem: Problem, copies: list[Copy], release: dict[int, int], begins: list[float], machine: Machine
) -> float:
    """The seconds of the step. Compute and both links are serial; waits are the schedule's."""
    starts: dict[int, list[Copy]] = defaultdict(list)
    needs: dict[int, list[Copy]] = defaultdict(list)
    for copy in copies:
        if copy.mode is Mode.SWAP:
            needs[copy.first_read].append(copy)
            starts[copy.start].append(copy)
        elif copy.number == 0 and copy.buffer in release:
            starts[copy.start].append(copy)
    waits: dict[int, list[int]] = defaultdict(list)
    for buffer, event in release.items():
        waits[event].append(buffer)
    written: dict[int, float] = {}
    arrived: dict[tuple[int, int], float] = {}
    waited = out_free = in_free = 0.0
    for event in sorted({*starts, *needs, *waits}):  # between these only compute runs
        now = begins[event] + waited
        for copy in starts[event]:
            if copy.number:
                begin = max(in_free, now, written.get(copy.buffer, 0.0))
                in_free = begin + copy.bytes / machine.swap_in_bytes_per_second
                arrived[copy.buffer, copy.number] = in_free
        came = (arrived[c.buffer, c.number] for c in needs[event])
        ready = max([now, *came, *(written.get(b, 0.0) for b in waits[event])])
        waited += ready - now
        done = begins[event + 1] + waited
        for copy in starts[event]:
            if copy.number == 0:
                out_free = max(out_free, done) + problem.buffers[copy.buffer].bytes / machine.swap_out_bytes_per_second
                written[copy.buffer] = out_free
    return max(begins[-1] + waited, out_free)


def nodes(copies: Iterable[Copy]) -> int:
    """The number of swap-outs and swap-ins that copies need."""
    back = [c.buffer for c in copies if c.mode is Mode.SWAP]
    return len(back) + len({*back})


def _transfer_seconds(problem: Problem, copies: list[Copy], machine: Machine) -> float:
    back = [c for c in copies if c.mode is Mode.SWAP]
    moved_in = sum(c.bytes for c in back)
    moved_out = sum(problem.buffers[b].bytes for b in {c.buffer for c in back})
    return moved_in / machine.swap_in_bytes_per_second + moved_out / machine.swap_out_bytes_per_second
