"""Traced function in, function that fits out: normalise -> capture -> plan -> rewrite, on the tier that the device needs."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

import tensorflow as tf

from lms3d.device import cpu_pool, memory, workspace
from lms3d.engine import choosing, planning, tuning
from lms3d.engine.choosing import Chosen
from lms3d.engine.cost import Machine, with_workspaces
from lms3d.engine.effort import RunLength
from lms3d.engine.ir import StepGraph
from lms3d.engine.passes import manager
from lms3d.engine.passes.base import Target, was_rewritten
from lms3d.engine.passes.compiling import Compile
from lms3d.engine.passes.forms import Forms
from lms3d.engine.passes.guard import Guard
from lms3d.engine.passes.rewrite import Rewrite
from lms3d.engine.plan import Plan
from lms3d.engine.planners import PLANNERS
from lms3d.engine.prediction import Prediction
from lms3d.engine.request import OnDevice, Settings, StepRequest
from lms3d.engine.slabs.choice import Slabs
from lms3d.engine.tensorflow import functions, op_costs, speeds, unfolding, whole_steps
from lms3d.engine.tensorflow.capture import capture
from lms3d.engine.tiers import TIERS
from lms3d.engine.tiers.base import OURS, Tier
from lms3d.errors import DoesNotFit, StorageError
from lms3d.units import format_size

log = logging.getLogger("lms3d")

Function: TypeAlias = tf.types.experimental.ConcreteFunction


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A function that is ready to run, its plan, and the machine that the plan was made for.

    change: the nodes that the rewrite inserted, in words. number: the plan's number in lms_stats.csv, 0 before it has one.
    slabs: (level, number) of the levels that are sliced. step_name: the step's name in the store of whole steps, "" if nothing can
    be learnt of it. unplanned_seconds: how long a step took without swapping, if an earlier run measured that.
    """

    function: Function
    plan: Plan
    prediction: Prediction
    machine: Machine
    change: str = ""
    number: int = 0
    slabs: Slabs = ()
    step_name: str = ""
    unplanned_seconds: float | None = None


