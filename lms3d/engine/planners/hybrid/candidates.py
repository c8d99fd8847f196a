"""The candidates of the covering program: ways in which a buffer can leave the device. No TensorFlow here.

CANDIDATE-1  A candidate is a `Choice`, the spans of anchors in which the buffer still takes memory, and a price in seconds.
CANDIDATE-2  Transfers have the price of `Schedule.cost_seconds`: `Machine.transfer_price` for each second, and `node_seconds` for
             each swap-out and swap-in. A tight transfer makes the step wait, which counts in full.
CANDIDATE-3  A mapped buffer leaves at its longest gap, at its first one, or at once, so that nobody reads the original. All later
             readers share one swap-in, which takes no memory: bringing the buffer back more often would free nothing.
CANDIDATE-4  Any other buffer comes back after its longest gap, after its `tuning.CANDIDATE_GAPS` longest ones, after all that are
             far longer than the others (`tuning.FAR`), or after each.
CANDIDATE-5  A candidate that costs no less than another, and never holds less, is left out.
CANDIDATE-6  A buffer that is cheaper to recompute than to move may be recomputed (`remat`). The price is that of its whole chain,
             each time; or less, if the chain reads buffers that could be recomputed but are alive. While a chain runs, what it
             recomputes on the way takes memory.
CANDIDATE-7  A chain counts on its parents (COVER-5). So buffers may come back a little earlier, at the anchors at which the chains
             of others need them.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from lms3d.engine.cost import Machine
from lms3d.engine.planners.hybrid.links import Links
from lms3d.engine.planners.hybrid.remat import Chains, gaps
from lms3d.engine.planners.hybrid.tuning import CANDIDATE_GAPS, FAR, SHARED
from lms3d.engine.step_model.decisions import Choice, Mode
from lms3d.engine.step_model.problem import Buffer, Problem

Spans = tuple[tuple[int, int], ...]
"""(first, last) anchors, in order."""

_ONCE = 1 << 30  # no gap is longer: all later reads share a copy


@dataclass(frozen=True, slots=True)
class Candidate:
    """One way in which one buffer can leave (CANDIDATE-1). spans: the anchors at which it still takes memory.

    copies: (first, last) anchors at which the original and each copy are read; by default `spans`, which are longer if transfers
    take time.
    mapped: what is in the tier can be read there.
    Of a candidate that recomputes, as (buffer, anchor) pairs: through: what is recomputed for it. reads: what it counts on to be
    readable. asks: the reads that could be recomputed, too. room: (anchor, bytes) pairs of what its chains take (CANDIDATE-6).
    """

    buffer: int
    choice: Choice
    spans: Spans
    seconds: float
    copies: Spans = ()
    mapped: bool = False
    through: tuple[tuple[int, int], ...] = ()
    reads: tuple[tuple[int, int], ...] = ()
    asks: tuple[tuple[int, int], ...] = ()
    room: tuple[tuple[int, int], ...] = ()

    def readable(self, anchor: int) -> bool:
        """Whether the buffer can be read at an anchor: in the tier, or in a copy on the device."""
        return self.mapped or any(start <= anchor <= end for start, end in self.copies or self.spans)

    def prolonged(self, anchor: int) -> bool:
        """Whether a read at an anchor would make a copy begin earlier, or end later."""
        (_, end), *later = self.copies or self.spans
        after, near = self.choice.split, max(self.choice.split, self.choice.later_split)
        if 0 < anchor - end <= after:
            return True
        return any(0 < start - anchor <= near or 0 < anchor - end <= near for start, end in later)


def candidates(problem: Problem, machine: Machine, links: Links) -> list[Candidate]:
    """The candidates of all buffers that free anything."""
    return Candidates(problem, machine).beside(links)


class Candidates:
    """The candidates of a problem's buffers, for one program after the other."""

    def __init__(self, problem: Problem, machine: Machine) -> None:
        self.problem, self.machine = problem, machine

    @cached_property
    def _recomputed(self) -> dict[int, list[Candidate]]:
        return _all_recomputed(self.problem, self.machine)

    @cached_property
    def _asked(self) -> dict[int, set[int]]:
        return _asked(itertools.chain.from_iterable(self._recomputed.values()))

    def beside(self, links: Links) -> list[Candidate]:
        """All candidates, beside the transfers of these links."""
        result: list[Candidate] = []
        for b, buffer in enumerate(self.problem.buffers):
            made, asked = self._recomputed.get(b, []), self._asked[b]
            if buffer.swappable and buffer.reads and buffer.reads[-1] > buffer.defined:
                swapped = _read_in_tier if buffer.mapped else _brought_back
                useful = _useful(list(swapped(b, buffer, self.machine, links)))
                result += useful
                result += () if buffer.mapped else _earlier(useful, asked)
            result += made
            result += _earlier([c for c in made if not c.asks], asked)
        return result


