"""Moves: what the local search may change about one buffer at a time. No TensorFlow here."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from lms3d.engine.cost import Machine
from lms3d.engine.planners.hybrid.tuning import (
    CHEAP_SHARES,
    OTHER_SOURCE,
    PROMISE_BYTES_PER_SECOND,
    SHARED,
    SOON_SECONDS,
    TIGHTER_FIRST,
)
from lms3d.engine.step_model import ledger
from lms3d.engine.step_model.decisions import KEEP, Choice, Mode
from lms3d.engine.step_model.problem import Buffer, Problem
from lms3d.engine.step_model.schedule import Copy, Schedule
from lms3d.engine.tuning import SPLIT

TIGHT_SWAP = Choice(Mode.SWAP, tight_out=True, tight_in=True, split=1)
TIGHT_RECOMPUTE = Choice(Mode.RECOMPUTE, split=1)


class Move(NamedTuple):
    """Another choice for one buffer. promise: the bytes that it may free for each second that it costs."""

    promise: float
    buffer: int
    choice: Choice


def orders(problem: Problem, machine: Machine) -> Iterator[list[tuple[int, Choice]]]:
    """Orders in which buffers can be moved. Each is a family of plans, from few moves to many.

    The first order swaps rather than recomputes: of the buffers that wait long enough, those come first that free the most
    byte-seconds for each second of their transfer. One more order follows for each of `CHEAP_SHARES`: it first recomputes the
    buffers that take at most that share of their way out and back to compute, the oldest first, and then swaps others. A buffer
    that is recomputed needs its parents, and in the order of their making these are recomputed, too. A family of single moves has
    no such chains, since each move alone frees nothing.
    """
    buffers = problem.buffers
    movable = [b for b, x in enumerate(buffers) if (x.swappable or x.recomputable) and _waits(x)]
    worth = {b: _worth(problem, b, machine) for b in movable}
    swaps = [(b, first_choice(buffers[b])) for b in sorted(movable, key=lambda b: -worth[b])]
    yield swaps
    fewer: set[int] = set()
    for share in CHEAP_SHARES:
        cheap = {b for b, x in enumerate(buffers) if x.recomputable and x.seconds <= share * _both_ways(x, machine)}
        if len(cheap) > len(fewer):
            chains = [(b, Choice(Mode.RECOMPUTE, later_split=SHARED)) for b in cheap]
            chains.sort(key=lambda move: buffers[move[0]].defined)
            yield [*chains, *(move for move in swaps if move[0] not in cheap)]
        fewer = cheap


def _worth(problem: Problem, b: int, machine: Machine) -> float:
    """The byte-seconds that moving a buffer away frees for each second that it costs."""
    buffer = problem.buffers[b]
    gaps = ((a, z) for a, z in itertools.pairwise((buffer.defined, *buffer.reads)) if z - a > SPLIT)
    waits = sum(float(problem.begins[z] - problem.begins[a]) for a, z in gaps)
    transfer = buffer.bytes / machine.swap_out_bytes_per_second
    return buffer.bytes * waits / ((transfer if buffer.swappable else buffer.seconds) + SOON_SECONDS)


def _both_ways(buffer: Buffer, machine: Machine) -> float:
    """The seconds of a buffer's way out and back."""
    return buffer.bytes / machine.swap_out_bytes_per_second + buffer.bytes / machine.swap_in_bytes_per_second


def first_choice(buffer: Buffer) -> Choice:
    """The choice for a buffer that waits long enough to leave."""
    return Choice(Mode.SWAP if buffer.swappable else Mode.RECOMPUTE)


def tighter(choice: Choice) -> Choice:
    """The same mode, as tight as it can be."""
    return TIGHT_SWAP if choice.mode is Mode.SWAP else TIGHT_RECOMPUTE


def changed(choices: dict[int, Choice], b: int, choice: Choice) -> dict[int, Choice]:
    """`choices` with another choice for buffer `b`."""
    after = {**choices, b: choice}
    if choice == KEEP:
        del after[b]
    return after


def at_event(problem: Problem, choices: dict[int, Choice], schedule: Schedule, event: int) -> Iterator[Move]:
    """Moves for every buffer that is live at an event, such as that of the peak, without being used there."""
    at = schedule.events[event]
    times_back = Counter(c.buffer for c in schedule.copies if c.number)
    times_swapped = Counter(c.buffer for c in schedule.copies if c.mode is Mode.SWAP)
    for copy in ledger.at(schedule.copies, event):
        buffer, choice = problem.buffers[copy.buffer], choices.get(copy.buffer, KEEP)
        used_here = at in copy.readers or (copy.number == 0 and at.anchor == buffer.defined and at.is_anchor)
        promise = buffer.bytes
        if used_here:
            if buffer.mapped and buffer.swappable and at.anchor - buffer.defined > 1:
                yield from _read_in_tier(promise, copy, choice)
            continue
        if choice.mode is Mode.KEEP:
            if buffer.recomputable:
                yield Move(promise / (buffer.seconds + SOON_SECONDS), copy.buffer, _recomputed(buffer))
            if buffer.swappable:
                yield Move(promise / _transfer_price(buffer.bytes), copy.buffer, _swapped(buffer))
            continue
        yield from _tighter(promise, copy, choice, event, written=times_swapped[copy.buffer] > 0)
        if copy.mode is Mode.SWAP and buffer.recomputable and times_back[copy.buffer] > 1:
            other = (
                _recompute_copy(choice, copy)
                if times_swapped[copy.buffer] > 1
                else Choice(Mode.RECOMPUTE, split=choice.split)
            )
            yield Move(promise / (buffer.seconds + SOON_SECONDS), copy.buffer, other)
        if choice.mode is Mode.RECOMPUTE and buffer.swappable:
            yield Move(promise * OTHER_SOURCE, copy.buffer, Choice(Mode.SWAP, split=choice.split))
        elif copy.mode is Mode.RECOMPUTE and choice.mode is Mode.SWAP:
            yield Move(promise * OTHER_SOURCE, copy.buffer, _swap_copy(choice, copy))