class Engine:
    """Prepares functions for one compute device under one limit. `close` removes the swap files. mapped: see `LMS`.

    machine: the machine to plan for. It need not be this one, so nothing is measured.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        compute_device: str,
        swap_dir: str | Path | None = None,
        mapped: bool = True,
        machine: Machine | None = None,
    ) -> None:
        self.settings, self.compute_device, self.mapped = settings, compute_device, mapped
        self.swap_dir = None if swap_dir is None else Path(swap_dir)
        self._tier: Tier | None = None
        self._machine, self._elsewhere = machine, machine is not None
        self._kind = TIERS[settings.tier].beside(compute_device)
        self._kind.prepare(self.swap_dir)

    @property
    def tier(self) -> Tier:
        if self._tier is None:
            self._tier = self._kind(self.swap_dir)
        return self._tier

    @property
    def machine(self) -> Machine:
        if self._machine is None:
            tier, folder = self.settings.tier, self.swap_dir
            self._machine = speeds.machine(self.compute_device, tier, folder, mapped=self.mapped)
        return self._machine

    @property
    def tier_may_fail(self) -> bool:
        """See `Tier.may_fail`."""
        return self._kind.may_fail

    @property
    def no_other_plan(self) -> str | None:
        """See `Planner.no_other_plan`: None if there may be a second plan."""
        return PLANNERS[self.settings.planner]().no_other_plan(self.settings.parameters)

    # -- planning ------------------------------------------------------------------------------------------------------

    def unfolded(
        self, function: Function, step: str, on_device: OnDevice, *, settings: Settings | None = None
    ) -> Function:
        """The function to plan in place of `function`: without calls and, if it does not fit in the limit as it is, without loops.

        A plan sees no tensors within these. Results are equal bit by bit. TFLMS plans loops as they are.
        """
        settings = settings or self.settings
        function = unfolding.without_calls(function)
        if not self._may_unfold(function, settings):
            return function
        if planning.is_noop(settings.request(self._captured(function, on_device), self.machine, step=step)):
            return function
        return unfolding.without_loops(function)

    @staticmethod
    def _may_unfold(function: Function, settings: Settings) -> bool:
        """Whether the function has loops, for a planner that takes a step in another form than it was traced in."""
        return PLANNERS[settings.planner].slices and unfolding.has_loops(function)

    def request(
        self,
        function: Function,
        step: str,
        on_device: OnDevice,
        *,
        settings: Settings | None = None,
        machine: Machine | None = None,
        ops_scale: float = 1.0,
        lazy: bool = False,
    ) -> StepRequest:
        """The question for the planner about the step behind `function`, whose graph is normalised: on a processor that changes no
        bit, on a GPU results stay equal to rounding (`passes.turned`, `passes.pieces`).

        settings, machine: in place of the engine's own. A machine that is given knows the scale of its ops (ADAPT-6). For the
        engine's own machine the scale is looked up, and is `ops_scale` if nothing is known of this step.
        lazy: ops are not measured if the step will be left alone.
        """
        settings, own = settings or self.settings, machine or self.machine
        graph = self._captured(function, on_device)
        graph = with_workspaces(graph, own) if self._elsewhere else graph
        request = settings.request(graph, own, step=step)
        if lazy and planning.is_noop(request):
            return request
        graph, measured = self._with_ops(graph, own, function)
        if machine is None and not self._elsewhere:
            measured = whole_steps.with_scale(graph, measured, self.compute_device, ops_scale)
        return replace(request, graph=graph, machine=measured)

    def choose(
        self,
        function: Function,
        step: str,
        on_device: OnDevice,
        *,
        settings: Settings | None = None,
        machine: Machine | None = None,
        run: RunLength | None = None,
        effort_seconds: float | None = None,
        with_floor: bool = False,
    ) -> Chosen:
        """A form and a plan for the step behind `function`, whose graph then has that form. Raises DoesNotFit.

        Numbers of slabs that the settings give are used as they are. Without any, the step is sliced only if it has no plan as a
        whole, or little room for one, and then as coarsely as the limit allows (`slabs.choice`). run: grants the planner's effort;
        None: `effort_seconds`.
        """
        settings, scale = settings or self.settings, 1.0

        def ask() -> StepRequest:
            """The step as it is now. The whole step comes first; a sliced one has its scale until more is known of it."""
            nonlocal scale
            asked = self.request(
                function, step, on_device, settings=settings, machine=machine, ops_scale=scale, lazy=True
            )
            scale = asked.machine.ops_scale
            return asked

        # A user's function gets no programs: a tape may want to differentiate it, and sees no ops in a program.
        self._normalise(function)
        may_compile = settings.compile != "off" and step != "function" and not self._elsewhere
        compile_pass = self._compile_pass if may_compile else None
        forms = Forms(function, ask, compile_pass, workspace_bytes=self._workspace_bytes())
        try:
            chosen = choosing.choose_form(forms, run=run, effort_seconds=effort_seconds, with_floor=with_floor)
        except DoesNotFit:
            forms.take(None)
            raise
        forms.take(chosen.form)
        if not with_floor or not chosen.as_traced:
            return chosen
        floor = self._floor_of_rounds(function, step, on_device, settings, machine)
        known = [one for one in (chosen.prediction.floor_bytes, floor) if one is not None]
        return replace(chosen, prediction=replace(chosen.prediction, floor_bytes=min(known, default=None)))

    def _floor_of_rounds(
        self, function: Function, step: str, on_device: OnDevice, settings: Settings, machine: Machine | None
    ) -> int | None:
        """The smallest limit of a step without its loops; None if it has none, or keeps them."""
        if not self._may_unfold(function, settings) or (made := unfolding.without_loops(function)) is function:
            return None
        return planning.floor_bytes(self.request(made, step, on_device, settings=settings, machine=machine))

    def _compile_pass(self) -> Compile:
        return Compile(self.compute_device, self._free_bytes() // tuning.PROGRAM_FREE_SHARE)

    def _workspace_bytes(self) -> int | None:
        """The limit of cuDNN's workspace; None on a processor, and for a machine whose workspaces are not known.

        On a machine that is not here it is the one that this engine's limit has there, whatever limit a plan is made for.
        """
        if not self.compute_device.startswith("GPU"):
            return None
        if not self._elsewhere:
            return workspace.in_force()
        return workspace.asked_or_usual(self.settings.limit_bytes) if self.machine.workspaces else None

    def _normalise(self, function: Function) -> None:
        if not was_rewritten(function.graph):
            manager.normalise(function, Target(compute_device=self.compute_device, pooled=self._pooled))

    def _captured(self, function: Function, on_device: OnDevice) -> StepGraph:
        self._normalise(function)
        return capture(
            function, compute_device=self.compute_device, extra_bytes=on_device.extra_bytes, batches=on_device.batches
        )

    @property
    def _pooled(self) -> bool:
        """A CPU's pool under a hard limit, of which a plan foresees the pieces."""
        return self.settings.pool.in_pieces and self.compute_device.startswith("CPU")

    def _with_ops(self, graph: StepGraph, machine: Machine, function: Function) -> tuple[StepGraph, Machine]:
        """The step and the machine with the costs of single ops, measured if they are not known yet.

        Both stay as they are for a machine that is not here.
        """
        if self._elsewhere:
            return graph, machine
        return op_costs.with_ops(graph, machine, function, device=self.compute_device, free_bytes=self._free_bytes())

    def _free_bytes(self) -> int:
        """Unused memory of the device."""
        return memory.device_memory_bytes() - (memory.bytes_in_use("current", self.compute_device) or 0)

    # -- rewriting -----------------------------------------------------------------------------------------------------

    def prepare(
        self,
        function: Function,
        step: str,
        *,
        on_device: OnDevice | None = None,
        limit_bytes: int | None = None,
        machine: Machine | None = None,
        run: RunLength | None = None,
        slabs: Slabs | None = None,
    ) -> Prepared:
        """Plans `function` (step: "train", "test", "predict", "function") and rewrites it. Raises DoesNotFit below the floor.

        limit_bytes, machine: the limit and the speeds to plan for, if experience corrects the settings' limit and the measured
        speeds; the prediction still names the settings' limit. slabs: an earlier plan's, in place of the settings', since
        a run keeps its slabs. A function that was rewritten before is left alone.
        """
        cpu_pool.open_crumb_holes()
        on_device, run = on_device or OnDevice(), run or RunLength()
        settings = replace(self.settings, limit_bytes=limit_bytes or self.settings.limit_bytes)
        settings = settings if slabs is None else replace(settings, slabs=slabs)
        if was_rewritten(function.graph):
            return self._as_it_is(function, step, on_device)
        function = self.unfolded(function, step, on_device, settings=settings)
        chosen = self.choose(function, step, on_device, settings=settings, machine=machine, run=run)
        request, plan = chosen.request, chosen.plan
        prediction = replace(chosen.prediction, limit_bytes=self.settings.limit_bytes)
        log.info("lms: %s", prediction.headline())
        self._check_host_memory(plan)
        guarded = self._guarded(prediction, min(request.limit_bytes, self.settings.limit_bytes))
        function, change = self._rewritten(function, request, plan, guarded=guarded)
        step_name = "" if self._elsewhere else whole_steps.name(request.graph, self.compute_device)
        return Prepared(
            function=function,
            plan=plan,
            prediction=prediction,
            machine=request.machine,
            change=change,
            slabs=chosen.slabs,
            step_name=step_name,
            unplanned_seconds=self._unplanned_seconds(step_name) if chosen.as_traced else None,
        )

    def _unplanned_seconds(self, step_name: str) -> float | None:
        """How long the step takes without LMS, at today's pace; None if no run has measured it."""
        known = whole_steps.load(step_name).unplanned_seconds
        return known and known * op_costs.pace_of(self.compute_device)

    def _as_it_is(self, function: Function, step: str, on_device: OnDevice) -> Prepared:
        log.info("lms: the function has been rewritten before; nothing to do")
        off = replace(self.settings, planner="off")
        request = off.request(self._captured(function, on_device), self.machine, step=step, with_floor=False)
        plan, prediction = planning.make_plan(request)
        if not isinstance(function, functions.RewrittenFunction):  # its graph was rewritten
            function = functions.make_function(function)
        return Prepared(function=function, plan=plan, prediction=prediction, machine=request.machine)

    def _rewritten(
        self, function: Function, request: StepRequest, plan: Plan, *, guarded: bool
    ) -> tuple[Function, str]:
        """The function with the plan's nodes and, if `guarded`, with guards, and what the plan changed, in words.

        Even an empty plan makes a new function: the same graph optimisers run under all plans, since some of them change the last
        bits of a result.
        """
        rewrite = None if plan.empty else Rewrite(request.graph, plan, self.tier)
        guard = Guard(planned=not plan.empty) if guarded else None
        manager.run(function, [one for one in (rewrite, guard) if one is not None])
        return functions.make_function(function), "" if rewrite is None else str(rewrite.change)

    def _guarded(self, prediction: Prediction, limit_bytes: int) -> bool:
        """Whether the step may run out of memory, which would end the process (see `passes.guard`)."""
        near = prediction.predicted_peak_bytes > limit_bytes * tuning.NEAR_LIMIT
        return self._pooled and near

    def _check_host_memory(self, plan: Plan) -> None:
        """Pinned host memory has its own limit: checked before the first step rather than failing in it."""
        if not self._kind.pins_host_memory:
            return
        limit, held = memory.pinned_limit_bytes(), 0 if self._tier is None else self._tier.held_bytes
        if plan.swapped_out_bytes + held > limit:
            beside = f" beside the {format_size(held)} of other plans" if held else ""
            raise DoesNotFit(
                f"the plan swaps {format_size(plan.swapped_out_bytes)} to host memory{beside}, but TensorFlow pins at most "
                f"{format_size(limit)} of it; set TF_GPU_HOST_MEM_LIMIT_IN_MB={-(-(plan.swapped_out_bytes + held) // (1 << 20))} "
                "or more, or raise the memory limit, which swaps less"
            )

    def learn(
        self, prepared: Prepared, *, unplanned_seconds: float | None = None, ops_scale: float | None = None
    ) -> None:
        """Stores for the next run how long the first steps took without swapping, or else the scale of their ops (ADAPT-6)."""
        if prepared.step_name and unplanned_seconds is not None:
            whole_steps.keep_unplanned(prepared.step_name, unplanned_seconds, self.compute_device)
        elif prepared.step_name and ops_scale is not None:
            whole_steps.keep_scale(prepared.step_name, ops_scale)

    # -- the tier ------------------------------------------------------------------------------------------------------

    @property
    def storage_error(self) -> StorageError | None:
        """The swap disk's failure in the last step, or None."""
        return None if self._tier is None else self._tier.error

    def swap_failure(self, error: tf.errors.OpError) -> StorageError | None:
        """The tier's failure in the step that ended with `error`, in one line; None if another cause ended the step."""
        _, ours, reason = (error.message or "").partition(OURS)
        return self.storage_error or (StorageError(f"swapping failed: {reason.splitlines()[0]}") if ours else None)

    def begin_step(self) -> None:
        """Forgets the tier's failure in an earlier step."""
        if self._tier is not None:
            self._tier.begin()

    def take_counters(self) -> dict[str, float]:
        """Bytes and seconds of swapping since the last call; empty if the tier does not measure them."""
        return {} if self._tier is None else self._tier.take_counters()

    def discard(self, prepared: Prepared) -> None:
        """Gives back the tier's space and the memory of the graph of a function that will not run again."""
        functions.forget(prepared.function.graph)
        if self._tier is not None:
            self._tier.discard(prepared.function.graph)

    def close(self) -> None:
        if self._tier is not None:
            self._tier.close()
            self._tier = None
