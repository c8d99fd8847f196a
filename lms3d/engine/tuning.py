"""The engine's constants that trade one thing for another, one section per module that uses them.

Each says what it trades and what measured it: a test, a command, or "a margin, not measured". The default planner's search
has its own in `planners.hybrid.tuning`. No TensorFlow here.
"""

from __future__ import annotations

# -- planning ----------------------------------------------------------------------------------------------------------

UNORDERED = 1.05
"""The factor on the limit at which a step is trusted to run without a plan. Ready ops run side by side, so the peak is above that
of a serial step. Larger: LMS steps in earlier than needed. Checked by `python -m experiments.lms_overhead`, group "limits"."""

NAMED_TENSORS = 3
"""Tensors named in a "does not fit" message. This keeps the message to one line; not measured."""

UNFOLDED_OPS = 40_000
"""Copies of ops that all loops of a step may become. More: longer loops have a plan, later. A ConvLSTM of 100 rounds, which become
26,000 ops, 15,000 of which are needed, was traced and planned in 26 s of a core (AMD EPYC)."""

# -- planners: TFLMS ---------------------------------------------------------------------------------------------------

TRIGGER_LEVELS = 10
"""Levels that are searched for the op that triggers a swap-in: the value of TFLMS 2.0."""

TFLMS_SAFETY = 0.94
"""The share of the limit that TFLMS's auto-tuning may use: a pool cannot be filled to the last byte. A margin, not measured."""

TFLMS_BUDGETS = tuple(percent / 100 for percent in range(100, 68, -2))
"""Shares of that budget for which TFLMS is tuned, one after the other, until the pieces of the pool have room for the plan. More:
finer, and about two seconds of planning each (isensee2017 at 96^3, which needed one to six)."""

# -- effort ------------------------------------------------------------------------------------------------------------

LEAST_SECONDS = 3.0
"""Every run grants this much planning; tests/lms3d/engine/planners/test_effort.py, `experiments.lms_overhead` (first_seconds)."""

RUN_SHARE = 0.02
"""The share of a run's predicted time that planning may take. A promise, not a measurement."""

MOST_SECONDS = 96.0
"""The effort class from which on only the planner's own limit counts: more than any step measured so far could use."""

STAKE_SHARE = 0.1
"""The share of the time a run loses by its plan that a further search may take. Planning time for step time: over a slow link 3 s
of search gave 1.98 times the step without LMS, and 17 s gave 1.23 times. A margin, not measured."""

SETTLED = 0.005
"""A plan that loses no more than this share of the step's seconds is good enough. Planning time for step time. A margin, not
measured."""

SMALLEST_SECONDS = LEAST_SECONDS / 8
"""The smallest effort class; less is no search. tests/lms3d/engine/planners/test_effort.py."""

ANCHOR_SECONDS, COPY_SECONDS = 1.5e-6, 8e-6
"""The price of a schedule, per anchor and per copy that comes back. Measured on one server core, with steps of 630 and 1,426
anchors."""

LIFE_SECONDS = 3e-6
"""The price of a replay in a pool, per life; measured as above, with steps of 480 and 1,600 lives."""

EXACT_SECONDS = 1e-3
"""The price of the mixed-integer program, per anchor; measured as above."""

CANDIDATE_SECONDS = 1e-4
"""The price of a covering program, per candidate; measured as above, with steps of 2,900 and 7,500 anchors."""

OP_SECONDS = 5e-5
"""The price of reading a step, per op; measured as above."""

# -- slabs/choice ------------------------------------------------------------------------------------------------------

