"""`LMS`, the Keras callback: trace the step, plan, rewrite, run, measure.

    fit -> on_train_begin        replaces model.train_function by a runner
        -> on_train_batch_begin  does so again if a callback has put the model's own function back
           runner                takes a batch; if its shape is new: trace -> plan -> rewrite; runs the rewritten step
        -> on_train_end          puts the model's own function back; after an error the next `fit` does so (`attachment`)

`train_step` itself is traced, for the exact shape of the batch. So the first step does without the nested functions that stock
Keras traces (`first_seconds` in overhead.csv of `experiments.lms_overhead` has both, unless the plan is in the cache).
"""

from __future__ import annotations

import itertools
import logging
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from lms3d.device import memory, workspace
from lms3d.engine import tuning
from lms3d.engine.engine import Engine, Prepared
from lms3d.engine.plan import Plan
from lms3d.engine.slabs import choice
from lms3d.engine.tensorflow import reading
from lms3d.engine.tiers import choose_tier
from lms3d.errors import InputError, StorageError
from lms3d.keras_step import on_device, report, settings
from lms3d.keras_step.attachment import Attachment, attached, compilation, require_graph_step, warn_of_xla
from lms3d.keras_step.report import Report
from lms3d.keras_step.step_log import StepStatistics
from lms3d.keras_step.step_runner import StepRunner
from lms3d.units import parse_size

log = logging.getLogger("lms3d")


