"""`python -m experiments.torture_soak`: in long runs, do memory, open files, threads, swap files and step times stay as they are?

    steps    one tiny model under LMS, tens of thousands of steps
    shapes   a batch of another shape in each step, a thousand of them
    errors   fit, an error in the midst of a step's callbacks, fit again, a hundred times

Something that grows by a little in each step is a line with a slope: it is estimated by Theil and Sen's method (the median of the
slopes of all pairs), which single outliers do not bend, over the samples after the first third. Each part runs in a process of its
own; one that a folder holds already, and that was flat, is not run again.
"""

from __future__ import annotations

import argparse
import gc
import json
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from scipy import stats

from lms3d import cli, errors
from lms3d.files import writable_folder, write_json

ALLOWED = {"memory_mib": 16.0, "open_files": 0.5, "threads": 0.5, "swap_files": 0.5, "step_share": 0.2}
"""Growth from the first third to the end that counts as flat; of the step time, as a share of it."""

_WIDTH, _LAYERS = 32, 6


@dataclass(frozen=True)
class Sample:
    """Of the process, after so many steps."""

    steps: int
    memory_mib: float
    open_files: int
    threads: int
    swap_files: int
    step_seconds: float


@dataclass(frozen=True)
class Trend:
    """How much a figure grew over a run. before: its median in the first samples that count."""

    part: str
    figure: str
    before: float
    growth: float
    allowed: float

    @property
    def flat(self) -> bool:
        return self.growth <= self.allowed