def _useful(of_one_buffer: list[Candidate]) -> list[Candidate]:
    """Leaves out candidates that hold as much as another, anchor by anchor, and are no cheaper (CANDIDATE-5)."""
    useful: list[Candidate] = []
    for candidate in sorted(of_one_buffer, key=lambda c: (c.seconds, _length(c.spans))):
        if not any(_within(other.spans, candidate.spans) for other in useful):
            useful.append(candidate)
    return useful


def _within(spans: Spans, others: Spans) -> bool:
    """Whether each span lies inside one of the others."""
    return all(any(first <= start and end <= last for first, last in others) for start, end in spans)


def _length(spans: Spans) -> int:
    return sum(end - start + 1 for start, end in spans)


def all_moved(problem: Problem) -> Iterator[dict[int, Choice]]:
    """Plans in which every swappable buffer leaves at once and returns at the last moment.

    If there are mapped buffers, there are two plans. In the first every reader of a mapped buffer reads it in the tier, the first
    reader included.
    """
    mapped = any(buffer.mapped for buffer in problem.buffers)
    for split in (0, 1) if mapped else (1,):
        yield {
            b: Choice(Mode.SWAP, True, True, split if buffer.mapped else 1, later_split=_ONCE * buffer.mapped)
            for b, buffer in enumerate(problem.buffers)
            if buffer.swappable
        }


def _read_in_tier(b: int, buffer: Buffer, machine: Machine, links: Links) -> Iterator[Candidate]:
    """The candidates of a mapped buffer (CANDIDATE-3)."""
    out = buffer.bytes / machine.swap_out_bytes_per_second
    price = machine.transfer_price * out + 2 * machine.node_seconds
    written = links.written(buffer.defined, out)
    release = links.first_after(written)
    between = gaps(buffer)
    # No larger than needed: others that are recomputed read the buffer in the tier, not the original.
    longest = max(between[: between.index(max(between))], default=0)
    loose = ((longest, False), (1, False)) if max(between) > 1 else ()
    for split, tight in dict.fromkeys((*loose, (1, True), (0, True))):
        choice = Choice(Mode.SWAP, tight, split=split, later_split=_ONCE)
        (first, last), *later = segments(buffer, choice)
        if later:
            wait = out if tight else max(written - float(links.begins[later[0][0]]), 0.0)
            end = last if tight else max(last, release - 1)
            yield Candidate(b, choice, ((first, end),), price + wait, mapped=True)


def _brought_back(b: int, buffer: Buffer, machine: Machine, links: Links) -> Iterator[Candidate]:
    """The candidates of a buffer whose later reads need a copy on the device (CANDIDATE-4)."""
    out = buffer.bytes / machine.swap_out_bytes_per_second
    back = buffer.bytes / machine.swap_in_bytes_per_second
    longest = sorted({gap for gap in gaps(buffer) if gap > 1}, reverse=True)
    # No larger than needed: reads for other buffers get copies of their own and do not prolong these.
    next_shorter = list(itertools.pairwise([*longest, 1]))
    far = [shorter for gap, shorter in next_shorter if gap >= FAR * shorter]
    for split in dict.fromkeys([shorter for _, shorter in next_shorter[:CANDIDATE_GAPS]] + far + [1]):
        for tight in (False, True):
            choice = Choice(Mode.SWAP, tight, tight, split)
            (first, last), *later = parts = segments(buffer, choice)
            if not later:
                continue
            release = first + 1 if tight else links.first_after(links.written(first, out))
            spans = [(first, max(last, release - 1))]
            for start, end in later:
                issued = start if tight else min(max(links.issued(start, back), release, 1), start)
                spans.append((issued, end))
            moving, copies = out + back * len(later), len(later)
            price = machine.transfer_price * moving + machine.node_seconds * (1 + copies)
            yield Candidate(b, choice, tuple(spans), price + moving * tight, tuple(parts))


