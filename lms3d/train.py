"""`python -m lms3d.train`: train a network on whole volumes under a memory limit."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lms3d import cli, console, demonstration, ending, errors, forecast, outofmemory, runs
from lms3d.config import TrainConfig
from lms3d.distributed import World
from lms3d.errors import InputError, Interrupted
from lms3d.files import writable_folder
from lms3d.units import format_seconds, format_size

if TYPE_CHECKING:
    import keras
    import numpy as np

    from data.cache import Cache
    from data.normalise import Normalisation
    from data.schema import LabelSchema
    from data.split import Split
    from lms3d.callback import LMS
    from lms3d.report import Report
    from lms3d.trainer import History

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


@dataclass(frozen=True, kw_only=True)
class Material:
    """What is learned from."""

    cache: Cache
    split: Split
    normalisation: Normalisation


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse, prepare, train, summarise. Returns the exit code."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    return errors.run(lambda: _train(vars(_parser().parse_args(arguments)), arguments))


def _train(given: dict[str, Any], arguments: Sequence[str]) -> None:
    dry_run, resume = given.pop("dry_run", False), given.pop("resume", False)
    profile, output = given.pop("profile", None), given.pop("output", None)
    if dry_run:
        return _dry_run(TrainConfig(**given))
    options, run_dir, resuming = runs.choose(given, output, resume)
    writable_folder(run_dir, "--output")
    if options.swap_dir:
        writable_folder(options.swap_dir, "--swap-dir")
    options, demonstrating = forecast.with_demonstration_limit(options), options.data is None and options.epochs is None
    material = _material(options, run_dir, resuming)
    limit = _start(options)
    made: list[keras.Model] = []
    with outofmemory.explained(_job(options), limit, options.lms, lambda: _needs(options, made)):
        model = compiled_model(options, material.cache.schema)
        made.append(model)
        options = forecast.with_length(options, model, *_whole_epoch(options, material))
        _describe(run_dir, options, arguments, limit, material)
        lms, history, guarded = _fit(options, run_dir, model, material, profile, demonstrating, resuming)
        report = lms.report or _needs(options, made)  # a resumed run may have had nothing left to do
        lms.close()
        _draw(run_dir, options, model, material, report, history)
    ending.summarise(run_dir, report, history, forecast.elapsed_seconds(), guarded=guarded)
    return None


def _dry_run(options: TrainConfig) -> None:
    """Prints the plan for the training step, and what it is predicted to need. Reads no data, writes nothing."""
    from data.schema import SCHEMAS

    options = forecast.with_demonstration_limit(options)
    limit = _start(options)
    console.say("Tracing and planning the training step")
    made: list[keras.Model] = []
    with outofmemory.explained(_job(options), limit, options.lms, lambda: _needs(options, made)):
        made.append(compiled_model(options, next(iter(SCHEMAS.values()))))
        report = _needs(options, made)
    console.say(report.to_markdown())
    peak = report.predicted_peak_bytes if options.lms else report.unedited_peak_bytes
    console.summary("Dry run: nothing was trained", {
        "memory limit": format_size(limit),
        "predicted peak": f"{format_size(peak)} ({format_size(report.unedited_peak_bytes)} without LMS)",
        "predicted step": format_seconds(forecast.step_seconds(options, report)),
    })  # fmt: skip


def _job(options: TrainConfig) -> str:
    return f"{options.model} at {options.resolution}^3, batch {options.batch_size},"


def _needs(options: TrainConfig, made: list[keras.Model]) -> Report:
    """The prediction with the smallest limits; IndexError while there is no model yet."""
    return forecast.estimate_step(options, made[0], with_floor=True)


def _material(options: TrainConfig, run_dir: Path, resuming: bool) -> Material:
    """The cubes of all cases, made if need be, who trains and who validates, and the statistics of those who train."""
    from data import brats, cache, normalise, phantom, split

    with console.progress() as report:
        folder = options.data
        if folder is None:
            console.say(f"No --data: using the embedded artificial brains in {phantom.default_directory()} (made once)")
            folder = phantom.write(phantom.default_directory(), progress=report)
        cases, schema = brats.find_cases(folder, labels=options.labels)
        cubes = cache.build(cases, schema, options.resolution, n4=options.n4, progress=report)
    if resuming:
        runs.check_data(run_dir, cubes.fingerprint)
        parts = split.load(run_dir / "split.json")
    elif options.split:
        parts = split.load(options.split)
        if unknown := sorted({*parts.training, *parts.validation} - set(cubes.ids)):
            raise InputError(f"--split {options.split} names case {unknown[0]}, which is not in {folder}")
    else:
        parts = split.make(cubes.ids, options.seed, options.validation_fraction)
    split.save(parts, run_dir / "split.json")
    return Material(cache=cubes, split=parts, normalisation=normalise.fit(cubes, parts.training))


def _start(options: TrainConfig) -> int:
    """Starts TensorFlow under the limit; returns the bytes that training can have."""
    from lms3d import memory, startup

    startup.start_tensorflow(memory_limit_bytes=options.memory_limit, seed=options.seed, precision=options.precision)
    return memory.device_memory_bytes()


def compiled_model(options: TrainConfig, schema: LabelSchema) -> keras.Model:
    """The network, compiled, with its optimiser's slots in place."""
    import keras

    import models
    from lms3d import losses
    from lms3d.keras_metrics import RegionDice

    model = models.build(options.model, input_shape=(options.resolution,) * 3 + (4,), outputs=3)
    model.compile(
        optimizer=keras.optimizers.Adam(World().learning_rate(options.learning_rate)),
        loss={"dice": losses.dice_loss, "dice_cross_entropy": losses.dice_cross_entropy}[options.loss],
        metrics=[RegionDice(channels, name=f"dice_{region}") for region, channels in schema.region_channels.items()],
        jit_compile=False,  # XLA decides on memory by itself: there would be nothing left to plan
    )
    model.optimizer.build(model.trainable_variables)
    return model