ROOM, ROOM_MAPPED, WHOLE_ROOM, WHOLE_ROOM_MAPPED = 5.0, 1.5, 1.75, 1.0
"""Factors on the working set of the hungriest op. They give the room that a plan should have: for a sliced step, for a whole step,
and for either if swapped tensors are read in place. Smaller: coarser slabs, and plans that move nearly everything; slabs step
in later. Measured with isensee2017 (docs/benchmarks.md, "Whole or in slabs?"): with mapped tensors a whole step is faster than one
in slabs at any limit in which it fits, down to 1.4 times its working set at 64^3 and 1.1 times at 96^3; to find that it does not
fit takes 4 s. Over a link as slow as PCIe Gen3 the whole step is the faster one at 2.1 times (128^3, measured); predicted, slabs
are faster at 1.3 to 1.75 times, though not at 1.6 times at 96^3. With an H200's rates, and filter gradients in pieces, the whole
step is faster at 1.77 times (192^3 in 2,521 MiB: 1.34 x, 1.54 x in 4 slabs), but not at 1.45 times (2,100 MiB: 2.45 x, and
2.16 x in slabs). In slabs over a link, with an H200's rates and no workspaces, 192^3 in 2,500, 1,740, 1,200, 870 MiB takes 1.32,
2.65, 4.59, 8.20 x in 4 slabs, which leave 6.8, 4.5, 2.9, 1.9 times the working set, and 1.38, 2.38, 3.44 x in 8/4 slabs and 4.09 x
in 16/4, which leave 13, 8.6, 5.6, 6.9 times
(`python -m lms3d.plan --resolution 192 --machine h200-sxm --memory-limit 870MiB --slabs 16/4`)."""

RAISED_TOO = 0.7
"""Levels that need at least this share of the largest working set are sliced finer together. Smaller: fewer steps, finer slabs. Not
measured."""

THINNEST = 4
"""The planes of the thinnest slab. Halos of two planes cost a share of 2 / planes of each convolution."""

# -- slabs/elements ----------------------------------------------------------------------------------------------------

MOST_ELEMENTS = 2**31 - 1
"""The most elements of a tensor on a GPU, since kernels count in 32 bits with a sign. This trades nothing and is not measured here:
TensorFlow's sources and issues say so (`slabs.elements`)."""

# -- engine ------------------------------------------------------------------------------------------------------------

NEAR_LIMIT = 0.7
"""The predicted share of the limit from which on oneDNN kernels are guarded. Without a guard, running out of memory ends the
process; with one, the step has one more op per kernel. A margin, not measured."""

# -- plan_cache --------------------------------------------------------------------------------------------------------

MOST_PLANS = 100
"""Plans kept in the cache folder. Disk space for planning time; not measured."""

# -- keras_step/adaptation ---------------------------------------------------------------------------------------------

COLD, WARM = 1, 3
"""Steps of a plan that are left out (the first contains tracing and planning), and steps that are counted after them. More:
steadier figures, and a later second plan; tests/lms3d/keras_step/test_closing_the_loop.py."""

MOST_CHANGES = 3
"""The most new plans per step and run. Each costs a trace and a plan. Not measured."""

TIGHTER, LOOSER = 0.92, 1.15
"""Factors on the budget: for each tighter try, and at most for a looser one. Larger steps risk a needlessly slow plan, or a step
that runs out of memory. Margins, not measured."""

AIM, ROOMY = 0.95, 0.9
"""Shares of the limit: the highest peak to plan for, and the peak below which the plan may be loosened. Margins, not measured."""

SLOW = 0.7
"""The share of the planned bandwidth below which a link counts as slow. A margin, not measured."""

MATTERS = 0.02
"""The share of a step's time below which a difference counts as noise. A margin, not measured."""

SAME_COSTS = 0.1
"""The share by which a step may take longer or shorter than the sum of its ops. Beyond it all ops count as slower or faster.
Smaller: noise makes new plans. A margin, not measured."""

# -- keras_step/step_runner and on_device ------------------------------------------------------------------------------

TRIES = 5
"""The most runs of one batch. After each shortage of memory the plan is tighter (TIGHTER ** 4 = 0.72 of the limit). Not
measured."""

PROVED_STEPS = COLD + WARM
"""Steps of a plan before which a GPU's variables are copied to the host. More: 40 ms in each further step (isensee2017 at 192^3 on
an H200), and more failures that can be undone. How many are needed was not measured."""

MOST_STEPS = 32
"""Prepared steps that are kept, one per kind and batch shapes. Each holds a graph and files of its own. Not measured."""

BATCHES_AHEAD = 2
"""Batches in memory beside the step's own: one ready, one being made; tests/data/test_stream.py. Beside a GPU they wait on the
host."""

COARSE_BYTES, FINE_BYTES = 8 << 20, 1 << 18
"""Other bytes on the device are rounded up to a multiple of these, so that small differences between runs meet the same cached
plan. Coarse, or twice what the batches take if that is less: if chance decides how many there are; fine: if their number was looked
up. Margins, not measured."""

# -- cost --------------------------------------------------------------------------------------------------------------

