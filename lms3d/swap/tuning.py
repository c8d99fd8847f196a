"""Every constant of the engine that trades one thing for another, one section per module.

Each says what it trades and what measured it: a test, a command, or "a margin, not measured". No TensorFlow here.
"""

from __future__ import annotations

import os

# -- planning ------------------------------------------------------------------------------------------------------

UNORDERED = 1.05
"""Factor on the limit at which an unplanned step is trusted to run. Ready ops run side by side, so the peak lies above
that of a serial step. Larger: LMS steps in earlier. Measured: `python -m experiments.lms_overhead`, group "limits"."""

NAMED_TENSORS = 3
"""Tensors named in a "does not fit" message. Keeps the message to one line; not measured."""

# -- planners: hybrid compared with TFLMS --------------------------------------------------------------------------

COMPARED_OPS = 500
"""Larger steps are not compared with TFLMS, whose search simulates the step tens of times. Trades planning time for the
promise never to be worse; tests/lms3d/swap/planners/test_never_worse_than_tflms.py."""

# -- planners: TFLMS -----------------------------------------------------------------------------------------------

TRIGGER_LEVELS = 10
"""Levels that are searched for the op that triggers a swap-in: the value of TFLMS 2.0."""

TFLMS_SAFETY = 0.94
"""Share of the limit that TFLMS's auto-tuning may use: a pool cannot be filled to the last byte. A margin, not measured."""

# -- planners: hybrid/planner --------------------------------------------------------------------------------------

HYBRID_SECONDS = 10.0
"""Most effort, in seconds by price list, for a step of up to HYBRID_ANCHORS anchors; in proportion for larger ones.
Trades planning time for step time; `python -m experiments.lms_overhead`, column "planning"."""

HYBRID_ANCHORS = 600
"""Anchors of isensee2017, the step that HYBRID_SECONDS was chosen for."""

EXCHANGED_PLANS = 2
"""Cheapest plans that PLAN-4 starts from. More cost as much again each and rarely win; `experiments.lms_overhead`."""

EXACT_SHARE = 0.25
"""Largest share of a small effort for the mixed-integer program. A margin, not measured."""

DESCENT_SHARE = 0.6
"""Share of what is left for the descents (PLAN-1, PLAN-2); the rest improves what they found. A margin, not measured."""

# -- effort --------------------------------------------------------------------------------------------------------

LEAST_SECONDS = 3.0
"""Every run grants this much planning; tests/lms3d/swap/planners/test_effort.py, `python -m experiments.first_step`."""

RUN_SHARE = 0.02
"""Share of a run's predicted time that planning may take. A promise, not a measurement."""

MOST_SECONDS = 96.0
"""Effort class from which on only the planner's own limit counts: more than any step measured so far could use."""

SMALLEST_SECONDS = LEAST_SECONDS / 8
"""Smallest effort class; less is no search. tests/lms3d/swap/planners/test_effort.py."""

ANCHOR_SECONDS, COPY_SECONDS = 1.5e-6, 8e-6
"""Price of a schedule, per anchor and per copy that comes back. Measured on one server core, steps of 630 and 1,426 anchors."""

REPLAYED_SECONDS = 2e-6
"""Price of a replay in a pool, per anchor and copy; measured as above."""

EXACT_SECONDS = 1e-3
"""Price of the mixed-integer program, per anchor; measured as above."""

OP_SECONDS = 5e-5
"""Price of reading a step, per op; measured as above."""

# -- engine --------------------------------------------------------------------------------------------------------

NEAR_LIMIT = 0.7
"""Predicted share of the limit from which on oneDNN kernels are guarded. The guard costs well under 1 % of a step; without
it, running out of memory ends the process. A margin, not measured."""

# -- plan_cache ----------------------------------------------------------------------------------------------------

MOST_PLANS = 100
"""Plans kept in the cache folder, of about 100 KB each. Disk space for planning time; not measured."""

# -- keras_step/adaptation -----------------------------------------------------------------------------------------

COLD, WARM = 1, 3
"""Steps of a plan that are left out (tracing and planning are in the first), and that are counted then. More give steadier
medians and a later second plan; tests/lms3d/keras_step/test_closing_the_loop.py."""

MOST_CHANGES = 3
"""New plans per step and run: each costs a trace and a plan. Not measured."""

TIGHTER, LOOSER = 0.92, 1.15
"""Factors of the budget: of each tighter try, and at most of a looser one. Larger steps risk a needlessly slow plan or a
step that runs out of memory. Margins, not measured."""

AIM, ROOMY = 0.95, 0.9
"""Shares of the limit: the highest peak to plan for, and the peak below which the plan may be loosened. Margins, not measured."""

SLOW = 0.7
"""Share of the planned bandwidth below which a link counts as slow. A margin, not measured."""

MATTERS = 0.02
"""Share of a step's time below which a difference is noise: the spread of steps on an idle machine,
`python -m experiments.lms_overhead`, group "times"."""

