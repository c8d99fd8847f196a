"""`python -m lms3d.predict`: a trained run applied: tumours as NIfTI files, findings in radiographs as a table."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lms3d import cli, errors
from lms3d.units import parse_size

if TYPE_CHECKING:
    import numpy as np

    from data.brats.cache import Cache
    from data.brats.normalise import Normalisation
    from lms3d.config import TrainConfig
    from lms3d.keras_step.callback import LMS
    from lms3d.tasks import inference
    from lms3d.tasks.brats.label_maps import Predictions

_DESCRIPTION = """\
Apply a trained run. RUN_DIR is what `python -m lms3d.train --output RUN_DIR` made.

Brain scans: every case becomes two label maps: one on the grid of its original files, with their orientation and
position, which any viewer lays over them; and one in the cube of the network. Without --data the validation cases of
the run are segmented. With --data every case of that folder is, whether it has a true label map or not.

Chest X-rays: every image becomes a line of predictions.csv, with the probabilities of 14 findings. Without --data these
are the test images of the run. With --data they are all images of a ChestX-ray14 folder, or of any folder of PNGs."""

_EPILOG = """\
examples:
  python -m lms3d.predict runs/192
  python -m lms3d.predict runs/192 --data ~/new_patients --output ~/segmented --tta
  python -m lms3d.predict runs/densenet121-224 --data ~/radiographs

