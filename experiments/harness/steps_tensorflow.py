"""A child that trains a Keras model by one of the TensorFlow methods, one step each time that the parent asks for one."""

from __future__ import annotations

import contextlib
import csv
import hashlib
import logging
import os
import tempfile
import time
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lms3d import collector

with collector.kept_from_imports():
    import keras
    import tensorflow as tf

import numpy as np

from lms3d import LMS
from lms3d.data import stream
from lms3d.device import memory, startup
from lms3d.engine.tensorflow import speeds
from lms3d.engine.tiers.base import COUNTERS
from lms3d.experiments.architectures import NETWORKS
from lms3d.experiments.harness import batches, methods, variants
from lms3d.experiments.harness.child import WORKSPACE
from lms3d.experiments.harness.part import MIB, StudyPart
from lms3d.experiments.harness.talk import Resident, Talk, asked
from lms3d.experiments.links.link import STEP_SECONDS, SwapLink
from lms3d.experiments.profiling import lanes, measure, work, xplane
from lms3d.keras_step import step_averages
from lms3d.keras_step.estimate import plan_step
from lms3d.scoring import losses

if TYPE_CHECKING:
    from lms3d.experiments.links.tier import LinkTier

DIGEST_STEP = 3
SLOWEST_KERNELS = 20
_MEASURED = "lms: measured "  # the beginning of what `op_costs` logs once it has measured
REPORTED = (
    "limit_bytes", "unedited_peak_bytes", "predicted_peak_bytes", "unedited_limit_bytes", "floor_bytes", "unedited_step_seconds",
    "predicted_step_seconds", "predicted_stall_seconds", "lower_bound_seconds", "swapped_out_bytes", "swapped_in_bytes",
    "recomputed_ops", "planning_seconds", "planner", "slabs",
)  # fmt: skip


class _Finished(Exception):
    """The parent wants no more steps."""


class _StepOnDemand(keras.callbacks.Callback):
    """Lets `fit` take a step when the parent asks for one, and reports its seconds and bytes."""

    def __init__(
        self,
        talk: Talk,
        resident: Resident,
        lms: LMS | None,
        tier: type[LinkTier] | None,
        profiler: _Profiler | None = None,
    ) -> None:
        super().__init__()
        self.talk, self.resident, self.lms, self.tier, self.profiler = talk, resident, lms, tier, profiler
        self.device = memory.compute_device()
        self.steps, self.digest, self.started = 0, "", 0.0

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        if not self.talk.asked():
            raise _Finished
        if self.profiler:
            self.profiler.before(self.steps)
        tf.config.experimental.reset_memory_stats(self.device)
        self.resident.take_peak()
        self.traffic = {} if self.tier is None else dict(self.tier.total)
        self.started, self.processor = time.perf_counter(), time.process_time()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.model.trainable_variables[-1].numpy()  # a GPU runs behind: wait for it
        seconds = time.perf_counter() - self.started
        self.steps += 1
        if self.profiler:
            self.profiler.after(self.steps)
        if self.steps == DIGEST_STEP:
            self.digest = _digest(self.model)
        self.talk.say(
            seconds=seconds,
            peak_bytes=int(tf.config.experimental.get_memory_info(self.device)["peak"]),
            resident_bytes=self.resident.take_peak(),
            loss=float((logs or {})["loss"]),
            traffic=self._traffic(),
        )

    def _traffic(self) -> dict[str, float]:
        """What the emulated link moved in the step, if there is one, and the processor seconds of the step."""
        if self.tier is None:
            return {}
        moved = {name: value - self.traffic.get(name, 0.0) for name, value in self.tier.total.items()}
        return {**moved, STEP_SECONDS: time.process_time() - self.processor}


