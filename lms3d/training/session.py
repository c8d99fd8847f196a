"""One call of `lms3d.train`: prepare the data, start TensorFlow, train, draw and summarise."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lms3d import console
from lms3d.atomic_files import writable_folder
from lms3d.config import TrainConfig
from lms3d.device import memory as device_memory
from lms3d.device import startup
from lms3d.errors import InputError, Interrupted
from lms3d.ranks.elastic import Memory
from lms3d.ranks.messages import sendable
from lms3d.ranks.world import World
from lms3d.training import compilation, demo, needs, out_of_memory, run_folder, summary
from lms3d.training.run import Data, Job, TrainingSchedule
from lms3d.training.run_lock import RunLock
from lms3d.training.task import Material, Task
from lms3d.training.validation import OwnValidation
from lms3d.units import format_seconds, format_size

if TYPE_CHECKING:
    import keras

    from lms3d.keras_step.callback import LMS
    from lms3d.keras_step.report import Report
    from lms3d.training.callbacks.progress import Profile, TimeGuard
    from lms3d.training.trainer import History

STATS, AVERAGES = "lms_stats.csv", "lms_stats_average.csv"
WARMUP_EPOCHS = 5  # with several ranks, as in the CheXNet article


@sendable
@dataclass(frozen=True, kw_only=True)
class Session:
    """What one call of `lms3d.train` does."""

    options: TrainConfig
    run_dir: Path
    resuming: bool
    profile: tuple[int, int, int] | None
    arguments: tuple[str, ...]
    whole: Path | None = None
    """The folder of the whole run, if this is one of its stages."""
    time_share: float = 1.0
    """The share of the time left that this session trains for, in a demonstration."""
    record_bits: Path | None = None
    """The folder in which the bits of each step are recorded, or compared with what is recorded."""
    stats_average: int | None = None
    """The first steps of each plan that are left out of the averages of the steps' figures; None: no averages are written."""

    named: bool = True
    """Whether trackers are told the name of the run folder."""

    @property
    def tracked_name(self) -> str | None:
        """What trackers call the run: the name of its folder, and of the stage."""
        path = self.run_dir.resolve()
        stage = f"/{path.name}" if self.whole else ""
        return f"{self.command_dir.resolve().name}{stage}" if self.named else None

    @property
    def command_dir(self) -> Path:
        """The folder that `--output` names."""
        return self.whole or self.run_dir

    @property
    def demonstrating(self) -> bool:
        """Whether the user gave neither data nor epochs: then this is a demonstration, which ends within minutes."""
        return self.options.data is None and self.options.epochs is None


def agree(choose: Callable[[], Session], lock: RunLock, world: World, memory: Memory | None) -> Session:
    """The session that rank 0 chooses, on all ranks; in a later world of an elastic job the one chosen in the first world.

    lock: the lock of the run folder, which rank 0 holds.
    """
    console.silence(not world.is_chief)
    if memory is None:
        return world.from_chief(choose)
    session = memory.once(lambda: world.from_chief(choose))
    if not world.is_chief:  # this rank may have been rank 0 before
        lock.release()
    world.from_chief(lambda: run_folder.take_over(session.run_dir, lock))  # its last holder may not have ended yet
    return session


def train(session: Session, task: Task, world: World, memory: Memory | None, *, again: bool = False) -> None:
    """Prepares, trains, draws and summarises. again: TensorFlow is running already, and its devices stay as they are."""
    options = session.options
    world.from_chief(lambda: _require_writable(options, session.run_dir))
    _require_writable(options, session.run_dir)
    elastic_restart = memory is not None and memory.resuming
    continuing = session.resuming or elastic_restart
    if continuing:
        options = options.without_start()  # a checkpoint has all weights
    with console.progress() as report:
        material = task.prepare(options, session.run_dir, continuing, world, report)
    if not world.is_chief:
        options = options.without_start()  # the weights come from rank 0
    limit_bytes = _start_tensorflow(options, world, elastic_restart=elastic_restart or again)
    if world.is_chief and not continuing:  # left by a run that never finished an epoch
        for name in (STATS, AVERAGES):
            (session.run_dir / name).unlink(missing_ok=True)
    with _network(options, task, limit_bytes, material=material, world=world) as model:
        # On every rank, since the prediction builds the metrics; rank 0's clock decides.
        options = world.everyone(needs.with_length(
            options, task, model, *_whole_epoch(options, material, world), session.time_share,
            task.validation_cost(options, material),
        ))[0]  # fmt: skip
        training = Training(session=session, options=options, task=task, material=material, world=world, memory=memory)
        world.from_chief(training.require_profile)
        if world.is_chief:
            training.describe(limit_bytes)
            console.say(training.headline(limit_bytes))
        training.run(model)


