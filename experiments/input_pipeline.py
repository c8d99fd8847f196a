"""`python -m experiments.input_pipeline`: does the input pipeline keep the device busy? The CheXNet study's question.

1. Three orders (`experiments.feeding.orders`): the study's old and new one, and the best, which lms3d trains with; on 1..N ranks.
2. Alone: every rank takes batches as fast as they come. All orders are in memory at once and run in turns, so that a ratio
   compares seconds that lie beside each other, not minutes. Several runs, each with ranks that were started anew.
3. Beside a device: the same, but every rank takes batches at the pace of a device of --device-speed, which sleeps for as long
   as a step would last. So a machine without a GPU shows what a GPU would find.
4. While training: the wait is measured in the loop, by a clock around next(iterator) after a step that has ended.
5. Every rank has the same cores at any number of ranks.
6. The tables: images/s, the share of time that the device waits for data, and the CPU that each order takes.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from functools import partial

from lms3d import cli
from lms3d.device import machine
from lms3d.experiments.feeding import alone, results
from lms3d.experiments.feeding.results import ALONE, DEVICE, TRAINING
from lms3d.experiments.harness import command, page, rank_study
from lms3d.experiments.harness.rank_study import RankStudy
from lms3d.experiments.harness.ranks import BUSY_SECONDS
from lms3d.experiments.harness.store import Record
from lms3d.experiments.harness.table import write_csv
from lms3d.tasks.chexnet.options import ChexnetConfig

ORDERS = ("old", "new", "best")

_EPILOG = """\
examples:
  python -m experiments.input_pipeline
  python -m experiments.input_pipeline --ranks 2 --kinds alone                 # what is promised; 5 minutes
  python -m experiments.input_pipeline --ranks 1 2 4 8 --data ~/ChestX-ray14 --training-resolution 224 --batch-size 64
  python -m experiments.input_pipeline --ranks 1 4 8 --launcher "srun -n {ranks}" --data ~/ChestX-ray14