class _Profiler:
    """TensorFlow's profiler around the steps of a part that are to be profiled."""

    def __init__(self, part: StudyPart, folder: str) -> None:
        self.folder, self.first = folder, part.warm_up + part.steps
        self.end = self.first + part.profiled

    def before(self, step: int) -> None:
        """step: how many steps have run."""
        if self.first == step < self.end:
            tf.profiler.experimental.start(self.folder)

    def after(self, step: int) -> None:
        """step: how many steps have run."""
        if self.first < step == self.end:
            tf.profiler.experimental.stop()

    def found(self, lms: LMS | None) -> dict[str, Any]:
        """The figures of the profiled steps, bytes per step; {"error": ..} if the profile cannot be read. lms: ran the steps."""
        if self.first == self.end:
            return {}
        try:
            trace = lanes.read(xplane.newest(Path(self.folder)))
            found, works = measure.profile(trace), _works(lms)
            kernels = measure.kernels(trace, works) if trace.device != "CPU" else []
        except Exception as error:  # whatever is wrong with a profile, the steps have been measured
            return {"error": f"{type(error).__name__}: {error}"[:300]}
        ways = {"out": found.out, "in": found.into}
        return {
            "device": found.device,
            "busy_share": found.busy_share,
            "idle_in_step_share": found.idle_in_step_share,
            "overlap_share": found.overlap_share,
            "kernel_seconds": sum(kernel.seconds for kernel in kernels),
            "kernels": [asdict(kernel) for kernel in kernels[:SLOWEST_KERNELS]],
            **{f"{way}_bytes": link.size_bytes / (self.end - self.first) for way, link in ways.items()},
            **{f"{way}_bytes_per_second": link.bytes_per_busy_second for way, link in ways.items()},
        }


def _works(lms: LMS | None) -> dict[str, measure.OpWork]:
    """The work of the ops of the steps that were run."""
    steps = lms._runner.steps.values() if lms is not None and lms._runner is not None else ()
    return {name: one for step in steps if step.prepared for name, one in work.of(step.prepared.function.graph).items()}


class _Heard(logging.Handler):
    """What lms3d logs: counts steps that ran out of memory and were planned and run again, and tells the parent that ops have been
    measured, so that others may use the device."""

    def __init__(self, talk: Talk) -> None:
        super().__init__(logging.INFO)
        self.talk, self.recoveries = talk, 0

    def emit(self, record: logging.LogRecord) -> None:
        said = record.getMessage()
        self.recoveries += "ran out of memory" in said
        if said.startswith(_MEASURED):
            self.talk.say(note="measured")


def main() -> None:
    part = StudyPart.of(asked())
    talk = Talk()
    with talk.explained():
        startup.start_tensorflow(limit_bytes=part.limit_mib and part.limit_mib * MIB, seed=0, precision=part.precision)
        tf.constant(0.0) + 1.0
        resident = Resident()
        model = build(part)
        if not part.trains:
            talk.say(ready=True)
            talk.asked()
            talk.say(finished=True, report=_predict(model, part))
        else:
            _train(part, model, talk, resident)


def build(part: StudyPart) -> keras.Model:
    """Compiled, the optimiser built: nothing is made for the first time inside a step."""
    loss: Any = "mse"
    if part.model in NETWORKS:
        model = NETWORKS[part.model].build(part.resolution)
    else:
        own = {"filters": part.filters} if part.filters else {}
        model = variants.build(part.method, part.model, (part.resolution,) * 3 + (4,), **own)
        loss = losses.dice_loss
    rate = 1e-4 if part.model in NETWORKS else 5e-4
    model.compile(keras.optimizers.Adam(rate), loss=loss, jit_compile=part.method == methods.XLA)
    model.optimizer.build(model.trainable_variables)
    return model


def _train(part: StudyPart, model: keras.Model, talk: Talk, resident: Resident) -> None:
    tier = _tier(part)
    folder = tempfile.TemporaryDirectory(prefix="lms3d-profile-")
    stats_file = Path(folder.name) / "lms_stats.csv"
    lms, heard = _callback(part.method, tier, stats_file), _Heard(talk)
    profiler = _Profiler(part, folder.name)
    lockstep = _StepOnDemand(talk, resident, lms, tier, profiler)
    logging.getLogger("lms3d").addHandler(heard)
    logging.getLogger("lms3d").setLevel(logging.INFO)
    talk.say(ready=True, device=_device_name(), parameters=model.count_params())
    with contextlib.suppress(_Finished):
        model.fit(
            _dataset(_batch(part, model)), epochs=1, steps_per_epoch=1_000_000, verbose=0, shuffle=False,
            callbacks=[*([lms] if lms else []), lockstep],
        )  # fmt: skip
    report = None if lms is None else lms.report
    values = {} if report is None else report.to_dict()
    reported = {name: values[name] for name in REPORTED if values.get(name) is not None}
    if report is not None and report.compiled:
        reported |= {"programs": len(report.compiled), "compiled_ops": sum(one.ops for one in report.compiled)}
    talk.say(
        finished=True,
        recoveries=heard.recoveries,
        digest=lockstep.digest,
        report=reported,
        profile=profiler.found(lms),
        traffic={} if tier is not None else _counters(stats_file, part),
        machine={} if lms is None or tier is not None else _speeds(lms),
        workspace_mib=os.environ.get(WORKSPACE, ""),
    )
    folder.cleanup()
    if lms is not None:
        lms.close()


