"""`python -m experiments.input_pipeline`: does the input pipeline keep the device busy? The CheXNet study's question.

1. Three orders (`data.pipelines`): the study's old and new one, of the same stages, and the best, which lms3d trains with.
2. Alone: every rank takes batches as fast as they come. All orders are in memory at once and run in turns, so that a ratio
   compares seconds that lie beside each other, not minutes. Several runs, each with ranks that were started anew.
3. Beside a device: the same, but every rank takes batches at the pace of a device of --device-speed, which sleeps for as long
   as a step would last. So a machine without a GPU shows what a GPU would find.
4. While training: the wait is measured in the loop, by a clock around next(iterator) after a step that has ended, and
   once more by tf.data itself.
5. Every rank has the same cores at any number of ranks.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from experiments.feeding import alone, results
from experiments.feeding.parts import Part, Parts, SomeFailed, remember
from experiments.feeding.results import ALONE, DEVICE, TRAINING
from experiments.scalability import launch
from experiments.scalability.runs import BUSY_SECONDS
from lms3d import cli, errors
from lms3d.device import machine
from lms3d.tasks.chexnet.options import CHOICES

ORDERS = ("old", "new", "best")
BUSY = 0.15
"""Above this the report says that a measurement was disturbed."""

_DESCRIPTION = """\
Measure the input pipelines of the CheXNet scaling study, the old, the new and the best order, on 1..N ranks: images/s alone,
beside a device of given speed and while training; the share of time that the device waits for data; the CPU that each takes.

Each measurement is saved as it finishes; started again with the same --output only what is missing is measured."""

_EPILOG = """\
examples:
  python -m experiments.input_pipeline
  python -m experiments.input_pipeline --ranks 2 --kinds alone                 # what is promised; 5 minutes
  python -m experiments.input_pipeline --ranks 1 2 4 8 --data ~/ChestX-ray14 --training-resolution 224 --batch-size 64
  python -m experiments.input_pipeline --ranks 1 4 8 --launcher "srun -n {ranks}" --data ~/ChestX-ray14

writes into --output: input_pipeline.csv, input_pipeline.png, report.md; logs/, parts/
exit codes: 0 done, 1 a measurement failed, 2 wrong option or input, 130 interrupted (run again to go on)"""

_NOTES = """\
Images/s: of all ranks together, median of all rounds. Old order: every rank does the work of all, in one thread, so ranks add
nothing. With one core for each of N ranks new / old is therefore about N, hardly more; with more cores it grows with them.
Device waits: time in next(iterator) / time of the steps, mean over the ranks; each step has ended before the next batch is
asked for, so nothing hides this wait. Where no network trains, the device sleeps for the time of a step. By tf.data: the same
wait from its own iterator op, in steps of their own under the profiler.
Cores in use: CPU time / time, of all ranks; while training on a CPU the network's are among them.
Ratios: of windows of the same round (least to most); runs: the median of each run, of ranks that were started anew; found: the
median of those. By CPU time: of images per CPU second, which other programs on the machine change less. Shards are in the page
cache: what a disk or a network adds is not measured. Best order: the function that `lms3d.train` calls."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure what is missing, report. Returns the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    command = shlex.join(["python", "-m", "experiments.input_pipeline", *words])
    return errors.run(lambda: _study(_parser().parse_args(words), command))


def _study(options: argparse.Namespace, command: str) -> None:
    from experiments.feeding.images import shards_of
    from lms3d.files import writable_folder

    output = writable_folder(Path(options.output).expanduser().resolve(), "--output")
    ranks = sorted(set(options.ranks))
    cores = options.cores_per_rank or launch.default_cores_per_rank(max(ranks))
    launcher = launch.Launcher(template=options.launcher, cores_per_rank=cores)
    if TRAINING in options.kinds:
        launcher.command(1, [])  # it is there
    remember(_settings(options, cores), output)
    parts = Parts(output, minutes=options.minutes, again=options.again)
    try:
        for kind in [kind for kind in results.KINDS if kind in options.kinds]:
            resolution = options.training_resolution if kind == TRAINING else options.resolution
            shards = shards_of(options.data, resolution, max(ranks)).directory
            for n in ranks:
                if kind == TRAINING:
                    make = partial(_training, shards, options, launcher, n, output)
                else:
                    make = partial(_alone, kind, shards, options, cores, n, output)
                parts.measure(f"{kind}-{n}", make)
    except KeyboardInterrupt:
        raise errors.Interrupted("interrupted; run the same command again to go on") from None
    finally:
        print(_write(output, parts, options, cores, command))
        print(f"written: {output}")
    if parts.failed:
        raise SomeFailed(f"{len(parts.failed)} of the measurements failed: {parts.failed[0]}")