TRANSFER_PRICE = 0.05
"""The lowest price of a second of transfer that hides behind compute: it takes memory bandwidth and may be late. Higher: fewer
swaps. A margin, not measured (`Machine.swap_share` is)."""

# -- step_model/problem ------------------------------------------------------------------------------------------------

SMALLEST_SHARE = 1 / 2000
"""Buffers below this share of all movable bytes are kept, though in order; in a sliced step the share is divided by the number of
slabs. Larger: a faster search, a higher floor; `python -m experiments.lms_overhead`."""

MOST_KEPT_SHARE = 0.1
"""Buffers that are kept for their size hold no more than this share of all movable bytes. If there were no such limit, a step of
two thousand equal buffers could move none. In isensee2017, unet3d and resenc they hold 3 to 7 %, in DenseNet-121 9.6 %. Larger: a
faster search of long steps, a higher floor; tests/lms3d/engine/step_model/test_problem.py."""

SMALL_SHIFT = 3
"""Anchors by which a small op may run early or late. Larger: safer, but more bytes are reserved;
tests/lms3d/engine/test_memory_saved.py (predicted against real peaks)."""

# -- step_model/schedule -----------------------------------------------------------------------------------------------

SPLIT = 3
"""Anchors: a gap between two reads that is not longer is not worth a copy. Smaller: more choices, transfers that cannot hide. A
margin, not measured; moves lower it to 1 for single buffers."""

LEAD = 4
"""Events by which a mapped swap-in is called early, so that no reader waits for the call. It takes no memory: early costs nothing.
A margin, not measured."""

# -- step_model/pool ---------------------------------------------------------------------------------------------------

RESERVE, RESERVE_IN_TURN = 0.04, 0.03
"""The share of a limit that is left unplanned, for the executor's own buffers and for small ops in another order; and that in a
pool whose waste is counted. Larger: higher floors, fewer steps out of memory; tests/lms3d/engine/test_memory_saved.py."""

RESERVE_ON_GPU = 0.08
"""RESERVE of a GPU's pool. On an H200 a plan for 94 % of 6 GiB (192^3) ran out of memory in its second step, and the
next, for 86 %, did not; one for 96 % of 5 GiB ran seven steps. Larger: as RESERVE."""

ACCIDENT = 0.7
"""Room for one accident of fragmentation, as a share of the largest tensor, in a step whose order no plan holds: a small tensor in
the wrong place makes a large one miss a hole of its own size. Larger: higher limits; `python -m experiments.lms_overhead`."""

# -- step_model/replay, allocator ---------------------------------------------------------------------------------------

PERTURBED = 4
"""Replays with random shifts that a plan must survive. More: fewer steps out of memory, dearer checks (1 ms each); `python -m
experiments.lms_overhead`."""

HELD_OUT = 12
"""Replays with other shifts that a plan must survive which was changed until it passed those. More: fewer steps out of memory, more
plans that are given up. Not measured."""

SMALLEST_PIECE = 4 << 10
"""On a GPU: a buffer of fewer bytes than this fits into any gap. A margin, not measured."""

# -- passes/repeats ----------------------------------------------------------------------------------------------------

SHARED_BYTES = 1 << 10
"""Tensors of at most this size are computed once, and kept for all that read them. Larger: more of them live from the forward
pass to the gradient. What optimisers repeat are scalars."""

# -- passes/turned ------------------------------------------------------------------------------------------------------

TURNED_CHANNELS = 16
"""On a GPU: gradients of so many channels are computed as convolutions. At 192^3 on an H200: 16 channels 3.9 -> 1.4 ms."""

# -- passes/pieces -----------------------------------------------------------------------------------------------------

WORKSPACE_MARGIN, MOST_PIECES = 1.02, 64
"""Bytes of workspace for each byte of the inputs of a filter gradient: 865 MiB for 864 MiB on an H200. And the most pieces of one:
more ops, for a limit that is far too small. The second is not measured."""

# -- tensorflow/op_costs -----------------------------------------------------------------------------------------------

PROBE_BUDGET_SECONDS, CARD_BUDGET_SECONDS = 30.0, 60.0
"""The most seconds for measuring ops, once per machine and number of cores; and the most on a GPU. Enough for all kinds of ops of a
3D U-Net, so that the next run plans with the same figures. On a GPU cuDNN takes most of it to try its algorithms (19 s of
isensee2017's first step at 192^3 on an H200), which it need not do again in the step. Not measured there."""

