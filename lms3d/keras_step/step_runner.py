"""Runs the steps of a Keras model: each new batch shape is traced, planned, rewritten and then watched.

A plan is a prediction, and a pool of memory never looks the same twice. So the variables are saved before each step of
a plan (a copy in the host's own memory: 100 MB, 12 ms, for 8 million parameters with Adam). Should the step run out
of memory all the same, they are put back, a tighter plan is made, and the same batch runs again: nothing is lost and no
number changes. They are put back, too, where the swap disk fails, before the error is raised. What the first steps of a
training plan measure may ask for another one (see `feedback`); rewriting edits a graph in place, so each plan gets a trace
of its own, and the earlier function is kept until the new one has proved better.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from lms3d.device import cpu_pool, memory
from lms3d.errors import DoesNotFit, StorageError
from lms3d.keras_step.adaptation import MOST_CHANGES, Change, Feedback
from lms3d.keras_step.step_log import StepStatistics
from lms3d.keras_step.variable_backup import Snapshot
from lms3d.ranks import gradients
from lms3d.swap.effort import Account
from lms3d.swap.engine import Engine, Prepared, trace_step
from lms3d.swap.planning import does_not_fit
from lms3d.swap.tensorflow import surgery
from lms3d.swap.tiers import TIERS
from lms3d.units import format_size

log = logging.getLogger("lms3d")

BATCHES_AHEAD = 2  # one that is ready, one that is being made
COARSE_BYTES, FINE_BYTES = 8 << 20, 1 << 18  # steps: small differences between runs ask for no other plan
TRIES = 5
_OPEN_SPECS = (tf.RaggedTensorSpec, tf.SparseTensorSpec)

Key = tuple[str, str]


class StepRunner:
    """Prepared steps by (kind, batch shapes), and the statistics of every run.

    adapt: whether measurements may ask for another plan. steps_left: steps still to come in this run; None is unknown. What
    planning may cost depends on it (`swap.effort`).
    """

    def __init__(self, engine: Engine, statistics: StepStatistics, *, adapt: bool = True) -> None:
        self.engine, self.statistics, self.adapt = engine, statistics, adapt
        self.steps: dict[Key, Prepared] = {}
        self.steps_left: int | None = None
        self._account = Account()  # what planning has cost the run, for all its steps
        self._feedback: dict[Key, Feedback] = {}
        self._snapshots: dict[Key, Snapshot] = {}
        self._earlier: dict[Key, Prepared] = {}  # what returns if the plan in use does not prove better
        self._told_unknown_sizes = False

    def begin_run(self) -> None:
        """A `fit`, or an `evaluate` or `predict` outside of one, grants its own time for planning."""
        self._account.seconds = 0.0

    def run(self, model: keras.Model, kind: str, batch: Any) -> Any:
        """One step ("train", "test", "predict") on a batch: nested tensors or arrays."""
        batch = tf.nest.map_structure(_as_tensor, batch)
        spec = tf.nest.map_structure(tf.type_spec_from_value, batch)
        key = (kind, repr(spec))
        feedback = self._feedback.setdefault(key, self._new_feedback(kind))
        started = time.perf_counter()
        if feedback.due:
            self._adapt(model, key, spec, batch)
        outputs = self._run(model, key, spec, batch)
        feedback.add(self._record(kind, self.steps[key], batch, time.perf_counter() - started))
        if kind == "train" and self.steps_left is not None:
            self.steps_left -= 1
        return outputs

    def _run(self, model: keras.Model, key: Key, spec: Any, batch: Any) -> Any:
        for attempt in range(TRIES):
            if key not in self.steps:
                self._take(key, self._prepare(model, key, spec, batch))
            prepared = self.steps[key]
            saved = self._save(key, prepared)
            averagings = gradients.begun(model)
            try:
                outputs = self._execute(prepared, batch)
            except tf.errors.ResourceExhaustedError as error:
                if self._fixed:
                    raise self._wrong_parameters(key[0]) from error
                if saved is None or attempt == TRIES - 1:
                    raise
                if gradients.begun(model) != averagings:
                    raise self._too_late_to_repeat() from error
                self._undo(key, saved)
                continue
            except StorageError:  # an update of wrong numbers, or a part of one
                if saved is not None and gradients.begun(model) == averagings:
                    saved.restore()
                raise
            return outputs
        raise AssertionError("the last attempt returns or raises")

    # -- plans ---------------------------------------------------------------------------------------------------------

    def _prepare(self, model: keras.Model, key: Key, spec: Any, batch: Any, change: Change | None = None) -> Prepared:
        """Trace and plan, for a change or else for the present budget; the report names the real limit."""
        limit = self.engine.settings.limit_bytes
        budget = change.budget_bytes if change else self._feedback[key].budget_bytes
        self._tell_unknown_sizes(key[0], spec)
        function = trace_step(model, key[0], spec)
        cpu_pool.open_crumb_holes()
        batches = with_waiting([_size(t) for t in tf.nest.flatten(batch) if _has_size(t) and cpu_pool.counts(t)])
        try:
            return self.engine.prepare(
                function,
                key[0],
                extra_bytes=_extra_bytes(function, batches, self.engine.settings.pool),
                batches=batches,
                budget_bytes=budget,
                machine=change.machine if change else None,
                steps=self._feedback[key].run_steps,
                spent_seconds=self._account.seconds,
            )
        except DoesNotFit as error:
            if error.smallest_limit_bytes is None or budget == limit:
                raise
            # After a failed try the planner is known to be too hopeful by limit / budget: so is its floor.
            raise does_not_fit(limit, int(error.smallest_limit_bytes * limit / budget)) from None

    def _tell_unknown_sizes(self, kind: str, spec: Any) -> None:
        """Once: ragged and sparse tensors have another size in each batch, and a plan knows one."""
        if not self._told_unknown_sizes and any(isinstance(s, _OPEN_SPECS) for s in tf.nest.flatten(spec)):
            self._told_unknown_sizes = True
            log.warning(
                "lms: the batches of the %s step hold ragged or sparse tensors; what is computed from these has no size that a "
                "plan could know: it is neither counted nor moved", kind,
            )  # fmt: skip

    def _take(self, key: Key, prepared: Prepared, change: Change | None = None) -> None:
        """Let the next steps run under a plan."""
        prepared.report.plan = self.statistics.next_plan()
        self._feedback[key].begin(prepared.plan, prepared.report, prepared.machine, change)
        self.steps[key] = prepared

    def _adapt(self, model: keras.Model, key: Key, spec: Any, batch: Any) -> None:
        """The plan in use has been measured: keep it or go back, and try another one where a rule asks for it."""
        feedback = self._feedback[key]
        if feedback.judge():
            self._discard(self._earlier.pop(key, None))
        else:
            self._go_back(key)
        while (change := feedback.propose(self.steps_left)) is not None:
            log.info("lms: planning the %s step again: %s", key[0], change.reason)
            try:
                prepared = self._prepare(model, key, spec, batch, change)
            except (DoesNotFit, tf.errors.ResourceExhaustedError):  # the plan in use goes on
                feedback.refuse(change, "nothing fits")
                continue
            if why := feedback.reject(change, prepared.plan, prepared.report):
                feedback.refuse(change, why, prepared.report)
                self._discard(prepared)
                continue
            self._earlier[key] = self.steps[key]
            self._take(key, prepared, change)
            return

    def _go_back(self, key: Key) -> None:
        """To the plan before the one in use."""
        self._discard(self.steps[key])
        self.steps[key] = self._earlier.pop(key)
        log.info("lms: going back to plan %d of the %s step", self.steps[key].report.plan, key[0])

    def _discard(self, prepared: Prepared | None) -> None:
        if prepared is not None:
            self.engine.discard(prepared)

    def _new_feedback(self, kind: str) -> Feedback:
        """Only training runs long enough for a second plan, and what the user fixed stays."""
        free = self.adapt and kind == "train" and not self._fixed
        return Feedback(self.engine.settings.limit_bytes, MOST_CHANGES if free else 0, self.steps_left, self._account)

    # -- out of memory -------------------------------------------------------------------------------------------------

    @property
    def _fixed(self) -> bool:
        """True where the user has chosen all of TFLMS's parameters: there is only one plan."""
        return self.engine.settings.planner == "tflms" and self.engine.settings.tflms.fixed

    def _wrong_parameters(self, kind: str) -> DoesNotFit:
        return DoesNotFit(
            f"the {kind} step ran out of memory in {format_size(self.engine.settings.limit_bytes)} with the TFLMS parameters "
            "that were given; leave one or all of them out to have them tuned, or raise --memory-limit"
        )

    def _too_late_to_repeat(self) -> DoesNotFit:
        """The other ranks have this step's gradients, or wait for them: tried again, it would meet their next step."""
        return DoesNotFit(
            f"this rank's train step ran out of memory in {format_size(self.engine.settings.limit_bytes)} while the ranks "
            "exchanged gradients, and cannot be repeated alone; raise --memory-limit and start again with --resume"
        )

    def _save(self, key: Key, prepared: Prepared) -> Snapshot | None:
        """Copies of the variables; None where nothing could be planned better, nor a disk fail."""
        settings = self.engine.settings
        final = settings.planner == "off" or self._fixed or (prepared.plan.empty and settings.pool == "none")
        if final and (prepared.plan.empty or not TIERS[settings.tier].may_fail):
            return None
        variables = prepared.function.graph.variables
        if key not in self._snapshots or not self._snapshots[key].is_of(variables):
            self._snapshots[key] = Snapshot(variables)
        return self._snapshots[key].take()

    def _undo(self, key: Key, saved: Snapshot) -> None:
        saved.restore()
        feedback = self._feedback[key]
        if feedback.ran_out_of_memory():
            log.warning("lms: the %s step ran out of memory under its new plan", key[0])
            self._go_back(key)
            return
        self._discard(self.steps.pop(key))
        log.warning(
            "lms: the %s step ran out of memory; planning again for %s", key[0], format_size(feedback.budget_bytes)
        )

    # -- one step ------------------------------------------------------------------------------------------------------

    def _execute(self, prepared: Prepared, batch: Any) -> Any:
        """Run; a failing swap disk becomes one clear error."""
        tf.config.experimental.reset_memory_stats(memory.compute_device())
        self.engine.begin_step()
        try:
            outputs = prepared.function(batch)
            for value in tf.nest.flatten(outputs)[:1]:
                if isinstance(value, tf.Tensor) and value.shape.rank == 0:
                    value.numpy()  # a GPU runs behind: wait, so that the step's seconds are its own
            return outputs
        except tf.errors.OpError:
            if self.engine.storage_error is not None:
                raise self.engine.storage_error from None
            raise

    def _record(self, kind: str, prepared: Prepared, batch: Any, seconds: float) -> dict[str, float | int | str]:
        shapes = [t.shape for t in tf.nest.flatten(batch) if isinstance(t, tf.Tensor) and t.shape.rank is not None]
        voxels = int(np.prod(shapes[0][:-1])) if shapes and shapes[0].rank > 2 else 0
        plan = prepared.plan
        row: dict[str, float | int | str] = {
            "kind": kind,
            "plan": prepared.report.plan,
            "seconds": seconds,
            "peak_bytes": _memory_info("peak"),
            "bytes_in_use": _memory_info("current"),
            "limit_bytes": self.engine.settings.limit_bytes,
            "swapped_out_bytes": plan.swapped_out_bytes,
            "swapped_in_bytes": plan.swapped_in_bytes,
            "swap_outs": len(plan.swap_outs),
            "swap_ins": len(plan.swap_ins),
            "recomputed_ops": len(plan.recomputes),
            "voxels_per_second": voxels / seconds,
        }
        row |= self.engine.take_counters()
        self.statistics.add(row)
        return row