def _alone(
    kind: str,
    shards: Path,
    options: argparse.Namespace,
    cores: int | None,
    ranks: int,
    output: Path,
    left: float | None,
) -> Part:
    return alone.measure(
        shards, options.orders, output / "logs" / f"{kind}-{ranks}.txt", ranks=ranks, cores=cores and cores * ranks,
        batch_size=options.batch_size, runs=options.runs, rounds=options.rounds, window_seconds=options.window,
        seconds_left=left,
        device_speed=options.device_speed if kind == DEVICE else None,
    )  # fmt: skip


def _training(
    shards: Path, options: argparse.Namespace, launcher: launch.Launcher, ranks: int, output: Path, left: float | None
) -> Part:
    found = output / "parts" / f".training-{ranks}.found.json"
    found.parent.mkdir(exist_ok=True)
    found.unlink(missing_ok=True)
    asked = {
        "output": str(found), "shards": str(shards), "orders": options.orders, "rounds": options.training_rounds,
        "steps": options.steps, "batch_size": options.batch_size, "model": options.model,
        "resolution": options.training_resolution, "precision": options.precision,
    }  # fmt: skip
    program = [sys.executable, "-m", "experiments.feeding.training_rank", json.dumps(asked)]
    launcher.run(ranks, program, output / "logs" / f"training-{ranks}.txt", patience_seconds=left)
    part: Part = json.loads(found.read_text())
    found.unlink()
    return part


def _settings(options: argparse.Namespace, cores: int | None) -> dict[str, object]:
    """What measurements of one --output share; others may be added to it."""
    free = ("ranks", "kinds", "minutes", "again", "output", "cores_per_rank")
    kept = {name: value for name, value in sorted(vars(options).items()) if name not in free}
    return {**kept, "data": None if options.data is None else str(options.data), "cores_per_rank": cores}


def _write(output: Path, parts: Parts, options: argparse.Namespace, cores: int | None, command: str) -> str:
    """CSV, figure and report.md of what there is; returns the report."""
    from experiments.feeding import figure
    from lms3d.files import write_text

    found = [part for kind in results.KINDS for part in parts.found(kind)]
    results.write_csv(found, output / "input_pipeline.csv")
    figure.draw(found, output / "input_pipeline.png", _titles(options))
    texts = ["# The input pipeline", results.tables(found) or "Nothing was measured.", _NOTES]
    disturbed = [f"{p['name']}: {p['busy']:.0%} of the cores in use by others" for p in found if p["busy"] > BUSY]
    lists = {
        f"The machine was not idle in the {BUSY_SECONDS} s before; trust the ratios more than the times": disturbed,
        "Skipped": parts.skipped,
        "Failed": parts.failed,
    }
    texts += ["\n".join([f"{title}:", *(f"- {line}" for line in lines)]) for title, lines in lists.items() if lines]
    texts.append(_conditions(options, cores, command))
    text = "\n\n".join(texts) + "\n"
    write_text(output / "report.md", text)
    return text


def _titles(options: argparse.Namespace) -> dict[str, str]:
    """Of the figure ("") and of its panels."""
    data = "Embedded radiographs" if options.data is None else "ChestX-ray14"
    alone_at, training_at = f"{options.resolution}$^2$", f"{options.training_resolution}$^2$"
    return {
        "": f"{data}, batches of {options.batch_size}",
        ALONE: f"Alone, {alone_at}",
        DEVICE: f"A device of {options.device_speed:g} images/s a rank, {alone_at}",
        TRAINING: f"Training {options.model}, {training_at}",
    }