def dry_run(options: TrainConfig, task: Task) -> None:
    """Prints the plan for the training step, and what the step is predicted to need. Reads headers at most, and writes nothing.

    DoesNotFit, without a plan, if no plan fits: a plan for a larger limit would answer a question that nobody asked.
    """
    options = needs.with_demonstration_limit(options, task)
    limit_bytes = _start_tensorflow(options, World())
    console.say("Tracing and planning the training step")
    with _network(options, task, limit_bytes) as model:
        report = needs.estimate_step(options, task, model, with_floor=True)
        needs.require_fit(options, report)
    console.say(report.to_markdown(kept=False))
    peak = report.predicted_peak_bytes if options.lms else report.unedited_peak_bytes
    console.summary("Dry run: nothing was trained", {
        "memory limit": format_size(limit_bytes),
        "predicted peak": f"{format_size(peak)} ({format_size(report.unedited_peak_bytes)} without LMS)",
        "predicted step": format_seconds(needs.step_seconds(options, report)),
    })  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Training:
    """A session whose data is prepared and whose `options` state its length."""

    session: Session
    options: TrainConfig
    task: Task
    material: Material
    world: World
    memory: Memory | None

    def require_profile(self) -> None:
        """InputError if the profiler would never start."""
        where, epochs, steps = self.session.profile, self.options.epochs or 0, self.options.steps_per_epoch or 0
        if where is not None and (where[0] > epochs or where[1] > steps):
            epoch, first, last = where
            raise InputError(
                f"--profile {epoch}:{first}-{last} is never reached: the run has {epochs} epochs of {steps} steps; choose among "
                "these"
            )

    def headline(self, limit_bytes: int) -> str:
        """One line: what is trained, where, and on which data."""
        options = self.options
        return (
            f"{options.model} at {options.size_text(self.task.axes)}, batch {options.batch_size}, "
            f"{'with' if options.lms else 'without'} LMS in {format_size(limit_bytes)} of {device_memory.compute_device()}: learns "
            f"from {self.material.training_count} samples, validates on {self.material.validation_count}"
        )

    def describe(self, limit_bytes: int) -> None:
        """Writes config.json.

        The lengths are as the user gave them: a run that goes on works out the others again, since they follow from the number
        of ranks. A demonstration goes on for as long as at first, and validates as many cases, to find the best epoch; the epochs
        over which a cosine falls are kept.
        """
        given = self.session.options
        lengths = {name: getattr(given, name) for name in ("epochs", "steps_per_epoch", "validation_steps")}
        if self.session.demonstrating:
            lengths["validation_steps"] = self.options.validation_steps
        if self.session.demonstrating and given.schedule == "cosine":
            lengths["epochs"] = self.options.epochs
        kept = replace(self.options.with_start_of(given), **lengths)
        run_folder.describe(
            self.session.run_dir, kept, self.session.arguments, resuming=self.session.resuming,
            device=device_memory.compute_device(), limit_bytes=limit_bytes, **self.material.described,
        )  # fmt: skip

    def run(self, model: keras.Model) -> None:
        """Trains; then rank 0 draws and summarises."""
        stats_file = self.session.run_dir / STATS if self.world.is_chief else None
        with closing(needs.lms_for(self.options, stats_file)) as lms:
            history = self._fit(model, lms)
            report = lms.report
        if not self.world.is_chief:
            return
        run_dir = self.session.run_dir
        if report is None:  # a resumed run may have had nothing left to do
            report = self._report_of_a_finished_run(model)
        title = f"{self.options.model} at {self.options.size_text(self.task.axes)}"
        self.task.finish(run_dir, self.options, model, self.material, report)
        summary.draw(
            run_dir / "figures", title=title, report=report, history=history
        )  # last: `summary.drawn` looks for it
        rows = self.task.results(run_dir, history)
        summary.summarise(run_dir, report, history, rows, needs.elapsed_seconds())

    def _report_of_a_finished_run(self, model: keras.Model) -> Report:
        """The predicted report. It is written if the run was killed between its last checkpoint and its report."""
        from lms3d.keras_step import report

        planned = needs.plan_training_step(self.options, self.task, model, with_floor=True)
        if not (self.session.run_dir / "lms_report.md").exists():
            report.write(self.session.run_dir, {"train": (planned.report, planned.plan)})
        return planned.report

    def _fit(self, model: keras.Model, lms: LMS) -> History:
        from lms3d.training import trainer
        from lms3d.training.callbacks import order
        from lms3d.training.callbacks.progress import ProgressLines

        world, run_dir, data = self.world, self.session.run_dir, self._data()
        schedule = self._schedule(data)
        job = Job(
            run_dir=run_dir, world=world, resume=self.session.resuming, memory=self.memory,
            record_bits=self.session.record_bits, trackers=self.options.tracker, name=self.session.tracked_name,
            options=self.options.without_paths(),
            on_interrupt=lambda: console.say("Finishing this step, then saving; Ctrl-C again quits at once"),
        )  # fmt: skip
        guard = self._time_guard(schedule)
        with console.progress(keep=False) as report:
            callbacks = [order.with_place(order.Place.LMS, lms), *self.task.callbacks(model, self.material, world)]
            callbacks += [guard] if guard else []
            profile = self._profile(schedule)
            callbacks += [profile] if profile else []
            callbacks.append(ProgressLines(report, schedule, guard, shown=self.task.shown))
            try:
                history = trainer.train(model, data, schedule, job, callbacks)
                if profile:
                    profile.tell_if_missed(len(history.rows))
                return history
            except Interrupted as stop:
                raise Interrupted(
                    f"{stop}; all is saved, go on with: {run_folder.resume_command(self.session.command_dir)}"
                ) from None
            finally:
                if lms.report is not None and world.is_chief:
                    lms.write(run_dir)
                    self._write_averages()

    def _profile(self, schedule: TrainingSchedule) -> Profile | None:
        from lms3d.training.callbacks.progress import Profile

        where = self.session.profile
        if where is None or not self.world.is_chief:
            return None
        return Profile(where, self.session.run_dir / "tensorboard", schedule.steps_per_epoch)

    def _time_guard(self, schedule: TrainingSchedule) -> TimeGuard | None:
        """What ends a demonstration; None if this is none."""
        from lms3d.training.callbacks.progress import TimeGuard

        if not self.session.demonstrating:
            return None
        seconds = demo.seconds_left(needs.elapsed_seconds(), self.session.time_share)
        return TimeGuard(seconds, demo.VALIDATION_STEP * (schedule.validation_steps or 0))

    def _write_averages(self) -> None:
        from lms3d.keras_step import step_averages

        run_dir, warm_up = self.session.run_dir, self.session.stats_average
        if warm_up is not None:
            step_averages.write(run_dir / STATS, run_dir / AVERAGES, warm_up=warm_up)

    def _schedule(self, data: Data) -> TrainingSchedule:
        options, own = self.options, data.validation if isinstance(data.validation, OwnValidation) else None
        assert options.epochs is not None, "needs.with_length fills these in"
        assert options.steps_per_epoch is not None
        # One rank has a warm-up, too: it changes nothing there, but the run may have begun on several ranks or go on there.
        warmup_epochs = WARMUP_EPOCHS if options.warmup_epochs is None else options.warmup_epochs
        factor, patience = self.task.plateau
        return TrainingSchedule(
            epochs=options.epochs, steps_per_epoch=options.steps_per_epoch,
            validation_steps=own.batches if own else options.validation_steps,
            batch_size=options.batch_size, patience=options.patience, plateau_factor=factor, plateau_patience=patience,
            warmup_epochs=warmup_epochs, decay=options.schedule,
        )  # fmt: skip

    def _data(self) -> Data:
        material, world, options = self.material, self.world, self.options
        validation = self.task.validation(options, material, world, options.swap_dir or self.session.run_dir)
        if isinstance(validation, OwnValidation):
            console.say(validation.in_words)
        share = len(world.share(range(material.validation_count)))  # without borrowed samples
        return Data(
            training=lambda first_sample: material.training(first_sample, world), validation=validation,
            validation_weight=min(share, (options.validation_steps or 0) * validation_batch(options)),
        )  # fmt: skip


