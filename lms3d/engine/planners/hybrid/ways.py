"""The ways in which a buffer can leave the device, each with what it holds then and what it costs. No TensorFlow here.

WAYS-1  A way is a `Choice`, the spans of anchors in which the buffer still takes memory, and a price in seconds.
WAYS-2  Transfers are priced as `Schedule.cost_seconds` does: `Machine.transfer_price` for each second, `node_seconds` for
        each swap-out and swap-in. What is tight makes the step wait for the transfer, which counts in full.
WAYS-3  A mapped buffer leaves at its longest gap, at the first one, or at once, so that nobody reads the original. All later
        readers share one swap-in, which takes no memory: nothing is freed by bringing it back more often.
WAYS-4  Another buffer is brought back after its longest gap, its `tuning.WAYS_SPLITS` longest ones, or each.
WAYS-5  A way that costs no less than another, and never holds less, is left out.
WAYS-6  A buffer that is cheaper computed again than written may be (`again`). Its price is that of its whole chain, each time; or
        of less, where others are read that could be computed again but are there. Such a way is not for the plan where those
        are computed again at another time (COVER-5), so they may be a little earlier, for all that read them then.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from lms3d.engine.cost import Machine
from lms3d.engine.planners.hybrid.again import Chains, gaps
from lms3d.engine.planners.hybrid.links import Links
from lms3d.engine.step_model.decisions import Choice, Mode
from lms3d.engine.step_model.problem import Buffer, Problem
from lms3d.engine.tuning import SHARED, WAYS_SPLITS

Spans = tuple[tuple[int, int], ...]

_ONCE = 1 << 30  # no gap is longer: all later reads share a copy


@dataclass(frozen=True, slots=True)
class Way:
    """One way for one buffer (WAYS-1). spans: (first, last) anchors, in order.

    through: buffers that are computed again for it. reads: (buffer, anchor) that are counted on to be there then (WAYS-6).
    """

    buffer: int
    choice: Choice
    spans: Spans
    seconds: float
    through: frozenset[int] = frozenset()
    reads: tuple[tuple[int, int], ...] = ()

    def has(self, anchor: int) -> bool:
        """Whether the buffer can be read at an anchor: in the tier, or in a copy that is there."""
        return self.choice.mode is not Mode.RECOMPUTE or any(start <= anchor <= end for start, end in self.spans)


def ways(problem: Problem, machine: Machine, links: Links) -> list[Way]:
    """All ways of all buffers that free anything."""
    again = _all_again(problem, machine)
    found: list[Way] = []
    for b, buffer in enumerate(problem.buffers):
        if buffer.swappable and buffer.reads and buffer.reads[-1] > buffer.defined:
            swapped = _read_in_tier if buffer.mapped else _brought_back
            found += _useful(list(swapped(b, buffer, machine, links)))
        found += again.get(b, ())
    return found


def _useful(able: list[Way]) -> list[Way]:
    """Without those that hold as much as another, anchor by anchor, and are no cheaper (WAYS-5)."""
    useful: list[Way] = []
    for way in sorted(able, key=lambda w: (w.seconds, _length(w.spans))):
        if not any(_within(other.spans, way.spans) for other in useful):
            useful.append(way)
    return useful


def _within(spans: Spans, others: Spans) -> bool:
    """Whether each of the spans lies inside another's."""
    return all(any(first <= start and end <= last for first, last in others) for start, end in spans)


def _length(spans: Spans) -> int:
    return sum(end - start + 1 for start, end in spans)


def all_moved(problem: Problem) -> Iterator[dict[int, Choice]]:
    """All that can be swapped leaves at once and returns at the last moment; of mapped buffers not even the first reader is given
    the original in the first of these plans."""
    mapped = any(buffer.mapped for buffer in problem.buffers)
    for split in (0, 1) if mapped else (1,):
        yield {
            b: Choice(Mode.SWAP, True, True, split if buffer.mapped else 1, later_split=_ONCE * buffer.mapped)
            for b, buffer in enumerate(problem.buffers)
            if buffer.swappable
        }