# -- keras_step/step_runner and on_device --------------------------------------------------------------------------

TRIES = 5
"""Runs of one batch, each after out of memory with a tighter plan (TIGHTER ** 4 = 0.72 of the limit). Not measured."""

BATCHES_AHEAD = 2
"""Batches on the device beside the step's own: one ready, one being made; tests/data/test_stream.py."""

COARSE_BYTES, FINE_BYTES = 8 << 20, 1 << 18
"""What else lies on the device is rounded up to these, so that small differences between runs meet the same cached plan.
Coarse: chance decides it; fine: it was looked up. Margins, not measured."""

# -- cost ----------------------------------------------------------------------------------------------------------

TRANSFER_PRICE = 0.05
"""Least price in seconds of a second of transfer that hides behind compute: it takes memory bandwidth and may be late.
Higher: fewer swaps, more stalls accepted. A margin, not measured (`Machine.swap_share` is)."""

# -- hybrid/problem: which buffers are worth a decision ------------------------------------------------------------

SMALLEST_SHARE = 1 / 2000
"""Of all bytes that can be moved: smaller buffers are kept. Larger: a faster search, a higher floor. Their ops keep a place in
the order, since the moment they take memory changes which piece of a pool the next large one gets. Measured:
`python -m experiments.lms_overhead`."""

SMALL_SHIFT = 3
"""Anchors by which a small op may run before or after its planned moment. Larger: safer, but more bytes are reserved.
Measured: tests/lms3d/swap/test_memory_saved.py (predicted against real peaks)."""

# -- hybrid/schedule -----------------------------------------------------------------------------------------------

SPLIT = 3
"""Anchors: a gap between two reads that is shorter is never worth a copy. Smaller: more choices, more transfers that cannot
hide. A margin, not measured; moves can lower it to 1 for a single buffer."""

LEAD = 4
"""Events by which a mapped swap-in is called ahead: it takes no memory, so nothing is lost by calling early, and nothing need
wait for it. A margin, not measured."""

# -- hybrid/moves --------------------------------------------------------------------------------------------------

SOON_SECONDS = 1e-4
"""Added to every price that a promise is divided by: cheap moves do not win by being almost free. A margin, not measured."""

PROMISE_BYTES_PER_SECOND = 1e9
"""Speed of a tier where moves are only ranked. An order of magnitude, not measured."""

TIGHTER_FIRST = 1e4
"""Factor on the promise of moves that cost next to nothing (wait for a transfer that is under way): they come first."""

OTHER_SOURCE = 0.1
"""Factor on the promise of bringing a buffer back another way: it frees bytes only indirectly. Not measured."""

# -- hybrid/search: evaluations are the price, one takes about 2 ms with isensee2017 at 96^3 -----------------------

TRIED_MOVES = 8
"""Moves per round that are evaluated, the most promising first. More: better rounds, fewer of them. Not measured."""

TRIED_FIRST, TRIED_SECOND = 8, 6
"""PLAN-2: first moves, and second moves for each, that are evaluated as pairs. As above."""

EXCHANGED = 1000
"""Evaluations for PLAN-4, from each plan: quality of a plan against seconds of planning (2 s of the 10 s of a search)."""

REPAIRS = 4
"""Moves that may mend an exchange. More: dearer exchanges get a chance, each costs more. Not measured."""

LOWER_SHARE = 0.97
"""Of the peak: what a round without a budget works towards. Lower: rounds pay for bytes that others save. Not measured."""

PEAK_EVENTS = 50
"""A byte of the peak weighs as much as a byte above the budget at this many events. Not measured."""

WORTHLESS_SHARE = 3e-4
"""Of the step's seconds: moves that cost less are compared by bytes alone. Not measured."""

RESERVE = 0.04
"""Of a limit, left unplanned: the executor's own buffers, and small ops in yet another order. Larger: higher floors, fewer
steps that run out of memory and are planned again. Measured: tests/lms3d/swap/test_memory_saved.py."""

RESERVE_IN_TURN = 0.03
"""The same in a pool whose waste is counted and whose order is held: peaks at 96^3 were predicted to 1 %. Measured:
`python -m experiments.lms_overhead`."""

ACCIDENT = 0.7
"""Of the largest tensor: room for one fragmentation accident where memory does not change hands in the planned order (a GPU, a
step without a plan). A small tensor in the wrong place makes a large one miss a hole of its own size. Larger: higher limits
for steps that would have fitted. Measured: `python -m experiments.lms_overhead`."""

# -- hybrid/floor --------------------------------------------------------------------------------------------------

FLOOR_SECONDS = 10.0
"""Price list seconds (`effort`) at most: for descents, for a second look at them, and for draws. More: a lower floor, later.
Measured: `python -m experiments.lms_overhead`."""

TIMELESS_SECONDS = 0.01
"""Of each op alike while the floor is sought: hides nearly all transfers, and no measured speed moves the floor."""

NEAR, NEAREST = 1.06, 12
"""Plans with a peak up to this factor above the smallest are tried as pieces, and so many: bytes alone do not tell which fits in
the smallest pool. Each costs some replays. Not measured."""

