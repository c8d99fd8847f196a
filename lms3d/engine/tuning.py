"""Every constant of the engine that trades one thing for another, one section per module.

Each says what it trades and what measured it: a test, a command, or "a margin, not measured". No TensorFlow here.
"""

from __future__ import annotations

# -- planning ------------------------------------------------------------------------------------------------------

UNORDERED = 1.05
"""Factor on the limit at which an unplanned step is trusted to run. Ready ops run side by side, so the peak is above that of
a serial step. Larger: LMS steps in earlier than it need. Checked by `python -m experiments.lms_overhead`, group "limits"."""

NAMED_TENSORS = 3
"""Tensors named in a "does not fit" message. Keeps the message to one line; not measured."""

# -- planners: hybrid compared with TFLMS --------------------------------------------------------------------------

COMPARED_OPS = 500
"""Larger steps are not compared with TFLMS, whose search simulates the step tens of times. Trades planning time for the
promise never to be worse; tests/lms3d/engine/planners/test_never_worse_than_tflms.py."""

# -- planners: TFLMS -----------------------------------------------------------------------------------------------

TRIGGER_LEVELS = 10
"""Levels that are searched for the op that triggers a swap-in: the value of TFLMS 2.0."""

TFLMS_SAFETY = 0.94
"""Share of the limit that TFLMS's auto-tuning may use: a pool cannot be filled to the last byte. A margin, not measured."""

# -- planners: hybrid/local_search --------------------------------------------------------------------------------

HYBRID_SECONDS = 10.0
"""Most effort, in seconds by price list, for a step of up to HYBRID_ANCHORS anchors; in proportion for larger ones.
Trades planning time for step time; tests/lms3d/engine/planners/test_effort.py holds a run to it."""

HYBRID_ANCHORS = 600
"""Anchors of isensee2017, the step that HYBRID_SECONDS was chosen for."""

EXCHANGED_PLANS = 2
"""Cheapest plans that PLAN-4 starts from. Planning time, as much again for each, for step time. A margin, not measured."""

EXACT_SHARE = 0.25
"""Largest share of a small effort for the mixed-integer program, and for the covering program. A margin, not measured."""

DESCENT_SHARE = 0.6
"""Share of what is left for the descents (PLAN-1, PLAN-2); the rest improves what they found. A margin, not measured."""

FEWER_BYTES = (0.95, 0.85)
"""Of the peak of a plan that has few enough bytes but whose pieces do not fit the pool: what is tried then. More: planning time
for step time; `python -m tests.stress graphs --only limits`."""

DEAR, DEAR_SHARES = 0.25, (0.98, 0.95, 0.92, 0.89, 0.86)
"""In a pool a plan that loses this share of the step's seconds is compared with the plans for these shares of the limit, or for the
floor where that is more, while effort is left: planning time for step time; `python -m tests.stress graphs --only limits`.
With 0.9 alone one step that tests/stress/test_steps.py has by name takes 0.96 s where a tighter limit takes
0.66 s; without the floor another takes 0.48 s where that takes 0.33 s. The search for a real network uses up all effort before
that: given 15 s more, isensee2017 at 48^3 in 143 and 150 MiB had no cheaper plan."""

SMALLER_LIMITS = 4
"""Limits from the floor upwards that are tried where one finds no plan. Planning time for steps out of memory. Not measured."""

# -- effort --------------------------------------------------------------------------------------------------------

LEAST_SECONDS = 3.0
"""Every run grants this much planning; tests/lms3d/engine/planners/test_effort.py, `python -m experiments.first_step`."""

RUN_SHARE = 0.02
"""Share of a run's predicted time that planning may take. A promise, not a measurement."""

MOST_SECONDS = 96.0
"""Effort class from which on only the planner's own limit counts: more than any step measured so far could use."""

STAKE_SHARE = 0.1
"""Share of the time that a run loses by its plan which a further search may take. Planning time for step time: over a slow link 3 s
of search gave 1.98 times the step without LMS and 17 s 1.23 times. A margin, not measured."""

SETTLED = 0.005
"""Of a step's seconds: a plan that loses no more is good enough. Planning time for step time. A margin, not measured."""

SMALLEST_SECONDS = LEAST_SECONDS / 8
"""Smallest effort class; less is no search. tests/lms3d/engine/planners/test_effort.py."""