def part_bytes(spec: Any) -> list[int]:
    """Bytes of each tensor of a batch of `spec`; parts of unknown shape are left out."""
    return [_size(part) for part in tf.nest.flatten(spec) if isinstance(part, tf.TensorSpec) and _has_size(part)]


def with_waiting(parts: Sequence[int]) -> tuple[int, ...]:
    """The tensors of a step's batch, and of the batches that wait in the pipeline meanwhile."""
    return tuple(parts) * (1 + BATCHES_AHEAD)


def _has_size(part: Any) -> bool:
    return isinstance(part, tf.Tensor | tf.TensorSpec) and part.dtype != tf.string and part.shape.is_fully_defined()


def _size(part: Any) -> int:
    return int(part.shape.num_elements() * part.dtype.size)


def _extra_bytes(function: tf.types.experimental.ConcreteFunction, batches: Sequence[int], kind: str) -> int:
    """What is on the device besides the step's variables and batches.

    Where all batches lie outside of a CPU's limited pool, the pool has an end that can be looked up. Else how many of them wait
    just now is chance, and a plan should not depend on that: a fixed number counts, and the rest in coarse steps.
    """
    known = surgery.captured_bytes(function)
    taken = None if batches else cpu_pool.taken_bytes(memory.current_limit())
    if taken is not None:
        return -(-max(0, taken - known) // FINE_BYTES) * FINE_BYTES
    others = -(-max(0, _memory_info("current") - known - sum(batches)) // COARSE_BYTES) * COARSE_BYTES
    return others + (cpu_pool.gap_bytes(known) if kind == "split" else 0)


def _as_tensor(value: Any) -> Any:
    return tf.convert_to_tensor(value) if isinstance(value, np.ndarray | np.generic | float | int) else value


def _memory_info(key: str) -> int:
    return int(tf.config.experimental.get_memory_info(memory.compute_device())[key])