WORTH_SECONDS, REST = 3e-4, 0.003
"""A kind of ops may stay unmeasured if all its ops together take fewer seconds per step than this, and all unmeasured kinds
together less than this share of the step: precision for time. For isensee2017 at 64^3 in 280 MiB (AMD EPYC, 2 cores), 1e-3 and 0.01
have 52 kinds measured in 2 s; the others, small convolutions and `ArgMax` above all, then take 17 ms more than their roofline in a
step of 0.39 s. The present values have 116 kinds measured in 3 s; 1e-4 and 0.001 have 229 in 7 s."""

WORTH_SHARE, LEAST_WORTH_SECONDS = 3e-4, 1e-5
"""On a GPU a kind may stay unmeasured below this share of the step, but never above WORTH_SECONDS and always below the time of two
launches. isensee2017 at 192^3 takes 0.1 to 0.3 s on an H200, with some 115 kinds. WORTH_SECONDS is the same share of a step of 1 s.
Not measured."""

PACED_OPS, PACED_SECONDS = 5, 2.0
"""Kinds of ops that are timed again when a run starts, and the most seconds for it: start-up time for better predicted seconds."""

PROGRAM_BYTES, PROGRAM_SHARE = 1 << 20, 2e-3
"""Ops are compiled if together they move this many bytes, and this share of the bytes that the step moves. Each kind of program
costs some half a second once, to compile it and to time it. Margins, not measured."""

PROGRAM_GAIN, PROGRAM_ROUNDS = 0.9, 2
"""A program is clearly faster if it takes at most this share of the seconds of its ops. Both are timed this many times. Margins,
not measured."""

PROGRAM_FREE_SHARE = 3
"""A program that is timed takes at most one in this many free bytes, since its ops have tensors of their own between them. Not
measured."""

FOLDED_ELEMENTS = 256
"""Constants of up to this many elements are constants of a program, too. Not measured."""

LONG_STEP_SECONDS = {"CPU": 0.2, "GPU": 0.02}
"""The shortest step whose seconds are compared: for the pace of the machine, and with the sum of its ops (ADAPT-6). Shorter steps
consist of little but launches and calls. Margins, not measured."""

PACE, SAME_PACE, PACE_LASTS_SECONDS = 1.1, 1.0, 600.0
"""Today's machine counts as faster or slower by powers of PACE. If its pace differs from the last one by up to PACE ** SAME_PACE
(10 %), it counts as the same, so that plans stay as they are and come from the cache. With 15 %, a machine that was once found to
be 17 % faster stayed so, and steps at 64^3 were predicted to take 17 to 24 % too few seconds. The last number is how many seconds a
pace lasts before it is measured again: ranks that start together get one pace."""

MOST_WHOLE_STEPS = 500
"""Steps whose seconds are kept in the cache folder (`whole_steps`). Disk space, 200 bytes each; not measured."""

# -- tensorflow/op_costs, probing --------------------------------------------------------------------------------------

RUN_SECONDS, MOST_BYTES, FREE_SHARE = 0.06, {"CPU": 256 << 20, "GPU": 8 << 30}, 4
"""A run takes at most this many roofline seconds, this many bytes, and one in this many free bytes, since kernels take workspace; a
longer or larger one is cut. Margins, not measured. On a CPU the bytes are beyond the caches, in which a part would be faster than
the whole. On a GPU all ops of isensee2017 at 256^3 run whole, if there is memory for them."""

CACHES_BYTES = 128 << 20
"""Bytes that are read between two runs of a part of an op: more than a core has in its caches. Not measured."""

MOST_HALO = 1.25
"""All parts of a convolution together read at most this many times the planes of the whole. A margin, not measured."""

RUNS, ENOUGH_SECONDS = 8, 0.1
"""The most runs of one op (at least two), and the seconds after which there are no more: noise for time."""

SHORT_SECONDS, MOST_TIMES = 1e-3, 200
"""Ops shorter than this run several times in one call, at most this many times: a call alone takes 0.1 ms
(`probing.call_seconds`)."""

UNDISTURBED = 0.8
"""An op counts as undisturbed if its threads had at least this share of the processor time that they could use. Alone on two cores
of an AMD EPYC they had 0.8 to 1, since threads of one process wait for each other, too; beside one thread of another process they
had two thirds. To subtract all that is missing from 1 made the ops of isensee2017 at 64^3 faster than they ever ran."""

