"""Runs the steps of a Keras model: each new batch shape is traced, planned, rewritten and then watched.

A plan is a prediction, and a pool of memory never looks the same twice. So the variables are saved before each step of
a plan (a copy in the host's own memory: 100 MB, some 30 ms, for 8 million parameters with Adam). Should the step run out
of memory all the same, they are put back, a tighter plan is made, and the same batch runs again: nothing is lost and no
number changes.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from lms3d import memory
from lms3d.errors import DoesNotFit
from lms3d.statistics import StepStatistics
from lms3d.swap.decide import does_not_fit
from lms3d.swap.engine import Engine, Prepared, trace_step
from lms3d.units import format_size

log = logging.getLogger("lms3d")

TRIES = 5
TIGHTER = 0.92  # budget of each further try


class StepRunner:
    """Prepared steps by (kind, batch shapes), and the statistics of every run."""

    def __init__(self, engine: Engine, statistics: StepStatistics) -> None:
        self.engine, self.statistics = engine, statistics
        self.steps: dict[tuple[str, str], Prepared] = {}
        self._budget: dict[tuple[str, str], int] = {}

    def run(self, model: keras.Model, kind: str, batch: Any) -> Any:
        """One step ("train", "test", "predict") on a batch: nested tensors or arrays."""
        batch = tf.nest.map_structure(_as_tensor, batch)
        spec = tf.nest.map_structure(tf.type_spec_from_value, batch)
        key = (kind, repr(spec))
        started = time.perf_counter()
        outputs = self._run(model, key, spec, batch)
        self._record(kind, self.steps[key], batch, time.perf_counter() - started)
        return outputs

    def _run(self, model: keras.Model, key: tuple[str, str], spec: Any, batch: Any) -> Any:
        for attempt in range(TRIES):
            if key not in self.steps:
                self.steps[key] = self._prepare(model, key, spec)
            prepared = self.steps[key]
            saved = self._save(prepared)
            try:
                outputs = self._execute(prepared, batch)
            except tf.errors.ResourceExhaustedError:
                if saved is None or attempt == TRIES - 1:
                    raise
                self._undo(key, prepared, saved)
                continue
            return outputs
        raise AssertionError("the last attempt returns or raises")

    def _prepare(self, model: keras.Model, key: tuple[str, str], spec: Any) -> Prepared:
        """Trace and plan for the budget; the report names the real limit."""
        engine, limit = self.engine, self.engine.settings.limit_bytes
        budget = self._budget.setdefault(key, limit)
        function = trace_step(model, key[0], spec)
        engine.settings = replace(engine.settings, limit_bytes=budget)
        try:
            prepared = engine.prepare(function, key[0], extra_bytes=_extra_bytes(model, spec))
        except DoesNotFit as error:
            if error.smallest_limit_bytes is None:
                raise
            # After a failed try the planner is known to be too hopeful by limit / budget: so is its floor.
            raise does_not_fit(limit, int(error.smallest_limit_bytes * limit / budget)) from None
        finally:
            engine.settings = replace(engine.settings, limit_bytes=limit)
        prepared.report.limit_bytes = limit
        return prepared

    def _save(self, prepared: Prepared) -> list[np.ndarray] | None:
        """Copies of the variables; None where nothing could be planned better."""
        settings = self.engine.settings
        if settings.planner == "off" or (prepared.plan.empty and settings.pool == "none"):
            return None
        return [np.array(v.numpy()) for v in prepared.function.graph.variables]

    def _undo(self, key: tuple[str, str], prepared: Prepared, saved: Iterable[np.ndarray]) -> None:
        for variable, value in zip(prepared.function.graph.variables, saved, strict=True):
            variable.assign(value)
        del self.steps[key]
        self._budget[key] = int(self._budget[key] * TIGHTER)
        log.warning("lms: the %s step ran out of memory; planning again for %s", key[0], format_size(self._budget[key]))

    def _execute(self, prepared: Prepared, batch: Any) -> Any:
        """Run; a failing swap disk becomes one clear error."""
        tf.config.experimental.reset_memory_stats(memory.compute_device())
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

    def _record(self, kind: str, prepared: Prepared, batch: Any, seconds: float) -> None:
        shapes = [t.shape for t in tf.nest.flatten(batch) if isinstance(t, tf.Tensor) and t.shape.rank is not None]
        voxels = int(np.prod(shapes[0][:-1])) if shapes and shapes[0].rank > 2 else 0
        plan = prepared.plan
        row: dict[str, float | int | str] = {
            "step": len(self.statistics.rows),
            "kind": kind,
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
        self.statistics.add({**row, **self.engine.take_counters()})


def spec_bytes(spec: Any) -> int:
    """Bytes of one batch; parts of unknown shape count as nothing."""
    parts = [s for s in tf.nest.flatten(spec) if isinstance(s, tf.TensorSpec) and s.dtype != tf.string]
    return sum(s.shape.num_elements() * s.dtype.size for s in parts if s.shape.is_fully_defined())


def _extra_bytes(model: keras.Model, spec: Any) -> int:
    """What is on the device besides this step's own: measured, plus one more batch on its way through the pipeline."""
    batch = spec_bytes(spec)
    known = batch + sum(int(np.prod(v.shape)) * tf.as_dtype(v.dtype).size for v in _variables(model))
    return max(0, _memory_info("current") - known) + batch


def _variables(model: keras.Model) -> list[Any]:
    optimizer = getattr(model, "optimizer", None)
    return [*model.variables, *(optimizer.variables if optimizer is not None else [])]


def _as_tensor(value: Any) -> Any:
    return tf.convert_to_tensor(value) if isinstance(value, np.ndarray | np.generic | float | int) else value


def _memory_info(key: str) -> int:
    return int(tf.config.experimental.get_memory_info(memory.compute_device())[key])
