"""`python -m experiments.chexnet_models`: ResNet-50 against DenseNet-121 on chest X-rays, images/s, memory and AUROC.

The CheXNet scaling study replaced DenseNet-121 by ResNet-50, which scaled better, with a higher AUROC. Here both train by the real
command on the same images, the same split and the same order of samples, as many epochs, without LMS; the AUROC is that of test
patients. An interrupted model is resumed.
"""

from __future__ import annotations

import argparse
import shlex
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lms3d import cli, errors
from lms3d.device import machine
from lms3d.experiments.harness import command, commands, page, runs, store
from lms3d.experiments.harness.child import of_module
from lms3d.experiments.harness.table import Shown, of_records, read_csv, write_csv
from lms3d.tasks.chexnet.options import ChexnetConfig
from lms3d.units import format_size

_EPILOG = """\
examples:
  python -m experiments.chexnet_models
  python -m experiments.chexnet_models --data ~/ChestX-ray14 --resolution 224 --epochs 10                   (a GPU)

writes into --output: report.md, models.csv, NAME/ (the run of each model)"""

_NOTES = """\
Images/s: batch / median step, from its first operation to its last, without waiting for data. Epoch: the median, with reading,
validation and saving. Both leave out the first epoch. Peak: the most that TensorFlow's allocator had handed out; on a CPU without
a limit it counts no tensors below 256 KiB. AUROC: the mean over the findings, on test patients whom no epoch has seen, with the
95 % interval of a bootstrap over patients. The models train one after the other: other work on the machine meets them at different
times."""

COLUMNS = (
    "model", "parameters", "epochs", "images_per_second", "epoch_seconds", "peak_bytes", "auroc", "auroc_low", "auroc_high",
)  # fmt: skip
SHOWN: Shown = {
    "model": ("model", str), "parameters": ("weights", ","), "images_per_second": ("images/s", ".3g"),
    "relative": ("relative", "{:.2f} x".format), "epoch_seconds": ("epoch", "{:.1f} s".format),
    "peak_bytes": ("peak", format_size), "auroc": ("AUROC", ".3f"), "interval": ("95 % interval", str),
}  # fmt: skip


def _compare(options: argparse.Namespace, typed: str) -> None:
    output = command.folder(options)
    store.remember(command.settings(options, "models"), output)
    for model in options.models:
        if not (output / model / "auroc.csv").exists():
            commands.run([*of_module("lms3d.train"), *train_words(options, model, output / model)])
    found = [read(output / model, options.batch_size) for model in options.models]
    write_csv(output / "models.csv", COLUMNS, found)
    data = "embedded artificial radiographs: AUROC says nothing about patients" if options.data is None else "of --data"
    conditions = (
        f"Images: {data}; {options.resolution}^2, batches of {options.batch_size}, float32, seed {options.seed}. "
        f"{page.machine()} Made by `{typed}`."
    )
    page.publish(output / "report.md", ["# Networks for chest X-rays", table(found), _NOTES, conditions])


def train_words(options: argparse.Namespace, model: str, run_dir: Path) -> list[str]:
    """The options of `lms3d.train`; --resume goes on with an interrupted run."""
    words: list[Any] = ["--task", "chexnet", "--model", model, "--no-lms", "--resolution", options.resolution]
    words += ["--batch-size", options.batch_size, "--epochs", options.epochs, "--seed", options.seed]
    words += ["--data", options.data] if options.data is not None else []
    return [*map(str, words), *shlex.split(options.train_options), "--output", str(run_dir), "--resume"]


def read(run_dir: Path, batch_size: int) -> dict[str, Any]:
    """The figures of a finished run, by the names in COLUMNS. The AUROC is the mean over the findings; None, like its interval, if
    all test images show the same. InputError if its files are not a run's."""
    try:
        mean = read_csv(run_dir / "auroc.csv")[-1]
        steps, epochs = runs.training_steps(run_dir), runs.epoch_seconds(run_dir)
        late = [row for row in steps if row["epoch"] != "1"] or steps[1:]
        auroc, low, high = (_number(mean[name]) for name in ("auroc", "low", "high"))
        return {
            "model": run_dir.name, "parameters": runs.weight_count(run_dir), "epochs": len(epochs),
            "images_per_second": batch_size / statistics.median(float(row["seconds"]) for row in late),
            "epoch_seconds": statistics.median(epochs[1:] or epochs), "peak_bytes": max(int(row["peak_bytes"]) for row in steps),
            "auroc": auroc, "auroc_low": low, "auroc_high": high,
        }  # fmt: skip
    except (OSError, KeyError, IndexError, ValueError) as error:
        raise errors.InputError(
            f"{run_dir}: {error!r}; expected a run of this experiment; delete it and run again"
        ) from None


def table(found: Sequence[dict[str, Any]]) -> str:
    """Markdown: a row for each model, relative to the first."""
    first = found[0]["images_per_second"]
    return of_records(
        [{**one, "relative": one["images_per_second"] / first, "interval": _interval(one)} for one in found], SHOWN
    )


def _interval(one: dict[str, Any]) -> str:
    return "" if one["auroc_low"] is None else f"{one['auroc_low']:.3f} to {one['auroc_high']:.3f}"


def _number(text: str) -> float | None:
    return float(text) if text and text != "nan" else None


def _options(parser: cli.Parser) -> None:
    gpu = machine.has_nvidia_driver()
    add, count = parser.add_argument, cli.whole(1)
    both = ["densenet121", "resnet50"]
    add(
        "--models",
        choices=ChexnetConfig.models,
        nargs="+",
        default=both,
        help="networks (default: densenet121 resnet50)",
    )
    add("--data", type=cli.path, metavar="DIR", default=None, help="ChestX-ray14 folder (default: the embedded data)")
    side = "side of the images (default: 224; without a GPU 64)"
    add("--resolution", type=count, metavar="N", default=224 if gpu else 64, help=side)
    add("--batch-size", type=count, metavar="N", default=16, help="images a batch (default: 16)")
    add("--epochs", type=count, metavar="N", default=10 if gpu else 3, help="of each (default: 10; without a GPU 3)")
    add("--seed", type=cli.whole(0), metavar="N", default=0, help="of everything that is random (default: 0)")
    command.add_train_options(parser)
    command.add_output(parser, "chexnet-models")


main, _parser = command.of("chexnet_models", _compare, _options, __doc__, _EPILOG, resumed=True)


if __name__ == "__main__":
    sys.exit(main())
