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
promise never to be worse; tests/lms3d/swap/planners/test_never_worse_than_tflms.py."""

# -- planners: TFLMS -----------------------------------------------------------------------------------------------

TRIGGER_LEVELS = 10
"""Levels that are searched for the op that triggers a swap-in: the value of TFLMS 2.0."""

TFLMS_SAFETY = 0.94
"""Share of the limit that TFLMS's auto-tuning may use: a pool cannot be filled to the last byte. A margin, not measured."""

# -- planners: hybrid/planner --------------------------------------------------------------------------------------

HYBRID_SECONDS = 10.0
"""Most effort, in seconds by price list, for a step of up to HYBRID_ANCHORS anchors; in proportion for larger ones.
Trades planning time for step time; tests/lms3d/swap/planners/test_effort.py holds a run to it."""

HYBRID_ANCHORS = 600
"""Anchors of isensee2017, the step that HYBRID_SECONDS was chosen for."""

EXCHANGED_PLANS = 2
"""Cheapest plans that PLAN-4 starts from. Planning time, as much again for each, for step time. A margin, not measured."""

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

# -- keras_step/step_runner and on_device --------------------------------------------------------------------------

TRIES = 5
"""Runs of one batch, each after out of memory with a tighter plan (TIGHTER ** 4 = 0.72 of the limit). Not measured."""

BATCHES_AHEAD = 2
"""Batches on the device beside the step's own: one ready, one being made; tests/data/test_stream.py."""

COARSE_BYTES, FINE_BYTES = 8 << 20, 1 << 18
"""What else lies on the device is rounded up to these, so that small differences between runs meet the same cached plan.
Coarse: chance decides it; fine: it was looked up. Margins, not measured."""
