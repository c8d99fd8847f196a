"""`python -m lms3d.train`: train a network on whole volumes under a memory limit."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lms3d import cli, console, errors, tasks
from lms3d.config import TrainConfig
from lms3d.errors import InputError, Interrupted
from lms3d.files import writable_folder
from lms3d.ranks import elastic
from lms3d.ranks import world as distributed
from lms3d.ranks.messages import sendable
from lms3d.ranks.world import World
from lms3d.tasks import task_of
from lms3d.training import compilation, demo, needs, out_of_memory, run_folder
from lms3d.training import summary as ending
from lms3d.training.run_lock import RunLock
from lms3d.training.task import Material
from lms3d.units import format_seconds, format_size

if TYPE_CHECKING:
    import keras

    from lms3d.keras_step.callback import LMS
    from lms3d.keras_step.report import Report
    from lms3d.training.trainer import History

STATS = "lms_stats.csv"
WARMUP_EPOCHS = 5  # with several ranks, as in the CheXNet article

_DESCRIPTION = """\
Train a 3D U-Net on whole brain scans (BraTS), under a memory limit that it would not fit into by itself.

Without --data it makes an artificial data set first (once), so that everything can be tried at once:
  python -m lms3d.train --resolution 64 --epochs 3
With your own data:
  python -m lms3d.train --data ~/MICCAI_BraTS2020_TrainingData --resolution 192"""

_EPILOG = """\
writes into RUN_DIR: config.json, split.json, history.csv, best.keras, last/ (for --resume), lms_plan.json,
lms_report.md, lms_stats.csv, figures/*.png and tensorboard/. Go on with python -m lms3d.predict RUN_DIR.
exit codes: 0 done, 2 wrong option or wrong input, 3 does not fit into the memory limit, 130 interrupted (resumable)"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse, prepare, train, summarise. Returns the exit code."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    return errors.run(lambda: _train(_parsed(arguments), arguments))


def _parsed(arguments: Sequence[str]) -> dict[str, Any]:
    """The options that were given. What is wrong with them is wrong on all ranks, and one tells."""
    try:
        return vars(_parser().parse_args(arguments))
    except InputError as error:
        with distributed.joined():
            raise errors.of_all_ranks(error) from None


def _train(given: dict[str, Any], arguments: Sequence[str]) -> None:
    dry_run, resume, elastically = (given.pop(name, False) for name in ("dry_run", "resume", "elastic"))
    profile, output = given.pop("profile", None), given.pop("output", None)
    lock = RunLock()  # of rank 0, for as long as it lives

    def chosen() -> Run:
        options, run_dir, resuming = run_folder.choose(given, output, resume, lock, chosen=tasks.chosen)
        return Run(options=options, run_dir=run_dir, resuming=resuming, profile=profile, arguments=tuple(arguments))

    def train_once(world: World, memory: elastic.Memory | None) -> None:
        console.silence(not world.is_chief)
        agree = memory.once if memory is not None else lambda _, make: make()
        run = agree("run", lambda: world.from_chief(chosen))
        if not world.is_chief:  # it may have been rank 0 before
            lock.release()
        if memory is not None:  # the one that was rank 0 may still be about to end
            world.from_chief(lambda: run_folder.take_over(run.run_dir, lock))
        _run(run, world, memory)

    if dry_run:
        _dry_run(tasks.chosen(given))
        return
    with lock:
        if elastically:
            elastic.run(train_once)
        else:
            with distributed.joined() as world:
                train_once(world, None)


@sendable
@dataclass(frozen=True, kw_only=True)
class Run:
    """What one call of this program is to do."""

    options: TrainConfig
    run_dir: Path
    resuming: bool
    profile: tuple[int, int, int] | None
    arguments: tuple[str, ...]

    @property
    def demonstrating(self) -> bool:
        """Whether nobody said how long to train: then it ends in time."""
        return self.options.data is None and self.options.epochs is None


def _run(run: Run, world: World, memory: elastic.Memory | None) -> None:
    """Prepares, trains, draws and summarises."""
    options = needs.with_demonstration_limit(run.options)
    world.from_chief(lambda: _writable(options, run.run_dir))
    _writable(options, run.run_dir)
    task = task_of(options)
    again = memory is not None and memory.worlds > 1
    if run.resuming or again:  # a checkpoint has them all
        options = replace(options, weights=None)
    with console.progress() as report:
        material = task.prepare(options, run.run_dir, run.resuming, world, report)
    limit = _start(options, world, again=again)
    if world.is_chief and not (run.resuming or again):  # what a run left here that never finished an epoch
        (run.run_dir / STATS).unlink(missing_ok=True)
    made: list[keras.Model] = []
    with out_of_memory.explained(_job(options), limit, options.lms, lambda: _needs(options, made)):
        model = compilation.compiled_model(options, material=material, world=world)
        made.append(model)
        # On every rank, since the prediction builds the metrics; rank 0's clock decides.
        options = world.everyone(needs.with_length(options, model, *_whole_epoch(options, material, world)))[0]
        world.from_chief(lambda: _profiled(run.profile, options))
        if world.is_chief:
            _describe(run, options, limit, material)
        with _wrong_input_told(), closing(_lms(run, options, world)) as lms:
            history, guarded = _fit(run, options, model, material, lms, world, memory)
            summary = lms.report
        if world.is_chief:
            summary = summary or _needs(options, made)  # a resumed run may have had nothing left to do
            ending.draw(run.run_dir / "figures", title=_title(options), report=summary, history=history)
            with _wrong_input_told():
                task.finish(run.run_dir, options, model, material, summary)
            rows = task.results(run.run_dir, history)
            ending.summarise(run.run_dir, summary, history, rows, needs.elapsed_seconds(), guarded=guarded)


def _dry_run(options: TrainConfig) -> None:
    """Prints the plan for the training step, and what it is predicted to need. Reads no data, writes nothing.

    DoesNotFit, and no plan, where none fits: one for a larger limit answers no question that was asked.
    """
    options = needs.with_demonstration_limit(options)
    limit = _start(options, World())
    console.say("Tracing and planning the training step")
    made: list[keras.Model] = []
    with out_of_memory.explained(_job(options), limit, options.lms, lambda: _needs(options, made)):
        made.append(compilation.compiled_model(options))
        report = _needs(options, made)
        needs.require_fit(options, report)
    console.say(report.to_markdown())
    peak = report.predicted_peak_bytes if options.lms else report.unedited_peak_bytes
    console.summary("Dry run: nothing was trained", {
        "memory limit": format_size(limit),
        "predicted peak": f"{format_size(peak)} ({format_size(report.unedited_peak_bytes)} without LMS)",
        "predicted step": format_seconds(needs.step_seconds(options, report)),
    })  # fmt: skip


def _writable(options: TrainConfig, run_dir: Path) -> None:
    writable_folder(run_dir, "--output")
    if options.swap_dir:
        writable_folder(options.swap_dir, "--swap-dir")


def _title(options: TrainConfig) -> str:
    return f"{options.model} at {options.resolution}$^{task_of(options).axes}$"


def _job(options: TrainConfig) -> str:
    return f"{options.model} at {options.resolution}^{task_of(options).axes}, batch {options.batch_size},"


def _needs(options: TrainConfig, made: list[keras.Model]) -> Report:
    """The prediction with the smallest limits; IndexError while there is no model yet."""
    return needs.estimate_step(options, made[0], with_floor=True)


def _start(options: TrainConfig, world: World, *, again: bool = False) -> int:
    """Starts TensorFlow under the limit (`again`: in a later world of this process); returns what training can have."""
    from lms3d.device import memory, startup

    startup.start_tensorflow(
        memory_limit_bytes=options.memory_limit,
        seed=options.seed,
        precision=options.precision,
        world=world,
        again=again,
    )
    return memory.device_memory_bytes()


def _whole_epoch(options: TrainConfig, material: Material, world: World) -> tuple[int, int]:
    """Training and validation steps of a pass over all data."""
    return (
        world.training_steps(material.training_count, options.batch_size),
        world.validation_steps(material.validation_count, options.batch_size),
    )


def _profiled(where: tuple[int, int, int] | None, options: TrainConfig) -> None:
    """InputError where the profiler would never start."""
    epochs, steps, _ = _filled_in(options)
    if where is not None and (where[0] > epochs or where[1] > steps):
        epoch, first, last = where
        raise InputError(
            f"--profile {epoch}:{first}-{last} is never reached: the run has {epochs} epochs of {steps} steps; choose among these"
        )


def _describe(run: Run, options: TrainConfig, limit: int, material: Material) -> None:
    from lms3d.device import memory

    # What follows from the number of ranks is worked out again by a run that goes on. Not how long a demonstration is: that
    # followed from the time that there was.
    given = run.options
    lengths = {name: getattr(given, name) for name in ("epochs", "steps_per_epoch", "validation_steps")}
    kept = replace(options, weights=given.weights, **({} if run.demonstrating else lengths))
    run_folder.describe(
        run.run_dir, kept, run.arguments, resuming=run.resuming, device=memory.compute_device(), limit_bytes=limit,
        **material.described,
    )  # fmt: skip


def _lms(run: Run, options: TrainConfig, world: World) -> LMS:
    from lms3d.keras_step.callback import LMS

    stats_file = run.run_dir / STATS if world.is_chief else None
    return LMS(enabled=options.lms, stats_file=stats_file, **needs.lms_arguments(options))


def _fit(
    run: Run, options: TrainConfig, model: keras.Model, material: Material, lms: LMS, world: World,
    memory: elastic.Memory | None,
) -> tuple[History, bool]:  # fmt: skip
    """Trains; returns the history, and whether the time guard ended it."""
    from lms3d.training import trainer
    from lms3d.training.callbacks import progress

    task = task_of(options)
    epochs, steps, validation_steps = _filled_in(options)
    guard = progress.TimeGuard(demo.LAST_SECONDS - needs.elapsed_seconds(), validation_steps * demo.VALIDATION_SHARE)
    profile = run.profile if world.is_chief else None
    with console.progress(keep=False) as report:
        callbacks = [
            lms,
            *task.callbacks(model, material, world),
            *([guard] if run.demonstrating else []),
            *([progress.Profile(profile, run.run_dir / "tensorboard", steps)] if profile else []),
            progress.ProgressLines(report, epochs, steps, validation_steps, shown=task.shown),
        ]
        try:
            history = trainer.train(
                model, lambda first_sample: material.training(first_sample, world), material.validation(world),
                epochs=epochs, steps_per_epoch=steps, validation_steps=validation_steps, batch_size=options.batch_size,
                validation_weight=_validated(options, material, world), patience=options.patience,
                warmup_epochs=_warmup_epochs(options), plateau_factor=task.plateau[0],
                plateau_patience=task.plateau[1], run_dir=run.run_dir, callbacks=callbacks, world=world,
                resume=run.resuming, memory=memory,
                on_interrupt=lambda: console.say("Finishing this step, then saving; Ctrl-C again quits at once"),
            )  # fmt: skip
        except Interrupted as stop:
            raise Interrupted(f"{stop}; all is saved, go on with: {run_folder.resume_command(run.run_dir)}") from None
        finally:
            if lms.report is not None and world.is_chief:
                lms.write(run.run_dir)
    return history, guard.reached


@contextmanager
def _wrong_input_told() -> Iterator[None]:
    """What is wrong with a file reaches us through tf.data, wrapped up: shows it as it is."""
    from data.errors import unwrap

    try:
        yield
    except Exception as error:
        if wrong_input := unwrap(error):
            raise wrong_input from error
        raise


def _validated(options: TrainConfig, material: Material, world: World) -> int:
    """Validation samples that this rank looks at in an epoch, borrowed ones not counted."""
    assert options.validation_steps is not None
    share = len(world.share(range(material.validation_count)))
    return min(share, options.validation_steps * options.batch_size)


def _warmup_epochs(options: TrainConfig) -> int:
    """On one rank nothing grows, but a run that began on several, or goes on there, is still in its warm-up."""
    return WARMUP_EPOCHS if options.warmup_epochs is None else options.warmup_epochs


def _filled_in(options: TrainConfig) -> tuple[int, int, int]:
    assert options.epochs is not None, "forecast.with_length fills these in"
    assert options.steps_per_epoch is not None
    assert options.validation_steps is not None
    return options.epochs, options.steps_per_epoch, options.validation_steps


def _parser() -> cli.Parser:
    parser = cli.Parser(prog="python -m lms3d.train", description=_DESCRIPTION, epilog=_EPILOG)
    cli.add_data_options(parser)
    cli.add_model_options(parser)
    cli.add_training_options(parser)
    cli.add_memory_options(parser)
    cli.add_run_options(parser)
    return parser


if __name__ == "__main__":
    sys.exit(main())