QUEUED_RUN_SECONDS, QUEUED_CALLS, QUEUED_RATIO = 0.02, 400, 3
"""On a GPU: the seconds that the device works in the longer of two runs, the most calls in it, and how many times as long it is as
the shorter run. Longer: a wait (0.1 ms) and the first launch matter less; 115 kinds of ops take some 12 s. Margins, not
measured."""

QUEUED_ROUNDS, QUEUED_SECONDS = 4, 0.08
"""The most pairs of runs, and the seconds after which there are no more: noise for time. Not measured."""

LEAST_CORES = 0.9
"""A process that computes keeps a core busy. A run that had less of a core than this was held up by something else."""

# -- tensorflow/capture ------------------------------------------------------------------------------------------------

ARGUMENT_ELEMENTS = 64
"""An integer tensor of up to this many elements is an argument (axes, sizes, paddings), not data. A margin, not measured."""

# -- tensorflow/speeds, tiers ------------------------------------------------------------------------------------------

COPYING_SHARE = 2.0
"""`Machine.swap_share` of a processor that both computes and copies to the page cache. Measured with isensee2017 at 96^3 on two
cores (`experiments.lms_overhead`): 0.16 s per step for 1.25 GB, which take 0.08 s alone."""

NODE_SECONDS = 2.5e-5
"""The seconds of a swap-out or a swap-in of the disk tier, whatever its bytes. A pair takes 45 us of processor time if it is read
in place, and 56 us if it is copied back: 500 pairs of 50 KB in a chain, on two cores with other work."""

SMALL_COPIES = 100
"""Copies of one number each way, one after the other, by which the host tier measures what a copy costs whatever its bytes: so many
that the call of the function (0.1 ms) is small beside them. Between two logical devices of one processor: 4 us a copy."""

LINK_PROBE_BYTES, LINK_COPIES = 256 << 20, 4
"""The bytes of one copy between a GPU and page-locked memory, and the number of copies: some milliseconds each, so that a launch
(10 us) is small beside it."""

CARD_BYTES, CARD_SIDES = 512 << 20, (96, 64, 48, 32, 16)
"""On a GPU: the bytes of one tensor that is added to, and the sides of a cube of 32 channels that is convolved; the largest cube
that fits is taken. Both fill a card of 132 multiprocessors for some 0.3 ms, many times the time of a launch. Not measured."""

STACKED_MEMORY = frozenset({(6, 0), (7, 0), (8, 0), (9, 0), (10, 0)})
"""The compute capabilities of cards whose memory is stacked beside the chip: P100, V100, A100, H100, B200 and others (NVIDIA's list
of CUDA GPUs)."""

SLOWEST_CARDS = {"stacked memory": (2e12, 600e9), "other memory": (4e11, 40e9)}
"""The FLOP/s of a float32 convolution and the bytes/s of an addition on the slowest such cards. By their sheets these have 9e12 and
549e9 (P100), and 1e12 and 48e9 (MX150). A measurement must reach `LEAST_SHARE` of it."""

LEAST_SHARE = 0.5
"""A measurement below this share of the stated speed of a card is refused. The first GPU run measured 6.3e12 and 125e9 on an H200,
by one call before each wait. A margin, not measured."""

FASTEST_CARD = {"flops_per_second": 1e16, "bytes_per_second": 3e13}
"""Speeds that no card has: some three times the sheet of a B200 in its lowest precision, and four times its memory."""

PROBE_BYTES, PROBE_FILES = 16 << 20, 8
"""The bytes of one file, and the number of files: together more than a processor's caches, in less than a second."""

PART_BYTES, MOST_PARTS, LEAST_MAPPED_BYTES = 2 << 20, 4, 1 << 20
"""A copy is divided into parts of at least this many bytes, among at most this many cores, since all of them compute meanwhile.
Margins, not measured. Files smaller than the last number are written by a system call. Through a map each page waits once (1.3 us;
less in large files, whose pages the system joins), and again whenever it was written back; the call costs 0.1 us more per page."""

# -- passes/guard ------------------------------------------------------------------------------------------------------

GUARDED_BYTES, UNPLANNED_EIGHTHS = 1 << 18, 1
"""Outputs smaller than this are not guarded: fewer ops for a rarer crash. And the eighths that a guard asks for in addition, in a
step without a plan: tests/lms3d/engine/test_memory_saved.py."""
