"""The constants of the default planner's search, one section per module. No TensorFlow here.

Each says what it trades and what measured it: a test, a command, or "not measured".
"""

from __future__ import annotations

# -- strategy ----------------------------------------------------------------------------------------------------------

COMPARED_OPS = 500
"""Steps of more ops are not compared with TFLMS, whose search simulates the step tens of times. This trades planning time for the
promise never to be worse; tests/lms3d/engine/planners/test_never_worse_than_tflms.py. A sliced step of more ops has a `ladder`."""

LOST, PLACED_SECONDS = 0.05, 20.0
"""EFFORT-7: a search to the end whose plan loses more than this share of the step's seconds is compared with the shortest search.
In a pool, room is then looked for in cheaper plans, for so much effort. Planning time for step time: isensee2017 at 96^3 in 395 MiB
behind 0.3 GB/s is predicted 1.90 x without; in 564 MiB 1.15 and 1.09 x."""

ADVANCED = 4
"""The cheapest plans that are compared after `prefetch`, which takes up to a tenth off. More: planning time, 0.1 s each."""

DEAR, DEAR_SHARES = 0.25, (0.98, 0.95, 0.92, 0.89, 0.86)
"""In a pool a plan that loses this share of the step's seconds is compared with the plans for these shares of the limit, or for the
floor if that is more, while effort is left: planning time for step time; `python -m tests.stress graphs --only limits`.
With 0.9 alone, one step that tests/stress/test_steps.py has by name takes 0.96 s although a tighter limit
takes 0.66 s; without the floor another takes 0.48 s although the floor takes 0.33 s. The search for a real network uses up all
effort before that: given 15 s more, isensee2017 at 48^3 in 143 and 150 MiB had no cheaper plan."""

NEARLY_ALL = 0.9
"""The share of the effort that must be left for such a search not to be a hasty one, which looks for less. Not measured."""

SMALLER_LIMITS = 4
"""Limits from the floor upwards that are tried if a limit finds no plan. Planning time for steps out of memory. Not measured."""

# -- local_search ------------------------------------------------------------------------------------------------------

HYBRID_SECONDS = 10.0
"""The most effort, in seconds by price list, for a step of up to HYBRID_ANCHORS anchors; larger steps get more in proportion.
Planning time for step time; tests/lms3d/engine/planners/test_effort.py holds a run to it."""

HYBRID_ANCHORS = 600
"""The anchors of isensee2017, the step that HYBRID_SECONDS was chosen for."""


def in_proportion(anchors: int) -> float:
    """How many times the effort of isensee2017 a step of so many anchors gets."""
    return max(1.0, anchors / HYBRID_ANCHORS)


EXCHANGED_PLANS = 2
"""Cheapest plans that PLAN-4 starts from. Each takes as much planning time again, for step time. A margin, not measured."""

EXACT_SHARE = 0.25
"""The largest share of a small effort for the mixed-integer program, and for the covering program. A margin, not measured."""

DESCENT_SHARE = 0.6
"""The share of the remaining effort for descents (PLAN-1, PLAN-2); the rest improves their plans. A margin, not measured."""

FEWER_BYTES = (0.95, 0.85)
"""Shares of the peak that are tried if a plan has few enough bytes, but its pieces do not fit the pool. More: planning time for
step time; `python -m tests.stress graphs --only limits`."""

# -- moves (only the order in which moves are tried) -------------------------------------------------------------------

SOON_SECONDS = 1e-4
"""Seconds added to every price, so that nearly free moves do not always win. A margin, not measured."""

PROMISE_BYTES_PER_SECOND = 1e9
"""The speed of a tier, as an order of magnitude. Not measured."""

CHEAP_SHARES = (0.05, 0.1, 0.2)
"""A rough plan recomputes the buffers whose computing takes at most this share of their way out and back. Smaller: shorter chains,
fewer bytes freed. For the case study's network in 57 % of the memory behind a V100's PCIe, 0.05 alone gives a rough plan of 1.12
times the step without LMS; 0.1 and 0.2 give 1.23 (`Search.fewest_moved` alone). An H100's ops are dearer beside its link."""