class LMS(keras.callbacks.Callback):
    """Large model support for `fit`, `evaluate` and `predict` of any Keras model that runs as a graph on one device.

    memory_limit: "6GiB" or bytes that the step may use; None means the limit that was set, or else all that the device has.
    tier, swap_dir: where tensors go: "host", "disk" (files in swap_dir) or "auto" (host for a GPU, disk for a CPU).
    mapped: on a CPU, read tensors that were swapped to disk directly in the system's page cache. They then take no memory of
        TensorFlow's, and the limit does not count them. False copies them back, as a device with memory of its own needs it.
    planner: a name in `lms3d.engine.planners.PLANNERS`. "hybrid" chooses between keeping, swapping and recomputing each tensor
        under the limit; "tflms" uses TFLMS's parameters; "auto" is "tflms" if any of those is given, and "hybrid" otherwise.
    swapout_threshold, swapin_ahead, swapin_groupby, sync_mode, serialization, serialization_by_size, n_tensors and the
        include/exclude options: see `lms3d.engine.planners.tflms.parameters`; None is tuned against the limit.
    slabs: cut the tensors of the largest levels into slabs along their first spatial axis. "auto" does so only if the whole step
        does not fit, or has little room and copies back what it swaps, and takes as few slabs as the limit allows; "off" never
        does; {level: number} says how many: level 0 is the full resolution, level 1 the next (16 alone means "16/8"). The results
        then equal those of the whole step to rounding. Once a step has run, its slabs stay as they are.
    compile: "auto" makes programs that XLA compiles of chains of elementwise ops and sums between convolutions and matrix products,
        each if it is measured to be faster or smaller and in nothing worse. The first step then takes longer, and the results
        equal those of the step as traced, to rounding. A step in slabs is not compiled, nor is one that only fits as traced. A
        chain that is too large for the free memory to be measured stays as traced until the process ends. "off", the default,
        changes no bit of a result.
    adapt: after the first training steps, compare the measurements with the plan, and try at most three other plans that promise to
        be faster or safer; the report names each of them. False keeps the first plan, and tells later runs nothing. Results never
        depend on it. If all parameters of TFLMS are given, they are never changed.
    enabled=False: trace, run and measure the step in the same way, but change nothing.
    stats_file: a CSV file with one row per step. debug: log every insertion (debug_level 1: a summary; 2: each node).

    after_step: an attribute: a function that is called with the model and the batch after each training step.

    After the first step `plan` and `report` describe the training step, or else the only kind of step that has run.
    Raises DoesNotFit when no plan fits, StorageError when the swap disk fails.
    """

    def __init__(
        self,
        memory_limit: str | float | None = None,
        tier: str = "auto",
        swap_dir: str | Path | None = None,
        *,
        mapped: bool = True,
        planner: str = "auto",
        slabs: str | int | Mapping[int, int] = choice.AUTO,
        compile: str = settings.OFF,
        adapt: bool = True,
        enabled: bool = True,
        stats_file: str | Path | None = None,
        debug: bool = False,
        debug_level: int = 1,
        **tflms_parameters: Any,
    ) -> None:
        super().__init__()
        self.parameters = settings.tflms_parameters(tflms_parameters, LMS.__init__)
        self.planner = settings.planner_name(planner, self.parameters) if enabled else "off"
        self.tier_name, self.swap_dir, self.mapped = tier, swap_dir, mapped
        self.limit = None if memory_limit is None else parse_size(memory_limit)
        choose_tier(tier, "CPU:0")  # refuses an unknown name now
        wanted = choice.parse(slabs)
        self.wanted_slabs = choice.OFF if wanted == choice.AUTO and not enabled else wanted
        self.compile = settings.checked_compile(compile) if enabled else settings.OFF
        self.adapt = adapt
        self.statistics = StepStatistics(stats_file)
        self._runner: StepRunner | None = None
        self._rewritten: Prepared | None = None
        self._training = False
        self.after_step: Callable[[keras.Model, Any], None] | None = None
        self._compiled: tuple[Any, Any] | None = None  # the model and the compilation that the steps were traced from
        self._attachments: dict[str, Attachment] = {}
        if debug:
            _log_to_console(debug_level)

    # -- results

    @property
    def reports(self) -> dict[str, Report]:
        """The report of each kind of step that has run ("train", "test", "predict"): of several batch shapes, the largest."""
        return {kind: report for kind, (report, _) in self._results().items()}

    @property
    def report(self) -> Report | None:
        """The report of the training step, or else of the only kind that has run; None before the first step."""
        return self._result()[0]

    @property
    def plan(self) -> Plan | None:
        """The plan behind `report`."""
        return self._result()[1]

    @property
    def slabs(self) -> dict[int, int] | None:
        """The number of slabs of each level in the step behind `report`; {} if it is whole, None before the first step."""
        return None if self.report is None else dict(self.report.slabs)

    @property
    def kept_slabs(self) -> dict[str, str]:
        """The slabs, such as "16/8", of each planned step by its kind and batch shapes: for `keep_slabs` in a later run."""
        return {} if self._runner is None else {name: choice.text(one) for name, one in self._runner.slabs.items()}

    def keep_slabs(self, kept: Mapping[str, str]) -> None:
        """Plans these steps with these slabs, whatever the limit asks for.

        kept: the `kept_slabs` of an earlier part of the same run. Call it from `on_train_begin` of a callback that comes later in
        the list.
        """
        self._get_runner().slabs |= {name: choice.numbers(one) for name, one in kept.items()}

    def write(self, folder: str | Path) -> None:
        """Writes lms_plan.json and lms_report.md, with the plan and the report of each kind of step, to `folder`."""
        report.write(Path(folder), self._results())

    def _results(self) -> dict[str, tuple[Report, Plan]]:
        """The report and the plan of each kind of step; "function" is the kind of what `rewrite` was given last."""
        results = [] if self._runner is None else self._runner.reports()
        if self._rewritten is not None:
            made = self._rewritten
            results.append((report.describe(made.prediction, change=made.change), made.plan))
        found: dict[str, tuple[Report, Plan]] = {}
        for one in results:
            kind, peak = one[0].step, one[0].predicted_peak_bytes
            if kind not in found or peak > found[kind][0].predicted_peak_bytes:
                found[kind] = one
        return found

    def _result(self) -> tuple[Report, Plan] | tuple[None, None]:
        found = self._results()
        return found.get("train") or next(iter(found.values()), (None, None))

    @property
    def storage_error(self) -> StorageError | None:
        """The failure of the swap disk; None if it has not failed."""
        return None if self._runner is None else self._runner.engine.storage_error

    # -- any concrete function

    def rewrite(
        self, function: tf.types.experimental.ConcreteFunction, *, failed: int = 0
    ) -> tf.types.experimental.ConcreteFunction:
        """A function with the same results as `function` (a tf.function's concrete function) that fits in the limit.
        If it needs slabs to fit, and on a GPU, the results are equal to rounding.

        The graph of `function` is edited, but `function` itself still runs as traced. A function that has been
        rewritten already is returned as it is. `plan` and `report` describe the last rewrite. Raises InputError if a
        GradientTape has taken gradients of `function`.

        failed: how often the last rewrite of the same function has run out of memory; `function` is a new trace of it. The plan is
        then made for less memory, with the slabs of the plan before.
        """
        if reading.was_differentiated(function):
            raise InputError(
                "LMS.rewrite: a GradientTape has taken gradients of this function, and its graph now returns what they need; "
                "rewrite it before that, or trace it again"
            )
        engine, before = self._get_runner().engine, self._rewritten
        self._rewritten = engine.prepare(
            function,
            "function",
            on_device=on_device.observed(function, (), engine.settings.pool),
            limit_bytes=int(engine.settings.limit_bytes * tuning.TIGHTER**failed),
            slabs=before.slabs if failed and before else None,
        )
        return self._rewritten.function

    # -- Keras hooks

    def on_train_begin(self, logs: Any = None) -> None:
        self._attach("train")
        self._training, self.statistics.epoch = True, None
        self._get_runner().begin_run()

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.statistics.epoch = epoch + 1
        epochs = (self.params or {}).get("epochs")
        self._set_steps_left(epochs - epoch if epochs else None)

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self._attach_again("train")

    def on_train_end(self, logs: Any = None) -> None:
        self._training, self.statistics.epoch = False, None
        self._detach("train")

    def on_test_begin(self, logs: Any = None) -> None:
        self._attach("test")
        if not self._training:
            self._get_runner().begin_run()
            self._set_steps_left(1)

    def on_test_batch_begin(self, batch: int, logs: Any = None) -> None:
        self._attach_again("test")

    def on_test_end(self, logs: Any = None) -> None:
        self._detach("test")

    def on_predict_begin(self, logs: Any = None) -> None:
        self._attach("predict")
        if not self._training:
            self._get_runner().begin_run()
        self._set_steps_left(1)

    def on_predict_batch_begin(self, batch: int, logs: Any = None) -> None:
        self._attach_again("predict")

    def on_predict_end(self, logs: Any = None) -> None:
        self._detach("predict")

    def _set_steps_left(self, rounds: int | None) -> None:
        """Tells the runner how many steps are to come, which planning has to be worth. rounds: passes over the data to come."""
        steps = (self.params or {}).get("steps")
        self._get_runner().steps_left = rounds * steps if rounds and steps else None

    def close(self) -> None:
        """Forgets the rewritten steps and removes the swap files."""
        self._rewritten, self._compiled = None, None
        if self._runner is not None:
            self._runner.close()
            self._runner = None

    # -- the model's functions -------------------------------------------------------------------------------------

    def _attach(self, kind: str) -> None:
        model = self.model
        self._forget_other(model)
        require_graph_step(model, kind)
        self._attachments[kind] = Attachment(model, kind, self._step_function(kind))

    def _attach_again(self, kind: str) -> None:
        """Attaches the step anew if a callback has trained or compiled the model, which puts its own function back."""
        attachment = self._attachments.get(kind)
        if attachment is None or not attachment.active:
            if attachment is not None and attachment.forced:
                self.close()
            if (left := attached(self.model, kind)) is not None:  # by a call within this one, which an error ended
                left.remove()
            self._attach(kind)

    def _detach(self, kind: str) -> None:
        attachment = self._attachments.pop(kind, None)
        if attachment is not None:
            attachment.remove()

    def _forget_other(self, model: keras.Model) -> None:
        """Forgets the steps of another model, and steps from before this one was compiled again."""
        compiled = (model, compilation(model))
        if self._compiled is not None and any(a is not b for a, b in zip(self._compiled, compiled, strict=True)):
            self.close()
        if self._compiled is None:
            warn_of_xla(model)
        self._compiled = compiled

    def _step_function(self, kind: str) -> Callable[[Any], Any]:
        """The function that Keras calls with an iterator over batches, or, to predict, with a list of them."""
        lms = weakref.proxy(self)  # otherwise a model would keep LMS and its swap files after an error

        def run(batches: Iterator[Any] | Sequence[Any]) -> Any:
            try:
                return lms._execute(kind, iter(batches))
            except StopIteration:  # the data has ended
                raise
            except BaseException:  # Keras will not call `on_..._end`
                lms._detach(kind)
                raise

        return run

    def _execute(self, kind: str, batches: Iterator[Any]) -> Any:
        """Runs `steps_per_execution` steps, or fewer if the data ends. StopIteration if there is no batch at all."""
        batches = itertools.islice(batches, self.model.steps_per_execution)
        outputs = [self._run(kind, batch) for batch in batches]
        if not outputs:
            raise StopIteration
        return joined(outputs) if kind == "predict" else outputs[-1]

    def _run(self, kind: str, batch: Any) -> Any:
        outputs = self._get_runner().run(self.model, kind, batch)
        if kind == "train" and self.after_step is not None:
            self.after_step(self.model, batch)
        return outputs

    def _get_runner(self) -> StepRunner:
        if self._runner is None:
            chosen = settings.resolve(
                self.limit, self.tier_name, self.planner, self.parameters, slabs=self.wanted_slabs, compile=self.compile
            )
            device = memory.compute_device()
            workspace.put_in_force(chosen.limit_bytes, memory.gpu_name())
            engine = Engine(chosen, compute_device=device, swap_dir=self.swap_dir, mapped=self.mapped)
            self._runner = StepRunner(engine, self.statistics, adapt=self.adapt)
        return self._runner


def joined(outputs: Sequence[Any]) -> Any:
    """The nested outputs of several batches, joined along axis 0, the batch."""
    if len(outputs) == 1:
        return outputs[0]
    return tf.nest.map_structure(lambda *parts: _concatenated(parts), *outputs)


def _concatenated(parts: Sequence[Any]) -> Any:
    if isinstance(parts[0], tf.SparseTensor):
        return tf.sparse.concat(0, parts)
    return tf.stack(parts) if parts[0].shape.rank == 0 else tf.concat(parts, 0)


def _log_to_console(level: int) -> None:
    if not log.handlers:
        log.addHandler(logging.StreamHandler())
    log.setLevel(logging.DEBUG if level > 1 else logging.INFO)
