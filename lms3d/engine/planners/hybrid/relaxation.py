"""Keep, swap or recompute, as a mixed-integer program: a start for the search, and a lower bound. No TensorFlow here.

Checkmate (Jain et al., MLSys 2020) decides for every tensor at every op whether it is in memory; that takes hours here. Only those
anchors matter at which something can change for a buffer, its *points*: the anchors that read it, and the anchors at which an op
that reads it may be recomputed. isensee2017 then has some thousand variables.

Variables: carried (from one point of a buffer to the next); swapped in, or recomputed (at a point); swapped out (a buffer);
delay (of an anchor, in seconds, against the unplanned step).

RELAX-1  What an anchor reads is carried, swapped in or recomputed at that point.
RELAX-2  Recomputing at a point needs the parents at that anchor, in the same three ways.
RELAX-3  Only a buffer that is present at a point can be carried on.
RELAX-4  At each anchor the bytes that it reads and makes, and all that is carried past it, fit in the budget. An op that
         writes in place saves the bytes of an input that is not carried on.
RELAX-5  Delays add up: by recomputing, and because each link takes one transfer at a time. What becomes available after a time
         and is needed before an anchor must be transferred between that time and that anchor.
RELAX-6  The cost is the delay at the end, and `Machine.transfer_price` for each second of transfer.
RELAX-7  A mapped buffer takes neither bytes nor seconds when it is swapped in.

Each rule holds for every schedule of `schedule.build`, and some of a schedule's memory is left out here (transfers under way, and
the moments between two recomputed ops). So any lower bound of the program is a lower bound of the cost of every plan that fits.
If there would be too many points, chains of recomputing are cut, and the rest of a chain is free.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from dataclasses import dataclass

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_array

from lms3d.engine.cost import Machine
from lms3d.engine.planners.hybrid.tuning import GOOD_ENOUGH, MOST_POINTS, NODES, PROGRAM_SECONDS, WINDOWS
from lms3d.engine.step_model import ledger
from lms3d.engine.step_model.decisions import Choice, Mode
from lms3d.engine.step_model.problem import Problem
from lms3d.engine.tuning import SPLIT


@dataclass(frozen=True)
class Relaxed:
    """The program's answer. choices: the best found; None if none was. bound_seconds: every plan that fits costs at least so much
    more than the unplanned step; infinite if no plan can fit."""

    choices: dict[int, Choice] | None
    bound_seconds: float


class _Program:
    """The columns and rows of a program, collected one by one."""

    def __init__(self) -> None:
        self.cost: list[float] = []
        self.low: list[float] = []
        self.high: list[float] = []
        self.whole: list[int] = []
        self.rows: list[tuple[dict[int, float], float]] = []  # sum of coefficient * column <= bound

    def column(self, *, cost: float = 0.0, low: float = 0.0, high: float = 1.0, whole: bool = True) -> int:
        self.cost.append(cost)
        self.low.append(low)
        self.high.append(high)
        self.whole.append(int(whole))
        return len(self.cost) - 1

    def at_most(self, bound: float, row: dict[int, float]) -> None:
        self.rows.append((row, bound))


class _Points:
    """The points of every buffer that may move, sorted.

    cut: (buffer, point) whose recomputing needs no parents, because earlier points were left out.
    """

    def __init__(self, problem: Problem, most: int) -> None:
        buffers = problem.buffers
        of: list[set[int]] = [set(b.reads) - {b.defined} if b.swappable or b.recomputable else set() for b in buffers]
        # Short chains first, so that the longest are cut.
        waiting = [(0, b, t) for b, reads in enumerate(of) if buffers[b].recomputable for t in sorted(reads)]
        heapq.heapify(waiting)
        count = sum(map(len, of))
        left_out: list[tuple[int, int]] = []
        while waiting:
            depth, b, t = heapq.heappop(waiting)
            for parent in buffers[b].parents:
                if t in of[parent] or t <= buffers[parent].defined:
                    continue
                if count >= most:
                    left_out.append((parent, t))
                    continue
                of[parent].add(t)
                count += 1
                if buffers[parent].recomputable:
                    heapq.heappush(waiting, (depth + 1, parent, t))
        self.of = [sorted(p) for p in of]
        self.cut = {(b, next((p for p in self.of[b] if p > t), -1)) for b, t in left_out}


def solve(problem: Problem, budget_bytes: int, machine: Machine, *, most_points: int = MOST_POINTS) -> Relaxed:
    """The best decisions for a budget under RELAX-1 to RELAX-7."""
    return _Builder(problem, budget_bytes, machine, most_points).solve()


class _Builder:
    def __init__(self, problem: Problem, budget_bytes: int, machine: Machine, most_points: int) -> None:
        self.problem, self.budget_bytes, self.machine = problem, budget_bytes, machine
        self.program = _Program()
        self.points = _Points(problem, most_points)
        self.begins = problem.begins
        self.carried: dict[tuple[int, int], int] = {}  # (buffer, point that it is carried to) -> column
        self.swapped: dict[tuple[int, int], int] = {}
        self.recomputed: dict[tuple[int, int], int] = {}
        self.out: dict[int, int] = {}
        for b in range(len(problem.buffers)):
            self._columns(b)
        self._rules_1_to_3()
        self._bytes()
        self._delays()

    def _columns(self, b: int) -> None:
        buffer, program = self.problem.buffers[b], self.program
        out_seconds = buffer.bytes / self.machine.swap_out_bytes_per_second
        in_seconds = self._in_seconds(b)
        if buffer.swappable and self.points.of[b]:
            self.out[b] = program.column(cost=self.machine.transfer_price * out_seconds)  # RELAX-6
        before, read_before = buffer.defined, True
        for point in self.points.of[b]:
            read = point in buffer.reads
            # A schedule never splits neighbouring reads, and a returned buffer stays.
            stays = buffer.returned or (read and read_before and point - before <= 1 and not buffer.mapped)
            self.carried[b, point] = program.column(low=float(stays))
            if buffer.swappable:
                self.swapped[b, point] = program.column(cost=self.machine.transfer_price * in_seconds)
            if buffer.recomputable:
                self.recomputed[b, point] = program.column()
            before, read_before = point, read

    def _in_seconds(self, b: int) -> float:
        buffer = self.problem.buffers[b]
        # RELAX-7
        return 0.0 if buffer.mapped else buffer.bytes / self.machine.swap_in_bytes_per_second

    def _present(self, b: int, point: int, sign: float) -> dict[int, float]:
        """The columns of which one is set if buffer `b` is present at one of its points."""
        sources = (self.carried, self.swapped, self.recomputed)
        return {columns[b, point]: sign for columns in sources if (b, point) in columns}

    def _rules_1_to_3(self) -> None:
        for b, points in enumerate(self.points.of):
            buffer = self.problem.buffers[b]
            for i, point in enumerate(points):
                self.program.at_most(1.0, self._present(b, point, 1.0))
                if point in buffer.reads:  # RELAX-1
                    self.program.at_most(-1.0, self._present(b, point, -1.0))
                elif i + 1 < len(points):  # RELAX-3; what is read is present
                    carried = self.carried[b, points[i + 1]]
                    self.program.at_most(0.0, {carried: 1.0, **self._present(b, point, -1.0)})
                if (b, point) in self.swapped:
                    self.program.at_most(0.0, {self.swapped[b, point]: 1.0, self.out[b]: -1.0})
                if (b, point) in self.recomputed and (b, point) not in self.points.cut:  # RELAX-2
                    for parent in buffer.parents:
                        if (parent, point) in self.carried:
                            row = {self.recomputed[b, point]: 1.0, **self._present(parent, point, -1.0)}
                            self.program.at_most(0.0, row)

    def _bytes(self) -> None:  # RELAX-4
        problem, count = self.problem, len(self.problem.anchors)
        fixed: list[ledger.Block] = []
        rows: list[dict[int, float]] = [{} for _ in range(count)]
        next_point: dict[tuple[int, int], int] = {}
        for b, points in enumerate(self.points.of):
            buffer = problem.buffers[b]
            moved = buffer.swappable or buffer.recomputable
            # Present up to here whatever is decided; a buffer that cannot move, until its last reader has run.
            last = buffer.defined if moved else count - 1 if buffer.returned else max([buffer.defined, *buffer.reads])
            fixed.append(ledger.Block(buffer.bytes, buffer.defined, last))
            before = buffer.defined
            for point in points:
                next_point[b, before] = point
                for t in range(before + (before in buffer.reads or before == buffer.defined), point):
                    if t > last:
                        rows[t][self.carried[b, point]] = buffer.bytes
                if point in buffer.reads and point > last:
                    fixed.append(ledger.Block(buffer.bytes, point, point))
                    if buffer.mapped and (b, point) in self.swapped:
                        rows[point][self.swapped[b, point]] = -buffer.bytes
                before = point
        live = ledger.live_bytes(fixed, count)
        room_bytes = self.budget_bytes - problem.base_bytes - problem.small_bytes - problem.workspace_bytes - live
        for buffer in problem.buffers:
            t = buffer.defined
            olds = [p for p in buffer.overwrites if not problem.buffers[p].returned and problem.buffers[p].defined < t]
            if not olds:
                continue
            saved = self.program.column(whole=False)
            rows[t][saved] = -buffer.bytes
            moving = {self.carried[p, next_point[p, t]]: 1.0 for p in olds if (p, t) in next_point}
            if len(moving) == len(olds):  # else one of them ends here anyway
                self.program.at_most(float(len(olds)), {saved: 1.0, **moving})
        for row, room in zip(rows, room_bytes, strict=True):
            if sum(v for v in row.values() if v > 0) > room:
                self.program.at_most(room / 1e6, {c: v / 1e6 for c, v in row.items()})

    def _delays(self) -> None:  # RELAX-5
        before = self._anchor_delays()
        end = self.program.column(cost=1.0, high=np.inf, whole=False)
        if before is not None:
            self.program.at_most(0.0, {before: 1.0, end: -1.0})
        outs = sorted(self.out, key=lambda b: -self.problem.buffers[b].defined)
        seconds: dict[int, float] = {}
        for b in outs:
            buffer = self.problem.buffers[b]
            seconds[self.out[b]] = buffer.bytes / self.machine.swap_out_bytes_per_second
            room = float(self.begins[-1]) - float(self.begins[buffer.defined + 1])
            if sum(seconds.values()) > room:
                self.program.at_most(room, {**seconds, end: -1.0})

    def _anchor_delays(self) -> int | None:
        """Adds the delays by recomputing and by late swap-ins. The column of the last one; None if there is none."""
        problem, program = self.problem, self.program
        recomputing: dict[int, dict[int, float]] = defaultdict(dict)
        for (b, point), column in self.recomputed.items():
            recomputing[point][column] = problem.buffers[b].seconds
        jobs = sorted((point, b, column) for (b, point), column in self.swapped.items())
        written = {
            b: float(self.begins[problem.buffers[b].defined + 1])
            + problem.buffers[b].bytes / self.machine.swap_out_bytes_per_second
            for b in self.out
        }
        ready = sorted(written.values())
        windows = sorted({ready[i * len(ready) // WINDOWS] for i in range(WINDOWS)}) if ready else []
        before = None
        due: list[tuple[float, int, float]] = []  # (ready, column, seconds) of the transfers needed so far
        position = 0
        for anchor in sorted({*recomputing, *(j[0] for j in jobs)}):
            delay = program.column(high=np.inf, whole=False)
            row = {**recomputing[anchor], delay: -1.0}
            program.at_most(0.0, row if before is None else {**row, before: 1.0})
            before = delay
            while position < len(jobs) and jobs[position][0] == anchor:
                _, b, column = jobs[position]
                seconds = self._in_seconds(b)
                due.append((written[b], column, seconds))
                late = written[b] + seconds - self.begins[anchor]
                if late > 0:
                    program.at_most(0.0, {column: late, delay: -1.0})
                position += 1
            for start in windows:
                room = float(self.begins[anchor]) - start
                inside = {column: seconds for ready_at, column, seconds in due if ready_at >= start}
                if 0 <= room < sum(inside.values()):
                    program.at_most(room, {**inside, delay: -1.0})
        return before

    def solve(self) -> Relaxed:
        program = self.program
        indices = [c for row, _ in program.rows for c in row]
        values = [v for row, _ in program.rows for v in row.values()]
        starts = np.concatenate([[0], np.cumsum([len(row) for row, _ in program.rows])])
        matrix = csr_array((values, indices, starts), shape=(len(program.rows), len(program.cost)))
        bounds = np.array([bound for _, bound in program.rows])
        optimum = milp(
            np.array(program.cost),
            integrality=np.array(program.whole),
            bounds=Bounds(np.array(program.low), np.array(program.high)),
            constraints=LinearConstraint(matrix, ub=bounds),
            options={"time_limit": PROGRAM_SECONDS, "node_limit": NODES, "mip_rel_gap": GOOD_ENOUGH},
        )
        if optimum.status == 2:
            return Relaxed(None, float("inf"))
        bound = getattr(optimum, "mip_dual_bound", None)
        bound = max(0.0, float(bound)) if bound is not None and np.isfinite(bound) else 0.0
        return Relaxed(None if optimum.x is None else self._choices(optimum.x), bound)

    def _choices(self, x: np.ndarray) -> dict[int, Choice]:
        choices: dict[int, Choice] = {}
        for b, points in enumerate(self.points.of):
            buffer = self.problem.buffers[b]
            split, last = SPLIT, buffer.defined
            swapped, recomputed = (
                [p for p in points if (b, p) in c and x[c[b, p]] > 0.5] for c in (self.swapped, self.recomputed)
            )
            for point in points:
                moved = point in swapped or point in recomputed
                split = 1 if moved and point - last <= SPLIT else split
                if moved or point in buffer.reads:
                    last = point
            if swapped:
                choices[b] = Choice(Mode.SWAP, split=split, recompute_at=tuple(recomputed))
            elif recomputed:
                choices[b] = Choice(Mode.RECOMPUTE, split=split)
        return choices
