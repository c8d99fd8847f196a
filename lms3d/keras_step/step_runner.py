"""Runs the steps of a Keras model: each new batch shape is traced, planned, rewritten and then watched.

A plan is a prediction, and a memory pool is never quite as predicted. So the variables are saved before each step of a plan (a
copy in host memory: 100 MB, 12 ms, for 8 million parameters with Adam). If the step runs out of memory all the same, they are
restored, a tighter plan is made, and the same batch runs again: nothing is lost and no number changes. On a GPU, where a copy takes
40 ms, only the first steps of a plan are saved (`tuning.PROVED_STEPS`): memory changes hands in the order of the plan, so a step
that has run will run again. The variables are also restored before a failure of the swap disk is raised.

The first steps of a training plan may ask for another plan (`adaptation`). Rewriting edits a graph in place, so each plan has a
trace of its own, and the earlier function is kept until the new one has proved better.
"""

from __future__ import annotations

import logging
import math
import time
from dataclasses import dataclass, replace
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from lms3d.device import host_memory
from lms3d.engine import tuning
from lms3d.engine.cost import scale_in_words
from lms3d.engine.effort import Account
from lms3d.engine.engine import Engine, Prepared
from lms3d.engine.plan import Plan
from lms3d.engine.prediction import does_not_fit
from lms3d.engine.slabs.choice import Slabs
from lms3d.engine.tensorflow import marks, reading
from lms3d.errors import DoesNotFit, StorageError
from lms3d.keras_step import on_device, report
from lms3d.keras_step.adaptation import Feedback
from lms3d.keras_step.adaptation_rules import Change
from lms3d.keras_step.attachment import trace_step
from lms3d.keras_step.patience import say_if_long
from lms3d.keras_step.report import Report
from lms3d.keras_step.step_log import StepStatistics
from lms3d.keras_step.variable_backup import VariableBackup
from lms3d.ranks import gradients
from lms3d.units import format_size

log = logging.getLogger("lms3d")

_OPEN_SPECS = (tf.RaggedTensorSpec, tf.SparseTensorSpec)


@dataclass
class _Step:
    """One kind of step for one batch shape.

    name: names both in `StepRunner.slabs`. earlier: the plan that returns if the one in use does not prove better.
    """

    kind: str
    spec: Any
    feedback: Feedback
    name: str
    prepared: Prepared | None = None
    earlier: Prepared | None = None