ANCHOR_SECONDS, COPY_SECONDS = 1.5e-6, 8e-6
"""Price of a schedule, per anchor and per copy that comes back. Measured on one server core, steps of 630 and 1,426 anchors."""

REPLAYED_SECONDS = 2e-6
"""Price of a replay in a pool, per anchor and copy; measured as above."""

EXACT_SECONDS = 1e-3
"""Price of the mixed-integer program, per anchor; measured as above."""

WAY_SECONDS = 1e-4
"""Price of a covering program, per way that a buffer can leave; measured as above, steps of 2,900 and 7,500 anchors."""

OP_SECONDS = 5e-5
"""Price of reading a step, per op; measured as above."""

# -- slabs/choice --------------------------------------------------------------------------------------------------

ROOM, WHOLE_ROOM, WHOLE_ROOM_MAPPED = 1.5, 1.8, 1.0
"""Factors on the working set of the hungriest op: the room that a plan should have, for a sliced step, for a whole one, and for a
whole one that reads swapped tensors where they lie. Smaller: coarser slabs, and plans that move nearly everything; slabs step in
later. Measured with isensee2017 (docs/benchmarks.md, "Whole or in slabs?"): mapped, a whole step is faster than one in slabs
wherever it fits, down to 1.4 times its working set at 64^3 and 1.1 times at 96^3; to find that it does not fit takes 4 s. Over a
link as slow as PCIe Gen3 it is the faster one at 2.1 times (128^3, measured); predicted, slabs are at 1.3 to 1.75 times, though
not at 1.6 times at 96^3."""

RAISED_TOO = 0.7
"""Of the largest working set: levels that need as much are sliced finer together. Smaller: fewer steps, finer slabs. Not
measured."""

THINNEST = 4
"""Planes of the thinnest slab. Halos of two planes cost a share of 2 / planes of each convolution."""

# -- slabs/elements ------------------------------------------------------------------------------------------------

MOST_ELEMENTS = 2**31 - 1
"""Of a tensor on a GPU: kernels count in 32 bits with a sign. No trade, and not measured here: TensorFlow's sources and issues say
so (`slabs.elements`)."""

# -- engine --------------------------------------------------------------------------------------------------------

NEAR_LIMIT = 0.7
"""Predicted share of the limit from which on oneDNN kernels are guarded. Without a guard, running out of memory ends the
process; with one, the step has an op more per kernel. A margin, not measured."""

# -- plan_cache ----------------------------------------------------------------------------------------------------

MOST_PLANS = 100
"""Plans kept in the cache folder. Disk space for planning time; not measured."""

# -- keras_step/adaptation -----------------------------------------------------------------------------------------

COLD, WARM = 1, 3
"""Steps of a plan that are left out (tracing and planning are in the first), and that are counted then. More give steadier
figures and a later second plan; tests/lms3d/keras_step/test_closing_the_loop.py."""

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
"""Share of a step's time below which a difference is taken for noise. A margin, not measured."""

SAME_COSTS = 0.1
"""Share by which a step may take longer or shorter than the sum of its ops before all ops count as so much slower or faster.
Smaller: noise makes new plans. A margin, not measured."""

# -- keras_step/step_runner and on_device --------------------------------------------------------------------------

TRIES = 5
"""Runs of one batch, each after out of memory with a tighter plan (TIGHTER ** 4 = 0.72 of the limit). Not measured."""

PROVED_STEPS = COLD + WARM
"""Steps of a plan before which a GPU's variables are copied to the host. More: 40 ms of each further step (isensee2017 at 192^3 on
an H200), and more failures that can be undone. How many it takes was not measured."""

MOST_STEPS = 32
"""Prepared steps that are kept, one per kind and batch shapes: each holds a graph and files of its own. Not measured."""

BATCHES_AHEAD = 2
"""Batches on the device beside the step's own: one ready, one being made; tests/data/test_stream.py."""

COARSE_BYTES, FINE_BYTES = 8 << 20, 1 << 18
"""What else lies on the device is rounded up to these, so that small differences between runs meet the same cached plan.
Coarse: chance decides it; fine: it was looked up. Margins, not measured."""

# -- cost ----------------------------------------------------------------------------------------------------------