TIGHTER_FIRST, OTHER_SOURCE = 1e4, 0.1
"""Factors on the promise of two kinds of moves: to wait for a transfer, which costs next to nothing, and to bring a buffer back
from another source, which frees bytes only indirectly. Not measured."""

# -- descent, search (an evaluation takes about 2 ms with isensee2017 at 96^3) -----------------------------------------

TRIED_MOVES, TRIED_FIRST, TRIED_SECOND = 8, 8, 6
"""Moves per round that are evaluated, and first and second moves of a pair (PLAN-2). More: better rounds, but fewer of them. Not
measured."""

LOWER_SHARE = 0.97
"""A round without a budget works towards this share of the peak. Lower: it pays for bytes that others save. Not measured."""

PEAK_EVENTS = 50
"""A byte of the peak counts like a byte above the budget at this many events. Not measured."""

WORTHLESS_SHARE = 3e-4
"""Moves that cost less than this share of the step's seconds are compared by bytes alone. Not measured."""

EXCHANGED, REPAIRS = 1000, 4
"""PLAN-4: evaluations from each plan (about 2 s), and moves that may repair one exchange. More: better plans, later;
`python -m experiments.lms_overhead`, column "planning"."""

# -- fragmentation -----------------------------------------------------------------------------------------------------

STARTS, EXCHANGED_EACH, STARTS_SHARE = (1.0, 0.94, 0.88, 0.97, 0.91), 200, 0.4
"""The shares of the budget to which each start descends, evaluations of PLAN-4 from there, and the share of the effort after which
no further one begins. Without the smaller shares the 564 MiB of PLACED_SECONDS are predicted 1.095 x instead of 1.090."""

NOISE, ROUNDS_IN_VAIN, ROUNDS_SHARE = 0.4, 3, 1.0
"""Rounds for a plan that is still DEAR: the spread of the noise in the logarithm of seconds, the rounds without gain before the
last, and the effort of all as a share of that before. More: planning time for step time. Which plans find room is chance: by the
costs of two measurements isensee2017 at 96^3 in 403 MiB behind 0.3 GB/s is predicted 1.61 and 1.44 x without, 1.60 and 1.40 x
with."""

ROOM_MOVES, ROOM_TRIED, ROOM_PATIENCE, ROOM_BARRED = 40, 10, 6, 10
"""FRAGMENT-2: moves for one plan; moves tried for each of them; moves without fewer bytes than before that end it; and
moves for which a choice that was given up stays so. More: more plans that fit, later. The 395 MiB of PLACED_SECONDS are predicted
1.86 x with a single move, 1.67 if 5 are tried."""

ROOM_SHARE, MOST_ROOM_SHARE = 2.0, 0.4
"""FRAGMENT-2: the shares of the remaining effort that all plans may take, and one of them. Most are given up early. Not
measured."""

# -- floor -------------------------------------------------------------------------------------------------------------

FLOOR_SECONDS = 10.0
"""The effort, in seconds by price list, of each of its searches. More: a lower floor, later; `experiments.lms_overhead`."""

TIMELESS_SECONDS = 0.01
"""The seconds of every op while the floor is sought. So nearly all transfers hide, and measured speeds do not move the floor."""

NEAR, NEAREST = 1.06, 12
"""Plans with a peak up to this factor above the smallest are replayed in a pool, and at most this many. Not measured."""

STEADY_PLANS, STEADY_TRIED = 4, 16
"""Plans that must show a steady limit, and limits tried for each. More: a lower floor, later. Not measured."""

STEADY_STEPS, STEADY_STEP_BYTES = 4, 2 << 20
"""A limit is steady if this many larger ones, in steps of this size, fit, too. Gaps between weights of 0.3 to 6 MiB were seen
(`device.cpu_pool.gap_bytes`)."""