class StepRunner:
    """The prepared steps by kind and batch shapes, and the statistics of every run.

    adapt: whether measurements may ask for another plan, and are kept for the next run. steps_left: how many steps are to come in
    this run; None is unknown. What planning may cost depends on it (`engine.effort`). slabs: the slabs of each step by name, from
    its first plan on, or from an earlier part of the run. They decide the last bits, so no later plan has others.
    """

    def __init__(self, engine: Engine, statistics: StepStatistics, *, adapt: bool = True) -> None:
        self.engine, self.statistics, self.adapt = engine, statistics, adapt
        self.steps_left: int | None = None
        self.steps: dict[tuple[str, str], _Step] = {}  # in the order in which they ran last
        self._backups: dict[str, VariableBackup] = {}  # by kind, whose steps share their variables
        self._largest: dict[str, tuple[Report, Plan]] = {}  # of each kind, among the steps that were forgotten
        self.slabs: dict[str, Slabs] = {}
        self._account = Account()  # what planning has cost the run, for all its steps
        self._warned_of_unknown_sizes = False
        self._run_seconds = 0.0  # of the function alone, in the last step

    def begin_run(self) -> None:
        """Grants the planning time of a new `fit`, or of an `evaluate` or `predict` outside of one."""
        self._account.seconds = 0.0

    def close(self) -> None:
        """Forgets all steps and removes the swap files."""
        while self.steps:
            self._forget(self.steps.popitem()[1])
        self.engine.close()

    def reports(self) -> list[tuple[Report, Plan]]:
        """The report and plan of each prepared step, and of the largest forgotten step of each kind."""
        kept = [self._report(step, step.prepared) for step in self.steps.values() if step.prepared is not None]
        return [*self._largest.values(), *kept]

    def _report(self, step: _Step, prepared: Prepared) -> tuple[Report, Plan]:
        described = report.describe(
            prepared.prediction,
            change=prepared.change,
            plan=prepared.number,
            statistics=self.statistics,
            rounds=step.feedback.rounds,
            unplanned_seconds=prepared.unplanned_seconds,
            ops_scale=step.feedback.ops_scale,
        )
        return described, prepared.plan

    def run(self, model: keras.Model, kind: str, batch: Any) -> Any:
        """The outputs of one step ("train", "test", "predict") on a batch of nested tensors or arrays."""
        batch = tf.nest.map_structure(_as_tensor, batch)
        spec = tf.nest.map_structure(tf.type_spec_from_value, batch)
        step = self._step(model, kind, spec)
        started = time.perf_counter()
        if step.feedback.due:
            self._adapt(model, step, batch)
        outputs, prepared = self._run(model, step, batch)
        step.feedback.add(self._record(kind, prepared, batch, time.perf_counter() - started))
        if kind == "train" and self.steps_left is not None:
            self.steps_left -= 1
        return outputs

    def _step(self, model: keras.Model, kind: str, spec: Any) -> _Step:
        """The step for these shapes, known or new. If there are more than `MOST_STEPS`, the least recently used is forgotten."""
        key = (kind, repr(spec))
        known = self.steps.pop(key, None)
        self.steps[key] = step = known or _Step(kind, spec, self._new_feedback(model, kind), _name(kind, spec))
        while len(self.steps) > tuning.MOST_STEPS:
            self._forget(self.steps.pop(next(iter(self.steps))))
        return step

    def _forget(self, step: _Step) -> None:
        if step.prepared is not None:
            described, plan = self._report(step, step.prepared)
            largest = self._largest.get(step.kind)
            if largest is None or described.predicted_peak_bytes > largest[0].predicted_peak_bytes:
                self._largest[step.kind] = described, plan
        for prepared in (step.prepared, step.earlier):
            if prepared is not None:
                self.engine.discard(prepared)
        for one in step.feedback.rounds:
            if one.plan is not None:
                self.statistics.forget(one.plan)

    def _run(self, model: keras.Model, step: _Step, batch: Any) -> tuple[Any, Prepared]:
        """The outputs of a step, and the plan that made them. Out of memory, the step is planned again, `TRIES` times at most."""
        for attempt in range(tuning.TRIES):
            prepared = step.prepared or self._take(step, self._prepare(model, step, batch))
            saved = self._save(step, prepared)
            averagings = gradients.begun(model)
            try:
                with marks.step(step.kind, self.statistics.next_step):
                    return self._execute(prepared, batch), prepared
            except tf.errors.ResourceExhaustedError as error:
                if self.engine.no_other_plan:
                    raise self._one_plan(step.kind, self.engine.no_other_plan) from error
                if saved is None and self._proved(step, prepared):
                    raise self._cannot_be_undone(step.kind, prepared) from error
                if saved is None or attempt == tuning.TRIES - 1:
                    raise
                if gradients.begun(model) != averagings:
                    raise self._too_late_to_repeat() from error
                self._undo(step, saved)
            except StorageError:  # the variables may hold wrong numbers, or half an update
                if saved is not None and gradients.begun(model) == averagings:
                    saved.restore()
                raise
        raise AssertionError("the last attempt returns or raises")

    # -- plans ---------------------------------------------------------------------------------------------------------

    def _prepare(self, model: keras.Model, step: _Step, batch: Any, change: Change | None = None) -> Prepared:
        """Traces and plans the step, for a change or, without one, for the present budget."""
        limit = self.engine.settings.limit_bytes
        budget = change.budget_bytes if change else step.feedback.budget_bytes
        self._warn_of_unknown_sizes(step)
        function = trace_step(model, step.kind, step.spec)
        try:
            with say_if_long(step.kind, budget, "; this happens once for each shape of its batches"):
                prepared = self.engine.prepare(
                    function,
                    step.kind,
                    on_device=on_device.observed(function, batch, self.engine.settings.pool),
                    limit_bytes=budget,
                    machine=change.machine if change else None,
                    run=step.feedback.run,
                    slabs=self.slabs.get(step.name),
                )
        except DoesNotFit as error:
            if error.smallest_limit_bytes is None or budget == limit:
                raise
            # A failed try has shown the planner to be too hopeful by limit / budget: so is its floor.
            raise does_not_fit(limit, int(error.smallest_limit_bytes * limit / budget)) from None
        self.slabs.setdefault(step.name, prepared.slabs)
        return prepared

    def _warn_of_unknown_sizes(self, step: _Step) -> None:
        """Warns, once, of ragged and sparse tensors: they have another size in each batch, and a plan knows one size."""
        if not self._warned_of_unknown_sizes and any(isinstance(s, _OPEN_SPECS) for s in tf.nest.flatten(step.spec)):
            self._warned_of_unknown_sizes = True
            log.warning(
                "lms: the batches of the %s step hold ragged or sparse tensors; what is computed from these has no size that a "
                "plan could know: it is neither counted nor moved", step.kind,
            )  # fmt: skip

    def _take(self, step: _Step, prepared: Prepared, change: Change | None = None) -> Prepared:
        """Lets the next steps run under a plan, and gives it a number."""
        step.prepared = replace(prepared, number=self.statistics.next_plan())
        step.feedback.begin(step.prepared.number, prepared.plan, prepared.prediction, prepared.machine, change)
        return step.prepared

    def _adapt(self, model: keras.Model, step: _Step, batch: Any) -> None:
        """Keeps the plan in use, now that it is measured, or goes back; then tries another one if a rule asks for it."""
        feedback = step.feedback
        if feedback.changes_left and step.prepared and reading.draws_by_itself(step.prepared.function.graph):
            log.info("lms: the %s step draws random numbers of its own, which another plan would begin anew", step.kind)
            feedback.changes_left = 0
        if feedback.judge():
            if step.earlier is not None:
                self.engine.discard(step.earlier)
            step.earlier = None
            self._learn(step)
        else:
            self._go_back(step)
        while (change := feedback.propose(self.steps_left)) is not None:
            log.info("lms: planning the %s step again: %s", step.kind, change.reason)
            try:
                prepared = self._prepare(model, step, batch, change)
            except (DoesNotFit, tf.errors.ResourceExhaustedError):  # the plan in use goes on
                feedback.refuse(change, "nothing fits")
                continue
            if why := feedback.reject(change, prepared.plan, prepared.prediction):
                feedback.refuse(change, why, prepared.prediction)
                self.engine.discard(prepared)
                continue
            step.earlier = step.prepared
            self._take(step, prepared, change)
            return

    def _learn(self, step: _Step) -> None:
        """ADAPT-6: keeps for the next run what this plan's steps have shown."""
        learnt, prepared = step.feedback.learnt, step.prepared
        if learnt is None or prepared is None or not self.adapt:
            return
        if learnt.ops_scale is not None:
            log.info("lms: in the %s step %s", step.kind, scale_in_words(learnt.ops_scale))
        self.engine.learn(prepared, unplanned_seconds=learnt.unplanned_seconds, ops_scale=learnt.ops_scale)

    def _go_back(self, step: _Step) -> None:
        """Goes back to the plan before the one in use."""
        assert step.prepared is not None, "a plan is in use"
        assert step.earlier is not None, "another one came before it"
        self.engine.discard(step.prepared)
        step.prepared, step.earlier = step.earlier, None
        log.info("lms: going back to plan %d of the %s step", step.prepared.number, step.kind)

    def _new_feedback(self, model: keras.Model, kind: str) -> Feedback:
        """The feedback of a new step, which may ask for other plans if the step trains: no other step runs for long enough.

        A step that waits for other ranks, or whose end nobody waits for on a GPU, says nothing about the costs of ops.
        """
        free = self.adapt and kind == "train" and self.engine.no_other_plan is None
        changes = tuning.MOST_CHANGES if free else 0
        silent = gradients.averages(model) or kind == "predict"
        least = math.inf if silent else tuning.LONG_STEP_SECONDS[self.engine.compute_device.partition(":")[0]]
        return Feedback(self.engine.settings.limit_bytes, changes, self.steps_left, self._account, least)

    # -- out of memory -------------------------------------------------------------------------------------------------

    def _one_plan(self, kind: str, why: str) -> DoesNotFit:
        limit = format_size(self.engine.settings.limit_bytes)
        return DoesNotFit(f"the {kind} step ran out of memory in {limit}; {why}, or raise the memory limit")

    def _too_late_to_repeat(self) -> DoesNotFit:
        """The error of a rank whose gradients the others have, or wait for: a second try would exchange with their next step."""
        return DoesNotFit(
            f"this rank's train step ran out of memory in {format_size(self.engine.settings.limit_bytes)} while the ranks "
            "exchanged gradients, and cannot be repeated alone; raise the memory limit and start again from the last checkpoint "
            "(lms3d.train --resume does)"
        )

    def _cannot_be_undone(self, kind: str, prepared: Prepared) -> DoesNotFit:
        """The error of a step that failed and was not saved: some variables may have been updated, and others not."""
        limit = self.engine.settings.limit_bytes
        return DoesNotFit(
            f"the {kind} step ran out of memory in {format_size(limit)} after {self.statistics.steps_of(prepared.number)} steps of "
            "the same plan without a shortage. It cannot be undone, and the weights may be half updated: start again from the last "
            "checkpoint (lms3d.train --resume does) and raise the memory limit; a program of your own can plan for less, with "
            f'LMS(memory_limit="{int(limit * tuning.TIGHTER) >> 20}MiB")'
        )

    def _proved(self, step: _Step, prepared: Prepared) -> bool:
        """Whether a plan has run so often that its steps will not run out of memory.

        That is known on a GPU alone: on a processor batches arrive at any time, and small ops shift. It is asked of training steps
        alone: others change few variables, and are always saved.
        """
        in_order = step.kind == "train" and not self.engine.settings.pool.on_host
        return in_order and self.statistics.steps_of(prepared.number) >= tuning.PROVED_STEPS

    def _save(self, step: _Step, prepared: Prepared) -> VariableBackup | None:
        """A backup of the variables; None if no disk can fail and no other plan could follow or will be needed."""
        settings, empty = self.engine.settings, prepared.plan.empty
        final = self.engine.no_other_plan is not None or (empty and not settings.pool.in_pieces)
        if (final or self._proved(step, prepared)) and (empty or not self.engine.tier_may_fail):
            return None
        variables, saved = prepared.function.graph.variables, self._backups.get(step.kind)
        if saved is None or not saved.is_of(variables):
            saved = self._backups[step.kind] = VariableBackup(variables)
        return saved.take()

    def _undo(self, step: _Step, saved: VariableBackup) -> None:
        saved.restore()
        if step.feedback.ran_out_of_memory():
            log.warning("lms: the %s step ran out of memory under its new plan", step.kind)
            self._go_back(step)
            return
        assert step.prepared is not None, "it ran"
        if self.statistics.steps_of(step.prepared.number) and reading.draws_by_itself(step.prepared.function.graph):
            log.warning(
                "lms: the %s step draws random numbers of its own (tf.random), which begin anew now: results are not those of a "
                "larger limit; keras.random with a SeedGenerator goes on where it was", step.kind,
            )  # fmt: skip
        self.engine.discard(step.prepared)
        step.prepared = None
        budget = format_size(step.feedback.budget_bytes)
        log.warning("lms: the %s step ran out of memory; planning again for %s", step.kind, budget)

    # -- one step ------------------------------------------------------------------------------------------------------

    def _execute(self, prepared: Prepared, batch: Any) -> Any:
        """The outputs of a batch. A failing swap disk becomes one clear error."""
        on_device.forget_peak()
        self.engine.begin_step()
        started = time.perf_counter()
        try:
            outputs = prepared.function(batch)
            for value in tf.nest.flatten(outputs)[:1]:
                if isinstance(value, tf.Tensor) and value.shape.rank == 0:
                    value.numpy()  # a GPU runs behind the host: wait, so that the step's seconds are its own
            self._run_seconds = time.perf_counter() - started
            return outputs
        except tf.errors.OpError as error:
            if (failure := self.engine.swap_failure(error)) is not None:
                raise failure from None
            raise

    def _record(self, kind: str, prepared: Prepared, batch: Any, seconds: float) -> dict[str, float | int | str]:
        shapes = [t.shape for t in tf.nest.flatten(batch) if isinstance(t, tf.Tensor) and t.shape.rank is not None]
        voxels = int(np.prod(shapes[0][:-1])) if shapes and shapes[0].rank > 2 else 0
        plan = prepared.plan
        row: dict[str, float | int | str] = {
            "kind": kind,
            "plan": prepared.number,
            "seconds": seconds,
            "peak_bytes": on_device.bytes_in_use("peak"),
            "bytes_in_use": on_device.bytes_in_use("current"),
            "limit_bytes": self.engine.settings.limit_bytes,
            "swapped_out_bytes": plan.swapped_out_bytes,
            "swapped_in_bytes": plan.swapped_in_bytes,
            "swap_outs": len(plan.swap_outs),
            "swap_ins": len(plan.swap_ins),
            "recomputed_ops": len(plan.recomputes),
            "voxels_per_second": voxels / seconds,
        }
        row |= self.engine.take_counters()
        row["run_seconds"] = self._run_seconds
        row |= host_memory.resident_bytes()
        self.statistics.add(row)
        return row


def _name(kind: str, spec: Any) -> str:
    """The name of a step in `kept_slabs`, such as "train (1, 96, 96, 96, 4) (1, 96, 96, 96, 3)".

    It is the same in every run and with every version of TensorFlow.
    """
    return " ".join([kind, *(str(tuple(s.shape)) for s in tf.nest.flatten(spec) if s.shape.rank is not None)])


def _as_tensor(value: Any) -> Any:
    return tf.convert_to_tensor(value) if isinstance(value, np.ndarray | np.generic | float | int) else value
