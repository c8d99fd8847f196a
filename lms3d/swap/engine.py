"""Traced function in, function that fits out: capture -> decide -> rewrite, with the tier that the device needs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import tensorflow as tf

from lms3d.device import cpu_pool, memory
from lms3d.errors import DoesNotFit, StorageError
from lms3d.keras_step.report import Report
from lms3d.swap import effort, plan_cache
from lms3d.swap.cost import Machine, step_seconds
from lms3d.swap.ir import StepGraph
from lms3d.swap.plan import SCOPE, Plan
from lms3d.swap.planning import Settings, decide, fits_unedited
from lms3d.swap.tensorflow import guard, op_costs, speeds, surgery
from lms3d.swap.tensorflow.capture import capture
from lms3d.swap.tensorflow.rewrite import already_rewritten, rewrite
from lms3d.swap.tiers import TIERS
from lms3d.swap.tiers.base import Tier
from lms3d.units import format_size

log = logging.getLogger("lms3d")
NEAR_LIMIT = 0.7


@dataclass
class Prepared:
    """A function that is ready to run, the plan behind it and the report on it; the speeds that it was planned with."""

    function: tf.types.experimental.ConcreteFunction
    plan: Plan
    report: Report
    machine: Machine = field(default_factory=Machine)


class Engine:
    """Prepares functions for one compute device under one limit. `close` removes the swap files. mapped: see `LMS`."""

    def __init__(
        self, settings: Settings, *, compute_device: str, swap_dir: str | Path | None = None, mapped: bool = True
    ) -> None:
        self.settings, self.compute_device, self.mapped = settings, compute_device, mapped
        self.swap_dir = None if swap_dir is None else Path(swap_dir)
        self._tier: Tier | None = None
        self._machine: Machine | None = None
        TIERS[settings.tier].prepare(self.swap_dir)

    @property
    def tier(self) -> Tier:
        if self._tier is None:
            self._tier = TIERS[self.settings.tier](self.swap_dir)
        return self._tier

    @property
    def machine(self) -> Machine:
        if self._machine is None:
            tier, folder = self.settings.tier, self.swap_dir
            self._machine = speeds.machine(self.compute_device, tier, folder, mapped=self.mapped)
        return self._machine

    def captured(
        self, function: tf.types.experimental.ConcreteFunction, batches: Sequence[int], extra_bytes: int = 0
    ) -> tuple[StepGraph, Machine]:
        """The step behind `function`, before any rewrite, and the speeds to plan it with. Makes it plannable: see there."""
        _make_plannable(function.graph)
        graph = capture(function, compute_device=self.compute_device, extra_bytes=extra_bytes, batches=batches)
        return self._with_ops(graph, self.machine, function)

    def _with_ops(
        self, graph: StepGraph, machine: Machine, function: tf.types.experimental.ConcreteFunction
    ) -> tuple[StepGraph, Machine]:
        """The same with the costs of single ops, which are measured where they are not known yet."""
        in_use = tf.config.experimental.get_memory_info(self.compute_device)["current"]
        free = memory.device_memory_bytes() - in_use
        return op_costs.with_ops(graph, machine, function, device=self.compute_device, free_bytes=free)

    def prepare(
        self,
        function: tf.types.experimental.ConcreteFunction,
        step: str,
        *,
        extra_bytes: int = 0,
        batches: Sequence[int] | None = None,
        with_floor: bool = False,
        budget_bytes: int | None = None,
        machine: Machine | None = None,
        steps: int | None = None,
        spent_seconds: float = 0.0,
    ) -> Prepared:
        """Plan `function` (step: "train", "test", "predict") and rewrite it. Raises DoesNotFit below the floor.

        extra_bytes, batches: what else stays on the device meanwhile, see `capture`. A function that was rewritten before is left
        alone.
        budget_bytes, machine: plan for these, where experience says so, in place of the limit and the measured speeds.
        steps, spent_seconds: of the run, None is unknown, and what planning has cost it already: see `effort`.
        """
        cpu_pool.open_crumb_holes()
        if not was_rewritten(function.graph):
            _make_plannable(function.graph)
        graph = capture(function, compute_device=self.compute_device, extra_bytes=extra_bytes, batches=batches)
        if already_rewritten(graph):
            log.info("lms: the function has been rewritten before; nothing to do")
            _, report = decide(
                graph,
                Settings(limit_bytes=self.settings.limit_bytes, planner="off"),
                self.machine,
                step=step,
                with_floor=False,
            )
            if not isinstance(function, surgery.RewrittenFunction):  # what was rewritten is its graph
                function = surgery.make_function(function)
            return Prepared(function, Plan(), report)
        settings = replace(self.settings, limit_bytes=budget_bytes or self.settings.limit_bytes)
        machine = machine or self.machine
        if not fits_unedited(graph, settings, machine):  # what is left alone needs no precise prediction
            graph, machine = self._with_ops(graph, machine, function)
        granted = effort.granted(steps, step_seconds(graph, machine), spent_seconds)
        settings = replace(settings, effort_seconds=granted)
        plan, report = plan_cache.decide(graph, settings, machine, step=step, with_floor=with_floor)
        report.limit_bytes = self.settings.limit_bytes
        log.info("lms: %s", report.headline())
        self._check_host_memory(plan)
        if not plan.empty:
            function, change = rewrite(function, graph, plan, self.tier)
            report.change = str(change)
        else:  # the same graph optimisers whatever the plan: some of them change the last bits of a result
            function = surgery.make_function(function)
        if self._guarded(report, min(settings.limit_bytes, self.settings.limit_bytes)):
            function, guards = guard.insert(function, planned=not plan.empty)
            log.info("lms: %d guards against oneDNN kernels that do not check their memory", guards)
        return Prepared(function, plan, report, machine)

    def _guarded(self, report: Report, limit_bytes: int) -> bool:
        """Where running out of memory is possible and would end the process (see `guard`)."""
        near = report.predicted_peak_bytes > limit_bytes * NEAR_LIMIT
        return self.settings.pool != "none" and self.compute_device.startswith("CPU") and near

    def _check_host_memory(self, plan: Plan) -> None:
        """Pinned host memory has a limit of its own: say so before the first step, not in the middle of it."""
        if not TIERS[self.settings.tier].pins_host_memory or self.compute_device.startswith("CPU"):
            return
        limit = memory.pinned_limit_bytes()
        if plan.swapped_out_bytes > limit:
            raise DoesNotFit(
                f"the plan swaps {format_size(plan.swapped_out_bytes)} to host memory, but TensorFlow pins at most "
                f"{format_size(limit)} of it; set TF_GPU_HOST_MEM_LIMIT_IN_MB={-(-plan.swapped_out_bytes // (1 << 20))} "
                "or more, or raise --memory-limit, which swaps less"
            )

    @property
    def storage_error(self) -> StorageError | None:
        """What the swap disk failed with in the last step, or None."""
        return None if self._tier is None else self._tier.error

    def begin_step(self) -> None:
        """Forgets what the tier failed with in an earlier step."""
        if self._tier is not None:
            self._tier.begin()

    def take_counters(self) -> dict[str, float]:
        """Bytes and seconds of swapping since the last call, where the tier can measure them."""
        return {} if self._tier is None else self._tier.take_counters()

    def discard(self, prepared: Prepared) -> None:
        """Give back the space that a function which will not run again has on the tier."""
        if self._tier is not None:
            self._tier.discard(prepared.function.graph)

    def close(self) -> None:
        if self._tier is not None:
            self._tier.close()
            self._tier = None


def was_rewritten(graph: tf.Graph) -> bool:
    return any(op.name.startswith(SCOPE) for op in graph.get_operations())


def _make_plannable(graph: tf.Graph) -> None:
    """Small edits that change no result, before a step is captured."""
    surgery.separate_bias_gradients(graph)
    surgery.fix_shapes(graph)


def model_step(model: Any, step: str) -> Callable[[Any], Any]:
    """`model.train_step`, `test_step` or `predict_step`, with optional batch parts converted as Keras does."""
    converted: Callable[[Any], Any] = model._autoconvert_optionals(getattr(model, f"{step}_step"))
    return converted


def trace_step(model: Any, step: str, spec: Any) -> tf.types.experimental.ConcreteFunction:
    """Trace one step of a compiled Keras model for batches of `spec` (nested TensorSpecs, static shapes).

    What is not built yet, the step itself builds as it is traced, as in Keras; TensorFlow then traces it once more. To predict, the
    model need not be compiled.
    """
    optimizer = getattr(model, "optimizer", None)
    built = all(layer.built for layer in model._flatten_layers())
    if step == "train" and optimizer is not None and built and not optimizer.built:
        optimizer.build(model.trainable_variables)  # saves the second trace
    function = model_step(model, step)
    return surgery.trace(lambda data: function(data), spec)