def _all_recomputed(problem: Problem, machine: Machine) -> dict[int, list[Candidate]]:
    """The candidates that recompute, by buffer (CANDIDATE-6)."""
    chains = Chains(problem, machine)
    return {b: list(_recomputed(b, buffer, chains)) for b, buffer in enumerate(problem.buffers)}


def _asked(recomputed: Iterable[Candidate]) -> dict[int, set[int]]:
    """The anchors at which chains need a buffer, by buffer."""
    asked: dict[int, set[int]] = defaultdict(set)
    for candidate in recomputed:
        for b, anchor in (*candidate.reads, *candidate.through):
            asked[b].add(anchor)
    return asked


def _recomputed(b: int, buffer: Buffer, chains: Chains) -> Iterator[Candidate]:
    for choice in chains.choices(b):
        (first, last), *later = segments(buffer, choice)
        for alone in (False, True):
            tried = [(start, chains.chain(b, start, alone=alone)) for start, _ in later]
            possible = [(start, chain) for start, chain in tried if chain]
            seconds = sum(chain.seconds for _, chain in possible)
            cheap = seconds < chains.written_seconds(buffer)
            asks = _pairs((start, chain.asks) for start, chain in possible)
            if len(possible) == len(tried) and cheap and (asks or not alone):
                through = _pairs((start, chain.through) for start, chain in possible)
                reads = _pairs((start, chain.reads) for start, chain in possible)
                room = tuple((start, size) for start, chain in possible if (size := chains.room_bytes(b, start, chain)))
                spans = ((first, last), *later)
                yield Candidate(b, choice, spans, seconds, through=through, reads=reads, asks=asks, room=room)


def _pairs(wanted: Iterable[tuple[int, Iterable[int]]]) -> tuple[tuple[int, int], ...]:
    """(buffer, anchor) of anchors and the buffers that are wanted there."""
    return tuple((b, anchor) for anchor, buffers in wanted for b in sorted(buffers))


def _earlier(found: Iterable[Candidate], asked: set[int]) -> Iterator[Candidate]:
    """The same candidates with copies at the anchors at which chains ask for them, if those come soon before.

    A copy that would then reach the one before it is none of these.
    """
    for candidate in found:
        choice = candidate.choice
        first, *later = candidate.copies or candidate.spans
        own = {a for a in asked if choice.cuts(a - first[1], first=True)}  # what comes sooner reads the original
        starts = [min((a for a in own if start - SHARED <= a < start), default=start) for start, _ in later]
        copies = [(start, end) for start, (_, end) in zip(starts, later, strict=True)]
        sooner = [start - before for before, (start, _) in zip(starts, later, strict=True)]
        choice = replace(choice, later_split=max([*sooner, choice.later_split]))
        apart = all(choice.cuts(two[0] - one[1], first=False) for one, two in itertools.pairwise(copies))
        if any(sooner) and apart:
            original, *held = candidate.spans
            spans = [
                (min(max(begin - by, original[1] + 1), start), end)
                for (begin, end), by, start in zip(held, sooner, starts, strict=True)
            ]
            now = {start: before for before, (start, _) in zip(starts, later, strict=True)}
            yield replace(
                candidate,
                choice=choice,
                spans=(original, *spans),
                copies=(first, *copies),
                through=tuple((b, now[anchor]) for b, anchor in candidate.through),
                reads=tuple((b, now[anchor]) for b, anchor in candidate.reads),
                room=tuple((now[anchor], size) for anchor, size in candidate.room),
            )


def segments(buffer: Buffer, choice: Choice) -> list[tuple[int, int]]:
    """(first, last) anchor of each segment (SCHEDULE-1)."""
    segments = [(buffer.defined, buffer.defined)]
    for read in buffer.reads:
        first, last = segments[-1]
        if choice.cuts(read - last, first=len(segments) == 1):
            segments.append((read, read))
        else:
            segments[-1] = (first, read)
    return segments