TRANSFER_PRICE = 0.05
"""Least price of a second of transfer that hides behind compute: it takes memory bandwidth and may be late. Higher: fewer
swaps. A margin, not measured (`Machine.swap_share` is)."""

# -- planners: hybrid/problem --------------------------------------------------------------------------------------

SMALLEST_SHARE = 1 / 2000
"""Of all movable bytes, by the number of slabs of a sliced step: smaller buffers are kept, though in order. Larger: a faster
search, a higher floor; `python -m experiments.lms_overhead`."""

SMALL_SHIFT = 3
"""Anchors by which a small op may run early or late. Larger: safer, but more bytes are reserved;
tests/lms3d/engine/test_memory_saved.py (predicted against real peaks)."""

# -- planners: hybrid/schedule -------------------------------------------------------------------------------------

SPLIT = 3
"""Anchors: a shorter gap between two reads is not worth a copy. Smaller: more choices, transfers that cannot hide. A margin, not
measured; moves lower it to 1 for single buffers."""

LEAD = 4
"""Events by which a mapped swap-in is called early, so that no reader waits for the call. It takes no memory: early costs nothing.
A margin, not measured."""

# -- planners: hybrid/moves (only the order in which moves are tried) ----------------------------------------------

SOON_SECONDS = 1e-4
"""Added to every price, so that nearly free moves do not always win. A margin, not measured."""

PROMISE_BYTES_PER_SECOND = 1e9
"""Speed of a tier. An order of magnitude, not measured."""

CHEAP_SHARES = (0.05, 0.1, 0.2)
"""Of a buffer's way out and back: what takes no more to compute is computed again in a rough plan. Smaller: shorter chains, fewer
bytes freed. Of the case study's network in 57 % of the memory behind a V100's PCIe 0.05 alone gives a rough plan of 1.12 times the
step without LMS, 0.1 and 0.2 give 1.23 (`Search.fewest_moved` alone); an H100's ops are dearer beside its link."""

TIGHTER_FIRST, OTHER_SOURCE = 1e4, 0.1
"""Factors on the promise of waiting for a transfer, which costs next to nothing, and of bringing a buffer back another way,
which frees bytes only indirectly. Not measured."""

# -- planners: hybrid/descent, hybrid/search (an evaluation takes about 2 ms with isensee2017 at 96^3) --------------

TRIED_MOVES, TRIED_FIRST, TRIED_SECOND = 8, 8, 6
"""Moves per round that are evaluated, and first and second moves of a pair (PLAN-2). More: better rounds, fewer of them. Not
measured."""

LOWER_SHARE = 0.97
"""Of the peak: what a round without a budget works towards. Lower: it pays for bytes that others save. Not measured."""

PEAK_EVENTS = 50
"""A byte of the peak counts like a byte above the budget at this many events. Not measured."""

WORTHLESS_SHARE = 3e-4
"""Of the step's seconds: cheaper moves are compared by bytes alone. Not measured."""

EXCHANGED, REPAIRS = 1000, 4
"""PLAN-4: evaluations from each plan (about 2 s), and moves that may repair one exchange. More: better plans, later;
`python -m experiments.lms_overhead`, column "planning"."""

RESERVE, RESERVE_IN_TURN = 0.04, 0.03
"""Of a limit, left unplanned for the executor's own buffers and small ops in another order; in turn: in a pool whose waste is
counted. Larger: higher floors, fewer steps out of memory; tests/lms3d/engine/test_memory_saved.py."""

RESERVE_ON_GPU = 0.08
"""In place of RESERVE in a GPU's pool. On an H200 a plan for 94 % of 6 GiB (192^3) ran out of memory in its second step, and the
next, for 86 %, did not; one for 96 % of 5 GiB ran seven steps. Larger: as RESERVE."""

ACCIDENT = 0.7
"""Of the largest tensor: room for one fragmentation accident of a step without a plan, where nobody holds the order: a small tensor
in the wrong place makes a large one miss a hole of its own size. Larger: higher limits;
`python -m experiments.lms_overhead`."""

# -- planners: hybrid/floor ----------------------------------------------------------------------------------------

FLOOR_SECONDS = 10.0
"""Effort, in seconds by price list, of each of its searches. More: a lower floor, later; `experiments.lms_overhead`."""

TIMELESS_SECONDS = 0.01
"""Of every op while the floor is sought: nearly all transfers hide, and measured speeds do not move the floor."""