STEADY_PLANS = 4
"""Plans with the smallest limits that must show a steady limit. Each costs up to `STEADY_TRIED` checks. Not measured."""

STEADY_STEPS, STEADY_STEP_BYTES = 4, 2 << 20
"""A limit is steady where so many larger ones, in steps of so much, fit as well: gaps between weights are never quite as
predicted (0.3 to 6 MiB were seen, `device.cpu_pool.gap_bytes`)."""

STEADY_TRIED = 16
"""Limits tried for a steady one, one step apart. Not measured."""

DRAWS = 300
"""Random changes tried at the floor: a lower floor against seconds; `FLOOR_SECONDS` mostly ends them earlier."""

DRAWN = (1, 2, 4, 8, 16, 32, 64)
"""Buffers that one draw changes: small steps and large ones. Not measured."""

# -- hybrid/relaxation ---------------------------------------------------------------------------------------------

MOST_POINTS = 600
"""Points of decision before chains of recomputing are cut: tightness of the bound against seconds of the program."""

NODES = 20
"""Of the search tree; bound and start hardly gain from more, each node takes time. Measured: tests/.../test_relaxation.py."""

PROGRAM_SECONDS = 300.0
"""By the clock: an emergency exit that is not meant to be taken, the nodes take about a second."""

GOOD_ENOUGH = 0.02
"""Relative gap at which the program stops. It is only a start for the search, which goes on from there. Not measured."""

WINDOWS = 6
"""Different starts r in RELAX-5: tightness of the bound against rows. Not measured."""

# -- hybrid/allocator ----------------------------------------------------------------------------------------------

PERTURBED = 4
"""Replays with random shifts that a plan must survive. More: fewer steps out of memory, dearer checks (1 ms each). Measured:
`python -m experiments.lms_overhead`."""

LATE_SWAP_IN = 2
"""Events by which a swap-in on a GPU may take its memory late. A margin, not measured."""

SMALLEST_PIECE = 4 << 10
"""Bytes: smaller buffers fit into any gap of a GPU's pool and are not replayed. A margin, not measured."""

# -- tensorflow/op_costs -------------------------------------------------------------------------------------------

PROBE_BUDGET_SECONDS = 30.0
"""Once for each machine: enough for all kinds of ops of a 3D U-Net, so that the next run plans with the same figures."""

WORTH_SECONDS = 1e-3
"""All ops of a kind in one step: less is not worth a measurement. Trades precision of the step time for seconds."""

REST = 0.01
"""Of the step's seconds that may stay unmeasured. As above."""

RUN_SECONDS = 0.06
"""Roofline seconds of one run of an op; longer ones run at a fraction of their size. A margin, not measured."""

MOST_BYTES = {"CPU": 64 << 20, "GPU": 1 << 30}
"""Inputs and outputs of one run: larger than caches, and small beside the memory. A margin, not measured."""

FREE_SHARE = 4
"""A run may take one in so many bytes of the free memory: kernels take workspace, and a pool has gaps. A margin, not measured."""

CORES = os.cpu_count() or 1
RUNS, ENOUGH_SECONDS = 8, 0.1
"""Runs of one op, at least two, more while they are short: noise against seconds."""

SHORT_SECONDS, MOST_TIMES = 1e-3, 200
"""Shorter ops run many times in one call, since a call alone takes 0.1 ms (measured: `op_costs._call_seconds`)."""

LEAST_SHARE = 0.9 / CORES
"""Of the device: whoever computes keeps a core busy; less is a run that something else held up."""

ARGUMENT_ELEMENTS = 64
"""An integer tensor of at most this size is an argument (axes, sizes, paddings), not data. A margin, not measured."""

# -- tensorflow/speeds and tiers -----------------------------------------------------------------------------------

COPYING_SHARE = 2.0
"""`Machine.swap_share` where a processor computes and copies to the page cache: both work slower than alone. Measured: the
benchmark, 0.16 s a step for 1.25 GB that takes 0.08 s alone."""

PROBE_BYTES, PROBE_FILES = 16 << 20, 8
"""Of one file, and how many: together more than a processor's caches hold, and done within a second."""

PART_BYTES, MOST_PARTS = 2 << 20, 4
"""A copy is divided among up to so many cores, in parts of at least so many bytes: all cores compute meanwhile, and one alone
would make the others wait. Not measured."""

LEAST_MAPPED_BYTES = 1 << 20
"""Below that a system call costs as little as a copy through a map. A margin, not measured."""

# -- tensorflow/guard ----------------------------------------------------------------------------------------------

GUARDED_BYTES = 1 << 18
"""Smaller outputs are not guarded: fewer ops, and a crash that is rarer still. A margin, not measured."""

UNPLANNED_EIGHTHS = 1
"""Eighths more that a guard asks for in a step without a plan: kernels take workspace besides. Measured:
`python -m experiments.lms_overhead`."""