DRAWS, DRAWN = 300, (1, 2, 4, 8, 16, 32, 64)
"""FLOOR-3: random changes, and how many buffers one of them changes. More: a lower floor, later. Not measured."""

# -- relaxation --------------------------------------------------------------------------------------------------------

MOST_POINTS, NODES, WINDOWS = 600, 20, 6
"""Points before chains are cut, nodes of the search tree, windows of RELAX-5: a tighter bound for more seconds (about one).
Bound and start hardly gain from more; tests/lms3d/engine/planners/test_relaxation.py."""

GOOD_ENOUGH, PROGRAM_SECONDS = 0.02, 300.0
"""The relative gap at which the program stops, since it is only a start; seconds by the clock, an emergency exit. Not measured."""

# -- prefetch ----------------------------------------------------------------------------------------------------------

PREFETCH_SHARES, PREFETCH_TRIES = (1.0, 0.5, 0.25), 60
"""The shares of a transfer's seconds by which swap-ins begin earlier, and how many schedules that may take. Larger shares: more
memory in use. More schedules: planning time, 20 ms each with isensee2017's 700 ops. In the simulator, for isensee2017 at 96^3
behind PCIe Gen3's ratio: at 25 % of the memory, whole, 1.41 x instead of 1.48 x (with a share of 2: 1.40 x); at 35 %, if the link
is 10 % slower than stated, 0.8 % more step time instead of 1.8 %. This took 2 and 0.6 s on a busy machine."""

# -- candidates --------------------------------------------------------------------------------------------------------

CANDIDATE_GAPS = 2
"""The longest gaps of a buffer at which it may leave; all shorter ones together are one more candidate. More: a larger program. Not
measured."""

FAR = 2
"""A buffer may also leave at all gaps that are at least this many times as long as any shorter one: each pass over the slabs reads
it within few anchors. Smaller: a larger program. isensee2017 at 192^3 in 1,740 MiB, 4 slabs, with an H200's costs: predicted 0.52 s
instead of 0.60."""

# -- remat -------------------------------------------------------------------------------------------------------------

CHAIN_DEPTH, CHAIN_PARENTS = 4, 3
"""Ops that are recomputed one after the other for one read, and parents of each. More: fewer bytes written, a larger program.
Not measured."""

SHARED, MOST_COPIES = 32, 3
"""Anchors: reads as near as this share a recomputed copy (reads of neighbouring slabs are up to 21 apart in isensee2017). And how
often a buffer is recomputed. Larger: fewer bytes written; the first holds more memory, the second takes longer."""

# -- polish ------------------------------------------------------------------------------------------------------------

POLISH_SECONDS, HARDLY_WAITS = 1.0, 0.02
"""The most effort for one plan, and the share of its step that must be spent waiting. Planning time for step time: isensee2017 at
192^3 with an H200's costs, 4 slabs, 1,580 MiB without a pool: 0.26 s instead of 0.29 (0.36 before tensors in slabs were
recomputed)."""

# -- ladder ------------------------------------------------------------------------------------------------------------

RUNG = 1.02
"""The ratio of neighbouring budgets. Larger: fewer plans, and more of a limit left unused. A margin, not measured."""

RUNG_TRIES = 6
"""Further programs for one budget, each after the transfers of the plan before; the second half of them for a smaller budget
(LADDER-3). If links are fast, none is needed. Planning time for plans behind slow links; not measured."""

NEARER_SECONDS, NEARER_GAIN = 10.0, 0.02
"""LADDER-5: the most effort, and the share of the seconds that a plan must be cheaper to be looked at. Planning time for step time:
isensee2017 at 192^3 with an H200's costs in 2,310 MiB is predicted to lose 58 % without, 53 % with 5 s, 41 % with 10 and 35 % with
20."""

FLOOR_RUNGS = 1
"""Budgets above the lowest peak whose plans may need the smallest pool. More: a lower floor, later. Not measured."""

LADDER_SECONDS = 4.0
"""The effort after which no cheaper plan is looked for, once one fits. Planning time for step time; not measured."""