NEAR, NEAREST = 1.06, 12
"""Plans with a peak up to this factor above the smallest are replayed in a pool, and at most this many. Not measured."""

STEADY_PLANS, STEADY_TRIED = 4, 16
"""Plans that must show a steady limit, and limits tried for each. More: a lower floor, later. Not measured."""

STEADY_STEPS, STEADY_STEP_BYTES = 4, 2 << 20
"""A limit is steady where this many larger ones, in steps of this size, fit too: gaps between weights of 0.3 to 6 MiB were seen
(`device.cpu_pool.gap_bytes`)."""

DRAWS, DRAWN = 300, (1, 2, 4, 8, 16, 32, 64)
"""FLOOR-3: random changes, and how many buffers one changes. More: a lower floor, later. Not measured."""

# -- planners: hybrid/relaxation -----------------------------------------------------------------------------------

MOST_POINTS, NODES, WINDOWS = 600, 20, 6
"""Points before chains are cut, nodes of the search tree, windows of RELAX-5: a tighter bound for more seconds (about one);
bound and start hardly gain from more; tests/lms3d/engine/planners/test_relaxation.py."""

GOOD_ENOUGH, PROGRAM_SECONDS = 0.02, 300.0
"""Relative gap at which the program stops, since it is only a start; seconds by the clock, an emergency exit. Not measured."""

# -- planners: hybrid/allocator ------------------------------------------------------------------------------------

PERTURBED = 4
"""Replays with random shifts that a plan must survive. More: fewer steps out of memory, dearer checks (1 ms each);
`python -m experiments.lms_overhead`."""

SMALLEST_PIECE = 4 << 10
"""On a GPU: bytes below which a buffer fits into any gap. A margin, not measured."""

# -- tensorflow/op_costs -------------------------------------------------------------------------------------------

PROBE_BUDGET_SECONDS, CARD_BUDGET_SECONDS = 30.0, 60.0
"""Once per machine and number of cores, and on a GPU: enough for all kinds of ops of a 3D U-Net, so that the next run plans with
the same figures. On a GPU most of it is cuDNN trying its algorithms (19 s of isensee2017's first step at 192^3 on an H200), which
it need not do again in the step. Not measured there."""

WORTH_SECONDS, REST = 3e-4, 0.003
"""Seconds per step of all ops of a kind, and share of the step, that may stay unmeasured: precision for time. isensee2017 at 64^3
in 280 MiB (AMD EPYC, 2 cores): with 1e-3 and 0.01 52 kinds are measured in 2 s, and of the others, small convolutions and `ArgMax`
above all, a step of 0.39 s takes 17 ms more than their roofline; with these 116 kinds in 3 s; with 1e-4 and 0.001 229 in 7 s."""

WORTH_SHARE, LEAST_WORTH_SECONDS = 3e-4, 1e-5
"""On a GPU a kind may stay unmeasured below this share of the step, but never more than WORTH_SECONDS and never less than two
launches: isensee2017 at 192^3 takes 0.1 to 0.3 s on an H200, with some 115 kinds. The share is what WORTH_SECONDS is of a step of
1 s. Not measured."""

PACED_OPS, PACED_SECONDS = 5, 2.0
"""Kinds of ops that are timed again, and the most seconds for it: start-up time for predicted seconds."""

PROGRAM_BYTES, PROGRAM_SHARE = 1 << 20, 2e-3
"""Ops are compiled if together they move this many bytes, and this share of what the step moves: each kind of program costs some
half a second once, to compile it and to time it. Margins, not measured."""

PROGRAM_GAIN, PROGRAM_ROUNDS = 0.9, 2
"""A program is clearly faster if it takes at most this share of the seconds of its ops; both are timed so often. Margins, not
measured."""

PROGRAM_FREE_SHARE = 3
"""What is timed as a program takes at most one in this many free bytes: its ops have tensors of their own between them. Not
measured."""

FOLDED_ELEMENTS = 256
"""Constants up to this size are constants of a program, too. Not measured."""

LONG_STEP_SECONDS = {"CPU": 0.2, "GPU": 0.02}
"""The shortest step of which the seconds are looked at: for the pace of the machine, and beside what its ops take alone (ADAPT-6).
Shorter ones are little but launches and calls. Margins, not measured."""