def _whole_epoch(options: TrainConfig, material: Material) -> tuple[int, int]:
    """Training and validation steps of a pass over all cases."""
    world, parts = World(), material.split
    training, validation = len(parts.training), len(parts.validation)
    return world.steps(training, options.batch_size), world.steps(validation, options.batch_size)


def _describe(run_dir: Path, options: TrainConfig, arguments: Sequence[str], limit: int, material: Material) -> None:
    from lms3d import memory

    cache = material.cache
    runs.describe(
        run_dir, options, arguments, device=memory.compute_device(), limit_bytes=limit,
        data={"fingerprint": cache.fingerprint, "schema": cache.schema.name, "cases": len(cache.ids)},
        normalisation=material.normalisation.to_json(),
    )  # fmt: skip


def _fit(
    options: TrainConfig, run_dir: Path, model: keras.Model, material: Material, profile: Any, demonstrating: bool,
    resuming: bool,
) -> tuple[LMS, History, bool]:  # fmt: skip
    """Trains; returns the LMS callback, the history, and whether the time guard ended it."""
    from data.errors import unwrap
    from lms3d import monitor, trainer
    from lms3d.callback import LMS

    epochs, steps, validation_steps = _filled_in(options)
    if not resuming:  # what a run left here that never finished an epoch
        (run_dir / "lms_stats.csv").unlink(missing_ok=True)
    training, validation = _datasets(options, material)
    lms = LMS(enabled=options.lms, stats_file=run_dir / "lms_stats.csv", **forecast.lms_arguments(options))
    guard = monitor.TimeGuard(
        demonstration.LAST_SECONDS - forecast.elapsed_seconds(), validation_steps * demonstration.VALIDATION_SHARE
    )
    with console.progress(keep=False) as report:
        callbacks = [
            lms,
            *([guard] if demonstrating else []),
            *([monitor.Profile(profile, run_dir / "tensorboard")] if profile else []),
            monitor.ProgressLines(report, epochs, steps, validation_steps),
        ]
        try:
            history = trainer.train(
                model, training, validation, epochs=epochs, steps_per_epoch=steps, validation_steps=validation_steps,
                patience=options.patience, run_dir=run_dir, callbacks=callbacks, world=World(), resume=resuming,
                on_interrupt=lambda: console.say("Finishing this step, then saving; Ctrl-C again quits at once"),
            )  # fmt: skip
        except Interrupted as stop:
            raise Interrupted(f"{stop}; all is saved, go on with: {runs.resume_command(run_dir)}") from None
        except Exception as error:
            if wrong_input := unwrap(error):
                raise wrong_input from error
            raise
        finally:
            if lms.report is not None:
                lms.write(run_dir)
    return lms, history, guard.reached


def _filled_in(options: TrainConfig) -> tuple[int, int, int]:
    assert options.epochs is not None, "forecast.with_length fills these in"
    assert options.steps_per_epoch is not None
    assert options.validation_steps is not None
    return options.epochs, options.steps_per_epoch, options.validation_steps


def _datasets(options: TrainConfig, material: Material) -> tuple[Callable[[int], Any], Any]:
    """Training batches from any step on, and the validation batches, of this rank."""
    from data import pipeline

    world, parts = World(), material.split

    def training(first_step: int) -> Any:
        return pipeline.training_dataset(
            material.cache, world.share(parts.training), material.normalisation, batch_size=options.batch_size,
            seed=options.seed, first_step=first_step, augment=options.augment,
        )  # fmt: skip

    # The batch size of training: a larger one would need more memory for the batches themselves.
    validation = pipeline.validation_dataset(
        material.cache, world.share(parts.validation), material.normalisation, batch_size=options.batch_size
    )
    return training, validation


def _draw(
    run_dir: Path, options: TrainConfig, model: keras.Model, material: Material, report: Report, history: History
) -> None:
    """The figures, with one validation case segmented by the best weights."""
    from data.schema import CHANNELS
    from lms3d import inference
    from lms3d.callback import LMS
    from lms3d.keeper import without_training

    cache, case_id = material.cache, material.split.validation[0]
    image, truth = cache.image(case_id), cache.truth(case_id)
    assert truth is not None, "the pipeline refuses validation cases without truth"

    def segment() -> np.ndarray:
        if (run_dir / "best.keras").exists():
            without_training(model).load_weights(run_dir / "best.keras")
        lms = LMS(memory_limit=options.memory_limit, tier=options.swap_tier, swap_dir=options.swap_dir)
        try:
            predict = inference.predictor(model, options.resolution, lms=lms if options.lms else None)
            return cache.schema.from_channels(predict(material.normalisation.apply(image)))
        finally:
            lms.close()

    ending.draw(
        run_dir / "figures", title=f"{options.model} at {options.resolution}$^3$", report=report, history=history,
        case_id=case_id, flair=image[..., CHANNELS.index("flair")], truth=truth, segment=segment,
        regions=cache.schema.regions,
    )  # fmt: skip


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