def _counters(stats_file: Path, part: StudyPart) -> dict[str, float]:
    """The bytes that the swap tier moved in a step, and the seconds if it counts them; nothing without LMS."""
    if not stats_file.exists():
        return {}
    with stats_file.open(newline="") as file:
        rows = step_averages.averages(csv.DictReader(file), part.warm_up)
    mean = next((row for row in rows if row["kind"] == "train"), {})
    return {name: value for name in COUNTERS if isinstance(value := mean.get(name), int | float)}


def _speeds(lms: LMS) -> dict[str, float]:
    """The speeds that the plan was made with; nothing if nothing was planned."""
    if lms.report is None or lms.planner == "off":
        return {}
    machine = speeds.machine(memory.compute_device(), lms.report.tier, None, mapped=lms.mapped)
    return {name: getattr(machine, name) for name in speeds.SPEEDS}


def _tier(part: StudyPart) -> type[LinkTier] | None:
    """The tier of the part's emulated link, if it has one."""
    if not part.link:
        return None
    from lms3d.experiments.links.tier import register

    return register(SwapLink.parse(part.link))


def _callback(method: str, tier: type[LinkTier] | None = None, stats_file: Path | None = None) -> LMS | None:
    """LMS for the method; None if that does without it. It keeps its first plan, so that the report describes the steps that were
    measured."""
    known: dict[str, dict[str, Any]] = {
        methods.NONE: {"enabled": False},
        methods.LMS: {"planner": "hybrid"},
        methods.COPIED: {"planner": "hybrid", "mapped": False},
        methods.TFLMS: {"planner": "tflms"},
        methods.UNCOMPILED: {"compile": "off"},
        methods.COMPILED: {"compile": "auto"},
        **{name: {"planner": planner} for name, planner in methods.UNIFORM.items()},
    }
    if method not in known:
        return None
    return LMS(adapt=False, tier="auto" if tier is None else tier.name, stats_file=stats_file, **known[method])


def _predict(model: keras.Model, part: StudyPart) -> dict[str, Any]:
    """Peak, smallest limits, seconds and floating-point operations, as LMS names them before anything is run."""
    # Far above its needs: the plan is empty, and both smallest limits hold for a pool with a hard limit.
    planned = plan_step(model, _specification(_batch(part, model)), memory_limit=1 << 40, at_floor=False)
    report = planned.report.to_dict() | {"step_flops": sum(op.flops for op in planned.graph.ops)}
    return {name: report[name] for name in (*REPORTED, "step_flops") if report.get(name) is not None}


def _specification(arrays: Iterable[np.ndarray]) -> tuple[tf.TensorSpec, ...]:
    return tuple(tf.TensorSpec(array.shape, array.dtype) for array in arrays)


def _batch(part: StudyPart, model: keras.Model) -> tuple[np.ndarray, np.ndarray]:
    if part.model in NETWORKS:
        return batches.noise((part.batch, *model.input_shape[1:]), (part.batch, *model.output_shape[1:]))
    return batches.volumes(part.resolution)


def _dataset(arrays: Iterable[np.ndarray]) -> tf.data.Dataset:
    """The same batch for ever, handed over as the pipelines in `data` do."""
    batch = []
    for array in arrays:
        batch.append(stream.aligned_empty(array.shape, array.dtype))
        batch[-1][...] = array
    return stream.loaded(tf.data.Dataset.range(1 << 62), lambda step: tuple(batch), list(_specification(batch)))


def _digest(model: keras.Model) -> str:
    return hashlib.sha1(b"".join(np.asarray(weight).tobytes() for weight in model.weights)).hexdigest()


def _device_name() -> str:
    gpus = tf.config.list_physical_devices("GPU")
    return str(tf.config.experimental.get_device_details(gpus[0]).get("device_name", "GPU")) if gpus else "CPU"


if __name__ == "__main__":
    main()