class Failed(RuntimeError):
    """Something grows."""

    exit_code = 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all, report. Returns the exit code."""
    return errors.run(lambda: _torture(_parser().parse_args(arguments)))


def _torture(options: argparse.Namespace) -> None:
    folder = writable_folder(Path(options.output).expanduser(), "--output")
    found: list[Trend] = []
    for part, count in (("steps", options.steps), ("shapes", options.shapes), ("errors", options.errors)):
        path = folder / f"{part}-{count}.json"
        if not _is_flat(part, path):
            write_json(path, [asdict(one) for one in _apart(part, count, folder)])
        found += _read(part, path)
    print("\n".join(table(found)))
    if grown := [f"{one.part}: {one.figure}" for one in found if not one.flat]:
        raise Failed(f"it grows: {', '.join(grown)}; the samples are in {folder}")


def _is_flat(part: str, path: Path) -> bool:
    """By the samples of an earlier call; False where there are none."""
    return path.exists() and all(trend.flat for trend in _read(part, path))


def _read(part: str, path: Path) -> list[Trend]:
    return trends(part, [Sample(**one) for one in json.loads(path.read_text())])


def _apart(part: str, count: int, folder: Path) -> list[Sample]:
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(samples, part, count, folder).result()


def samples(part: str, count: int, folder: Path) -> list[Sample]:
    """One of the parts, so many times, in this process. folder: for swap files."""
    return list(PARTS[part](count, folder))


def table(found: Sequence[Trend]) -> list[str]:
    """Markdown."""
    rows = [f"| {t.part} | {t.figure} | {t.before:.4g} | {t.growth:+.3g} | {t.allowed:.2g} |" for t in found]
    return ["| part | figure | before | growth | allowed |", "| --- | --- | ---: | ---: | ---: |", *rows]


def trends(part: str, seen: list[Sample]) -> list[Trend]:
    """Of every figure."""
    counted = seen[len(seen) // 3 :]
    at = np.array([one.steps for one in counted], float)
    found = []
    for figure in ("memory_mib", "open_files", "threads", "swap_files", "step_seconds"):
        values = np.array([getattr(one, figure) for one in counted], float)
        growth = float(stats.theilslopes(values, at).slope * (at[-1] - at[0]))
        before = float(statistics.median(values[: max(1, len(values) // 4)]))
        if figure == "step_seconds":
            allowed = ALLOWED["step_share"] * before
        else:
            allowed = ALLOWED[figure]
        found.append(Trend(part, figure, before, growth, allowed))
    return found


def _steps(count: int, folder: Path) -> Iterator[Sample]:
    """count: steps."""
    every = max(1, count // 100)
    yield from _watched(
        lambda model, lms: model.fit(*_data(count), batch_size=2, verbose=0, callbacks=lms), every, folder
    )


def _shapes(count: int, folder: Path) -> Iterator[Sample]:
    """count: shapes, each seen once."""
    import tensorflow as tf

    spec = tf.TensorSpec((2, None, _WIDTH))

    def batches() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for number in range(
            count
        ):  # short and long ones in turn: those that are kept are as large at the end as before
            length = 1 + (number // 2 if number % 2 else count - 1 - number // 2)
            yield (np.full((2, length, _WIDTH), 0.1, np.float32),) * 2

    data = tf.data.Dataset.from_generator(batches, output_signature=(spec, spec))
    yield from _watched(lambda model, lms: model.fit(data, verbose=0, callbacks=lms), max(1, count // 100), folder)


def _errors(count: int, folder: Path) -> Iterator[Sample]:
    """count: errors."""
    import keras

    class Stumble(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if batch == 3:
                raise RuntimeError("a test")

    def fit(model: Any, lms: list[Any]) -> None:
        for _ in range(count):
            try:
                model.fit(*_data(8), batch_size=2, verbose=0, callbacks=[*lms, Stumble()])
            except RuntimeError:
                model.fit(*_data(2), batch_size=2, verbose=0, callbacks=lms)

    yield from _watched(fit, max(1, 6 * count // 100), folder)


PARTS: dict[str, Callable[[int, Path], Iterator[Sample]]] = {"steps": _steps, "shapes": _shapes, "errors": _errors}


def _watched(fit: Callable[[Any, list[Any]], Any], every: int, folder: Path) -> list[Sample]:
    """Samples of a training by LMS with a disk, one after so many steps."""
    import keras

    import lms3d

    seen: list[Sample] = []

    class Watch(keras.callbacks.Callback):
        steps, seconds, begun = 0, list[float](), 0.0

        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            self.begun = time.perf_counter()

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.seconds.append(time.perf_counter() - self.begun)
            self.steps += 1
            if self.steps % every == 0:
                seen.append(_sample(self.steps, swap_dir, statistics.median(self.seconds)))
                self.seconds.clear()

    keras.utils.set_random_seed(1)
    gc.collect()
    gc.freeze()  # the collection before each sample need not look at all that TensorFlow and Keras are made of
    inputs = y = keras.Input((None, _WIDTH))
    for _ in range(_LAYERS):
        y = keras.layers.Dense(_WIDTH, activation="tanh")(y)
    model = keras.Model(inputs, y)
    model.compile("adam", "mse", jit_compile=False)
    with tempfile.TemporaryDirectory(dir=folder) as swap_dir:
        lms = lms3d.LMS(
            tier="disk", swap_dir=swap_dir, swapout_threshold=6, swapin_ahead=2, swapin_groupby=0, sync_mode=0
        )
        fit(model, [lms, Watch()])
        if lms.plan is None or not lms.plan.swap_outs:
            raise RuntimeError("nothing was swapped: the soak proves nothing")
        lms.close()
    return seen


def _sample(steps: int, swap_dir: str, step_seconds: float) -> Sample:
    gc.collect()  # Keras leaves cycles behind a failed `fit`, which hold threads until they are found
    process = psutil.Process()
    return Sample(
        steps=steps,
        memory_mib=process.memory_info().rss / 2**20,
        open_files=process.num_fds(),
        threads=process.num_threads(),
        swap_files=sum(len(names) for _, _, names in os.walk(swap_dir)),
        step_seconds=step_seconds,
    )


def _data(steps: int) -> tuple[np.ndarray, np.ndarray]:
    array = np.full((2 * steps, 4, _WIDTH), 0.1, np.float32)
    return array, array


def _parser() -> cli.Parser:
    parser = cli.Parser(prog="python -m experiments.torture_soak", description=(__doc__ or "").split("\n\n")[0])
    for part, count, what in (
        ("steps", 20_000, "steps of one shape"),
        ("shapes", 1000, "batch shapes"),
        ("errors", 100, "errors"),
    ):
        parser.add_argument(
            f"--{part}", type=cli.whole(3), metavar="N", default=count, help=f"{what} (default: {count})"
        )
    parser.add_argument(
        "--output",
        metavar="DIR",
        default="runs/torture-soak",
        help="folder of results, new or to go on in (default: runs/torture-soak)",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