writes into --output: native/<case>.nii.gz, cube/<case>.nii.gz, predictions.json, or predictions.csv; score them with
lms3d.evaluate
exit codes: 0 done, 2 wrong option or wrong input, 3 does not fit into the memory limit, 130 interrupted"""


_TTA = "mean over the cube's 48 symmetries, or an image and its mirror image: better, as many times slower"


def main(arguments: Sequence[str] | None = None) -> int:
    """Open the run and the data, start TensorFlow, predict. Returns the exit code."""
    return errors.run(lambda: _predict(_parser().parse_args(arguments)))


def _predict(options: argparse.Namespace) -> None:
    from lms3d import config, console, files

    run_dir = Path(options.run_dir).expanduser()
    trained, content = config.load(run_dir)
    weights = _weights(run_dir)
    output = Path(options.output).expanduser() if options.output else run_dir / "predictions"
    files.writable_folder(output, "--output")
    if trained.task == "chexnet":
        _predict_images(options, trained, content, run_dir, weights, output)
        return
    with console.progress() as report:
        cache, ids, target = _cases(run_dir, trained, content, options, output, report)
        normalisation = _normalisation(content, run_dir)
        with _predictor(options, trained, weights) as predict:
            _predict_cases(predict, cache, ids, normalisation, target, report)
    console.summary(f"{len(ids)} cases segmented", {
        "on the grid of the files": str(output / "native"),
        "in the cube": str(output / "cube"),
        "to score them": f"python -m lms3d.evaluate {output}",
    })  # fmt: skip


def _predict_images(
    options: argparse.Namespace,
    trained: TrainConfig,
    content: dict[str, Any],
    run_dir: Path,
    weights: Path,
    output: Path,
) -> None:
    from lms3d import console
    from lms3d.tasks.chexnet import predict as task

    if options.labels is not None:
        raise errors.InputError(f"--labels is for brain scans, and {run_dir} has learned chest X-rays; leave it out")
    table = output / task.FILE
    with console.progress() as report:
        folder = Path(options.data).expanduser() if options.data else None
        images = (
            task.of_folder(folder, trained.resolution) if folder else task.of_run(trained, content, run_dir, report)
        )
        with _predictor(options, trained, weights) as predict:
            task.write(task.looked_at(images, predict, options.tta, report), table)
    known = any(one.findings is not None for one in images)
    truth = "" if known else " --truth FOLDER_WITH_TABLE"
    console.summary(f"{len(images)} images looked at", {
        "probabilities": str(table), "to score them": f"python -m lms3d.evaluate {output}{truth}",
    })  # fmt: skip


@contextmanager
def _predictor(options: argparse.Namespace, trained: TrainConfig, weights: Path) -> Iterator[inference.Predictor]:
    """Starts TensorFlow; yields the network of the run as a function of one sample."""
    from lms3d.device import startup
    from lms3d.tasks import inference

    limit = options.memory_limit if options.memory_limit is not None else trained.memory_limit
    startup.start_tensorflow(memory_limit_bytes=limit, precision=trained.precision)
    model = _load_model(weights)
    with _lms(trained, options.lms, limit) as lms:
        yield inference.predictor(model, trained.resolution, lms=lms)


def _cases(
    run_dir: Path, trained: TrainConfig, content: dict[str, Any], options: argparse.Namespace, output: Path, report: Any
) -> tuple[Cache, list[str], Predictions]:
    """The cache of the cases to predict, their ids, and the description of what will be written."""
    from data import split
    from data.brats import cache, layouts
    from lms3d.tasks.brats.label_maps import Predictions

    directory = Path(options.data).expanduser() if options.data else _training_data(trained, report)
    labels = options.labels or trained.labels
    cases, schema = layouts.find_cases(directory, labels=labels, require_truth=False)
    # All cases of the folder: for the run's own data this is the cache that training has built.
    built = cache.build(cases, schema, trained.resolution, n4=trained.n4, progress=report)
    ids = list(built.ids if options.data else split.load(run_dir / "split.json").validation)
    target = Predictions(
        directory=output,
        label=run_dir.resolve().name,
        run=str(run_dir.resolve()),
        model=trained.model,
        resolution=trained.resolution,
        tta=options.tta,
        data=str(directory.resolve()),
        fingerprint=built.fingerprint,
        schema=schema.name,
        cases={case_id: built.geometry(case_id).to_json() for case_id in ids},
    )
    return built, ids, target


def _training_data(trained: TrainConfig, report: Any) -> Path:
    """The folder that the run was trained on; the embedded data is made again where it is gone."""
    from data.phantoms import brains

    return trained.data or brains.write(brains.default_directory(), progress=report)


def _predict_cases(
    predict: Callable[[np.ndarray], np.ndarray],
    cache: Cache,
    ids: Sequence[str],
    normalisation: Normalisation,
    target: Predictions,
    report: Any,
) -> None:
    """Write both label maps of every case, then predictions.json."""
    import numpy as np

    from data.brats.preprocess import to_native
    from lms3d.tasks.brats.label_maps import cube_affine, write_labels

    (target.directory / "predictions.json").unlink(missing_ok=True)  # until all are new, there is no finished set
    for done, case_id in enumerate(ids):
        report(done, len(ids), "segmenting")
        probabilities = _probabilities(predict, normalisation.apply(cache.image(case_id)), target.tta)
        geometry = cache.geometry(case_id)
        # Probabilities, not labels, go back to the fine grid: a linear edge is smoother than one in whole cube voxels.
        native = cache.schema.from_channels(to_native(probabilities, geometry))
        cube = cache.schema.from_channels(probabilities)
        write_labels(native, np.array(geometry.affine), target.native(case_id))
        write_labels(cube, cube_affine(geometry.to_json(), cache.resolution), target.cube(case_id))
    target.save()
    report(len(ids), len(ids), "segmenting")


def _probabilities(predict: Callable[[np.ndarray], np.ndarray], image: np.ndarray, tta: bool) -> np.ndarray:
    """Normalised image (N, N, N, 4) -> probabilities (N, N, N, 3), with tta the mean over the 48 symmetries."""
    if not tta:
        return predict(image)
    from functools import partial

    from data.brats import augment
    from lms3d.tasks.inference import mean_over_symmetries

    numbers = range(len(augment.SYMMETRIES))
    pairs = [(partial(augment.apply, k=k), partial(augment.apply, k=augment.inverse(k))) for k in numbers]
    return mean_over_symmetries(predict, image, pairs)


def _weights(run_dir: Path) -> Path:
    path = run_dir / "best.keras"
    if not path.is_file():
        raise errors.InputError(
            f"{path}: found nothing; expected the best weights of a run; train at least one epoch with "
            f"`python -m lms3d.train --output {run_dir}`"
        )
    return path


def _load_model(path: Path) -> Any:
    import keras
    import tensorflow as tf

    import models  # noqa: F401  (registers its layers)

    try:
        return keras.models.load_model(path, compile=False)
    except tf.errors.ResourceExhaustedError:
        raise errors.DoesNotFit(
            f"{path}: the weights alone need more memory than there is; raise --memory-limit"
        ) from None
    except Exception as error:
        raise errors.InputError(
            f"{path}: found a model that cannot be loaded ({error}); expected what lms3d.train saves; train again"
        ) from None


@contextmanager
def _lms(trained: TrainConfig, wanted: bool | None, limit: int | None) -> Iterator[LMS | None]:
    """LMS for the inference graph: the tier of the run, its own plan (TFLMS parameters belong to the training step)."""
    if not (trained.lms if wanted is None else wanted):
        yield None
        return
    from lms3d.keras_step.callback import LMS

    lms = LMS(memory_limit=limit, tier=trained.swap_tier, swap_dir=trained.swap_dir)
    try:
        yield lms
    finally:
        lms.close()  # removes its swap files


def _normalisation(content: dict[str, Any], run_dir: Path) -> Normalisation:
    from data.brats.normalise import Normalisation

    try:
        return Normalisation.from_json(content["normalisation"])
    except (KeyError, TypeError, ValueError):
        raise errors.InputError(
            f"{run_dir / 'config.json'}: found no normalisation; expected mean and std of the training images; "
            "train again"
        ) from None


def _parser() -> cli.Parser:
    parser = cli.Parser(prog="python -m lms3d.predict", description=_DESCRIPTION, epilog=_EPILOG)
    parser.add_argument("run_dir", metavar="RUN_DIR", help="folder of a trained run")
    add = parser.add_argument
    add(
        "--data",
        metavar="DIR",
        default=None,
        help="cases or images (default: the run's validation cases or test images)",
    )
    add("--labels", metavar="SCHEMA", default=None, help="what labels mean, where file names do not tell")
    add("--output", metavar="DIR", default=None, help="where to write (default: RUN_DIR/predictions)")
    add("--tta", action="store_true", default=False, help=_TTA)
    add(
        "--lms", action=argparse.BooleanOptionalAction, default=None,
        help="use LMS where the network does not fit (default: as the run was trained)",
    )  # fmt: skip
    add(
        "--memory-limit", type=cli.checked(parse_size, "size"), metavar="SIZE", default=None,
        help="hard limit on device memory, such as 6GiB (default: as the run was trained)",
    )  # fmt: skip
    return parser


if __name__ == "__main__":
    sys.exit(main())