writes into --output: input_pipeline.csv, input_pipeline.png, report.md; logs/, parts/"""

_NOTES = """\
Images/s: of all ranks together, the median of all rounds. Old order: every rank does the work of all, in one thread, so ranks add
nothing. With one core for each of N ranks new / old is therefore about N, hardly more; with more cores it grows with them.
Device waits: time in next(iterator) / time of the steps, the mean over the ranks; each step has ended before the next batch is
asked for, so nothing hides this wait. If no network trains, the device sleeps for the time of a step.
Cores in use: CPU time / time, of all ranks; while training on a CPU the network's cores are among them.
Ratios are those of windows of the same round (least to most); runs: the median of each run, of ranks that were started anew;
found: the median of those. By CPU time: the ratio of images per CPU second, which other programs on the machine change less;
others: the cores that these took meanwhile.
Shards are in the page cache: what a disk or a network adds is not measured. Best order: the function that `lms3d.train` calls."""


def _study(options: argparse.Namespace, typed: str) -> None:
    # Others may be added to what one --output holds: more ranks, other kinds.
    study = RankStudy.begin(options, command.settings(options, "ranks", "kinds", "minutes", "again", "cores_per_rank"))
    if TRAINING in options.kinds:
        study.launcher.command(1, [])  # it is there
    kinds = [kind for kind in results.KINDS if kind in options.kinds]
    study.measure(kinds, partial(_maker, study, options), lambda: _report(study, options, typed))


def _maker(study: RankStudy, options: argparse.Namespace, kind: str) -> Callable[..., Record]:
    """(ranks, seconds left) -> a part of this kind, on shards that are there."""
    from lms3d.experiments.feeding.images import shards_of

    resolution = options.training_resolution if kind == TRAINING else options.resolution
    shards = shards_of(options.data, resolution, max(study.ranks)).directory

    def without_network(ranks: int, left: float | None) -> Record:
        return alone.measure(
            shards, options.orders, study.output / "logs" / f"{kind}-{ranks}.txt", ranks=ranks,
            cores=study.cores_per_rank and study.cores_per_rank * ranks, batch_size=options.batch_size, runs=options.runs,
            rounds=options.rounds, window_seconds=options.window, seconds_left=left,
            device_speed=options.device_speed if kind == DEVICE else None,
        )  # fmt: skip

    def training(ranks: int, left: float | None) -> Record:
        asked = {
            "shards": str(shards), "orders": options.orders, "rounds": options.training_rounds, "steps": options.steps,
            "batch_size": options.batch_size, "model": options.model, "resolution": resolution, "precision": options.precision,
        }  # fmt: skip
        return study.launch("lms3d.experiments.feeding.training_rank", kind, asked, ranks, left)

    return training if kind == TRAINING else without_network


def _report(study: RankStudy, options: argparse.Namespace, typed: str) -> list[str]:
    """Writes CSV and figure of what there is, and returns the sections of report.md."""
    from lms3d.experiments.feeding import figure

    found = study.found(tuple(results.KINDS))
    write_csv(study.output / "input_pipeline.csv", results.COLUMNS, results.rows(found), "{:.6g}".format)
    figure.draw(found, study.output / "input_pipeline.png", _titles(options))
    busy = f"The machine was not idle in the {BUSY_SECONDS} s before; trust the ratios more than the times"
    sections = ["# The input pipeline", results.tables(found) or "Nothing was measured.", _NOTES]
    return [*sections, *page.gaps(study.records, found, busy), _conditions(options, study.cores_per_rank, typed)]


def _titles(options: argparse.Namespace) -> dict[str, str]:
    """The titles of the figure ("") and of its panels."""
    data = "Embedded radiographs" if options.data is None else "ChestX-ray14"
    alone_at, training_at = f"{options.resolution}$^2$", f"{options.training_resolution}$^2$"
    return {
        "": f"{data}, batches of {options.batch_size}",
        ALONE: f"Alone, {alone_at}",
        DEVICE: f"A device of {options.device_speed:g} images/s a rank, {alone_at}",
        TRAINING: f"Training {options.model}, {training_at}",
    }


def _conditions(options: argparse.Namespace, cores: int | None, typed: str) -> str:
    done = (
        f"Without a network: {options.runs} runs of {options.rounds} rounds, windows of {options.window:g} s, a device of "
        f"{options.device_speed:g} images/s a rank; training: {options.training_rounds} rounds of {options.steps} steps."
    )
    bound = f"{cores} for each rank" if cores else "not bound to ranks"
    data = "embedded radiographs" if options.data is None else "of --data"
    return (
        f"Images: {data}, {options.resolution}^2, while training {options.model} ({options.precision}) "
        f"{options.training_resolution}^2, batches of {options.batch_size} a rank. {done} {page.machine(bound)} Made by `{typed}`."
    )


def _options(parser: cli.Parser) -> None:
    gpu = machine.has_nvidia_driver()
    rank_study.add_options(parser, "input-pipeline")
    add, count = parser.add_argument, cli.whole(1)
    add("--data", type=cli.path, metavar="DIR", default=None, help="ChestX-ray14 folder (default: the embedded data)")
    add("--kinds", choices=tuple(results.KINDS), nargs="+", default=list(results.KINDS), help="what (default: all)")
    add("--orders", choices=ORDERS, nargs="+", default=list(ORDERS), help="which orders (default: all)")
    add("--batch-size", type=count, metavar="N", default=32, help="images a batch and rank (default: 32)")
    add("--resolution", type=count, metavar="N", default=224, help="side of the images alone (default: 224)")
    side = "side of the images while training (default: 224; without a GPU 64)"
    add("--training-resolution", type=count, metavar="N", default=224 if gpu else 64, help=side)
    add("--model", choices=ChexnetConfig.models, default="resnet50", help="what is trained (default: resnet50)")
    add("--precision", choices=cli.PRECISIONS, default="float32", help="of the training (default: float32)")
    add("--runs", type=count, metavar="N", default=3, help="without a network, ranks started anew each (default: 3)")
    add("--rounds", type=count, metavar="N", default=4, help="turns of the orders in each such run (default: 4)")
    speed = "images/s of the device of each rank that sleeps (default: 600; ResNet-50 on your GPU: resnet50_benchmark)"
    add("--device-speed", type=cli.number(0), metavar="X", default=600.0, help=speed)
    add("--window", type=cli.number(0), metavar="S", default=3.0, help="seconds of each such turn (default: 3)")
    add("--training-rounds", type=count, metavar="N", default=2, help="turns of the orders in training (default: 2)")
    steps = "steps of each turn in training (default: 100; without a GPU 15)"
    add("--steps", type=count, metavar="N", default=100 if gpu else 15, help=steps)


main, _parser = command.of(
    "input_pipeline", _study, _options, __doc__, _EPILOG, exits={1: "a measurement failed"}, resumed=True
)


if __name__ == "__main__":
    sys.exit(main())