@contextmanager
def _network(options: TrainConfig, task: Task, limit_bytes: int, **more: Any) -> Iterator[keras.Model]:
    """The compiled network. An out-of-memory error in the block becomes DoesNotFit, with the smallest limits."""
    made: list[keras.Model] = []
    job = f"{options.model} at {options.size_text(task.axes)}, batch {options.batch_size},"
    with out_of_memory.explained(
        job, limit_bytes, options.lms, lambda: needs.estimate_step(options, task, made[0], with_floor=True)
    ):
        made.append(compilation.compiled_model(options, task, **more))
        yield made[0]


def _start_tensorflow(options: TrainConfig, world: World, *, elastic_restart: bool = False) -> int:
    """Starts TensorFlow under the limit and returns the bytes that training can have. elastic_restart: in a later world of this
    process."""
    startup.start_tensorflow(
        limit_bytes=options.memory_limit,
        seed=options.seed,
        precision=options.precision,
        world=world,
        elastic_restart=elastic_restart,
        cudnn_workspace_bytes=options.cudnn_workspace,
    )
    return device_memory.device_memory_bytes()


def _whole_epoch(options: TrainConfig, material: Material, world: World) -> tuple[int, int]:
    """The training and validation steps of one pass over all data."""
    return (
        world.training_steps(material.training_count, options.batch_size),
        world.validation_steps(material.validation_count, validation_batch(options)),
    )


def validation_batch(options: TrainConfig) -> int:
    """The samples of a validation step."""
    return options.validation_batch_size or options.batch_size


def _require_writable(options: TrainConfig, run_dir: Path) -> None:
    writable_folder(run_dir, "--output")
    if options.swap_dir:
        writable_folder(options.swap_dir, "--swap-dir")