def easier(choice: Choice) -> Iterator[Choice]:
    """Choices that may cost less, the cheapest first."""
    yield KEEP
    if choice.tight_out or choice.tight_in:
        yield replace(choice, tight_out=False, tight_in=False)
        yield replace(choice, tight_out=False)
        yield replace(choice, tight_in=False)
    if choice.split != SPLIT:
        yield replace(choice, split=SPLIT)
    for anchor in choice.recompute_at:
        yield replace(choice, recompute_at=tuple(a for a in choice.recompute_at if a != anchor))


def others(problem: Problem, schedule: Schedule, b: int, choice: Choice) -> Iterator[Choice]:
    """Other modes for a buffer, and both, if it comes back more than once."""
    buffer = problem.buffers[b]
    if choice.mode is not Mode.KEEP:
        yield KEEP
    elif max(buffer.reads, default=0) - buffer.defined <= 1:
        return  # it is read at once
    if choice.mode is not Mode.RECOMPUTE and buffer.recomputable:
        yield Choice(Mode.RECOMPUTE)
    if choice.mode is not Mode.SWAP and buffer.swappable:
        yield Choice(Mode.SWAP)
    if choice.mode is not Mode.KEEP:
        yield from shared(schedule, b, choice)
    if choice.mode is Mode.KEEP or not (buffer.swappable and buffer.recomputable):
        return
    back = [c for c in schedule.copies if c.buffer == b and c.number]
    recomputed = {c.readers[0].anchor for c in back if c.mode is Mode.RECOMPUTE}
    for copy in back if len(back) > 1 else ():
        if buffer.mapped and copy.mode is Mode.SWAP and copy.number > 1:
            continue  # free once it is written
        anchors = recomputed ^ {copy.readers[0].anchor}
        if 0 < len(anchors) < len(back):
            yield replace(choice, mode=Mode.SWAP, recompute_at=tuple(sorted(anchors)))


def shared(schedule: Schedule, b: int, choice: Choice) -> Iterator[Choice]:
    """Choices with fewer copies: two neighbours become one, which lives from the first reader to the last.

    A recomputed copy is no longer recomputed twice, nor are its parents. What is read in the tier takes nothing that sharing saves.
    """
    copies = sorted((c for c in schedule.copies if c.buffer == b and c.bytes), key=lambda c: c.number)
    spans = [(c.readers[0].anchor, c.readers[-1].anchor) for c in copies if c.number]
    gaps = {start - end for (_, end), (start, _) in itertools.pairwise(spans)}
    for gap in sorted(gap for gap in gaps if choice.cuts(gap, first=False)):
        yield replace(choice, later_split=gap)


def _recompute_copy(choice: Choice, copy: Copy) -> Choice:
    """The choice of a swapped buffer, with this copy recomputed."""
    return replace(choice, recompute_at=tuple(sorted({*choice.recompute_at, copy.readers[0].anchor})))


def _swap_copy(choice: Choice, copy: Copy) -> Choice:
    """The choice with this copy swapped in."""
    here = {r.anchor for r in copy.readers}
    return replace(choice, recompute_at=tuple(a for a in choice.recompute_at if a not in here))


def _swapped(buffer: Buffer) -> Choice:
    return Choice(Mode.SWAP) if _waits(buffer) else TIGHT_SWAP


def _recomputed(buffer: Buffer) -> Choice:
    return Choice(Mode.RECOMPUTE) if _waits(buffer) else TIGHT_RECOMPUTE


def _waits(buffer: Buffer) -> bool:
    """Whether a gap between its reads is long enough for a copy without a tight plan."""
    return any(b - a > SPLIT for a, b in itertools.pairwise((buffer.defined, *buffer.reads)))


def _transfer_price(size_bytes: int) -> float:
    return size_bytes / PROMISE_BYTES_PER_SECOND + SOON_SECONDS


def _read_in_tier(promise: float, copy: Copy, choice: Choice) -> Iterator[Move]:
    """Moves for a mapped buffer that is read at the event: it need not be on the device."""
    promise /= _transfer_price(copy.bytes)
    if choice.mode is not Mode.SWAP:
        yield Move(promise, copy.buffer, Choice(Mode.SWAP))
    elif copy.mode is Mode.RECOMPUTE:
        yield Move(promise, copy.buffer, _swap_copy(choice, copy))
    if choice.split > 1:
        tight_out, recompute_at = choice.tight_out, choice.recompute_at
        yield Move(promise, copy.buffer, Choice(Mode.SWAP, tight_out, split=1, recompute_at=recompute_at))


def _tighter(promise: float, copy: Copy, choice: Choice, event: int, *, written: bool) -> Iterator[Move]:
    if copy.mode is Mode.SWAP and event < copy.first_read and not choice.tight_in:
        yield Move(promise * TIGHTER_FIRST, copy.buffer, replace(choice, tight_in=True))
    if written and copy.number == 0 and not choice.tight_out:
        yield Move(promise * TIGHTER_FIRST, copy.buffer, replace(choice, tight_out=True))
    if choice.split > 1:
        yield Move(promise, copy.buffer, replace(choice, split=1))