PACE, SAME_PACE, PACE_LASTS_SECONDS = 1.1, 1.0, 600.0
"""The machine of today counts as faster or slower by powers of PACE. Up to PACE ** SAME_PACE (10 %) beside the pace that was found
last it counts as the same, so that plans stay as they are and come from the cache; with 15 %, one that was found once to be 17 %
faster stayed so, and steps at 64^3 were predicted to take 17 to 24 % too few seconds. For so many seconds nobody looks again: ranks
that start together get one pace."""

MOST_WHOLE_STEPS = 500
"""Steps whose seconds are kept in the cache folder (`whole_steps`). Disk space, 200 bytes each; not measured."""

# -- tensorflow/op_costs, probing ----------------------------------------------------------------------------------

RUN_SECONDS, MOST_BYTES, FREE_SHARE = 0.06, {"CPU": 256 << 20, "GPU": 8 << 30}, 4
"""A run takes at most this many roofline seconds and bytes, and one in this many free bytes, since kernels take workspace;
else it is cut. Margins, not measured; on a CPU beyond the caches, in which a part would be faster than the whole. On a GPU all ops
of isensee2017 at 256^3 run whole, if the memory is there."""

CACHES_BYTES = 128 << 20
"""Read between two runs of a part of an op: more than a core finds in its caches. Not measured."""

MOST_HALO = 1.25
"""All parts of a convolution together read at most this many times the planes of the whole. A margin, not measured."""

RUNS, ENOUGH_SECONDS = 8, 0.1
"""Runs of one op, at least two, and seconds after which there are no more: noise for time."""

SHORT_SECONDS, MOST_TIMES = 1e-3, 200
"""Shorter ops run several times in one call, at most this often: a call alone takes 0.1 ms (`probing.call_seconds`)."""

UNDISTURBED = 0.8
"""Share of the processor time that its threads could use, from which on an op counts as undisturbed: alone on two cores of an AMD
EPYC they had 0.8 to 1, since threads of one process wait for each other, too; beside one thread of another process two thirds. To
take out what is missing from 1 made the ops of isensee2017 at 64^3 faster than they ever ran."""

QUEUED_RUN_SECONDS, QUEUED_CALLS, QUEUED_RATIO = 0.02, 400, 3
"""On a GPU: how long the device works in the longer of two runs, the most calls in it, and how many times as long it is as the
shorter. Longer: a wait (0.1 ms) and the first launch matter less; 115 kinds of ops take some 12 s. Margins, not measured."""

QUEUED_ROUNDS, QUEUED_SECONDS = 4, 0.08
"""Pairs of runs, and seconds after which there are no more: noise for time. Not measured."""

LEAST_CORES = 0.9
"""Whoever computes keeps a core busy; a run that had less was held up by something else."""

# -- tensorflow/capture --------------------------------------------------------------------------------------------

ARGUMENT_ELEMENTS = 64
"""An integer tensor up to this size is an argument (axes, sizes, paddings), not data. A margin, not measured."""

# -- tensorflow/speeds, tiers --------------------------------------------------------------------------------------

COPYING_SHARE = 2.0
"""`Machine.swap_share` where a processor both computes and copies to the page cache. Measured with isensee2017 at 96^3 on two
cores (`experiments.lms_overhead`): 0.16 s a step for 1.25 GB that takes 0.08 s alone."""

NODE_SECONDS = 2.5e-5
"""Of a swap-out or a swap-in of the disk tier, whatever the bytes: a pair takes 45 us of processor time if it is read in place, and
56 us if it is copied back; 500 pairs of 50 KB in a chain, on two cores with other work."""

SMALL_COPIES = 100
"""Copies of one number each way, one after the other, by which the host tier measures what a copy costs whatever its bytes: enough
that the call of the function (0.1 ms) is small beside them. Two logical devices of one processor: 4 us a copy."""

LINK_PROBE_BYTES, LINK_COPIES = 256 << 20, 4
"""Of one copy between a GPU and page-locked memory, and how often: some milliseconds each, so that a launch (10 us) is small beside
it."""

CARD_BYTES, CARD_SIDES = 512 << 20, (96, 64, 48, 32, 16)
"""On a GPU: of one tensor that is added to, and the sides of a cube of 32 channels that is convolved, of which the largest that
fits is taken. Both fill a card of 132 multiprocessors for some 0.3 ms, many times what a launch takes. Not measured."""