def _conditions(options: argparse.Namespace, cores: int | None, command: str) -> str:
    import platform
    from importlib.metadata import version

    from experiments.feeding.accepted import processor

    bound = f"{cores} for each rank" if cores else "not bound to ranks"
    data = "embedded radiographs" if options.data is None else "of --data"
    return (
        f"Images: {data}, {options.resolution}^2, while training {options.model} ({options.precision}) "
        f"{options.training_resolution}^2, batches of {options.batch_size} a rank. Without a network: {options.runs} runs of "
        f"{options.rounds} rounds, "
        f"windows of {options.window:g} s, a device of {options.device_speed:g} images/s a rank; training: "
        f"{options.training_rounds} rounds of {options.steps} steps. Machine: {processor()}, {os.cpu_count()} cores ({bound}), "
        f"{platform.machine()}, TensorFlow {version('tensorflow')}. Made by `{command}`."
    )


def _parser() -> cli.Parser:
    gpu = machine.has_nvidia_driver()
    parser = cli.Parser(prog="python -m experiments.input_pipeline", description=_DESCRIPTION, epilog=_EPILOG)
    add, count = parser.add_argument, cli.whole(1)
    add("--ranks", type=count, nargs="+", metavar="N", default=[1, 2], help="numbers of ranks (default: 1 2)")
    add("--kinds", choices=tuple(results.KINDS), nargs="+", default=list(results.KINDS), help="what (default: all)")
    add("--orders", choices=ORDERS, nargs="+", default=list(ORDERS), help="which orders (default: all)")
    add("--data", type=cli.path, metavar="DIR", default=None, help="ChestX-ray14 folder (default: the embedded data)")
    add("--batch-size", type=count, metavar="N", default=32, help="images a batch and rank (default: 32)")
    add("--resolution", type=count, metavar="N", default=224, help="side of the images alone (default: 224)")
    add(
        "--training-resolution", type=count, metavar="N", default=224 if gpu else 64,
        help="side of the images while training (default: 224; without a GPU 64)",
    )  # fmt: skip
    add("--model", choices=CHOICES.models, default="resnet50", help="what is trained (default: resnet50)")
    add(
        "--precision", choices=("float32", "mixed_bfloat16", "mixed_float16"), default="float32",
        help="of the training (default: float32)",
    )  # fmt: skip
    add("--runs", type=count, metavar="N", default=3, help="without a network, ranks started anew each (default: 3)")
    add("--rounds", type=count, metavar="N", default=4, help="turns of the orders in each such run (default: 4)")
    add(
        "--device-speed", type=cli.number(0), metavar="X", default=600.0,
        help="images/s of the device of each rank that sleeps (default: 600; ResNet-50 on your GPU: resnet50_benchmark)",
    )  # fmt: skip
    add("--window", type=cli.number(0), metavar="S", default=3.0, help="seconds of each such turn (default: 3)")
    add("--training-rounds", type=count, metavar="N", default=2, help="turns of the orders in training (default: 2)")
    add(
        "--steps", type=count, metavar="N", default=100 if gpu else 15,
        help="steps of each turn in training (default: 100; without a GPU 15)",
    )  # fmt: skip
    add(
        "--launcher", metavar="COMMAND", default=launch.HORVODRUN,
        help="starts the ranks of training, {ranks} stands for their number (default: %(default)r)",
    )  # fmt: skip
    add(
        "--cores-per-rank", type=count, metavar="N", default=None,
        help="cores that each rank has, for any number of ranks (default: all shared by the most ranks; with a GPU unbound)",
    )  # fmt: skip
    add(
        "--minutes", type=cli.number(0), metavar="X", default=None,
        help="time limit: measurements that do not fit into what is left of it are skipped or ended (default: none)",
    )  # fmt: skip
    add("--again", action="store_true", default=False, help="measure anew what is there (default: off)")
    add("--output", metavar="DIR", default="input-pipeline", help="where everything goes (default: input-pipeline)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