def _read_in_tier(b: int, buffer: Buffer, machine: Machine, links: Links) -> Iterator[Way]:
    """Of a mapped buffer."""
    out = buffer.bytes / machine.swap_out_bytes_per_second
    price = machine.transfer_price * out + 2 * machine.node_seconds
    written = links.written(buffer.defined, out)
    release = links.first_after(written)
    between = gaps(buffer)
    # No more than it takes: others that are computed again read the buffer in the tier, not the original.
    longest = max(between[: between.index(max(between))], default=0)
    loose = ((longest, False), (1, False)) if max(between) > 1 else ()
    for split, tight in dict.fromkeys((*loose, (1, True), (0, True))):
        choice = Choice(Mode.SWAP, tight, split=split, later_split=_ONCE)
        (first, last), *later = _segments(buffer, choice)
        if later:
            wait = out if tight else max(written - float(links.begins[later[0][0]]), 0.0)
            end = last if tight else max(last, release - 1)
            yield Way(b, choice, ((first, end),), price + wait)


def _brought_back(b: int, buffer: Buffer, machine: Machine, links: Links) -> Iterator[Way]:
    """Of a buffer whose later reads need a copy on the device."""
    out = buffer.bytes / machine.swap_out_bytes_per_second
    back = buffer.bytes / machine.swap_in_bytes_per_second
    longest = sorted({gap for gap in gaps(buffer) if gap > 1}, reverse=True)
    for split in dict.fromkeys([gap - 1 for gap in longest[:WAYS_SPLITS]] + [1]):
        for tight in (False, True):
            choice = Choice(Mode.SWAP, tight, tight, split)
            (first, last), *later = _segments(buffer, choice)
            if not later:
                continue
            release = first + 1 if tight else links.first_after(links.written(first, out))
            spans = [(first, max(last, release - 1))]
            for start, end in later:
                issued = start if tight else min(max(links.issued(start, back), release, 1), start)
                spans.append((issued, end))
            moving, copies = out + back * len(later), len(later)
            price = machine.transfer_price * moving + machine.node_seconds * (1 + copies)
            yield Way(b, choice, tuple(spans), price + moving * tight)


def _all_again(problem: Problem, machine: Machine) -> dict[int, list[Way]]:
    """WAYS-6, by buffer."""
    chains = Chains(problem, machine)
    found = {b: list(_computed_again(b, buffer, chains)) for b, buffer in enumerate(problem.buffers)}
    asked: dict[int, set[int]] = defaultdict(set)
    for b, anchor in itertools.chain.from_iterable(way.reads for able in found.values() for way in able):
        asked[b].add(anchor)
    for b, anchors in asked.items():
        found[b] += [early for way in found[b] if not way.reads for early in _earlier(way, anchors)]
    return found


def _computed_again(b: int, buffer: Buffer, chains: Chains) -> Iterator[Way]:
    for choice in chains.choices(b):
        (first, last), *later = _segments(buffer, choice)
        for alone in (False, True):
            made = [(start, chains.at(b, start, alone=alone)) for start, _ in later]
            there = [(start, chain) for start, chain in made if chain]
            seconds = sum(chain.seconds for _, chain in there)
            reads = tuple((read, start) for start, chain in there for read in sorted(chain.reads))
            if len(there) == len(made) and seconds < chains.written_seconds(buffer) and (reads or not alone):
                through = frozenset[int]().union(*(chain.through for _, chain in there))
                yield Way(b, choice, ((first, last), *later), seconds, through, reads)


def _earlier(way: Way, asked: Iterable[int]) -> Iterator[Way]:
    """The same, with copies that are made when others ask for them, where that is soon before."""
    first, *later = way.spans
    spans = [(min([a for a in asked if start - SHARED <= a < start], default=start), end) for start, end in later]
    if spans != later:
        shared = max(start - before for (before, _), (start, _) in zip(spans, later, strict=True))
        choice = replace(way.choice, later_split=max(shared, way.choice.later_split))
        yield replace(way, choice=choice, spans=(first, *spans))


def _segments(buffer: Buffer, choice: Choice) -> list[tuple[int, int]]:
    """(first, last) anchor of each segment (SCHEDULE-1)."""
    found = [(buffer.defined, buffer.defined)]
    for read in buffer.reads:
        first, last = found[-1]
        if choice.cuts(read - last, first=len(found) == 1):
            found.append((read, read))
        else:
            found[-1] = (first, read)
    return found