STACKED_MEMORY = frozenset({(6, 0), (7, 0), (8, 0), (9, 0), (10, 0)})
"""Compute capabilities of cards whose memory is stacked beside the chip: P100, V100, A100, H100, B200 and others (NVIDIA's
list of CUDA GPUs)."""

SLOWEST_CARDS = {"stacked memory": (2e12, 600e9), "other memory": (4e11, 40e9)}
"""FLOP/s of a float32 convolution and bytes/s of an addition, of the slowest such cards. By their sheets these have 9e12 and 549e9
(P100), 1e12 and 48e9 (MX150). A measurement is held to `LEAST_SHARE` of it."""

LEAST_SHARE = 0.5
"""Of what is stated of a card: a lower measurement is refused. The first GPU run measured 6.3e12 and 125e9 on an H200, by one call
before each wait. A margin, not measured."""

FASTEST_CARD = {"flops_per_second": 1e16, "bytes_per_second": 3e13}
"""What no card does: some three times the sheet of a B200 in its lowest precision, and four times its memory."""

PROBE_BYTES, PROBE_FILES = 16 << 20, 8
"""Of one file, and how many: together more than a processor's caches, in less than a second."""

PART_BYTES, MOST_PARTS, LEAST_MAPPED_BYTES = 2 << 20, 4, 1 << 20
"""A copy is divided into parts of at least this many bytes, among this many cores, since they all compute meanwhile. Margins, not
measured. Smaller files than the last are written by a system call: through a map each page waits once (1.3 us; less in large files,
whose pages the system joins), and again whenever it was written back; the call costs 0.1 us a page more."""

# -- tensorflow/guard ----------------------------------------------------------------------------------------------

GUARDED_BYTES, UNPLANNED_EIGHTHS = 1 << 18, 1
"""Smaller outputs are not guarded: fewer ops for a rarer crash. Eighths more that a guard asks for in a step without a plan:
tests/lms3d/engine/test_memory_saved.py."""

# -- planners: hybrid/prefetch -------------------------------------------------------------------------------------

PREFETCH_SHARES, PREFETCH_TRIES = (1.0, 0.5, 0.25), 60
"""By which shares of a transfer's seconds swap-ins begin earlier, and how many schedules that may take. Larger shares: more memory
in use; more schedules: planning time, 20 ms each at isensee2017's 700 ops. In the simulator, isensee2017 at 96^3 behind PCIe Gen3's
ratio: at 25 % of the memory, whole, 1.41 x in place of 1.48 x (with a share of 2: 1.40 x); at 35 %, if the link is 10 % slower
than stated, 0.8 % more step time in place of 1.8 %. 2 and 0.6 s on a busy machine."""

# -- planners: hybrid/ways -----------------------------------------------------------------------------------------

WAYS_SPLITS = 2
"""Longest gaps of a buffer at which it may leave; all shorter ones are one more way. More: a larger program. Not measured."""

# -- planners: hybrid/again ----------------------------------------------------------------------------------------

CHAIN_DEPTH, CHAIN_PARENTS = 4, 3
"""Ops that are run again one after the other for one read, and parents of each. More: fewer bytes written, a larger program.
Not measured."""

SHARED, MOST_AGAIN = 32, 3
"""Anchors: reads as near as this share what is computed again (of neighbouring slabs they are up to 21 apart in isensee2017), and
how often a buffer is computed again. Larger: fewer bytes written; the first holds more memory, the second takes longer."""

# -- planners: hybrid/ladder ---------------------------------------------------------------------------------------

RUNG = 1.02
"""Ratio of neighbouring budgets. Larger: fewer plans, and more of a limit left unused. A margin, not measured."""

RUNG_TRIES = 6
"""Further programs for one budget, each after the transfers of the plan before, in the second half for less (LADDER-3). None is
needed where links are fast. Planning time for plans at slow links; not measured."""

FLOOR_RUNGS = 1
"""Budgets above the lowest peak whose plans may need the smallest pool. More: a lower floor, later. Not measured."""

LADDER_SECONDS = 8.0
"""Effort after which no cheaper plan is looked for, once one fits. Planning time for step time; not measured."""
